from __future__ import annotations

import asyncio
import json
import pickle
from dataclasses import dataclass
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ragbraid.flows import secrets
from ragbraid.flows.scheduler import run_plan
from ragbraid.flows.trace import Trace, bounded, is_empty
from ragbraid.flows.trace_record import read_trace, record_of
from ragbraid.registry.context import report_usage
from ragbraid.registry.contracts import Answer, ChunkSet, Hit, Query, Ranking, Usage
from ragbraid.registry.errors import RunError, ServiceError, SettingsError
from ragbraid.registry.graph import SubGraph
from ragbraid.registry.node import node


@node("demo.give")
async def give(value: Any) -> Any:
    """Give the value."""
    return value


@node("demo.ask")
def ask(question: str, *, key: Any = None) -> Answer:
    """Answer with the help of something secret."""
    report_usage(Usage(llm_calls=1, prompt_tokens=10, completion_tokens=5))
    return Answer(text=f"about {question}")


@node("demo.fail")
def fail(value: Any) -> Any:
    """Fail."""
    raise ServiceError("the store is gone", kind="unavailable", hint="start it")


class Connection:
    def __init__(self) -> None:
        self.password = "hunter2"

    def __repr__(self) -> str:
        return f"Connection({self.password})"


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Pair:
    left: int
    right: Any


def run(plan: Any, resources: Any, **inputs: Any) -> Any:
    return asyncio.run(run_plan(plan, inputs, resources=resources))


def hit(identifier: str = "h", **fields: Any) -> Hit:
    return Hit(id=identifier, text="t", score=0.5, rank=1, score_kind="rank", **fields)


def test_a_trace_holds_every_step_in_the_order_of_their_starts(plans, held):
    plan = plans.plan(
        {"a": plans.use(ask, {"question": "$q"}), "b": plans.use(give, {"value": "$a.text"})}, inputs={"q": str}
    )
    found = run(plan, held(), q="tea").trace.to_dict()
    assert json.loads(json.dumps(found)) == found
    assert (found["flow"], found["plan"], found["status"], found["error"]) == ("by_hand", "0" * 64, "ok", None)
    assert (found["inputs"], found["outputs"]) == ({"q": "tea"}, {"": "about tea"})
    assert found["usage"] == {"llm_calls": 1, "prompt_tokens": 10, "completion_tokens": 5}
    first, second = found["steps"]
    assert (first["path"], first["node"], first["status"], first["attempts"]) == ("a", "demo.ask@1", "ok", 1)
    assert (first["inputs"], first["output"]["text"]) == ({"question": "tea"}, "about tea")
    assert first["usage"]["llm_calls"] == 1
    assert 0 <= first["started"] <= first["ended"] <= second["started"] <= second["ended"] <= found["seconds"]


def test_a_written_trace_reads_back_with_the_drawing_of_its_flow(plans, held, tmp_path):
    plan = plans.plan({"a": plans.use(ask, {"question": "$q"})}, inputs={"q": str})
    trace = run(plan, held(), q="tea").trace
    trace.write(tmp_path / "t.json")
    record = read_trace(tmp_path / "t.json")
    assert record == record_of(trace)
    assert record.steps[0].output["text"] == "about tea"
    assert record.drawing is not None
    assert [(box.id, box.small) for box in record.drawing.boxes] == [("q", ""), ("a", "demo.ask"), ("", "")]


def test_a_failed_run_has_a_trace_with_its_error(plans, held):
    plan = plans.plan({"a": plans.use(give, {"value": 1}), "b": plans.use(fail, {"value": "$a"})})
    with pytest.raises(ServiceError) as caught:
        run(plan, held())
    found = caught.value.trace.to_dict()
    error = {
        "class": "ServiceError",
        "kind": "unavailable",
        "step": "b",
        "message": "the store is gone",
        "hint": "start it",
    }
    assert (found["status"], found["error"], found["steps"][1]["error"]) == ("failed", error, error)
    assert [step["status"] for step in found["steps"]] == ["ok", "failed"]


@pytest.mark.parametrize(
    ("value", "empty"),
    [
        (None, True),
        ("", True),
        ([], True),
        ({}, True),
        (Ranking(), True),
        (ChunkSet(), True),
        (Answer(text="I do not know", refused=True), True),
        (Answer(text=""), False),
        (0, False),
        (False, False),
        ("x", False),
        (Query(text=""), False),
        (np.zeros((0, 3)), True),
        (np.float32(0), False),
    ],
)
def test_an_output_is_empty_when_it_holds_nothing(plans, held, value, empty):
    assert is_empty(value) is empty
    trace = run(plans.plan({"s": plans.use(give, {"value": value})}), held()).trace
    assert trace.step("s").outcome == ("empty" if empty else "ok")


@pytest.mark.parametrize(
    "output",
    [
        Ranking.from_hits([hit()], route="r", score_kind="rank").model_copy(update={"degraded": True}),
        SubGraph(degraded=True, error="the model failed"),
    ],
    ids=["ranking", "sub-graph"],
)
def test_an_output_that_says_it_is_degraded_makes_a_degraded_step(plans, held, output):
    trace = run(plans.plan({"s": plans.use(give, {"value": output})}), held()).trace
    assert trace.step("s").outcome == "degraded"


def test_texts_and_lists_are_cut_with_a_count():
    assert bounded("x" * 2_000) == "x" * 2_000
    assert bounded("x" * 3_234) == "x" * 2_000 + "… (1,234 more characters)"
    assert bounded(list(range(20))) == list(range(20))
    assert bounded(list(range(31))) == [*range(20), "… (11 more)"]
    assert bounded({str(number): number for number in range(25)})["…"] == "(5 more)"


def test_anything_has_a_bounded_form_in_json():
    nest: list[Any] = []
    for _ in range(50):
        nest = [nest]
    values = [hit(section_path=("a",)), Pair(1, (2,)), Colour.RED, date(2024, 5, 1), Path("a/b"), b"abc", {1, 2},
              float("inf"), np.zeros((3, 4)), Connection(), nest]  # fmt: skip
    found = bounded(values)
    assert found[0]["section_path"] == ["a"]
    assert found[1] == {"left": 1, "right": [2]}
    assert found[3:10] == ["2024-05-01", "a/b", "<3 bytes>", [1, 2], "inf", "<ndarray (3, 4)>", "<Connection>"]
    json.dumps(found, allow_nan=False)


def test_resources_never_reach_the_trace(plans, held):
    use = plans.use(ask, {"question": "tea"}, resources={"key": "llm"})
    trace = run(plans.plan({"s": use}, roles={"llm": "llm"}), held({"llm": Connection()})).trace
    assert "hunter2" not in json.dumps(trace.to_dict())
    assert "key" not in trace.step("s").inputs


def test_a_trace_is_written_as_json(plans, held, tmp_path):
    trace = run(plans.plan({"s": plans.use(give, {"value": "茶"})}), held()).trace
    trace.write(tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text(encoding="utf-8")) == trace.to_dict()
    assert "茶" in (tmp_path / "trace.json").read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


def test_a_trace_that_cannot_be_written_is_one_sentence(tmp_path):
    with pytest.raises(SettingsError, match="the trace cannot be written to .*trace.json: No such file or directory"):
        Trace().write(tmp_path / "missing" / "trace.json")


def test_the_trace_of_an_error_survives_pickling_whatever_the_steps_held(plans, held):
    plan = plans.plan({"a": plans.use(give, {"value": "$c"}), "b": plans.use(fail, {"value": "$a"})}, inputs={"c": Any})
    with pytest.raises(RunError) as caught:
        run(plan, held(), c=lambda: None)
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.trace.to_dict() == caught.value.trace.to_dict()
    assert again.trace.status == "failed"


def test_a_step_that_was_not_started_has_no_entry(plans, held):
    trace = run(plans.plan({"s": plans.use(give, {"value": 1})}), held()).trace
    with pytest.raises(KeyError):
        trace.step("t")


def test_a_secret_that_a_service_echoed_is_not_in_the_trace(plans, held, monkeypatch):
    monkeypatch.setattr("ragbraid.flows.secrets._redactor", type(secrets._redactor)())
    secrets.hide("sk-very-secret-value", "${env.KEY}")
    trace = run(plans.plan({"s": plans.use(give, {"value": "refused: sk-very-secret-value"})}), held()).trace
    assert trace.to_dict()["steps"][0]["output"] == "refused: ${env.KEY}"
