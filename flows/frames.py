"""Frames hold the values of a body while it runs; getters read a plan's values from them without any look-up by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from ragbraid.dsl.plan import Computed, Converted, Literally, Mapped, Sequenced, SlotRef, Value
from ragbraid.registry.errors import RagbraidError, RunError


class Unset:
    """Stands in a slot until its step has run."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET = Unset()


class Frame:
    """The slots of one run of a body.

    Args:
        size: how many slots the body has.
        parent: the frame of the body around it; None for the flow's own body.
        prefix: stands before the names of the body's steps in traces, such as `interleave[2].`; None where the planned
            paths hold as they are.
    """

    __slots__ = ("parent", "prefix", "values")

    def __init__(self, size: int, parent: Frame | None = None, prefix: str | None = None) -> None:
        self.values: list[Any] = [UNSET] * size
        self.parent = parent
        self.prefix = prefix


Getter = Callable[[Frame], Any]


def compile_value(value: Value) -> Getter:
    """Turn a planned value into a function that reads it from a frame of the body it was planned for."""
    match value:
        case Literally(value=constant):
            return _literal(constant)
        case SlotRef():
            return _reference(value)
        case Computed():
            return _computed(value)
        case Sequenced(items=items):
            parts = tuple(compile_value(item) for item in items)
            return lambda frame: [part(frame) for part in parts]
        case Mapped(items=pairs):
            named = tuple((name, compile_value(item)) for name, item in pairs)
            return lambda frame: {name: part(frame) for name, part in named}
        case Converted(value=inner, conversion=conversion):
            get, apply = compile_value(inner), conversion.apply
            return lambda frame: apply(get(frame))


def compile_condition(condition: Computed) -> Callable[[Frame, Any], Any]:
    """Turn a condition over `out` into a function of a frame and the output that it judges."""
    get = _computed(condition)
    return lambda frame, out: get(frame, out=out)


def _computed(value: Computed) -> Callable[..., Any]:
    names = tuple((name, _reference(reference)) for name, reference in value.names)
    evaluate, text = value.evaluate, value.text

    def get(frame: Frame, **given: Any) -> Any:
        scope = {name: part(frame) for name, part in names}
        try:
            return evaluate(**scope, **given)
        except RagbraidError:
            raise
        except Exception as error:
            raise RunError(f"`{text}` cannot be computed: {type(error).__name__}: {error}") from error

    return get


def _literal(constant: Any) -> Getter:
    # A plan is shared by every run of its flow, so no node may get hold of a mutable value that is part of it.
    if isinstance(constant, list | dict | set):
        return lambda frame: deepcopy(constant)
    return lambda frame: constant


def _reference(reference: SlotRef) -> Getter:
    slot, depth, path, text = reference.slot, reference.depth, reference.path, reference.text
    if depth == 0 and not path:
        return lambda frame: frame.values[slot]

    def get(frame: Frame) -> Any:
        for _ in range(depth):
            assert frame.parent is not None, f"{text} refers to a scope that this frame does not have"
            frame = frame.parent
        value = frame.values[slot]
        for part in path:
            value = _part(value, part, text)
        return value

    return get


def _part(value: Any, part: str | int, text: str) -> Any:
    try:
        if isinstance(part, str) and not isinstance(value, Mapping):
            return getattr(value, part)
        return value[part]
    except (AttributeError, KeyError, IndexError, TypeError):
        shown = f"[{part}]" if isinstance(part, int) else f"`{part}`"
        found = "is empty (none)" if value is None else f"is a {type(value).__name__} without it"
        raise RunError(f"`{text}` has no value in this run: {shown} was to be read from what {found}") from None
