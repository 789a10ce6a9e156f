from __future__ import annotations

import asyncio
from typing import Any

import pytest
from block_parts import (
    aadd,
    act,
    add,
    ask,
    calc,
    call,
    each,
    forever,
    gate,
    group,
    loop,
    now,
    odd_only,
    run,
    switch,
    use,
)

from ragbraid.dsl.plan import Limits
from ragbraid.registry.errors import LimitError, RunError


def one(x: Any) -> dict[str, Any]:
    return {"got": use(now, does=lambda _: x)}


# -- map ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 2, 8])
def test_a_map_keeps_the_order_of_its_items_whatever_the_order_of_completion(concurrency: int) -> None:
    async def slower_first(x: int) -> int:
        for _ in range(20 - x * 4):
            await asyncio.sleep(0)
        return x * 10

    mapped = each("i", [0, 1, 2, 3, 4], {"slow": use(act, does=slower_first, x="$i")}, "$slow", concurrency=concurrency)
    assert run({"all": mapped}).value == [0, 10, 20, 30, 40]


@pytest.mark.parametrize("concurrency", [1, 3, 50])
def test_a_map_runs_as_many_items_at_once_as_it_may(concurrency: int) -> None:
    busy, most = 0, 0

    async def work(_: Any) -> None:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        for _ in range(3):
            await asyncio.sleep(0)
        busy -= 1

    run({"all": each("i", list(range(10)), {"work": use(act, does=work)}, None, concurrency=concurrency)})
    assert most == min(concurrency, 10)


def test_items_of_a_map_are_counted_from_1_in_the_trace() -> None:
    said = run({"all": each("i", [5, 6], {"more": use(add, x="$i")}, "$more")})
    assert sorted(said.paths()) == ["all", "all[1].more", "all[2].more"]


def test_a_map_over_nothing_gives_nothing() -> None:
    said = run({"all": each("i", "$items", {"more": use(add, x="$i")}, "$more")}, items=[])
    assert said.value == []
    assert said.paths() == ["all"]


def test_a_map_over_what_is_no_list_is_refused() -> None:
    with pytest.raises(RunError, match="`all` goes over a list, but was given int"):
        run({"all": each("i", "$items", {"more": use(add, x="$i")}, "$more")}, items=3)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_failing_item_fails_the_map_and_ends_the_others(concurrency: int) -> None:
    steps = {"bad": use(now, does=odd_only, x="$i"), "hang": use(forever, x="$bad", policy={"when": "$waits"})}
    mapped = each("i", [1, 2, 3], steps, "$bad", concurrency=concurrency)
    with pytest.raises(RunError, match=r"`all\[2\].bad` failed with ValueError: 2 is even") as caught:
        run({"all": mapped}, waits=concurrency > 1)
    assert caught.value.step == "all[2].bad"


@pytest.mark.parametrize(("failed", "expected"), [("skip", [1, 3]), ("none", [1, None, 3, None])])
@pytest.mark.parametrize("concurrency", [1, 4])
def test_failed_items_are_left_out_or_keep_their_place_and_are_noted(
    failed: str, expected: list[Any], concurrency: int
) -> None:
    steps = {"bad": use(now, does=odd_only, x="$i")}
    said = run({"all": each("i", [1, 2, 3, 4], steps, "$bad", failed=failed, concurrency=concurrency)})
    assert said.value == expected
    assert said.notes("all") == [
        "item 2 failed: `all[2].bad` failed with ValueError: 2 is even",
        "item 4 failed: `all[4].bad` failed with ValueError: 4 is even",
    ]
    assert next(step.outcome for step in said.trace.steps if step.path == "all") == "degraded"


def test_an_item_whose_output_cannot_be_computed_has_failed() -> None:
    output = calc(lambda x: 6 // x, "6 // x", x="$same")
    said = run({"all": each("i", [2, 0, 3], {"same": use(add, x="$i", y=0)}, output, failed="none")})
    assert said.value == [3, None, 2]


def test_items_that_are_none_are_results_like_others() -> None:
    assert run({"all": each("i", [1, 2], {"none": use(now, does=lambda x: None)}, "$none", failed="skip")}).value == [
        None,
        None,
    ]


@pytest.mark.parametrize("failed", ["skip", "none"])
@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_map_swallows_no_limit(failed: str, concurrency: int) -> None:
    mapped = each("i", list(range(9)), {"ask": use(ask, x="$i")}, "$ask", failed=failed, concurrency=concurrency)
    with pytest.raises(LimitError, match="it used 4 LLM calls, its limit is 3") as caught:
        run({"all": mapped}, limits=Limits(llm_calls=3))
    assert caught.value.step == "all[4].ask"


@pytest.mark.parametrize("concurrency", [1, 16])
def test_ten_thousand_items_run_and_each_has_its_result(concurrency: int) -> None:
    said = run({"all": each("i", list(range(10_000)), {"more": use(add, x="$i")}, "$more", concurrency=concurrency)})
    assert said.value == list(range(1, 10_001))
    assert len(said.trace.steps) == 10_001


def test_a_long_map_of_quick_steps_can_be_cancelled() -> None:
    mapped = each("i", list(range(1_000_000)), {"more": use(add, x="$i")}, "$more", concurrency=1)
    with pytest.raises(LimitError, match="seconds is used up"):
        run({"all": mapped}, limits=Limits(seconds=0.05))


# -- switch ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "value", "label"), [("a", 1, "first"), ("b", 2, "second"), ("c", 3, "else")])
def test_a_switch_takes_the_branch_of_the_value(kind: str, value: int, label: str) -> None:
    cases = {"first": ("a", one(1), "$got"), "second": ("b", one(2), "$got")}
    said = run({"route": switch("$kind", cases, (one(3), "$got"))}, kind=kind)
    assert said.value == value
    assert said.notes("route") == [f"took {label}"]
    assert said.paths() == ["route", f"route[{label}].got"]


def test_a_switch_without_else_gives_none_where_no_case_fits() -> None:
    said = run({"route": switch("$kind", {"first": ("a", one(1), "$got")})}, kind="z")
    assert (said.value, said.notes("route"), said.paths()) == (None, ["took no branch"], ["route"])


@pytest.mark.parametrize(("n", "value"), [(0, "none"), (1, "few"), (2, "few"), (9, "many")])
def test_a_switch_over_conditions_takes_the_first_that_holds(n: int, value: str) -> None:
    cases = {
        "1": (calc(lambda n: n == 0, n="$n"), one("none"), "$got"),
        "2": (calc(lambda n: n < 3, n="$n"), one("few"), "$got"),
        "3": (calc(lambda n: n < 5, n="$n"), one("some"), "$got"),
    }
    assert run({"route": switch(None, cases, (one("many"), "$got"))}, n=n).value == value


def test_conditions_after_the_one_that_holds_are_not_looked_at() -> None:
    cases = {"1": ("$yes", one(1), "$got"), "2": (calc(lambda n: 1 / 0, n="$yes"), one(2), "$got")}
    assert run({"route": switch(None, cases)}, yes=[0]).value == 1


# -- gate --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bound", "value", "tries", "note"),
    [
        (1, 1, 1, "try 1 of 3 was enough"),
        (2, 2, 2, "try 2 of 3 was enough"),
        (3, 3, 3, "try 3 of 3 was enough"),
        (4, 3, 3, "none of 3 tries was enough; the last one's result is taken"),
    ],
)
def test_a_gate_stops_at_the_first_result_that_is_enough(bound: int, value: int, tries: int, note: str) -> None:
    enough = calc(lambda out, bound: out >= bound, bound="$bound")
    said = run({"found": gate([(one(n), "$got") for n in (1, 2, 3)], enough)}, bound=bound)
    assert said.value == value
    assert said.paths() == ["found", *(f"found[{number}].got" for number in range(1, tries + 1))]
    assert said.notes("found") == [note]


# -- group and call ----------------------------------------------------------------------------------------------------


def test_a_group_runs_its_steps_under_its_name() -> None:
    said = run({"part": group({"a": use(add, x="$n"), "b": use(add, x="$a")}, "$b")}, n=1)
    assert (said.value, said.paths()) == (3, ["part", "part.a", "part.b"])


def test_an_empty_group_hands_on_what_is_around_it() -> None:
    assert run({"part": group({}, "$n")}, n=4).value == 4


def test_a_called_flow_takes_its_inputs_by_name_and_gives_its_single_output() -> None:
    inner = call({"sum": use(add, x="$b", y="$a")}, "$sum", {"a": int, "b": int}, {"b": "$n", "a": 10})
    said = run({"flow": inner}, n=1)
    assert (said.value, said.paths()) == (11, ["flow", "flow.sum"])
    assert said.trace.steps[0].node == "other"


def test_named_outputs_of_a_called_flow_are_fields() -> None:
    inner = call({"sum": use(add, x="$a")}, {"sum": "$sum", "given": "$a"}, {"a": int}, {"a": "$n"})
    steps = {"flow": inner, "total": use(add, x="$flow.sum", y="$flow.given")}
    assert run(steps, n=1).value == 3


def test_a_called_flow_sees_nothing_around_it() -> None:
    frames: list[Any] = []

    def look(x: Any) -> Any:
        frames.append(x)
        return x

    deep = each("i", [1], {"look": use(now, does=look, x="$n")}, "$look")
    run({"flow": call({"deep": deep}, "$deep", {"n": int}, {"n": "$m"})}, n=1, m=2)
    assert frames == [2]


def test_inputs_of_a_called_flow_are_checked_and_the_call_is_named() -> None:
    inner = call({"sum": use(add, x="$a")}, "$sum", {"a": int}, {"a": "$n"})
    with pytest.raises(RunError, match="the input `a` is 'many'") as caught:
        run({"flow": inner}, n="many")
    assert (caught.value.kind, caught.value.step) == ("input", "flow")


# -- nesting -----------------------------------------------------------------------------------------------------------


def nested() -> dict[str, Any]:
    """A map in a loop in a switch; the map reads the item, the state, the branch's step and the flow's input."""
    total = calc(lambda i, n, base, far: i + n + base + far, i="$i", n="$n", base="$base", far="$far")
    mapped = each("i", [1, 2], {"same": use(now, does=lambda x: x, x=total), "more": use(aadd, x="$same")}, "$more")
    following = {"n": calc(lambda many, n: sum(many) + n, many="$many", n="$n")}
    turn = loop({"many": mapped}, {"n": (int, 0)}, following, max_steps=2)
    branch = ({"base": use(add, x="$far", y=100), "turn": turn}, "$turn.n")
    return {"far": use(add, x="$given"), "route": switch("$kind", {"deep": ("d", *branch)})}


def test_blocks_nest_and_see_everything_around_them() -> None:
    said = run(nested(), given=999, kind="d")
    # far = 1000, base = 1100; step 1: (2102) + (2103) = 4205; step 2: 2 * 4205 + 4205 + 4205
    assert said.value == 4205 * 4
    assert "route[deep].turn[2].many[1].more" in said.paths()
    assert len(said.paths()) == 2 + 2 + 2 * (1 + 2 * 2)
    assert said.notes("route[deep].turn") == ["ended after 2 steps: max_steps"]


def test_a_block_waits_for_what_is_read_deep_inside_it() -> None:
    async def late(_: Any) -> int:
        for _ in range(10):
            await asyncio.sleep(0)
        return 5

    inner = each("i", [1, 2], {"sum": use(add, x="$i", y="$late")}, "$sum")
    said = run({"late": use(act, does=late), "part": group({"inner": inner}, "$inner")})
    assert said.value == [6, 7]


def test_independent_blocks_run_at_the_same_time() -> None:
    meeting = asyncio.Barrier(4)

    async def meet(_: Any) -> None:
        await meeting.wait()

    def pair() -> Any:
        return each("i", [1, 2], {"meet": use(act, does=meet)}, "$i")

    steps = {"a": pair(), "b": group({"c": pair()}, "$c"), "both": use(now, does=lambda x: x, x=None, after=["a", "b"])}
    run(steps)
    assert not meeting.broken
