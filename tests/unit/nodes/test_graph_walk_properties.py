"""Walks over any graph: within their bounds, along facts that are there, and never over what a reader may not see."""

from __future__ import annotations

from typing import get_args

from graph_kb_parts import contribution
from graph_walk_parts import view_of
from hypothesis import given
from hypothesis import strategies as st

from ragbraid.nodes.graph_linking import spot_names
from ragbraid.nodes.graph_walking import Direction, Relation, explore_from, follow_from, leads_on
from ragbraid.registry.graph import GraphPath
from ragbraid.registry.graph_parts import Mention, Triple
from ragbraid.registry.graph_view import GraphView

NAMES = "abcdefg"
RELATIONS = ("p", "q", "")

triples = st.builds(
    Triple,
    subject=st.sampled_from(NAMES),
    predicate=st.sampled_from(RELATIONS),
    object=st.sampled_from(NAMES),
    weight=st.sampled_from([1.0, 2.0]),
)
said = st.lists(triples, max_size=6)
graphs = st.dictionaries(st.sampled_from(["c1", "c2", "c3"]), said, min_size=1).map(
    lambda chunks: view_of({id_: contribution(facts) for id_, facts in chunks.items()})
)
directions = st.sampled_from(get_args(Direction))
hops = st.builds(Relation, key=st.sampled_from(RELATIONS), is_inverse=st.booleans())


def some_seeds(data: st.DataObject, view: GraphView) -> list[str]:
    return data.draw(st.lists(st.sampled_from(sorted(view.entities)), unique=True, max_size=3)) if view.entities else []


def distances(view: GraphView, seeds: list[str], direction: Direction) -> dict[str, int]:
    """How far every entity is from the nearest seed, by widening step by step."""
    far = dict.fromkeys(seeds, 0)
    for step in range(1, len(view.entities) + 1):
        reached = {
            fact.other_end(start)
            for start in [id_ for id_, distance in far.items() if distance == step - 1]
            for fact in view.facts_of(start)
            if leads_on(fact, start, direction)
        }
        far.update(dict.fromkeys(reached - far.keys(), step))
    return far


def assert_walkable(view: GraphView, path: GraphPath) -> None:
    assert len(path.entities) == len(path.facts) + 1
    for start, end, id_ in zip(path.entities, path.entities[1:], path.facts, strict=False):
        assert {start, end} == {view.facts[id_].subject, view.facts[id_].object}
    assert path.text.startswith(f"({view.entities[path.entities[0]].name})")
    assert path.text.endswith(f"({view.entities[path.entities[-1]].name})")


@given(st.data(), graphs, directions, st.integers(1, 4))
def test_exploring_finds_exactly_the_facts_within_its_depth(
    data: st.DataObject, view: GraphView, direction: Direction, depth: int
) -> None:
    seeds = some_seeds(data, view)
    found, is_cut = explore_from(view, seeds, direction=direction, depth=depth, limit=1000)
    far = distances(view, seeds, direction)
    expected = {
        fact.id
        for start, distance in far.items()
        if distance < depth
        for fact in view.facts_of(start)
        if leads_on(fact, start, direction)
    }
    assert {fact.id for fact in found.facts} == expected
    assert not is_cut
    assert {entity.id for entity in found.entities} == {id_ for id_, distance in far.items() if distance <= depth}
    for path in found.paths:
        assert_walkable(view, path)
        assert path.entities[0] in seeds
        assert len(path.facts) == far[path.entities[-2]] + 1 <= depth
    assert [path.facts[-1] for path in found.paths] == [fact.id for fact in found.facts]


@given(st.data(), graphs, directions, st.integers(1, 4), st.integers(1, 3), st.integers(1, 5))
def test_exploring_keeps_its_bounds_and_a_smaller_limit_gives_the_beginning_of_the_same(
    data: st.DataObject, view: GraphView, direction: Direction, depth: int, fan: int, limit: int
) -> None:
    seeds = some_seeds(data, view)
    whole, _ = explore_from(view, seeds, direction=direction, depth=depth, fan=fan, limit=1000)
    found, is_cut = explore_from(view, seeds, direction=direction, depth=depth, fan=fan, limit=limit)
    assert found.facts == whole.facts[:limit]
    assert is_cut == (len(whole.facts) > limit)
    starts = [path.entities[-2] for path in whole.paths]
    assert all(starts.count(start) <= fan for start in starts)


@given(st.data(), graphs, st.lists(hops, min_size=1, max_size=3), st.booleans(), st.booleans())
def test_following_relations_finds_exactly_the_ends_of_all_walks(
    data: st.DataObject, view: GraphView, relations: list[Relation], either_way: bool, may_return: bool
) -> None:
    seeds = some_seeds(data, view)
    walks = [((seed,), ()) for seed in seeds]
    for relation in relations:
        walks = [
            ((*entities, fact.other_end(entities[-1])), (*facts, fact.id))
            for entities, facts in walks
            for fact in view.facts_of(entities[-1])
            if relation.leads_on(fact, entities[-1], either_way=either_way)
        ]
    walks = [walk for walk in walks if may_return or walk[0][-1] not in seeds]
    followed = follow_from(view, seeds, relations, limit=1000, either_way=either_way, may_return=may_return)
    found = followed.sub_graph
    assert {path.entities[-1] for path in found.paths} == {entities[-1] for entities, _ in walks}
    assert {fact.id for fact in found.facts} == {id_ for _, facts in walks for id_ in facts}
    assert {(path.entities, path.facts) for path in found.paths} <= set(walks)
    assert followed.hops == len(relations) or not walks
    for path in found.paths:
        assert_walkable(view, path)


@given(st.data(), st.dictionaries(st.sampled_from(["c1", "c2", "c3"]), said, min_size=1), st.booleans())
def test_nothing_of_a_hidden_chunk_is_walked_over_or_named(
    data: st.DataObject, chunks: dict[str, list[Triple]], is_open: bool
) -> None:
    marked = {
        id_: contribution(facts, [Mention(name=t.subject, aliases=(f"{t.subject} of {id_}",)) for t in facts])
        for id_, facts in chunks.items()
    }
    allowed = frozenset({"c1"} if is_open else {"c2", "c3"})
    shown, alone = view_of(marked).restricted(allowed), view_of({k: v for k, v in marked.items() if k in allowed})
    seeds = some_seeds(data, shown)
    found, _ = explore_from(shown, seeds, depth=4, limit=1000)
    assert found == explore_from(alone, seeds, depth=4, limit=1000)[0]
    parts = [part for each in (*found.entities, *found.facts) for part in each.parts]
    assert {part.chunk_id for part in parts} <= allowed
    question = " and ".join(f"{name} of {id_}" for name in NAMES for id_ in ("c1", "c2", "c3"))
    assert {name[-2:] for name in spot_names(shown, question) if " of " in name} <= allowed
    assert follow_from(shown, seeds, [Relation("p", False)] * 2, limit=1000) == follow_from(
        alone, seeds, [Relation("p", False)] * 2, limit=1000
    )
