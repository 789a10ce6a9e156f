"""The main job by the command line, on the example flows and the packaged model; and how commands end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import pytest
from cli_parts import EXAMPLES, once_per_session, run_apart, run_here
from click.testing import Result

from ragbraid.flows.scripted_llm import ScriptedLLM

LEAVE = ("-i", "question=How many days of annual leave do I have?")


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example flows with their handbook indexed by the packaged model; tests work on copies of it."""

    def build(folder: Path) -> None:
        copytree(EXAMPLES, folder, dirs_exist_ok=True, ignore=ignore_patterns(".ragbraid", "__pycache__"))
        result = run_here("ingest", folder / "ingest.yaml")
        assert result.exit_code == 0, result.output
        assert "8 added, 0 updated, 0 unchanged, 0 deleted, 0 failed" in result.stdout

    return once_per_session(tmp_path_factory.getbasetemp(), "handbook", build)


@pytest.fixture
def examples(ingested: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "examples"
    copytree(ingested, folder)
    monkeypatch.chdir(folder)
    for name in ("PREFECT_API_URL", "RAGBRAID_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    return folder


def succeeded(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.model
def test_a_question_is_answered_with_cited_sentences(examples: Path) -> None:
    lines = succeeded(run_here("run", "hybrid_qa.yaml", *LEAVE)).splitlines()
    assert "28 days of annual leave" in lines[0]
    assert "[1]" in lines[0]
    sources = lines[lines.index("Sources:") + 1 :]
    assert sources[0] == "  [1] 01-working-time.md > Working time and leave > Annual leave"
    assert sources[1].strip().startswith("“")


@pytest.mark.model
def test_a_question_in_chinese_is_answered_from_the_chinese_handbook(examples: Path) -> None:
    said = succeeded(run_here("run", "hybrid_qa.yaml", "-i", "question=网关出现 ERR_OOM_KILL_001 应该怎么处理？"))
    assert "ERR_OOM_KILL_001" in said
    assert "zh/03-网关故障处理.md" in said


@pytest.mark.model
def test_a_result_and_its_trace_come_as_json(examples: Path) -> None:
    result = json.loads(succeeded(run_here("run", "hybrid_qa.yaml", *LEAVE, "--json", "--trace", "t.json")))
    assert result["citations"][0]["source"] == "01-working-time.md"
    trace = json.loads((examples / "t.json").read_text())
    assert (trace["flow"], trace["status"]) == ("hybrid_qa", "ok")
    paths = [step["path"] for step in trace["steps"]]
    assert sorted(paths) == ["answer", "cut", "dense", "merger", "rerank", "sparse"]
    assert trace["inputs"] == {"question": LEAVE[1].partition("=")[2], "top_k": 5}


@pytest.mark.model
def test_flows_are_compared_in_one_table(examples: Path) -> None:
    told = succeeded(run_here("eval", "hybrid_qa.yaml", "dense_only.yaml", "--questions", "questions.jsonl"))
    header, hybrid, dense = (line.split() for line in told.splitlines())
    assert header[:8] == ["FLOW", "N", "FAILED", "R@5", "R@10", "ALL@5", "ALL@10", "MRR@10"]
    count = str(len((examples / "questions.jsonl").read_text().splitlines()))
    assert hybrid[:3] == ["hybrid_qa", count, "0"]
    assert dense[:3] == ["dense_only", count, "0"]
    assert float(hybrid[3]) >= 0.9
    assert dense[header.index("EM")] == "-"  # it answers nothing, which is not the same as zero


@pytest.mark.model
def test_an_evaluation_as_json_says_how_many_questions_are_behind_each_figure(examples: Path) -> None:
    arguments = ("eval", "dense_only.yaml", "dense_only.yaml", "-q", "questions.jsonl", "--limit", "3", "--json")
    [one, two] = json.loads(succeeded(run_here(*arguments)))
    assert (one["flow"], one["questions"], one["metrics"]["recall@5"]["n"]) == ("dense_only", 3, 3)
    assert {entry["id"]: entry["metrics"] for entry in one["results"]} == {
        entry["id"]: entry["metrics"] for entry in two["results"]
    }
    assert "em" not in one["metrics"]


@pytest.mark.model
def test_a_second_ingestion_embeds_nothing_and_a_deleted_file_leaves(examples: Path) -> None:
    # The folder of the documents is another one than when they were indexed.
    run_here("ingest", "ingest.yaml")
    again = json.loads(succeeded(run_here("ingest", "ingest.yaml", "--json")))
    assert (again["unchanged"], again["embedded"]) == (8, 0)
    (examples / "data/handbook/03-it-security.md").unlink()
    assert "0 added, 0 updated, 7 unchanged, 1 deleted, 0 failed" in succeeded(run_here("ingest", "ingest.yaml"))


@pytest.mark.model
def test_ready_passages_keep_their_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ingest_passages.yaml", "dense_only.yaml"):
        (tmp_path / name).write_text((EXAMPLES / name).read_text())
    monkeypatch.chdir(tmp_path)
    passages = [("p-1", "Pumps", "The alpha pump needs oil."), ("p-2", "门", "北门晚上九点半关闭。")]
    lines = [json.dumps({"id": name, "title": title, "text": text}) for name, title, text in passages]
    (tmp_path / "passages.jsonl").write_text("\n".join(lines))
    questions = [("q1", "What does the pump need?", "p-1"), ("q2", "北门几点关闭？", "p-2")]
    lines = [json.dumps({"id": i, "question": q, "gold_passage_ids": [gold]}) for i, q, gold in questions]
    (tmp_path / "questions.jsonl").write_text("\n".join(lines))
    succeeded(run_here("ingest", "ingest_passages.yaml", "-i", "passages=passages.jsonl"))
    [told] = json.loads(succeeded(run_here("eval", "dense_only.yaml", "-q", "questions.jsonl", "--json")))
    assert told["metrics"]["mrr@10"]["value"] == 1.0


@pytest.mark.model
def test_knowledge_bases_are_listed_shown_verified_and_dropped(examples: Path) -> None:
    [row] = json.loads(succeeded(run_here("kb", "list", "--json")))
    assert (row["name"], row["provider"], row["documents"], row["generation"]) == ("kb", "qdrant.embedded", 8, 1)
    shown = succeeded(run_here("kb", "show"))
    assert "01-working-time.md" in shown
    assert succeeded(run_here("kb", "verify")) == "kb: all is well\n"
    refused = run_here("kb", "drop")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "say so with --yes" in refused.stderr
    assert succeeded(run_here("kb", "drop", "--yes")).startswith("dropped `kb` with 8 documents and ")
    assert run_here("kb", "show").exit_code == 1


@pytest.mark.model
def test_a_flow_without_a_project_file_is_looked_up_where_it_lies(
    examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"--flow {examples.relative_to(tmp_path)}/ingest.yaml" in run_here("kb", "list", "--json").stderr
    [row] = json.loads(succeeded(run_here("kb", "list", "--json", "--flow", examples / "ingest.yaml")))
    assert row["documents"] == 8


@pytest.mark.model
@pytest.mark.prefect
@pytest.mark.parametrize("flow", ["hybrid_qa.yaml", "dense_only.yaml"])
def test_both_engines_print_the_same_and_leave_the_same_trace(examples: Path, flow: str, prefect_server: Any) -> None:
    printed, steps = [], []
    environment = {"PREFECT_API_URL": prefect_server.url, "PREFECT_HOME": str(prefect_server.home)}
    for engine in ("inline", "auto"):
        command = ("run", flow, *LEAVE, "--engine", engine, "--trace", "t.json")
        result = run_apart(*command, folder=examples, env=environment)
        printed.append(succeeded(result))
        trace = json.loads((examples / "t.json").read_text())
        steps.append(sorted((step["path"], step["status"]) for step in trace["steps"]))
        assert ("Flow run" in result.stderr) == (engine == "auto")
    assert printed[0] == printed[1]
    assert steps[0] == steps[1]


def test_a_project_is_examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with ScriptedLLM() as gone:
        dead = gone.base_url
    with ScriptedLLM() as server:
        (tmp_path / "ragbraid.toml").write_text(
            f'[resources.llm]\nuse = "openai.chat"\nmodel = "m"\nbase_url = "{server.base_url}"\n'
            f'[resources.judge]\nuse = "openai.chat"\nmodel = "m"\nbase_url = "{dead}"\n'
            '[resources.writer]\nuse = "openai.chat"\nmodel = "m"\napi_key = "${env.RAGBRAID_TEST_NO_KEY}"\n'
            '[resources.kb]\nuse = "qdrant.servr"\n'
        )
        result = run_here("doctor", "--json")
    found = {(check["name"], check["status"]): check["detail"] for check in json.loads(result.stdout)}
    assert result.exit_code == 1
    assert ("llm", "ok") in found
    assert ("llm", "wrong") not in found
    assert "does not answer" in found["judge", "wrong"]
    assert "RAGBRAID_TEST_NO_KEY is not set" in found["writer", "wrong"]
    assert "no resource provider `qdrant.servr`" in found["kb", "wrong"]
    assert "-> did you mean `qdrant.server`?" in run_here("doctor").stdout


def test_a_reader_that_goes_away_is_no_failure(tmp_path: Path) -> None:
    command = f'"{sys.executable}" -m ragbraid.flows.cli schema | head -c 1; echo " ${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert (done.stdout, done.stderr) == ("{ 0\n", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_a_sentence(tmp_path: Path) -> None:
    command = f'"{sys.executable}" -m ragbraid.flows.cli schema > /dev/full'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert done.stderr == "error: the system refuses to read or write: No space left on device\n"


def test_a_file_name_that_is_no_utf8_is_shown_and_not_stumbled_over(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff.yaml")
    (tmp_path / name).write_text(
        "ragbraid: 1\nname: f\ninputs: {p: str}\nnodes: {load: {use: load.files, path: $p}}\noutputs: $load\n"
    )
    done = run_apart("check", name, folder=tmp_path)
    assert (done.exit_code, done.stdout) == (0, "\\udcff.yaml: ok, 1 step\n")


def test_checking_loads_nothing_heavy(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from ragbraid.flows.cli import main\n"
        "try:\n"
        "    main(sys.argv[1:])\n"
        "except SystemExit:\n"
        "    pass\n"
        "heavy = 'prefect openai instructor fastembed onnxruntime torch qdrant_client qdrant_edge numpy jieba httpx'\n"
        "print(sorted(set(heavy.split()) & set(sys.modules)))\n"
    )
    flow = str(EXAMPLES / "hybrid_qa.yaml")
    for command in (["check", flow], ["explain", flow], ["graph", flow], ["nodes"], ["schema"], ["--help"]):
        done = subprocess.run(
            [sys.executable, "-c", program, *command], capture_output=True, text=True, cwd=tmp_path, check=True
        )
        assert done.stdout.splitlines()[-1] == "[]", command
