"""How results look, and the scripted model for authors."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from ragbraid.flows.cli import app
from ragbraid.flows.cli_show import show_outputs
from ragbraid.registry.contracts import Answer, Citation, Hit, IndexReport, Ranking, RouteScore, SourceReport
from ragbraid.registry.logic import Binding, Bindings, LogicPlan, LogicStep, Slot, Solution, StepResult
from ragbraid.registry.reports import MissingReport, ReportRun


def shown(capsys: pytest.CaptureFixture[str], value: object) -> list[str]:
    show_outputs(value)
    return capsys.readouterr().out.splitlines()


def test_an_answer_is_shown_with_its_sources_and_what_was_doubtful(capsys: pytest.CaptureFixture[str]) -> None:
    citations = (
        Citation(
            marker=1, chunk_id="c1", source="a.md", section_path=("A", "B"), quote="28 days\nof leave", verified=True
        ),
        Citation(marker=2, chunk_id="c2", quote="never said", verified=False),
        Citation(marker=3, chunk_id="c3", source="b.md", kind="fact", quote="leave lasts 28 days", verified=True),
    )
    answer = Answer(text="28 days [1]. Never [2].", citations=citations, unknown_citations=2)
    assert shown(capsys, answer) == [
        "28 days [1]. Never [2].",
        "",
        "Sources:",
        "  [1] a.md > A > B",
        "      “28 days of leave”",
        "  [2] c2  (the quote is not in the passage)",
        "      “never said”",
        "  [3] b.md",
        "      fact “leave lasts 28 days”",
        "(citations of the model that point at no passage and were removed: 2)",
    ]


def test_a_logical_form_is_shown_without_the_passages_behind_it(capsys: pytest.CaptureFixture[str]) -> None:
    who = LogicStep(
        n=1,
        question="Who founded Acme?",
        op="retrieve",
        s=Slot(alias="s1", mention="Acme"),
        p=Slot(alias="p1", types=("founder", "founded by")),
        o=Slot(alias="o1"),
    )
    count = LogicStep(
        n=2, question="How many?", op="math", inputs=("o1",), target="count", out_alias="m1", depends_on=(1,)
    )
    end = LogicStep(n=3, question="The answer", op="output", inputs=("m1",), depends_on=(2,))
    assert shown(capsys, LogicPlan(steps=(who, count, end), notes=("a note",))) == [
        "  1. retrieve Who founded Acme?  [Acme | founder / founded by | o1]",
        "  2. math     How many?  [o1 -> m1]  (after 1)",
        "  3. output   The answer  [m1]  (after 2)",
        "note: a note",
    ]
    hit = Hit(id="a", text="Acme was founded by Ann and Bo.", score=1.0, rank=1, score_kind="rank")
    found = Binding(alias="o1", text="Ann, Bo", values=("Ann", "Bo"), of=("", ""))
    lost = Binding(alias="o2", status="empty", reason="nothing was found that answers it")
    results = (
        StepResult(n=1, question="", op="retrieve", bindings=(found,), evidence=Ranking(hits=(hit,))),
        StepResult(n=2, question="", op="retrieve", bindings=(found, lost)),
    )
    assert shown(capsys, Bindings(results=results)) == [
        "  o1 = Ann, Bo",
        "  o2 = nothing  (empty: nothing was found that answers it)",
    ]
    assert shown(capsys, Bindings()) == ["nothing is bound"]
    solution = Solution(text="2", values=("2",), lines=("How many? -> 2",), status="degraded", reason="step 1 failed")
    assert shown(capsys, solution) == ["2", "  How many? -> 2", "(degraded: step 1 failed)"]


def test_a_citation_without_a_quote_is_not_called_doubtful(capsys: pytest.CaptureFixture[str]) -> None:
    answer = Answer(text="28 days [1].", citations=(Citation(marker=1, chunk_id="c1", source="a.md"),))
    assert shown(capsys, answer)[-1] == "  [1] a.md"


def test_a_ranking_is_shown_as_a_table_and_an_empty_one_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    hit = Hit(id="c1", text="水泵 " * 40, score=0.5, rank=1, score_kind="cosine", source="zh.md")
    header, row = shown(capsys, Ranking.from_hits([hit], route="dense", score_kind="cosine"))
    assert header.split() == ["#", "SCORE", "DENSE", "SOURCE", "TEXT"]
    assert row.split()[:4] == ["1", "0.5000", "1", "zh.md"]
    assert row.endswith("…")
    assert shown(capsys, Ranking(hits=(), route="dense", score_kind="cosine")) == ["no hits"]


def test_a_ranking_of_many_hits_kinds_and_routes_stays_readable(capsys: pytest.CaptureFixture[str]) -> None:
    routes = {f"route{number}": RouteScore(rank=1, score=1, kind="rank") for number in range(7)}
    hits = [
        Hit(
            id=f"c{n}",
            text="text",
            score=1 / n,
            rank=n,
            score_kind="rank",
            scores=routes,
            kind="fact" if n % 2 else "chunk",
        )
        for n in range(1, 36)
    ]
    header, first, *rest = shown(capsys, Ranking(hits=tuple(hits), route="all", score_kind="rank"))
    assert header.split() == ["#", "SCORE", "KIND", "SOURCE", "TEXT"]
    assert first.split() == ["1", "1.0000", "fact", "c1", "text"]
    assert (len(rest), rest[-1]) == (30, "... and 5 more (all of them with --json)")


def test_an_index_report_names_failures_first_and_says_how_many_it_leaves_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    added = [SourceReport(source=f"{number}.md", status="added") for number in range(30)]
    failed = SourceReport(source="x.bin", status="failed", reason="It is a binary file.")
    report = IndexReport(knowledge_base="kb", generation=1, sources=(*added, failed), added=30, failed=1)
    lines = shown(capsys, report)
    assert lines[0].endswith("30 added, 0 updated, 0 unchanged, 0 deleted, 1 failed")
    assert lines[2] == "  failed    x.bin: It is a binary file."
    assert lines[-1] == "  ... and 11 more (all of them with --json)"


def test_an_index_report_tells_of_atoms_where_there_are_some(capsys: pytest.CaptureFixture[str]) -> None:
    report = IndexReport(knowledge_base="kb", generation=1, chunks_unchanged=3, atoms_added=2, atoms_unchanged=7)
    assert shown(capsys, report)[2:] == ["atoms: 2 added, 0 deleted, 7 unchanged"]


def test_an_index_report_names_sources_without_text_and_ends_with_the_notes(capsys: pytest.CaptureFixture[str]) -> None:
    blank = SourceReport(source="blank.md", status="unchanged", reason="it holds no text")
    added = [SourceReport(source=f"{number}.md", status="added") for number in range(30)]
    report = IndexReport(
        knowledge_base="kb", generation=1, sources=(*added, blank), added=30, unchanged=1, empty=1, notes=("One more.",)
    )
    lines = shown(capsys, report)
    assert lines[0].endswith("30 added, 0 updated, 1 unchanged, 0 deleted, 0 failed, 1 empty")
    assert lines[2] == "  unchanged blank.md: it holds no text"
    assert lines[-1] == "note: One more."


def test_a_run_that_wrote_reports_says_how_many_and_about_what_there_is_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    missing = tuple(MissingReport(community_id=f"k{n}", entities=("Osk", f"V{n}"), reason="no") for n in range(21))
    run = ReportRun(
        knowledge_base="kb", generation=3, communities=26, written=4, reused=1, missing=missing, notes=("a note",)
    )
    lines = shown(capsys, run)
    assert lines[:2] == [
        "knowledge base `kb`, generation 3: 26 communities; reports: 4 written, 1 unchanged, 0 outdated, 0 deleted",
        "  no report about Osk, V0: no",
    ]
    assert lines[-2:] == ["  ... and 1 more (all of them with --json)", "note: a note"]


def test_several_outputs_are_shown_by_name_and_anything_else_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, {"said": "yes", "times": [1, 2]}) == ["said:", "yes", "times:", "[", "  1,", "  2", "]"]


def test_a_scripted_model_answers_until_it_is_interrupted(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text('- {user: leave, reply: "28 days"}\n')
    command = [sys.executable, "-u", "-m", "ragbraid.flows.cli", "dev", "llm", "--rules", "rules.yaml", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split(" at ")[1].split(";")[0]
        body = {"model": "scripted", "messages": [{"role": "user", "content": "How much leave?"}]}
        answer = httpx.post(f"{address}/chat/completions", content=json.dumps(body)).json()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert answer["choices"][0]["message"]["content"] == "28 days"
    assert (process.returncode, errors) == (0, "")


def test_a_scripted_model_needs_something_to_say() -> None:
    result = CliRunner().invoke(app, ["dev", "llm"])
    assert result.exit_code == 2
    assert "give --rules or --replay" in result.stderr


def test_a_port_that_is_taken_and_rules_that_are_wrong_are_sentences(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("- {reply: x}\n")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        result = CliRunner().invoke(app, ["dev", "llm", "--rules", str(rules), "--port", port])
    assert (result.exit_code, result.stderr.startswith("error: ")) == (1, True)
    assert port in result.stderr
    rules.write_text("[" * 100_000)
    assert CliRunner().invoke(app, ["dev", "llm", "--rules", str(rules)]).stderr.startswith("error: ")
