"""The connections of a plan as a list: what drawings show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ragbraid.dsl.outline import Item, Line, Names, Part, outline
from ragbraid.dsl.plan import (
    BlockStep,
    Computed,
    Converted,
    Literally,
    Mapped,
    OriginKind,
    Plan,
    Sequenced,
    SlotRef,
    Value,
)
from ragbraid.dsl.types import describe

EdgeKind = Literal["port", "condition", "key", "result", "output"]


@dataclass(frozen=True, slots=True)
class Edge:
    """A value that goes from an input or a step into a step, out of the inside of a block, or into an output.

    `source` and `target` are the ids of steps, inputs, states and loop variables (`ragbraid.dsl.outline`). The kinds:
    a `port` or a `condition` (`when`, `ensure`) of a step, a `key` of a block (`carry.hits`), a `result` that leaves
    the inside of the block that is the target (`next.hits`), or an `output` of the flow (the target is `output`).
    """

    source: str
    target: str
    port: str
    type: str
    conversion: str | None
    origin: OriginKind
    kind: EdgeKind = "port"


def plan_edges(plan: Plan) -> list[Edge]:
    """Return every connection, steps in running order, the insides of blocks after the block, outputs last."""
    whole = outline(plan)
    edges = [edge for item in whole.items for edge in _edges_of(item, whole.names)]
    for line in whole.results:
        edges.extend(_edges(line, "output", whole.names, "output"))
    return list(dict.fromkeys(edges))


def _edges_of(item: Item, names: Names) -> Iterator[Edge]:
    kind: EdgeKind = "key" if isinstance(item.step, BlockStep) else "port"
    for line in item.lines:
        yield from _edges(line, item.id, names, kind)
    for key, condition in (("when", item.step.policy.when), ("ensure", item.step.policy.ensure)):
        if condition is not None:
            yield from _edges(Line(key, None, "written", condition), item.id, names, "condition")
    for part in item.parts:
        yield from _edges_inside(part, item.id)


def _edges_inside(part: Part, block: str) -> Iterator[Edge]:
    for item in part.items:
        yield from _edges_of(item, part.names)
    for line in part.results:
        yield from _edges(line, block, part.names, "result")


def _edges(line: Line, target: str, names: Names, kind: EdgeKind) -> Iterator[Edge]:
    for ref, conversion in _references(line.value):
        source, type_ = names.resolve(ref)
        # A part of a value is shown by what is written, the whole of it by its type.
        if kind == "output" and line.type is not None:
            shown = describe(line.type)
        else:
            shown = ref.text if ref.path else describe(type_)
        yield Edge(source, target, line.port, shown, conversion, line.origin, kind)


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
