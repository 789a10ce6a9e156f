"""Blocks as an author writes them, checked and run: what comes out, and what the trace says."""

from __future__ import annotations

import asyncio
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest

from ragbraid.dsl.compile import check_file, check_text
from ragbraid.dsl.plan import BlockStep, Call, Plan
from ragbraid.flows.scheduler import RunResult, run_plan
from ragbraid.registry.catalogue import Catalogue
from ragbraid.registry.contract import Contract
from ragbraid.registry.errors import LimitError, RunError
from ragbraid.registry.node import node
from ragbraid.registry.providers import resource
from ragbraid.registry.resources import LLM


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Number(Contract):
    """A number and what is known of it."""

    value: int
    big: bool = False


@node("num.add")
def add(x: int, y: int = 1) -> int:
    """Add."""
    return x + y


@node("num.look")
def look(x: int, *, limit: int = 10) -> Number:
    """Say whether a number is big."""
    return Number(value=x, big=x >= limit)


@node("num.odd")
def odd(x: int) -> int:
    """Fail for even numbers."""
    if x % 2 == 0:
        raise ValueError(f"{x} is even")
    return x


@node("num.upto")
def upto(n: int) -> list[int]:
    """Count from 1."""
    return list(range(1, n + 1))


@node("num.total")
def total(numbers: list[int]) -> int:
    """Add all."""
    return sum(numbers)


@node("num.size")
def size(x: int) -> Literal["small", "big"]:
    """Say how big a number is."""
    return "big" if x >= 10 else "small"


@node("num.colour")
def colour(x: int) -> Colour:
    """Odd numbers are red."""
    return Colour.RED if x % 2 else Colour.BLUE


@node("num.slow")
async def slow(x: int) -> int:
    """Take long for small numbers, so that the order of completion is turned round."""
    await asyncio.sleep(0.001 * (10 - x))
    return x


@node("llm.name")
def name_of_model(x: int, *, llm: LLM) -> str:
    """Say which model was given."""
    return str(llm)


@resource("text.model")
def text_model(*, name: str) -> LLM:
    """A model that is its name."""
    raise NotImplementedError


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    made = Catalogue()
    for function in (add, look, odd, upto, total, size, colour, slow, name_of_model):
        made.add_node(function)
    made.add_resource(text_model.__ragbraid_resource__)  # type: ignore[attr-defined]
    return made


class Names:
    """Gives every resource as its name."""

    def get(self, name: str, role: str) -> Any:
        return name

    def fingerprint(self, name: str, role: str) -> str:
        return name


def planned(nodes: str, catalogue: Catalogue, outputs: str, rest: str = "") -> Plan:
    text = "\n".join(
        [
            "ragbraid: 1",
            "name: demo",
            "inputs: {x: int, bound: {type: int, default: 5, ge: 1, le: 50}}",
            "nodes:",
            *(f"  {line}" for line in nodes.strip("\n").splitlines()),
            f"outputs: {outputs}",
            rest,
        ]
    )
    checked = check_text(text, "demo.yaml", catalogue)
    errors = [finding for finding in checked.findings if finding.severity == "error"]
    assert not errors, errors
    assert checked.plan is not None
    return checked.plan


def ran(
    nodes: str, catalogue: Catalogue, x: int = 1, outputs: str = "$res", rest: str = "", **inputs: Any
) -> RunResult:
    plan = planned(nodes, catalogue, outputs, rest)

    async def in_time() -> RunResult:
        async with asyncio.timeout(30):
            return await run_plan(plan, {"x": x, **inputs}, resources=Names())

    return asyncio.run(in_time())


def notes(result: RunResult, path: str) -> list[str]:
    return next(step.notes for step in result.trace.steps if step.path == path)


def paths(result: RunResult) -> list[str]:
    return [step.path for step in result.trace.steps]


LOOP = """
res:
  loop:
    carry:
      n: int = $x
      seen: list[int] = []
    nodes:
      more: {use: num.add, x: $n, y: 3}
      looked: {use: num.look, limit: 10}
    flow: more -> looked
    next: {n: $more, seen: "${ seen + [more] }"}
    stop_when: {big: $looked.big, over: "${ more > 40 }"}
    max_steps: $bound
"""


def test_a_loop_carries_its_states_and_says_why_it_ended(catalogue: Catalogue) -> None:
    result = ran(LOOP, catalogue, x=1)
    assert result.outputs.model_dump() == {"n": 10, "seen": [4, 7, 10], "steps": 3, "stopped_by": "big"}
    assert paths(result)[:3] == ["res", "res[1].more", "res[1].looked"]
    assert notes(result, "res") == ["ended after 3 steps: big"]


def test_a_loop_that_reaches_its_bound_ends_as_any_other(catalogue: Catalogue) -> None:
    result = ran(LOOP, catalogue, x=-100, bound=2)
    assert result.outputs.model_dump() == {"n": -94, "seen": [-97, -94], "steps": 2, "stopped_by": "max_steps"}


def test_a_condition_ends_the_step_before_nodes_that_wait(catalogue: Catalogue) -> None:
    result = ran(LOOP, catalogue, x=50)
    assert result.outputs.stopped_by == "over"
    assert result.outputs.n == 53
    assert paths(result) == ["res", "res[1].more"]


def test_the_reason_of_a_loop_can_be_switched_on_and_must_be_covered(catalogue: Catalogue) -> None:
    switch = """
res:
  switch:
    on: $l.stopped_by
    cases: {big: {use: num.add, x: 0}, over: {use: num.add, x: 1}, max_steps: {use: num.add, x: 2}}
"""
    nodes = LOOP.replace("res:", "l:") + switch
    assert [ran(nodes, catalogue, x=x).outputs for x in (1, 50, -100)] == [1, 2, 3]


def test_for_folds_a_list_and_the_bound_cuts_it(catalogue: Catalogue) -> None:
    fold = """
items: {use: num.upto, n: $x}
res:
  loop:
    for: {item: $items}
    carry: {sum: int = 0}
    nodes: {more: {use: num.add, x: $sum, y: $item}}
    next: {sum: $more}
    max_steps: 4
"""
    assert ran(fold, catalogue, x=3).outputs.model_dump() == {"sum": 6, "steps": 3, "stopped_by": "done"}
    assert ran(fold, catalogue, x=0).outputs.model_dump() == {"sum": 0, "steps": 0, "stopped_by": "done"}
    assert ran(fold, catalogue, x=9).outputs.model_dump() == {"sum": 10, "steps": 4, "stopped_by": "max_steps"}


MAP = """
items: {use: num.upto, n: $x}
res:
  map:
    over: {item: $items}
    nodes: {a: {use: NODE, x: $item}}
    output: $a
    SETTING
"""


def mapped(node_name: str, setting: str = "concurrency: 8") -> str:
    return MAP.replace("NODE", node_name).replace("SETTING", setting)


def test_a_map_keeps_the_order_of_the_items(catalogue: Catalogue) -> None:
    result = ran(mapped("num.slow"), catalogue, x=9)
    assert result.outputs == list(range(1, 10))
    assert {"res[1].a", "res[9].a"} <= set(paths(result))


@pytest.mark.parametrize(("on_error", "given"), [("skip", [1, 3]), ("none", [1, None, 3])])
def test_a_failed_item_is_left_out_or_keeps_its_place(
    on_error: str, given: list[int | None], catalogue: Catalogue
) -> None:
    result = ran(mapped("num.odd", f"on_error: {on_error}"), catalogue, x=3)
    assert result.outputs == given
    assert "item 2 failed" in notes(result, "res")[0]


def test_a_map_that_does_not_say_otherwise_fails_with_its_item(catalogue: Catalogue) -> None:
    with pytest.raises(RunError, match=r"res\[2\]\.a.*2 is even"):
        ran(mapped("num.odd"), catalogue, x=3)


@pytest.mark.parametrize(
    ("on", "cases", "x", "given"),
    [
        ("$s", "{small: {use: num.add, x: 0}, big: {use: num.add, x: 1}}", 5, 1),
        ("$s", "{small: {use: num.add, x: 0}, big: {use: num.add, x: 1}}", 50, 2),
        ("${ x > 3 }", "{'true': {use: num.add, x: 0}, 'false': {use: num.add, x: 1}}", 5, 1),
        ("${ x > 3 }", "{'true': {use: num.add, x: 0}, 'false': {use: num.add, x: 1}}", 2, 2),
        ("$c", "{red: {use: num.add, x: 0}, blue: {use: num.add, x: 1}}", 3, 1),
        ("$c", "{red: {use: num.add, x: 0}, blue: {use: num.add, x: 1}}", 4, 2),
        ("$x", "{'7': {use: num.add, x: 0}}\n    else: {use: num.add, x: 1}", 7, 1),
        ("$x", "{'7': {use: num.add, x: 0}}\n    else: {use: num.add, x: 1}", 8, 2),
    ],
)
def test_a_switch_takes_the_case_of_the_value(on: str, cases: str, x: int, given: int, catalogue: Catalogue) -> None:
    known = f"s: num.size\nc: num.colour\nres:\n  switch:\n    on: {on}\n    cases: {cases}"
    result = ran(known, catalogue, x=x, outputs="{res: $res, s: $s, c: $c}")
    assert result.outputs["res"] == given


def test_a_switch_by_conditions_takes_the_first_that_holds(catalogue: Catalogue) -> None:
    nodes = """
res:
  switch:
    when:
      - {if: "${ x > 10 }", use: num.add, y: 100}
      - {if: "${ x > 5 }", nodes: {a: num.add, b: {use: num.add, x: $a}}, output: $b}
"""
    assert ran(nodes, catalogue, x=11).outputs == 111
    assert ran(nodes, catalogue, x=6).outputs == 8
    result = ran(nodes, catalogue, x=1)
    assert result.outputs is None
    assert notes(result, "res") == ["took no branch"]


def test_a_gate_stops_at_the_first_that_is_enough(catalogue: Catalogue) -> None:
    nodes = """
res:
  gate:
    try: [num.add, {use: num.add, y: 10}, {use: num.add, y: 20}]
    enough: ${ out >= bound }
"""
    assert [ran(nodes, catalogue, x=x, bound=9).outputs for x in (8, 0, -15)] == [9, 10, 5]
    assert paths(ran(nodes, catalogue, x=8, bound=9)) == ["res", "res[1].add"]


def test_arrows_reach_the_single_nodes_of_branches_however_deep(catalogue: Catalogue) -> None:
    nodes = """
a: {use: num.add, y: 100}
s: num.size
res:
  switch:
    on: $s
    cases:
      small:
        gate:
          try: [{use: num.add, y: 5}, {use: num.add, y: 7}]
          enough: ${ out > 106 }
      big: num.add
"""
    assert ran(nodes, catalogue, x=1, rest="flow: a -> res").outputs == 108
    assert ran(nodes, catalogue, x=10, rest="flow: a -> res").outputs == 111


def test_names_are_found_through_every_scope_around(catalogue: Catalogue) -> None:
    nodes = """
base: {use: num.add, y: 1000}
res:
  loop:
    carry: {n: int = 0}
    nodes:
      outer:
        map:
          over: {i: "${ [1, 2] }"}
          nodes:
            inner:
              map:
                over: {j: "${ [10, 20] }"}
                nodes:
                  g:
                    nodes: {sum: {use: num.add, x: "${ base + n + i + j }", y: $x}}
                    output: $sum
                output: $g
            t: num.total
          flow: inner -> t
          output: $t
      all: num.total
    flow: outer -> all
    next: {n: $all}
    max_steps: 2
"""
    # Step 1: base 1001, n 0, i in (1, 2), j in (10, 20), x 1: (1013 + 1023) + (1014 + 1024) = 4074; step 2 adds 4 * 4074.
    result = ran(nodes, catalogue, x=1)
    assert result.outputs.n == 4074 + 4 * 4074
    assert "res[2].outer[2].inner[1].g.sum" in paths(result)


def test_the_policies_of_a_block_are_those_of_a_node(catalogue: Catalogue) -> None:
    group = "res:\n  nodes: {a: num.odd}\n  output: $a\n  "
    assert ran(group + 'when: "${ x > 5 }"', catalogue, x=1).outputs is None
    assert ran(group + "on_error: skip", catalogue, x=2).outputs is None
    assert ran(group + "on_error: {use: num.add, y: 5}", catalogue, x=2).outputs == 7
    with pytest.raises(RunError, match=r"what `res` gave does not keep `ensure"):
        ran(group + 'ensure: "${ out > 5 }"', catalogue, x=1)
    slow_group = "res:\n  nodes: {a: {use: num.slow, x: -500}}\n  output: $a\n  timeout: 20ms"
    with pytest.raises(RunError, match=r"`res` did not finish within 0\.02 s"):
        ran(slow_group, catalogue)


def test_limits_hold_inside_blocks_and_name_the_step(catalogue: Catalogue) -> None:
    waiting = mapped("num.slow").replace("x: $item}", 'x: "${ item - 500 }"}')
    with pytest.raises(LimitError, match=r"0\.05 s"):
        ran(waiting, catalogue, x=9, rest="limits: {seconds: 0.05}")


# -- flows as nodes ----------------------------------------------------------------------------------------------------

SUB = """
ragbraid: 1
name: twice
inputs: {x: int, y: {type: int, default: 2, le: 9}}
nodes:
  a: {use: num.add, y: $y}
  b: {use: num.add, x: $a, y: $y}
outputs: OUTPUTS
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "twice.yaml").write_text(SUB.replace("OUTPUTS", "$b"))
    (tmp_path / "lib" / "both.yaml").write_text(SUB.replace("OUTPUTS", "{first: $a, second: $b}"))
    (tmp_path / "lib" / "outer.yaml").write_text(
        "ragbraid: 1\nname: outer\ninputs: {x: int}\nnodes: {t: {use: ./twice.yaml, y: 3}}\noutputs: $t\n"
    )
    return tmp_path


def ran_file(
    nodes: str, folder: Path, catalogue: Catalogue, x: int = 1, outputs: str = "$res", rest: str = ""
) -> RunResult:
    lines = "\n".join(f"  {line}" for line in nodes.strip().splitlines())
    file = folder / "main.yaml"
    file.write_text(f"ragbraid: 1\nname: main\ninputs: {{x: int}}\nnodes:\n{lines}\noutputs: {outputs}\n{rest}\n")
    checked = check_file(file, catalogue)
    assert checked.plan is not None, checked.findings
    return asyncio.run(run_plan(checked.plan, {"x": x}, resources=Names()))


def test_a_flow_is_a_node_with_its_inputs_as_ports(folder: Path, catalogue: Catalogue) -> None:
    result = ran_file("res: {use: ./lib/twice.yaml, y: 5}", folder, catalogue)
    assert result.outputs == 11
    assert paths(result) == ["res", "res.a", "res.b"]
    assert ran_file("res: ./lib/twice.yaml", folder, catalogue).outputs == 5


def test_outputs_of_a_flow_are_fields(folder: Path, catalogue: Catalogue) -> None:
    nodes = "both: ./lib/both.yaml\nres: {use: num.add, x: $both.first, y: $both.second}"
    assert ran_file(nodes, folder, catalogue).outputs == 3 + 5


def test_arrows_fill_the_inputs_of_a_flow(folder: Path, catalogue: Catalogue) -> None:
    nodes = "a: {use: num.add, y: 100}\nres: ./lib/twice.yaml"
    assert ran_file(nodes, folder, catalogue, rest="flow: a -> res").outputs == 105


def test_a_path_is_relative_to_the_file_that_it_stands_in(folder: Path, catalogue: Catalogue) -> None:
    result = ran_file(
        "res: ./lib/outer.yaml\nmore: {use: ./lib/twice.yaml, x: $res}", folder, catalogue, outputs="$more"
    )
    assert result.outputs == 1 + 6 + 4
    assert "res.t.a" in paths(result)


def test_a_flow_can_stand_in_blocks_and_replace_what_failed(folder: Path, catalogue: Catalogue) -> None:
    nodes = """
m:
  map:
    over: {i: "${ [1, 2, 3] }"}
    nodes: {a: {use: num.odd, x: $i, on_error: {use: ./lib/twice.yaml, y: 9}}}
    output: $a
res: num.total
"""
    result = ran_file(nodes, folder, catalogue, rest="flow: m -> res")
    assert result.outputs == 1 + (2 + 18) + 3
    assert {"m[2].a", "m[2].a.on_error", "m[2].a.on_error.b"} <= set(paths(result))


def test_a_bound_of_a_flows_input_holds_at_run_time(folder: Path, catalogue: Catalogue) -> None:
    with pytest.raises(RunError, match=r"`y` is 51.*less than or equal to 9"):
        ran_file("big: {use: num.add, y: 50}\nres: {use: ./lib/twice.yaml, y: $big}", folder, catalogue)


MODEL_FLOW = "ragbraid: 1\nname: model_flow\ninputs: {{x: int}}\n{resources}nodes: {{a: llm.name}}\noutputs: $a\n"
OWN = "resources: {llm: {use: text.model, name: sub}}\n"


@pytest.mark.parametrize(
    ("sub", "outer", "use", "given"),
    [
        ("", "", "use: ./sub.yaml", "llm"),
        ("", "resources: {llm: {use: text.model, name: main}}", "use: ./sub.yaml", "llm"),
        ("", "resources: {big: {use: text.model, name: main}}", "use: ./sub.yaml, llm: big", "big"),
        (OWN, "", "use: ./sub.yaml", "sub.yaml:llm"),
        (OWN, "resources: {llm: {use: text.model, name: other}}", "use: ./sub.yaml", "sub.yaml:llm"),
        (OWN, "resources: {same: {use: text.model, name: sub}}", "use: ./sub.yaml", "same"),
    ],
)
def test_which_resource_a_flow_gets(
    sub: str, outer: str, use: str, given: str, tmp_path: Path, catalogue: Catalogue
) -> None:
    (tmp_path / "sub.yaml").write_text(MODEL_FLOW.format(resources=sub))
    result = ran_file(f"res: {{{use}}}", tmp_path, catalogue, rest=outer)
    assert result.outputs == given


def test_a_flow_with_a_declared_resource_is_opened_once_for_two_uses(tmp_path: Path, catalogue: Catalogue) -> None:
    (tmp_path / "sub.yaml").write_text(MODEL_FLOW.format(resources=OWN))
    (tmp_path / "main.yaml").write_text(
        "ragbraid: 1\nname: main\ninputs: {x: int}\nnodes: {a: ./sub.yaml, b: ./sub.yaml}\noutputs: {a: $a, b: $b}\n"
    )
    plan = check_file(tmp_path / "main.yaml", catalogue).plan
    assert plan is not None
    assert list(plan.resources) == ["sub.yaml:llm"]
    assert plan.roles == {"sub.yaml:llm": "llm"}


def test_a_registered_flow_is_used_by_its_name(folder: Path) -> None:
    own = Catalogue()
    own.add_node(add)
    own.add_flow("double", folder / "lib" / "twice.yaml")
    checked = check_text(
        "ragbraid: 1\nname: main\ninputs: {x: int}\nnodes: {d: {use: double, y: 1}}\noutputs: $d\n", "main.yaml", own
    )
    assert checked.plan is not None
    step = checked.plan.body.steps[0]
    assert isinstance(step, BlockStep)
    assert isinstance(step.block, Call)
    assert asyncio.run(run_plan(checked.plan, {"x": 1}, resources=Names())).outputs == 3


def test_what_a_used_flow_does_counts_for_the_hash_and_its_place_does_not(tmp_path: Path, catalogue: Catalogue) -> None:
    def hash_of(where: str, y: int) -> str:
        folder = tmp_path / where
        folder.mkdir(exist_ok=True)
        (folder / "sub.yaml").write_text(SUB.replace("OUTPUTS", "$b").replace("default: 2", f"default: {y}"))
        (folder / "main.yaml").write_text(
            "ragbraid: 1\nname: m\ninputs: {x: int}\nnodes: {a: ./sub.yaml}\noutputs: $a\n"
        )
        plan = check_file(folder / "main.yaml", catalogue).plan
        assert plan is not None
        return plan.hash

    assert hash_of("one", 2) == hash_of("two", 2) != hash_of("one", 3)
