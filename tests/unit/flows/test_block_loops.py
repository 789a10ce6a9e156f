from __future__ import annotations

import asyncio
from typing import Any

import pytest
from block_parts import aadd, act, add, arun, calc, call, forever, loop, now, run, use

from ragbraid.registry.errors import NodeInputError, NodeOutputError, RunError


def test_a_loop_carries_its_states_and_ends_normally_with_max_steps() -> None:
    said = run({"turn": loop({"more": use(add, x="$n")}, {"n": (int, 0)}, {"n": "$more"}, max_steps=3)})
    assert said.value.model_dump() == {"n": 3, "steps": 3, "stopped_by": "max_steps"}
    assert said.paths() == ["turn", "turn[1].more", "turn[2].more", "turn[3].more"]
    assert said.notes("turn") == ["ended after 3 steps: max_steps"]


def test_all_next_states_are_computed_from_the_old_ones_at_once() -> None:
    carry = {"a": (int, 1), "b": (int, 2)}
    said = run({"turn": loop({"idle": use(add, x=1)}, carry, {"a": "$b", "b": "$a"}, max_steps=3)})
    assert (said.value.a, said.value.b) == (2, 1)


def test_a_state_without_next_keeps_its_value_and_start_values_come_from_around_the_loop() -> None:
    steps = {
        "first": use(add, x="$n"),
        "turn": loop({"more": use(add, x="$n", y="$first")}, {"n": (int, "$first")}, max_steps="$n"),
    }
    said = run(steps, n=2)
    assert said.value.model_dump() == {"n": 3, "steps": 2, "stopped_by": "max_steps"}
    assert [step.output for step in said.trace.steps if step.path != "turn"] == [3, 6, 6]


def test_mutable_start_values_are_not_shared_by_runs() -> None:
    def grow(x: list[int]) -> list[int]:
        x.append(len(x))
        return x

    steps = {"turn": loop({"grow": use(now, does=grow, x="$all")}, {"all": (list, [])}, {"all": "$grow"}, max_steps=2)}
    assert [(run(steps)).value.all for _ in range(2)] == [[0, 1], [0, 1]]


def test_a_condition_over_steps_ends_the_loop_with_its_reason() -> None:
    stop = {"enough": calc(lambda more: more >= 3, more="$more")}
    said = run({"turn": loop({"more": use(add, x="$n")}, {"n": (int, 0)}, {"n": "$more"}, stop)})
    assert said.value.model_dump() == {"n": 3, "steps": 3, "stopped_by": "enough"}
    assert said.notes("turn") == ["ended after 3 steps: enough"]


def test_a_condition_over_states_that_holds_at_the_start_means_no_step() -> None:
    stop = {"enough": calc(lambda n: n >= 5, n="$n")}
    said = run({"turn": loop({"more": use(add, x="$n")}, {"n": (int, 5)}, {"n": "$more"}, stop)})
    assert said.value.model_dump() == {"n": 5, "steps": 0, "stopped_by": "enough"}
    assert said.paths() == ["turn"]
    assert said.notes("turn") == ["ended after 0 steps: enough"]


def test_a_condition_over_states_is_looked_at_before_each_step() -> None:
    stop = {"enough": calc(lambda n: n >= 2, n="$n")}
    said = run({"turn": loop({"more": use(add, x="$n")}, {"n": (int, 0)}, {"n": "$more"}, stop)})
    assert said.value.model_dump() == {"n": 2, "steps": 2, "stopped_by": "enough"}
    assert said.notes("turn") == ["ended after 2 steps: enough"]


def test_a_condition_over_a_state_and_a_step_waits_for_the_step_alone() -> None:
    stop = {"equal": calc(lambda n, more: n + 1 == more == 2, n="$n", more="$more")}
    said = run({"turn": loop({"more": use(add, x="$n")}, {"n": (int, 0)}, {"n": "$more"}, stop)})
    assert said.value.model_dump() == {"n": 2, "steps": 2, "stopped_by": "equal"}


def test_of_several_conditions_that_hold_together_the_first_in_the_file_wins() -> None:
    held = calc(lambda more: True, more="$more")
    said = run({"turn": loop({"more": use(add, x=1)}, {}, {}, {"first": held, "second": held})})
    assert said.value.stopped_by == "first"


def test_an_early_condition_ends_the_step_before_later_ones_are_looked_at() -> None:
    stop = {"late": calc(lambda b: True, b="$b"), "early": calc(lambda a: True, a="$a")}
    said = run({"turn": loop({"a": use(add, x=1), "b": use(add, x="$a")}, {}, {}, stop)})
    assert said.value.stopped_by == "early"
    assert said.paths() == ["turn", "turn[1].a"]


@pytest.mark.parametrize("function", [add, aadd])
def test_steps_that_the_condition_does_not_need_are_not_started(function: Any) -> None:
    steps = {"think": use(function, x="$n"), "search": use(function, x="$think"), "pool": use(function, x="$search")}
    stop = {"answered": calc(lambda think: think >= 2, think="$think")}
    said = run({"turn": loop(steps, {"n": (int, 0)}, {"n": "$think"}, stop)})
    assert said.value.model_dump() == {"n": 2, "steps": 2, "stopped_by": "answered"}
    assert said.paths()[1:] == ["turn[1].think", "turn[1].search", "turn[1].pool", "turn[2].think"]


@pytest.mark.parametrize("first", ["think", "search"])
def test_steps_that_run_when_the_condition_holds_are_cancelled(first: str) -> None:
    running, ended = asyncio.Event(), []

    async def search(_: Any) -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("search")

    async def think(_: Any) -> str:
        await running.wait()
        return "done"

    steps = {"think": use(act, does=think), "search": use(act, does=search)}
    ordered = {name: steps[name] for name in [first, *(steps.keys() - {first})]}
    stop = {"answered": calc(lambda think: think == "done", think="$think")}
    said = run({"turn": loop(ordered, {}, {}, stop), "after": use(add, x="$turn.steps")})
    assert said.value == 2
    assert ended == ["search"]
    cut = next(step for step in said.trace.steps if step.path == "turn[1].search")
    assert cut.outcome == "failed"
    assert isinstance(cut.error, RunError)
    assert cut.error.kind == "cancelled"


def test_a_step_that_answers_its_cancellation_changes_neither_the_reason_nor_the_states() -> None:
    running = asyncio.Event()

    async def stubborn(_: Any) -> int:
        running.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return 7
        return 0

    async def think(_: Any) -> int:
        await running.wait()
        return 1

    steps = {"think": use(act, does=think), "stubborn": use(act, does=stubborn)}
    stop = {"stubborn": calc(lambda x: True, x="$stubborn"), "think": calc(lambda x: True, x="$think")}
    said = run({"turn": loop(steps, {"n": (int, 0)}, {"n": "$stubborn"}, stop)})
    assert said.value.model_dump() == {"n": 0, "steps": 1, "stopped_by": "think"}


def test_two_steps_that_end_in_the_same_turn_give_one_reason_and_its_states() -> None:
    together = asyncio.Event()

    async def wait(x: Any) -> Any:
        await together.wait()
        return x

    async def open_both(_: Any) -> None:
        await asyncio.sleep(0)
        together.set()

    steps = {"a": use(act, does=wait, x=1), "b": use(act, does=wait, x=2), "both": use(act, does=open_both)}
    stop = {"b": calc(lambda b: True, b="$b"), "a": calc(lambda a: True, a="$a")}
    said = run({"turn": loop(steps, {"a": (int, 0), "b": (int, 0)}, {"a": "$a", "b": "$b"}, stop)})
    moved = (said.value.a, said.value.b)
    assert moved == {"a": (1, 0), "b": (0, 2)}[said.value.stopped_by]


def test_only_settled_states_move_on_when_a_condition_ends_a_step_early() -> None:
    steps = {
        "plan": use(add, x="$n"),
        "think": use(add, x="$plan"),
        "side": use(add, x=5),
        "last": use(add, x="$think"),
    }
    carry = {name: (int, 0) for name in ("n", "thought", "aside", "end", "both", "constant", "count")}
    following = {
        "n": "$plan",  # what the condition's step needed
        "thought": "$think",  # what it names
        "aside": "$side",  # may have ended before it or not
        "end": "$last",  # not started
        "both": calc(lambda think, side: think + side, think="$think", side="$side"),
        "constant": 9,
        "count": calc(lambda count: count + 1, count="$count"),  # reads a state alone
    }
    stop = {"answered": calc(lambda think: True, think="$think")}
    said = run({"turn": loop(steps, carry, following, stop)})
    states = said.value.model_dump(exclude={"steps", "stopped_by"})
    assert states == {"n": 1, "thought": 2, "aside": 0, "end": 0, "both": 0, "constant": 9, "count": 1}


def test_a_skipped_step_counts_as_ended_for_conditions() -> None:
    steps = {"maybe": use(add, x=1, policy={"when": False})}
    said = run({"turn": loop(steps, {}, {}, {"nothing": calc(lambda x: x is None, x="$maybe")})})
    assert said.value.stopped_by == "nothing"


def test_for_folds_over_items_in_order_and_ends_done() -> None:
    def note(x: str) -> str:
        return x.upper()

    steps = {"note": use(now, does=note, x="$word")}
    following = {"text": calc(lambda text, note: text + note, text="$text", note="$note")}
    said = run({"fold": loop(steps, {"text": (str, "")}, following, over=("word", "$words"))}, words=["a", "b"])
    assert said.value.model_dump() == {"text": "AB", "steps": 2, "stopped_by": "done"}
    assert said.notes("fold") == ["ended after 2 steps: done"]


@pytest.mark.parametrize(
    ("count", "bound", "steps", "reason"),
    [(0, 3, 0, "done"), (3, 3, 3, "done"), (4, 3, 3, "max_steps"), (2, 0, 0, "max_steps"), (1, 9, 1, "done")],
)
def test_max_steps_bounds_the_items(count: int, bound: int, steps: int, reason: str) -> None:
    body = {"more": use(add, x="$item")}
    said = run({"fold": loop(body, {}, {}, over=("item", list(range(count))), max_steps=bound)})
    assert said.value.model_dump() == {"steps": steps, "stopped_by": reason}


def test_a_condition_over_the_item_is_looked_at_before_its_step() -> None:
    stop = {"zero": calc(lambda item: item == 0, item="$item")}
    body = {"sum": use(add, x="$total", y="$item")}
    said = run(
        {"fold": loop(body, {"total": (int, 0)}, {"total": "$sum"}, stop, over=("item", "$items"))}, items=[2, 3, 0, 4]
    )
    assert said.value.model_dump() == {"total": 5, "steps": 2, "stopped_by": "zero"}


def test_a_state_of_the_wrong_type_fails_and_names_state_and_loop() -> None:
    body = {"idle": use(add, x=1)}
    with pytest.raises(NodeOutputError, match=r"the state `n` of `turn` is int, but was given the text 'x'"):
        run({"turn": loop(body, {"n": (int, "$n")})}, n="x")
    with pytest.raises(NodeOutputError, match=r"the state `words` of `turn` is list\[str\].* at `0`"):
        run({"turn": loop(body, {"words": (list[str], [])}, {"words": [1]})})


@pytest.mark.parametrize("bound", [-1, True, "3", 2.0, None])
def test_max_steps_that_is_no_count_is_refused(bound: Any) -> None:
    with pytest.raises(NodeInputError, match="`max_steps` of `turn` is a whole number of at least 0"):
        run({"turn": loop({"idle": use(add, x=1)}, {}, max_steps="$bound")}, bound=bound)


def test_for_over_what_is_no_list_is_refused() -> None:
    with pytest.raises(NodeInputError, match="`fold` goes over a list, but was given int"):
        run({"fold": loop({"idle": use(add, x=1)}, {}, over=("item", "$n"))}, n=3)


def test_a_condition_that_cannot_be_computed_fails_the_loop_with_its_text() -> None:
    stop = {"odd": calc(lambda x: 1 / 0, "1 / 0", x="$idle")}
    with pytest.raises(RunError, match="`1 / 0` cannot be computed") as caught:
        run({"turn": loop({"idle": use(add, x=1), "other": use(forever)}, {}, {}, stop)})
    assert caught.value.step == "turn"


def test_a_failing_step_fails_the_loop_and_is_named_by_its_place() -> None:
    def fail(x: int) -> int:
        if x == 2:
            raise ValueError("two")
        return x + 1

    with pytest.raises(RunError, match=r"`turn\[3\].bad` failed with ValueError: two") as caught:
        run({"turn": loop({"bad": use(now, does=fail, x="$n")}, {"n": (int, 0)}, {"n": "$bad"})})
    assert caught.value.step == "turn[3].bad"
    assert [step.outcome for step in caught.value.trace.steps] == ["failed", "ok", "ok", "failed"]


def test_a_loop_can_end_early_inside_a_loop_that_ends_early() -> None:
    steps = {"a": use(aadd, x="$n"), "hang": use(forever)}
    odd = {"odd": calc(lambda a: a % 2 == 1, a="$a")}
    inner = loop(steps, {"n": (int, "$m")}, {"n": "$a"}, odd)
    ended = {"always": calc(lambda n: True, n="$inner.n")}
    outer = loop({"inner": inner, "hang": use(forever)}, {"m": (int, 0)}, {"m": "$inner.n"}, ended)
    said = run({"outer": outer})
    assert said.value.model_dump() == {"m": 1, "steps": 1, "stopped_by": "always"}
    assert said.notes("outer[1].inner") == ["ended after 1 step: odd"]


def test_many_quick_steps_give_others_their_turn() -> None:
    turns = 0

    async def main() -> Any:
        other = asyncio.create_task(count())
        said = await arun({"turn": loop({"more": use(add, x="$n")}, {"n": (int, 0)}, {"n": "$more"}, max_steps=20_000)})
        other.cancel()
        return said.value.n

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    assert asyncio.run(main()) == 20_000
    assert turns > 2


def test_a_flow_called_in_a_loop_sees_only_its_inputs() -> None:
    inner = call({"more": use(add, x="$x")}, "$more", {"x": int}, {"x": "$n"})
    said = run({"turn": loop({"flow": inner}, {"n": (int, 0)}, {"n": "$flow"}, max_steps=2)})
    assert said.value.n == 2
    assert said.paths() == ["turn", "turn[1].flow", "turn[1].flow.more", "turn[2].flow", "turn[2].flow.more"]
