"""The cases of a `switch`: which value each stands for, and whether they cover every value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Literal, get_args, get_origin

from ragbraid.dsl.report import Report
from ragbraid.dsl.scope import POISON
from ragbraid.dsl.syntax import SwitchDecl
from ragbraid.dsl.types import choices, describe, members, validate, without_none
from ragbraid.registry.suggest import did_you_mean


def read_cases(decl: SwitchDecl, on: Any, report: Report) -> list[Any]:
    """Return the value that each case stands for; RB307 where one is impossible or one is not covered.

    Args:
        decl: the switch.
        on: the type of the value that decides, or POISON.
        report: where to report.
    """
    if on is POISON:
        return [None for _ in decl.cases]
    closed = _values_by_text(on)
    if closed is None:
        return _open_cases(decl, on, report)
    known = dict(closed)
    for branch in decl.cases:
        if branch.label.text not in known:
            hint = did_you_mean(branch.label.text, known) or f"it can be {_listed(known)}"
            message = f"`on` is never `{branch.label.text}`: it is {describe(on)}"
            report.error("RB307", message, branch.label.span, hint)
            known[branch.label.text] = None
    # A case that is only misspelt is meant to cover one of those that are not covered.
    impossible = len(known) - len(closed)
    written = {branch.label.text for branch in decl.cases}
    missing = [text for text in closed if text not in written]
    if decl.otherwise is None and len(missing) > impossible:
        hint = "add it, or an `else`" if len(missing) == 1 else "add them, or an `else`"
        report.error("RB307", f"no case of this switch covers {_listed(missing)}", decl.span, hint)
    elif decl.otherwise is not None and not missing:
        span = decl.otherwise.label.span
        report.warning("RB903", "this `else` has no effect: the cases cover every value", span, "remove it")
    return [known[branch.label.text] for branch in decl.cases]


def _open_cases(decl: SwitchDecl, on: Any, report: Report) -> list[Any]:
    """Read cases of a type that has no end of values, such as `str`."""
    if decl.otherwise is None:
        message = f"the cases of this switch cannot cover {describe(on)}"
        report.error("RB307", message, decl.span, "add an `else` for every other value")
    values = []
    for branch in decl.cases:
        text = branch.label.text
        value = None if text == "none" and without_none(on) is not on else _as_value(text, on)
        if value is _IMPOSSIBLE:
            report.error("RB307", f"`on` is never `{text}`: it is {describe(on)}", branch.label.span)
        values.append(value)
    return values


_IMPOSSIBLE = object()


def _as_value(text: str, on: Any) -> Any:
    """Return the value of a type that a case names: keys of YAML are texts."""
    for candidate in _readings(text):
        value, problem = validate(candidate, on)
        if problem is None:
            return value
    return _IMPOSSIBLE


def _readings(text: str) -> Sequence[Any]:
    found: list[Any] = [text]
    for read in (int, float):
        try:
            found.append(read(text))
        except ValueError:
            continue
    return found


def _values_by_text(on: Any) -> Mapping[str, Any] | None:
    """Return every value of a literal, enum or bool by how a case writes it, or None for an open type."""
    if choices(on) is None:
        return None
    found: dict[str, Any] = {}
    for member in members(on):
        if member is type(None):
            found["none"] = None
        elif member is bool:
            found |= {"true": True, "false": False}
        elif get_origin(member) is Literal:
            found |= {_as_key(value): value for value in get_args(member)}
        elif isinstance(member, type) and issubclass(member, Enum):
            found |= {_as_key(item.value): item for item in member}
    return found


def _as_key(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _listed(texts: Mapping[str, Any] | Sequence[str]) -> str:
    return ", ".join(f"`{text}`" for text in texts)
