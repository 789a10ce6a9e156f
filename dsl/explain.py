"""Where every port of every step gets its value from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ragbraid.dsl.outline import Line, outline, walk
from ragbraid.dsl.plan import Computed, Converted, Literally, Mapped, OriginKind, Plan, Sequenced, SlotRef, Step, Value
from ragbraid.dsl.tables import format_table
from ragbraid.dsl.types import describe

_ORIGINS = {"ambient": "name in scope"}


@dataclass(frozen=True, slots=True)
class PortRow:
    """One line of the table that `explain` prints."""

    step: str
    port: str
    type: str
    origin: OriginKind
    value: str


def explain_plan(plan: Plan) -> str:
    """Return the table that says for every port whether it is written, an arrow, a name in scope or the default."""
    rows = [
        (row.step, row.port, row.type, _ORIGINS.get(row.origin, row.origin), row.value) for row in explain_ports(plan)
    ]
    return format_table(("STEP", "PORT", "TYPE", "FROM", "VALUE"), rows)


def explain_ports(plan: Plan) -> list[PortRow]:
    """Return where every port of every step gets its value from, steps in running order.

    The lines of a block are its keys, such as `carry.hits` and `max_steps`, then what is inside it, then what leaves
    it, such as `next.hits`, `stop_when.answered` or `output`.
    """
    rows: list[PortRow] = []
    for _, item in walk(outline(plan)):
        rows.extend(_row(item.id, line) for line in item.lines)
        if isinstance(item.step, Step):
            rows.extend(
                PortRow(item.id, need, plan.roles[name], "resource", name) for need, name in item.step.resources
            )
        for part in item.parts:
            label = f"[{part.label}]" if part.label else ""
            rows.extend(_row(item.id + label, line) for line in part.results)
    return rows


def _row(step: str, line: Line) -> PortRow:
    type_ = "" if line.type is None else describe(line.type)
    return PortRow(step, line.port, type_, line.origin, show_value(line.value))


def _parts(value: Value) -> Iterator[str]:
    if isinstance(value, Sequenced):
        yield from (show_value(item) for item in value.items)
    elif isinstance(value, Mapped):
        yield from (f"{key}: {show_value(item)}" for key, item in value.items)


def show_value(value: Value) -> str:
    """Return a value as an author would write it."""
    match value:
        case Literally():
            return _shorten(repr(value.value))
        case SlotRef():
            return f"${value.text}"
        case Computed():
            return _shorten(value.text)
        case Sequenced():
            return "[" + ", ".join(_parts(value)) + "]"
        case Mapped():
            return "{" + ", ".join(_parts(value)) + "}"
        case Converted():
            return f"{show_value(value.value)} ({value.conversion.name})"


def _shorten(text: str, limit: int = 60) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."
