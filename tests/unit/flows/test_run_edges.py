"""The edges of a run's drawing, for blocks that are no task runs themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import UUID, uuid4

from ragbraid.dsl.compile import check_text
from ragbraid.dsl.plan import AnyStep, Plan
from ragbraid.flows.run_edges import MAX_EDGES, RunEdges, StepOrder
from ragbraid.flows.scheduler import run_plan
from ragbraid.registry.catalogue import Catalogue
from ragbraid.registry.node import node


@node("edge.add")
def add(x: int, y: int = 1) -> int:
    """Add."""
    return x + y


@node("edge.upto")
def upto(n: int) -> list[int]:
    """Count from 1."""
    return list(range(1, n + 1))


class Drawing:
    """An executor that only draws."""

    handles_policies = False
    takes_blocks = False

    def __init__(self, plan: Plan) -> None:
        self.edges = RunEdges(StepOrder(plan))
        self.names: dict[UUID, str] = {}
        self.parents: dict[str, set[str]] = {}

    async def execute(
        self, step: AnyStep, path: str, call: Callable[[], Awaitable[Any]], inputs: Mapping[str, Any]
    ) -> Any:
        id_ = uuid4()
        self.names[id_] = path
        self.parents[path] = {self.names[parent] for parent in self.edges.add(step, path, id_)}
        return await call()


def drawn(nodes: str, **inputs: Any) -> dict[str, set[str]]:
    """Return, for every step that ran, the steps that it comes after."""
    catalogue = Catalogue()
    for function in (add, upto):
        catalogue.add_node(function)
    checked = check_text(f"ragbraid: 1\nname: f\ninputs: {{x: int}}\n{nodes}", "f.yaml", catalogue)
    assert checked.plan is not None, checked.findings
    plan = checked.plan
    drawing = Drawing(plan)
    asyncio.run(run_plan(plan, inputs, resources=NoResources(), executor=drawing))
    return drawing.parents


class NoResources:
    def get(self, name: str, role: str) -> Any:
        raise AssertionError(name)

    def fingerprint(self, name: str, role: str) -> str:
        raise AssertionError(name)


def test_a_loop_is_drawn_as_a_chain_of_its_rounds_between_what_is_before_and_behind_it() -> None:
    edges = drawn(
        """
nodes:
  before: {use: edge.add, x: $x}
  l:
    loop:
      carry: {n: int = $before}
      nodes:
        left: {use: edge.add, x: $n}
        right: {use: edge.add, x: $n}
        both: {use: edge.add, x: $left, y: $right}
      next: {n: $both}
      max_steps: 2
  after: {use: edge.add, x: $l.n}
outputs: $after
""",
        x=1,
    )
    assert edges == {
        "before": set(),
        "l[1].left": {"before"},
        "l[1].right": {"before"},
        "l[1].both": {"l[1].left", "l[1].right"},
        "l[2].left": {"l[1].both"},
        "l[2].right": {"l[1].both"},
        "l[2].both": {"l[2].left", "l[2].right"},
        "after": {"l[2].both"},
    }


def test_the_items_of_a_map_fan_out_and_in_again() -> None:
    edges = drawn(
        """
nodes:
  many: {use: edge.upto, n: $x}
  m:
    map:
      over: {item: $many}
      nodes:
        g: {nodes: {one: {use: edge.add, x: $item}, two: {use: edge.add, x: $one}}, output: $two}
      output: $g
  after: {use: edge.add, x: "${ m | length }"}
outputs: $after
""",
        x=3,
    )
    assert [edges[f"m[{n}].g.one"] for n in (1, 2, 3)] == [{"many"}] * 3
    assert edges["m[2].g.two"] == {"m[2].g.one"}
    assert edges["after"] == {"m[1].g.two", "m[2].g.two", "m[3].g.two"}


def test_a_map_of_many_items_does_not_drown_the_step_behind_it() -> None:
    edges = drawn(
        """
nodes:
  many: {use: edge.upto, n: $x}
  m:
    map:
      over: {item: $many}
      nodes: {one: {use: edge.add, x: $item}}
      output: $one
  after: {use: edge.add, x: "${ m | length }"}
outputs: $after
""",
        x=MAX_EDGES + 30,
    )
    assert len(edges["after"]) == MAX_EDGES


def test_tries_of_a_gate_follow_each_other_and_a_branch_not_taken_is_not_drawn() -> None:
    edges = drawn(
        """
nodes:
  before: {use: edge.add, x: $x}
  g:
    gate:
      try:
        - {use: edge.add, x: $before}
        - {use: edge.add, x: $before, y: 5}
      enough: ${ out > 4 }
  s:
    switch:
      on: ${ g > 4 }
      cases:
        'true': {use: edge.add, x: $g}
        'false': {use: edge.add, x: $g, y: 9}
  after: {use: edge.add, x: $s}
outputs: $after
""",
        x=1,
    )
    first, second = (path for path in edges if path.startswith("g["))
    assert (edges[first], edges[second]) == ({"before"}, {first})
    taken = next(path for path in edges if path.startswith("s["))
    assert edges[taken] == {second}
    assert edges["after"] == {taken}
