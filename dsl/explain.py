"""Where every port of every step gets its value from."""

from __future__ import annotations

from dataclasses import dataclass

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
    """Return where every port of every step gets its value from, steps in running order."""
    rows = []
    for step in plan.body.steps:
        if not isinstance(step, Step):
            continue
        for binding in step.bindings:
            port = step.node.port(binding.port)
            type_ = "" if port is None else describe(port.type)
            rows.append(PortRow(step.name, binding.port, type_, binding.origin, show_value(binding.value)))
        for parameter, name in step.resources:
            rows.append(PortRow(step.name, parameter, plan.roles[name], "resource", name))
    return rows


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
            return "[" + ", ".join(show_value(item) for item in value.items) + "]"
        case Mapped():
            return "{" + ", ".join(f"{key}: {show_value(item)}" for key, item in value.items) + "}"
        case Converted():
            return f"{show_value(value.value)} ({value.conversion.name})"


def _shorten(text: str, limit: int = 60) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."
