"""Fixtures of the contract suites: every engine that a knowledge base and its graph can stand on."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import bolt_server
import pytest
from graph_store_parts import BOLT_GRAPHS, open_arcadedb, open_neo4j

from ragbraid.nodes.graph_store import QdrantGraphStore
from ragbraid.nodes.store import Store
from ragbraid.registry.graph_store import GraphStore

OpenStore = Callable[..., Store]
OpenGraph = Callable[..., GraphStore]

SERVER_URL = os.environ.get("RAGBRAID_QDRANT_URL")
ENGINES = ["edge", "local_disk", "memory", *(["server"] if SERVER_URL else [])]
GRAPHS = [*ENGINES, *BOLT_GRAPHS]
"""Where a graph can stand; its chunks stand beside it, or in the embedded engine where that has no room for them."""


@pytest.fixture(params=ENGINES)
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenStore]:
    """A function that opens the collection of a name on one engine; everything is removed afterwards."""
    opened: list[Store] = []
    prefix = f"test-{uuid.uuid4().hex}-" if request.param == "server" else ""

    def open_one(name: str = "kb") -> Store:
        store = _open(request.param, tmp_path, prefix + name)
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        if request.param == "server":
            store.drop()
        store.close()


@pytest.fixture(scope="session")
def bolt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[bolt_server.BoltServer]:
    """A server that speaks Bolt and Cypher."""
    with bolt_server.running(tmp_path_factory.mktemp("bolt")) as server:
        yield server


@pytest.fixture(params=GRAPHS)
def graph_engine(request: pytest.FixtureRequest) -> str:
    """The engine that a graph stands on."""
    return str(request.param)


@pytest.fixture
def open_graph(graph_engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[OpenGraph]:
    """A function that opens the graph of a name on one engine; everything is removed afterwards."""
    opened: list[GraphStore] = []
    prefix = "" if graph_engine in ("edge", "local_disk", "memory") else f"test-{uuid.uuid4().hex}-"

    def open_one(name: str = "kb") -> GraphStore:
        if graph_engine == "arcadedb":
            server: bolt_server.BoltServer = request.getfixturevalue("bolt")
            graph = open_arcadedb(server, prefix + name)
        elif graph_engine == "neo4j":
            graph = open_neo4j(prefix + name)
        else:
            graph = QdrantGraphStore(_open(graph_engine, tmp_path, f"{prefix}{name}.graph"))
        opened.append(graph)
        return graph

    yield open_one
    for graph in opened:
        if prefix:
            graph.drop()
        graph.close()


@pytest.fixture
def open_chunks(graph_engine: str, tmp_path: Path) -> Iterator[OpenStore]:
    """A function that opens a collection for the chunks of a graph; everything is removed afterwards."""
    opened: list[Store] = []
    prefix = f"test-{uuid.uuid4().hex}-" if graph_engine == "server" else ""

    def open_one(name: str = "kb") -> Store:
        store = _open(graph_engine if graph_engine in ENGINES else "edge", tmp_path, prefix + name)
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        if prefix:
            store.drop()
        store.close()


def _open(engine: str, folder: Path, name: str) -> Store:
    from ragbraid.nodes.store_client import MEMORY, open_local, open_server
    from ragbraid.nodes.store_edge import EdgeStore

    if engine == "edge":
        return EdgeStore(folder, name)
    if engine == "local_disk":
        return open_local(folder, name)
    if engine == "memory":
        return open_local(MEMORY, name)
    assert SERVER_URL is not None
    return open_server(SERVER_URL, name, api_key=os.environ.get("RAGBRAID_QDRANT_API_KEY"))
