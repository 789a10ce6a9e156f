"""The contract of `GraphStore`, over every engine that a knowledge graph can stand on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from graph_parts import KINDS, graph_content
from graph_store_parts import DIMENSION, entity, fact, ids, keys, profile, put, report, vector, vectors_for

from ragbraid.nodes.graph_records import neighbours_record
from ragbraid.registry.graph import Neighbour
from ragbraid.registry.graph_names import entity_id, fact_id
from ragbraid.registry.graph_store import GraphRecord, GraphStore

OpenGraph = Callable[..., GraphStore]
ODD_TEXTS = [
    "网关更新关闭了 CVE-2025-48817 漏洞。",
    "𠮷野家 😀 café",
    "quotes \" ' ` and \\ backslashes \\\\",
    "two\nlines\r\n\tand a tab",
    "$name {key} ${secret} } RETURN 1 // --",
    "') DETACH DELETE n //",
]


@pytest.fixture
def graph(open_graph: OpenGraph) -> GraphStore:
    store = open_graph()
    store.create(DIMENSION)
    return store


def one_of_each() -> list[GraphRecord]:
    near = neighbours_record(entity_id("acme"), [Neighbour(entity_id=entity_id("Acme Ltd"), score=0.9)])
    return [entity("acme", "makes tea"), profile("acme", "makes tea"), fact("acme", "makes", "tea"), near, report("r1")]


def test_it_is_a_graph_store_that_comes_and_goes(open_graph: OpenGraph) -> None:
    graph = open_graph()
    assert isinstance(graph, GraphStore)
    assert graph.location
    assert not graph.exists()
    graph.drop()
    graph.create(DIMENSION)
    graph.create(DIMENSION)
    assert graph.exists()
    put(graph, entity("acme"))
    graph.create(DIMENSION)
    assert keys(graph, generation=1) == ids("acme")
    graph.drop()
    graph.drop()
    assert not graph.exists()
    graph.create(DIMENSION)
    assert keys(graph, generation=1) == []
    graph.flush()


def test_one_that_was_not_created_holds_nothing(open_graph: OpenGraph) -> None:
    graph = open_graph()
    assert [list(graph.read(kind, generation=1)) for kind in KINDS] == [[]] * len(KINDS)
    assert list(graph.read("entity", generation=1, keys=["x"])) == []
    assert list(graph.written(1, with_vectors=True)) == []
    assert [graph.count(kind, generation=1) for kind in KINDS] == [0] * len(KINDS)
    graph.take_back(1)
    graph.delete_retired(1)
    graph.flush()
    assert not graph.exists()


def test_records_of_every_kind_come_back_as_they_were_with_their_vectors(graph: GraphStore) -> None:
    records = one_of_each()
    put(graph, *records)
    for record in records:
        (found,) = graph.read(record.kind, generation=1, with_vectors=True)
        assert found.record == record
        if record.text:
            assert found.vector is not None
            assert found.vector.dtype == np.float32
            np.testing.assert_allclose(found.vector, vectors_for([record])[0], atol=1e-6)
        else:
            assert found.vector is None
        (plain,) = graph.read(record.kind, generation=1, keys=[record.key])
        assert (plain.record, plain.vector) == (record, None)
        assert graph.count(record.kind, generation=1) == 1
    assert sorted(each.record.place for each in graph.written(1)) == sorted(record.place for record in records)


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_texts_of_every_kind_come_back_to_the_letter(graph: GraphStore, text: str) -> None:
    records = [entity(text, text, chunk=text), profile(text, text), fact(text, text, f"{text} 2"), report(text, text)]
    put(graph, *records)
    for record in records:
        assert [each.record for each in graph.read(record.kind, generation=1, keys=[record.key])] == [record]
        assert [each.record for each in graph.read(record.kind, generation=1)] == [record]
        assert graph.nearest(record.kind, vectors_for([record])[0], 1, generation=1)[0][0] == record.key
    graph.retire("fact", [records[2].key], generation=2)
    assert keys(graph, "fact", generation=2) == []
    graph.delete_written("entity", [records[0].key], generation=1)
    assert keys(graph, generation=1) == []
    assert graph.count("profile", generation=1) == 1


def test_keys_that_do_not_exist_are_left_out(graph: GraphStore) -> None:
    put(graph, entity("acme"), entity("tea"))
    found = graph.read("entity", generation=1, keys=[*ids("tea"), "entity:nothing", ""])
    assert [each.record.key for each in found] == ids("tea")
    assert list(graph.read("entity", generation=1, keys=[])) == []
    assert list(graph.read("fact", generation=1, keys=ids("tea"))) == []
    graph.retire("entity", ["entity:nothing"], generation=2)
    graph.delete_written("entity", ["entity:nothing"], generation=1)
    assert graph.count("entity", generation=2) == 2


def test_a_record_takes_the_place_of_the_one_of_its_generation_and_no_other(graph: GraphStore) -> None:
    put(graph, entity("acme", chunk="old"), generation=1)
    put(graph, entity("acme", chunk="new"), generation=2)
    put(graph, entity("acme", chunk="newer"), generation=2)
    put(graph, entity("acme", chunk="newer"), generation=2)
    assert [each.record for each in graph.read("entity", generation=1)] == [entity("acme", chunk="old")]
    assert [each.record for each in graph.written(2)] == [entity("acme", chunk="newer")]
    graph.retire("entity", ids("acme"), generation=2)
    assert [each.record for each in graph.read("entity", generation=2)] == [entity("acme", chunk="newer")]


def test_what_is_retired_is_seen_up_to_that_generation(graph: GraphStore) -> None:
    put(graph, entity("acme"), entity("tea"), fact("acme", "makes", "tea"), generation=1)
    put(graph, entity("bob"), entity("tea", "hot"), generation=2)
    for _ in range(2):
        graph.retire("entity", ids("acme", "tea"), generation=2)
    assert keys(graph, generation=1) == ids("acme", "tea")
    assert keys(graph, generation=2) == ids("bob", "tea")
    assert (graph.count("entity", generation=1), graph.count("entity", generation=2)) == (2, 2)
    assert graph.count("fact", generation=2) == 1, "only entities were retired"
    assert [key for key, _ in graph.nearest("entity", vector(1), 9, generation=1)].count(entity_id("acme")) == 1
    assert {key for key, _ in graph.nearest("entity", vector(1), 9, generation=2)} == set(ids("bob", "tea"))
    assert graph.count("entity", generation=0) == 0


def test_what_an_earlier_generation_retired_is_not_retired_again(graph: GraphStore) -> None:
    put(graph, entity("acme"), generation=1)
    graph.retire("entity", ids("acme"), generation=2)
    graph.retire("entity", ids("acme"), generation=5)
    assert keys(graph, generation=3) == []


def test_marks_can_be_taken_back_and_only_those_of_the_generation(graph: GraphStore) -> None:
    put(graph, *[entity(name) for name in ("acme", "bob", "tea")], generation=1)
    put(graph, entity("tea", "hot"), generation=3)
    graph.retire("entity", ids("bob"), generation=2)
    graph.retire("entity", ids("acme", "tea"), generation=3)
    for _ in range(2):
        graph.take_back(3)
    graph.delete_written("entity", ids("tea"), generation=3)
    assert keys(graph, generation=3) == ids("acme", "tea")
    assert list(graph.written(3)) == []


def test_what_nobody_sees_any_more_is_deleted_and_nothing_else(graph: GraphStore) -> None:
    put(graph, *[entity(name) for name in ("acme", "bob", "tea")], fact("bob", "drinks", "tea"), generation=1)
    put(graph, entity("acme", "a firm"), generation=2)
    graph.retire("entity", ids("acme"), generation=2)
    graph.retire("entity", ids("bob"), generation=3)
    for _ in range(2):
        graph.delete_retired(2)
    assert sorted(each.record.place for each in graph.written(1)) == sorted(
        [("entity", key) for key in ids("bob", "tea")] + [("fact", fact_id("bob", "drinks", "tea"))]
    )
    assert keys(graph, generation=2) == ids("acme", "bob", "tea")
    assert keys(graph, generation=1) == ids("bob", "tea")


def test_two_generations_stand_side_by_side_until_one_goes(graph: GraphStore) -> None:
    put(graph, *one_of_each(), generation=1)
    before = graph_content(graph, 1)
    put(graph, entity("acme", "sells coffee"), report("r1", "Coffee"), entity("coffee"), generation=2)
    graph.retire("entity", ids("acme"), generation=2)
    graph.retire("report", ["r1"], generation=2)
    assert graph_content(graph, 1) == before
    after = graph_content(graph, 2)
    assert after.keys() == before.keys() | {("entity", entity_id("coffee"))}
    assert after["report", "r1"][0] == report("r1", "Coffee")
    graph.take_back(2)
    graph.delete_written("entity", ids("acme", "coffee"), generation=2)
    graph.delete_written("report", ["r1"], generation=2)
    assert graph_content(graph, 2) == graph_content(graph, 1) == before


def test_the_nearest_come_first_with_their_cosines(graph: GraphStore) -> None:
    records = [entity(name) for name in ("a", "b", "c", "d")]
    graph.put(records, np.stack([vector(1), vector(1, 1), vector(0, 1), vector(-1)]), generation=1)
    put(graph, fact("a", "r", "b"))
    found = graph.nearest("entity", vector(1), 3, generation=1)
    assert [key for key, _ in found] == ids("a", "b", "c")
    assert [score for _, score in found] == pytest.approx([1.0, 0.5**0.5, 0.0], abs=1e-6)
    assert graph.nearest("entity", vector(1), 9, generation=1)[-1] == (entity_id("d"), pytest.approx(-1.0, abs=1e-6))
    assert graph.nearest("report", vector(1), 3, generation=1) == []


def test_equally_near_ones_come_in_the_order_of_their_keys(graph: GraphStore) -> None:
    names = [f"n{number:03}" for number in range(90)]
    for part in (names[60:], names[:30], names[30:60]):
        records = [entity(name) for name in part]
        graph.put(records, np.stack([vector(1, 2, 3)] * len(records)), generation=1)
    graph.put([entity("best")], vector(3, 2, 1)[np.newaxis], generation=1)
    found = graph.nearest("entity", vector(3, 2, 1), 80, generation=1)
    assert [key for key, _ in found] == [key for key, _ in sorted(found, key=lambda pair: (-pair[1], pair[0]))]
    assert found[0][0] == entity_id("best")
    assert len({score for _, score in found}) == 2
    assert len(found) == 80


def test_thousands_of_records_are_written_read_marked_and_deleted(graph: GraphStore, graph_engine: str) -> None:
    count = 300 if graph_engine == "local_disk" else 2500  # which writes file by file what `memory` does at once
    names = [f"thing {number}" for number in range(count)]
    most, rest = count * 3 // 5, count * 4 // 5
    records = [neighbours_record(entity_id(name), []) for name in names]
    for start in range(0, count, 1000):
        graph.put(records[start : start + 1000], None, generation=1)
    assert graph.count("neighbours", generation=1) == count
    assert keys(graph, "neighbours", generation=1) == sorted(ids(*names))
    assert len(list(graph.read("neighbours", generation=1, keys=ids(*names)))) == count
    assert len({each.record.place for each in graph.written(1)}) == count
    graph.retire("neighbours", ids(*names[:most]), generation=2)
    assert graph.count("neighbours", generation=2) == count - most
    graph.take_back(2)
    assert graph.count("neighbours", generation=2) == count
    graph.retire("neighbours", ids(*names[:most]), generation=2)
    graph.delete_retired(2)
    graph.delete_written("neighbours", ids(*names[rest:]), generation=1)
    assert keys(graph, "neighbours", generation=1) == sorted(ids(*names[most:rest]))


def test_threads_share_one_store(graph: GraphStore) -> None:
    def work(number: int) -> list[str]:
        mine = [entity(f"thing {number} {each}") for each in range(8)]
        for record in mine:
            put(graph, record)
        graph.retire("entity", [record.key for record in mine[:2]], generation=2)
        return [key for key, _ in graph.nearest("entity", vectors_for(mine)[7], 99, generation=2)]

    with ThreadPoolExecutor(4) as pool:
        for number, found in enumerate(pool.map(work, range(8))):
            assert entity_id(f"thing {number} 7") in found
            assert entity_id(f"thing {number} 0") not in found
    assert (graph.count("entity", generation=1), graph.count("entity", generation=2)) == (64, 48)


def test_graphs_of_two_names_know_nothing_of_each_other(open_graph: OpenGraph) -> None:
    one, other = open_graph("one"), open_graph("other")
    for graph, name in ((one, "acme"), (other, "bob")):
        graph.create(DIMENSION)
        put(graph, entity(name), entity("tea"), fact(name, "likes", "tea"))
    assert keys(one, generation=1) == ids("acme", "tea")
    other.retire("entity", ids("tea"), generation=2)
    other.delete_retired(2)
    other.drop()
    assert keys(one, generation=2) == ids("acme", "tea")
    assert {key for key, _ in one.nearest("entity", vector(1), 9, generation=2)} == set(ids("acme", "tea"))
