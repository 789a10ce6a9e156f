"""The connections of a plan as a list: what `explain` tabulates and drawings show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from ragbraid.dsl.plan import (
    Binding,
    Computed,
    Converted,
    Literally,
    Mapped,
    OriginKind,
    Plan,
    Sequenced,
    SlotRef,
    Step,
    Value,
)
from ragbraid.dsl.types import describe


@dataclass(frozen=True, slots=True)
class Edge:
    """A value that goes from an input or a step into a port or a condition of a step, or into an output.

    The target of an output edge is `output`; `kind` tells it from a step of that name.
    """

    source: str
    target: str
    port: str
    type: str
    conversion: str | None
    origin: OriginKind
    kind: Literal["port", "condition", "output"] = "port"


def plan_edges(plan: Plan) -> list[Edge]:
    """Return every connection, steps in running order, outputs last (their target is `output`)."""
    names = slot_names(plan)
    types = slot_types(plan)
    edges: list[Edge] = []
    for step in plan.body.steps:
        for binding in step.bindings if isinstance(step, Step) else ():
            edges.extend(_edges_of(binding, step.name, names, types))
        for key, condition in (("when", step.policy.when), ("ensure", step.policy.ensure)):
            for ref, _ in _references(condition) if condition is not None else ():
                type_ = describe(types[ref.slot])
                edges.append(Edge(names[ref.slot], step.name, key, type_, None, "written", "condition"))
    for name, value in plan.outputs:
        type_ = describe(plan.output_types[name])
        for ref, conversion in _references(value):
            edges.append(Edge(names[ref.slot], "output", name, type_, conversion, "written", "output"))
    return list(dict.fromkeys(edges))


def slot_names(plan: Plan) -> dict[int, str]:
    """Return the name behind every slot of the plan's body."""
    return dict(enumerate(plan.body.inputs)) | {step.slot: step.name for step in plan.body.steps}


def slot_types(plan: Plan) -> dict[int, Any]:
    """Return the type of every slot of the plan's body."""
    types = {position: spec.type for position, spec in enumerate(plan.inputs)}
    return types | {step.slot: step.output for step in plan.body.steps}


def _edges_of(binding: Binding, step: str, names: dict[int, str], types: dict[int, Any]) -> Iterator[Edge]:
    for ref, conversion in _references(binding.value):
        if ref.depth == 0:
            type_ = describe(types[ref.slot]) if not ref.path else ref.text
            yield Edge(names[ref.slot], step, binding.port, type_, conversion, binding.origin)


def _references(value: Value, conversion: str | None = None) -> Iterator[tuple[SlotRef, str | None]]:
    match value:
        case SlotRef():
            yield value, conversion
        case Computed():
            yield from ((ref, conversion) for _, ref in value.names)
        case Sequenced():
            for item in value.items:
                yield from _references(item, conversion)
        case Mapped():
            for _, item in value.items:
                yield from _references(item, conversion)
        case Converted():
            yield from _references(value.value, value.conversion.name)
        case Literally():
            return
