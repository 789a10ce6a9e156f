from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import ragbraid
from ragbraid.flows.evaluate import FlowResult, evaluate_flow, percentile
from ragbraid.flows.questions import Question, read_questions
from ragbraid.registry.errors import SettingsError

NODES = '''
from ragbraid.registry.context import report_usage
from ragbraid.registry.contracts import Answer, Hit, Ranking, Usage
from ragbraid.registry.errors import ServiceError
from ragbraid.registry.node import node

FOUND = {"leave?": ["x", "r1"], "hotel?": ["r2", "x"], "moon?": []}
SAID = {"leave?": "Thirty days. [1]", "hotel?": "160 EUR"}


@node("table.search", example="search: {use: table.search, question: $question}")
def search(question: str) -> Ranking:
    """Look a question up.

    Args:
        question: the question.
    """
    if question == "down?":
        report_usage(Usage(llm_calls=1, prompt_tokens=7))
        raise ServiceError("the table is being cleaned")
    hits = tuple(
        Hit(id=name, text=name, score=1 / rank, rank=rank, score_kind="rank")
        for rank, name in enumerate(FOUND[question], start=1)
    )
    return Ranking(hits=hits, route="table", score_kind="rank")


@node("table.answer", example="answer: {use: table.answer, hits: $hits, question: $question}")
def answer(hits: Ranking, question: str) -> Answer:
    """Answer from the table.

    Args:
        hits: what was found.
        question: the question.
    """
    report_usage(Usage(llm_calls=1, prompt_tokens=10, completion_tokens=2))
    if not hits.hits:
        return Answer(text="I do not know.", refused=True)
    return Answer(text=SAID[question])
'''
FLOW = """
ragbraid: 1
name: table
inputs: {question: str}
nodes:
  search: table.search
  answer: table.answer
flow: search -> answer
outputs: $answer
"""
QUESTIONS = [
    Question(id="1", question="leave?", answers=("30 days", "thirty days"), gold_passage_ids=("r1",)),
    Question(id="2", question="hotel?", answers=("160 EUR",), gold_passage_ids=("r2", "r3")),
    Question(id="3", question="moon?", type="unanswerable"),
    Question(id="4", question="down?", answers=("never",), gold_passage_ids=("r1",)),
]


@pytest.fixture
def flow(tmp_path: Path) -> ragbraid.Flow:
    (tmp_path / "table_nodes.py").write_text(NODES)
    (tmp_path / "ragbraid.toml").write_text('nodes = ["table_nodes.py"]\n')
    (tmp_path / "table.yaml").write_text(FLOW)
    return ragbraid.load(tmp_path / "table.yaml")


def evaluate(flow: ragbraid.Flow, **options: Any) -> FlowResult:
    return asyncio.run(evaluate_flow(flow, QUESTIONS, **options))


def test_a_flow_is_measured_over_the_questions_that_define_a_metric(flow: ragbraid.Flow) -> None:
    result = evaluate(flow)
    recall = result.metric("recall@5")
    # found 1 of 1 and 1 of 2; the third question has no gold, the fourth failed
    assert (recall.value, recall.n, recall.n_undefined, recall.n_error) == (0.75, 2, 1, 1)
    assert result.metric("mrr@10").value == 0.75
    assert result.metric("all_gold@5").value == 0.5
    em = result.metric("em")
    assert (em.value, em.n, em.n_undefined, em.n_error) == (1.0, 2, 1, 1)


def test_refusals_are_counted_apart_where_a_question_has_no_answer(flow: ragbraid.Flow) -> None:
    result = evaluate(flow)
    assert (result.metric("refused").value, result.metric("refused").n) == (0.0, 2)
    assert (result.metric("refused_unanswerable").value, result.metric("refused_unanswerable").n) == (1.0, 1)


def test_a_failed_question_is_told_and_stops_no_other(flow: ragbraid.Flow) -> None:
    done: list[int] = []
    result = evaluate(flow, concurrency=4, on_done=lambda: done.append(1))
    assert [entry.error for entry in result.results] == [None, None, None, "the table is being cleaned"]
    assert [entry.id for entry in result.results] == ["1", "2", "3", "4"]
    assert result.summary()["failed"] == 1
    assert len(done) == 4


def test_what_was_used_is_summed_over_all_questions_failed_ones_included(flow: ragbraid.Flow) -> None:
    usage = evaluate(flow).usage
    assert (usage.llm_calls, usage.prompt_tokens, usage.completion_tokens) == (4, 37, 6)


def test_a_summary_leaves_out_what_is_undefined_everywhere(flow: ragbraid.Flow) -> None:
    result = asyncio.run(evaluate_flow(flow, [Question(id="1", question="leave?")]))
    assert set(result.summary()["metrics"]) == {"refused"}


def test_a_flow_without_a_question_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(
        "ragbraid: 1\nname: f\ninputs: {path: str}\nnodes: {load: {use: load.files, path: $path}}\noutputs: $load\n"
    )
    with pytest.raises(SettingsError, match="has no input `question`"):
        asyncio.run(evaluate_flow(ragbraid.load(tmp_path / "f.yaml"), QUESTIONS))


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([], 0.5, None), ([3.0], 0.5, 3.0), ([1.0, 2.0, 3.0, 4.0], 0.5, 2.0), (list(range(1, 21)), 0.95, 19)],
)
def test_percentiles_are_by_nearest_rank(values: list[float], share: float, expected: float | None) -> None:
    assert percentile(values, share) == expected


def write_lines(path: Path, *lines: str) -> Path:
    text = "\n".join(lines) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["q.jsonl", "q.jsonl.gz"])
def test_questions_are_read_with_what_is_unknown_left_aside(tmp_path: Path, name: str) -> None:
    # U+2028 is a line break to Python and a plain character to JSON.
    line = json.dumps({"id": 7, "question": "where\u2028now?", "answers": ["a"], "meta": {"x": 1}}, ensure_ascii=False)
    read = read_questions(write_lines(tmp_path / name, line, "", '{"id": "b", "question": "who?"}'))
    assert [(q.id, q.question, q.answers) for q in read] == [("7", "where\u2028now?", ("a",)), ("b", "who?", ())]


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (["{"], "q.jsonl:1: this is no JSON"),
        (['{"id": "a"}'], "q.jsonl:1: `question` is wrong: Field required"),
        (['{"id": "a", "question": ""}'], "q.jsonl:1: `question` is wrong"),
        (['{"id": "a", "question": "x", "answers": "y"}'], "q.jsonl:1: `answers` is wrong"),
        (['{"id": "a", "question": "x"}', '{"id": "a", "question": "y"}'], "the id `a` stands in line 1 already"),
        (["[" * 100_000], "q.jsonl:1: this is nested too deeply"),
        (["", ""], "holds no questions"),
    ],
)
def test_a_wrong_question_is_named_by_its_line(tmp_path: Path, lines: list[str], sentence: str) -> None:
    path = write_lines(tmp_path / "q.jsonl", *lines)
    with pytest.raises(SettingsError) as caught:
        read_questions(path)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("gone.jsonl", None, "No such file"),
        ("q.jsonl", b"\xff\xfe", "it is not UTF-8: byte 0xff at 0"),
        ("q.jsonl.gz", b"plain", "Not a gzipped file"),
        ("q.jsonl.gz", gzip.compress(b'{"id": "1"}' * 99, mtime=0)[:-12], "its gzip data is damaged"),
    ],
)
def test_a_questions_file_that_cannot_be_read_is_a_sentence(
    tmp_path: Path, name: str, content: bytes | None, sentence: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(SettingsError) as caught:
        read_questions(tmp_path / name)
    assert sentence in str(caught.value)
