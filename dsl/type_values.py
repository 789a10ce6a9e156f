"""Values that stand in a flow file, checked and converted by a type.

YAML already says what is a number and what is text, so nothing is guessed: `"5"` is no int and `1` is no bool. What
YAML cannot write is made from what it can: a tuple from a list, a model from a mapping, a date from its ISO form, an
enum from its value. That is the strict mode of pydantic for JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError

from ragbraid.dsl.type_fields import field_names
from ragbraid.dsl.type_names import describe, is_union
from ragbraid.registry.contracts import FanIn
from ragbraid.registry.suggest import did_you_mean

MAX_SHOWN = 40
"""Longer texts are cut in messages."""


def validate(value: Any, tp: Any) -> tuple[Any, str | None]:
    """Check a value against a type, bounds included.

    Returns:
        The converted value and None, or None and what is wrong: the end of a sentence such as
        "must be at most 50, not 99" or "must be text, not 5 (in `[1]`)".
    """
    validated, problem = locate(value, tp)
    return validated, None if problem is None else problem.sentence


@dataclass(frozen=True, slots=True)
class Misfit:
    """What is wrong with a value: the end of a sentence, and the way into the value; `on_key` means the last key."""

    sentence: str
    path: tuple[int | str, ...]
    on_key: bool = False


def locate(value: Any, tp: Any) -> tuple[Any, Misfit | None]:
    """Check a value against a type as `validate` does; what is wrong comes with where in the value it is."""
    adapter = _adapter(tp)
    try:
        return adapter.validate_json(json.dumps(value), strict=True), None
    except TypeError:
        pass  # the value holds more than YAML can write, such as a default that is a model
    except ValidationError as error:
        return None, _explain(error, value, tp)
    try:
        return adapter.validate_python(value, strict=True), None
    except ValidationError as error:
        return None, _explain(error, value, tp)


@lru_cache(maxsize=2048)
def _adapter(tp: Any) -> TypeAdapter[Any]:
    if get_origin(tp) is FanIn:
        tp = dict[str, get_args(tp)[0]]  # type: ignore[misc]
    return TypeAdapter(tp)


def _explain(error: ValidationError, value: Any, tp: Any) -> Misfit:
    problems = error.errors(include_url=False)
    # A misspelled field is missing under its right name too; the name that was written is the better sentence.
    first = min(problems, key=lambda problem: problem["type"] != "extra_forbidden")
    loc = first["loc"][:-1] if first["type"] == "extra_forbidden" else first["loc"]
    path, inner = _walk(loc, value)
    place = str(first["loc"][-1]) if first["loc"] else ""
    if not path and len(problems) > 1 and len(_beside_none(tp)) > 1:
        return Misfit(f"must be {describe(tp)}, not {show(value)}", ())
    sentence = _sentence(first, place, inner, tp if not path else None)
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
    sentence = f"{sentence} (in `{where}`)" if where else sentence
    on_key = first["type"] == "extra_forbidden"
    return Misfit(sentence, (*path, place) if on_key else tuple(path), on_key)


def _beside_none(tp: Any) -> tuple[Any, ...]:
    while get_origin(tp) is Annotated:
        tp = get_args(tp)[0]
    return tuple(arg for arg in get_args(tp) if arg is not type(None)) if is_union(tp) else (tp,)


def _walk(loc: tuple[int | str, ...], value: Any) -> tuple[list[int | str], Any]:
    """Return the part of a location that leads into the value, and what stands there.

    Pydantic mixes names of union members and validators into locations; those lead nowhere and are left out.
    """
    path: list[int | str] = []
    for part in loc:
        is_item = isinstance(value, list | tuple) and isinstance(part, int) and part < len(value)
        if is_item or (isinstance(value, Mapping) and part in value):
            value = value[part]
            path.append(part)
    return path, value


_KINDS = {
    "int_type": "a whole number", "int_from_float": "a whole number", "float_type": "a number",
    "string_type": "text", "bool_type": "true or false", "list_type": "a list", "tuple_type": "a list",
    "set_type": "a list", "frozen_set_type": "a list", "dict_type": "a mapping", "mapping_type": "a mapping",
    "model_type": "a mapping", "dataclass_type": "a mapping", "none_required": "none", "finite_number": "a finite number",
    "date_type": "a date such as 2025-03-01", "date_parsing": "a date such as 2025-03-01",
    "date_from_datetime_parsing": "a date such as 2025-03-01", "date_from_datetime_inexact": "a date such as 2025-03-01",
    "datetime_type": "a date and time such as 2025-03-01T12:00:00",
    "datetime_parsing": "a date and time such as 2025-03-01T12:00:00",
    "datetime_from_date_parsing": "a date and time such as 2025-03-01T12:00:00",
    "timezone_aware": "a time with a time zone", "timezone_naive": "a time without a time zone",
    "iterable_type": "a list", "path_type": "a path", "url_parsing": "a URL", "url_type": "a URL",
}  # fmt: skip
_BOUNDS: dict[str, Callable[[dict[str, Any]], str]] = {
    "greater_than": lambda ctx: f"greater than {_number(ctx['gt'])}",
    "greater_than_equal": lambda ctx: f"at least {_number(ctx['ge'])}",
    "less_than": lambda ctx: f"less than {_number(ctx['lt'])}",
    "less_than_equal": lambda ctx: f"at most {_number(ctx['le'])}",
    "multiple_of": lambda ctx: f"a multiple of {_number(ctx['multiple_of'])}",
    "string_pattern_mismatch": lambda ctx: f"text of the form {ctx['pattern']}",
    "literal_error": lambda ctx: str(ctx["expected"]).replace("'", '"'),
    "enum": lambda ctx: str(ctx["expected"]).replace("'", '"'),
}
_LENGTHS = {
    "string_too_short": ("min_length", "at least", "character"),
    "string_too_long": ("max_length", "at most", "character"),
    "too_short": ("min_length", "at least", "item"),
    "too_long": ("max_length", "at most", "item"),
}


def _sentence(problem: Any, place: str, value: Any, tp: Any) -> str:
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "missing":
        return f"lacks `{place}`"
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        hint = did_you_mean(place, field_names(_beside_none(tp)[0])) if tp is not None else None
        return f"has no field `{place}`" + (f", {hint}" if hint else "")
    if kind in _KINDS:
        return f"must be {_KINDS[kind]}, not {show(value)}"
    if kind in _BOUNDS:
        return f"must be {_BOUNDS[kind](context)}, not {show(value)}"
    if kind in _LENGTHS:
        key, bound, unit = _LENGTHS[kind]
        number = context[key]
        return f"must have {bound} {number} {unit}{'' if number == 1 else 's'}, not {_length(value, context)}"
    if kind in ("value_error", "assertion_error"):
        return f"is refused: {context.get('error', problem['msg'])}"
    return f"is refused: {problem['msg'][:1].lower()}{problem['msg'][1:]}"


def _number(bound: Any) -> str:
    return f"{bound:g}" if isinstance(bound, float) else show(bound)


def _length(value: Any, context: dict[str, Any]) -> int:
    length: int = context["actual_length"] if context.get("actual_length") is not None else len(value)
    return length


def show(value: Any) -> str:
    """Return a value as a message shows it: short, and text in quotes."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, str):
        return json.dumps(value if len(value) <= MAX_SHOWN else value[: MAX_SHOWN - 3] + "...", ensure_ascii=False)
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple | set | frozenset):
        return "a list"
    return type(value).__name__ if isinstance(value, BaseModel) else str(value)[:MAX_SHOWN]
