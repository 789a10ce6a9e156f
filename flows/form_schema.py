"""The run form of a deployed flow: a JSON Schema made of its inputs, in the form that Prefect stores and its UI shows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema

from ragbraid.dsl.plan import InputSpec

_DEFINITION = "#/definitions/{model}"

_BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
    "minLength": "{} or more characters",
    "maxLength": "{} or fewer characters",
    "minItems": "{} or more items",
    "maxItems": "{} or fewer items",
}
"""How the form says what JSON Schema calls so."""


def form_schema(inputs: Sequence[InputSpec]) -> dict[str, Any]:
    """Return the schema of a flow's inputs: types, defaults, bounds, choices and descriptions, in the file's order.

    It is closed, so that the form and the API refuse an input that the flow does not have. An input whose type JSON
    Schema cannot describe takes anything here; the flow itself still checks it.
    """
    properties: dict[str, Any] = {}
    definitions: dict[str, Any] = {}
    for position, spec in enumerate(inputs):
        described, used = _describe(spec)
        definitions |= used
        properties[spec.name] = {**described, "title": spec.name, "position": position}
        if about := _about(spec, described):
            properties[spec.name]["description"] = about
        if not spec.required:
            properties[spec.name]["default"] = default_as_json(spec)
    schema: dict[str, Any] = {
        "title": "Parameters",
        "type": "object",
        "properties": properties,
        "required": [spec.name for spec in inputs if spec.required],
        "additionalProperties": False,
    }
    if definitions:
        schema["definitions"] = definitions
    return schema


def _about(spec: InputSpec, described: dict[str, Any]) -> str:
    """Return what the form says about an input, with its bounds, of which it says nothing before they are passed."""
    parts = [described, *described.get("anyOf", [])]
    found = {key: part[key] for part in parts for key in _BOUNDS if key in part}
    shown = {key: f"{value:,.10g}" for key, value in found.items()}
    if {"minimum", "maximum"} <= set(shown):
        bounds = f"{shown['minimum']} to {shown['maximum']}"
    else:
        bounds = ", ".join(_BOUNDS[key].format(value) for key, value in shown.items())
    return f"{spec.about} ({bounds})" if spec.about and bounds else spec.about or bounds


def default_as_json(spec: InputSpec) -> Any:
    """Return the default of an input as JSON has it: dates as text, contracts as mappings."""
    return TypeAdapter(spec.type).dump_python(spec.default, mode="json", warnings=False)


def _describe(spec: InputSpec) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        schema = TypeAdapter(spec.type).json_schema(ref_template=_DEFINITION)
    except PydanticInvalidForJsonSchema:
        return {}, {}
    definitions = schema.pop("$defs", {})
    for part in _parts([schema, definitions]):
        _suit_prefect(part)
    return schema, definitions


def _parts(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _parts(item)


def _suit_prefect(part: dict[str, Any]) -> None:
    # A form offers the values of `enum`; `const` it does not know.
    if not isinstance(part.get("const", {}), dict):  # a mapping there is a field of that name
        part["enum"] = [part.pop("const")]
    # Prefect matches by Python's expressions. One that only pydantic's engine reads would break every run's creation.
    pattern = part.get("pattern")
    if isinstance(pattern, str) and not _python_reads(pattern):
        del part["pattern"]


def _python_reads(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True
