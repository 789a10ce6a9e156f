from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from ragbraid.dsl.plan import Computed, Literally, Plan, Retry, SlotRef, Step
from ragbraid.flows.runner import RunEvent, RunResult
from ragbraid.flows.scheduler import run_plan
from ragbraid.flows.trace import Trace
from ragbraid.registry.context import report_degraded, report_note, report_progress
from ragbraid.registry.contracts import Ranking
from ragbraid.registry.errors import NodeOutputError, RunError, ServiceError, SettingsError
from ragbraid.registry.node import node


@node("demo.give")
async def give(value: Any) -> Any:
    """Give the value, calling it where it is a function."""
    result = value() if callable(value) else value
    return await result if asyncio.iscoroutine(result) else result


@node("demo.block", blocking=True)
def block(does: Any) -> Any:
    """Give what the function gives, in a thread."""
    return does()


@node("demo.nap")
def nap(seconds: float) -> str:
    """Sleep, on the loop unless told otherwise."""
    time.sleep(seconds)
    return "rested"


@node("demo.text")
def text(value: str | None = None) -> str:
    """Say what arrived."""
    return f"got {value}"


def run(plan: Plan, resources: Any, inputs: Mapping[str, Any] | None = None, **options: Any) -> RunResult:
    return asyncio.run(run_plan(plan, inputs or {}, resources=resources, **options))


def fails(*errors: Exception, then: Any = "done") -> Callable[[], Any]:
    """Return a function that raises these errors, one a call, and then gives a value."""
    left = list(errors)

    def call() -> Any:
        if left:
            raise left.pop(0)
        return then

    return call


def busy() -> ServiceError:
    return ServiceError("the model is busy", kind="rate_limit")


# -- when --------------------------------------------------------------------------------------------------------------


def test_a_step_whose_condition_is_false_is_skipped_and_gives_none(plans, held):
    plan = plans.plan(
        {
            "maybe": plans.use(give, {"value": "x"}, when=SlotRef(0, 0, (), "$wanted")),
            "end": plans.use(text, {"value": "$maybe"}),
        },
        inputs={"wanted": bool},
    )
    assert run(plan, held(), {"wanted": True}).outputs == "got x"
    skipped = run(plan, held(), {"wanted": False})
    assert skipped.outputs == "got None"
    entry = skipped.trace.step("maybe")
    assert (entry.outcome, entry.attempts, entry.output) == ("skipped", 0, None)


def test_a_condition_that_cannot_be_computed_fails_the_step(plans, held):
    broken = Computed("${ 1 / 0 }", (), lambda: 1 / 0)
    with pytest.raises(RunError, match=r"`\$\{ 1 / 0 \}` cannot be computed") as caught:
        run(plans.plan({"s": plans.use(give, {"value": 1}, when=broken)}), held())
    assert caught.value.step == "s"


# -- retry -------------------------------------------------------------------------------------------------------------


def test_a_retry_tries_again_and_the_trace_says_why(plans, held):
    plan = plans.plan({"s": plans.use(give, {"value": fails(busy(), busy())}, retry=Retry(attempts=3))})
    result = run(plan, held())
    entry = result.trace.step("s")
    assert (result.outputs, entry.attempts, entry.outcome) == ("done", 3, "ok")
    assert entry.notes == [
        "attempt 1 of 3 failed (rate_limit): the model is busy",
        "attempt 2 of 3 failed (rate_limit): the model is busy",
    ]


def test_a_retry_that_never_succeeds_raises_the_last_error(plans, held):
    plan = plans.plan(
        {"s": plans.use(give, {"value": fails(busy(), busy(), busy())}, retry=Retry(attempts=2))},
    )
    with pytest.raises(ServiceError, match="the model is busy") as caught:
        run(plan, held())
    assert caught.value.trace.step("s").attempts == 2


@pytest.mark.parametrize(
    "error", [ServiceError("wrong key", kind="auth"), ValueError("a bug"), SettingsError("wrong profile")]
)
def test_a_failure_of_another_kind_is_not_tried_again(plans, held, error):
    plan = plans.plan({"s": plans.use(give, {"value": fails(error)}, retry=Retry(attempts=3))})
    with pytest.raises((RunError, SettingsError)) as caught:
        run(plan, held())
    assert caught.value.trace.step("s").attempts == 1


def test_delays_grow_by_the_backoff(plans, held, monkeypatch):
    slept: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await real(0)

    monkeypatch.setattr("ragbraid.flows.policies.asyncio.sleep", sleep)
    retry = Retry(attempts=4, delay=0.5, backoff=3.0)
    plan = plans.plan({"s": plans.use(give, {"value": fails(busy(), busy(), busy())}, retry=retry)})
    assert run(plan, held()).outputs == "done"
    assert slept == [0.5, 1.5, 4.5]


def test_what_a_failed_attempt_reported_does_not_stick_to_the_next_one(plans, held):
    calls: list[int] = []

    def second_is_fine() -> str:
        calls.append(1)
        if len(calls) == 1:
            report_degraded("half of it")
            raise busy()
        return "fine"

    plan = plans.plan({"s": plans.use(give, {"value": second_is_fine}, retry=Retry(attempts=2))})
    assert run(plan, held()).trace.step("s").outcome == "ok"


# -- timeout -----------------------------------------------------------------------------------------------------------


def test_a_node_that_takes_too_long_fails_with_kind_timeout(plans, held):
    forever = {"value": lambda: asyncio.Event().wait()}
    with pytest.raises(RunError, match=r"`s` did not finish within 0\.05 s") as caught:
        run(plans.plan({"s": plans.use(give, forever, timeout_seconds=0.05)}), held())
    assert (caught.value.kind, caught.value.step) == ("timeout", "s")


def test_every_attempt_has_the_whole_timeout(plans, held):
    calls: list[int] = []

    async def second_answers() -> str:
        calls.append(1)
        if len(calls) == 1:
            await asyncio.Event().wait()
        return "done"

    use = plans.use(give, {"value": second_answers}, timeout_seconds=0.2, retry=Retry(attempts=2))
    result = run(plans.plan({"s": use}), held())
    assert (result.outputs, result.trace.step("s").attempts) == ("done", 2)


def test_a_timeout_error_of_the_node_itself_is_a_plain_failure(plans, held):
    plan = plans.plan({"s": plans.use(give, {"value": fails(TimeoutError("socket"))}, timeout_seconds=30)})
    with pytest.raises(RunError, match="`s` failed with TimeoutError: socket") as caught:
        run(plan, held())
    assert caught.value.kind == "failed"


def test_a_blocking_call_that_takes_too_long_is_left_behind_and_counted(plans, held):
    release, ended = threading.Event(), threading.Event()
    results: list[str] = []

    def hang() -> str:
        release.wait(30)
        results.append("late")
        ended.set()
        return "late"

    plan = plans.plan(
        {
            "slow": plans.use(block, {"does": hang}, timeout_seconds=0.05, on_error="skip"),
            "end": plans.use(text, {"value": "$slow"}),
        }
    )
    result = run(plan, held())
    assert (result.outputs, results) == ("got None", [])
    release.set()
    assert ended.wait(30)
    assert result.trace.abandoned_calls == 1
    assert result.trace.step("slow").output is None
    assert result.trace.step("slow").to_dict()["error"]["kind"] == "timeout"


def test_a_blocking_call_that_was_left_behind_ends_at_its_next_report(plans, held):
    release, ended = threading.Event(), threading.Event()
    caught: list[RunError] = []

    def report_late() -> str:
        release.wait(30)
        try:
            report_progress("files", 1, 2)
        except RunError as error:
            caught.append(error)
        ended.set()
        return "late"

    plan = plans.plan({"s": plans.use(block, {"does": report_late}, timeout_seconds=0.05, on_error="skip")})
    run(plan, held())
    release.set()
    assert ended.wait(30)
    assert [error.kind for error in caught] == ["cancelled"]


def test_many_calls_that_never_return_do_not_use_up_the_threads(plans, held):
    release = threading.Event()
    hang = plans.use(block, {"does": lambda: release.wait(60)}, timeout_seconds=0.05, on_error="skip")
    plan = plans.plan({f"s{i}": hang for i in range(70)})
    result = run(plan, held())
    assert run(plans.plan({"s": plans.use(block, {"does": lambda: "free"})}), held()).outputs == "free"
    release.set()
    assert {step.outcome for step in result.trace.steps} == {"failed"}


def test_a_computing_function_with_a_timeout_does_not_hold_up_the_loop(plans, held):
    plan = plans.plan({"s": plans.use(nap, {"seconds": 0.5}, timeout_seconds=0.02)})
    with pytest.raises(RunError, match="did not finish within"):
        run(plan, held())


def test_a_node_in_a_thread_that_raises_stop_iteration_fails_like_any_other(plans, held):
    with pytest.raises(RunError, match="StopIteration"):
        run(plans.plan({"s": plans.use(block, {"does": lambda: next(iter(()))})}), held())


# -- on_error ----------------------------------------------------------------------------------------------------------


def test_a_step_that_may_fail_gives_none_and_the_trace_keeps_its_error(plans, held):
    plan = plans.plan(
        {
            "s": plans.use(give, {"value": fails(ValueError("no"))}, on_error="skip"),
            "end": plans.use(text, {"value": "$s"}),
        }
    )
    result = run(plan, held())
    entry = result.trace.step("s")
    assert (result.outputs, result.trace.status, entry.outcome) == ("got None", "ok", "failed")
    assert str(entry.error) == "`s` failed with ValueError: no"


def test_an_empty_output_in_the_place_of_a_failed_step_says_why_it_is_empty(plans, held):
    gone = ServiceError("The service is down.", kind="unavailable")
    plan = plans.plan({"s": plans.use(give, {"value": fails(gone)}, on_error="empty", output=Ranking)})
    result = run(plan, held())
    assert (result.outputs, result.trace.status) == (Ranking(degraded=True, error="The service is down."), "ok")
    assert result.trace.step("s").outcome == "failed"


def test_a_value_that_breaks_the_port_of_a_step_that_may_fail_is_skipped_too(plans, held):
    plan = plans.plan({"s": plans.use(text, {"value": "$x"}, on_error="skip")}, inputs={"x": Any})
    assert run(plan, held(), {"x": 5}).outputs is None


def replacement(plans: Any, function: Any, ports: Mapping[str, Any], inputs: tuple[str, ...], **policy: Any) -> Step:
    step = plans.body({"spare": plans.use(function, ports, **policy)}, inputs).steps[0]
    return replace(step, path="s.on_error")


def test_a_replacement_runs_in_the_same_scope_and_its_output_goes_on(plans, held):
    spare = replacement(plans, text, {"value": "$q"}, ("q",))
    plan = plans.plan(
        {
            "s": plans.use(give, {"value": fails(ValueError("no"))}, on_error=spare),
            "end": plans.use(text, {"value": "$s"}),
        },
        inputs={"q": str},
    )
    result = run(plan, held(), {"q": "spare"})
    assert result.outputs == "got got spare"
    assert [(step.path, step.outcome) for step in result.trace.steps] == [
        ("s", "failed"),
        ("s.on_error", "ok"),
        ("end", "ok"),
    ]


def test_a_replacement_that_fails_fails_the_run_with_its_own_error(plans, held):
    spare = replacement(plans, give, {"value": fails(ValueError("neither"))}, ())
    with pytest.raises(RunError, match="`s.on_error` failed with ValueError: neither"):
        run(plans.plan({"s": plans.use(give, {"value": fails(ValueError("no"))}, on_error=spare)}), held())


# -- ensure ------------------------------------------------------------------------------------------------------------


def at_least(least: int) -> Computed:
    return Computed("${ out >= least }", (("least", SlotRef(0, 0, (), "least")),), lambda out, least: out >= least)


def test_a_post_condition_that_does_not_hold_is_a_contract_failure(plans, held):
    plan = plans.plan({"s": plans.use(give, {"value": 3}, ensure=at_least(3))}, inputs={"least": int})
    assert run(plan, held(), {"least": 3}).outputs == 3
    with pytest.raises(NodeOutputError) as caught:
        run(plan, held(), {"least": 4})
    assert str(caught.value) == "what `s` gave does not keep `ensure: ${ out >= least }`"
    assert (caught.value.kind, caught.value.step) == ("contract", "s")
    assert caught.value.trace.step("s").output == 3


# -- what nodes report -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [give, block])
def test_notes_progress_and_degradation_reach_trace_and_listener(plans, held, function):
    events: list[RunEvent] = []
    threads: list[int] = []

    def listen(event: RunEvent) -> None:
        events.append(event)
        threads.append(threading.get_ident())

    def report() -> str:
        report_progress("files", 1, 4)
        report_note("one of them was empty")
        report_degraded("only half was read")
        return "half"

    port = {"value": report} if function is give else {"does": report}
    trace = Trace()
    run(plans.plan({"s": plans.use(function, port)}), held(), listener=listen, trace=trace)
    entry = trace.step("s")
    assert (entry.outcome, entry.notes) == ("degraded", ["one of them was empty", "only half was read"])
    progress = next(event for event in events if event.kind == "progress")
    assert (progress.path, progress.label, progress.done, progress.total) == ("s", "files", 1, 4)
    assert [event.kind for event in events] == ["started", "progress", "finished"]
    assert set(threads) == {threading.get_ident()}


def test_reports_of_branches_that_run_at_once_go_to_their_own_steps(plans, held):
    async def main() -> Trace:
        both = asyncio.Barrier(2)

        def noting(name: str) -> Callable[[], Any]:
            async def note() -> str:
                await both.wait()
                report_note(f"from {name}")
                return name

            return note

        uses = {name: plans.use(give, {"value": noting(name)}) for name in ("a", "b")}
        return (await run_plan(plans.plan(uses), {}, resources=held())).trace

    trace = asyncio.run(main())
    assert {step.path: step.notes for step in trace.steps} == {"a": ["from a"], "b": ["from b"]}


def test_literal_false_skips_like_a_computed_false(plans, held):
    assert run(plans.plan({"s": plans.use(give, {"value": 1}, when=Literally(False))}), held()).outputs is None
