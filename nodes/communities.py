"""Communities of the knowledge graph: groups of entities with more facts inside than across, from coarse to fine."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ragbraid.registry.graph import Community
from ragbraid.registry.graph_view import GraphView

COMMUNITY_PREFIX = "community:"
SEED = 0xDEADBEEF

Pair = tuple[str, str]


def communities(
    view: GraphView, *, max_size: int = 10, seed: int = SEED, resolution: float = 1.0
) -> tuple[Community, ...]:
    """Return the communities of a graph by level, then id; level 0 is the coarsest. Made once for each view.

    Hierarchical Leiden (Traag et al. 2019) as GraphRAG runs it: modularity, randomness 0.001, one iteration. All facts
    between two entities count together, in both directions; GraphRAG keeps the weight of the last one. Each connected
    component is divided by itself, as GraphRAG divides its largest one, so a community keeps its members, and with them
    its id, whatever happens in other components. An entity by itself is no community: it stays in the community above
    it, or in none.

    Args:
        view: the graph.
        max_size: communities with more entities than this are divided further, where Leiden can divide them.
        seed: of the algorithm's random numbers; the same graph and seed give the same communities.
        resolution: above 1 for more and smaller communities, below for fewer and larger ones.
    """
    return view.remember(
        f"communities {max_size} {seed} {resolution!r}", lambda graph: _detect(graph, max_size, seed, resolution)
    )


def weights_between(view: GraphView) -> dict[Pair, float]:
    """Return the sum of the weights of all facts between two entities, by their ids in order."""
    weights: dict[Pair, float] = defaultdict(float)
    for fact in view.facts.values():
        if fact.subject != fact.object:
            ends = sorted((fact.subject, fact.object))
            weights[ends[0], ends[1]] += fact.weight
    return {pair: weights[pair] for pair in sorted(weights)}


def check_communities(view: GraphView, found: Sequence[Community]) -> list[str]:
    """Return what does not add up between a graph and communities of it, one sentence each; empty when all is well."""
    by_id = {each.id: each for each in found}
    problems = [f"`{id_}` occurs twice." for id_ in sorted({e.id for e in found if by_id[e.id] is not e})]
    seen: dict[tuple[int, str], str] = {}
    for each in found:
        problems += _problems_of(each, view, by_id)
        for entity in each.entity_ids:
            other = seen.setdefault((each.level, entity), each.id)
            if other != each.id:
                problems.append(f"`{entity}` is in `{other}` and in `{each.id}`, both of level {each.level}.")
    return problems


def _problems_of(community: Community, view: GraphView, by_id: Mapping[str, Community]) -> Iterator[str]:
    unknown = [entity for entity in community.entity_ids if entity not in view.entities]
    if unknown:
        yield f"`{community.id}` names {len(unknown)} entities that do not exist, such as `{unknown[0]}`."
    if community.id != community_id(community.entity_ids):
        yield f"`{community.id}` is not the id of its entities."
    for child in community.children:
        if child not in by_id or by_id[child].parent_id != community.id:
            yield f"`{community.id}` names `{child}` as a part, which does not lie in it."
    if community.parent_id is None:
        return
    parent = by_id.get(community.parent_id)
    if parent is None:
        yield f"`{community.id}` lies in `{community.parent_id}`, which does not exist."
    elif community.id not in parent.children or not set(community.entity_ids) < set(parent.entity_ids):
        yield f"`{community.id}` lies in `{parent.id}`, which does not hold it."
    elif parent.level != community.level - 1:
        yield f"`{community.id}` of level {community.level} lies in `{parent.id}` of level {parent.level}."


def community_id(members: Iterable[str]) -> str:
    """Return the id of the community of these entities; it follows from them alone."""
    return COMMUNITY_PREFIX + hashlib.sha256("\x1f".join(sorted(members)).encode()).hexdigest()[:24]


def _detect(view: GraphView, max_size: int, seed: int, resolution: float) -> tuple[Community, ...]:
    members: dict[str, frozenset[str]] = {}
    parents: dict[str, str | None] = {}
    for edges in _components(weights_between(view)):
        clusters, above = _leiden(edges, max_size, seed, resolution)
        ids = {number: community_id(inside) for number, inside in clusters.items()}
        for number, inside in clusters.items():
            parent = above[number]
            # A part that is the whole again has its id, and is no community of its own.
            if len(inside) > 1 and (parent is None or ids[parent] != ids[number]):
                members[ids[number]] = inside
                parents[ids[number]] = None if parent is None else ids[parent]
    children: dict[str, list[str]] = defaultdict(list)
    for id_, parent_id in parents.items():
        if parent_id is not None:
            children[parent_id].append(id_)
    found = [
        Community(
            id=id_,
            level=_depth(id_, parents),
            parent_id=parents[id_],
            children=tuple(sorted(children[id_])),
            entity_ids=tuple(sorted(inside)),
        )
        for id_, inside in members.items()
    ]
    return tuple(sorted(found, key=lambda each: (each.level, each.id)))


def _leiden(
    edges: Sequence[tuple[str, str, float]], max_size: int, seed: int, resolution: float
) -> tuple[dict[int, frozenset[str]], dict[int, int | None]]:
    """Return the members of every cluster of a component, and the cluster that each lies in."""
    import graspologic_native  # compiled; nobody else needs it

    rows = graspologic_native.hierarchical_leiden(
        edges=list(edges),
        max_cluster_size=max_size,
        seed=seed,
        resolution=resolution,
        randomness=0.001,
        use_modularity=True,
        iterations=1,
    )
    members: dict[int, set[str]] = defaultdict(set)
    above: dict[int, int | None] = {}
    for row in rows:
        members[row.cluster].add(row.node)
        above[row.cluster] = row.parent_cluster
    return {number: frozenset(inside) for number, inside in members.items()}, above


def _components(weights: Mapping[Pair, float]) -> Iterator[list[tuple[str, str, float]]]:
    """Yield the edges of each connected component, in order."""
    near: dict[str, list[str]] = defaultdict(list)
    for first, second in weights:
        near[first].append(second)
        near[second].append(first)
    component: dict[str, int] = {}
    count = 0
    for start in near:
        if start in component:
            continue
        component[start] = count
        waiting = [start]
        while waiting:
            for other in near[waiting.pop()]:
                if other not in component:
                    component[other] = count
                    waiting.append(other)
        count += 1
    edges: list[list[tuple[str, str, float]]] = [[] for _ in range(count)]
    for (first, second), weight in weights.items():
        edges[component[first]].append((first, second, weight))
    yield from edges


def _depth(id_: str, parents: Mapping[str, str | None]) -> int:
    depth, above = 0, parents[id_]
    while above is not None:
        depth, above = depth + 1, parents[above]
    return depth
