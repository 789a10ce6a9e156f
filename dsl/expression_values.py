"""What expressions do with values: read inside them, put them into texts, name them, bound them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from enum import Enum
from numbers import Real
from typing import Any, TypeVar

from pydantic import BaseModel

T = TypeVar("T")

MAX_TEXT = 1_000_000
"""Longest text that an expression may make, in characters."""
MAX_ITEMS = 100_000
"""Longest list that an expression may make."""


class Failure(Exception):
    """Why an expression has no value; the rest of a sentence."""


class Absent(Failure):
    """There is nothing where an expression looks; `default` and `is defined` may answer for it."""


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


MISSING = _Missing()


def read_field(owner: Any, name: str | int) -> Any:
    """Return a field of a model or an entry of a mapping or list. Raises Failure where there is none."""
    if isinstance(owner, Mapping):
        if name in owner:
            return owner[name]
        raise Absent(f"there is no entry `{name}`")
    if isinstance(name, int):
        if isinstance(owner, str | Sequence) or hasattr(owner, "__getitem__"):
            try:
                return owner[name]
            except IndexError:
                raise Absent(f"there is no item {name}, the list is too short") from None
        raise Failure(f"{kind_of(owner)} has no items")
    if owner is None:
        raise Absent(f"it is none, so it has no `{name}`")
    found = MISSING if name.startswith("_") else getattr(owner, name, MISSING)
    if found is MISSING or callable(found):
        raise Absent(f"{kind_of(owner)} has no field `{name}`")
    return found


def read_path(owner: Any, path: str | int) -> Any:
    """Return what a dotted path such as `metadata.author` leads to."""
    if isinstance(path, int):
        return read_field(owner, path)
    for name in path.split("."):
        owner = read_field(owner, int(name) if name.isdecimal() and not isinstance(owner, Mapping) else name)
    return owner


def to_text(value: Any) -> str:
    """Return a value as it reads inside a text. Raises Failure for none and for everything that is not a single value."""
    if isinstance(value, str) and not isinstance(value, Enum):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return to_text(value.value)
    if isinstance(value, Real):
        return str(value)
    if isinstance(value, date):
        return value.isoformat()
    if value is None:
        raise Failure("none cannot be put into a text")
    raise Failure(f"{kind_of(value)} cannot be put into a text")


def kind_of(value: Any) -> str:
    """Return what a value is, in a word or two."""
    if value is None:
        return "none"
    for kinds, words in _KINDS:
        if isinstance(value, kinds):
            return words
    return f"a value of type {type(value).__name__}"


_KINDS: tuple[tuple[Any, str], ...] = (
    (str, "a text"), (bool, "true or false"), (int | float, "a number"), (Mapping, "a mapping"),
    (list | tuple, "a list"), (set | frozenset, "a set"),
)  # fmt: skip


def items_of(value: Any) -> list[Any]:
    """Return the items of anything that can be read like a list."""
    if isinstance(value, BaseModel) and type(value).__iter__ is BaseModel.__iter__:
        raise Failure(f"{kind_of(value)} is no list")
    if not isinstance(value, Iterable):
        raise Failure(f"{kind_of(value)} is no list")
    return bounded(list(value.values() if isinstance(value, Mapping) else value))


def bounded(value: T) -> T:
    """Return a text or list that is not too long. Raises Failure otherwise."""
    if isinstance(value, str) and len(value) > MAX_TEXT:
        raise Failure(f"the text grows longer than {MAX_TEXT:,} characters")
    if isinstance(value, list) and len(value) > MAX_ITEMS:
        raise Failure(f"the list grows longer than {MAX_ITEMS:,} items")
    return value


def same(left: Any, right: Any) -> bool:
    """Compare two values; a tuple and a list of equal items are the same."""
    if isinstance(left, tuple) and isinstance(right, list):
        return list(left) == right
    if isinstance(left, list) and isinstance(right, tuple):
        return left == list(right)
    return bool(left == right)


def before(left: Any, right: Any) -> bool:
    """Whether `left < right`. Raises Failure for kinds that have no order."""
    try:
        return bool(left < right)
    except TypeError:
        raise Failure(f"{kind_of(left)} and {kind_of(right)} have no order") from None


def contains(value: Any, container: Any) -> bool:
    """Whether a text is in a text, an item in a list, or a key in a mapping."""
    if isinstance(container, str):
        if not isinstance(value, str):
            raise Failure(f"{kind_of(value)} cannot be in a text")
        return value in container
    if isinstance(container, Mapping):
        return value in container
    return any(same(item, value) for item in items_of(container))
