from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from ragbraid.dsl.plan import Limits, Plan
from ragbraid.flows.limits import RunLimits
from ragbraid.flows.runner import RunResult
from ragbraid.flows.scheduler import run_plan
from ragbraid.registry.context import report_usage
from ragbraid.registry.contracts import Usage
from ragbraid.registry.errors import LimitError, RunError
from ragbraid.registry.node import node

CALL = Usage(llm_calls=1, prompt_tokens=60, completion_tokens=40)


@node("demo.ask")
async def ask(x: int = 0, *, calls: int = 1) -> int:
    """Call a model."""
    for _ in range(calls):
        report_usage(CALL)
    return x + 1


@node("demo.ask_in_thread", blocking=True)
def ask_in_thread(x: int = 0) -> int:
    """Call a model from a thread."""
    report_usage(CALL)
    return x + 1


@node("demo.stubborn")
async def stubborn(x: int = 0) -> int:
    """Call a model and take no no for an answer."""
    try:
        report_usage(CALL)
    except RunError:
        return -1
    return x + 1


@node("demo.hang")
async def hang(x: int = 0) -> int:
    """Never answer."""
    await asyncio.Event().wait()
    return x


@node("demo.protest")
async def protest() -> int:
    """Answer a cancellation with an error."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise ValueError("not now") from None
    return 0


@node("demo.block", blocking=True)
def block(until: Any) -> int:
    """Wait in a thread."""
    until()
    return 1


def run(plan: Plan, resources: Any) -> RunResult:
    return asyncio.run(run_plan(plan, {}, resources=resources))


def expect_limit(plan: Plan, resources: Any) -> LimitError:
    with pytest.raises(LimitError) as caught:
        run(plan, resources)
    return caught.value


def chain(plans: Any, function: Any, length: int, limits: Limits, **policy: Any) -> Plan:
    uses = {f"s{i}": plans.use(function, {"x": f"$s{i - 1}" if i else 0}, **policy) for i in range(length)}
    return plans.plan(uses, limits=limits, outputs={"first": "$s0", "last": f"$s{length - 1}"})


def test_a_run_within_its_limits_ends_as_usual_and_its_usage_is_added_up(plans, held):
    result = run(chain(plans, ask, 3, Limits(seconds=60, llm_calls=3, tokens=300)), held())
    assert result.outputs == {"first": 1, "last": 3}
    assert result.trace.usage == Usage(llm_calls=3, prompt_tokens=180, completion_tokens=120)


@pytest.mark.parametrize("function", [ask, ask_in_thread])
@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (Limits(llm_calls=2), "the run was ended at `s2`: it used 3 LLM calls, its limit is 2"),
        (Limits(tokens=299), "the run was ended at `s2`: it used 300 tokens, its limit is 299"),
    ],
)
def test_passing_a_limit_ends_the_run_naming_limit_and_step(plans, held, function, limits, words):
    error = expect_limit(chain(plans, function, 5, limits), held())
    assert (str(error), error.kind, error.step) == (words, "limit", "s2")
    assert [step.path for step in error.trace.steps] == ["s0", "s1", "s2"]
    assert error.trace.outputs == {"first": 1}
    assert error.trace.usage.llm_calls == 3


def test_a_limit_is_shared_by_branches(plans, held):
    uses = {f"b{i}": plans.use(ask, {"calls": 2}) for i in range(3)}
    error = expect_limit(plans.plan(uses, limits=Limits(llm_calls=5)), held())
    assert error.step == "b2"


@pytest.mark.parametrize("policy", [{"on_error": "skip"}, {}])
def test_neither_the_node_nor_its_policy_makes_up_for_a_limit(plans, held, policy):
    error = expect_limit(chain(plans, stubborn, 4, Limits(llm_calls=1), **policy), held())
    assert error.step == "s1"
    assert len(error.trace.steps) == 2


def test_the_time_limit_ends_a_step_that_hangs_and_keeps_what_was_done(plans, held):
    plan = plans.plan(
        {"a": plans.use(ask), "b": plans.use(hang, {"x": "$a"})},
        limits=Limits(seconds=0.05),
        outputs={"a": "$a", "b": "$b"},
    )
    error = expect_limit(plan, held())
    assert str(error) == "the run was ended while `b` was running: its limit of 0.05 seconds is used up"
    assert (error.step, error.trace.status, error.trace.outputs) == ("b", "failed", {"a": 1})
    assert {step.path: step.outcome for step in error.trace.steps} == {"a": "ok", "b": "failed"}


def test_the_time_limit_does_not_wait_for_a_blocking_step(plans, held):
    release = threading.Event()
    plan = plans.plan({"a": plans.use(block, {"until": lambda: release.wait(30)})}, limits=Limits(seconds=0.05))
    error = expect_limit(plan, held())
    assert not release.is_set()
    release.set()
    assert (error.step, error.trace.abandoned_calls) == ("a", 1)


def test_the_time_limit_stands_where_a_node_answers_with_an_error_of_its_own(plans, held):
    error = expect_limit(plans.plan({"a": plans.use(protest)}, limits=Limits(seconds=0.05)), held())
    assert "its limit of 0.05 seconds is used up" in str(error)


def test_threads_that_charge_at_once_are_all_counted():
    limits = RunLimits(Limits(llm_calls=8_000))

    def charge() -> None:
        for _ in range(1_000):
            limits.charge("s", CALL)

    threads = [threading.Thread(target=charge) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert limits.passed is None
    with pytest.raises(LimitError, match="it used 8,001 LLM calls"):
        limits.charge("s", CALL)
