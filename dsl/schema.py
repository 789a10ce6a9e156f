"""The JSON Schema of flow files, node parameters included: what an editor completes and underlines by."""

from __future__ import annotations

from typing import Any

from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError

from ragbraid.dsl.deploy import DEPLOY_KEYS, LIMIT_KEYS, VISIBLE
from ragbraid.dsl.parse import INPUT_KEYS, LANGUAGE_VERSION, REQUIRED_TOP_KEYS
from ragbraid.dsl.policy import MAX_ATTEMPTS, RETRY_KINDS
from ragbraid.registry.catalogue import Catalogue
from ragbraid.registry.node import NodeContract, Port
from ragbraid.registry.providers import ResourceProvider

_REFERENCE = {"type": "string", "pattern": r"\$", "description": "a reference, an expression or a template"}
_DURATION = {"type": ["string", "number"], "description": "seconds, or 500ms, 30s, 2m, 1h, 7d"}
_COUNT = {"type": "integer", "minimum": 1}
_WORD = {"type": "string"}


def flow_schema(catalogue: Catalogue) -> dict[str, Any]:
    """Return a JSON Schema (2020-12) that accepts every flow file the checker accepts for its shape.

    References, expressions and templates are accepted wherever a value may stand; types of references are the
    checker's business.
    """
    nodes = catalogue.nodes()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "ragbraid flow",
        "type": "object",
        "required": list(REQUIRED_TOP_KEYS),
        "additionalProperties": False,
        "properties": {
            "ragbraid": {"const": LANGUAGE_VERSION, "description": "version of the language"},
            "name": _WORD,
            "about": {"type": "string", "description": "what the flow is for, in a sentence"},
            "inputs": {"type": "object", "additionalProperties": _input_schema()},
            "resources": {"type": "object", "additionalProperties": _resource_schema(catalogue.resources())},
            "nodes": {"type": "object", "minProperties": 1, "additionalProperties": {"$ref": "#/$defs/node"}},
            "flow": {"anyOf": [_WORD, {"type": "array", "items": _WORD}], "description": "arrows: a, b -> c -> d"},
            "outputs": {"anyOf": [_WORD, {"type": "object", "minProperties": 1}]},
            "limits": _limits_schema(),
            "deploy": _deploy_schema(),
        },
        "$defs": {"node": _node_schema(nodes), **_reserved_schemas(), **_type_definitions(nodes)},
    }


def port_schema(port: Port) -> dict[str, Any]:
    """Return the JSON Schema of what may be written for a port: a literal of its type, or anything with a `$`."""
    literal, _ = _literal_schema(port)
    schema: dict[str, Any] = {"anyOf": [literal, _REFERENCE]} if literal else dict(_REFERENCE)
    if port.about:
        schema["description"] = port.about
    if not port.required and isinstance(port.default, str | int | float | bool | None):
        schema["default"] = port.default
    return schema


def _literal_schema(port: Port) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schema of a port's literals and the definitions that it refers to, named `type.<contract>`."""
    try:
        literal = port.adapter.json_schema(ref_template="#/$defs/type.{model}")
    except (PydanticInvalidForJsonSchema, PydanticSchemaGenerationError):
        # A port whose type has no JSON form can only be filled by a reference.
        return {}, {}
    definitions = {f"type.{name}": schema for name, schema in literal.pop("$defs", {}).items()}
    return literal, definitions


def _node_schema(nodes: list[NodeContract]) -> dict[str, Any]:
    names = [node.name for node in nodes]
    known = {"anyOf": [{"enum": names}, {"type": "string", "pattern": r"@\d+$"}]}
    return {
        "anyOf": [
            known,
            {
                "type": "object",
                "required": ["use"],
                "properties": {"use": known},
                "allOf": [_parameters_of(node) for node in nodes],
            },
        ]
    }


def _type_definitions(nodes: list[NodeContract]) -> dict[str, Any]:
    return {name: schema for node in nodes for port in node.ports for name, schema in _literal_schema(port)[1].items()}


def _parameters_of(node: NodeContract) -> dict[str, Any]:
    properties: dict[str, Any] = {port.name: port_schema(port) for port in node.ports}
    properties |= {need.name: {"type": "string", "description": f"a {need.role}"} for need in node.resources}
    properties |= {key: {"$ref": f"#/$defs/{key}"} for key in _reserved_schemas()}
    properties |= {"use": True, "about": _WORD}
    return {
        "if": {"properties": {"use": {"const": node.name}}},
        "then": {"properties": properties, "additionalProperties": False, "description": node.about},
    }


def _reserved_schemas() -> dict[str, Any]:
    return {
        "when": {"type": ["string", "boolean"], "description": "a condition; false skips the node"},
        "retry": {
            "anyOf": [
                {**_COUNT, "maximum": MAX_ATTEMPTS},
                {
                    "type": "object",
                    "required": ["attempts"],
                    "additionalProperties": False,
                    "properties": {
                        "attempts": {**_COUNT, "maximum": MAX_ATTEMPTS},
                        "delay": _DURATION,
                        "backoff": {"type": "number", "minimum": 1},
                        "on": {"type": "array", "items": {"enum": list(RETRY_KINDS)}},
                    },
                },
            ]
        },
        "timeout": _DURATION,
        "cache": {"anyOf": [{"type": "boolean"}, _DURATION]},
        "on_error": {"anyOf": [{"enum": ["fail", "skip"]}, {"type": "object", "required": ["use"]}]},
        "ensure": {"type": "string", "description": "a condition over `out` that must hold"},
    }


def _input_schema() -> dict[str, Any]:
    properties: dict[str, Any] = dict.fromkeys(INPUT_KEYS, True)
    properties["type"] = _WORD
    properties["about"] = _WORD
    long_form = {"type": "object", "required": ["type"], "additionalProperties": False, "properties": properties}
    return {"anyOf": [{"type": "string", "description": "TYPE or TYPE = VALUE"}, long_form]}


def _resource_schema(providers: list[ResourceProvider]) -> dict[str, Any]:
    names = {"enum": [provider.name for provider in providers]}
    return {"anyOf": [names, {"type": "object", "required": ["use"], "properties": {"use": names}}]}


def _limits_schema() -> dict[str, Any]:
    properties: dict[str, Any] = dict.fromkeys(LIMIT_KEYS, _COUNT)
    properties["seconds"] = _DURATION
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _deploy_schema() -> dict[str, Any]:
    properties: dict[str, Any] = dict.fromkeys(DEPLOY_KEYS, _WORD)
    properties |= {
        "schedule": {
            "type": "object",
            "required": ["cron"],
            "additionalProperties": False,
            "properties": {"cron": _WORD, "timezone": _WORD},
        },
        "concurrency": _COUNT,
        "visible": {"enum": list(VISIBLE)},
        "tags": {"type": "array", "items": _WORD},
    }
    return {"type": "object", "additionalProperties": False, "properties": properties}
