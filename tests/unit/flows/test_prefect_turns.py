"""Which flows write a knowledge base, and by what name runs that write the same one find each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from ragbraid.flows.api import load
from ragbraid.flows.outcomes import outcome_of
from ragbraid.flows.prefect_turns import knowledge_bases_written
from ragbraid.registry.catalogue import installed_catalogue
from ragbraid.registry.contracts import IndexReport

INGEST = """ragbraid: 1
name: {name}
resources: {resources}
nodes:
  load: {{use: load.files, path: docs}}
  chunk: {{use: chunk.headings}}
  index: {{use: index.upsert{more}}}
flow: load -> chunk -> index
outputs: $index
"""


def limits(folder: Path, resources: str, more: str = "", name: str = "ingest") -> list[str]:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.yaml").write_text(INGEST.format(name=name, resources=resources, more=more))
    return list(knowledge_bases_written(load(folder / f"{name}.yaml")))


def test_the_nodes_that_write_a_knowledge_base_are_known_by_their_effects() -> None:
    writing = {
        node.name
        for node in installed_catalogue().nodes()
        if not node.cacheable and any(need.role == "kb" and need.required for need in node.resources)
    }
    assert writing == {"index.upsert", "report.write"}


def test_a_flow_that_reads_takes_no_turn(tmp_path: Path) -> None:
    (tmp_path / "ask.yaml").write_text(
        "ragbraid: 1\nname: ask\ninputs: {question: str}\nnodes: {find: {use: retrieve.dense}}\noutputs: $find\n"
    )
    assert list(knowledge_bases_written(load(tmp_path / "ask.yaml"))) == []


def test_one_knowledge_base_has_one_name_however_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = limits(tmp_path / "a", "{kb: {use: qdrant.embedded, path: ../kb}}")
    assert here == limits(tmp_path / "b", f"{{kb: {{use: qdrant.embedded, path: {tmp_path}/kb}}}}", name="other")
    assert here == limits(tmp_path / "c", "{mine: {use: qdrant.embedded, path: ../kb, name: kb}}", ", kb: mine")
    assert here != limits(tmp_path / "d", "{kb: {use: qdrant.embedded, path: ../kb, name: laws}}")
    assert here != limits(tmp_path / "e", "{kb: {use: qdrant.embedded, path: kb}}")
    assert here[0].startswith("ragbraid-kb-kb-")

    monkeypatch.setenv("QDRANT_URL", "http://qdrant:6333/")
    server = limits(tmp_path / "f", "{kb: {use: qdrant.server, url: 'http://qdrant:6333', api_key: '${env.KEY}'}}")
    assert server == limits(tmp_path / "g", "{kb: {use: qdrant.server, url: '${env.QDRANT_URL}', prefer_grpc: true}}")
    monkeypatch.delenv("QDRANT_URL")
    assert len(limits(tmp_path / "g", "{kb: {use: qdrant.server, url: '${env.QDRANT_URL}'}}")) == 1


def test_the_outcome_of_a_run_is_a_line_of_totals() -> None:
    report = IndexReport(knowledge_base="kb", generation=1, added=1200, failed=1)
    assert outcome_of(report) == "1,200 added, 1 failed"
    assert outcome_of({"report": report, "answer": "x"}) == "1,200 added, 1 failed"
    assert outcome_of(IndexReport(knowledge_base="kb", generation=1)) == "no sources"
    both = {"a": report, "b": IndexReport(knowledge_base="kb", generation=2, unchanged=3)}
    assert outcome_of(both) == "a: 1,200 added, 1 failed; b: 3 unchanged"
    assert outcome_of("text") is None
