"""Fixtures of the contract suites: every engine that a knowledge base can stand on."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ragbraid.nodes.store import Store

OpenStore = Callable[..., Store]

SERVER_URL = os.environ.get("RAGBRAID_QDRANT_URL")
ENGINES = ["edge", "local_disk", "memory", *(["server"] if SERVER_URL else [])]


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
