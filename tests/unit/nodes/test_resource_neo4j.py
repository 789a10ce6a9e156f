from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ragbraid.nodes import resource_neo4j
from ragbraid.nodes.resource_qdrant import embedded, local, server
from ragbraid.registry.errors import ServiceError, SettingsError
from ragbraid.registry.knowledge import KnowledgeBase
from ragbraid.registry.providers import RESOURCE_ATTRIBUTE

pytest.importorskip("neo4j")

Open = Callable[..., KnowledgeBase]


@pytest.fixture(params=["qdrant.embedded", "qdrant.local", "qdrant.server"])
def open_kb(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """A provider with its own settings filled in."""

    def open_one(**settings: Any) -> KnowledgeBase:
        if request.param == "qdrant.server":
            return server("http://127.0.0.1:1", **settings)
        return (embedded if request.param == "qdrant.embedded" else local)(str(tmp_path), **settings)

    return open_one


def test_the_graph_of_every_provider_can_stand_in_neo4j_and_opening_it_asks_nobody(open_kb: Open) -> None:
    kb = open_kb(name="handbook", graph_url="neo4j://127.0.0.1:1", graph_password="hunter2")
    graph = kb._graph  # type: ignore[attr-defined]
    assert graph.location == "neo4j://127.0.0.1:1 (handbook)"
    with pytest.raises(ServiceError, match="cannot be reached") as caught:
        graph.exists()
    assert caught.value.kind == "unavailable"
    assert "hunter2" not in str(caught.value)
    kb.close()


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:7474",
        "localhost:7687",
        "bolt://",
        "bolt://localhost:port",
        "neo4j://localhost:99999",
        "bolt://localhost/graph",
        "bolt://localhost?x=1",
        "",
    ],
)
def test_what_is_no_address_of_neo4j_is_refused(open_kb: Open, url: str) -> None:
    with pytest.raises(SettingsError, match=r"`graph_url` must be an address such as neo4j://localhost:7687"):
        open_kb(name="handbook", graph_url=url)


def test_a_password_in_the_address_is_refused_and_not_repeated(open_kb: Open) -> None:
    with pytest.raises(SettingsError, match="set `graph_user` and `graph_password` instead") as caught:
        open_kb(name="handbook", graph_url="bolt://neo4j:hunter2@localhost")
    assert "hunter2" not in str(caught.value)


def test_settings_of_a_graph_without_its_address_are_not_passed_over(open_kb: Open) -> None:
    for setting in ("graph_password", "graph_database"):
        with pytest.raises(SettingsError, match="need a `graph_url`"):
            open_kb(name="handbook", **{setting: "x"})


def test_a_graph_in_neo4j_needs_a_name_of_its_own(open_kb: Open) -> None:
    with pytest.raises(SettingsError, match="graphs of one name in a Neo4j database are one graph") as caught:
        open_kb(graph_url="bolt://localhost")
    assert caught.value.hint is not None
    assert "`name`" in caught.value.hint


def test_a_missing_driver_is_named_with_its_extra(open_kb: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_neo4j, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match="needs the package `neo4j`") as caught:
        open_kb(name="handbook", graph_url="bolt://localhost")
    assert caught.value.hint is not None
    assert 'pip install "ragbraid[neo4j]"' in caught.value.hint


@pytest.mark.parametrize("provider", [embedded, local, server])
def test_the_password_is_declared_a_secret(provider: Callable[..., KnowledgeBase]) -> None:
    assert "graph_password" in getattr(provider, RESOURCE_ATTRIBUTE).secrets


def test_the_driver_is_not_loaded_before_a_graph_is_used() -> None:
    code = (
        "import sys; import ragbraid.nodes.resource_qdrant, ragbraid.nodes.graph_store_neo4j;"
        "print('neo4j' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout.strip() == b"False"
