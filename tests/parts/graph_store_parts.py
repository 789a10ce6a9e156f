"""Parts of the tests of graph stores: records, vectors, and the engines that speak Bolt."""

from __future__ import annotations

import os
from collections.abc import Sequence

import bolt_server
import numpy as np
import pytest

from ragbraid.nodes import neo4j_cypher as cypher
from ragbraid.nodes.graph_records import entity_records, fact_record, report_record
from ragbraid.nodes.graph_store_neo4j import Neo4jGraphStore
from ragbraid.nodes.neo4j_connection import Neo4jConnection
from ragbraid.registry.graph import Report
from ragbraid.registry.graph_names import entity_id, fact_id
from ragbraid.registry.graph_parts import EntityPart, FactPart
from ragbraid.registry.graph_store import GraphRecord, GraphStore, RecordKind

DIMENSION = 4

NEO4J_URI = os.environ.get("RAGBRAID_NEO4J_URI")
ARCADEDB = pytest.param(
    "arcadedb",
    marks=[
        pytest.mark.xdist_group("arcadedb"),
        pytest.mark.skipif(not bolt_server.INSTALLED, reason="the packages neo4j and arcadedb-embedded are missing"),
    ],
)
BOLT_GRAPHS = [ARCADEDB, *(["neo4j"] if NEO4J_URI else [])]


class ArcadeGraphStore(Neo4jGraphStore):
    """The store of Neo4j over ArcadeDB, which makes vector indexes by commands of its own."""

    server: bolt_server.BoltServer

    def _create_vector_indexes(self, dimension: int) -> None:
        vector = cypher.vector_property(dimension)
        for kind in cypher.SEARCHED:
            label, index = cypher.LABELS[kind], cypher.vector_index(kind, dimension)
            self.server.sql(f"CREATE VERTEX TYPE {label} IF NOT EXISTS")
            self.server.sql(f"CREATE PROPERTY {label}.{vector} IF NOT EXISTS ARRAY_OF_FLOATS")
            self.server.sql(
                f"CREATE INDEX {index} IF NOT EXISTS ON {label} ({vector}) LSM_VECTOR "
                f"METADATA {{dimensions: {dimension}, similarity: 'COSINE'}}"
            )


def open_arcadedb(server: bolt_server.BoltServer, name: str) -> ArcadeGraphStore:
    connection = Neo4jConnection(
        server.url, user=bolt_server.USER, password=server.password, database=bolt_server.DATABASE
    )
    graph = ArcadeGraphStore(connection, name)
    graph.server = server
    return graph


def open_neo4j(name: str) -> Neo4jGraphStore:
    assert NEO4J_URI is not None
    user, password = os.environ.get("RAGBRAID_NEO4J_USER", "neo4j"), os.environ.get("RAGBRAID_NEO4J_PASSWORD")
    return Neo4jGraphStore(Neo4jConnection(NEO4J_URI, user=user, password=password, database=None), name)


def entity(name: str, description: str = "", chunk: str = "c1") -> GraphRecord:
    return entity_records(entity_id(name), [EntityPart(chunk_id=chunk, name=name, description=description)], "e")[0]


def profile(name: str, description: str) -> GraphRecord:
    return entity_records(entity_id(name), [EntityPart(chunk_id="c1", name=name, description=description)], "e")[1]


def fact(subject: str, predicate: str, object_: str) -> GraphRecord:
    part = FactPart(chunk_id="c1", subject=subject, predicate=predicate, object=object_)
    return fact_record(fact_id(subject, predicate, object_), [part], "e")


def report(id_: str, title: str = "Tea") -> GraphRecord:
    return report_record(Report(id=id_, community_id="c", level=0, title=title, summary="s", chunk_ids=("c1",)), "e")


def vector(*numbers: float) -> np.ndarray:
    made = np.asarray([*numbers, *[0.0] * (DIMENSION - len(numbers))], dtype=np.float32)
    return made / np.linalg.norm(made)


def vectors_for(records: Sequence[GraphRecord]) -> np.ndarray:
    """Vectors of unit length that differ from text to text."""
    seeds = (sum(ord(char) * place for place, char in enumerate(record.text, 1)) for record in records)
    return np.stack([vector(*np.random.default_rng(seed).normal(size=DIMENSION)) for seed in seeds])


def put(graph: GraphStore, *records: GraphRecord, generation: int = 1) -> None:
    with_text = [record for record in records if record.text]
    without = [record for record in records if not record.text]
    if with_text:
        graph.put(with_text, vectors_for(with_text), generation=generation)
    if without:
        graph.put(without, None, generation=generation)


def keys(graph: GraphStore, kind: RecordKind = "entity", *, generation: int) -> list[str]:
    return sorted(each.record.key for each in graph.read(kind, generation=generation))


def ids(*names: str) -> list[str]:
    return [entity_id(name) for name in names]
