"""The type rules of flows, over Python type hints.

Assignability is Python's subtype relation with these decisions of our own:

- `int` goes into `float`; `bool` goes into neither, and `datetime` not into `date`;
- a literal goes where its type goes, and into another literal that allows its value;
- `list[T]`, `tuple[T, ...]` and `Sequence[T]` are one thing and covariant (values on edges are never changed in place),
  and so are `dict` and `Mapping`; a text is never a list;
- `any` goes everywhere and takes everything: what is unknown is checked when it is there.
"""

from __future__ import annotations

import collections.abc
from collections.abc import Iterable
from datetime import date, datetime
from enum import Enum
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, is_typeddict

from pydantic import JsonValue

from ragbraid.dsl.type_fields import field_names, field_type, item_of_class, typed_dict_values
from ragbraid.dsl.type_names import TypeProblem, describe, is_union, parse_type, split_declaration, union_of
from ragbraid.dsl.type_values import Misfit, locate, validate
from ragbraid.registry.conversions import Conversion

__all__ = [
    "Misfit",
    "TypeProblem",
    "assignable",
    "choices",
    "common_type",
    "describe",
    "field_names",
    "field_type",
    "find_conversion",
    "is_optional",
    "item_type",
    "locate",
    "optional",
    "parse_type",
    "split_declaration",
    "strip",
    "validate",
    "without_none",
]

NONE = type(None)
_SEQUENCES = (list, tuple, collections.abc.Sequence, collections.abc.MutableSequence)
_LOOSE = (collections.abc.Collection, collections.abc.Iterable)
_SETS = (set, frozenset, collections.abc.Set, collections.abc.MutableSet)
_MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_UNREAL_SUBCLASSES = {(bool, int), (datetime, date)}


def strip(tp: Any) -> Any:
    """Return the hint without `Annotated`, `NewType` and aliases around it; what is inside keeps its own."""
    while True:
        if isinstance(tp, type):
            return tp
        if get_origin(tp) is Annotated:
            tp = get_args(tp)[0]
        elif tp is None:
            return NONE
        elif tp is JsonValue or isinstance(tp, TypeVar):
            return Any
        elif hasattr(tp, "__supertype__"):
            tp = tp.__supertype__
        elif hasattr(tp, "__value__"):
            tp = tp.__value__
        else:
            return tp


def members(tp: Any) -> tuple[Any, ...]:
    """Return the alternatives of a union, unions inside it included; a single type is its own only alternative."""
    tp = strip(tp)
    if is_union(tp):
        return tuple(member for arg in get_args(tp) for member in members(arg))
    return (tp,)


def is_optional(tp: Any) -> bool:
    """Whether a value of the type may be none. `any` says nothing, so it is not optional."""
    return any(member is NONE for member in members(tp))


def optional(tp: Any) -> Any:
    """Return the type with none added; `any` stays as it is."""
    return tp if strip(tp) is Any or is_optional(tp) else union_of((tp, None))


def without_none(tp: Any) -> Any:
    """Return the type with none taken away; bounds that are annotated on the rest stay."""
    if not is_optional(tp):
        return tp
    rest = tuple(member for member in _annotated_members(tp) if strip(member) is not NONE)
    return union_of(rest) if rest else tp


def assignable(source: Any, target: Any) -> bool:
    """Whether every value of `source` may stand where `target` is expected; bounds are not compared."""
    if source is target:
        return True
    source, target = strip(source), strip(target)
    try:
        return _known_assignable(source, target)
    except TypeError:  # a hint with something unhashable in it, such as the bounds of pydantic
        return _assignable(source, target)


@lru_cache(maxsize=4096)
def _known_assignable(source: Any, target: Any) -> bool:
    return _assignable(source, target)


def _assignable(source: Any, target: Any) -> bool:
    if source is Any or target is Any or target is object or source == target:
        return True
    if len(members(source)) > 1:
        return all(assignable(member, target) for member in members(source))
    if get_origin(source) is Literal:
        return all(_literal_fits(value, target) for value in get_args(source))
    if len(members(target)) > 1:
        return any(assignable(source, member) for member in members(target))
    if get_origin(target) is Literal:
        return source is bool and {True, False} <= {value for value in get_args(target) if isinstance(value, bool)}
    return _single_assignable(source, target)


def find_conversion(source: Any, target: Any, conversions: Iterable[Conversion]) -> Conversion | None:
    """Return the conversion that turns `source` into `target` in one hop; one declared for just that source wins."""
    fitting = [c for c in conversions if assignable(source, c.source) and assignable(c.target, target)]
    return next((c for c in fitting if c.source == strip(source)), fitting[0] if fitting else None)


def common_type(options: Iterable[Any]) -> Any | None:
    """Return a type that takes all of the given ones, or None: one of them, joined literals, and none where one has it."""
    all_members = [member for option in options for member in members(option)]
    distinct = list(dict.fromkeys(member for member in all_members if member is not NONE))
    if not distinct:
        return NONE if all_members else None
    found = next((wide for wide in distinct if all(assignable(other, wide) for other in distinct)), None)
    if Any in distinct:
        found = Any
    if found is None and all(get_origin(member) is Literal for member in distinct):
        found = Literal[tuple(value for member in distinct for value in get_args(member))]
    wider = [_widened(member) for member in distinct]
    if found is None and wider != distinct:
        found = common_type(wider)
    return optional(found) if found is not None and NONE in all_members else found


def item_type(tp: Any) -> Any | None:
    """Return the type of the items of a list, of the values of a mapping, or None where there are none.

    A text has texts as items; a contract that is read like a list (`Ranking`) has what its `__getitem__` or
    `__iter__` gives.
    """
    tp = strip(tp)
    if tp is Any or tp is str:
        return tp
    alternatives = members(tp)
    if len(alternatives) > 1:
        items = [item_type(member) for member in alternatives]
        return None if any(item is None for item in items) else common_type(items)
    shape = _shape(tp)
    if shape is not None:
        kind, args = shape
        return args[-1] if kind == "mapping" else _joined_items(args)
    if get_origin(tp) is Literal:
        return str if all(isinstance(value, str) for value in get_args(tp)) else None
    return item_of_class(tp)


def choices(tp: Any) -> tuple[Any, ...] | None:
    """Return every value of a literal, enum or bool type (none included where allowed), or None for an open type."""
    found: list[Any] = []
    for member in members(tp):
        if member is NONE:
            found.append(None)
        elif member is bool:
            found += [True, False]
        elif get_origin(member) is Literal:
            found += get_args(member)
        elif isinstance(member, type) and issubclass(member, Enum):
            found += [item.value for item in member]
        else:
            return None
    return None if found == [None] else tuple(found)


# -- helpers -----------------------------------------------------------------------------------------------------------


def _annotated_members(tp: Any) -> tuple[Any, ...]:
    inner = tp if is_union(tp) else strip(tp)
    return get_args(inner) if is_union(inner) else (tp,)


def _widened(tp: Any) -> Any:
    kinds = {type(value) for value in get_args(tp)} if get_origin(tp) is Literal else set()
    return kinds.pop() if len(kinds) == 1 else tp


def _literal_fits(value: Any, target: Any) -> bool:
    for member in members(target):
        if get_origin(member) is Literal:
            if any(type(value) is type(other) and value == other for other in get_args(member)):
                return True
        elif value is None and member is NONE or member is Any or _single_assignable(type(value), member):
            return True
    return False


def _single_assignable(source: Any, target: Any) -> bool:
    if source is int and target is float:
        return True
    source_shape, target_shape = _shape(source), _shape(target)
    if source_shape is not None and target_shape is not None:
        return _shape_assignable(source, source_shape, target, target_shape)
    source_class, target_class = get_origin(source) or source, get_origin(target) or target
    if not isinstance(source_class, type) or not isinstance(target_class, type) or target_shape is not None:
        return False
    if (source_class, target_class) in _UNREAL_SUBCLASSES:
        return False
    if get_args(target) and get_args(source) != get_args(target):
        return False
    try:
        return issubclass(source_class, target_class)
    except TypeError:  # a protocol that cannot be asked
        return False


def _shape(tp: Any) -> tuple[str, tuple[Any, ...]] | None:
    """Return what kind of collection a type is, and its arguments with those that are not written as `any`."""
    origin, args = get_origin(tp) or tp, get_args(tp)
    if origin in _SEQUENCES:
        return "sequence", tuple(arg for arg in args if arg is not Ellipsis) if args or tp == tuple[()] else (Any,)
    if origin in _SETS or origin in _LOOSE:
        return "set" if origin in _SETS else "loose", args or (Any,)
    if origin in _MAPPINGS or (isinstance(origin, type) and issubclass(origin, dict) and not is_typeddict(origin)):
        return "mapping", ((str, Any) if not args else (str, *args))[-2:]
    if is_typeddict(origin):
        return "mapping", (str, common_type(typed_dict_values(origin)) or Any)
    return None


def _shape_assignable(source: Any, source_shape: Any, target: Any, target_shape: Any) -> bool:
    (source_kind, source_args), (target_kind, target_args) = source_shape, target_shape
    if is_typeddict(get_origin(target) or target):
        return source is target
    if target_kind == "loose" and source_kind != "mapping":
        return all(assignable(item, target_args[0]) for item in source_args)
    if source_kind != target_kind:
        return False
    if target_kind == "sequence" and _fixed(target):
        pairs = zip(source_args, target_args, strict=False)
        return _fixed(source) and len(source_args) == len(target_args) and all(assignable(a, b) for a, b in pairs)
    if target_kind == "mapping" and is_typeddict(get_origin(source) or source):
        values = typed_dict_values(get_origin(source) or source)
        return assignable(str, target_args[0]) and all(assignable(value, target_args[1]) for value in values)
    if target_kind == "sequence":
        return all(assignable(item, target_args[0]) for item in source_args)
    return all(assignable(a, b) for a, b in zip(source_args, target_args, strict=True))


def _fixed(tp: Any) -> bool:
    """Whether the type is a tuple of a fixed length."""
    return get_origin(tp) is tuple and Ellipsis not in get_args(tp)


def _joined_items(args: tuple[Any, ...]) -> Any:
    return (common_type(args) or union_of(args)) if args else Any
