"""From names in a text to entities: which names of the graph a text holds, and which entities a name may stand for."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ragbraid.nodes.analysis import STOP_WORDS
from ragbraid.registry.graph import Entity, EntityLink
from ragbraid.registry.graph_names import normalize_name, tidy_name
from ragbraid.registry.graph_parts import OTHER
from ragbraid.registry.graph_view import GraphView

How = Literal["exact", "alias", "fuzzy", "embedding"]

GENERIC_TYPES = frozenset({"", "entity", "other", "others", "thing", "unknown", "实体", "其他", "事物", "未知"})
"""Types that say nothing: whoever asks for an entity asks for any."""

LEAST_ALIKE = 0.6
"""Spellings that have less in common are not even named among the rejected."""

UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U000323af]"
)
"""Letters of scripts that put no blanks between words, or none before particles as Korean does."""
_NUMBER = re.compile(r"\d+")
# fmt: off
COMMON = STOP_WORDS | {
    "about", "all", "am", "been", "can", "could", "did", "do", "does", "from", "had", "has", "have", "he", "her", "him",
    "his", "how", "i", "its", "me", "more", "most", "my", "our", "out", "she", "so", "than", "up", "us", "we", "were",
    "what", "when", "where", "which", "who", "whom", "whose", "why", "would", "you", "your",
}
# fmt: on
"""Words that every question may have, and that say nothing about what it asks for."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An entity that a mention may stand for."""

    entity: Entity
    score: float
    how: How


@dataclass(frozen=True)
class Stage:
    """One way to find candidates, best first, and the setting below which their scores do not count."""

    find: Callable[[str], Iterable[Candidate]]
    setting: str = ""
    least: float = 0.0


@dataclass(frozen=True)
class Linked:
    """What a mention was linked to; where that is nothing, `why` says which filter removed the best candidates."""

    links: tuple[EntityLink, ...]
    why: str = ""


def link_mention(mention: str, stages: Sequence[Stage], types: Sequence[str], top_k: int) -> Linked:
    """Link a mention by the first stage that finds an entity which no filter removes."""
    wanted = useful_types(types)
    rejected: dict[str, list[Candidate]] = {}
    for stage in stages:
        kept: dict[str, Candidate] = {}
        for candidate in stage.find(mention):
            if candidate.score < stage.least:
                rejected.setdefault(f"`{stage.setting}` {stage.least:g}", []).append(candidate)
            elif not is_of_type(candidate.entity, wanted):
                rejected.setdefault(f"`types` {', '.join(types)}", []).append(candidate)
            else:
                kept.setdefault(candidate.entity.id, candidate)
        if kept:
            best = list(kept.values())[:top_k]
            return Linked(tuple(EntityLink(mention=mention, entity=c.entity, score=c.score, how=c.how) for c in best))
    return Linked((), _explain(mention, rejected))


def _explain(mention: str, rejected: dict[str, list[Candidate]]) -> str:
    if not rejected:
        return f"`{mention}` was linked to nothing: the graph has no name like it"
    parts = []
    for setting, candidates in rejected.items():
        best = max(candidates, key=lambda each: each.score)
        shown = f"{best.entity.name} ({best.entity.type}, {best.score:.3f} by {best.how})"
        parts.append(f"{setting} removed {len({c.entity.id for c in candidates})}, the best of them {shown}")
    return f"`{mention}` was linked to nothing: {'; '.join(parts)}"


def useful_types(types: Iterable[str]) -> frozenset[str]:
    """Return the types to filter by, normalised; none where one of them is generic, since that lets everything pass."""
    wanted = frozenset(map(normalize_name, types))
    return frozenset() if wanted & GENERIC_TYPES else wanted


def is_of_type(entity: Entity, wanted: frozenset[str]) -> bool:
    """Whether an entity passes a filter by types; one of which no type is known does."""
    known = {normalize_name(each) for each in (entity.type, *entity.types) if each != OTHER}
    return not wanted or not known or bool(known & wanted)


def by_name(view: GraphView, mention: str) -> Iterator[Candidate]:
    """Yield the entities of this name, then those of which it is an alias."""
    wanted = normalize_name(mention)
    for entity in view.named(mention):
        yield Candidate(entity, 1.0, "exact" if normalize_name(entity.name) == wanted else "alias")


@dataclass(frozen=True)
class _Spellings:
    """All names and aliases of a graph, and for each its words in the order of letters."""

    names: tuple[str, ...]
    sorted_words: tuple[str, ...]


def by_spelling(view: GraphView, mention: str, most: int) -> list[Candidate]:
    """Return the entities whose names or aliases are spelled most nearly alike, whatever the order of their words.

    The score is rapidfuzz's `ratio`: twice the letters in common, in order, over the letters of both. Names with other
    numbers are no candidates: "Rocky 2" is no misspelling of "Rocky 3".
    """
    from rapidfuzz import fuzz, process

    wanted = normalize_name(mention)
    if not wanted:
        return []
    index = view.remember("spellings", _spellings)
    near = process.extract(
        _in_letter_order(wanted), index.sorted_words, scorer=fuzz.ratio, score_cutoff=100 * LEAST_ALIKE, limit=4 * most
    )
    numbers = sorted(_NUMBER.findall(wanted))
    alike = [(index.names[place], score / 100) for _, score, place in near]
    found = [
        Candidate(entity, score, "fuzzy")
        for name, score in alike
        if sorted(_NUMBER.findall(name)) == numbers
        for entity in view.named(name)
    ]
    return sorted(found, key=lambda each: (-each.score, each.entity.id))[:most]


def _spellings(view: GraphView) -> _Spellings:
    names = tuple(name for name in view.names if name)
    return _Spellings(names, tuple(map(_in_letter_order, names)))


def _in_letter_order(name: str) -> str:
    return " ".join(sorted(name.split()))


@dataclass(frozen=True)
class _Lengths:
    names: frozenset[str]
    lengths: tuple[int, ...]


def spot_names(view: GraphView, text: str) -> list[str]:
    """Return the names and aliases of the graph that a text holds, as the graph spells them, in the order of the text.

    Of names that overlap the longest counts, and of words only whole ones. A name made of words that every question
    has ("It", "Up") counts only where it is spelled as in the graph, with a capital or digit, after the first word.
    """
    index = view.remember("names by length", _by_length)
    plain = unicodedata.normalize("NFKC", text)
    folded = tidy_name(plain.casefold())
    edges = [place for place in range(len(folded) + 1) if _is_edge(folded, place)]
    ends = frozenset(edges)
    found = [
        (start, start + length)
        for start in edges
        for length in index.lengths
        if start + length in ends and folded[start : start + length] in index.names
    ]
    taken: list[tuple[int, int]] = []
    for start, end in sorted(found, key=lambda span: (span[0] - span[1], span[0])):
        if all(end <= other[0] or start >= other[1] for other in taken) and _tells(view, folded[start:end], plain):
            taken.append((start, end))
    return list(dict.fromkeys(_spelled(view, folded[start:end])[0] for start, end in sorted(taken)))


def _by_length(view: GraphView) -> _Lengths:
    names = frozenset(name for name in view.names if len(name) > 1 or (name and not UNSPACED.match(name)))
    return _Lengths(names, tuple(sorted({len(name) for name in names})))


def _is_edge(text: str, place: int) -> bool:
    """Whether a name can begin or end here: not inside of a word, in scripts that have blanks between words."""
    if place in (0, len(text)):
        return True
    before, after = text[place - 1], text[place]
    if unicodedata.category(after).startswith("M"):
        return False
    return not (_in_word(before) and _in_word(after)) or bool(UNSPACED.match(before) or UNSPACED.match(after))


def _in_word(letter: str) -> bool:
    return letter.isalnum() or unicodedata.category(letter).startswith("M")


def _tells(view: GraphView, name: str, text: str) -> bool:
    """Whether a name says something, being more than words of any question, or being spelled as the graph does."""
    if len(name) > 1 and not all(word in COMMON for word in name.split()):
        return True
    marked = (spelling for spelling in _spelled(view, name) if any(c.isupper() or c.isdigit() for c in spelling))
    return any(re.search(rf"(?<=\W){re.escape(spelling)}(?!\w)", text) for spelling in marked)


def _spelled(view: GraphView, name: str) -> list[str]:
    """Return how the graph spells a normalised name, the spelling of the first entity first."""
    said = (spelling for entity in view.named(name) for spelling in (entity.name, *entity.aliases))
    return [spelling for spelling in said if normalize_name(spelling) == name]
