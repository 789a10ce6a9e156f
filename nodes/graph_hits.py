"""Hits of the knowledge graph: entities, facts and the chunks behind them, each saying where it comes from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ragbraid.registry.contracts import Chunk, Hit, HitKind, Metadata, Ranking, ScoreKind
from ragbraid.registry.errors import NodeInputError
from ragbraid.registry.graph_parts import OTHER
from ragbraid.registry.knowledge import KnowledgeBase

if TYPE_CHECKING:
    from ragbraid.registry.graph import Entity, Fact

CHUNK_IDS = "chunk_ids"
"""Key in the metadata of a hit that is no chunk: ids of chunks that it comes from. Citations name the first of them."""
FACTS = "facts"
"""Key in the metadata of a chunk that was found through the graph: texts of facts or names that led to it."""
MAX_CHUNK_IDS = 50
"""How many chunk ids a hit names; a thing that a thousand chunks mention must not carry them through every step."""
MAX_FACTS = 3
"""How many texts tell why a chunk was found."""


def entity_hit(entity: Entity, score: float, score_kind: ScoreKind) -> Hit:
    """Return an entity as a hit: its name, type and description as text."""
    named = entity.name if entity.type == OTHER else f"{entity.name} ({entity.type})"
    return Hit(
        id=entity.id,
        text=f"{named}: {entity.description}" if entity.description else named,
        score=score,
        rank=1,
        score_kind=score_kind,
        kind="entity",
        metadata={"name": entity.name, "type": entity.type, CHUNK_IDS: list(entity.chunk_ids[:MAX_CHUNK_IDS])},
    )


def fact_hit(fact: Fact, score: float, score_kind: ScoreKind) -> Hit:
    """Return a fact as a hit: the fact as a line of text, its three parts in the metadata."""
    return Hit(
        id=fact.id,
        text=fact.text,
        score=score,
        rank=1,
        score_kind=score_kind,
        kind="fact",
        metadata={
            "subject": fact.subject_name,
            "predicate": fact.predicate,
            "object": fact.object_name,
            CHUNK_IDS: list(fact.chunk_ids[:MAX_CHUNK_IDS]),
        },
    )


def chunk_hit(chunk: Chunk, score: float, score_kind: ScoreKind, metadata: Mapping[str, Any]) -> Hit:
    """Return a chunk as a hit.

    Args:
        chunk: the chunk.
        score: its score.
        score_kind: the kind of the score.
        metadata: what the search adds to the chunk's own metadata.
    """
    added: Metadata = {**chunk.metadata, **metadata}
    return Hit(
        id=chunk.id,
        text=chunk.text,
        score=score,
        rank=1,
        score_kind=score_kind,
        kind="summary" if chunk.kind == "summary" else "chunk",
        document_id=chunk.document_id,
        source=chunk.source,
        index=chunk.index,
        title=chunk.title,
        section_path=chunk.section_path,
        embed_text=chunk.embed_text,
        span=chunk.span,
        language=chunk.language,
        metadata=added,
    )


def in_order(hits: Iterable[Hit], *, route: str) -> Ranking:
    """Return hits that have an order but no score as a ranking: the score is 1 / rank."""
    unique = {hit.id: hit for hit in hits}
    scored = (hit.model_copy(update={"score": 1 / rank}) for rank, hit in enumerate(unique.values(), start=1))
    return Ranking.from_hits(scored, route=route, score_kind="rank")


def with_places(ranking: Ranking, kb: KnowledgeBase) -> Ranking:
    """Give entities and facts document, source and title of the first chunk that they come from, for citations."""
    first = {hit.id: chunk_id for hit in ranking for chunk_id in chunk_ids_of(hit)[:1]}
    chunks = {chunk.id: chunk for chunk in kb.fetch(list(first.values()))} if first else {}
    placed = (_placed(hit, chunks.get(first.get(hit.id, ""))) for hit in ranking)
    return ranking.model_copy(update={"hits": tuple(placed)})


def chunk_ids_of(hit: Hit) -> list[str]:
    """Return the chunks that an entity, a fact or a report comes from; what a chunk has under this key is its own."""
    named = hit.metadata.get(CHUNK_IDS) if hit.kind in ("entity", "fact", "report") else None
    return [each for each in named if isinstance(each, str)] if isinstance(named, list) else []


def only(kinds: Sequence[HitKind], ranking: Ranking, node_name: str) -> Iterator[Hit]:
    """Yield the hits of a ranking, all of which have to be of these kinds.

    Raises:
        NodeInputError: one of them is of another kind.
    """
    for hit in ranking:
        if hit.kind not in kinds:
            wanted = " or ".join(kinds)
            raise NodeInputError(
                f"{node_name} takes hits of kind {wanted}, but hit {hit.id!r} is of kind {hit.kind}",
                kind="input",
                hint="give it what a `graph.*` node found" if hit.kind == "chunk" else None,
            )
        yield hit


def _placed(hit: Hit, chunk: Chunk | None) -> Hit:
    if chunk is None:
        return hit
    place = {
        "document_id": chunk.document_id,
        "source": chunk.source,
        "title": chunk.title,
        "language": chunk.language,
    }
    return hit.model_copy(update=place)
