"""Questions about types that the operators of expressions ask."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from enum import Enum
from typing import Any, Literal, get_args, get_origin

from ragbraid.dsl.expression_functions import Function
from ragbraid.dsl.type_names import union_of
from ragbraid.dsl.types import assignable, common_type, describe, field_type, item_type, members, optional
from ragbraid.registry.suggest import did_you_mean

NONE = type(None)
_BASIC = (str, int, float, bool, NONE)


def widened(tp: Any) -> Any:
    """Return the type with the class of its values in the place of literals."""
    found: list[Any] = []
    for member in members(tp):
        found += [type(value) for value in get_args(member)] if get_origin(member) is Literal else [member]
    return common_type(found) or tp


def part_of(owner: Any) -> Any:
    """Return the type of a part of a list or text, or of its items in another order; None where it has no items."""
    if any(member is Any for member in members(owner)):
        return Any  # it may be a text as well as a list
    parts = [str if is_basic(member, str) else _list_of_items(member) for member in members(owner)]
    return None if None in parts else union_of(parts)


def _list_of_items(tp: Any) -> Any | None:
    found = item_type(tp)
    return None if found is None else list[found]  # type: ignore[valid-type]


def joined(options: Sequence[Any]) -> Any:
    """Return the common type of some types, or their union where they have none."""
    return common_type(options) or union_of(options)


def is_basic(tp: Any, *classes: type[Any]) -> bool:
    """Whether every alternative of the type is one of these classes (no subclass: true is no number) or a literal of one."""
    return all(member is not Any and widened(member) in classes for member in members(tp))


def is_number(tp: Any) -> bool:
    """Whether the type is a number, or `any`."""
    return all(member is Any or widened(member) in (int, float) for member in members(tp))


def is_list(tp: Any) -> bool:
    """Whether the type is a list, or `any`."""
    return all(assignable(member, list[Any]) for member in members(tp))


def shown(tp: Any) -> str:
    """Return the type as a message names it, `int` rather than `literal[1]`."""
    return describe(widened(tp))


def exactly(tp: Any) -> str:
    """Return the type as a message names it, a single constant by its value."""
    values = get_args(tp) if get_origin(tp) is Literal else ()
    return describe(tp).removeprefix("literal[").removesuffix("]") if len(values) == 1 else describe(tp)


def arithmetic(operator: str, left: Any, right: Any) -> Any | None:
    """Return the type of `left OPERATOR right`, or None where the two do not go together."""
    if left is Any and right is Any:
        return Any
    if is_number(left) and is_number(right):
        return _of_numbers(operator, left, right)
    if operator != "+":
        return None
    if _either_any(left, right) or (is_basic(left, str) and is_basic(right, str)):
        other = right if left is Any else left
        return widened(other) if is_basic(other, str) else Any
    if is_list(left) and is_list(right):
        items = [item_type(tp) or Any for tp in (left, right) if not _is_empty_list(tp)]
        return list[joined(items) if items else Any]  # type: ignore[misc]
    return None


def _of_numbers(operator: str, left: Any, right: Any) -> Any:
    if operator == "/":
        return float
    if Any in (left, right):
        return float if float in (widened(left), widened(right)) else Any
    wide = common_type([widened(left), widened(right)])
    if operator == "**" and wide is int:
        known = get_args(right) if get_origin(right) is Literal else ()
        return int if known and all(value >= 0 for value in known) else float
    return wide


def _either_any(left: Any, right: Any) -> bool:
    return (left is Any and (is_basic(right, str) or is_list(right))) or (
        right is Any and (is_basic(left, str) or is_list(left))
    )


def _is_empty_list(tp: Any) -> bool:
    return get_origin(tp) is list and get_args(tp) == (Any,)


def may_be_equal(left: Any, right: Any) -> bool:
    """Whether a value of one type can equal a value of the other."""
    return any(_may_be_equal(one, other) for one in members(left) for other in members(right))


def _may_be_equal(left: Any, right: Any) -> bool:
    left_values = get_args(left) if get_origin(left) is Literal else None
    right_values = get_args(right) if get_origin(right) is Literal else None
    if left_values is not None and right_values is not None:
        return any(value == other for value in left_values for other in right_values)
    left, right = widened(left), widened(right)
    if left in (int, float) and right in (int, float):
        return True
    return left not in _BASIC or right not in _BASIC or left is right


def nearest_choice(left: Any, right: Any) -> str | None:
    """Return a hint when one side is a constant that resembles a value the other side allows."""
    for constant, allowed in ((right, left), (left, right)):
        values = get_args(constant) if get_origin(constant) is Literal else ()
        known = [value for member in members(allowed) if get_origin(member) is Literal for value in get_args(member)]
        if len(values) == 1 and isinstance(values[0], str):
            found = did_you_mean(values[0], [value for value in known if isinstance(value, str)])
            if found:
                return found.replace("`", '"')
    return None


def may_be_ordered(left: Any, right: Any) -> bool:
    """Whether `<` means something between the two types."""
    if left is Any or right is Any or (is_number(left) and is_number(right)):
        return True
    left, right = widened(left), widened(right)
    if left is str and right is str:
        return True
    return left is right and isinstance(left, type) and issubclass(left, date)


def may_contain(container: Any, item: Any) -> bool:
    """Whether `item in container` means something."""
    if container is Any:
        return True
    if is_basic(container, str):
        return item is Any or is_basic(item, str)
    if field_type(container, "x") is not None:  # a mapping with text keys
        return item is Any or is_basic(item, str)
    items = item_type(container)
    return items is not None and may_be_equal(items, item)


def is_single(tp: Any) -> bool:
    """Whether a value of the type is one thing: a text, a number, a date, a choice."""
    if tp is Any or get_origin(tp) is Literal:
        return True
    return isinstance(tp, type) and get_origin(tp) is None and issubclass(tp, str | int | float | date | Enum)


def takes(function: Function, tp: Any) -> bool:
    """Whether a filter can be applied to the type."""
    if tp is Any or function.takes == "any":
        return True
    if function.takes == "value":
        return all(is_single(member) for member in members(tp) if member is not NONE)
    if function.takes == "text":
        return is_basic(tp, str)
    if function.takes == "number":
        return is_number(tp)
    if function.takes == "sized" and all(hasattr(get_origin(member) or member, "__len__") for member in members(tp)):
        return True
    return item_type(tp) is not None


def optional_like(tp: Any, other: Any) -> Any:
    """Return the type, with none where `other` may be none."""
    return optional(tp) if NONE in members(other) else tp
