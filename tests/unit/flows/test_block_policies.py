from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from block_parts import (
    Said,
    act,
    add,
    arun,
    ask,
    calc,
    each,
    forever,
    group,
    loop,
    now,
    odd_only,
    run,
    use,
)

from ragbraid.dsl.plan import Limits, Retry
from ragbraid.registry.errors import LimitError, NodeOutputError, RunError, ServiceError

# -- limits and policies -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_error", ["skip", "step"])
def test_limits_count_across_nesting_and_no_policy_makes_up_for_them(on_error: str) -> None:
    policy: dict[str, Any] = {"on_error": use(add, x=1) if on_error == "step" else on_error, "retry": Retry(3)}
    mapped = each("i", [1, 2], {"ask": use(ask)}, None, concurrency=1, failed="skip")
    turn = loop({"many": mapped}, {}, {}, max_steps=5, **policy)
    with pytest.raises(LimitError, match="it used 6 LLM calls, its limit is 5") as caught:
        run({"part": group({"turn": turn}, "$turn", **policy)}, limits=Limits(llm_calls=5))
    assert caught.value.step == "part.turn[3].many[2].ask"


def test_the_limit_of_seconds_ends_what_runs_deep_inside() -> None:
    mapped = each("i", [1, 2, 3], {"hang": use(forever)}, None, failed="none")
    turn = loop({"many": mapped}, {}, {}, on_error="skip")
    with pytest.raises(LimitError, match="its limit of 0.05 seconds is used up") as caught:
        run({"turn": turn}, limits=Limits(seconds=0.05))
    assert "turn[1].many[1].hang" in {step.path for step in caught.value.trace.steps}
    assert all(step.ended is not None for step in caught.value.trace.steps)


def failing_twice() -> Callable[[Any], int]:
    calls = []

    def fail(_: Any) -> int:
        calls.append(1)
        if len(calls) < 3:
            raise ServiceError("busy", kind="rate_limit")
        return len(calls)

    return fail


def test_a_block_is_tried_again_from_its_start() -> None:
    steps = {"a": use(add, x=1), "b": use(now, does=failing_twice(), after=["a"])}
    said = run({"part": group(steps, "$b", retry=Retry(attempts=3))})
    assert said.value == 3
    assert said.paths() == ["part", *["part.a", "part.b"] * 3]
    assert said.trace.steps[0].attempts == 3
    assert [note.split(":")[0] for note in said.notes("part")] == [
        "attempt 1 of 3 failed (rate_limit)",
        "attempt 2 of 3 failed (rate_limit)",
    ]


def test_a_timeout_of_a_block_ends_everything_inside_it() -> None:
    mapped = each("i", [1, 2], {"hang": use(forever)}, None, failed="skip", timeout_seconds=0.02)
    with pytest.raises(RunError, match="`all` did not finish within 0.02 s") as caught:
        run({"all": mapped})
    assert (caught.value.kind, caught.value.step) == ("timeout", "all")


@pytest.mark.parametrize(("when", "value"), [(True, [2]), (False, None)])
def test_a_block_whose_condition_does_not_hold_is_skipped(when: bool, value: Any) -> None:
    said = run({"all": each("i", [1], {"more": use(add, x="$i")}, "$more", when="$on")}, on=when)
    assert said.value == value
    assert said.trace.steps[0].outcome == ("ok" if when else "skipped")


def test_a_block_keeps_its_post_condition_or_fails() -> None:
    ensure = calc(lambda out, n: len(out) >= n, "out | length >= n", n="$n")
    steps = {"all": each("i", [1, 2], {"more": use(add, x="$i")}, "$more", ensure=ensure)}
    assert run(steps, n=2).value == [2, 3]
    with pytest.raises(NodeOutputError, match="what `all` gave does not keep `ensure: out | length >= n`"):
        run(steps, n=3)


def test_a_failed_block_may_be_skipped() -> None:
    said = run({"part": group({"bad": use(now, does=odd_only, x=2)}, "$bad", on_error="skip")})
    assert said.value is None
    assert said.paths("failed") == ["part", "part.bad"]


def test_a_failed_block_may_be_replaced_by_a_step() -> None:
    bad = group({"bad": use(now, does=odd_only, x=2)}, "$bad", on_error=use(add, x="$n"))
    assert run({"part": bad, "after": use(add, x="$part")}, n=5).value == 7


def test_a_replaced_step_inside_a_block_is_named_by_its_place() -> None:
    steps = {"bad": use(now, does=odd_only, x="$i", policy={"on_error": use(add, x="$i")})}
    said = run({"all": each("i", [1, 2], steps, "$bad", concurrency=1)})
    assert said.value == [1, 3]
    assert said.paths() == ["all", "all[1].bad", "all[2].bad", "all[2].spare"]


# -- cancellation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 3])
def test_cancelling_a_run_ends_every_step_of_every_block(times: int) -> None:
    open_steps, cleaned = [], []

    async def hold(x: Any) -> None:
        open_steps.append(x)
        try:
            await asyncio.Event().wait()
        finally:
            open_steps.remove(x)
            await asyncio.sleep(0)  # cleaning up takes a moment
            cleaned.append(x)

    def hold_on() -> Any:
        turn = loop({"a": use(act, does=hold, x="$i"), "b": use(act, does=hold, x="$i")}, {}, {})
        return each("i", [1, 2, 3], {"turn": turn}, None, failed="skip")

    async def main() -> Said:
        running = asyncio.create_task(arun({"x": hold_on(), "y": group({"z": hold_on()}, "$z"), "w": use(forever)}))
        while len(open_steps) < 12:
            await asyncio.sleep(0)
        for _ in range(times):  # more than once: an impatient caller
            running.cancel()
            await asyncio.sleep(0)
        return await running

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    assert open_steps == []
    assert len(cleaned) == 12 or times > 1


def test_a_failure_beside_a_block_ends_what_runs_inside_it() -> None:
    async def fail(_: Any) -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    mapped = each("i", [1, 2], {"hang": use(forever)}, None, failed="skip")
    for steps in ({"all": mapped, "bad": use(act, does=fail)}, {"bad": use(act, does=fail), "all": mapped}):
        with pytest.raises(RunError, match="`bad` failed with ValueError: no"):
            run(steps)
