"""The `qdrant.*` resource providers: knowledge bases in the process, in qdrant-client's local mode, on a server."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from ragbraid.nodes.graph_store import SUFFIX, QdrantGraphStore
from ragbraid.nodes.knowledge_base import QdrantKnowledgeBase
from ragbraid.registry.errors import SettingsError
from ragbraid.registry.knowledge import KnowledgeBase
from ragbraid.registry.providers import resource

_NAME = re.compile(r"\w[\w.-]{0,127}")
DEFAULT_NAME = "kb"


@resource("qdrant.embedded", name_setting="name")
def embedded(path: str, name: str = DEFAULT_NAME) -> KnowledgeBase:
    """Knowledge base in this process, on disk, by Qdrant's own engine; one process at a time.

    Searches exactly and is safe between threads. Sound up to some hundred thousand chunks; beyond that, or for
    several processes, use `qdrant.server`.

    Args:
        path: folder that holds knowledge bases; made when the first is filled.
        name: which of them, in letters, digits, `_`, `-`, `.`; left out, the name under which it is bound.

    Raises:
        SettingsError: the name is malformed, or the package `qdrant-edge-py` is not installed.
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
    graph = QdrantGraphStore(EdgeStore(path, name + SUFFIX))
    return QdrantKnowledgeBase(EdgeStore(path, name), graph, name)


@resource("qdrant.local", name_setting="name")
def local(path: str, name: str = DEFAULT_NAME) -> KnowledgeBase:
    """Knowledge base in this process by qdrant-client's local mode: a folder, or `:memory:`; one process at a time.

    Behaves as a server does, slower: for tests, trials, and platforms without the embedded engine.

    Args:
        path: folder that holds knowledge bases, or `:memory:` for one that ends with the process.
        name: which of them, in letters, digits, `_`, `-`, `.`; left out, the name under which it is bound.

    Raises:
        SettingsError: the name is malformed.
        ServiceError: the folder is open in another process, damaged, or not readable.
    """
    from ragbraid.nodes.store_client import open_local

    _check_name(name, "qdrant.local")
    return QdrantKnowledgeBase(open_local(path, name), QdrantGraphStore(open_local(path, name + SUFFIX)), name)


@resource("qdrant.server", secrets=("api_key",), name_setting="name")
def server(
    url: str,
    name: str = DEFAULT_NAME,
    api_key: str | None = None,
    prefer_grpc: bool = False,
    timeout_seconds: int = 30,
) -> KnowledgeBase:
    """Knowledge base on a Qdrant server or cluster, by REST or gRPC; for production and several processes.

    Args:
        url: address of the server, such as `http://localhost:6333`.
        name: the collection, in letters, digits, `_`, `-`, `.`; left out, the name under which it is bound.
        api_key: the server's key, where it wants one.
        prefer_grpc: use gRPC (port 6334) where it is faster than REST.
        timeout_seconds: how long one request may take; at least 1.

    Raises:
        SettingsError: the address or the name is malformed.
    """
    from ragbraid.nodes.store_client import open_server

    _check_name(name, "qdrant.server")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingsError("qdrant.server: `url` must be an address such as http://localhost:6333")
    if timeout_seconds < 1:
        raise SettingsError(f"qdrant.server: `timeout_seconds` is {timeout_seconds}, it must be at least 1")
    chunks, graph = (
        open_server(url, each, api_key=api_key, prefer_grpc=prefer_grpc, timeout_seconds=timeout_seconds)
        for each in (name, name + SUFFIX)
    )
    return QdrantKnowledgeBase(chunks, QdrantGraphStore(graph), name)


def _check_name(name: str, provider: str) -> None:
    if name.endswith(SUFFIX):
        raise SettingsError(f"{provider}: names that end with `{SUFFIX}` are kept for knowledge graphs, like {name!r}")
    if not _NAME.fullmatch(name) or ".." in name:
        raise SettingsError(
            f"{provider}: {name!r} is no name for a knowledge base; use letters, digits, `_`, `-` and `.`, "
            "beginning with a letter or digit"
        )
