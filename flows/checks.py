"""Contract checks at run time: a value that enters or leaves a node has the type that the node's signature says.

Values that are instances of what a port takes (a frozen contract, a `str`) pass by `isinstance`; everything else goes
through pydantic in strict mode, so that nothing is silently turned into something else. The language knows lists alone:
a list becomes a tuple, and a tuple a list, where that is what the signature says.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, PydanticSchemaGenerationError, TypeAdapter, ValidationError

from ragbraid.dsl.types import describe
from ragbraid.registry.contracts import FanIn
from ragbraid.registry.errors import NodeInputError, NodeOutputError
from ragbraid.registry.node import NodeContract, Port

Check = Callable[[Any, str], Any]
"""Takes a value and the step's path; returns the value or raises NodeInputError or NodeOutputError."""

_SCALARS = (str, int, float, bool, bytes)


def passes_by_instance(annotation: Any) -> type[Any] | None:
    """Return the class whose instances need no further look, or None where the content must be examined."""
    if not isinstance(annotation, type) or get_origin(annotation) is not None:
        return None
    if annotation in _SCALARS or issubclass(annotation, BaseModel) or dataclasses.is_dataclass(annotation):
        return annotation
    return None


def port_check(node: NodeContract, port: Port) -> tuple[type[Any] | None, Check]:
    """Return the check of what is handed to a port, and the class whose instances need not go through it."""
    expected = f"FanIn[{describe(port.item)}]" if port.fan_in else describe(port.type)

    def fail(path: str, found: str) -> NodeInputError:
        message = f"`{path}` ({node.name}) takes {expected} for `{port.name}`, but was given {found}"
        return NodeInputError(message, step=path)

    check = _check(lambda: port.adapter, port.type, fail)
    if port.fan_in:
        return None, _fan_in(check, port.item)
    return passes_by_instance(port.type), check


def output_check(node: NodeContract) -> tuple[type[Any] | None, Check]:
    """Return the check of what a node gives, and the class whose instances need not go through it."""
    expected = describe(node.output)

    def fail(path: str, found: str) -> NodeOutputError:
        return NodeOutputError(f"`{path}` ({node.name}) gives {expected}, but returned {found}", step=path)

    return passes_by_instance(node.output), _check(lambda: node.output_adapter, node.output, fail)


def value_check(what: str, annotation: Any) -> Check:
    """Return the check of a value that belongs to no node, such as a loop's state; `what` begins its sentence."""

    def fail(path: str, found: str) -> NodeOutputError:
        return NodeOutputError(f"{what} of `{path}` is {describe(annotation)}, but was given {found}", step=path)

    instance = passes_by_instance(annotation)
    check = _check(lambda: TypeAdapter(annotation), annotation, fail)
    if instance is None:
        return check
    return lambda value, path: value if isinstance(value, instance) else check(value, path)


def found_text(value: Any) -> str:
    """Describe a value that was not expected: its type, and the value itself where that is short."""
    if value is None:
        return "none"
    if isinstance(value, bool | int | float):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, str):
        return f"the text {value!r}" if len(value) <= 40 else f"a text of {len(value)} characters"
    if isinstance(value, list | tuple | set | dict):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


def _check(adapter: Callable[[], TypeAdapter[Any]], annotation: Any, fail: Callable[[str, str], Exception]) -> Check:
    try:
        validate = adapter().validate_python
    except PydanticSchemaGenerationError:
        return _check_class(annotation, fail)

    reshape = _reshaping(annotation)

    def check(value: Any, path: str) -> Any:
        try:
            return validate(value if reshape is None else reshape(value), strict=True)
        except ValidationError as error:
            raise fail(path, _mistake(value, error)) from None

    return check


def _reshaping(annotation: Any) -> Callable[[Any], Any] | None:
    """Return what gives the lists and tuples of a value the form that a type names; None where it names none."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _reshaping(args[0])
    if origin in (Union, types.UnionType):
        found = [reshape for reshape in map(_reshaping, args) if reshape is not None]
        return found[0] if len(found) == 1 else None
    if origin is dict:
        return _reshaping_values(_reshaping(args[1]))
    if origin is list or (origin is tuple and Ellipsis in args):
        return _reshaping_items(origin, _reshaping(args[0]))
    return None


def _reshaping_items(form: type[Any], reshape: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    def rebuild(value: Any) -> Any:
        if not isinstance(value, list | tuple) or (reshape is None and isinstance(value, form)):
            return value
        return form(value if reshape is None else map(reshape, value))

    return rebuild


def _reshaping_values(reshape: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    if reshape is None:
        return None
    return lambda value: {key: reshape(item) for key, item in value.items()} if isinstance(value, dict) else value


def _check_class(annotation: Any, fail: Callable[[str, str], Exception]) -> Check:
    """Check a type that pydantic knows nothing of by its class alone."""
    expected = get_origin(annotation) or annotation

    def check(value: Any, path: str) -> Any:
        if isinstance(expected, type) and not isinstance(value, expected):
            raise fail(path, found_text(value))
        return value

    return check


def _fan_in(check: Check, item: Any) -> Check:
    """Check a mapping by upstream node.

    A list that a node or a `map` gave joins as `found[1]`, `found[2]`, unless the port collects lists. What was skipped
    upstream did not arrive, unless the port takes `none`.
    """
    accepts_lists, accepts_none = _accepts_lists(item), _accepts_none(item)

    def gather(value: Any, path: str) -> Any:
        if not accepts_lists and isinstance(value, dict):
            value = _spread(value)
        if not accepts_none and isinstance(value, dict):
            value = {name: part for name, part in value.items() if part is not None}
        return FanIn(check(value, path))

    return gather


def _spread(value: dict[str, Any]) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    for name, part in value.items():
        if isinstance(part, list | tuple):
            parts |= {f"{name}[{number}]": each for number, each in enumerate(part, start=1)}
        else:
            parts[name] = part
    return parts


def _accepts_lists(annotation: Any) -> bool:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _accepts_lists(args[0])
    if origin in (Union, types.UnionType):
        return any(map(_accepts_lists, args))
    return annotation is Any or (origin or annotation) in (list, tuple, Sequence)


def _accepts_none(annotation: Any) -> bool:
    return annotation is Any or type(None) in get_args(annotation)


def _mistake(value: Any, error: ValidationError) -> str:
    """Say what was found, and where inside the value the first mistake is."""
    first = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    if not place:
        reason = "" if first["type"].endswith(("_type", "_exact", "_instance_of")) else f" ({first['msg']})"
        return f"{found_text(value)}{reason}"
    return f"{found_text(value)} with {found_text(first['input'])} at `{place}` ({first['msg']})"
