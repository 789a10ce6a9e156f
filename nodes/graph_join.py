"""`graph.merge`, `graph.extend`, `graph.frontier`, `graph.facts_of`: sub-graphs put together, gone on from, and read."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import PositiveInt

from ragbraid.nodes.graph_hits import fact_hit, in_order, with_places
from ragbraid.nodes.graph_walking import entities_of, make_path
from ragbraid.registry.contracts import FanIn, Hit, Ranking
from ragbraid.registry.graph import Entity, EntityLink, EntityLinks, Fact, GraphPath, SubGraph
from ragbraid.registry.knowledge import KnowledgeBase
from ragbraid.registry.node import node

FACTS = "graph.facts"


@node(
    "graph.merge",
    example="""
    exact: {use: graph.exact, subject: $topics, predicates: [directed_by]}
    around: {use: graph.explore, seeds: $topics, depth: 1}
    both: {use: graph.merge, parts: [$exact, $around]}
    """,
)
def merge(parts: FanIn[SubGraph]) -> SubGraph:
    """Put sub-graphs together: every entity, fact and path once, in the order of the parts.

    The whole is degraded where a part is, so that a search that failed does not pass for one that found nothing.

    Args:
        parts: the sub-graphs.
    """
    entities: dict[str, Entity] = {}
    facts: dict[str, Fact] = {}
    for part in parts.values():
        for entity in part.entities:
            entities.setdefault(entity.id, entity)
        for fact in part.facts:
            facts.setdefault(fact.id, fact)
    return SubGraph(
        entities=tuple(entities.values()),
        facts=tuple(facts.values()),
        paths=tuple(dict.fromkeys(path for part in parts.values() for path in part.paths)),
        seeds=tuple(dict.fromkeys(id_ for part in parts.values() for id_ in part.seeds)),
        degraded=any(part.degraded for part in parts.values()),
        error="; ".join(dict.fromkeys(part.error for part in parts.values() if part.error)) or None,
    )


@node(
    "graph.extend",
    example="""
    step: {use: graph.explore, seeds: $ends, known: $walked, depth: 1}
    longer: {use: graph.extend, walked: $walked, step: $step}
    """,
)
def extend(walked: SubGraph, step: SubGraph) -> SubGraph:
    """Put a further step behind what was walked before, so that every path begins where the whole walk began.

    For loops that walk hop by hop, as Think-on-Graph does: a path of the step is joined to the first path that ends
    where it begins. The paths so far stay.

    Args:
        walked: what was walked so far; empty in the first round.
        step: what was walked from its ends.
    """
    united = merge(FanIn(walked=walked, step=step))
    if not walked.seeds:
        return united
    named, facts = entities_of(united), {fact.id: fact for fact in united.facts}
    before: dict[str, GraphPath] = {}
    for path in walked.paths:
        before.setdefault(path.entities[-1], path)
    paths = {path.facts: path for path in walked.paths}
    for path in step.paths:
        first = None if path.entities[0] in walked.seeds else before.get(path.entities[0])
        if first is not None:
            passed = [facts[id_] for id_ in (*first.facts, *path.facts)]
            path = make_path(named, (*first.entities, *path.entities[1:]), passed)
        paths.setdefault(path.facts, path)
    return united.model_copy(update={"paths": tuple(paths.values()), "seeds": walked.seeds})


@node(
    "graph.frontier",
    example="""
    step: {use: graph.explore, seeds: $topics, depth: 1}
    ends: {use: graph.frontier, subgraph: $step}
    """,
)
def frontier(subgraph: SubGraph) -> EntityLinks:
    """Take the entities where the paths of a sub-graph end, to go on from there or to read off an answer.

    They come in the order of the paths, each once. Where one path goes on from the end of another, only its own end
    counts.

    Args:
        subgraph: what was walked.
    """
    begun = {path.facts[:length] for path in subgraph.paths for length in range(1, len(path.facts))}
    named = entities_of(subgraph)
    ends = dict.fromkeys(path.entities[-1] for path in subgraph.paths if path.facts and path.facts not in begun)
    links = (EntityLink(mention=named[id_].name, entity=named[id_], score=1.0, how="exact") for id_ in ends)
    return EntityLinks(links=tuple(links))


@node(
    "graph.facts_of",
    blocking=True,
    example="""
    around: {use: graph.explore, seeds: $topics, depth: 2}
    facts: {use: graph.facts_of, subgraph: $around, limit: 20}
    answer: {use: generate.answer, hits: $facts}
    """,
)
def facts_of(subgraph: SubGraph, *, kb: KnowledgeBase, limit: PositiveInt | None = None) -> Ranking:
    """Turn the facts of a sub-graph into hits that a generator can read and cite, in their order.

    Source, document and title of a hit are those of the first chunk that states the fact. Its metadata hold these chunks
    (`chunk_ids`), `subject`, `predicate` and `object` by name, and the `path` that led to it. The score is 1 / rank,
    since a sub-graph has an order and no scores.

    Args:
        subgraph: where the facts stand.
        kb: the knowledge base that they come from.
        limit: how many facts are taken, the first ones; none (null) takes all.

    Raises:
        ServiceError: the store failed.
    """
    walked = _paths_to(subgraph)
    hits = (_with_path(fact_hit(fact, 0.0, "rank"), walked) for fact in subgraph.facts[:limit])
    found = with_places(in_order(hits, route=FACTS), kb)
    return found.model_copy(update={"degraded": subgraph.degraded, "error": subgraph.error})


def _paths_to(subgraph: SubGraph) -> Mapping[str, str]:
    """Return for every fact the text of the first path that ends with it, else of the first that passes it."""
    passing: dict[str, str] = {}
    ending: dict[str, str] = {}
    for path in subgraph.paths:
        for id_ in path.facts:
            passing.setdefault(id_, path.text)
        if path.facts:
            ending.setdefault(path.facts[-1], path.text)
    return passing | ending


def _with_path(hit: Hit, walked: Mapping[str, str]) -> Hit:
    path = walked.get(hit.id)
    return hit if path is None else hit.model_copy(update={"metadata": {**hit.metadata, "path": path}})
