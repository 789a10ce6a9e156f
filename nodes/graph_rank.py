"""`graph.ppr` and what it starts from: personalised PageRank from facts, entities and passages to chunks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, JsonValue, PositiveInt

from ragbraid.nodes.fusion import normalise
from ragbraid.nodes.graph_hits import FACTS, MAX_FACTS, chunk_hit, only
from ragbraid.nodes.page_rank import Edges, edges_of, page_rank
from ragbraid.registry.context import report_degraded, report_note
from ragbraid.registry.contracts import Hit, Ranking
from ragbraid.registry.graph import EntityLinks, Fact, SeedWeights
from ragbraid.registry.graph_view import GraphView
from ragbraid.registry.knowledge import KnowledgeBase, Where
from ragbraid.registry.node import node

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ROUTE = "ppr"
_DIGITS = 12
"""Digits of a score behind the point; what follows is the error of the arithmetic and would decide ties by chance."""

MadeBy = Literal["fact", "entity", "passage"]


@node(
    "graph.seed",
    blocking=True,
    example="""
    facts: {use: graph.facts, top_k: 5}
    useful: {use: graph.filter_facts, facts: $facts}
    dense: {use: retrieve.dense, top_k: 100}
    seeds: {use: graph.seed, facts: $useful, passages: $dense}
    """,
)
def seed(
    facts: Ranking,
    passages: Ranking = Ranking(),  # noqa: B008  # frozen
    *,
    kb: KnowledgeBase,
    passage_weight: Annotated[float, Field(ge=0, le=1)] = 0.05,
    max_phrases: PositiveInt = 5,
    where: Where | None = None,
) -> SeedWeights:
    """Weighs where a walk over the graph starts over: the entities of facts, and a little the passages found otherwise.

    As HippoRAG 2 (Gutiérrez et al. 2025): each end of a fact gets the fact's score divided by the number of chunks that
    name it, averaged over its facts, and the heaviest `max_phrases` stay; passages get their scores, mapped to 0..1
    over the given ones (the original: over all), times `passage_weight`. Scores of facts are taken as they are; the
    original maps them to 0..1 over all facts, as `graph.facts` does with `scale_over`. Without any fact there are no
    seeds, whatever the passages are: then the passages themselves are the better answer.

    Args:
        facts: the facts that matter to the question.
        passages: chunks found by another route; with `where`, those that the graph knows under these conditions.
        kb: the knowledge base.
        passage_weight: the weight of the best passage; 0 leaves passages out.
        max_phrases: how many entities stay.
        where: only what chunks that fulfil these conditions contribute; the rest neither counts nor is reached.

    Raises:
        NodeInputError: `facts` holds hits that are no facts, or `passages` such that are no chunks.
        SettingsError: there is no knowledge graph, or it lacks a field of `where`.
    """
    error = _failure_in(facts, passages)
    if not facts:
        return SeedWeights(degraded=error is not None, error=error)
    view = kb.graph(where)
    phrases = _weigh_phrases(only(("fact",), facts, "graph.seed"), view)
    best = sorted(phrases.items(), key=lambda item: (-item[1], item[0]))[:max_phrases]
    weights = {id_: weight for id_, weight in best if weight > 0}
    made_by: dict[str, MadeBy] = dict.fromkeys(weights, "fact")
    chunks = list(only(("chunk", "summary"), passages, "graph.seed"))
    hidden = set() if where is None else {hit.id for hit in chunks}.difference(view.chunk_ids)
    for hit, share in zip(chunks, normalise([hit.score for hit in chunks], "minmax"), strict=True):
        if weights and share * passage_weight > 0 and hit.id not in hidden:
            weights.setdefault(hit.id, share * passage_weight)
            made_by.setdefault(hit.id, "passage")
    return SeedWeights(weights=weights, made_by=made_by, degraded=error is not None, error=error)


@node(
    "graph.seed_entities",
    example="""
    found: {use: graph.entities, by: name, top_k: 3}
    seeds: {use: graph.seed_entities, entities: $found}
    """,
)
def seed_entities(
    links: EntityLinks = EntityLinks(),  # noqa: B008  # frozen
    entities: Ranking = Ranking(),  # noqa: B008  # frozen
    *,
    by: Literal["one", "score"] = "one",
) -> SeedWeights:
    """Makes entities the places where a walk over the graph starts over, as KAG does (Liang et al. 2024).

    Args:
        links: entities that the mentions of a question stand for.
        entities: entities that a search found.
        by: `one` gives each the weight 1; `score` its score, the best of several, and leaves out those of 0 and less.

    Raises:
        NodeInputError: `entities` holds hits that are no entities.
    """
    error = _failure_in(entities)
    found = [(link.entity.id, link.score) for link in links.links]
    found += [(hit.id, hit.score) for hit in only(("entity",), entities, "graph.seed_entities")]
    weights: dict[str, float] = {}
    for id_, score in found:
        weight = 1.0 if by == "one" else score
        if weight > 0:
            weights[id_] = max(weight, weights.get(id_, 0.0))
    made_by: dict[str, MadeBy] = dict.fromkeys(weights, "entity")
    return SeedWeights(weights=weights, made_by=made_by, degraded=error is not None, error=error)


@node(
    "graph.ppr",
    blocking=True,
    example="""
    facts: {use: graph.facts, top_k: 5}
    seeds: {use: graph.seed, facts: $facts}
    found: {use: graph.ppr, seeds: $seeds, damping: 0.5, top_k: 20}
    """,
)
def ppr(
    seeds: SeedWeights,
    *,
    kb: KnowledgeBase,
    damping: Annotated[float, Field(gt=0, le=0.99)] = 0.5,
    top_k: Annotated[int, Field(ge=1, le=10_000)] = 20,
    synonyms: bool = True,
    passages: bool = True,
    where: Where | None = None,
) -> Ranking:
    """Ranks chunks by personalised PageRank: how often a walk over facts, mentions and near names comes by.

    The walk starts over in the seeds with probability 1 - `damping`; igraph, networkx and this give the same values.
    HippoRAG 2 uses 0.5; KAG 0.1 or 0.85, depending on its store. The value stands in the trace, beside the number of
    seeds and of those that the graph does not connect to anything. A hit's metadata hold the facts, or names, through
    which the walk reached it (`facts`). Without seeds nothing is found: a walk from everywhere would rank chunks
    without looking at the question.

    Args:
        seeds: where the walk starts over. A passage that names no entity stands alone and keeps its own weight; with
            `where` it is left out, since nothing tells that it may be seen.
        kb: the knowledge base.
        damping: the probability of a further step, above 0 and up to 0.99.
        top_k: how many chunks to return at most.
        synonyms: whether the walk goes from an entity to those of nearly the same name, weighted by the cosine.
        passages: whether chunks are places of the walk (HippoRAG 2). Without, it goes over entities alone, and a chunk
            gets the sum of those that it names (HippoRAG 1); seeds that are passages then have no effect.
        where: only what chunks that fulfil these conditions contribute.

    Raises:
        SettingsError: there is no knowledge graph, or it lacks a field of `where`.
    """
    if seeds.degraded:
        report_degraded(f"walked from incomplete seeds: {seeds.error or 'a part of retrieval failed'}")
    empty = Ranking(route=ROUTE, score_kind="graph", degraded=seeds.degraded, error=seeds.error)
    if not seeds.weights:
        report_note("there are no seeds, so nothing was ranked")
        return empty
    view = kb.graph(where)
    edges = edges_of(view, synonyms=synonyms, chunks=passages)
    alone = [id_ for id_ in sorted(seeds.weights) if passages and where is None and _stands_alone(id_, seeds, edges)]
    restart = _restart(seeds, edges, alone)
    if restart is None:
        report_note(f"none of {len(seeds.weights)} seeds is in the graph, so nothing was ranked")
        return empty
    _tell(seeds, edges, alone, damping)
    scores = page_rank(edges, restart, damping)
    best = _best(_chunk_scores(view, edges, scores, alone, top_k), top_k)
    walk = _Walk(edges, scores)
    chunks = kb.fetch(list(best))
    reasons = {chunk.id: {FACTS: _reasons(view, chunk.id, walk, seeds)} for chunk in chunks}
    hits = [chunk_hit(chunk, best[chunk.id], "graph", reasons[chunk.id]) for chunk in chunks]
    found = Ranking.from_hits(hits, route=ROUTE, score_kind="graph")
    return found.model_copy(update={"degraded": seeds.degraded, "error": seeds.error})


def _failure_in(*rankings: Ranking) -> str | None:
    failed = [each for each in rankings if each.degraded or each.error]
    if not failed:
        return None
    error = "; ".join(each.error or "a part of retrieval failed" for each in failed)
    report_degraded(f"seeds are missing: {error}")
    return error


def _weigh_phrases(facts: Iterable[Hit], view: GraphView) -> dict[str, float]:
    shares: dict[str, list[float]] = {}
    unknown = 0
    for hit in facts:
        fact = view.facts.get(hit.id)
        if fact is None:
            unknown += 1
            continue
        for end in (fact.subject, fact.object):
            shares.setdefault(end, []).append(hit.score / len(view.entities[end].chunk_ids))
    if unknown:
        report_note(f"{unknown} facts are not in the graph (any more, or not for this reader) and give no seeds")
    return {id_: math.fsum(each) / len(each) for id_, each in shares.items()}


def _stands_alone(id_: str, seeds: SeedWeights, edges: Edges) -> bool:
    return seeds.made_by.get(id_) == "passage" and id_ not in edges.chunks


def _restart(seeds: SeedWeights, edges: Edges, alone: Sequence[str]) -> NDArray[np.float64] | None:
    import numpy as np

    restart = np.zeros(len(edges) + len(alone))
    for id_, weight in seeds.weights.items():
        position = _place(id_, seeds, edges)
        if position is not None:
            restart[position] = weight
    restart[len(edges) :] = [seeds.weights[id_] for id_ in alone]
    total = restart.sum()
    return restart / total if total > 0 else None


def _place(id_: str, seeds: SeedWeights, edges: Edges) -> int | None:
    """Return the place of a seed in the graph; ids of entities and of chunks are two spaces."""
    places = edges.chunks if seeds.made_by.get(id_) == "passage" else edges.entities
    return places.get(id_)


def _tell(seeds: SeedWeights, edges: Edges, alone: Sequence[str], damping: float) -> None:
    places = [_place(id_, seeds, edges) for id_ in seeds.weights]
    present = [place for place in places if place is not None]
    connected = sum(1 for place in present if not edges.is_stuck[place])
    used = len(present) + len(alone)
    report_note(
        f"damping {damping:g}, {used} seeds used; {len(places) - connected} of {len(places)} are connected to nothing"
    )


@dataclass(frozen=True, slots=True)
class _Walk:
    """How often a walk came by each entity, looked up by id."""

    edges: Edges
    scores: NDArray[np.float64]

    def __getitem__(self, entity_id: str) -> float:
        return float(self.scores[self.edges.entities[entity_id]])


def _chunk_scores(
    view: GraphView, edges: Edges, scores: NDArray[np.float64], alone: Sequence[str], top_k: int
) -> dict[str, float]:
    """Return the scores of chunks, among them the best ones."""
    import numpy as np

    if not edges.chunks:
        walk = _Walk(edges, scores)
        return {id_: math.fsum(walk[entity] for entity in view.entities_in(id_)) for id_ in view.chunk_ids}
    ids = list(edges.chunks)
    placed = scores[len(edges.entities) : len(edges)]
    # Chunks stand in order of their ids, which a stable sort keeps among equals.
    best = np.argsort(-placed.round(_DIGITS), kind="stable")[:top_k]
    return {ids[place]: float(placed[place]) for place in best} | dict(
        zip(alone, map(float, scores[len(edges) :]), strict=True)
    )


def _best(by_chunk: Mapping[str, float], top_k: int) -> dict[str, float]:
    rounded = ((id_, round(score, _DIGITS)) for id_, score in by_chunk.items())
    reached = [(id_, score) for id_, score in rounded if score > 0]
    return dict(sorted(reached, key=lambda item: (-item[1], item[0]))[:top_k])


def _reasons(view: GraphView, chunk_id: str, walk: _Walk, seeds: SeedWeights) -> list[JsonValue]:
    """Return why the walk came to a chunk: what it states of the heaviest seeds, else of what the walk passed most.

    A chunk that states no fact names the entities that it has in common with the walk.
    """

    def order(*entities: str) -> tuple[float, float]:
        return -max(seeds.weights.get(each, 0.0) for each in entities), -sum(walk[each] for each in entities)

    stated = view.remember("facts by chunk", _facts_by_chunk).get(chunk_id, ())
    passed = [fact for fact in stated if walk[fact.subject] > 0 or walk[fact.object] > 0]
    if passed:
        passed.sort(key=lambda fact: (*order(fact.subject, fact.object), fact.id))
        return [fact.text for fact in passed[:MAX_FACTS]]
    named = sorted((each for each in view.entities_in(chunk_id) if walk[each] > 0), key=lambda id_: (*order(id_), id_))
    return [view.entities[id_].name for id_ in named[:MAX_FACTS]]


def _facts_by_chunk(view: GraphView) -> dict[str, tuple[Fact, ...]]:
    found: dict[str, list[Fact]] = {}
    for fact in view.facts.values():
        for chunk_id in fact.chunk_ids:
            found.setdefault(chunk_id, []).append(fact)
    return {id_: tuple(facts) for id_, facts in found.items()}
