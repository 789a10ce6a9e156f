"""A hash of everything that decides what a plan computes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import BaseModel

from ragbraid.dsl.plan import (
    Body,
    Computed,
    Converted,
    InputSpec,
    Literally,
    Mapped,
    Policy,
    ResourceBinding,
    Sequenced,
    SlotRef,
    Step,
    Value,
)

_NOT_COUNTED = ("span", "about", "file")


def plan_hash(
    name: str,
    inputs: Iterable[InputSpec],
    body: Body,
    outputs: Iterable[tuple[str, Value]],
    resources: Mapping[str, ResourceBinding],
) -> str:
    """Return 16 hex digits.

    Comments, layout and descriptions of the file do not count, nor does how often and how long a step is tried.
    """
    plain = {
        "name": name,
        "inputs": [[spec.name, _plain(spec.declared), spec.required or [_plain(spec.default)]] for spec in inputs],
        "steps": _body(body),
        "outputs": [[output, _value(value)] for output, value in outputs],
        "resources": {key: [binding.provider, _plain(binding.settings)] for key, binding in resources.items()},
    }
    text = json.dumps(plain, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _body(body: Body) -> list[Any]:
    return [_step(step) if isinstance(step, Step) else _structure(step) for step in body.steps]


def _structure(value: Any) -> Any:
    """Return what a block is made of: its parts by name, places in the file and descriptions left out."""
    if isinstance(value, Step):
        return _step(value)
    if isinstance(value, Literally | SlotRef | Computed | Sequenced | Mapped | Converted):
        return _value(value)
    if isinstance(value, Policy):
        return _policy(value)
    if isinstance(value, Body):
        return _body(value)
    if isinstance(value, list | tuple):
        return [_structure(item) for item in value]
    if is_dataclass(value):
        counted = [part.name for part in fields(value) if part.name not in _NOT_COUNTED]
        return [type(value).__name__, {name: _structure(getattr(value, name)) for name in counted}]
    return _plain(value)


def _step(step: Step) -> list[Any]:
    bindings = [[binding.port, _value(binding.value)] for binding in step.bindings]
    return [step.path, step.slot, step.node.reference, bindings, list(step.resources), _policy(step.policy)]


def _policy(policy: Policy) -> list[Any]:
    on_error = policy.on_error if isinstance(policy.on_error, str) else _structure(policy.on_error)
    when = None if policy.when is None else _value(policy.when)
    ensure = None if policy.ensure is None else _value(policy.ensure)
    return [on_error, when, ensure]


def _value(value: Value) -> Any:
    match value:
        case Literally():
            return ["literal", _plain(value.value)]
        case SlotRef():
            return ["slot", value.depth, value.slot, list(value.path)]
        case Computed():
            return ["computed", value.text, [[name, _value(ref)] for name, ref in value.names]]
        case Sequenced():
            return ["list", [_value(item) for item in value.items]]
        case Mapped():
            return ["mapping", [[key, _value(item)] for key, item in value.items]]
        case Converted():
            return ["converted", value.conversion.name, _value(value.value)]


def _plain(value: Any) -> Any:
    """Return a value as JSON has it, the same in every process: sets are sorted, and the class of a model counts."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, BaseModel):
        return [type(value).__name__, _plain(value.model_dump(mode="json"))]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((_plain(item) for item in value), key=repr)
    return repr(value)
