"""What expressions compute with: the arithmetic of numbers, dates and amounts, and the functions that may be called."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from functools import cmp_to_key
from typing import Any

from ragbraid.nodes.math_values import LARGEST, Amount, MathError, Period, Value, in_unit, period, read_value

_MAX_EXPONENT = 200


@dataclass(frozen=True, slots=True)
class Item:
    """One value of a variable, and what it belongs to ("" where nothing is known)."""

    value: Value | str
    of: str = ""


# -- values ------------------------------------------------------------------------------------------------------------


def bounded(value: Any) -> Any:
    """Return a value that is not too large.

    Raises:
        MathError: it is, or it is no real number.
    """
    plain = value.value if isinstance(value, Item) else value
    number = plain.number if isinstance(plain, Amount) else plain
    if isinstance(number, complex) or (isinstance(number, float) and not math.isfinite(number)):
        raise MathError("the result is no real number")
    if isinstance(number, int | float) and abs(number) > LARGEST:
        raise MathError("a number in the expression becomes too large")
    return value


def flat(value: Any) -> Iterator[Any]:
    """Yield the single values in a value or a list of lists."""
    if not isinstance(value, list):
        yield value
        return
    for each in value:
        yield from flat(each)


def scalar(value: Any) -> Any:
    """Return the single value that a value or a list of one is.

    Raises:
        MathError: it is a list of none or several.
    """
    items = list(flat(value))
    if len(items) != 1:
        raise MathError(f"a list of {len(items)} values stands where one is needed; take its min, max, sum or len")
    return items[0].value if isinstance(items[0], Item) else items[0]


def number_of(value: Any) -> Any:
    """Return a number. Raises MathError where it is none; a truth value is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MathError(f"{kind_of(value)} stands where a number is needed")
    return value


def truth_of(value: Any) -> bool:
    """Return a truth value. Raises MathError where it is none."""
    if not isinstance(value, bool):
        raise MathError(f"{kind_of(value)} stands where a condition is needed")
    return value


def kind_of(value: Any) -> str:
    """Return what a value is, as a message names it."""
    kinds = {bool: "a truth value", str: "a name", Period: "a date", Amount: "an amount with a unit"}
    return kinds.get(type(value), "a number")


def order(left: Any, right: Any) -> int:
    """Return -1, 0 or 1 as one value is less than, equal to or greater than the other.

    Raises:
        MathError: they cannot be compared.
    """
    if isinstance(left, Period) or isinstance(right, Period):
        first, second = as_period(left), as_period(right)
        if first == second:
            return 0
        if first.last < second.first or second.last < first.first:
            return -1 if first.last < second.first else 1
        raise MathError(f"{first} and {second} overlap, so neither is the earlier one")
    if isinstance(left, Amount) and isinstance(right, Amount):
        left, right = left.number, in_unit(right, left.unit)
    if isinstance(left, bool) and isinstance(right, bool):
        return int(left != right)
    first_number, second_number = number_of(left), number_of(right)
    return int(first_number > second_number) - int(first_number < second_number)


def as_period(value: Any) -> Period:
    """Return a date; a whole number is a year. Raises MathError where it is neither."""
    if isinstance(value, Period):
        return value
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 9999:
        raise MathError(f"{kind_of(value)} stands where a date is needed")
    return period(value)


# -- operators ---------------------------------------------------------------------------------------------------------


def _additive(op: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def apply(left: Any, right: Any) -> Any:
        if isinstance(left, Amount) and isinstance(right, Amount):
            return Amount(op(left.number, in_unit(right, left.unit)), left.unit)
        if op is operator.sub and isinstance(left, Period) and isinstance(right, Period):
            return Amount(_days_between(right, left), "days")
        return op(number_of(left), number_of(right))

    return apply


def _times(left: Any, right: Any) -> Any:
    if isinstance(left, Amount) and not isinstance(right, Amount):
        return Amount(left.number * number_of(right), left.unit)
    if isinstance(right, Amount) and not isinstance(left, Amount):
        return Amount(number_of(left) * right.number, right.unit)
    return number_of(left) * number_of(right)


def _divided(op: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def apply(left: Any, right: Any) -> Any:
        if isinstance(left, Amount) and isinstance(right, Amount):
            return op(left.number, in_unit(right, left.unit))
        if isinstance(left, Amount):
            return Amount(op(left.number, number_of(right)), left.unit)
        return op(number_of(left), number_of(right))

    return apply


def _power(base: Any, exponent: Any) -> Any:
    base, exponent = number_of(base), number_of(exponent)
    if abs(exponent) > _MAX_EXPONENT:
        raise MathError(f"exponents beyond {_MAX_EXPONENT} are not computed")
    return base**exponent


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": _additive(operator.add),
    "-": _additive(operator.sub),
    "*": _times,
    "/": _divided(operator.truediv),
    "//": _divided(operator.floordiv),
    "%": _divided(operator.mod),
    "**": _power,
}
"""Arithmetic by its sign; each takes two single values."""


# -- functions ---------------------------------------------------------------------------------------------------------


def _sorted(*values: Any) -> list[Any]:
    items = [value for given in values for value in flat(given)]
    return sorted(items, key=cmp_to_key(lambda left, right: order(scalar(left), scalar(right))))


def _extreme(position: int) -> Callable[..., Any]:
    def apply(*values: Any) -> Any:
        ordered = _sorted(*values)
        if not ordered:
            raise MathError("an empty list has no smallest or greatest value")
        end = ordered[position]
        # Of equal values the first that was written, as Python's min and max give.
        return next(v for given in values for v in flat(given) if order(scalar(v), scalar(end)) == 0)

    return apply


def _owner(position: int) -> Callable[..., str]:
    find = _extreme(position)

    def apply(*values: Any) -> str:
        end = find(*values)
        tied = [v for given in values for v in flat(given) if order(scalar(v), scalar(end)) == 0]
        owners = {v.of if isinstance(v, Item) else "" for v in tied}
        if "" in owners:
            raise MathError("it is not known what the values belong to")
        if len(owners) > 1:
            raise MathError(f"several share that value: {', '.join(sorted(owners))}")
        return owners.pop()

    return apply


def _sum(*values: Any) -> Any:
    items = [scalar(value) for given in values for value in flat(given)]
    total = items[0] if items else 0
    for each in items[1:]:
        total = bounded(OPERATORS["+"](total, each))
    return total if isinstance(total, Amount) else number_of(total)


def _length(values: Any) -> int:
    return len(list(flat(values)))


def _round(value: Any, digits: Any = None) -> Any:
    number = scalar(value)
    places = None if digits is None else number_of(scalar(digits))
    if places is not None and (not isinstance(places, int) or abs(places) > 30):
        raise MathError("`round` takes a whole number of digits up to 30")
    if isinstance(number, Amount):
        return Amount(round(number.number, places), number.unit)
    return round(number_of(number), places)


def _abs(value: Any) -> Any:
    number = scalar(value)
    return Amount(abs(number.number), number.unit) if isinstance(number, Amount) else abs(number_of(number))


def _date(year: Any, month: Any = None, day: Any = None) -> Period:
    if isinstance(year, str):
        return as_period(read_value(year))
    month, day = (None if part is None else number_of(scalar(part)) for part in (month, day))
    try:
        return period(number_of(scalar(year)), month, day)
    except (ValueError, TypeError) as error:
        raise MathError(f"there is no such date: {error}") from None


def _amount(number: Any, unit: Any) -> Amount:
    if not isinstance(unit, str) or not 1 <= len(unit) <= 20:
        raise MathError('an amount is written as in amount(3, "km")')
    return Amount(number_of(scalar(number)), unit)


def _days_between(first: Any, second: Any) -> int:
    start, end = as_period(first), as_period(second)
    if start.first != start.last or end.first != end.last:
        raise MathError(f"the days between {start} and {end} are not known: both have to be days")
    return (end.last - start.first).days


def _days(first: Any, second: Any) -> int:
    return abs(_days_between(scalar(first), scalar(second)))


def _months(first: Any, second: Any) -> int:
    return _whole_months(as_period(scalar(first)), as_period(scalar(second)), whole_years=False)


def _years(first: Any, second: Any) -> int:
    return _whole_months(as_period(scalar(first)), as_period(scalar(second)), whole_years=True) // 12


def _whole_months(first: Period, second: Period, *, whole_years: bool) -> int:
    start, end = sorted((first, second), key=lambda each: (each.first, each.last))
    days = all(each.first == each.last for each in (start, end))
    years = all((each.first.month, each.last.month) == (1, 12) for each in (start, end))
    if not days and not (years and whole_years):
        raise MathError(f"the time between {start} and {end} is not known: both have to be days, or both years")
    months = (end.first.year - start.first.year) * 12 + end.first.month - start.first.month
    return months - (days and _incomplete(start.first, end.first))


def _incomplete(start: date, end: date) -> bool:
    """Whether the last month is not over; the 31st of one month is reached on the last day of a shorter one."""
    last_day = period(end.year, end.month).last.day
    return end.day < min(start.day, last_day)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": _extreme(0),
    "max": _extreme(-1),
    "argmin": _owner(0),
    "argmax": _owner(-1),
    "sum": _sum,
    "len": _length,
    "sorted": _sorted,
    "round": _round,
    "abs": _abs,
    "date": _date,
    "days": _days,
    "months": _months,
    "years": _years,
    "amount": _amount,
}
"""What an expression may call. `argmin` and `argmax` give what the smallest or greatest value belongs to; `days`,
`months` and `years` the whole ones between two dates."""
TAKE_TEXT = frozenset({"date", "amount"})
"""The functions that may be given a text in quotes."""
