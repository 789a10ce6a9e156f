from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ragbraid.dsl.plan import Plan
from ragbraid.flows.runner import RunResult
from ragbraid.flows.scheduler import run_plan
from ragbraid.flows.trace import Trace
from ragbraid.registry.contracts import FanIn
from ragbraid.registry.errors import RunError, ServiceError
from ragbraid.registry.node import node


@node("demo.add")
def add(x: int, y: int = 1) -> int:
    """Add."""
    return x + y


@node("demo.act")
async def act(does: Any, x: int = 0) -> int:
    """Do what the test says and return x."""
    await does()
    return x


@node("demo.total")
def total(parts: FanIn[int]) -> int:
    """Add what arrives."""
    assert isinstance(parts, FanIn)
    return sum(parts.values())


@node("demo.nap")
def nap(x: int) -> int:
    """Hold up the loop for longer than a worker's turn."""
    time.sleep(0.03)
    return x


def run(plan: Plan, resources: Any, inputs: Mapping[str, Any] | None = None, **options: Any) -> RunResult:
    return asyncio.run(run_plan(plan, inputs or {}, resources=resources, **options))


def expect_failure(plan: Plan, resources: Any, kind: type[BaseException] = RunError, **options: Any) -> Any:
    with pytest.raises(kind) as caught:
        run(plan, resources, **options)
    return caught.value


# -- failures ----------------------------------------------------------------------------------------------------------


async def fail_with(error: Exception) -> None:
    raise error


def test_a_foreign_exception_becomes_a_run_error_that_names_step_and_class(plans, held):
    plan = plans.plan({"s": plans.use(act, {"does": lambda: fail_with(ValueError("too odd"))})})
    error = expect_failure(plan, held())
    assert (str(error), error.kind, error.step) == ("`s` failed with ValueError: too odd", "failed", "s")
    assert isinstance(error.__cause__, ValueError)
    assert error.trace.step("s").outcome == "failed"
    assert error.trace.status == "failed"


def test_an_error_of_ours_keeps_its_class_and_kind(plans, held):
    service = ServiceError("the model is busy", kind="rate_limit")
    error = expect_failure(plans.plan({"s": plans.use(act, {"does": lambda: fail_with(service)})}), held())
    assert error is service
    assert (error.kind, error.step) == ("rate_limit", "s")


@pytest.mark.parametrize("order", [("fails", "hangs"), ("hangs", "fails")])
@pytest.mark.parametrize("rooted", [True, False])
def test_a_failure_cancels_its_siblings_and_waits_for_them(plans, held, order, rooted):
    seen: list[str] = []

    async def main() -> tuple[Any, int, int]:
        hanging = asyncio.Event()

        async def hang() -> None:
            hanging.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                seen.append("cleaned up")

        async def fail() -> None:
            await hanging.wait()
            raise ValueError("no")

        ports = {"fails": {"does": fail}, "hangs": {"does": hang}}
        after = () if rooted else ("root",)
        uses = {name: plans.use(act, ports[name], after=after) for name in order}
        root = {} if rooted else {"root": plans.use(add, {"x": 1})}
        parts = {"parts": {"fails": "$fails", "hangs": "$hangs"}}
        plan = plans.plan({**root, **uses, "sum": plans.use(total, parts)})
        with pytest.raises(RunError, match="`fails` failed with ValueError: no") as caught:
            await run_plan(plan, {}, resources=held())
        task = asyncio.current_task()
        assert task is not None
        await asyncio.sleep(0)  # a cancellation that was ours must not be left over
        return caught.value, len(asyncio.all_tasks()), task.cancelling()

    error, tasks, cancelling = asyncio.run(main())
    assert (seen, tasks, cancelling) == (["cleaned up"], 1, 0)
    assert {step.path: step.outcome for step in error.trace.steps if step.path != "root"} == {
        "fails": "failed",
        "hangs": "failed",
    }
    assert error.trace.step("hangs").error.kind == "cancelled"


def test_a_failure_while_many_tasks_wait_leaves_nothing_behind(plans, held):
    async def main() -> int:
        async def fail() -> None:
            await asyncio.sleep(0)
            raise ValueError("no")

        uses = {f"w{i}": plans.use(act, {"does": asyncio.Event().wait}, after=("root",)) for i in range(20)}
        uses["bad"] = plans.use(act, {"does": fail}, after=("root",))
        plan = plans.plan({"root": plans.use(add, {"x": 1}), **uses})
        with pytest.raises(RunError):
            await run_plan(plan, {}, resources=held())
        return len(asyncio.all_tasks())

    assert asyncio.run(main()) == 1


def test_a_node_that_awaited_something_cancelled_fails_and_does_not_cancel_the_run(plans, held):
    async def cancelled_inside() -> None:
        raise asyncio.CancelledError

    error = expect_failure(plans.plan({"s": plans.use(act, {"does": cancelled_inside})}), held())
    assert (error.kind, error.step, error.trace.status) == ("cancelled", "s", "failed")


# -- cancellation ------------------------------------------------------------------------------------------------------


def test_cancelling_a_run_stops_all_that_it_started_and_the_trace_says_so(plans, held):
    trace = Trace()

    async def main() -> int:
        started = asyncio.Barrier(3)

        async def hang() -> None:
            await started.wait()
            await asyncio.Event().wait()

        uses = {name: plans.use(act, {"does": hang}) for name in ("a", "b")}
        plan = plans.plan({**uses, "c": plans.use(add, {"x": "$a"})})
        task = asyncio.create_task(run_plan(plan, {}, resources=held(), trace=trace))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return len(asyncio.all_tasks())

    assert asyncio.run(main()) == 1
    assert trace.status == "cancelled"
    assert {step.path: step.outcome for step in trace.steps} == {"a": "failed", "b": "failed"}
    assert trace.to_dict()["steps"][0]["error"]["kind"] == "cancelled"


def test_ctrl_c_ends_the_run_and_the_trace_says_cancelled(plans, held):
    trace = Trace()

    async def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    plan = plans.plan({"a": plans.use(act, {"does": interrupt})})
    with pytest.raises(KeyboardInterrupt):
        run(plan, held(), trace=trace)
    assert trace.status == "cancelled"


def test_a_long_run_of_computing_steps_lets_others_have_a_turn(plans, held):
    async def main() -> bool:
        uses = {f"s{i}": plans.use(nap, {"x": f"$s{i - 1}" if i else 0}) for i in range(5)}
        task = asyncio.create_task(run_plan(plans.plan(uses), {}, resources=held()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return task.cancelled()

    assert asyncio.run(main())


# -- any graph ---------------------------------------------------------------------------------------------------------


@node("demo.sync")
def sync_sum(parts: FanIn[int], *, fails: bool = False) -> int:
    """Add one to the sum, at once."""
    if fails:
        raise ValueError("as told")
    return sum(parts.values()) + 1


@node("demo.async")
async def async_sum(parts: FanIn[int], *, turns: int = 0, fails: bool = False) -> int:
    """Add one to the sum after some turns of the loop."""
    for _ in range(turns):
        await asyncio.sleep(0)
    if fails:
        raise ValueError("as told")
    return sum(parts.values()) + 1


@node("demo.thread_sum", blocking=True)
def thread_sum(parts: FanIn[int], *, fails: bool = False) -> int:
    """Add one to the sum in a thread."""
    if fails:
        raise ValueError("as told")
    return sum(parts.values()) + 1


@st.composite
def graphs(draw: st.DrawFn) -> list[tuple[str, list[int], int, bool]]:
    """Kind, upstream nodes, turns and whether it fails, node by node in an order that can run."""
    graph = []
    for number in range(draw(st.integers(1, 10))):
        upstream = draw(st.lists(st.integers(0, number - 1), unique=True, max_size=3)) if number else []
        kind = draw(st.sampled_from(["sync", "async", "async", "thread"]))
        graph.append((kind, upstream, draw(st.integers(0, 3)), draw(st.integers(0, 12)) == 0))
    return graph


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graphs())
def test_any_graph_gives_what_it_gives_one_after_another_or_fails_and_leaves_nothing(plans, held, graph):
    uses, expected = {}, {}
    for number, (kind, upstream, turns, fails) in enumerate(graph):
        ports: dict[str, Any] = {"parts": {f"s{other}": f"$s{other}" for other in upstream}, "fails": fails}
        function = {"sync": sync_sum, "async": async_sum, "thread": thread_sum}[kind]
        if kind == "async":
            ports["turns"] = turns
        uses[f"s{number}"] = plans.use(function, ports)
        expected[f"s{number}"] = 1 + sum(expected[f"s{other}"] for other in upstream)
    plan = plans.plan(uses, outputs={name: f"${name}" for name in uses})

    async def main() -> tuple[Any, int]:
        try:
            found: Any = (await run_plan(plan, {}, resources=held())).outputs
        except RunError as error:
            found = error
        return found, len(asyncio.all_tasks())

    found, tasks = asyncio.run(main())
    assert tasks == 1
    if any(fails for *_, fails in graph):
        assert str(found) == f"`{found.step}` failed with ValueError: as told"
        assert all(step.ended is not None for step in found.trace.steps)
    else:
        assert found == expected
