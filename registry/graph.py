"""The knowledge graph: entities and facts as sums of the parts that chunks contribute, and what searches give.

Everything about an entity or a fact follows from its parts, one for each chunk that mentions it. So a chunk that goes
takes exactly its part with it, and a reader who may not see a chunk sees nothing of that chunk's part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt
from pydantic.dataclasses import dataclass

from ragbraid.registry.contract import Contract
from ragbraid.registry.graph_names import entity_id
from ragbraid.registry.graph_parts import OTHER, STRICT, EntityPart, FactPart, Mention, Triple, Weight

# Dataclasses with slots, as `RouteScore` is: a graph of 100,000 facts holds all of them at once.
MAX_DESCRIPTION = 2000
"""Longest description of an entity or a fact, in characters; all of them stay in its parts."""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Neighbour:
    """An entity whose name means nearly the same, and the cosine of the two names."""

    entity_id: str
    score: float


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Entity:
    """A named thing of the knowledge graph, made of what chunks say about it by `make_entity`.

    `type` is the most frequent one in `types`. `aliases` are all its other spellings and names. `neighbours` are the
    entities with nearly the same name.
    """

    id: str
    name: str
    type: str = OTHER
    types: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    parts: tuple[EntityPart, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()

    @property
    def chunk_ids(self) -> tuple[str, ...]:
        """The chunks that name it."""
        return tuple(part.chunk_id for part in self.parts)

    @property
    def descriptions(self) -> tuple[str, ...]:
        """What chunks say about it, each text once."""
        return _distinct(part.description for part in self.parts)

    @property
    def description(self) -> str:
        """What chunks say about it, as one text of whole descriptions; empty where they only name it."""
        return _joined(self.descriptions)


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Fact:
    """Subject, predicate and object with the chunks that state it, made of their parts by `make_fact`.

    `subject` and `object` are ids of entities. Where `predicate` is empty it has no direction. `weight` is the sum over
    the chunks.
    """

    id: str
    subject: str
    predicate: str
    object: str
    subject_name: str
    object_name: str
    keywords: tuple[str, ...] = ()
    weight: float = 1.0
    parts: tuple[FactPart, ...] = ()

    @property
    def chunk_ids(self) -> tuple[str, ...]:
        """The chunks that state it."""
        return tuple(part.chunk_id for part in self.parts)

    @property
    def descriptions(self) -> tuple[str, ...]:
        """What chunks say about it, each text once."""
        return _distinct(part.description for part in self.parts)

    @property
    def description(self) -> str:
        """What chunks say about it, as one text of whole descriptions; may be empty."""
        return _joined(self.descriptions)

    @property
    def text(self) -> str:
        """The fact as a line: "Acme based in Paris", or for a relation without a predicate its ends and description."""
        if self.predicate:
            return f"{self.subject_name} {self.predicate} {self.object_name}"
        about = self.description or ", ".join(self.keywords)
        return f"{self.subject_name} – {self.object_name}" + (f": {about}" if about else "")

    def other_end(self, entity: str) -> str:
        """Return the id of the entity at the other end."""
        return self.object if entity == self.subject else self.subject


class GraphPath(Contract):
    """A walk over facts: ids of its entities, one more than of its facts, and the walk as a line of text."""

    entities: tuple[str, ...]
    facts: tuple[str, ...] = ()
    text: str = ""


class SubGraph(Contract):
    """A part of the knowledge graph, with the paths that led to it from the entities where a search began."""

    entities: tuple[Entity, ...] = ()
    facts: tuple[Fact, ...] = ()
    paths: tuple[GraphPath, ...] = ()
    seeds: tuple[str, ...] = ()
    degraded: bool = False
    error: str | None = None

    def __len__(self) -> int:
        """How much was found: facts, and entities beside those where the search began."""
        began = frozenset(self.seeds)
        return len(self.facts) + sum(1 for entity in self.entities if entity.id not in began)


class EntityLink(Contract):
    """An entity that a mention in a question stands for, how it was found and how sure that is (0 to 1)."""

    mention: str
    entity: Entity
    score: float
    how: Literal["exact", "alias", "fuzzy", "embedding"]


class EntityLinks(Contract):
    """The entities that the mentions of a question stand for, best first for each mention, and mentions without any."""

    links: tuple[EntityLink, ...] = ()
    unlinked: tuple[str, ...] = ()

    @property
    def entity_ids(self) -> tuple[str, ...]:
        """The entities, each once, in order."""
        return tuple(dict.fromkeys(link.entity.id for link in self.links))

    def __len__(self) -> int:
        """How many links there are."""
        return len(self.links)


class SeedWeights(Contract):
    """Where a random walk starts over: weights by the id of an entity or a chunk, and what gave each its weight.

    It is degraded where something that should have given seeds failed.
    """

    weights: dict[str, Weight] = {}
    made_by: dict[str, Literal["fact", "entity", "passage"]] = {}
    degraded: bool = False
    error: str | None = None


class Keywords(Contract):
    """What a question is about, on two levels: themes (`high`) find facts, names and things (`low`) find entities."""

    high: tuple[str, ...] = ()
    low: tuple[str, ...] = ()


class Community(Contract):
    """A group of entities that have more to do with each other than with the rest; level 0 is the coarsest."""

    id: str
    level: NonNegativeInt
    parent_id: str | None = None
    children: tuple[str, ...] = ()
    entity_ids: tuple[str, ...] = ()


class Insight(Contract):
    """One insight of a report: the entities, facts and other reports that it is based on, and the chunks behind them."""

    summary: str
    explanation: str = ""
    based_on: tuple[str, ...] = ()
    chunk_ids: tuple[str, ...] = ()


class Report(Contract):
    """What a model wrote about a community.

    `chunk_ids` are the chunks behind everything that it was shown, `stamp` stands for all that its text depends on, and
    `rating` from 0 to 10 says how much the community matters. `parent_id` and `children` are the ids of the reports
    about the community above and about those inside; one of these that could not be written is named all the same.
    """

    id: str
    community_id: str
    level: NonNegativeInt
    title: str
    summary: str
    findings: tuple[Insight, ...] = ()
    rating: Annotated[float, Field(ge=0, le=10)] = 0.0
    rating_explanation: str = ""
    entity_ids: tuple[str, ...] = ()
    chunk_ids: tuple[str, ...] = ()
    parent_id: str | None = None
    children: tuple[str, ...] = ()
    stamp: str = ""

    @property
    def text(self) -> str:
        """The report as a text: title, summary and findings."""
        findings = [f"- {each.summary}: {each.explanation}".rstrip(": ") for each in self.findings]
        return "\n".join([self.title, self.summary, *findings])


GRAPH_CONTRACTS: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        Community, Entity, EntityLink, EntityLinks, EntityPart, Fact, FactPart, GraphPath, Insight, Keywords, Mention,
        Neighbour, Report, SeedWeights, SubGraph, Triple,
    )
}  # fmt: skip
"""The type names of the knowledge graph that flow files may use."""


def make_entity(id_: str, parts: Iterable[EntityPart], neighbours: Sequence[Neighbour] = ()) -> Entity:
    """Make an entity of its parts, whatever order they come in.

    Its name is the most frequent spelling and its type the most frequent one that is known; of several the first in
    the order of letters.
    """
    ordered = tuple(sorted(parts, key=lambda part: part.chunk_id))
    names = [part.name for part in ordered]
    types = [part.type for part in ordered if part.type != OTHER]
    name = _most_frequent(names)
    others = {*names, *(alias for part in ordered for alias in part.aliases)}
    return Entity(
        id=id_,
        name=name,
        type=_most_frequent(types) if types else OTHER,
        types=tuple(sorted(set(types))),
        aliases=tuple(sorted(others - {name})),
        parts=ordered,
        neighbours=tuple(neighbours),
    )


def make_fact(id_: str, parts: Iterable[FactPart]) -> Fact:
    """Make a fact of its parts, whatever order they come in; its names are those of the most frequent spelling."""
    ordered = tuple(sorted(parts, key=lambda part: part.chunk_id))
    subject, predicate, object_ = _most_frequent([(part.subject, part.predicate, part.object) for part in ordered])
    return Fact(
        id=id_,
        subject=entity_id(subject),
        predicate=predicate,
        object=entity_id(object_),
        subject_name=subject,
        object_name=object_,
        keywords=tuple(sorted({keyword for part in ordered for keyword in part.keywords})),
        weight=sum(part.weight for part in ordered),
        parts=ordered,
    )


def _most_frequent(values: Sequence[Any]) -> Any:
    if len(values) == 1:
        return values[0]
    counted = Counter(values)
    return min(counted, key=lambda value: (-counted[value], value))


def _distinct(texts: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in texts if text))


def _joined(texts: Sequence[str]) -> str:
    """Join texts up to `MAX_DESCRIPTION`, the longest first, each that adds something and fits.

    What is named in a thousand chunks has a thousand descriptions, and a prompt has room for a few.
    """
    joined = ""
    for text in sorted(texts, key=lambda each: (-len(each), each)):
        if not joined:
            joined = text[:MAX_DESCRIPTION]
        elif text not in joined and len(joined) + 1 + len(text) <= MAX_DESCRIPTION:
            joined = f"{joined} {text}"
    return joined
