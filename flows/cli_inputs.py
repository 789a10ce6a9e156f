"""Reading a flow's inputs from the command line."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from ragbraid.dsl.types import strip, without_none

from ragbraid.dsl.plan import InputSpec, Plan
from ragbraid.dsl.source import read_file, read_source
from ragbraid.dsl.source_nodes import MappingNode, to_python
from ragbraid.registry.suggest import did_you_mean


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


def _read_value(spec: InputSpec, text: str) -> Any:
    if strip(without_none(spec.type)) is str:
        return text
    node, findings = read_source(text, f"-i {spec.name}")
    if node is None or findings:
        return text
    return to_python(node)


def _read_inputs_file(file: Path) -> dict[str, Any]:
    _, node, findings = read_file(file)
    if findings:
        raise click.UsageError(f"the inputs file {findings[0].span} cannot be read: {findings[0].message}")
    if not isinstance(node, MappingNode):
        raise click.UsageError(f"the inputs file {file} is not a mapping of names to values")
    return to_python(node)  # type: ignore[no-any-return]
