"""Reading a flow's inputs from the command line, and saying which inputs a flow has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from ragbraid.dsl.plan import InputSpec, Plan
from ragbraid.dsl.source import read_file, read_source
from ragbraid.dsl.source_nodes import MappingNode, to_python
from ragbraid.dsl.tables import format_table
from ragbraid.dsl.types import describe, strip, without_none
from ragbraid.registry.suggest import did_you_mean

_BOUND_SIGNS = {
    "ge": ">=", "gt": ">", "le": "<=", "lt": "<",
    "min_length": "length >=", "max_length": "length <=", "pattern": "matches", "choices": "one of",
}  # fmt: skip


def parse_inputs(plan: Plan, pairs: Iterable[str], file: Path | None) -> dict[str, Any]:
    """Return the inputs of a run from `NAME=VALUE` pairs over those of a JSON or YAML file.

    A value for a text input is taken as it stands; any other is read as YAML (`5`, `true`, `[a, b]`).

    Raises:
        click.UsageError: a pair without `=`, a name that the flow does not have, or a file that is no mapping.
    """
    values = {} if file is None else _read_inputs_file(file)
    specs = {spec.name: spec for spec in plan.inputs}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise click.UsageError(f"an input is written NAME=VALUE, not `{pair}`")
        if name not in specs:
            hint = did_you_mean(name, specs) or f"it has {', '.join(specs) or 'none'}"
            raise click.UsageError(f"the flow has no input `{name}`; {hint}")
        values[name] = _read_value(specs[name], text)
    return values


def refuse_missing(plan: Plan, values: Mapping[str, Any]) -> None:
    """Raise click.UsageError with the flow's inputs in a table where one is missing that has no default."""
    missing = [spec.name for spec in plan.inputs if spec.required and spec.name not in values]
    if not missing:
        return
    named = ", ".join(f"`{name}`" for name in missing)
    example = " ".join(f'-i {name}="..."' for name in missing)
    raise click.UsageError(
        f"`{plan.name}` needs the {'input' if len(missing) == 1 else 'inputs'} {named}: {example}\n\n"
        + inputs_table(plan.inputs)
    )


def inputs_table(specs: Iterable[InputSpec]) -> str:
    """Return the inputs of a flow as a table: type with bounds, default, and what each is about."""
    rows = [
        (
            spec.name,
            describe(spec.type),
            "required" if spec.required else repr(spec.default),
            input_bounds(spec),
            spec.about,
        )
        for spec in specs
    ]
    return format_table(("INPUT", "TYPE", "DEFAULT", "BOUNDS", "ABOUT"), rows) if rows else "no inputs"


def input_bounds(spec: InputSpec) -> str:
    """Return the bounds and choices of an input in words, such as `>= 1, <= 50`."""
    return ", ".join(f"{sign} {spec.declared[key]}" for key, sign in _BOUND_SIGNS.items() if key in spec.declared)


def _read_value(spec: InputSpec, text: str) -> Any:
    try:
        text.encode()
    except UnicodeEncodeError:
        # What the shell handed over was no UTF-8; Python keeps such bytes as lone surrogates, which no model reads.
        raise click.UsageError(f"the value of `{spec.name}` is not UTF-8 text") from None
    if strip(without_none(spec.type)) is str:
        return text
    node, findings = read_source(text, f"-i {spec.name}")
    if node is None or findings:
        return text
    return to_python(node)


def _read_inputs_file(file: Path) -> dict[str, Any]:
    _, node, findings = read_file(file)
    if findings:
        finding = findings[0]
        place = f", line {finding.span.line}" if node is not None or finding.code != "RB005" else ""
        raise click.UsageError(f"the inputs file {file}{place} cannot be read: {finding.message}")
    if not isinstance(node, MappingNode):
        raise click.UsageError(f"the inputs file {file} is not a mapping of names to values")
    return to_python(node)  # type: ignore[no-any-return]
