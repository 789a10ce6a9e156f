"""`graph.to_chunks`: from entities and facts to the chunks that they come from, chosen by meaning, weight or order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from ragbraid.nodes.graph_hits import FACTS, MAX_FACTS, chunk_hit, chunk_ids_of, entity_hit, in_order, only
from ragbraid.registry.context import report_degraded, report_note
from ragbraid.registry.contracts import Hit, Query, Ranking
from ragbraid.registry.errors import NodeInputError
from ragbraid.registry.graph import SubGraph
from ragbraid.registry.graph_view import GraphView
from ragbraid.registry.knowledge import KnowledgeBase, Where
from ragbraid.registry.node import node
from ragbraid.registry.resources import Embedder

ROUTE = "linked"

Pick = Literal["vector", "weight", "order", "max", "sum"]


@dataclass(frozen=True, slots=True)
class Source:
    """An entity, fact or report with the chunks behind it; without a text where a reader may not know what it says."""

    text: str
    score: float
    chunk_ids: tuple[str, ...]


_NOTHING = Source("", 0.0, ())
"""What the graph does not have."""


@node(
    "graph.to_chunks",
    ambient={"query": ("question",)},
    blocking=True,
    example="""
    things: {use: graph.entities, top_k: 40, min_score: 0.2}
    linked: {use: graph.to_chunks, objects: $things, pick: vector, top_k: 20}
    """,
)
def to_chunks(
    query: Query,
    objects: Ranking = Ranking(),  # noqa: B008  # frozen
    subgraph: SubGraph = SubGraph(),  # noqa: B008  # frozen
    exclude: Ranking = Ranking(),  # noqa: B008  # frozen
    *,
    kb: KnowledgeBase,
    embedder: Embedder | None = None,
    pick: Pick = "vector",
    per_object: Annotated[int, Field(ge=1, le=1000)] = 5,
    min_mentions: PositiveInt = 1,
    top_k: Annotated[int, Field(ge=1, le=10_000)] = 20,
    where: Where | None = None,
) -> Ranking:
    """Goes from entities, facts and reports to the chunks that they come from.

    As LightRAG: of the chunks of one object those come first that most objects share, and a chunk belongs to the first
    object that has it. `vector` takes the chunks nearest to the query, half of `per_object` times the number of objects
    at most; `weight` asks of the objects fewer and fewer chunks, from `per_object` for the first to 1 for the last,
    and what one cannot give the best object gives that has any left; `order` takes `per_object` of each in turn. With
    `max` and `sum` a chunk gets the best score of its objects, or all of them together, as for a fusion with other
    rankings of chunks. A hit's metadata hold the texts of the first objects that have it (`facts`).

    Args:
        query: the question, which `vector` compares with the chunks.
        objects: entities, facts and reports, best first.
        subgraph: further entities and facts, behind those of `objects` and in its order.
        exclude: chunks that are not wanted again.
        kb: the knowledge base.
        embedder: the model that filled it; without it `vector` picks by weight, marked degraded.
        pick: how chunks are chosen.
        per_object: how many chunks an object brings, as said above.
        min_mentions: chunks that fewer objects have are left out.
        top_k: how many chunks to return at most.
        where: only chunks that fulfil these conditions.

    Raises:
        NodeInputError: one of the objects is a chunk, or `vector` has an empty query.
        SettingsError: there is no knowledge graph, it was filled with another model, or lacks a field of `where`.
        ServiceError: the store or the embedder failed.
    """
    found = Ranking(route=ROUTE)
    if objects or subgraph.entities or subgraph.facts:
        sources = _sources(objects, subgraph, kb, where)
        owned = attribute(sources, min_mentions=min_mentions, exclude={hit.id for hit in exclude})
        if pick == "vector" and embedder is None:
            report_degraded("there is no embedder to compare chunks with the question; they were picked by weight")
            pick = "weight"
        if any(owned) and pick == "vector" and embedder is not None:
            limit = min(top_k, max(1, per_object * sum(1 for chunks in owned if chunks) // 2))
            found = _nearest(query, owned, limit, kb, embedder, where)
        elif any(owned):
            found = _picked(sources, owned, pick, per_object, top_k, kb)
        found = _with_reasons(found, sources)
    errors = [each.error for each in (objects, subgraph) if each.error]
    is_incomplete = objects.degraded or subgraph.degraded
    return found.model_copy(update={"degraded": is_incomplete, "error": "; ".join(errors) or None})


def attribute(
    sources: Sequence[Source], *, min_mentions: int = 1, exclude: frozenset[str] | set[str] = frozenset()
) -> list[list[str]]:
    """Return for each source the chunks that belong to it: those that no source before it has.

    The chunks of one source are ordered by how many sources have them, then as the source has them.
    """
    counts: dict[str, int] = {}
    for source in sources:
        for chunk_id in dict.fromkeys(source.chunk_ids):
            counts[chunk_id] = counts.get(chunk_id, 0) + 1
    taken = {*exclude, *(chunk_id for chunk_id, count in counts.items() if count < min_mentions)}
    owned = []
    for source in sources:
        own = [chunk_id for chunk_id in dict.fromkeys(source.chunk_ids) if chunk_id not in taken]
        taken.update(own)
        owned.append(sorted(own, key=lambda chunk_id: -counts[chunk_id]))
    return owned


def poll(owned: Sequence[Sequence[str]], most: int) -> list[str]:
    """Return what weighted polling takes: of the first list `most`, of the last 1, between them in even steps.

    What a list lacks is taken from the first list that has any left. Lists without chunks do not count.
    """
    lists = [chunks for chunks in owned if chunks]
    last = len(lists) - 1
    wanted = [most if last == 0 else _rounded(most * last - place * (most - 1), last) for place in range(len(lists))]
    taken = [min(want, len(chunks)) for want, chunks in zip(wanted, lists, strict=True)]
    unused = sum(wanted) - sum(taken)
    chosen = [chunk_id for chunks, count in zip(lists, taken, strict=True) for chunk_id in chunks[:count]]
    for chunks, count in zip(lists, taken, strict=True):
        more = chunks[count : count + unused]
        chosen += more
        unused -= len(more)
    return chosen


def _rounded(numerator: int, denominator: int) -> int:
    """Divide and round to the nearest integer, halves up."""
    return (2 * numerator + denominator) // (2 * denominator)


def _sources(objects: Ranking, subgraph: SubGraph, kb: KnowledgeBase, where: Where | None) -> list[Source]:
    """Return every object once, with the text and the chunks that the graph has for it now and for this reader."""
    view = kb.graph(where)
    found: dict[str, Source] = {}
    for hit in only(("entity", "fact", "report"), objects, "graph.to_chunks"):
        source = _of_report(hit, view, kb, where) if hit.kind == "report" else _of_hit(hit, view)
        found.setdefault(hit.id, source)
    for entity in subgraph.entities:
        known = view.entities.get(entity.id)
        found.setdefault(entity.id, Source(known.name, 1.0, known.chunk_ids) if known else _NOTHING)
    for fact in subgraph.facts:
        stated = view.facts.get(fact.id)
        found.setdefault(fact.id, Source(stated.text, 1.0, stated.chunk_ids) if stated else _NOTHING)
    bare = sum(1 for source in found.values() if not source.chunk_ids)
    if bare:
        report_note(f"{bare} of {len(found)} objects have no chunk in the graph (any more, or for this reader)")
    return list(found.values())


def _of_hit(hit: Hit, view: GraphView) -> Source:
    # The hit may come from a search without conditions: what it says about itself may be for other readers.
    if hit.kind == "entity":
        entity = view.entities.get(hit.id)
        return Source(entity_hit(entity, 0, "rank").text, hit.score, entity.chunk_ids) if entity else _NOTHING
    fact = view.facts.get(hit.id)
    return Source(fact.text, hit.score, fact.chunk_ids) if fact else _NOTHING


def _of_report(hit: Hit, view: GraphView, kb: KnowledgeBase, where: Where | None) -> Source:
    contributing = set(view.chunk_ids)
    is_shown = where is None or any(report.id == hit.id for report in kb.reports(where))
    chunk_ids = tuple(each for each in chunk_ids_of(hit) if each in contributing)
    return Source(hit.text if is_shown else "", hit.score, chunk_ids)


def _nearest(
    query: Query, owned: Sequence[Sequence[str]], limit: int, kb: KnowledgeBase, embedder: Embedder, where: Where | None
) -> Ranking:
    if not query.text.strip():
        raise NodeInputError("graph.to_chunks: the question is empty; give it a text to compare with", kind="input")
    candidates = [chunk_id for chunks in owned for chunk_id in chunks]
    hits = kb.search_dense(
        embedder.embed_query(query.text), embedder=embedder.identity, top_k=limit, where=where, within=candidates
    )
    return Ranking.from_hits(hits, route=ROUTE, score_kind="cosine")


def _picked(
    sources: Sequence[Source],
    owned: Sequence[Sequence[str]],
    pick: Pick,
    per_object: int,
    top_k: int,
    kb: KnowledgeBase,
) -> Ranking:
    if pick in ("max", "sum"):
        scores = _add_up(sources, owned, pick)
        best = dict(sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:top_k])
        hits = [chunk_hit(chunk, best[chunk.id], "graph", {}) for chunk in kb.fetch(list(best))]
        return Ranking.from_hits(hits, route=ROUTE, score_kind="graph")
    if pick == "weight":
        chosen = poll(owned, per_object)
    else:
        chosen = [chunk_id for chunks in owned for chunk_id in chunks[:per_object]]
    return in_order((chunk_hit(chunk, 0.0, "rank", {}) for chunk in kb.fetch(chosen[:top_k])), route=ROUTE)


def _add_up(sources: Sequence[Source], owned: Sequence[Sequence[str]], pick: Pick) -> Mapping[str, float]:
    wanted = {chunk_id for chunks in owned for chunk_id in chunks}
    given: dict[str, list[float]] = {}
    for source in sources:
        for chunk_id in wanted.intersection(source.chunk_ids):
            given.setdefault(chunk_id, []).append(source.score)
    return {chunk_id: max(scores) if pick == "max" else math.fsum(scores) for chunk_id, scores in given.items()}


def _with_reasons(found: Ranking, sources: Sequence[Source]) -> Ranking:
    reasons: dict[str, list[str]] = {}
    for source in sources:
        for chunk_id in source.chunk_ids:
            reasons.setdefault(chunk_id, []).extend([source.text] if source.text else [])
    hits = (hit.model_copy(update={"metadata": {**hit.metadata, FACTS: reasons[hit.id][:MAX_FACTS]}}) for hit in found)
    return found.model_copy(update={"hits": tuple(hits)})
