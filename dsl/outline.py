"""A plan as readers see it: every step with a name of its own, its values, and what is inside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ragbraid.dsl.plan import (
    AnyStep,
    Body,
    Branch,
    Call,
    Gate,
    Group,
    Literally,
    Loop,
    Map,
    OriginKind,
    Plan,
    SlotRef,
    Step,
    Switch,
    Value,
)
from ragbraid.dsl.types import item_type


@dataclass(frozen=True, slots=True)
class Line:
    """A value of a step: of a port, or of a key of a block such as `carry.hits`. The type is None where it has no say."""

    port: str
    type: Any
    origin: OriginKind
    value: Value


@dataclass(frozen=True)
class Names:
    """What the slots of a body are called, and their types; for a reference the bodies around it as well."""

    slots: dict[int, tuple[str, Any]] = field(default_factory=dict)
    around: Names | None = None

    def resolve(self, ref: SlotRef) -> tuple[str, Any]:
        """Return the name and the type of what a reference points to; the type is that of the whole slot."""
        names = self
        for _ in range(ref.depth):
            assert names.around is not None
            names = names.around
        return names.slots[ref.slot]


@dataclass(frozen=True, slots=True)
class Item:
    """A step: `id` tells it from every other of the flow (`interleave.think`, `route[general].fused`)."""

    id: str
    step: AnyStep
    lines: tuple[Line, ...]
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """A body: the flow's own, or one inside a block. `givens` are its inputs, states and loop variables by id."""

    label: str
    names: Names
    givens: tuple[tuple[str, str], ...]
    """Id and short name of each."""
    items: tuple[Item, ...]
    results: tuple[Line, ...]
    """What leaves it."""


def outline(plan: Plan) -> Part:
    """Return the flow's own body."""
    types = [spec.type for spec in plan.inputs]
    results = tuple(Line(name, plan.output_types[name], "written", value) for name, value in plan.outputs)
    return _part("", plan.body, types, "", None, results)


def walk(part: Part) -> Iterator[tuple[Part, Item]]:
    """Yield every step, at any depth, each before what is inside it."""
    for item in part.items:
        yield part, item
        for inner in item.parts:
            yield from walk(inner)


def _part(
    label: str, body: Body, types: Sequence[Any], prefix: str, around: Names | None, results: tuple[Line, ...]
) -> Part:
    slots = {slot: (prefix + name, type_) for slot, (name, type_) in enumerate(zip(body.inputs, types, strict=True))}
    slots |= {step.slot: (prefix + step.name, step.output) for step in body.steps}
    names = Names(slots, around)
    givens = tuple((prefix + name, name) for name in body.inputs)
    items = tuple(_item(step, prefix + step.name, names) for step in body.steps)
    return Part(label, names, givens, items, results)


def _item(step: AnyStep, path: str, names: Names) -> Item:
    if isinstance(step, Step):
        return Item(path, step, tuple(_port_lines(step)), ())
    lines, parts = _inside(step.block, path, names)
    return Item(path, step, lines, parts)


def _port_lines(step: Step) -> Iterator[Line]:
    for binding in step.bindings:
        port = step.node.port(binding.port)
        yield Line(binding.port, None if port is None else port.type, binding.origin, binding.value)


def _inside(block: Any, path: str, names: Names) -> tuple[tuple[Line, ...], tuple[Part, ...]]:
    match block:
        case Loop():
            return _loop(block, path, names)
        case Map(items=items, branch=branch):
            name, item = branch.body.inputs[0], item_type(_type_of(items, names)) or Any
            return (_line(f"over.{name}", items),), (_branch("", branch, path, names, [item]),)
        case Group(branch=branch):
            return (), (_branch("", branch, path, names),)
        case Gate(tries=tries, enough=enough):
            parts = [_branch(str(number), branch, path, names) for number, branch in enumerate(tries, start=1)]
            return (_line("enough", enough),), tuple(parts)
        case Switch():
            return _switch(block, path, names)
        case Call():
            types = [spec.type for spec in block.checks]
            lines = tuple(
                Line(binding.port, type_, binding.origin, binding.value)
                for binding, type_ in zip(block.inputs, types, strict=True)
            )
            results = tuple(_line(f"output.{name}".rstrip("."), value) for name, value in block.outputs)
            return lines, (_part("", block.body, types, f"{path}.", None, results),)
    raise AssertionError(f"{type(block).__name__} is no block")


def _loop(block: Loop, path: str, names: Names) -> tuple[tuple[Line, ...], tuple[Part, ...]]:
    types = [state.type for state in block.carried]
    lines = [Line(f"carry.{state.name}", state.type, "written", state.start) for state in block.carried]
    if block.items is not None:
        lines.append(_line(f"for.{block.body.inputs[-1]}", block.items))
        types.append(item_type(_type_of(block.items, names)) or Any)
    lines.append(Line("max_steps", int, "written", block.max_steps))
    results = [
        Line(f"next.{state.name}", state.type, "written", state.next)
        for state in block.carried
        if state.next is not None
    ]
    results += [Line(f"stop_when.{stop.reason}", bool, "written", stop.condition) for stop in block.stops]
    return tuple(lines), (_part("", block.body, types, f"{path}.", names, tuple(results)),)


def _switch(block: Switch, path: str, names: Names) -> tuple[tuple[Line, ...], tuple[Part, ...]]:
    if block.on is not None:
        lines = [_line("on", block.on)]
    else:
        lines = [Line(f"when.{label}", bool, "written", condition) for label, condition, _ in block.cases]
    parts = [_branch(label, branch, path, names) for label, _, branch in block.cases]
    if block.otherwise is not None:
        parts.append(_branch("else", block.otherwise, path, names))
    return tuple(lines), tuple(parts)


def _branch(label: str, branch: Branch, path: str, names: Names, types: Sequence[Any] = ()) -> Part:
    prefix = f"{path}[{label}]." if label else f"{path}."
    return _part(label, branch.body, types, prefix, names, (_line("output", branch.output),))


def _line(port: str, value: Value) -> Line:
    return Line(port, None, "written", value)


def _type_of(value: Value, names: Names) -> Any:
    """Return the type of a list that a block goes over, as far as a drawing needs it."""
    if isinstance(value, SlotRef) and not value.path:
        return names.resolve(value)[1]
    return list[Any] if isinstance(value, Literally) else Any
