"""What single chunks contribute to the knowledge graph: the entities that they name and the facts that they state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from ragbraid.registry.contract import Contract
from ragbraid.registry.graph_names import entity_id, fact_id, normalize_name, tidy_name

OTHER = "Other"
"""The type of an entity of which no type is known."""

Name = Annotated[str, Field(min_length=1)]
Weight = Annotated[float, Field(gt=0)]
STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


class Mention(Contract):
    """An entity that a chunk names, and what it says about it."""

    name: Name
    type: str = OTHER
    aliases: tuple[str, ...] = ()
    description: str | None = None


class Triple(Contract):
    """A fact that a chunk states: subject, predicate, object by name.

    Without a predicate it is a relation between two entities in no direction, as LightRAG and GraphRAG extract them,
    and `keywords` and `description` say what it is about. `weight` is the strength that an extractor gives it.
    """

    subject: Name
    predicate: str = ""
    object: Name
    keywords: tuple[str, ...] = ()
    description: str | None = None
    weight: Weight = 1.0


class ChunkGraph(Contract):
    """What one chunk contributes to the knowledge graph."""

    mentions: tuple[Mention, ...] = ()
    triples: tuple[Triple, ...] = ()

    @classmethod
    def from_stored(cls, text: str) -> ChunkGraph:
        """Read what was stored as JSON; fields that a later version has added are passed over."""
        return cls.model_validate_json(text, extra="ignore")


# Dataclasses with slots, as `RouteScore` is: a graph of 100,000 facts holds all of them at once.
@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class EntityPart:
    """What one chunk says about an entity."""

    chunk_id: str
    name: str
    type: str = OTHER
    aliases: tuple[str, ...] = ()
    description: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class FactPart:
    """How one chunk states a fact; the names as it writes them."""

    chunk_id: str
    subject: str
    predicate: str
    object: str
    keywords: tuple[str, ...] = ()
    description: str | None = None
    weight: float = 1.0


def parts_of(chunk_id: str, graph: ChunkGraph) -> tuple[dict[str, EntityPart], dict[str, FactPart]]:
    """Return what a chunk contributes: one part for each entity and each fact that it names, by id.

    What a chunk says twice counts once: of several mentions the first spelling, the first known type and the longest
    description stay, of several triples the greatest weight. A fact between a thing and itself is left out; a name
    of punctuation alone is none.
    """
    mentions: dict[str, list[Mention]] = {}
    triples: dict[str, list[Triple]] = {}
    for mention in graph.mentions:
        if normalize_name(mention.name):
            mentions.setdefault(entity_id(mention.name), []).append(mention)
    for triple in graph.triples:
        ends = entity_id(triple.subject), entity_id(triple.object)
        if ends[0] == ends[1] or not (normalize_name(triple.subject) and normalize_name(triple.object)):
            continue
        triples.setdefault(fact_id(triple.subject, triple.predicate, triple.object), []).append(triple)
        for id_, name in zip(ends, (triple.subject, triple.object), strict=True):
            mentions.setdefault(id_, []).append(Mention(name=name))
    return (
        {id_: _entity_part(chunk_id, said) for id_, said in mentions.items()},
        {id_: _fact_part(chunk_id, said) for id_, said in triples.items()},
    )


def _entity_part(chunk_id: str, said: Sequence[Mention]) -> EntityPart:
    name = tidy_name(said[0].name)
    spellings = (tidy_name(spelling) for mention in said for spelling in (mention.name, *mention.aliases))
    return EntityPart(
        chunk_id=chunk_id,
        name=name,
        type=next((mention.type for mention in said if mention.type != OTHER), OTHER),
        aliases=tuple(sorted({spelling for spelling in spellings if spelling} - {name})),
        description=_longest(mention.description for mention in said),
    )


def _fact_part(chunk_id: str, said: Sequence[Triple]) -> FactPart:
    first = said[0]
    ends = [tidy_name(first.subject), tidy_name(first.object)]
    if not normalize_name(first.predicate):
        ends.sort(key=normalize_name)
    return FactPart(
        chunk_id=chunk_id,
        subject=ends[0],
        predicate=tidy_name(first.predicate),
        object=ends[1],
        keywords=tuple(sorted({keyword.strip() for each in said for keyword in each.keywords if keyword.strip()})),
        description=_longest(each.description for each in said),
        weight=max(each.weight for each in said),
    )


def _longest(texts: Iterable[str | None]) -> str | None:
    stripped = [text.strip() for text in texts if text and text.strip()]
    return min(stripped, key=lambda text: (-len(text), text)) if stripped else None
