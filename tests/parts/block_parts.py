"""Plans with blocks, built by hand: scopes inside of scopes, so that tests of the runtime do not depend on the compiler.

A step is a function of its scope, its name and its slot. A text that begins with `$` is a reference, looked up from the
innermost scope outwards; `calc` makes an expression; every other value stands for itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import create_model

from ragbraid.dsl.plan import (
    AnyStep,
    Binding,
    Block,
    BlockStep,
    Body,
    Branch,
    Call,
    Carried,
    Computed,
    Deploy,
    Gate,
    Group,
    InputSpec,
    Limits,
    Literally,
    Loop,
    Map,
    Plan,
    Policy,
    SlotRef,
    Step,
    StopCondition,
    Switch,
    Value,
)
from ragbraid.flows.scheduler import run_plan
from ragbraid.flows.trace import Trace
from ragbraid.registry.context import report_usage
from ragbraid.registry.contracts import Usage
from ragbraid.registry.errors import SourceSpan
from ragbraid.registry.node import contract_of, node

SPAN = SourceSpan("hand.yaml", 1, 1, 1, 1)

Written = Callable[["Scope", str, int], AnyStep]


class Scope:
    """The names that a body can see. `reads` gathers the slots of this body that are read by what is being made."""

    def __init__(self, names: Sequence[str], parent: Scope | None) -> None:
        self.slots = {name: slot for slot, name in enumerate(names)}
        self.parent = parent
        self.reads: set[int] = set()

    def refer(self, text: str) -> SlotRef:
        name, *path = text.removeprefix("$").split(".")
        scope, depth = self, 0
        while name not in scope.slots:
            assert scope.parent is not None, f"{text} is in no scope"
            scope, depth = scope.parent, depth + 1
        scope.reads.add(scope.slots[name])
        return SlotRef(depth, scope.slots[name], tuple(path), text)

    def value(self, written: Any) -> Value:
        if isinstance(written, str) and written.startswith("$"):
            return self.refer(written)
        if isinstance(written, calc):
            names = tuple((name, self.refer(text)) for name, text in written.names.items())
            return Computed(written.text, names, written.evaluate)
        return Literally(written)

    def noted(self, written: Any) -> tuple[Value, frozenset[int]]:
        """Return a value and the slots of this body that it reads."""
        before, self.reads = self.reads, set()
        value = self.value(written)
        found, self.reads = frozenset(self.reads), before
        return value, found

    def policy(self, written: Mapping[str, Any]) -> Policy:
        planned = {key: self.value(written[key]) for key in ("when", "ensure") if key in written}
        if callable(written.get("on_error")):
            planned["on_error"] = written["on_error"](self, "spare", -1)
        return Policy(**{**written, **planned})


class calc:
    def __init__(self, evaluate: Callable[..., Any], text: str = "...", /, **names: str) -> None:
        self.evaluate, self.text, self.names = evaluate, text, names


def body_of(steps: Mapping[str, Written], inputs: Sequence[str], parent: Scope | None) -> tuple[Body, Scope]:
    scope = Scope([*inputs, *steps], parent)
    made = []
    for name, make in steps.items():
        scope.reads = set()
        made.append(make(scope, name, scope.slots[name]))
    scope.reads = set()
    return Body(tuple(inputs), tuple(made)), scope


def branch_of(steps: Mapping[str, Written], output: Any, inputs: Sequence[str], parent: Scope) -> Branch:
    body, scope = body_of(steps, inputs, parent)
    return Branch(body, scope.value(output))


def use(
    function: Callable[..., Any], *, after: Sequence[str] = (), policy: Mapping[str, Any] | None = None, **ports: Any
) -> Written:
    def make(scope: Scope, name: str, slot: int) -> Step:
        contract = contract_of(function)
        bindings = tuple(Binding(port, scope.value(value), "written", "") for port, value in ports.items())
        planned = scope.policy(policy or {})
        needs = frozenset(scope.reads | {scope.slots[other] for other in after})
        return Step(name, name, slot, contract, bindings, (), contract.output, needs, planned, SPAN)

    return make


def _block(make_block: Callable[[Scope], Block], policy: Mapping[str, Any]) -> Written:
    def make(scope: Scope, name: str, slot: int) -> BlockStep:
        block = make_block(scope)
        planned = scope.policy(policy)
        return BlockStep(name, name, slot, block, Any, frozenset(scope.reads), planned, SPAN)

    return make


def loop(
    steps: Mapping[str, Written],
    carry: Mapping[str, tuple[Any, Any]],
    following: Mapping[str, Any] | None = None,
    stop_when: Mapping[str, Any] | None = None,
    *,
    max_steps: Any = 10,
    over: tuple[str, Any] | None = None,
    **policy: Any,
) -> Written:
    """A loop; `carry` maps a state to its type and start, `over` is the item's name and the list."""

    def make(scope: Scope) -> Loop:
        starts = {name: scope.value(start) for name, (_, start) in carry.items()}
        bound = scope.value(max_steps)
        items = None if over is None else scope.value(over[1])
        body, inner = body_of(steps, [*carry, *([over[0]] if over else [])], scope)
        states = []
        for name, (kind, _) in carry.items():
            value, needs = inner.noted((following or {})[name]) if name in (following or {}) else (None, frozenset())
            states.append(Carried(name, kind, starts[name], value, needs))
        stops = tuple(StopCondition(reason, *inner.noted(held)) for reason, held in (stop_when or {}).items())
        fields: dict[str, Any] = {name: (kind, ...) for name, (kind, _) in carry.items()}
        record = create_model("Record", **fields, steps=(int, ...), stopped_by=(str, ...))
        return Loop(body, tuple(states), stops, bound, items, record)

    return _block(make, policy)


def each(
    item: str,
    over: Any,
    steps: Mapping[str, Written],
    output: Any,
    *,
    concurrency: int = 4,
    failed: Any = "fail",
    **policy: Any,
) -> Written:
    def make(scope: Scope) -> Map:
        items = scope.value(over)
        return Map(branch_of(steps, output, [item], scope), items, concurrency, failed)

    return _block(make, policy)


def switch(
    on: Any, cases: Mapping[str, tuple[Any, Mapping[str, Written], Any]], otherwise: Any = None, **policy: Any
) -> Written:
    """A switch; a case is what it compares with (a condition where `on` is None), its steps and its output."""

    def make(scope: Scope) -> Switch:
        wanted = None if on is None else scope.value(on)
        planned = tuple(
            (label, scope.value(case) if on is None else case, branch_of(steps, output, [], scope))
            for label, (case, steps, output) in cases.items()
        )
        return Switch(wanted, planned, None if otherwise is None else branch_of(*otherwise, [], scope))

    return _block(make, policy)


def gate(tries: Sequence[tuple[Mapping[str, Written], Any]], enough: calc, **policy: Any) -> Written:
    def make(scope: Scope) -> Gate:
        condition = scope.value(enough)
        assert isinstance(condition, Computed)
        return Gate(tuple(branch_of(steps, output, [], scope) for steps, output in tries), condition)

    return _block(make, policy)


def group(steps: Mapping[str, Written], output: Any, **policy: Any) -> Written:
    return _block(lambda scope: Group(branch_of(steps, output, [], scope)), policy)


def call(
    steps: Mapping[str, Written], outputs: Any, inputs: Mapping[str, type], given: Mapping[str, Any], **policy: Any
) -> Written:
    """Another flow; `outputs` is one value or a mapping of named ones."""

    def make(scope: Scope) -> Call:
        arguments = tuple(Binding(name, scope.value(value), "written", "") for name, value in given.items())
        body, inner = body_of(steps, list(inputs), None)
        specs = tuple(InputSpec(name, kind, None, True, "", {}) for name, kind in inputs.items())
        named = outputs if isinstance(outputs, dict) else {"": outputs}
        values = tuple((name, inner.value(value)) for name, value in named.items())
        fields: dict[str, Any] = dict.fromkeys(named, (Any, ...))
        record = create_model("Outputs", **fields) if isinstance(outputs, dict) else None
        return Call("other", "other.yaml", body, arguments, specs, values, record)

    return _block(make, policy)


def plan_of(
    steps: Mapping[str, Written],
    inputs: Mapping[str, Any] | None = None,
    output: Any = None,
    limits: Limits | None = None,
) -> Plan:
    """A plan that gives `output`, by default what its last step gives."""
    inputs = inputs or {}
    body, scope = body_of(steps, list(inputs), None)
    return Plan(
        name="by_hand",
        file="hand.yaml",
        about="",
        inputs=tuple(InputSpec(name, kind, None, True, "", {}) for name, kind in inputs.items()),
        body=body,
        outputs=(("", scope.value(output or f"${list(steps)[-1]}")),),
        output_types={"": Any},
        resources={},
        roles={},
        limits=limits or Limits(),
        deploy=Deploy(),
        hash="0" * 64,
    )


class Said(NamedTuple):
    """What a plan that has run gave, and what it did."""

    value: Any
    trace: Trace

    def paths(self, state: str | None = "any") -> list[str]:
        return [step.path for step in self.trace.steps if state in ("any", step.state)]

    def notes(self, path: str) -> list[str]:
        return next(step.notes for step in self.trace.steps if step.path == path)


async def arun(steps: Mapping[str, Written], output: Any = None, limits: Limits | None = None, **inputs: Any) -> Said:
    """Run a flow of these steps and hold it to having left no task behind."""
    plan = plan_of(steps, dict.fromkeys(inputs, Any), output, limits)
    before = asyncio.all_tasks()
    try:
        result = await run_plan(plan, inputs, resources=NoResources())
    finally:
        assert asyncio.all_tasks() == before
    return Said(result.outputs, result.trace)


def run(steps: Mapping[str, Written], output: Any = None, limits: Limits | None = None, **inputs: Any) -> Said:
    """Run a flow of these steps on a loop of its own; what hangs fails."""

    async def in_time() -> Said:
        async with asyncio.timeout(60):
            return await arun(steps, output, limits, **inputs)

    return asyncio.run(in_time())


class NoResources:
    def get(self, name: str, role: str) -> Any:
        raise AssertionError(f"no step asks for {name}")

    def fingerprint(self, name: str, role: str) -> str:
        raise AssertionError(f"no step asks for {name}")


@node("demo.add")
def add(x: int, y: int = 1) -> int:
    """Add."""
    return x + y


@node("demo.aadd")
async def aadd(x: int, y: int = 1) -> int:
    """Add, on the loop."""
    await asyncio.sleep(0)
    return x + y


@node("demo.act")
async def act(does: Any, x: Any = None) -> Any:
    """Do what the test says with x."""
    return await does(x)


@node("demo.now")
def now(does: Any, x: Any = None) -> Any:
    """Do what the test says with x, at once."""
    return does(x)


@node("demo.forever")
async def forever(x: Any = None) -> Any:
    """Never end."""
    await asyncio.Event().wait()


@node("demo.ask")
def ask(x: Any = None) -> Any:
    """Call a model."""
    report_usage(Usage(llm_calls=1))
    return x


def odd_only(x: int) -> int:
    """Fail for even numbers; for `now`."""
    if x % 2 == 0:
        raise ValueError(f"{x} is even")
    return x
