from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from ragbraid.dsl.plan import Body, Literally, Plan, SlotRef, Step
from ragbraid.flows.compiled import CompiledBody
from ragbraid.flows.frames import Frame
from ragbraid.flows.limits import RunLimits
from ragbraid.flows.runner import RunEvent, RunResult
from ragbraid.flows.scheduler import run_body, run_plan
from ragbraid.flows.steps import Run
from ragbraid.flows.trace import Trace
from ragbraid.registry.errors import NodeOutputError, RunError, ServiceError
from ragbraid.registry.node import node


@node("demo.add")
def add(x: int, y: int = 1) -> int:
    """Add."""
    return x + y


@node("demo.aadd")
async def aadd(x: int, y: int = 1) -> int:
    """Add, on the loop."""
    return x + y


@node("demo.act")
async def act(does: Any, x: int = 0) -> int:
    """Do what the test says and return x."""
    await does()
    return x


@node("demo.say")
async def say(does: Any) -> Any:
    """Give whatever the test's function gives."""
    return await does()


def run(plan: Plan, resources: Any, inputs: Mapping[str, Any] | None = None, **options: Any) -> RunResult:
    return asyncio.run(run_plan(plan, inputs or {}, resources=resources, **options))


def expect_failure(plan: Plan, resources: Any, kind: type[BaseException] = RunError, **options: Any) -> Any:
    with pytest.raises(kind) as caught:
        run(plan, resources, **options)
    return caught.value


async def fail_with(error: Exception) -> None:
    raise error


# -- nesting -----------------------------------------------------------------------------------------------------------


def nested(plans: Any, inner: Body, held: Any, outer_value: int) -> tuple[Any, Trace]:
    """Run `inner` three times inside a step of a body around it, as a block will."""
    trace = Trace()
    frames: list[Frame] = []

    async def main() -> Any:
        compiled = CompiledBody(inner, {})

        async def repeat() -> int:
            last = 0
            for number in range(3):
                outer = frames[0]
                frame = Frame(compiled.size, parent=outer, prefix=f"block[{number}].")
                frame.values[0] = last
                await run_body(compiled, frame, runs[0])
                last = frame.values[-1]
            return last

        runs: list[Any] = []
        plan = plans.plan({"base": plans.use(add, {"x": "$n"}), "block": plans.use(say, {"does": repeat}, after=("base",))},
                          inputs={"n": int})  # fmt: skip
        body = CompiledBody(plan.body, {})
        runs.append(Run(trace, held(), None, None, None, RunLimits(plan.limits), run_body))
        frames.append(Frame(body.size))
        frames[0].values[0] = outer_value
        await run_body(body, frames[0], runs[0])
        return frames[0].values[-1]

    return asyncio.run(main()), trace


def test_a_body_runs_inside_a_body_and_reads_the_scope_around_it(plans, held):
    base = SlotRef(1, 1, (), "$base")
    inner = plans.body({"sum": plans.use(aadd, {"x": "$last", "y": base})}, inputs=("last",))
    value, trace = nested(plans, inner, held, outer_value=9)
    assert value == 30
    assert [step.path for step in trace.steps] == ["base", "block", "block[0].sum", "block[1].sum", "block[2].sum"]


def test_a_failure_inside_an_inner_body_names_the_inner_step(plans, held):
    inner = plans.body(
        {
            "waits": plans.use(act, {"does": lambda: asyncio.Event().wait()}),
            "bad": plans.use(act, {"does": lambda: fail_with(ValueError("no"))}),
        },
        inputs=("last",),
    )
    with pytest.raises(RunError, match="no") as caught:
        nested(plans, inner, held, outer_value=1)
    assert caught.value.step == "block[0].bad"


# -- executors and listeners -------------------------------------------------------------------------------------------


class Recording:
    """An executor that notes what it is asked to do."""

    takes_blocks = False

    def __init__(self, handles_policies: bool, attempts: int = 1, stored: Mapping[str, Any] | None = None) -> None:
        self.handles_policies = handles_policies
        self.attempts = attempts
        self.stored = dict(stored or {})
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def execute(
        self, step: Step, path: str, call: Callable[[], Awaitable[Any]], inputs: Mapping[str, Any]
    ) -> Any:
        self.asked.append((path, dict(inputs)))
        if path in self.stored:
            return self.stored[path]
        for _ in range(self.attempts - 1):
            try:
                return await call()
            except RunError:
                continue
        return await call()


def test_an_executor_makes_every_call_and_sees_the_checked_inputs(plans, held):
    executor = Recording(handles_policies=False)
    plan = plans.plan({"a": plans.use(add, {"x": 1}), "b": plans.use(aadd, {"x": "$a"})})
    assert run(plan, held(), executor=executor).outputs == 3
    assert executor.asked == [("a", {"x": 1}), ("b", {"x": 2})]


def test_an_executor_that_handles_policies_retries_and_caches_by_itself(plans, held):
    calls: list[int] = []

    async def second_time() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise ServiceError("busy", kind="rate_limit")

    executor = Recording(handles_policies=True, attempts=2, stored={"known": 40})
    plan = plans.plan(
        {"known": plans.use(add, {"x": 1}), "again": plans.use(act, {"does": second_time, "x": "$known"})}
    )
    result = run(plan, held(), executor=executor)
    assert result.outputs == 40
    assert (result.trace.step("known").cached, result.trace.step("known").attempts) == (True, 0)
    assert (result.trace.step("again").cached, result.trace.step("again").attempts) == (False, 2)


def test_what_an_executor_kept_from_another_day_is_checked_too(plans, held):
    executor = Recording(handles_policies=True, stored={"known": "forty"})
    error = expect_failure(plans.plan({"known": plans.use(add, {"x": 1})}), held(), executor=executor)
    assert isinstance(error, NodeOutputError)


def test_the_listener_hears_of_every_step_from_start_to_end(plans, held):
    events: list[RunEvent] = []
    plan = plans.plan({"a": plans.use(add, {"x": 1}), "b": plans.use(add, {"x": "$a"}, when=Literally(False))})
    run(plan, held(), listener=events.append)
    assert [(event.kind, event.path, event.node, event.status, event.output) for event in events] == [
        ("started", "a", "demo.add@1", None, None),
        ("finished", "a", "demo.add@1", "ok", 2),
        ("started", "b", "demo.add@1", None, None),
        ("finished", "b", "demo.add@1", "skipped", None),
    ]


def test_the_listener_hears_of_a_failure_too(plans, held):
    events: list[RunEvent] = []
    plan = plans.plan({"a": plans.use(act, {"does": lambda: fail_with(ValueError("no"))})})
    error = expect_failure(plan, held(), listener=events.append)
    assert (events[-1].status, events[-1].error) == ("failed", error)
