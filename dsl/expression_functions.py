"""The filters and tests of expressions: what each does, takes and gives.

They bear the names of Jinja2's, and do less: nothing is guessed and nothing is repaired. A text that is no number is
an error of `int`, not 0; an empty list has no `first`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from ragbraid.dsl.expression_values import (
    MAX_TEXT,
    MISSING,
    Absent,
    Failure,
    before,
    bounded,
    contains,
    items_of,
    kind_of,
    read_path,
    same,
    to_text,
)


@dataclass(frozen=True, slots=True)
class Function:
    """A filter or a test.

    `takes` says what it can be applied to, `gives` its result: a type, the type of an item, a list of items, or what
    it was given.
    """

    apply: Callable[..., Any]
    takes: Literal["any", "value", "sized", "list", "text", "number"]
    gives: Any


# -- filters -----------------------------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Failure(f"{kind_of(value)} is no text")
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Failure(f"{kind_of(value)} is no number")
    return value


def _length(value: Any) -> int:
    if isinstance(value, Sized):
        return len(value)
    raise Failure(f"{kind_of(value)} has no length")


def _picked(items: list[Any], position: int) -> Any:
    if not items:
        raise Absent("the list is empty")
    return items[position]


def _first(value: Any) -> Any:
    return _picked(items_of(value), 0)


def _last(value: Any) -> Any:
    return _picked(items_of(value), -1)


def _join(value: Any, d: str = "", attribute: str | int | None = None) -> str:
    texts = [to_text(item) for item in _keys(items_of(value), attribute)]
    if len(d) * len(texts) > MAX_TEXT:
        raise Failure(f"the text grows longer than {MAX_TEXT:,} characters")
    return bounded(_text(d).join(texts))


def _keys(items: list[Any], attribute: str | int | None) -> list[Any]:
    return items if attribute is None else [read_path(item, attribute) for item in items]


def _replace(value: Any, old: str, new: str, count: int = -1) -> str:
    text = _text(value)
    found = text.count(_text(old)) if count < 0 else min(count, text.count(_text(old)))
    if len(text) + found * len(_text(new)) > MAX_TEXT:
        raise Failure(f"the text grows longer than {MAX_TEXT:,} characters")
    return text.replace(old, new, count)


def _trim(value: Any, chars: str | None = None) -> str:
    return _text(value).strip(chars)


def _int(value: Any, default: Any = MISSING) -> int:
    return int(_converted(value, default, int))


def _float(value: Any, default: Any = MISSING) -> float:
    return float(_converted(value, default, float))


def _converted(value: Any, default: Any, make: Callable[[Any], Any]) -> Any:
    try:
        if isinstance(value, str) and len(value) > 300:
            raise ValueError
        return make(value)
    except (TypeError, ValueError, OverflowError):
        if default is not MISSING:
            return default
        shown = f" ({value[:20]!r})" if isinstance(value, str) else ""
        raise Failure(f"{kind_of(value)} is no number{shown}") from None


def _round(value: Any, precision: int = 0, method: str = "common") -> float:
    number = _number(value)
    if method == "common":
        return float(round(number, max(-300, min(300, precision))))
    if method not in ("ceil", "floor"):
        raise Failure("`round` knows the methods common, ceil and floor")
    import math

    factor = 10.0 ** max(-300, min(300, precision))
    return float(getattr(math, method)(number * factor) / factor)


def _abs(value: Any) -> Any:
    return abs(_number(value))


def _sort_key(case_sensitive: bool, attribute: str | int | None) -> Callable[[Any], Any]:
    def key(item: Any) -> Any:
        found = item if attribute is None else read_path(item, attribute)
        return found.lower() if isinstance(found, str) and not case_sensitive else found

    return key


def _sort(
    value: Any, reverse: bool = False, case_sensitive: bool = False, attribute: str | int | None = None
) -> list[Any]:
    try:
        return sorted(items_of(value), key=_sort_key(case_sensitive, attribute), reverse=reverse)
    except TypeError:
        raise Failure("the items cannot be put in order, because they are of different kinds") from None


def _reverse(value: Any) -> Any:
    return value[::-1] if isinstance(value, str) else items_of(value)[::-1]


def _unique(value: Any, case_sensitive: bool = False, attribute: str | int | None = None) -> list[Any]:
    key = _sort_key(case_sensitive, attribute)
    found: list[Any] = []
    seen: set[Any] = set()
    for item in items_of(value):
        mark = key(item)
        mark = mark if isinstance(mark, str | int | float | type(None)) else repr(mark)
        if mark not in seen:
            seen.add(mark)
            found.append(item)
    return found


def _min(value: Any, case_sensitive: bool = False, attribute: str | int | None = None) -> Any:
    return _picked(_sort(value, False, case_sensitive, attribute), 0)


def _max(value: Any, case_sensitive: bool = False, attribute: str | int | None = None) -> Any:
    return _picked(_sort(value, True, case_sensitive, attribute), 0)


def _sum(value: Any, attribute: str | int | None = None, start: Any = 0) -> Any:
    return sum((_number(item) for item in _keys(items_of(value), attribute)), start=_number(start))


def _map(value: Any, *arguments: Any, attribute: str | int | None = None, default: Any = MISSING) -> list[Any]:
    items = items_of(value)
    if attribute is None:
        if not arguments:
            raise Failure("`map` needs `attribute=` or the name of a filter")
        apply = FILTERS[arguments[0]].apply
        return [apply(item, *arguments[1:]) for item in items]
    return [_read_or(item, attribute, default) for item in items]


def _read_or(item: Any, attribute: str | int, default: Any) -> Any:
    try:
        found = read_path(item, attribute)
    except Absent:
        if default is MISSING:
            raise
        return default
    return default if found is None and default is not MISSING else found


def _holds(arguments: Sequence[Any]) -> Callable[[Any], bool]:
    if not arguments:
        return bool
    apply = TESTS[arguments[0]].apply
    return lambda item: bool(apply(item, *arguments[1:]))


def _select(value: Any, *arguments: Any) -> list[Any]:
    holds = _holds(arguments)
    return [item for item in items_of(value) if holds(item)]


def _reject(value: Any, *arguments: Any) -> list[Any]:
    holds = _holds(arguments)
    return [item for item in items_of(value) if not holds(item)]


def _selectattr(value: Any, attribute: str | int, *arguments: Any) -> list[Any]:
    holds = _holds(arguments)
    return [item for item in items_of(value) if holds(read_path(item, attribute))]


def _rejectattr(value: Any, attribute: str | int, *arguments: Any) -> list[Any]:
    holds = _holds(arguments)
    return [item for item in items_of(value) if not holds(read_path(item, attribute))]


def _default(value: Any, default_value: Any = "", boolean: bool = False) -> Any:
    if value is MISSING or value is None or (boolean and not value):
        return default_value
    return value


def _tojson(value: Any, indent: int | None = None) -> str:
    def plain(item: Any) -> Any:
        if isinstance(item, BaseModel):
            return item.model_dump(mode="json")
        if isinstance(item, set | frozenset):
            return sorted(item, key=repr)
        return to_text(item)

    indent = None if indent is None else max(0, min(8, indent))
    return bounded(json.dumps(value, ensure_ascii=False, default=plain, indent=indent))


FILTERS: dict[str, Function] = {
    "abs": Function(_abs, "number", "same"),
    "capitalize": Function(lambda value: _text(value).capitalize(), "text", str),
    "count": Function(_length, "sized", int),
    "d": Function(_default, "any", "default"),
    "default": Function(_default, "any", "default"),
    "first": Function(_first, "list", "item"),
    "float": Function(_float, "value", float),
    "int": Function(_int, "value", int),
    "join": Function(_join, "list", str),
    "last": Function(_last, "list", "item"),
    "length": Function(_length, "sized", int),
    "list": Function(items_of, "list", "list"),
    "lower": Function(lambda value: _text(value).lower(), "text", str),
    "map": Function(_map, "list", "map"),
    "max": Function(_max, "list", "item"),
    "min": Function(_min, "list", "item"),
    "reject": Function(_reject, "list", "list"),
    "rejectattr": Function(_rejectattr, "list", "list"),
    "replace": Function(_replace, "text", str),
    "reverse": Function(_reverse, "list", "reverse"),
    "round": Function(_round, "number", float),
    "select": Function(_select, "list", "list"),
    "selectattr": Function(_selectattr, "list", "list"),
    "sort": Function(_sort, "list", "list"),
    "string": Function(to_text, "value", str),
    "sum": Function(_sum, "list", "sum"),
    "title": Function(lambda value: _text(value).title(), "text", str),
    "tojson": Function(_tojson, "any", str),
    "trim": Function(_trim, "text", str),
    "unique": Function(_unique, "list", "list"),
    "upper": Function(lambda value: _text(value).upper(), "text", str),
}
"""The allow-list of filters."""


# -- tests -------------------------------------------------------------------------------------------------------------


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _divisible(value: Any, num: int) -> bool:
    if _number(num) == 0:
        raise Failure("nothing can be divided by 0")
    return bool(_number(value) % num == 0)


def _test(apply: Callable[..., bool], takes: Any = "any") -> Function:
    return Function(apply, takes, bool)


_COMPARING: dict[str, Function] = {
    "eq": _test(lambda value, other: same(value, other)),
    "ne": _test(lambda value, other: not same(value, other)),
    "lt": _test(lambda value, other: before(value, other)),
    "gt": _test(lambda value, other: before(other, value)),
    "le": _test(lambda value, other: same(value, other) or before(value, other)),
    "ge": _test(lambda value, other: same(value, other) or before(other, value)),
}
TESTS: dict[str, Function] = {
    **_COMPARING,
    "boolean": _test(lambda value: isinstance(value, bool)),
    "defined": _test(lambda value: value is not MISSING),
    "divisibleby": _test(_divisible, "number"),
    "equalto": _COMPARING["eq"],
    "even": _test(lambda value: _divisible(value, 2), "number"),
    "false": _test(lambda value: value is False),
    "float": _test(lambda value: isinstance(value, float)),
    "greaterthan": _COMPARING["gt"],
    "in": _test(contains),
    "integer": _test(lambda value: isinstance(value, int) and not isinstance(value, bool)),
    "lessthan": _COMPARING["lt"],
    "lower": _test(lambda value: _text(value).islower(), "text"),
    "mapping": _test(lambda value: isinstance(value, Mapping)),
    "none": _test(lambda value: value is None),
    "number": _test(_is_number),
    "odd": _test(lambda value: not _divisible(value, 2), "number"),
    "sequence": _test(lambda value: isinstance(value, Sequence)),
    "string": _test(lambda value: isinstance(value, str)),
    "true": _test(lambda value: value is True),
    "undefined": _test(lambda value: value is MISSING),
    "upper": _test(lambda value: _text(value).isupper(), "text"),
}
"""The allow-list of tests."""
