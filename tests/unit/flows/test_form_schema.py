import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from ragbraid.dsl.inputs import read_inputs
from ragbraid.dsl.parse import parse_flow
from ragbraid.dsl.report import Report
from ragbraid.dsl.source import read_source
from ragbraid.flows.form_schema import form_schema
from ragbraid.registry.catalogue import installed_catalogue

CATALOGUE = installed_catalogue()
HEAD = "ragbraid: 1\nname: form\ninputs:\n"


def inputs_of(declarations: str) -> Any:
    root, findings = read_source(HEAD + declarations + "nodes: {a: generate.extract}\noutputs: $a\n", "form.yaml")
    assert root is not None, findings
    report = Report()
    syntax = parse_flow(root, "form.yaml", Report())
    assert syntax is not None
    specs = read_inputs(syntax.inputs, CATALOGUE, report)
    assert not report.failed, report.findings
    return specs


def property_of(declaration: str) -> dict[str, Any]:
    """The schema of one input without what only orders and names it."""
    found = dict(form_schema(inputs_of(f"  a: {declaration}\n"))["properties"]["a"])
    assert (found.pop("title"), found.pop("position")) == ("a", 0)
    return found


@pytest.mark.parametrize(
    ("declaration", "expected"),
    [
        ("str", {"type": "string"}),
        ("int = 5", {"type": "integer", "default": 5}),
        ("float", {"type": "number"}),
        ("bool = true", {"type": "boolean", "default": True}),
        ("date = 2026-03-29", {"type": "string", "format": "date", "default": "2026-03-29"}),
        ("datetime", {"type": "string", "format": "date-time"}),
        ("any", {}),
        ("path", {"type": "string"}),
        ("'str | none = none'", {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}),
        ("'list[str] = []'", {"type": "array", "items": {"type": "string"}, "default": []}),
        ("'dict[str, any]'", {"type": "object", "additionalProperties": True}),
        ("'literal[\"a\", \"b\"] = a'", {"type": "string", "enum": ["a", "b"], "default": "a"}),
        ("'literal[\"a\"]'", {"type": "string", "enum": ["a"]}),
        ("{type: int, ge: 1, le: 50, about: how many}", {
            "type": "integer", "minimum": 1, "maximum": 50, "description": "how many (1 to 50)",
        }),
        ("{type: float, gt: 0, lt: 1}", {
            "type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1, "description": "more than 0, less than 1",
        }),
        ("{type: 'int | none', default: none, ge: 2, about: how often}", {
            "anyOf": [{"type": "integer", "minimum": 2}, {"type": "null"}], "default": None,
            "description": "how often (at least 2)",
        }),
        ("{type: str, min_length: 1, max_length: 9, pattern: '^[a-z]+$'}", {
            "type": "string", "minLength": 1, "maxLength": 9, "pattern": "^[a-z]+$",
            "description": "1 or more characters, 9 or fewer characters",
        }),
        ("{type: int, choices: [1, 2]}", {"type": "integer", "enum": [1, 2]}),
    ],
)  # fmt: skip
def test_an_input_of_every_type_has_its_type_default_bounds_and_choices(
    declaration: str, expected: dict[str, Any]
) -> None:
    assert property_of(declaration) == expected


def test_a_pattern_that_only_pydantic_reads_is_left_to_the_flow() -> None:
    assert property_of(r"{type: str, pattern: '^\p{L}+$'}") == {"type": "string"}


def test_the_form_is_closed_and_keeps_the_order_of_the_file() -> None:
    schema = form_schema(inputs_of("  b: str\n  a: int = 3\n"))
    assert [(name, part["position"]) for name, part in schema["properties"].items()] == [("b", 0), ("a", 1)]
    assert schema["required"] == ["b"]
    validator = Draft202012Validator(schema)
    assert validator.is_valid({"b": "x"})
    assert not validator.is_valid({"b": "x", "c": 1})
    assert not validator.is_valid({"b": 1})


@pytest.mark.parametrize("name", sorted(CATALOGUE.types()))
def test_every_contract_can_be_an_input_and_its_definitions_are_found(name: str) -> None:
    schema = form_schema(inputs_of(f'  a: "{name}"\n  b: "list[{name}] | none = none"\n'))
    text = json.dumps(schema)
    assert "$defs" not in text
    assert {part.split('"')[0] for part in text.split("#/definitions/")[1:]} <= set(schema.get("definitions", {}))


def test_names_that_pydantic_keeps_for_itself_are_inputs_like_others() -> None:
    schema = form_schema(inputs_of("  schema: str\n  json: str\n  copy: str\n  model_name: str\n"))
    assert list(schema["properties"]) == ["schema", "json", "copy", "model_name"]
