"""Walks over the knowledge graph: how relations and paths are written, the two ways to walk, and what a walk gives.

Both ways are breadth-first. Depth-first with a set of visited entities, as DB-GPT explores, can reach an entity first on
a long way round and then not go on from it within the depth that was asked for.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from ragbraid.registry.context import report_degraded, report_note
from ragbraid.registry.errors import ServiceError
from ragbraid.registry.graph import Entity, EntityLinks, Fact, GraphPath, SubGraph
from ragbraid.registry.graph_names import normalize_name
from ragbraid.registry.graph_view import GraphView

Direction = Literal["both", "out", "in"]

INVERSE = "~"
"""Before a relation: from the object to the subject. The inverse of SPARQL and of logic programs, as YAML can write it."""


@lru_cache(maxsize=65_536)
def relation_key(predicate: str) -> str:
    """Return what two spellings of one relation share: as of names, and `directed_by` is "directed by"."""
    return normalize_name(predicate.replace("_", " ").replace("-", " "))


def by_weight(fact: Fact) -> tuple[float, str]:
    """Sort facts by this: the heaviest first, then by id."""
    return -fact.weight, fact.id


def start_of(view: GraphView, seeds: EntityLinks) -> tuple[str, ...]:
    """Return the ids of the seeds that this graph has; others might stand in chunks that the reader may not see."""
    present = tuple(id_ for id_ in seeds.entity_ids if id_ in view.entities)
    if missing := len(seeds.entity_ids) - len(present):
        report_note(f"{missing} of the {len(seeds.entity_ids)} entities to begin with are not in this graph")
    return present


def has_facts(sub_graph: SubGraph) -> bool:
    """Whether there is anything to work on; what was found incompletely marks the step as degraded.

    Raises:
        ServiceError: there is nothing because the search failed, which must not pass for "nothing found".
    """
    if sub_graph.degraded or sub_graph.error:
        reason = sub_graph.error or "a part of the search failed"
        if not sub_graph.facts:
            raise ServiceError(
                f"There are no facts, because the search in the graph failed: {reason}", kind="unavailable"
            )
        report_degraded(f"worked on incomplete facts: {reason}")
    return bool(sub_graph.facts)


def make_path(named: Mapping[str, Entity], entities: Sequence[str], facts: Sequence[Fact]) -> GraphPath:
    """Make a path with its text, such as `(a)-[p]->(b)<-[q]-(c)`; facts without a direction have no arrow."""
    text = f"({named[entities[0]].name})" + "".join(
        f"{arrow_of(fact, start)}({named[end].name})"
        for fact, start, end in zip(facts, entities, entities[1:], strict=False)
    )
    return GraphPath(entities=tuple(entities), facts=tuple(fact.id for fact in facts), text=text)


def arrow_of(fact: Fact, start: str) -> str:
    """Write a fact as the arrow that leads on from one of its ends."""
    if not fact.predicate:
        return f"-[{', '.join(fact.keywords)}]-" if fact.keywords else "--"
    return f"-[{fact.predicate}]->" if fact.subject == start else f"<-[{fact.predicate}]-"


def make_sub_graph(
    named: Mapping[str, Entity], seeds: Sequence[str], facts: Iterable[Fact], paths: Iterable[GraphPath]
) -> SubGraph:
    """Make a sub-graph: the seeds that are named and the ends of all facts, each once, in order of appearance."""
    listed = tuple(facts)
    ids = dict.fromkeys([*seeds, *(end for fact in listed for end in (fact.subject, fact.object))])
    entities = tuple(named[id_] for id_ in ids if id_ in named)
    return SubGraph(entities=entities, facts=listed, paths=tuple(paths), seeds=tuple(seeds))


def keep_paths(sub_graph: SubGraph, paths: Sequence[GraphPath]) -> SubGraph:
    """Return the sub-graph with some of its paths, and the facts and entities on these."""
    walked = {id_ for path in paths for id_ in path.facts}
    return keep_facts(sub_graph, walked).model_copy(update={"paths": tuple(paths)})


def keep_facts(sub_graph: SubGraph, kept: Collection[str]) -> SubGraph:
    """Return the sub-graph with some of its facts, the entities in these, and the paths that need no other."""
    facts = [fact for fact in sub_graph.facts if fact.id in kept]
    paths = [path for path in sub_graph.paths if all(id_ in kept for id_ in path.facts)]
    made = make_sub_graph(entities_of(sub_graph), sub_graph.seeds, facts, paths)
    return sub_graph.model_copy(update={"entities": made.entities, "facts": made.facts, "paths": made.paths})


def entities_of(sub_graph: SubGraph) -> dict[str, Entity]:
    """Return the entities of a sub-graph by id."""
    return {entity.id: entity for entity in sub_graph.entities}


def explore_from(
    view: GraphView,
    seeds: Sequence[str],
    *,
    direction: Direction = "both",
    depth: int,
    fan: int | None = None,
    limit: int,
    known: Collection[str] = (),
) -> tuple[SubGraph, bool]:
    """Walk breadth-first, and return every fact on the way with the shortest path that ends with it.

    Args:
        view: the graph.
        seeds: where to begin.
        direction: which way facts are walked; those without a direction are walked both ways.
        depth: how many facts a path has at most.
        fan: how many facts are walked from one entity at most, the heaviest.
        limit: how many facts there are at most.
        known: ids of facts that are not walked.

    Returns:
        What was found, in the order in which it was found, and whether `limit` left something out.
    """
    walks: dict[str, tuple[tuple[str, ...], tuple[Fact, ...]]] = {seed: ((seed,), ()) for seed in seeds}
    facts: dict[str, Fact] = {}
    paths: list[GraphPath] = []
    frontier = list(seeds)
    for _ in range(depth):
        following: list[str] = []
        for start in frontier:
            fresh = (fact for fact in view.facts_of(start) if fact.id not in facts and fact.id not in known)
            for fact in _heaviest((fact for fact in fresh if leads_on(fact, start, direction)), fan):
                if len(facts) == limit:
                    return make_sub_graph(view.entities, seeds, facts.values(), paths), True
                end = fact.other_end(start)
                walk = (*walks[start][0], end), (*walks[start][1], fact)
                facts[fact.id] = fact
                paths.append(make_path(view.entities, *walk))
                if end not in walks:
                    walks[end] = walk
                    following.append(end)
        frontier = following
    return make_sub_graph(view.entities, seeds, facts.values(), paths), False


def leads_on(fact: Fact, start: str, direction: Direction) -> bool:
    """Whether a fact can be walked from one of its ends in a direction."""
    if direction == "both" or not fact.predicate:
        return True
    return (fact.subject if direction == "out" else fact.object) == start


def _heaviest(facts: Iterable[Fact], most: int | None) -> list[Fact]:
    return sorted(facts, key=by_weight) if most is None else heapq.nsmallest(most, facts, key=by_weight)


@dataclass(frozen=True, slots=True)
class Relation:
    """One hop of a relation path: the key of its relation, and whether it goes from the object to the subject."""

    key: str
    is_inverse: bool

    @classmethod
    def read(cls, text: str) -> Relation:
        """Read a relation as a path writes it: `directed_by`, or `~directed_by` for its inverse."""
        written = text.strip()
        return cls(relation_key(written.removeprefix(INVERSE)), written.startswith(INVERSE))

    def leads_on(self, fact: Fact, start: str, *, either_way: bool) -> bool:
        """Whether a fact is of this relation and can be walked from this end."""
        if relation_key(fact.predicate) != self.key:
            return False
        return either_way or not fact.predicate or (fact.object if self.is_inverse else fact.subject) == start


@dataclass(frozen=True, slots=True)
class _Step:
    fact: Fact
    start: str
    end: str
    before: int | None
    """The place of the first step of the hop before that leads here."""


@dataclass(frozen=True)
class Followed:
    """What walking along a relation path gave: how many hops had facts, and which of them were cut at the limit."""

    sub_graph: SubGraph
    hops: int
    cut: tuple[int, ...] = ()


def follow_from(
    view: GraphView,
    seeds: Sequence[str],
    relations: Sequence[Relation],
    *,
    limit: int,
    either_way: bool = False,
    may_return: bool = False,
) -> Followed:
    """Walk along a relation path from all seeds at once, and keep the facts that lie on a complete walk.

    Args:
        view: the graph.
        seeds: where to begin.
        relations: the hops, in order.
        limit: how many facts are walked in one hop at most, the first ones and the heaviest.
        either_way: walk facts against the direction of their relation as well.
        may_return: whether a walk may end at a seed.

    Returns:
        All facts on complete walks, in order of hops, and one path for each fact of the last hop.
    """
    layers: list[list[_Step]] = []
    cut: list[int] = []
    arrived: dict[str, int | None] = dict.fromkeys(seeds)
    for hop, relation in enumerate(relations, start=1):
        closed = frozenset(seeds) if hop == len(relations) and not may_return else frozenset()
        layer = _next_layer(view, arrived, relation, limit + 1, either_way, closed)
        if not layer:
            return Followed(make_sub_graph(view.entities, seeds, (), ()), hop - 1, tuple(cut))
        if len(layer) > limit:
            cut.append(hop)
        layers.append(layer[:limit])
        arrived = {}
        for place, step in enumerate(layers[-1]):
            arrived.setdefault(step.end, place)
    facts = {step.fact.id: step.fact for layer in _complete(layers) for step in layer}
    walks = (_walk_to(layers, place) for place in range(len(layers[-1]) if layers else 0))
    paths = [
        make_path(view.entities, [walk[0].start, *(s.end for s in walk)], [s.fact for s in walk]) for walk in walks
    ]
    return Followed(make_sub_graph(view.entities, seeds, facts.values(), paths), len(layers), tuple(cut))


def _next_layer(
    view: GraphView,
    arrived: Mapping[str, int | None],
    relation: Relation,
    most: int,
    either_way: bool,
    closed: Collection[str],
) -> list[_Step]:
    layer: list[_Step] = []
    for start, before in arrived.items():
        leading = (f for f in view.facts_of(start) if relation.leads_on(f, start, either_way=either_way))
        for fact in sorted(leading, key=by_weight):
            if (end := fact.other_end(start)) not in closed:
                layer.append(_Step(fact, start, end, before))
            if len(layer) == most:
                return layer
    return layer


def _complete(layers: Sequence[Sequence[_Step]]) -> list[list[_Step]]:
    """Return the steps of every hop from which some walk reaches the last one."""
    kept: list[list[_Step]] = []
    for layer in reversed(layers):
        leaving = {step.start for step in kept[-1]} if kept else {step.end for step in layer}
        kept.append([step for step in layer if step.end in leaving])
    return kept[::-1]


def _walk_to(layers: Sequence[Sequence[_Step]], place: int) -> list[_Step]:
    walk: list[_Step] = []
    at: int | None = place
    for layer in reversed(layers):
        assert at is not None, "every step after the first hop has one before it"
        walk.append(layer[at])
        at = layer[at].before
    return walk[::-1]
