"""`graph.explore`, `graph.follow`, `graph.walk_paths`, and what joins and reads walks, on graphs counted by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from graph_kb_parts import chunk, contribution, fact, fill, source, triple
from graph_walk_parts import CLOSED, facts_in, graph, kb_of, linked, names_in, noting, texts

from ragbraid.nodes.graph import explore, extend, facts_of, follow, frontier, merge, walk_paths
from ragbraid.nodes.knowledge_base import QdrantKnowledgeBase
from ragbraid.registry.contracts import FanIn, Ranking
from ragbraid.registry.errors import NodeInputError, SettingsError
from ragbraid.registry.graph import EntityLinks, GraphPath, SubGraph
from ragbraid.registry.graph_parts import Triple
from ragbraid.registry.graph_view import GraphView

CHAIN = graph("a > p > b", "c > q > b", "c > r > d")
FILMS = graph(
    "Inception > directed_by > Nolan",
    "Tenet > directed_by > Nolan",
    "Tenet > written_by > Nolan",
    "Inception > starred_actors > Caine",
    "Tenet > starred_actors > Caine",
    "Tenet > starred_actors > Debicki",
    "Widows > starred_actors > Debicki",
)


def around(view: GraphView, *names: str, **settings: Any) -> Any:
    return noting(explore, linked(view, *names), kb=kb_of(view), **settings)


def along(view: GraphView, name: str, *relations: str, **settings: Any) -> Any:
    return noting(follow, linked(view, name), relations, kb=kb_of(view), **settings)


def ends(found: SubGraph) -> list[str]:
    return [each.entity.name for each in frontier(found).links]


# -- explore -----------------------------------------------------------------------------------------------------------


def test_every_fact_comes_with_the_shortest_path_that_ends_with_it() -> None:
    found = around(CHAIN, "a", depth=3).value
    assert texts(found) == ["(a)-[p]->(b)", "(a)-[p]->(b)<-[q]-(c)", "(a)-[p]->(b)<-[q]-(c)-[r]->(d)"]
    assert facts_in(found) == ["a p b", "c q b", "c r d"]
    assert names_in(found) == ["a", "b", "c", "d"]
    assert found.seeds == ("entity:a",)
    assert found.paths[1] == GraphPath(
        entities=("entity:a", "entity:b", "entity:c"),
        facts=(fact("a > p > b"), fact("c > q > b")),
        text="(a)-[p]->(b)<-[q]-(c)",
    )


@pytest.mark.parametrize(("depth", "names"), [(1, "ab"), (2, "abc"), (3, "abcd"), (6, "abcd")])
def test_depth_counts_the_facts_of_a_path(depth: int, names: str) -> None:
    assert names_in(around(CHAIN, "a", depth=depth).value) == list(names)


def test_a_direction_walks_facts_one_way_and_what_has_none_both_ways() -> None:
    view = graph(
        "a > to > b", "c > to > a", Triple(subject="a", object="d", keywords=("near",)), Triple(subject="d", object="e")
    )
    assert texts(around(view, "a", direction="out").value) == ["(a)-[to]->(b)", "(a)-[near]-(d)", "(a)-[near]-(d)--(e)"]
    assert sorted(names_in(around(view, "a", direction="in").value)) == ["a", "c", "d", "e"]
    assert sorted(names_in(around(view, "a", direction="both").value)) == ["a", "b", "c", "d", "e"]
    assert texts(around(view, "e", direction="out", depth=1).value) == ["(e)--(d)"]


def test_an_entity_is_reached_the_shortest_way_and_gone_on_from_there() -> None:
    """DB-GPT explores depth-first: it reaches `c` by `b` first, at the depth of 2, and then never finds `e`."""
    view = graph("a > p > b", "b > p > c", "a > p > c", "c > p > d", "d > p > e")
    found = around(view, "a", depth=3).value
    assert "(a)-[p]->(c)-[p]->(d)-[p]->(e)" in texts(found)
    assert max(len(path.facts) for path in found.paths) == 3


def test_fan_takes_the_heaviest_facts_of_each_entity_then_by_id() -> None:
    weighted = [triple("a > p > b", weight=1.0), triple("a > p > c", weight=3.0), triple("a > p > d", weight=2.0)]
    view = graph(*weighted, "c > p > e", "c > p > f")
    assert facts_in(around(view, "a", depth=1, fan=2).value) == ["a p c", "a p d"]
    second = min(("c > p > e", "c > p > f"), key=fact).replace(" > ", " ")
    assert facts_in(around(view, "a", depth=2, fan=1).value) == ["a p c", second]


def test_limit_counts_facts_and_says_when_there_are_more() -> None:
    said = around(CHAIN, "a", depth=3, limit=2)
    assert facts_in(said.value) == ["a p b", "c q b"]
    assert said.notes == ["there are more than the 2 facts of `limit` within the depth of 3"]
    assert around(CHAIN, "a", depth=3, limit=3).notes == []


def test_several_seeds_are_walked_from_at_once_and_a_fact_comes_once() -> None:
    found = around(CHAIN, "c", "b", depth=1).value
    assert sorted(facts_in(found)) == ["a p b", "c q b", "c r d"]
    assert names_in(found)[:2] == ["c", "b"]


def test_what_is_known_is_not_walked_again() -> None:
    first = around(CHAIN, "a", depth=1).value
    said = noting(explore, frontier(first), first, kb=kb_of(CHAIN), depth=1)
    assert texts(said.value) == ["(b)<-[q]-(c)"]


def test_without_seeds_nothing_is_found_and_nobody_is_asked() -> None:
    assert explore(EntityLinks(), kb=CLOSED) == SubGraph()
    assert follow(EntityLinks(), ("p",), kb=CLOSED) == SubGraph()
    assert follow(linked(CHAIN, "a"), (), kb=CLOSED) == SubGraph()
    assert walk_paths(EntityLinks(), (("p",),), kb=CLOSED) == SubGraph()
    assert walk_paths(linked(CHAIN, "a"), ((), ()), kb=CLOSED) == SubGraph()


def test_seeds_that_the_graph_does_not_have_are_counted_and_not_shown() -> None:
    other = graph("x > p > y")
    said = noting(explore, linked(other, "x"), kb=kb_of(CHAIN))
    assert (said.value, len(said.value)) == (SubGraph(), 0)
    assert said.notes == ["1 of the 1 entities to begin with are not in this graph"]


def test_a_seed_without_facts_is_something_to_stand_on_but_nothing_found() -> None:
    view = graph("a > p > b", mentions=["alone"])
    found = around(view, "alone").value
    assert (names_in(found), len(found)) == (["alone"], 0)


# -- follow ------------------------------------------------------------------------------------------------------------


def test_a_relation_is_followed_as_written_and_backwards_with_its_mark() -> None:
    assert ends(along(FILMS, "Inception", "directed_by").value) == ["Nolan"]
    assert sorted(ends(along(FILMS, "Nolan", "~directed_by").value)) == ["Inception", "Tenet"]
    assert ends(along(FILMS, "Nolan", "directed_by").value) == []
    assert ends(along(FILMS, "inception", "Directed By").value) == ["Nolan"]


def test_a_walk_does_not_end_where_it_began_unless_it_may() -> None:
    others = along(FILMS, "Inception", "directed_by", "~directed_by").value
    assert texts(others) == ["(Inception)-[directed_by]->(Nolan)<-[directed_by]-(Tenet)"]
    assert sorted(ends(along(FILMS, "Inception", "directed_by", "~directed_by", may_return=True).value)) == [
        "Inception",
        "Tenet",
    ]


def test_it_may_pass_where_it_began_as_sets_of_answers_are_meant() -> None:
    """MetaQA: the writers of the films by the director of a film are also those of that film."""
    view = graph("Colombiana > directed_by > Megaton", "Colombiana > written_by > Besson")
    assert ends(along(view, "Colombiana", "directed_by", "~directed_by", "written_by").value) == ["Besson"]


def test_only_facts_on_complete_walks_are_kept_and_each_last_fact_has_a_path() -> None:
    found = along(FILMS, "Inception", "starred_actors", "~starred_actors", "starred_actors").value
    assert "(Inception)-[starred_actors]->(Caine)<-[starred_actors]-(Tenet)-[starred_actors]->(Debicki)" in texts(found)
    assert "Inception directed_by Nolan" not in facts_in(found)
    assert sorted(ends(found)) == ["Caine", "Debicki"]
    dead_end = graph("a > p > b", "a > p > c", "b > q > d")
    assert facts_in(along(dead_end, "a", "p", "q").value) == ["a p b", "b q d"]


def test_either_way_forgives_a_wrong_direction() -> None:
    assert ends(along(FILMS, "Nolan", "written_by", either_way=True).value) == ["Tenet"]
    assert ends(along(FILMS, "Nolan", "written_by").value) == []


def test_a_path_that_leads_nowhere_says_at_which_hop() -> None:
    said = along(FILMS, "Inception", "directed_by", "born_in")
    assert (len(said.value), said.value.facts) == (0, ())
    assert said.notes == ["directed_by / born_in: nothing leads on at hop 2, `born_in`"]


def test_the_limit_of_a_hop_is_kept_and_told() -> None:
    said = along(FILMS, "Tenet", "starred_actors", limit_per_hop=1)
    assert len(said.value.facts) == 1
    assert said.notes == ["starred_actors: more than 1 facts in hop 1; the rest was left out"]
    assert along(FILMS, "Tenet", "starred_actors", limit_per_hop=2).notes == []


def test_more_hops_than_anybody_can_follow_are_refused() -> None:
    with pytest.raises(NodeInputError, match="7 hops; at most 6"):
        follow(linked(CHAIN, "a"), ("p",) * 7, kb=CLOSED)


def test_several_paths_are_walked_and_those_that_fail_are_told() -> None:
    paths = (("directed_by",), ("born_in",), ("starred_actors", "~starred_actors"), ("directed_by",))
    said = noting(walk_paths, linked(FILMS, "Inception"), paths, kb=kb_of(FILMS))
    assert texts(said.value) == [
        "(Inception)-[directed_by]->(Nolan)",
        "(Inception)-[starred_actors]->(Caine)<-[starred_actors]-(Tenet)",
    ]
    assert said.notes == ["born_in: nothing leads on at hop 1, `born_in`"]


# -- frontier, extend, merge -------------------------------------------------------------------------------------------


def test_the_frontier_is_where_paths_end_and_none_goes_on() -> None:
    assert ends(around(CHAIN, "a", depth=2).value) == ["c"]
    assert sorted(ends(around(CHAIN, "b", depth=1).value)) == ["a", "c"]
    assert frontier(SubGraph()) == EntityLinks()


def test_steps_are_put_behind_one_another_so_that_paths_begin_at_the_beginning() -> None:
    walked, at = SubGraph(), linked(CHAIN, "a")
    for _ in range(3):
        step = explore(at, walked, kb=kb_of(CHAIN), depth=1)
        walked, at = extend(walked, step), frontier(step)
    assert walked == around(CHAIN, "a", depth=3).value
    after = explore(at, walked, kb=kb_of(CHAIN), depth=1)
    assert (after.facts, extend(walked, after).paths) == ((), walked.paths)


def test_what_was_merged_holds_everything_once_in_order_and_is_as_complete_as_its_parts() -> None:
    first, second = around(CHAIN, "b", depth=1).value, around(CHAIN, "c", depth=1).value
    both = merge(FanIn(first=first, second=second))
    assert facts_in(both) == list(dict.fromkeys(facts_in(first) + facts_in(second)))
    assert (both.seeds, both.degraded, both.error) == (("entity:b", "entity:c"), False, None)
    assert merge(FanIn()) == SubGraph()
    failed = SubGraph(degraded=True, error="the store did not answer")
    assert merge(FanIn(first=first, failed=failed)) == first.model_copy(
        update={"degraded": True, "error": "the store did not answer"}
    )


# -- over a knowledge base ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kb() -> Iterator[QdrantKnowledgeBase]:
    made = fill(
        [
            chunk("c1", title="On Acme", graph=contribution(["acme > makes > tea", "acme > based in > paris"])),
            chunk(
                "c2", source="b.md", title="Secrets", graph=contribution(["tea > harms > bob", "acme > makes > tea"])
            ),
        ]
    )
    yield made
    made.close()


def test_a_walk_stays_within_what_the_reader_may_see(kb: QdrantKnowledgeBase) -> None:
    seeds = linked(kb.graph(), "acme", "bob")
    everything = explore(seeds, kb=kb, depth=2)
    assert sorted(names_in(everything)) == ["acme", "bob", "paris", "tea"]
    said = noting(explore, seeds, kb=kb, depth=2, where=source("a.md"))
    assert sorted(names_in(said.value)) == ["acme", "paris", "tea"]
    assert {id_ for each in said.value.facts for id_ in each.chunk_ids} == {"c1"}
    assert follow(seeds, ("makes", "harms"), kb=kb, where=source("a.md")).facts == ()
    assert len(follow(seeds, ("makes", "harms"), kb=kb, may_return=True).facts) == 2


def test_facts_become_hits_that_say_where_they_stand_and_which_way_led_to_them(kb: QdrantKnowledgeBase) -> None:
    found = facts_of(explore(linked(kb.graph(), "bob"), kb=kb, depth=2), kb=kb)
    assert [(hit.text, hit.kind, hit.rank, hit.score) for hit in found] == [
        ("tea harms bob", "fact", 1, 1.0),
        ("acme makes tea", "fact", 2, 0.5),
    ]
    assert [(hit.source, hit.title, hit.document_id) for hit in found] == [
        ("b.md", "Secrets", "doc:b.md"),
        ("a.md", "On Acme", "doc:a.md"),
    ]
    assert found[1].metadata == {
        "subject": "acme",
        "predicate": "makes",
        "object": "tea",
        "chunk_ids": ["c1", "c2"],
        "path": "(bob)<-[harms]-(tea)<-[makes]-(acme)",
    }
    assert [hit.text for hit in facts_of(explore(linked(kb.graph(), "bob"), kb=kb), kb=kb, limit=1)] == [
        "tea harms bob"
    ]


def test_no_facts_are_an_empty_ranking_that_says_whether_the_search_failed(kb: QdrantKnowledgeBase) -> None:
    assert facts_of(SubGraph(), kb=CLOSED) == Ranking(route="graph.facts")
    failed = SubGraph(degraded=True, error="the store did not answer")
    assert facts_of(failed, kb=CLOSED).error == "the store did not answer"


def test_a_knowledge_base_without_a_graph_is_a_mistake_and_no_empty_result() -> None:
    bare = fill([chunk("c1")])
    with pytest.raises(SettingsError, match="graph"):
        explore(linked(CHAIN, "a"), kb=bare)
    bare.close()
