"""KAG's index flow: official names, the script beside it, and a graph that follows its documents."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from cli_parts import EXAMPLES
from click.testing import CliRunner
from graph_method_parts import project
from method_parts import Method, is_asked, notes

from ragbraid.flows.api import load
from ragbraid.flows.cli import app
from ragbraid.flows.scripted_rules import load_rules
from ragbraid.registry.contracts import IndexReport

QUESTION = "How many days after the incident of the two-person rule was CVE-2025-48817 closed?"
PROMPTS = ("extract_entities", "official_names", "extract_facts")


def handbook(folder: Path) -> Path:
    return Path(shutil.copytree(EXAMPLES / "data/handbook", folder / "docs"))


def index(folder: Path) -> IndexReport:
    report: IndexReport = load(folder / "kag_index.yaml").run(folder=str(folder / "docs"))
    return report


def about(folder: Path, name: str) -> str:
    """What the command line says about an entity."""
    shown = CliRunner().invoke(app, ["kb", "graph", "--project", str(folder / "ragbraid.toml"), "--entity", name])
    return shown.output


def test_the_script_beside_the_flow_indexes_the_handbook_and_answers_in_several_steps(tmp_path: Path) -> None:
    with project(tmp_path, *load_rules(EXAMPLES / "data/kg_rules.yaml")) as server:
        handbook(tmp_path)
        report = index(tmp_path)
        assert (report.added, report.failed) == (8, 0)
        asked = [sum(is_asked(prompt, chat) for chat in server.chats) for prompt in PROMPTS]
        assert asked[0] == report.chunks_added
        assert asked == [asked[0]] * 3
        result = Method(load(tmp_path / "kag.yaml"), server).run(question=QUESTION)
    outputs: Any = result.outputs
    assert (outputs["result"].text, outputs["result"].status, outputs["stopped_by"]) == ("706", "ok", "answered")
    assert "706 days" in outputs["answer"].text
    assert [citation.verified for citation in outputs["answer"].citations] == [True, True]
    assert notes(result, "first.solve") == ["ended after 4 steps: solved"]
    taken = [
        notes(result, f"first.solve[{wave}].results[{step}].solved[else].kag_step.result")
        for wave in (1, 2)
        for step in (1, 2)
    ]
    assert taken == [["try 1 of 2 was enough"]] * 2 + [["try 2 of 2 was enough"]] * 2


def test_things_bear_their_official_names_and_are_found_by_the_written_ones(tmp_path: Path) -> None:
    with project(tmp_path, *load_rules(EXAMPLES / "data/kg_rules.yaml")):
        handbook(tmp_path)
        index(tmp_path)
        shown = about(tmp_path, "station")
    assert shown.startswith("weather station")
    assert "also: station" in shown
    assert "weather station keeps 72 hours of readings" in shown


def test_a_second_run_asks_nothing_and_what_a_deleted_document_stated_leaves_the_graph(tmp_path: Path) -> None:
    """Deleting the build task of a document leaves its data in the graph of KAG (#738)."""
    with project(tmp_path, *load_rules(EXAMPLES / "data/kg_rules.yaml")) as server:
        docs = handbook(tmp_path)
        first = index(tmp_path)
        asked = len(server.chats)
        again = index(tmp_path)
        assert (len(server.chats), again.unchanged, again.facts) == (asked, 8, first.facts)
        (docs / "03-it-security.md").unlink()
        left = index(tmp_path)
        assert (left.deleted, len(server.chats)) == (1, asked)
        assert left.facts < first.facts
        assert "no entity" in about(tmp_path, "Ingrid Solheim")
