"""`graph.explore`, `graph.follow` and `graph.walk_paths`: from entities along facts to others."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ragbraid.nodes.graph_join import merge
from ragbraid.nodes.graph_walking import Direction, Relation, explore_from, follow_from, start_of
from ragbraid.registry.context import report_note
from ragbraid.registry.contracts import FanIn
from ragbraid.registry.errors import NodeInputError
from ragbraid.registry.graph import EntityLinks, SubGraph
from ragbraid.registry.graph_view import GraphView
from ragbraid.registry.knowledge import KnowledgeBase, Where
from ragbraid.registry.node import node

Depth = Annotated[int, Field(ge=1, le=6)]
HowManyFacts = Annotated[int, Field(ge=1, le=10_000)]
RelationPath = tuple[str, ...]

_MAX_HOPS = 6


@node(
    "graph.explore",
    blocking=True,
    example="""
    names: graph.spot
    topics: {use: graph.link, mentions: $names}
    around: {use: graph.explore, seeds: $topics, depth: 2, fan: 20, limit: 200}
    """,
)
def explore(
    seeds: EntityLinks,
    known: SubGraph = SubGraph(),  # noqa: B008  # frozen
    *,
    kb: KnowledgeBase,
    direction: Direction = "both",
    depth: Depth = 2,
    fan: HowManyFacts | None = None,
    limit: HowManyFacts = 200,
    where: Where | None = None,
) -> SubGraph:
    """Explore the knowledge graph around entities, breadth-first, with the shortest path to every fact.

    The graph exploration of DB-GPT, with one meaning for its bounds whatever the store: `depth` counts the facts of a
    path, `fan` the facts walked from one entity, `limit` all facts. Facts come in the order in which they are found,
    those of one entity the heaviest first and then by id; a relation without a predicate is walked both ways.

    Args:
        seeds: where to begin; without any nothing is found.
        known: what was found before; its facts are not walked again, so that a loop gets on.
        kb: the knowledge base.
        direction: `out` walks facts from subject to object, `in` from object to subject, `both` either way.
        depth: how many facts a path has at most.
        fan: how many facts are walked from one entity at most, not counting those that were found before; none (null)
            walks all.
        limit: how many facts are found at most; a note in the trace says when that left something out.
        where: only what chunks contribute that fulfil these conditions; nothing else is walked over.

    Raises:
        SettingsError: the knowledge base does not exist, holds no knowledge graph, or lacks a field of `where`.
        ServiceError: the store failed.
    """
    if not seeds.links:
        return SubGraph()
    view = kb.graph(where)
    passed = {fact.id for fact in known.facts}
    found, is_cut = explore_from(
        view, start_of(view, seeds), direction=direction, depth=depth, fan=fan, limit=limit, known=passed
    )
    if is_cut:
        report_note(f"there are more than the {limit} facts of `limit` within the depth of {depth}")
    return found


@node(
    "graph.follow",
    blocking=True,
    example="""
    topics: {use: graph.link, mentions: [Inception]}
    others: {use: graph.follow, seeds: $topics, relations: [directed_by, ~directed_by]}
    """,
)
def follow(
    seeds: EntityLinks,
    relations: RelationPath,
    *,
    kb: KnowledgeBase,
    limit_per_hop: HowManyFacts = 1000,
    either_way: bool = False,
    may_return: bool = False,
    where: Where | None = None,
) -> SubGraph:
    """Follow a path of relations from entities; what it leads to stands at the ends of the paths.

    The retrieval of RoG (Luo et al. 2024). A hop is the name of a relation, whatever its case, with `_` or a blank
    between words, and `~` before it for the inverse, from object to subject: from a film `[directed_by, ~directed_by]`
    leads to the other films of its director. All facts on complete walks are kept, with one path for each fact of the
    last hop; `graph.frontier` gives the last entities.

    Args:
        seeds: where to begin; without any, and without a relation, nothing is found.
        relations: the hops, in order; at most 6.
        kb: the knowledge base.
        limit_per_hop: how many facts are walked in one hop at most, the heaviest of each entity first; a note in the
            trace says when that left something out.
        either_way: walk facts against the direction of their relation as well, where a model that planned the path
            cannot be trusted to have the direction right.
        may_return: whether a walk may end where one began; else "films by the director of X" does not find X.
        where: only what chunks contribute that fulfil these conditions; nothing else is walked over.

    Raises:
        NodeInputError: there are more than 6 relations.
        SettingsError: the knowledge base does not exist, holds no knowledge graph, or lacks a field of `where`.
        ServiceError: the store failed.
    """
    _check_length(relations)
    if not seeds.links or not relations:
        return SubGraph()
    view = kb.graph(where)
    return _follow(view, start_of(view, seeds), relations, limit_per_hop, either_way, may_return)


@node(
    "graph.walk_paths",
    blocking=True,
    example="""
    topics: {use: graph.link, mentions: [Inception]}
    planned: {use: graph.plan_paths, seeds: $topics}
    walked: {use: graph.walk_paths, seeds: $topics, paths: $planned, either_way: true}
    """,
)
def walk_paths(
    seeds: EntityLinks,
    paths: tuple[RelationPath, ...],
    *,
    kb: KnowledgeBase,
    limit_per_hop: HowManyFacts = 1000,
    either_way: bool = False,
    may_return: bool = False,
    where: Where | None = None,
) -> SubGraph:
    """Follow several paths of relations, as `graph.follow` does each, and put together what they lead to.

    A path that the graph cannot realise gives nothing, and a note in the trace says at which hop it ended.

    Args:
        seeds: where to begin; without any nothing is found.
        paths: the relation paths, such as `graph.plan_paths` gives them.
        kb: the knowledge base.
        limit_per_hop: how many facts are walked in one hop at most, the heaviest of each entity first.
        either_way: walk facts against the direction of their relation as well.
        may_return: whether a walk may end where one began.
        where: only what chunks contribute that fulfil these conditions; nothing else is walked over.

    Raises:
        NodeInputError: a path has more than 6 relations.
        SettingsError: the knowledge base does not exist, holds no knowledge graph, or lacks a field of `where`.
        ServiceError: the store failed.
    """
    wanted = [path for path in dict.fromkeys(paths) if path]
    for path in wanted:
        _check_length(path)
    if not seeds.links or not wanted:
        return SubGraph()
    view = kb.graph(where)
    begin = start_of(view, seeds)
    return merge(
        FanIn(
            {str(n): _follow(view, begin, path, limit_per_hop, either_way, may_return) for n, path in enumerate(wanted)}
        )
    )


def _check_length(relations: RelationPath) -> None:
    if len(relations) > _MAX_HOPS:
        found = f"A path of relations has {len(relations)} hops"
        raise NodeInputError(f"{found}; at most {_MAX_HOPS} are followed.", kind="input")


def _follow(
    view: GraphView, begin: tuple[str, ...], relations: RelationPath, limit: int, either_way: bool, may_return: bool
) -> SubGraph:
    shown = " / ".join(relations)
    hops = [Relation.read(text) for text in relations]
    found = follow_from(view, begin, hops, limit=limit, either_way=either_way, may_return=may_return)
    if found.cut:
        report_note(f"{shown}: more than {limit} facts in hop {', '.join(map(str, found.cut))}; the rest was left out")
    if found.hops < len(hops):
        report_note(f"{shown}: nothing leads on at hop {found.hops + 1}, `{relations[found.hops]}`")
    return found.sub_graph
