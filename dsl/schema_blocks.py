"""The JSON Schema of blocks, whose insides are nodes again."""

from __future__ import annotations

from typing import Any

from ragbraid.dsl.block_map import MAP_ON_ERROR
from ragbraid.dsl.parse_blocks import GATE_KEYS, GROUP_KEYS, LOOP_KEYS, MAP_KEYS, SWITCH_KEYS

_NODE = {"$ref": "#/$defs/node"}
_BRANCH = {"$ref": "#/$defs/branch"}
_VALUE = {"$ref": "#/$defs/value"}
_CONDITION = {"type": "string", "pattern": r"\$", "description": "a condition: a reference or an expression"}
_OUTPUT = {"type": "string", "pattern": r"\$", "description": "the value that leaves the block"}
_ARROWS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
_NODES = {"type": "object", "minProperties": 1, "additionalProperties": _NODE}
_ONE_NAME = {"type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": _VALUE}
_BODY = {"nodes": _NODES, "flow": _ARROWS}


def block_schemas(reserved: dict[str, Any], declaration: dict[str, Any]) -> dict[str, Any]:
    """Return the definitions `block`, `branch` and `value`.

    Args:
        reserved: the schemas of the keys that may stand beside a block, by name.
        declaration: the schema of a declared state.
    """
    blocks = [_beside(key, schema, reserved) for key, schema in _kinds(declaration).items()]
    return {
        "value": True,
        "branch": {"anyOf": [_NODE, _object(GROUP_KEYS, {**_BODY, "output": _OUTPUT}, ("nodes", "output"))]},
        "block": {"anyOf": [*blocks, _group(reserved)]},
    }


def _kinds(declaration: dict[str, Any]) -> dict[str, dict[str, Any]]:
    count = {"type": "integer", "minimum": 1}
    named = {"type": "object", "additionalProperties": _VALUE}
    conditions = {"type": "object", "additionalProperties": _CONDITION}
    loop = {
        **_BODY,
        "carry": {"type": "object", "additionalProperties": declaration, "description": "states: TYPE = START"},
        "for": {**_ONE_NAME, "description": "one step for every item, in order"},
        "next": {**named, "description": "the value of each state in the following step"},
        "stop_when": {**conditions, "description": "reasons to end, each with its condition"},
        "max_steps": {"anyOf": [count, _CONDITION], "description": "the bound: a number, or an input with `le`"},
    }
    mapped = {
        **_BODY,
        "over": {**_ONE_NAME, "description": "what an item is called, and the list"},
        "output": _OUTPUT,
        "concurrency": count,
        "on_error": {"enum": list(MAP_ON_ERROR)},
    }
    case = {"allOf": [{"type": "object", "required": ["if"]}], "properties": {"if": _CONDITION}}
    switch = {
        "on": _VALUE,
        "cases": {"type": "object", "minProperties": 1, "additionalProperties": _BRANCH},
        "when": {"type": "array", "minItems": 1, "items": case},
        "else": _BRANCH,
    }
    gate = {"try": {"type": "array", "minItems": 1, "items": _BRANCH}, "enough": _CONDITION}
    return {
        "loop": _object(LOOP_KEYS, loop, ("nodes", "max_steps")),
        "map": _object(MAP_KEYS, mapped, ("over", "nodes", "output")),
        "switch": _object(SWITCH_KEYS, switch, ()),
        "gate": _object(GATE_KEYS, gate, ("try", "enough")),
    }


def _beside(key: str, schema: dict[str, Any], reserved: dict[str, Any]) -> dict[str, Any]:
    return _object((key, *reserved), {key: schema, **reserved}, (key,))


def _group(reserved: dict[str, Any]) -> dict[str, Any]:
    return _object((*GROUP_KEYS, *reserved), {**_BODY, "output": _OUTPUT, **reserved}, ("nodes", "output"))


def _object(keys: tuple[str, ...], properties: dict[str, Any], required: tuple[str, ...]) -> dict[str, Any]:
    assert set(keys) == set(properties), set(keys) ^ set(properties)
    return {
        "type": "object",
        "required": list(required),
        "additionalProperties": False,
        "properties": {key: properties[key] for key in keys},
    }
