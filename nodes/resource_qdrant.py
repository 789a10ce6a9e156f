"""The `qdrant.*` resource providers: knowledge bases in the process, in qdrant-client's local mode, on a server.

Their knowledge graph stands beside the chunks, or in Neo4j where `graph_url` names one.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from ragbraid.nodes.graph_store import SUFFIX, QdrantGraphStore
from ragbraid.nodes.knowledge_base import QdrantKnowledgeBase
from ragbraid.nodes.resource_neo4j import DEFAULT_NAME, neo4j_graph
from ragbraid.nodes.store import Store
from ragbraid.registry.errors import SettingsError
from ragbraid.registry.knowledge import KnowledgeBase
from ragbraid.registry.providers import resource

_NAME = re.compile(r"\w[\w.-]{0,127}")


@resource("qdrant.embedded", secrets=("graph_password",), name_setting="name", one_process=True)
def embedded(
    path: str,
    name: str = DEFAULT_NAME,
    graph_url: str | None = None,
    graph_user: str = "neo4j",
    graph_password: str | None = None,
    graph_database: str | None = None,
) -> KnowledgeBase:
    """Knowledge base in this process, on disk, by Qdrant's own engine; one process at a time.

    Searches exactly and is safe between threads. Sound up to some hundred thousand chunks; beyond that, or for
    several processes, use `qdrant.server`.

    Args:
        path: folder that holds knowledge bases; made when the first is filled.
        name: which of them, in letters, digits, `_`, `-`, `.`; left out, the name under which it is bound.
        graph_url: address of a Neo4j server (5.18 or later) that keeps the knowledge graph, such as
            `neo4j://localhost:7687` or `neo4j+s://graph.example.org`; left out, the graph stands beside the chunks.
        graph_user: the user there.
        graph_password: its password; left out where the server wants none.
        graph_database: the database there; left out, that of the user.

    Raises:
        SettingsError: the name or `graph_url` is malformed, or a package that it needs is not installed.
        ServiceError: it is open in another process, damaged, or not readable.
    """
    from ragbraid.nodes.store_edge import EdgeStore

    _check_name(name, "qdrant.embedded")
    try:
        import qdrant_edge  # noqa: F401
    except ImportError as error:
        raise SettingsError(
            "qdrant.embedded needs the package `qdrant-edge-py`, which is not installed",
            hint='install it with `pip install "ragbraid[local]"`, or use `qdrant.local` or `qdrant.server`',
        ) from error
    graph = neo4j_graph("qdrant.embedded", name, graph_url, graph_user, graph_password, graph_database)
    return QdrantKnowledgeBase(EdgeStore(path, name), graph or QdrantGraphStore(EdgeStore(path, name + SUFFIX)), name)


@resource("qdrant.local", secrets=("graph_password",), name_setting="name", one_process=True)
def local(
    path: str,
    name: str = DEFAULT_NAME,
    graph_url: str | None = None,
    graph_user: str = "neo4j",
    graph_password: str | None = None,
    graph_database: str | None = None,
) -> KnowledgeBase:
    """Knowledge base in this process by qdrant-client's local mode: a folder, or `:memory:`; one process at a time.

    Behaves as a server does, slower: for tests, trials, and platforms without the embedded engine.

    Args:
        path: folder that holds knowledge bases, or `:memory:` for one that ends with the process.
        name: which of them, in letters, digits, `_`, `-`, `.`; left out, the name under which it is bound.
        graph_url: address of a Neo4j server (5.18 or later) that keeps the knowledge graph, such as
            `neo4j://localhost:7687` or `neo4j+s://graph.example.org`; left out, the graph stands beside the chunks.
        graph_user: the user there.
        graph_password: its password; left out where the server wants none.
        graph_database: the database there; left out, that of the user.

    Raises:
        SettingsError: the name or `graph_url` is malformed, or the package `neo4j` is not installed.
        ServiceError: the folder is open in another process, damaged, or not readable.
    """
    from ragbraid.nodes.store_client import open_local

    _check_name(name, "qdrant.local")
    graph = neo4j_graph("qdrant.local", name, graph_url, graph_user, graph_password, graph_database)
    return QdrantKnowledgeBase(open_local(path, name), graph or QdrantGraphStore(open_local(path, name + SUFFIX)), name)


@resource("qdrant.server", secrets=("api_key", "graph_password"), name_setting="name")
def server(
    url: str,
    name: str = DEFAULT_NAME,
    api_key: str | None = None,
    prefer_grpc: bool = False,
    timeout_seconds: int = 30,
    graph_url: str | None = None,
    graph_user: str = "neo4j",
    graph_password: str | None = None,
    graph_database: str | None = None,
) -> KnowledgeBase:
    """Knowledge base on a Qdrant server or cluster, by REST or gRPC; for production and several processes.

    Args:
        url: address of the server, such as `http://localhost:6333`.
        name: the collection, in letters, digits, `_`, `-`, `.`; left out, the name under which it is bound.
        api_key: the server's key, where it wants one.
        prefer_grpc: use gRPC (port 6334) where it is faster than REST.
        timeout_seconds: how long one request may take; at least 1.
        graph_url: address of a Neo4j server (5.18 or later) that keeps the knowledge graph, such as
            `neo4j://localhost:7687` or `neo4j+s://graph.example.org`; left out, the graph stands beside the chunks.
        graph_user: the user there.
        graph_password: its password; left out where the server wants none.
        graph_database: the database there; left out, that of the user.

    Raises:
        SettingsError: an address or the name is malformed, or the package `neo4j` is not installed.
    """
    from ragbraid.nodes.store_client import open_server

    _check_name(name, "qdrant.server")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingsError("qdrant.server: `url` must be an address such as http://localhost:6333")
    if timeout_seconds < 1:
        raise SettingsError(f"qdrant.server: `timeout_seconds` is {timeout_seconds}, it must be at least 1")
    graph = neo4j_graph("qdrant.server", name, graph_url, graph_user, graph_password, graph_database)

    def collection(of: str) -> Store:
        return open_server(url, of, api_key=api_key, prefer_grpc=prefer_grpc, timeout_seconds=timeout_seconds)

    return QdrantKnowledgeBase(collection(name), graph or QdrantGraphStore(collection(name + SUFFIX)), name)


def _check_name(name: str, provider: str) -> None:
    if name.endswith(SUFFIX):
        raise SettingsError(f"{provider}: names that end with `{SUFFIX}` are kept for knowledge graphs, like {name!r}")
    if not _NAME.fullmatch(name) or ".." in name:
        raise SettingsError(
            f"{provider}: {name!r} is no name for a knowledge base; use letters, digits, `_`, `-` and `.`, "
            "beginning with a letter or digit"
        )
