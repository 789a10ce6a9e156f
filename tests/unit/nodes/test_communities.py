import random
import subprocess
import sys
from itertools import combinations, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from report_parts import TRIANGLES, ids, stated, view_of, weighted

from ragbraid.nodes.communities import check_communities, communities, weights_between
from ragbraid.registry.graph import Community
from ragbraid.registry.graph_view import GraphView

Edge = tuple[str, str, float]


def clique(*names: str) -> list[Edge]:
    return [(first, second, 1.0) for first, second in combinations(names, 2)]


def chain_of_cliques(name: str, count: int) -> list[Edge]:
    """Cliques of five, neighbours joined by one weak fact."""
    groups = [[f"{name}{n}{letter}" for letter in "abcde"] for n in range(count)]
    edges = [edge for group in groups for edge in clique(*group)]
    return edges + [(first[4], second[0], 0.1) for first, second in pairwise(groups)]


def grown(count: int) -> list[Edge]:
    """A graph in which what has many facts gets more, so that its communities are large."""
    rng = random.Random(3)
    ends: list[int] = [0]
    edges = []
    for new in range(1, count):
        for old in {rng.choice(ends), rng.randrange(new)}:
            edges.append((f"n{old:03}", f"n{new:03}", float(rng.randint(1, 3))))
            ends += [old, new]
    return edges


def members(found: tuple[Community, ...], level: int) -> set[tuple[str, ...]]:
    return {each.entity_ids for each in found if each.level == level}


def test_two_triangles_are_two_communities() -> None:
    """Section 15.9 of the methods document."""
    found = communities(weighted(TRIANGLES))
    assert [each.level for each in found] == [0, 0]
    assert members(found, 0) == {ids("a", "b", "c"), ids("d", "e", "f")}
    assert [(each.parent_id, each.children) for each in found] == [(None, ()), (None, ())]


def test_both_directions_and_all_facts_of_a_pair_count_together() -> None:
    """GraphRAG keeps the weight of the last row of a pair of entities."""
    view = view_of(
        {"1": stated(("A", "owns", "B"), ("B", "belongs to", "A")), "2": stated(("A", "owns", "B"), ("C", "is", "A"))}
    )
    assert weights_between(view) == {ids("a", "b"): 3.0, ids("a", "c"): 1.0}


def test_weights_decide_where_a_graph_is_cut() -> None:
    heavy = [*clique("a", "b", "c"), *clique("d", "e", "f"), ("c", "d", 50.0)]
    assert members(communities(weighted(heavy)), 0) != members(communities(weighted(TRIANGLES)), 0)


def test_every_component_is_divided_and_not_only_the_largest() -> None:
    view = weighted([*TRIANGLES, ("x", "y", 1.0), *clique("p", "q", "r")])
    assert members(communities(view), 0) == {ids("a", "b", "c"), ids("d", "e", "f"), ids("x", "y"), ids("p", "q", "r")}


def test_an_entity_without_a_fact_is_in_no_community_and_stays_in_the_graph() -> None:
    """GraphRAG #2348 and #1904: entities without a community disappear."""
    view = weighted(TRIANGLES, alone=["lonely"])
    assert ids("lonely")[0] not in {entity for each in communities(view) for entity in each.entity_ids}
    assert ids("lonely")[0] in view.entities


def test_a_graph_without_facts_has_no_communities() -> None:
    assert communities(GraphView([], [])) == ()
    assert communities(weighted([], alone=["a", "b"])) == ()


def test_large_communities_are_divided_and_know_their_parts() -> None:
    view = weighted(grown(400))
    found = communities(view, max_size=10)
    assert {each.level for each in found} == {0, 1, 2}
    by_id = {each.id: each for each in found}
    parts = [each for each in found if each.parent_id is not None]
    assert parts
    for part in parts:
        above = by_id[str(part.parent_id)]
        assert part.id in above.children
        assert part.level == above.level + 1
        assert set(part.entity_ids) < set(above.entity_ids)
    assert check_communities(view, found) == []


def test_what_leiden_cannot_divide_stays_whole() -> None:
    star = [("hub", f"leaf {n:02}", 1.0) for n in range(40)]
    (found,) = communities(weighted(star), max_size=10)
    assert len(found.entity_ids) == 41


def test_the_order_of_chunks_and_facts_does_not_matter() -> None:
    edges = grown(200)
    mixed = edges[:]
    random.Random(1).shuffle(mixed)
    assert communities(weighted(edges)) == communities(weighted([(b, a, w) for a, b, w in mixed]))


def test_another_process_finds_the_same_communities() -> None:
    code = (
        "from ragbraid.nodes.communities import communities\n"
        "from ragbraid.registry.graph_parts import ChunkGraph, Triple, parts_of\n"
        "from ragbraid.registry.graph import make_entity, make_fact\n"
        "from ragbraid.registry.graph_view import GraphView\n"
        "graph = ChunkGraph(triples=tuple(Triple(subject=f'n{i}', object=f'n{(i * i + k) % 97}') "
        "for i in range(97) for k in (1, 2, 5)))\n"
        "entities, facts = parts_of('c', graph)\n"
        "view = GraphView([make_entity(i, [p]) for i, p in entities.items()], [make_fact(i, [p]) for i, p in facts.items()])\n"
        "print([each.id for each in communities(view)])\n"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
    assert "community:" in said.pop()


def test_what_happens_in_one_component_changes_no_id_in_another() -> None:
    """GraphRAG #2540: an update leaves communities behind that name what is gone."""
    before = communities(weighted([*chain_of_cliques("n", 20), *chain_of_cliques("m", 3)]))
    after = communities(weighted([*chain_of_cliques("n", 20), *chain_of_cliques("m", 5), ("new", "pair", 2.0)]))
    kept = {each for each in before if each.entity_ids[0].startswith("entity:n")}
    assert kept
    assert kept <= set(after)


def test_communities_are_made_once_for_a_view() -> None:
    view = weighted(TRIANGLES)
    assert communities(view) is communities(view)
    assert communities(view, max_size=4) is not communities(view)


def test_a_broken_hierarchy_is_told_in_sentences() -> None:
    view = weighted(TRIANGLES)
    first, second = communities(view)
    assert check_communities(view, [first, second]) == []
    gone = first.model_copy(update={"entity_ids": ("entity:gone", "entity:lost")})
    assert check_communities(view, [gone]) == [
        f"`{gone.id}` names 2 entities that do not exist, such as `entity:gone`.",
        f"`{gone.id}` is not the id of its entities.",
    ]
    orphan = first.model_copy(update={"parent_id": "community:none", "children": ("community:child",)})
    assert check_communities(view, [orphan]) == [
        f"`{orphan.id}` names `community:child` as a part, which does not lie in it.",
        f"`{orphan.id}` lies in `community:none`, which does not exist.",
    ]
    inside = second.model_copy(update={"parent_id": first.id, "level": 1})
    assert check_communities(view, [first, inside]) == [f"`{inside.id}` lies in `{first.id}`, which does not hold it."]
    assert "occurs twice" in check_communities(view, [first, first.model_copy(update={"level": 1})])[0]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.floats(0.1, 9)), max_size=80), st.integers(2, 12))
def test_whatever_the_graph_the_hierarchy_adds_up(edges: list[tuple[int, int, float]], max_size: int) -> None:
    view = weighted([(f"n{first}", f"n{second}", weight) for first, second, weight in edges])
    found = communities(view, max_size=max_size)
    assert check_communities(view, found) == []
    assert all(len(each.entity_ids) > 1 for each in found)
    linked = {end for fact in view.facts.values() for end in (fact.subject, fact.object)}
    assert {entity for each in found if each.level == 0 for entity in each.entity_ids} <= linked
