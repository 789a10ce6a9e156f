"""What can be reached inside a value of a type: its fields and its items."""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
from collections.abc import Callable
from functools import cache, cached_property
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints, is_typeddict

from pydantic import BaseModel, JsonValue

from ragbraid.dsl.type_names import is_union, union_of

_MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


def field_type(tp: Any, name: str) -> Any | None:
    """Return the type of a field, or None when there is none of that name.

    Fields are those of pydantic models (properties with an annotated result included), dataclasses, named tuples and
    typed dicts; a mapping with text keys has every field. Of a union all alternatives must have the field, and none
    has no fields.
    """
    if get_origin(tp) is Annotated:
        return field_type(get_args(tp)[0], name)
    if tp is Any or tp is JsonValue or isinstance(tp, TypeVar):
        return Any
    if name.startswith("_"):
        return None
    if is_union(tp):
        found = [field_type(member, name) for member in get_args(tp)]
        if any(field is None for field in found):
            return None
        return union_of(found)
    cls = get_origin(tp) or tp
    if is_typeddict(cls) or cls not in _MAPPINGS:
        return class_fields(cls).get(name) if isinstance(cls, type) else None
    args = get_args(tp)
    if not args:
        return Any
    return args[1] if args[0] in (str, Any) else None


def field_names(tp: Any) -> list[str]:
    """Return the names that `field_type` knows, in the order of the declaration; empty where they are not known."""
    if get_origin(tp) is Annotated:
        return field_names(get_args(tp)[0])
    if is_union(tp):
        lists = [field_names(member) for member in get_args(tp)]
        return [name for name in lists[0] if all(name in other for other in lists)]
    cls = get_origin(tp) or tp
    if cls in _MAPPINGS or not isinstance(cls, type):
        return []
    return list(class_fields(cls))


@cache
def class_fields(cls: type[Any]) -> dict[str, Any]:
    """Return the public fields and properties of a class with their types."""
    fields: dict[str, Any] = {}
    if issubclass(cls, BaseModel):
        fields = {name: field.annotation for name, field in cls.model_fields.items()}
    elif dataclasses.is_dataclass(cls) or is_typeddict(cls) or hasattr(cls, "_fields"):
        fields = get_type_hints(cls)
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] in ("builtins", "pydantic", "enum", "datetime", "typing"):
            continue
        for name, member in vars(base).items():
            getter = _getter(member)
            if getter is not None and not name.startswith("_") and name not in fields:
                fields[name] = _result_of(getter) or Any
    return {name: tp for name, tp in fields.items() if not name.startswith("_")}


def item_of_class(cls: Any) -> Any | None:
    """Return the item type of an object that is read like a list, by what `__getitem__(int)` or `__iter__` declares."""
    if not isinstance(cls, type) or cls.__module__ == "builtins":
        return None
    getter = inspect.getattr_static(cls, "__getitem__", None)
    if inspect.isfunction(getter):
        return _result_of(getter)
    iterator = inspect.getattr_static(cls, "__iter__", None)
    if inspect.isfunction(iterator) and iterator is not BaseModel.__iter__:
        args = get_args(_result_of(iterator))
        return args[0] if args else None
    return None


def typed_dict_values(cls: Any) -> list[Any]:
    """Return the types of the values of a typed dict."""
    return list(get_type_hints(cls).values())


def _getter(member: Any) -> Callable[..., Any] | None:
    if isinstance(member, property):
        return member.fget
    return member.func if isinstance(member, cached_property) else None


def _result_of(function: Callable[..., Any]) -> Any | None:
    try:
        return get_type_hints(function, include_extras=True).get("return")
    except NameError:  # an annotation that exists for type checkers only
        return None
