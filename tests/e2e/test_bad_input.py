"""What a user sees when something is wrong: a sentence, an exit code, and nothing lost."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest
from cli_parts import bind, embedding_server, make_project, once_per_session, run_apart, run_here, start
from click.testing import Result

from ragbraid.flows.scripted_llm import Recorded, ScriptedLLM
from ragbraid.flows.scripted_rules import Fault, Rule

ASK = ("-i", "question=How often does the alpha pump need oil?")


@pytest.fixture(scope="module")
def vectors() -> Iterator[ScriptedLLM]:
    with embedding_server() as server:
        yield server


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, vectors: ScriptedLLM) -> Path:
    """A project whose knowledge base holds three documents; tests work on copies of it."""

    def build(folder: Path) -> None:
        make_project(folder, vectors.base_url)
        result = run_here("ingest", folder / "ingest.yaml", "-i", f"folder={folder / 'docs'}")
        assert result.exit_code == 0, result.output

    return once_per_session(tmp_path_factory.getbasetemp(), "bad-input", build)


@pytest.fixture
def project(filled: Path, vectors: ScriptedLLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    copytree(filled, folder)
    bind(folder, vectors.base_url)
    monkeypatch.chdir(folder)
    for name in ("PREFECT_API_URL", "RAGBRAID_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    return folder


def assert_sentence(result: Result, *parts: str, code: int = 1) -> None:
    """The command ended with this code and said this, and there was no traceback."""
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    for part in parts:
        assert part in result.stderr


def ingest(*more: str) -> Result:
    return run_here("ingest", "ingest.yaml", "-i", "folder=docs", *more)


def sources() -> dict[str, Any]:
    """What the knowledge base holds, per source."""
    shown = json.loads(run_here("kb", "show", "--json").stdout)
    return {document["source"]: document["chunk_ids"] for document in shown["documents"]}


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["check", "explain", "graph", "run", "ingest"])
def test_a_flow_file_that_is_not_there(project: Path, command: str) -> None:
    assert_sentence(run_here(command, "nope.yaml"), "there is no file `nope.yaml`")


def test_a_source_that_is_not_there(project: Path) -> None:
    result = run_here("ingest", "ingest.yaml", "-i", "folder=docs/nope")
    assert_sentence(result, "step `load`: `docs/nope` does not exist", str(project / "docs/nope"))


def test_files_that_cannot_be_read_are_named_and_the_rest_is_indexed(project: Path) -> None:
    (project / "docs/empty.md").touch()
    (project / "docs/blank.txt").write_text(" \n\t\n\u3000")
    (project / "docs/binary.txt").write_bytes(bytes(range(256)) * 4)
    (project / "docs/latin.txt").write_bytes("Das Gerät läuft. Die Tür schließt nicht.".encode("latin-1"))
    (project / "docs/new.md").write_text("The beta pump needs water.\n")
    result = ingest()
    assert result.exit_code == 1
    assert "failed    binary.txt: It is a binary file" in result.stdout
    for name in ("empty.md", "blank.txt"):
        assert f"added     {name}: it holds no text, so there is nothing to find in it" in result.stdout
    assert "1 failed, 2 empty\n" in result.stdout
    assert {"latin.txt", "new.md", "empty.md", "blank.txt", "pump.md", "gate.md", "zh.md"} == set(sources())
    assert sources()["empty.md"] == sources()["blank.txt"] == []
    reports = json.loads(ingest("--json").stdout)
    assert reports["empty"] == 2
    assert [each["source"] for each in reports["sources"] if (each["reason"] or "").startswith("it holds no text")] == [
        "blank.txt",
        "empty.md",
    ]
    found = run_here("run", "dense_only.yaml", "-i", "question=Gerät Tür", "--json")
    assert "Das Gerät läuft. Die Tür schließt nicht." in [hit["text"] for hit in json.loads(found.stdout)["hits"]]


def test_a_folder_without_a_single_document(project: Path) -> None:
    (project / "nothing").mkdir()
    result = run_here("ingest", "ingest.yaml", "-i", "folder=nothing", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["added"] == 0
    assert set(sources()) == {"pump.md", "gate.md", "zh.md"}


def test_a_long_text_without_a_single_line_break_is_indexed(project: Path) -> None:
    # 50 MB were tried by hand; the notes have the figures.
    (project / "docs/long.txt").write_text("word " * 40_000)
    result = ingest("--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["chunks_added"] >= 200


def test_a_moved_project_a_renamed_folder_and_moved_files_cost_no_embedding(
    project: Path, vectors: ScriptedLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sources()
    elsewhere = project.with_name("elsewhere")
    project.rename(elsewhere)
    monkeypatch.chdir(elsewhere)
    asked = len(vectors.requests)
    report = json.loads(ingest("--json").stdout)
    assert (report["generation"], report["unchanged"], report["embedded"]) == (1, 3, 0)
    assert sources() == before

    Path("docs").rename("handbook")
    result = run_here("ingest", "ingest.yaml", "-i", "folder=handbook")
    assert result.stdout.startswith("knowledge base `kb`, generation 2: ")
    assert "0 added, 3 updated, 0 unchanged, 0 deleted, 0 failed" in result.stdout
    assert "chunks: 0 added, 0 deleted, 3 unchanged; 0 embedded" in result.stdout
    assert "  updated   pump.md: until now of `docs/**/*`" in result.stdout
    assert sources() == before

    Path("handbook/en").mkdir()
    for name in ("pump.md", "gate.md"):
        Path("handbook", name).rename(Path("handbook/en", name))
    result = run_here("ingest", "ingest.yaml", "-i", "folder=handbook")
    assert "2 added, 0 updated, 1 unchanged, 2 deleted, 0 failed" in result.stdout
    assert "2 deleted, 1 unchanged; 0 embedded" in result.stdout
    assert "  deleted   pump.md: its content is now in en/pump.md" in result.stdout
    assert set(sources()) == {"en/pump.md", "en/gate.md", "zh.md"}
    assert len(vectors.requests) == asked
    assert run_here("kb", "verify").exit_code == 0


def test_an_emptied_folder_is_still_refused(project: Path) -> None:
    before = sources()
    for file in (project / "docs").iterdir():
        file.unlink()
    (project / "docs/other.md").write_text("Something else.\n")
    assert_sentence(ingest(), "3 of 3 indexed sources are missing from this run", "nothing was changed")
    assert sources() == before


def test_a_file_above_the_limit_is_reported_and_not_read(project: Path) -> None:
    text = (project / "ingest.yaml").read_text().replace("path: $folder}", "path: $folder, max_bytes: 60}")
    (project / "ingest.yaml").write_text(text)
    (project / "docs/big.txt").write_text("word " * 100)
    result = ingest()
    assert result.exit_code == 1
    assert "failed    big.txt: It is larger than 60 bytes" in result.stdout


LOSER = '''
import shutil
from pathlib import Path

from ragbraid.registry.contracts import DocumentSet
from ragbraid.registry.node import node


@node("test.lose", example="lost: {use: test.lose, documents: $documents, folder: docs}")
def lose(documents: DocumentSet, *, folder: str) -> DocumentSet:
    """Delete the folder that the documents were read from.

    Args:
        documents: the documents.
        folder: what is deleted.
    """
    shutil.rmtree(folder)
    return documents
'''


def test_files_that_are_deleted_during_the_run_are_indexed_as_they_were_read(
    project: Path, vectors: ScriptedLLM
) -> None:
    (project / "lose.py").write_text(LOSER)
    bind(project, vectors.base_url)
    (project / "ragbraid.toml").write_text('nodes = ["lose.py"]\n' + (project / "ragbraid.toml").read_text())
    flow = (project / "ingest.yaml").read_text()
    flow = flow.replace("  chunk:", "  lose: {use: test.lose, folder: $folder}\n  chunk:").replace(
        "load ->", "load -> lose ->"
    )
    (project / "ingest.yaml").write_text(flow)
    (project / "docs/new.md").write_text("The beta pump needs water.\n")
    assert ingest().exit_code == 0
    assert not (project / "docs").exists()
    assert "new.md" in sources()


def test_a_trace_file_in_a_folder_that_is_not_there(project: Path) -> None:
    result = run_here("run", "dense_only.yaml", *ASK, "--trace", "no/such/t.json")
    assert_sentence(result, "the trace cannot be written to no/such/t.json")


# -- the knowledge base ------------------------------------------------------------------------------------------------


def test_a_knowledge_base_that_does_not_exist(project: Path) -> None:
    moved = project / "elsewhere"
    moved.mkdir()
    (project / "hybrid_qa.yaml").rename(moved / "hybrid_qa.yaml")
    (project / "ragbraid.toml").rename(moved / "ragbraid.toml")
    result = run_here("run", moved / "hybrid_qa.yaml", *ASK)
    assert_sentence(result, "there is no knowledge base `kb` at", "run an ingestion flow")
    for command in ("show", "verify", "drop"):
        more = ("--yes",) if command == "drop" else ()
        assert_sentence(run_here("kb", command, "--project", moved, *more), "there is no knowledge base")


def test_a_knowledge_base_that_another_model_built(project: Path, vectors: ScriptedLLM) -> None:
    before = sources()
    bind(project, vectors.base_url, model="other")
    for result in (run_here("run", "dense_only.yaml", *ASK), ingest()):
        assert_sentence(result, "was filled with", "tiny", "other")
    bind(project, vectors.base_url)
    assert sources() == before


def test_a_knowledge_base_that_is_open_in_another_process(project: Path, vectors: ScriptedLLM) -> None:
    asked, go_on = threading.Event(), threading.Event()

    class Held(ScriptedLLM):
        def record(self, recorded: Recorded) -> None:
            super().record(recorded)
            asked.set()
            go_on.wait(60)

    with Held() as server:
        (project / "docs/new.md").write_text("The beta pump needs water.\n")
        bind(project, server.base_url)
        holder = start("ingest", "ingest.yaml", "-i", "folder=docs", folder=project)
        try:
            assert asked.wait(60)
            bind(project, vectors.base_url)
            sentence = "is open in another process"
            assert_sentence(run_here("run", "dense_only.yaml", *ASK), sentence, "qdrant.server")
            assert_sentence(run_here("kb", "verify"), sentence)
            listed = run_here("kb", "list")
            assert sentence in listed.stderr
        finally:
            go_on.set()
            out, err = holder.communicate()
    assert holder.returncode == 0, err
    assert "1 added" in out
    assert run_here("run", "dense_only.yaml", *ASK).exit_code == 0


@pytest.mark.parametrize(
    "damaged", ["edge_config.json", "segments/*/segment.json", "segments/*/payload_storage/page_0.dat"]
)
def test_a_knowledge_base_whose_files_are_damaged(project: Path, damaged: str) -> None:
    [file] = (project / ".ragbraid/kb/kb").glob(damaged)
    file.write_bytes(b"\x00damage\xff")
    for result in (run_here("run", "dense_only.yaml", *ASK), run_here("kb", "verify"), ingest()):
        assert_sentence(result, "its files may be damaged", str(project / ".ragbraid/kb/kb"))
        assert_sentence(result, "delete it with `ragbraid kb drop`, or delete that folder, and ingest again")


def test_a_damaged_knowledge_base_is_dropped_when_asked_and_filled_again(project: Path) -> None:
    before, folder = sources().keys(), project / ".ragbraid/kb/kb"
    (folder / "edge_config.json").write_bytes(b"\x00damage\xff")
    assert_sentence(run_here("kb", "drop"), "say so with --yes", code=2)
    assert folder.exists()
    dropped = run_here("kb", "drop", "--yes")
    assert (dropped.exit_code, dropped.stdout) == (
        0,
        f"dropped `kb`, which was damaged: deleted the folder {folder}\n",
    )
    assert not folder.exists()
    assert ingest().exit_code == 0
    assert sources().keys() == before


def test_a_damaged_knowledge_base_of_local_mode_is_dropped_and_filled_again(
    project: Path, vectors: ScriptedLLM
) -> None:
    bind(project, vectors.base_url, more='\n[resources.kb]\nuse = "qdrant.local"\npath = "local"\n')
    assert ingest().exit_code == 0
    before = sources().keys()
    [file] = (project / "local/collection").glob("*/storage.sqlite")
    file.write_bytes(b"\x00damage\xff")
    sentence = f"knowledge base {project / 'local'} failed, its files may be damaged or not Qdrant's: "
    for command in (("run", "dense_only.yaml", *ASK), ("kb", "verify"), ("ingest", "ingest.yaml", "-i", "folder=docs")):
        assert_sentence(run_apart(*command, folder=project), sentence, "delete it with `ragbraid kb drop`")
    dropped = run_apart("kb", "drop", "--yes", folder=project)
    assert (dropped.exit_code, (project / "local").exists()) == (0, False)
    assert ingest().exit_code == 0
    assert sources().keys() == before


def test_a_damaged_folder_that_holds_other_files_is_never_deleted(project: Path) -> None:
    folder = project / ".ragbraid/kb/kb"
    (folder / "edge_config.json").write_bytes(b"\x00damage\xff")
    (folder / "letter.txt").write_text("mine")
    assert_sentence(run_here("kb", "drop", "--yes"), "its files may be damaged", "look at what lies there")
    assert (folder / "letter.txt").read_text() == "mine"


# -- the question ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("question", ["", "   ", "\n\t"])
def test_an_empty_question(project: Path, question: str) -> None:
    assert_sentence(run_here("run", "dense_only.yaml", "-i", f"question={question}"), "the question is empty")


def test_a_question_of_100_000_characters_is_answered(project: Path) -> None:
    long = "How often does the alpha pump need oil? " * 2500
    result = run_here("run", "dense_only.yaml", "-i", f"question={long}", "-i", "top_k=1")
    assert result.exit_code == 0, result.output
    assert "pump.md" in result.stdout


def test_a_question_that_is_no_text(project: Path) -> None:
    broken = os.fsdecode(b"\xff\xfe")
    result = run_here("run", "dense_only.yaml", "-i", f"question={broken}")
    assert_sentence(result, "the value of `question` is not UTF-8 text", code=2)


def test_an_input_that_is_missing_lists_what_the_flow_takes(project: Path) -> None:
    result = run_here("run", "hybrid_qa.yaml")
    assert_sentence(result, '`hybrid_qa` needs the input `question`: -i question="..."', code=2)
    lines = [line.split() for line in result.stderr.splitlines()]
    assert ["top_k", "int", "5", ">=", "1,", "<=", "50", "how", "many", "passages", "reach", "the", "answer"] in lines


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("questio=x", "the flow has no input `questio`; did you mean `question`?"),
        ("question", "an input is written NAME=VALUE, not `question`"),
        ("top_k=many", "the input `top_k` is 'many': Input should be a valid integer"),
        ("top_k=99", "the input `top_k` is 99: Input should be less than or equal to 50"),
        (f"top_k={'[' * 5000}", "Input should be a valid integer"),
    ],
)
def test_an_input_that_does_not_fit_is_wrong_use(project: Path, given: str, sentence: str) -> None:
    assert_sentence(run_here("run", "hybrid_qa.yaml", *ASK, "-i", given), sentence, code=2)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "there is no file `inputs.yaml`"),
        (b"\xff\xfe\x00", "the file is not UTF-8"),
        (b"[1, 2]", "is not a mapping of names to values"),
        (b"[" * 100_000, "exceeded maximum nesting depth"),
        (b"question: x\nnope: 1\n", "has no input `nope`"),
    ],
)
def test_an_inputs_file_that_does_not_fit_is_wrong_use(project: Path, content: bytes | None, sentence: str) -> None:
    if content is not None:
        (project / "inputs.yaml").write_bytes(content)
    assert_sentence(run_here("run", "dense_only.yaml", "--inputs-file", "inputs.yaml"), sentence, code=2)


# -- the language model ------------------------------------------------------------------------------------------------


def ask_model(project: Path, vectors: ScriptedLLM, url: str, more: str = "") -> Result:
    llm = f'\n[resources.llm]\nuse = "openai.chat"\nbase_url = "{url}"\nmodel = "m"\nmax_attempts = 1\n{more}\n'
    bind(project, vectors.base_url, more=llm)
    # The flow's own retry would only make the test slower.
    flow = (project / "hybrid_answer.yaml").read_text().replace("retry: {attempts: 2,", "retry: {attempts: 1,")
    (project / "hybrid_answer.yaml").write_text(flow)
    return run_here("run", "hybrid_answer.yaml", *ASK, "--trace", "trace.json")


FAULTS: dict[Fault, str] = {
    "unauthorized": "The key was not accepted (401)",
    "rate_limit": "Too many requests",
    "server_error": "An error (500)",
    "not_found": "The request was refused (404)",
    "not_json": "cannot be used",
    "wrong_schema": "`answer`: Field required",
    "cut_off": "was cut off at its limit of 1000 tokens",
    "content_filter": "was withheld",
    "reset": "No connection to model `m`",
    "web_page": "it is no chat completion; check `base_url`",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_language_model_that_fails(project: Path, vectors: ScriptedLLM, fault: Fault) -> None:
    with ScriptedLLM([Rule(reply='{"answer": "Every 12 days [1]."}', fault=fault)]) as model:
        result = ask_model(project, vectors, model.base_url)
    assert_sentence(result, "step `answer`: ", FAULTS[fault], model_place := "model `m` at http://127.0.0.1:")
    trace = json.loads((project / "trace.json").read_text())
    assert (trace["status"], trace["error"]["step"]) == ("failed", "answer")
    assert model_place in trace["error"]["message"]
    assert [step["status"] for step in trace["steps"]] == ["ok", "failed"]


def test_a_language_model_that_is_down(project: Path, vectors: ScriptedLLM) -> None:
    with ScriptedLLM() as gone:
        url = gone.base_url
    result = ask_model(project, vectors, url)
    assert_sentence(result, f"No connection to model `m` at {url}", "check that the server runs")


def test_a_language_model_that_is_slow(project: Path, vectors: ScriptedLLM) -> None:
    with ScriptedLLM([Rule(reply="x", delay_seconds=60)]) as model:
        result = ask_model(project, vectors, model.base_url, "timeout_seconds = 0.2")
    assert_sentence(result, "No answer from model `m`", "raise `timeout_seconds`")


def test_a_flow_that_needs_a_model_says_so_before_anything_runs(project: Path) -> None:
    result = run_here("run", "hybrid_answer.yaml", *ASK, "--trace", "trace.json")
    assert_sentence(result, "needs the resource `llm` (llm), and nothing is bound to it", "[resources.llm]")
    assert not (project / "trace.json").exists()


def test_a_key_that_is_not_set_is_named_before_anything_runs(project: Path, vectors: ScriptedLLM) -> None:
    result = ask_model(project, vectors, "http://127.0.0.1:9/v1", 'api_key = "${env.RAGBRAID_TEST_NO_KEY}"')
    assert_sentence(result, "the environment variable RAGBRAID_TEST_NO_KEY is not set")


def test_a_citation_that_the_model_invented_is_taken_out_and_counted(project: Path, vectors: ScriptedLLM) -> None:
    said = {"answer": "Every 12 days [1]. See [7].", "citations": [{"n": 1, "quote": "needs oil every 12 days"}]}
    with ScriptedLLM([Rule(json=said)]) as model:
        result = ask_model(project, vectors, model.base_url)
    assert result.exit_code == 0, result.output
    assert "Every 12 days [1]." in result.stdout
    assert "[7]" not in result.stdout
    assert "removed: 1" in result.stdout


# -- Prefect -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["configured", "asked for"])
def test_a_prefect_server_that_is_down_at_the_start(project: Path, how: str) -> None:
    with ScriptedLLM() as gone:
        url = gone.base_url.replace("/v1", "/api")
    more = ("--engine", "prefect") if how == "asked for" else ()
    result = run_apart("run", "dense_only.yaml", *ASK, *more, folder=project, env={"PREFECT_API_URL": url})
    assert_sentence(result, f"the Prefect API at {url} does not answer", "--engine inline")
    here = run_apart("run", "dense_only.yaml", *ASK, "--engine", "inline", folder=project, env={"PREFECT_API_URL": url})
    assert here.exit_code == 0


# -- Ctrl-C ------------------------------------------------------------------------------------------------------------


class AtRequest(ScriptedLLM):
    """Calls a function when the n-th request arrives, and answers none from there on until it is released."""

    def __init__(self, number: int, then: Callable[[], None]) -> None:
        super().__init__()
        self._number = number
        self._then = then
        self.go_on = threading.Event()

    def record(self, recorded: Recorded) -> None:
        super().record(recorded)
        if len(self.requests) >= self._number:
            if len(self.requests) == self._number:
                self._then()
            self.go_on.wait(60)


def write_many(project: Path) -> None:
    for number in range(40):
        (project / f"docs/part-{number:02}.md").write_text(
            f"# Part {number}\n\nPart {number} holds screw {number * 7}.\n"
        )
    # Small batches, so that the signal comes when some are written and some are not.
    flow = (
        (project / "ingest.yaml").read_text().replace("cleanup: scoped_full}", "cleanup: scoped_full, batch_size: 8}")
    )
    (project / "ingest.yaml").write_text(flow)


def whole_state() -> tuple[Any, ...]:
    """What the knowledge base records, says of itself and finds."""
    found = run_here("run", "dense_only.yaml", *ASK, "--json")
    return json.loads(run_here("kb", "show", "--json").stdout), run_here("kb", "verify").stdout, found.stdout


def test_ctrl_c_during_an_ingestion_loses_nothing_and_a_rerun_equals_a_clean_run(
    project: Path, vectors: ScriptedLLM, tmp_path: Path
) -> None:
    write_many(project)
    copytree(project / ".ragbraid", tmp_path / "as it was")
    before = whole_state()
    arrived = threading.Event()
    with AtRequest(3, arrived.set) as server:
        bind(project, server.base_url)
        process = start("ingest", "ingest.yaml", "-i", "folder=docs", "--trace", "t.json", folder=project)
        assert arrived.wait(60)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate()
        server.go_on.set()
    assert (process.returncode, stdout) == (130, "")
    assert stderr == "stopped; what was committed before is unchanged, and a rerun goes on from there\n"
    assert json.loads((project / "t.json").read_text())["status"] == "cancelled"
    bind(project, vectors.base_url)
    assert whole_state()[2] == before[2]
    rerun, after = json.loads(ingest("--json").stdout), whole_state()

    rmtree(project / ".ragbraid")
    copytree(tmp_path / "as it was", project / ".ragbraid")
    clean = json.loads(ingest("--json").stdout)
    assert after == whole_state()
    assert after[1] == "kb: all is well\n"
    # Two batches of eight had been written when the third was asked for.
    assert rerun.pop("embedded") == clean.pop("embedded") - 16
    assert rerun == clean
