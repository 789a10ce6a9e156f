"""`ragbraid kb graph`: what a user sees of a knowledge graph."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from cli_parts import EXAMPLES, run_here
from graph_parts import open_kb, with_graphs
from index_parts import HashEmbedder, WordSparse, make_set

from ragbraid.nodes.index import upsert
from ragbraid.nodes.load_triples import load_triples
from ragbraid.nodes.store_edge import EdgeStore

CORPUS = {
    "a.md": ["acme > based in > paris | a tea company", "ACME > makes > tea"],
    "b.md": ["Acme > based in > Paris", "bob > drinks > tea"],
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAGBRAID_PROFILE", raising=False)
    (tmp_path / "ragbraid.toml").write_text('[resources.kb]\nuse = "qdrant.embedded"\npath = "data"\n')
    fill(tmp_path, with_graph=True)
    return tmp_path


def fill(folder: Path, *, with_graph: bool) -> None:
    base = open_kb(EdgeStore(folder / "data", "kb"), "kb", EdgeStore(folder / "data", "kb.graph"))
    chunks = make_set(CORPUS)
    upsert(with_graphs(chunks) if with_graph else chunks, kb=base, embedder=HashEmbedder(), sparse=WordSparse())
    base.close()


def test_the_best_connected_entities_come_first(here: Path) -> None:
    lines = run_here("kb", "graph").stdout.splitlines()
    assert lines[0] == "4 entities, 3 facts"
    assert lines[2].split() == ["ACME", "Other", "2", "3"]
    listed = json.loads(run_here("kb", "graph", "--top", "1", "--json").stdout)
    assert listed == {"entities": 4, "facts": 3, "top": [{"name": "ACME", "type": "Other", "facts": 2, "chunks": 3}]}


def test_an_entity_is_shown_with_its_facts_and_where_they_stand(here: Path) -> None:
    shown = run_here("kb", "graph", "kb", "--entity", "acme").stdout
    assert shown.splitlines() == [
        "ACME (Other), named by 3 chunks",
        "  also: Acme, acme",
        "  a tea company",
        "  - Acme based in Paris  [a.md, b.md]",
        "  - ACME makes tea  [a.md]",
    ]
    assert "and 1 more facts (--top 2)" in run_here("kb", "graph", "--entity", "ACME", "--top", "1").stdout
    found = json.loads(run_here("kb", "graph", "--entity", "bob", "--json").stdout)
    assert (found["entity"]["id"], found["facts"][0]["predicate"], found["all_facts"]) == ("entity:bob", "drinks", 1)


def test_an_unknown_entity_is_a_sentence_with_the_nearest_name(here: Path) -> None:
    result = run_here("kb", "graph", "--entity", "acmee")
    assert result.exit_code == 1
    assert "has no entity `acmee`\n  hint: did you mean `ACME`?" in result.stderr
    assert run_here("kb", "graph", "--entity", "x", "--triples").exit_code == 2


def test_the_facts_are_printed_as_they_can_be_loaded_again(here: Path, tmp_path: Path) -> None:
    lines = run_here("kb", "graph", "--triples").stdout
    assert len(lines.splitlines()) == 4
    (tmp_path / "facts.jsonl").write_text(lines, encoding="utf-8")
    loaded = load_triples(make_set(CORPUS), path=str(tmp_path / "facts.jsonl"))
    assert sorted(len(chunk.graph.triples) for chunk in loaded.chunks if chunk.graph) == [1, 1, 1, 1]


def test_a_knowledge_base_without_a_graph_says_how_to_get_one(here: Path) -> None:
    fill(here, with_graph=False)
    result = run_here("kb", "graph")
    assert result.exit_code == 1
    assert "holds no knowledge graph" in result.stderr
    assert "enrich.extract_graph" in result.stderr


def test_dropping_a_knowledge_base_leaves_nothing_of_its_graph(here: Path) -> None:
    assert (here / "data" / "kb.graph").exists()
    run_here("kb", "drop", "kb", "--yes")
    assert list((here / "data").iterdir()) == []


def test_a_folder_is_indexed_with_a_graph_that_no_model_had_a_part_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAGBRAID_PROFILE", raising=False)
    shutil.copytree(EXAMPLES, tmp_path / "flows")
    first = run_here("ingest", "flows/pmi_index.yaml", "--json")
    assert first.exit_code == 0, first.stderr
    report = json.loads(first.stdout)
    again = json.loads(run_here("ingest", "flows/pmi_index.yaml", "--json").stdout)
    assert (again["embedded"], again["entities"], again["facts"]) == (0, report["entities"], report["facts"])
    assert report["facts"] > 20
    about = run_here("kb", "graph", "--flow", "flows/pmi_index.yaml", "--entity", "CVE-2025-48817").stdout
    assert "CVE-2025-48817" in about.splitlines()[0]
    assert "co-occurrence" in about
    assert run_here("kb", "verify", "--flow", "flows/pmi_index.yaml").exit_code == 0
