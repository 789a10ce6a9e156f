"""What holds of the graph store of Neo4j beyond its contract: what people find there, and what is done when it fails."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from bolt_server import DATABASE, USER, BoltServer, free_port
from graph_store_parts import BOLT_GRAPHS, DIMENSION, entity, fact, ids, keys, put, report, vector

from ragbraid.nodes import graph_store_neo4j
from ragbraid.nodes.graph_store_neo4j import Neo4jGraphStore
from ragbraid.nodes.neo4j_connection import Neo4jConnection
from ragbraid.registry.errors import ServiceError
from ragbraid.registry.graph_names import entity_id

pytestmark = pytest.mark.parametrize("graph_engine", BOLT_GRAPHS, indirect=True)

OpenGraph = Callable[..., Neo4jGraphStore]
Ask = Callable[[str], list[tuple[object, ...]]]
FACTS = """
MATCH (g:RagbraidGraph {kb: $kb})
MATCH (a:RagbraidEntity {kb: g.kb})-[:RAGBRAID_SUBJECT_OF]->(f)-[:RAGBRAID_OBJECT]->(b)
WHERE all(n IN [a, f, b] WHERE n.gen_from <= g.generation AND n.gen_to > g.generation)
RETURN a.name, f.predicate, b.name
"""


@pytest.fixture
def graph(open_graph: OpenGraph) -> Neo4jGraphStore:
    store = open_graph()
    store.create(DIMENSION)
    return store


@pytest.fixture
def ask(graph: Neo4jGraphStore) -> Ask:
    """A function that asks as a person in Neo4j Browser does, and gives the rows in order."""

    def ask_one(question: str) -> list[tuple[object, ...]]:
        return sorted(tuple(row.values()) for row in graph._connection.run(question, kb=graph._name))

    return ask_one


def test_people_find_names_types_and_facts_between_entities(graph: Neo4jGraphStore, ask: Ask) -> None:
    put(graph, fact("acme", "makes", "tea"), entity("acme", "a firm"), entity("tea"), report("r1", "Tea"))
    put(graph, fact("tea", "grows in", "Assam"), entity("Assam"))
    graph.delete_retired(1)
    assert ask(FACTS) == [("acme", "makes", "tea"), ("tea", "grows in", "Assam")]
    assert ask("MATCH (e:RagbraidEntity {kb: $kb, name: 'acme'}) RETURN e.type, e.description, e.chunk_ids") == [
        ("Other", "a firm", ["c1"])
    ]
    assert ask("MATCH (f:RagbraidFact {kb: $kb}) RETURN f.name") == [("acme makes tea",), ("tea grows in Assam",)]
    assert ask("MATCH (r:RagbraidReport {kb: $kb}) RETURN r.name, r.summary") == [("Tea", "s")]
    walk = """
    MATCH path = (a:RagbraidEntity {kb: $kb, name: 'acme'})-[:RAGBRAID_SUBJECT_OF|RAGBRAID_OBJECT*..4]->(e:RagbraidEntity)
    RETURN e.name
    """
    assert ask(walk) == [("Assam",), ("tea",)]


def test_people_see_the_committed_generation_while_the_next_one_is_written(graph: Neo4jGraphStore, ask: Ask) -> None:
    put(graph, entity("acme"), entity("tea"), fact("acme", "makes", "tea"))
    assert ask(FACTS) == [], "nothing has been committed"
    graph.delete_retired(1)
    put(graph, entity("Acme"), entity("bob"), generation=2)
    put(graph, fact("bob", "drinks", "tea"), generation=2)
    graph.retire("entity", ids("acme"), generation=2)
    assert ask(FACTS) == [("acme", "makes", "tea")]
    graph.delete_retired(2)
    assert ask(FACTS) == [("Acme", "makes", "tea"), ("bob", "drinks", "tea")]
    graph.delete_written("fact", [fact("bob", "drinks", "tea").key], generation=2)
    assert ask(FACTS) == [("Acme", "makes", "tea")]


def test_writing_again_doubles_no_node_and_no_link(graph: Neo4jGraphStore, ask: Ask) -> None:
    for _ in range(3):
        put(graph, entity("acme"), entity("tea"), fact("acme", "makes", "tea"))
    assert ask("MATCH (n:RagbraidRecord {kb: $kb}) RETURN count(n)") == [(3,)]
    assert ask("MATCH (:RagbraidRecord {kb: $kb})-[r]->() RETURN count(r)") == [(2,)]


def test_a_small_graph_beside_a_large_one_is_searched_to_its_end(open_graph: OpenGraph) -> None:
    small, large = open_graph("small"), open_graph("large")
    for store in (small, large):
        store.create(DIMENSION)
    crowd = [entity(f"n{number}") for number in range(400)]
    large.put(crowd, np.stack([vector(1, number / 4000) for number in range(400)]), generation=1)
    small.put([entity("a"), entity("b")], np.stack([vector(0, 1), vector(0, 0, 1)]), generation=1)
    found = small.nearest("entity", vector(1, 0.1), 2, generation=1)
    assert [key for key, _ in found] == ids("a", "b")
    assert [score for _, score in found] == pytest.approx([0.0995037, 0.0], abs=1e-6)


def test_all_vectors_are_compared_where_an_index_would_be_asked_for_too_many(
    graph: Neo4jGraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_store_neo4j, "_MOST_FETCHED", 1)
    records = [entity(name) for name in ("d", "c", "b", "a")]
    graph.put(records, np.stack([vector(1), vector(1, 1), vector(1, 1), vector(-1)]), generation=1)
    put(graph, entity("gone"))
    graph.retire("entity", ids("gone"), generation=2)
    found = graph.nearest("entity", vector(1), 3, generation=2)
    assert [key for key, _ in found] == ids("d", "b", "c")
    assert [score for _, score in found] == pytest.approx([1.0, 0.5**0.5, 0.5**0.5], abs=1e-6)
    assert len(graph.nearest("entity", vector(1), 99, generation=2)) == 4


def test_graphs_with_vectors_of_several_lengths_share_a_database(graph: Neo4jGraphStore, open_graph: OpenGraph) -> None:
    put(graph, entity("acme"))
    other = open_graph("longer")
    other.create(DIMENSION + 2)
    long = np.eye(DIMENSION + 2, dtype=np.float32)
    other.put([entity("bob"), entity("tea")], long[:2], generation=1)
    assert other.nearest("entity", long[1], 1, generation=1) == [(entity_id("tea"), 1.0)]
    assert [key for key, _ in graph.nearest("entity", vector(1), 3, generation=1)] == ids("acme")
    with pytest.raises(ServiceError, match="made for vectors of length 6 and got some of length 4"):
        put(other, entity("acme"))


def test_a_failed_write_leaves_nothing_behind(graph: Neo4jGraphStore, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {**graph_store_neo4j.cypher.LINK, "entity": ("UNWIND $ids AS id RETURN nothing",)}
    monkeypatch.setattr(graph_store_neo4j.cypher, "LINK", broken)
    with pytest.raises(ServiceError, match="failed"):
        put(graph, entity("acme"))
    assert keys(graph, generation=1) == []


def test_a_server_without_vector_indexes_is_named_and_nothing_is_created(bolt: BoltServer, graph_engine: str) -> None:
    # ArcadeDB does not take Neo4j's command for them, as older versions of Neo4j do not.
    settings = {"user": USER, "password": bolt.password, "database": DATABASE}
    graph = Neo4jGraphStore(Neo4jConnection(bolt.url, **settings), "test-old")
    with pytest.raises(ServiceError, match=r"has no vector indexes as Neo4j 5\.18 and later have"):
        graph.create(DIMENSION)
    assert not graph.exists()
    graph.close()


def test_a_closed_store_connects_again(graph: Neo4jGraphStore) -> None:
    put(graph, entity("acme"))
    graph.close()
    graph.close()
    assert keys(graph, generation=1) == ids("acme")


@pytest.mark.parametrize(
    ("changed", "kind", "message"),
    [
        ({"password": "hunter2"}, "auth", r"refused user `root`; set the right `graph_user` and `graph_password`"),
        ({"password": None}, "auth", r"refused user `root`"),
        ({"database": "nowhere"}, "failed", r"has no database `nowhere`; create it, or name another in `graph_data"),
        ({"url": "bolt://127.0.0.1:{free}"}, "unavailable", r"Neo4j at bolt://127\.0\.0\.1:\d+ cannot be reached"),
        ({"url": "neo4j://127.0.0.1:{free}"}, "unavailable", r"Neo4j at neo4j://127\.0\.0\.1:\d+ cannot be reached"),
        ({"url": "bolt://graph.invalid"}, "unavailable", r"Neo4j at bolt://graph\.invalid:7687 cannot be reached"),
    ],
)
def test_failures_are_sentences_without_the_password(
    bolt: BoltServer, graph_engine: str, changed: dict[str, str | None], kind: str, message: str
) -> None:
    settings = {"url": bolt.url, "user": USER, "password": bolt.password, "database": DATABASE, **changed}
    url = str(settings.pop("url")).replace("{free}", str(free_port()))
    graph = Neo4jGraphStore(Neo4jConnection(url, **settings), "kb")  # type: ignore[arg-type]
    with pytest.raises(ServiceError, match=message) as caught:
        graph.exists()
    assert caught.value.kind == kind
    assert "hunter2" not in str(caught.value)
    assert bolt.password not in str(caught.value)
    graph.close()
