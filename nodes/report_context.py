"""What a model is shown about a community: its facts with their entities, or reports about its parts where it is large.

Everything is a numbered statement, so that a report can say by number what it is based on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ragbraid.nodes.chunking import find_tokens
from ragbraid.nodes.prompts import Language, one_line
from ragbraid.registry.graph import Community, Entity, Fact, Report
from ragbraid.registry.graph_parts import OTHER
from ragbraid.registry.graph_view import GraphView

LONGEST_STATEMENT = 250
"""How many tokens (words, CJK characters, signs) a single entity or fact takes at most; what a thousand chunks say about it would take all the room."""
_KINDS: Mapping[Language, tuple[str, str, str]] = {"en": ("Entity", "Fact", "Report"), "zh": ("实体", "事实", "报告")}


@dataclass(frozen=True)
class Statement:
    """One numbered line: what it says, the entity, fact or report that it stands for, and the chunks behind that."""

    kind: int
    id: str
    text: str
    chunk_ids: tuple[str, ...]

    @property
    def tokens(self) -> int:
        """How many tokens it takes."""
        return count_tokens(self.text)


@dataclass(frozen=True)
class Material:
    """What is shown of a community, in order, and how many of its facts and reports found no room."""

    statements: tuple[Statement, ...]
    left_out: int = 0

    @property
    def chunk_ids(self) -> tuple[str, ...]:
        """The chunks behind everything that is shown, in order of id."""
        return tuple(sorted({id_ for each in self.statements for id_ in each.chunk_ids}))

    def lines(self, language: Language) -> list[str]:
        """Return the statements as lines that say what they are."""
        colon = "：" if language == "zh" else ": "
        return [f"{_KINDS[language][each.kind]}{colon}{each.text}" for each in self.statements]


def count_tokens(text: str) -> int:
    """Return how many words, CJK characters and signs a text has; a model has about 1.3 tokens for an English word."""
    return sum(1 for _ in find_tokens(text))


def describe_community(
    view: GraphView,
    community: Community,
    parts: Sequence[Community],
    reports: Mapping[str, Report],
    *,
    max_tokens: int,
) -> Material:
    """Put together what a model is shown about a community.

    Facts with the most connected ends come first, each behind its entities. Connections are counted inside the
    community, so that nothing outside changes what is shown of it. Where it does not fit, reports take the place of the
    largest parts, one after the other; what then has no room is left out from the end.

    Args:
        view: the graph.
        community: the community.
        parts: the communities inside, one level down.
        reports: the reports that exist already, by id of the community; a part without one stays as facts.
        max_tokens: how many tokens the statements may take, counted as `count_tokens` does.
    """
    facts = _facts_of(view, community)
    size = _Sizes(view)
    replaced: list[Community] = []
    if size.of(facts) > max_tokens:
        large_first = sorted(parts, key=lambda part: (-size.of(_facts_of(view, part)), part.id))
        for part in (each for each in large_first if each.id in reports):
            replaced.append(part)
            told = sum(size.of_report(reports[each.id]) for each in replaced)
            if told + size.of(_outside(facts, replaced)) <= max_tokens:
                break
    shown = [_report_statement(reports[part.id]) for part in replaced]
    return _fill(view, shown, _outside(facts, replaced), max_tokens)


def _facts_of(view: GraphView, community: Community) -> list[Fact]:
    """Return the facts between entities of a community, those with the most connected ends first."""
    inside = set(community.entity_ids)
    found = {
        fact.id: fact
        for entity in community.entity_ids
        for fact in view.facts_of(entity)
        if fact.other_end(entity) in inside
    }
    degree = Counter(end for fact in found.values() for end in (fact.subject, fact.object))
    return sorted(found.values(), key=lambda fact: (-degree[fact.subject] - degree[fact.object], fact.id))


def _outside(facts: Sequence[Fact], parts: Iterable[Community]) -> list[Fact]:
    """Return the facts that do not lie inside one of these parts."""
    home = {entity: part.id for part in parts for entity in part.entity_ids}
    return [f for f in facts if f.subject not in home or home[f.subject] != home.get(f.object)]


def _fill(view: GraphView, reports: Sequence[Statement], facts: Sequence[Fact], max_tokens: int) -> Material:
    room = max_tokens
    chosen: list[Statement] = []
    for report in reports:
        if report.tokens <= room:
            chosen.append(report)
            room -= report.tokens
    left_out = len(reports) - len(chosen)
    told: set[str] = set()
    for position, fact in enumerate(facts):
        fresh = [end for end in dict.fromkeys((fact.subject, fact.object)) if end not in told]
        group = [*(_entity_statement(view.entities[end]) for end in fresh), _fact_statement(fact)]
        needed = sum(each.tokens for each in group)
        if needed > room:
            return Material(tuple(chosen), left_out=left_out + len(facts) - position)
        chosen += group
        told.update(fresh)
        room -= needed
    return Material(tuple(chosen), left_out)


class _Sizes:
    """How many tokens facts with their entities take; each text is counted once."""

    def __init__(self, view: GraphView) -> None:
        self._view = view
        self._counted: dict[str, int] = {}

    def of(self, facts: Sequence[Fact]) -> int:
        """Return the tokens of these facts and their entities."""
        ends = {end for fact in facts for end in (fact.subject, fact.object)}
        return sum(self._count(fact.id, _fact_statement(fact)) for fact in facts) + sum(
            self._count(end, _entity_statement(self._view.entities[end])) for end in ends
        )

    def of_report(self, report: Report) -> int:
        """Return the tokens of a report."""
        return self._count(report.id, _report_statement(report))

    def _count(self, id_: str, statement: Statement) -> int:
        if id_ not in self._counted:
            self._counted[id_] = statement.tokens
        return self._counted[id_]


def _entity_statement(entity: Entity) -> Statement:
    named = entity.name if entity.type == OTHER else f"{entity.name} ({entity.type})"
    text = f"{named}: {entity.description}" if entity.description else named
    return Statement(0, entity.id, _cut(text), entity.chunk_ids)


def _fact_statement(fact: Fact) -> Statement:
    text = f"{fact.text}. {fact.description}" if fact.predicate and fact.description else fact.text
    return Statement(1, fact.id, _cut(text), fact.chunk_ids)


def _report_statement(report: Report) -> Statement:
    return Statement(2, report.id, one_line(report.text), report.chunk_ids)


def _cut(text: str) -> str:
    """Return a text on one line, cut behind its first `LONGEST_STATEMENT` tokens."""
    line = one_line(text)
    for number, (start, _) in enumerate(find_tokens(line)):
        if number == LONGEST_STATEMENT:
            return f"{line[:start].rstrip()} …"
    return line


def pick_statements(numbers: Iterable[int], material: Material) -> tuple[list[Statement], int]:
    """Return the statements of a model's numbers, each once and in its order, and how many numbers nothing bears."""
    wanted = list(dict.fromkeys(numbers))
    known = [material.statements[n - 1] for n in wanted if 1 <= n <= len(material.statements)]
    return known, len(wanted) - len(known)


def interleave(lists: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the first of every list, then the second of every list, and so on, each text once."""
    seen: set[str] = set()
    for position in range(max(map(len, lists), default=0)):
        for each in lists:
            if position < len(each) and each[position] not in seen:
                seen.add(each[position])
                yield each[position]
