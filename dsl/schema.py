"""The JSON Schema of flow files, node parameters included: what an editor completes and underlines by."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError

from ragbraid.dsl.deploy import DEPLOY_KEYS, LIMIT_KEYS, TASK_RUNNERS, VISIBLE
from ragbraid.dsl.parse import LANGUAGE_VERSION, REQUIRED_TOP_KEYS
from ragbraid.dsl.parse_inputs import INPUT_KEYS
from ragbraid.dsl.policy import MAX_ATTEMPTS, RETRY_KINDS
from ragbraid.dsl.schema_blocks import block_schemas
from ragbraid.dsl.types import assignable
from ragbraid.registry.catalogue import Catalogue
from ragbraid.registry.node import NodeContract, Port
from ragbraid.registry.providers import ResourceProvider

_REFERENCE = {"type": "string", "pattern": r"\$", "description": "a reference, an expression or a template"}
_DURATION = {
    "description": "seconds, or 500ms, 30s, 2m, 1h, 7d",
    "anyOf": [
        {"type": "number", "exclusiveMinimum": 0},
        {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*(ms|s|m|h|d)\s*$"},
    ],
}
_COUNT = {"type": "integer", "minimum": 1}
_WORD = {"type": "string"}
_DYNAMIC = {
    "anyOf": [
        _REFERENCE,
        {"type": "array", "items": {"$ref": "#/$defs/dynamic"}},
        {"type": "object", "additionalProperties": {"$ref": "#/$defs/dynamic"}},
    ]
}
_NAMES = {"pattern": "^[A-Za-z][A-Za-z0-9_]*$"}
_LENGTH = {"type": "integer", "minimum": 0}


def flow_schema(catalogue: Catalogue) -> dict[str, Any]:
    """Return a JSON Schema (2020-12) that accepts every flow file the checker accepts for its shape.

    References, expressions and templates are accepted wherever a value may stand; types of references are the
    checker's business.
    """
    nodes = [node for newest in catalogue.nodes() for node in _versions(newest, catalogue)]
    converted = [conversion.target for conversion in catalogue.conversions() if conversion.source is str]
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
            "inputs": {"type": "object", "propertyNames": _NAMES, "additionalProperties": _input_schema()},
            "resources": {
                "type": "object",
                "propertyNames": _NAMES,
                "additionalProperties": _resource_schema(catalogue.resources()),
            },
            "nodes": {
                "type": "object",
                "minProperties": 1,
                "propertyNames": _NAMES,
                "additionalProperties": {"$ref": "#/$defs/node"},
            },
            "flow": {"anyOf": [_WORD, {"type": "array", "items": _WORD}], "description": "arrows: a, b -> c -> d"},
            "outputs": {
                "anyOf": [
                    _REFERENCE,
                    {
                        "type": "object",
                        "minProperties": 1,
                        "propertyNames": _NAMES,
                        "additionalProperties": {"$ref": "#/$defs/dynamic"},
                    },
                ]
            },
            "limits": _limits_schema(),
            "deploy": _deploy_schema(),
        },
        "$defs": {
            "node": _node_schema(nodes, catalogue, converted),
            "dynamic": _DYNAMIC,
            **block_schemas(_beside_blocks(), _input_schema()),
            **_reserved_schemas(),
            **_type_definitions(nodes),
        },
    }


def _versions(newest: NodeContract, catalogue: Catalogue) -> Iterator[NodeContract]:
    yield newest
    for number in range(newest.version - 1, 0, -1):
        older = catalogue.find_node(f"{newest.name}@{number}")
        if older is not None:
            yield older


def port_schema(port: Port, converted: Collection[Any] = ()) -> dict[str, Any]:
    """Return the JSON Schema of what may be written for a port: a literal of its type, or what refers to something.

    Args:
        port: the port.
        converted: the types that a text is converted to, so that a text may stand for them.
    """
    literal, _ = _literal_schema(port)
    options: list[dict[str, Any]] = [_DYNAMIC] if port.fan_in or not literal else [_opened(literal), _REFERENCE]
    if any(assignable(target, port.type) for target in converted) and not port.fan_in:
        options.append(_WORD)
    schema: dict[str, Any] = {"anyOf": options}
    if port.about:
        schema["description"] = port.about
    if not port.required and isinstance(port.default, str | int | float | bool | None):
        schema["default"] = port.default
    return schema


def _opened(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema in which every item of a list and every value of a mapping may be a reference too."""
    opened = dict(schema)
    for key in ("items", "additionalProperties"):
        if isinstance(opened.get(key), dict):
            opened[key] = {"anyOf": [_opened(opened[key]), _REFERENCE]}
    if isinstance(opened.get("anyOf"), list):
        opened["anyOf"] = [_opened(option) for option in opened["anyOf"]]
    return opened


def _literal_schema(port: Port) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schema of a port's literals and the definitions that it refers to, named `type.<contract>`."""
    try:
        literal = port.adapter.json_schema(ref_template="#/$defs/type.{model}")
    except (PydanticInvalidForJsonSchema, PydanticSchemaGenerationError):
        # A port whose type has no JSON form can only be filled by a reference.
        return {}, {}
    definitions = {f"type.{name}": schema for name, schema in literal.pop("$defs", {}).items()}
    return literal, definitions


def _node_schema(nodes: list[NodeContract], catalogue: Catalogue, converted: Collection[Any]) -> dict[str, Any]:
    uses = {node.reference: _uses(node, catalogue) for node in nodes}
    known = {"enum": [use for names in uses.values() for use in names]}
    flow = {"anyOf": [{"type": "string", "pattern": r"\.ya?ml$"}, {"enum": catalogue.flows()}]}
    return {
        "anyOf": [
            known,
            flow,
            {"$ref": "#/$defs/block"},
            {"type": "object", "required": ["use"], "properties": {"use": flow}},
            {
                "type": "object",
                "required": ["use"],
                "properties": {"use": known},
                "allOf": [_parameters_of(node, uses[node.reference], converted) for node in nodes],
            },
        ]
    }


def _uses(node: NodeContract, catalogue: Catalogue) -> list[str]:
    """Return what a flow may write to use the node: its name alone means the newest version."""
    return [node.name, node.reference] if catalogue.find_node(node.name) is node else [node.reference]


def _type_definitions(nodes: list[NodeContract]) -> dict[str, Any]:
    return {name: schema for node in nodes for port in node.ports for name, schema in _literal_schema(port)[1].items()}


def _parameters_of(node: NodeContract, uses: list[str], converted: Collection[Any]) -> dict[str, Any]:
    properties: dict[str, Any] = {port.name: port_schema(port, converted) for port in node.ports}
    properties |= {need.name: {"type": "string", "description": f"a {need.role}"} for need in node.resources}
    properties |= {key: {"$ref": f"#/$defs/{key}"} for key in _reserved_schemas()}
    properties |= {"use": True, "about": _WORD}
    return {
        "if": {"properties": {"use": {"enum": uses}}},
        "then": {"properties": properties, "additionalProperties": False, "description": node.about},
    }


def _reserved_schemas() -> dict[str, Any]:
    kinds = {"enum": list(RETRY_KINDS)}
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
                        "on": {"anyOf": [kinds, {"type": "array", "items": kinds}]},
                    },
                },
            ]
        },
        "timeout": _DURATION,
        "cache": {"anyOf": [{"type": "boolean"}, _DURATION]},
        "on_error": {"anyOf": [{"enum": ["fail", "skip", "empty"]}, {"type": "object", "required": ["use"]}]},
        "ensure": {"type": "string", "description": "a condition over `out` that must hold"},
    }


def _beside_blocks() -> dict[str, Any]:
    """Return the schemas of the keys that may stand beside a block: those of a node without `cache`."""
    keys = (key for key in _reserved_schemas() if key != "cache")
    return {**{key: {"$ref": f"#/$defs/{key}"} for key in keys}, "about": _WORD}


def _input_schema() -> dict[str, Any]:
    properties: dict[str, Any] = dict.fromkeys(INPUT_KEYS, True)
    properties["type"] = _WORD
    properties["about"] = _WORD
    properties |= {"min_length": _LENGTH, "max_length": _LENGTH, "pattern": _WORD}
    properties["choices"] = {"type": "array", "minItems": 1}
    long_form = {"type": "object", "required": ["type"], "additionalProperties": False, "properties": properties}
    return {"anyOf": [{"type": "string", "description": "TYPE or TYPE = VALUE"}, long_form]}


def _resource_schema(providers: list[ResourceProvider]) -> dict[str, Any]:
    alone = [provider.name for provider in providers if not any(s.required for s in provider.settings)]
    names = {"enum": [provider.name for provider in providers]}
    settings = [_settings_of(provider) for provider in providers]
    return {
        "anyOf": [
            {"enum": alone},
            {"type": "object", "required": ["use"], "properties": {"use": names}, "allOf": settings},
        ]
    }


def _settings_of(provider: ResourceProvider) -> dict[str, Any]:
    required = [setting.name for setting in provider.settings if setting.required]
    properties: dict[str, Any] = dict.fromkeys((setting.name for setting in provider.settings), True)
    then = {"properties": {"use": True, **properties}, "required": required, "additionalProperties": False}
    return {"if": {"properties": {"use": {"const": provider.name}}}, "then": then}


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
        "tags": {"anyOf": [_WORD, {"type": "array", "items": _WORD}]},
        "task_runner": {"enum": list(TASK_RUNNERS)},
    }
    return {"type": "object", "additionalProperties": False, "properties": properties}
