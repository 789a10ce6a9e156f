"""What the maths of a plan counts with: numbers, dates and lengths of time, amounts with a unit; read from texts.

Nothing is guessed: a text that is neither is an error that says so. Amounts of one kind are converted exactly, those
of units that are not in the table (people, $) go together only with their like.
"""

from __future__ import annotations

import calendar
import re
import unicodedata
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from typing import TypeAlias

LARGEST = 10**60
"""No number may be greater than this: intermediate results stay small whatever a model writes."""


class MathError(ValueError):
    """Why something cannot be computed, as a sentence. Raised by validators too, and so a ValueError."""


@dataclass(frozen=True, slots=True)
class Period:
    """A day, or a month or year of which the day is not known: from its first day to its last."""

    first: date
    last: date

    def __str__(self) -> str:
        if self.first == self.last:
            return self.first.isoformat()
        return f"{self.first.year:04}" if self.first.month != self.last.month else f"{self.first:%Y-%m}"


@dataclass(frozen=True, slots=True)
class Amount:
    """A number with its unit as it was written."""

    number: int | float
    unit: str

    def __str__(self) -> str:
        gap = "" if self.unit in _SIGNS else " "
        before, after = (self.unit, "") if self.unit in _CURRENCIES else ("", gap + self.unit)
        return f"{before}{show_number(self.number)}{after}"


Value: TypeAlias = int | float | bool | Period | Amount

_CURRENCIES = frozenset("$€£¥₹")
_SIGNS = _CURRENCIES | {"%"}
_MAGNITUDES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "万": 10**4, "亿": 10**8}
_MONTHS = {name.casefold(): n for n, name in enumerate(calendar.month_name) if name}
_MONTHS |= {name.casefold(): n for n, name in enumerate(calendar.month_abbr) if name} | {"sept": 9}

_NUMBER = re.compile(
    r"(?P<sign>[-−+])?\s*(?P<money>[$€£¥₹])?\s*(?P<digits>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)(?P<power>e[+-]?\d{1,2})?"
    r"\s*(?P<size>thousand\b|million\b|billion\b|trillion\b|万|亿)?\s*(?P<unit>%|[^\W\d_][^\W\d_²³/]{0,19}[²³]?)?\.?",
    re.IGNORECASE,
)
_DATES = (
    re.compile(r"(?P<y>\d{4})[-/](?P<m>\d{1,2})(?:[-/](?P<d>\d{1,2}))?"),
    re.compile(r"(?P<y>\d{4})\s*年\s*(?:(?P<m>\d{1,2})\s*月\s*(?:(?P<d>\d{1,2})\s*[日号])?)?"),
    re.compile(r"(?:(?P<d>\d{1,2})(?:st|nd|rd|th)?\s+(?:of\s+)?)?(?P<m>[a-z]{3,9})\.?,?\s+(?P<y>\d{4})", re.IGNORECASE),
    re.compile(r"(?P<m>[a-z]{3,9})\.?\s+(?P<d>\d{1,2})(?:st|nd|rd|th)?,?\s+(?P<y>\d{4})", re.IGNORECASE),
)


def _units() -> dict[str, tuple[str, Fraction]]:
    table: dict[str, tuple[str, Fraction]] = {}
    for kind, sizes in {
        "length": {
            "mm 毫米 millimetre millimeter": "1/1000",
            "cm 厘米 centimetre centimeter": "1/100",
            "m 米 metre meter": "1",
            "km 公里 千米 kilometre kilometer": "1000",
            "inch inche": "254/10000",
            "ft foot feet": "3048/10000",
            "yd yard": "9144/10000",
            "mi mile": "1609344/1000",
        },
        "mass": {
            "mg 毫克 milligram": "1/1000000",
            "g 克 gram": "1/1000",
            "kg 公斤 千克 kilogram": "1",
            "t 吨 tonne": "1000",
            "oz ounce": "45359237/1600000000",
            "lb pound": "45359237/100000000",
        },
        "time": {
            "s sec 秒 second": "1",
            "min 分钟 minute": "60",
            "h hr 小时 hour": "3600",
            "d 天 日 day": "86400",
            "周 week": "604800",
        },
        "span": {"月 个月 month": "1", "年 岁 year": "12"},
        "area": {"m² sqm 平方米": "1", "ha 公顷 hectare": "10000", "km² 平方公里": "1000000"},
        "volume": {"ml 毫升 millilitre milliliter": "1/1000", "l 升 litre liter": "1", "m³ 立方米": "1000"},
    }.items():
        for names, size in sizes.items():
            table |= {name: (kind, Fraction(size)) for name in names.split()}
    return table


_UNITS = _units()


def read_value(text: str) -> Value:
    """Read a number, date or amount.

    Raises:
        MathError: the text is none of these.
    """
    plain = unicodedata.normalize("NFC", " ".join(text.split())).strip(" .。")
    for pattern in _DATES:
        if match := pattern.fullmatch(plain):
            found = _period(match)
            if found is not None:
                return found
    match = _NUMBER.fullmatch(plain)
    if match is None or (match["money"] and match["unit"]):
        raise MathError(f"`{text[:60]}` is no number, date or amount")
    unit = match["money"] or match["unit"]
    number = _number(match)
    return number if unit is None else Amount(number, unit)


def _number(match: re.Match[str]) -> int | float:
    digits = match["digits"].replace(",", "") + (match["power"] or "")
    exact = Fraction(digits) * _MAGNITUDES.get((match["size"] or "").casefold(), 1)
    if exact > LARGEST:
        raise MathError(f"numbers greater than 1e{len(str(LARGEST)) - 1} are not computed with")
    return simplest(-exact if match["sign"] in ("-", "−") else exact)


def _period(match: re.Match[str]) -> Period | int | None:
    month = match["m"]
    if month is None:
        return int(match["y"])  # a year alone counts as a number, and next to a date as that year
    number = int(month) if month.isdecimal() else _MONTHS.get(month.casefold())
    if number is None:
        return None
    try:
        return period(int(match["y"]), number, int(match["d"]) if match["d"] else None)
    except ValueError as error:
        raise MathError(f"`{match[0]}` is no date: {error}") from None


def period(year: int, month: int | None = None, day: int | None = None) -> Period:
    """Return a day, or the month or year as a whole.

    Raises:
        ValueError: there is no such day.
    """
    if month is None:
        return Period(date(year, 1, 1), date(year, 12, 31))
    if day is None:
        return Period(date(year, month, 1), date(year, month, calendar.monthrange(year, month)[1]))
    return Period(date(year, month, day), date(year, month, day))


def simplest(number: Fraction) -> int | float:
    """Return a fraction as a whole number where it is one."""
    return number.numerator if number.denominator == 1 else float(number)


def show_number(number: float) -> str:
    """Return a number as text: up to 12 digits, no trailing zeros."""
    return str(number) if isinstance(number, int) else f"{number:.12g}"


def show_value(value: Value) -> str:
    """Return a value as text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return show_number(value) if isinstance(value, int | float) else str(value)


def in_unit(amount: Amount, unit: str) -> int | float:
    """Return an amount's number in another unit of its kind.

    Raises:
        MathError: the units measure different things, or one of them is not known.
    """
    if amount.unit == unit:
        return amount.number
    source, target = _unit(amount.unit), _unit(unit)
    if source is None or target is None or source[0] != target[0]:
        raise MathError(f"amounts in `{amount.unit}` and `{unit}` do not go together")
    return simplest(Fraction(amount.number) * source[1] / target[1])


def _unit(name: str) -> tuple[str, Fraction] | None:
    """Look a unit up as it is written, without regard to case where it is a word, and to the `s` of a plural."""
    if name in _UNITS:
        return _UNITS[name]
    word = name.casefold()
    return (_UNITS.get(word) or _UNITS.get(word.removesuffix("s"))) if len(word) > 2 else None
