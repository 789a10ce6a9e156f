"""`pike_rag_index.yaml` on a scripted model: what it asks, what it stores, and what is left when the model fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_parts import EXAMPLES, bind, embedding_server, make_project, run_here
from click.testing import Result

from ragbraid.flows.api import Engine, load
from ragbraid.flows.scripted_llm import ScriptedLLM
from ragbraid.flows.scripted_rules import ChatRequest, Reply, Rule, load_rules
from ragbraid.registry.contracts import IndexReport

FIND = """
ragbraid: 1
name: find
inputs: {question: str}
nodes:
  text:   {use: retrieve.dense, top_k: 3}
  atoms:  {use: retrieve.atoms, min_score: 0.2}
  merger: fuse.rrf
outputs: {atoms: $atoms, fused: $merger}
flow: text, atoms -> merger
"""
TAGS = [
    Rule.model_validate({"user": "alpha pump", "json": {"questions": ["How often does the alpha pump need oil?"]}}),
    Rule.model_validate({"user": "north gate", "json": {"questions": ["When does the north gate close?"]}}),
    Rule.model_validate({"user": "乙号水泵", "json": {"questions": ["乙号水泵多久检查一次？"]}}),
    Rule.model_validate({"user": "beta pump", "json": {"questions": ["What does the beta pump need?"]}}),
]


class Model:
    """A scripted model whose rules a test can replace."""

    def __init__(self) -> None:
        self.rules: list[Rule] = list(TAGS)
        self.server = ScriptedLLM([self._respond])

    def _respond(self, request: ChatRequest) -> Reply | None:
        return next((found for rule in self.rules if (found := rule(request)) is not None), None)

    @property
    def asked(self) -> int:
        return len(self.server.chats)


@pytest.fixture
def model() -> Iterator[Model]:
    made = Model()
    with made.server:
        yield made


@pytest.fixture
def project(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with embedding_server() as vectors:
        folder = tmp_path / "project"
        folder.mkdir()
        make_project(folder, vectors.base_url)
        llm = f'\n[resources.llm]\nuse = "openai.chat"\nbase_url = "{model.server.base_url}"\nmodel = "m"\nmax_attempts = 1\n'
        bind(folder, vectors.base_url, more=llm)
        (folder / "find.yaml").write_text(FIND)
        monkeypatch.chdir(folder)
        for name in ("PREFECT_API_URL", "RAGBRAID_PROFILE"):
            monkeypatch.delenv(name, raising=False)
        yield folder


def index(code: int = 0, flow: str = "pike_rag_index.yaml") -> dict[str, Any]:
    result = run_here("ingest", flow, "-i", "folder=docs", "--json")
    assert result.exit_code == code, result.output
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def find(question: str) -> dict[str, Any]:
    result = run_here("run", "find.yaml", "-i", f"question={question}", "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def verified() -> Result:
    return run_here("kb", "verify")


def test_a_folder_is_tagged_once_and_found_through_its_questions(project: Path, model: Model) -> None:
    report = index()
    assert (report["added"], report["chunks_added"], report["atoms_added"], model.asked) == (3, 3, 3, 3)
    found = find("How often does the alpha pump need oil?")
    assert found["atoms"]["hits"][0]["source"] == "pump.md"
    assert found["atoms"]["hits"][0]["score"] == pytest.approx(1.0, abs=1e-5)
    assert found["atoms"]["hits"][0]["metadata"]["atom"] == "How often does the alpha pump need oil?"
    assert found["fused"]["hits"][0]["source"] == "pump.md"
    again = index()
    assert (again["unchanged"], again["embedded"], model.asked) == (3, 0, 3)


def test_only_what_is_new_is_asked_about_and_what_is_gone_loses_its_atoms(project: Path, model: Model) -> None:
    index()
    (project / "docs/pump.md").write_text("# Beta pump\n\nThe beta pump needs water.\n")
    (project / "docs/gate.md").unlink()
    report = index()
    assert (report["updated"], report["deleted"], report["unchanged"], model.asked) == (1, 1, 1, 4)
    assert (report["atoms_added"], report["atoms_deleted"]) == (1, 2)
    atoms = [hit["metadata"]["atom"] for hit in find("What does the beta pump need?")["atoms"]["hits"]]
    assert "How often does the alpha pump need oil?" not in atoms
    assert atoms[0] == "What does the beta pump need?"
    assert verified().stdout == "kb: all is well\n"


def test_a_source_that_the_model_fails_on_is_reported_and_the_rest_is_indexed(project: Path, model: Model) -> None:
    index()
    model.rules.insert(0, Rule(user="gamma", fault="server_error"))
    (project / "docs/gate.md").write_text("# Gate\n\nThe gamma gate is new.\n")
    (project / "docs/beta.md").write_text("# Beta pump\n\nThe beta pump needs water.\n")
    report = index(code=1)
    assert {each["source"]: each["status"] for each in report["sources"]} == {
        "beta.md": "added", "gate.md": "failed", "pump.md": "unchanged", "zh.md": "unchanged",
    }  # fmt: skip
    assert report["sources"][-1]["reason"].startswith("Its chunks could not be tagged: ")
    # The file as it was before is still found, and the next run asks about the new one only.
    assert find("When does the north gate close?")["atoms"]["hits"][0]["source"] == "gate.md"
    asked = model.asked
    model.rules[0] = Rule.model_validate({"user": "gamma", "json": {"questions": ["Which gate is new?"]}})
    assert (index()["updated"], model.asked - asked) == (1, 1)


def test_a_model_that_is_away_changes_nothing_and_is_told_in_a_sentence(project: Path, model: Model) -> None:
    model.rules = [Rule(fault="unauthorized")]
    result = run_here("ingest", "pike_rag_index.yaml", "-i", "folder=docs")
    assert result.exit_code == 1
    assert "error: step `tag`: The key was not accepted (401) by model `m`" in result.stderr
    assert "Traceback" not in result.output
    assert not (project / ".ragbraid/kb/default").exists()


def test_a_knowledge_base_without_atoms_says_which_flow_makes_them(project: Path) -> None:
    index(flow="ingest.yaml")
    result = run_here("run", "find.yaml", "-i", "question=anything")
    assert result.exit_code == 1
    assert "holds no atoms" in result.stderr
    assert "run an ingestion flow with `enrich.tag_atoms` before `index.upsert` first" in result.stderr


def test_the_script_beside_the_flow_tags_the_whole_handbook(project: Path, model: Model) -> None:
    model.rules = load_rules(EXAMPLES / "data/pike_rag_rules.yaml")
    (project / "docs").rename(project / "others")
    (project / "docs").symlink_to(EXAMPLES / "data/handbook")
    report = index()
    assert (report["added"], report["failed"]) == (8, 0)
    assert report["atoms_added"] > 2 * report["chunks_added"]
    assert model.asked == report["chunks_added"]


@pytest.mark.prefect
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_both_runners_store_the_same(project: Path, model: Model, prefect_api: object) -> None:
    def run(engine: Engine) -> IndexReport:
        report: IndexReport = load("pike_rag_index.yaml").run_traced(folder="docs", engine=engine).outputs
        return report

    inline = run("inline")
    other = run("prefect")
    assert (inline.added, other.unchanged, other.atoms_unchanged, model.asked) == (3, 3, 3, 3)
    assert run_here("kb", "drop", "--yes").exit_code == 0
    assert run("prefect") == inline
