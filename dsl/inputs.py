"""Declared inputs: their types with bounds and choices, and their defaults."""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, TypeAdapter
from pydantic_core import SchemaError

from ragbraid.dsl.plan import InputSpec
from ragbraid.dsl.report import Report
from ragbraid.dsl.scope import POISON
from ragbraid.dsl.source_nodes import Node, ScalarNode, SequenceNode, subspan, to_python
from ragbraid.dsl.syntax import InputDecl, Named
from ragbraid.dsl.types import TypeProblem, describe, parse_type, strip, validate, without_none
from ragbraid.dsl.values import bind_literal, is_dynamic
from ragbraid.registry.catalogue import Catalogue
from ragbraid.registry.errors import SourceSpan
from ragbraid.registry.node import REQUIRED, FilePath

RESERVED_BY_PREFECT = frozenset({"cls", "model_config", "self", "wait_for", "return_state"})

_NUMBERS = (int, float, date)
_BOUNDS: Mapping[str, tuple[type[Any], ...]] = {
    "ge": _NUMBERS, "gt": _NUMBERS, "le": _NUMBERS, "lt": _NUMBERS,
    "min_length": (str, list, tuple, dict), "max_length": (str, list, tuple, dict), "pattern": (str,),
}  # fmt: skip


def read_type(name: Named, node: ScalarNode | None, catalogue: Catalogue, report: Report) -> Any:
    """Return the type that a text names, or POISON after reporting RB105."""
    parsed = parse_type(name.text, lambda text: find_type(text, catalogue), lambda: known_types(catalogue))
    if not isinstance(parsed, TypeProblem):
        return parsed
    span = subspan(node, parsed.start, parsed.end) if node is not None else _within(name, parsed.start, parsed.end)
    report.error("RB105", parsed.message, span, parsed.hint)
    return POISON


def find_type(name: str, catalogue: Catalogue) -> Any | None:
    """Return the type of a name: `path`, or a contract of the catalogue."""
    return Annotated[str, FilePath()] if name == "path" else catalogue.find_type(name)


def known_types(catalogue: Catalogue) -> Iterable[str]:
    """Return every type name beside the built-in ones."""
    return ["path", *catalogue.types()]


def read_inputs(decls: Iterable[InputDecl], catalogue: Catalogue, report: Report) -> list[InputSpec | None]:
    """Check every declaration; None stands for one whose type is unknown."""
    return [_read_input(decl, catalogue, report) for decl in decls]


def read_declared_type(decl: InputDecl, catalogue: Catalogue, report: Report) -> Any:
    """Return the type of a declaration with its bounds and choices, or POISON after reporting what is wrong."""
    return _read_types(decl, catalogue, report)[1]


def _read_types(decl: InputDecl, catalogue: Catalogue, report: Report) -> tuple[Any, Any]:
    """Return the type as it is named, and with its bounds."""
    base = POISON if decl.type is None else read_type(decl.type, None, catalogue, report)
    return base, POISON if base is POISON else _with_bounds(decl, base, report)


def _read_input(decl: InputDecl, catalogue: Catalogue, report: Report) -> InputSpec | None:
    if decl.type is None:
        return None
    _check_reserved(decl.name, report)
    base, type_ = _read_types(decl, catalogue, report)
    if type_ is POISON:
        return None
    default: Any = REQUIRED
    if decl.default is not None and is_dynamic(decl.default):
        hint = "write a plain value; for a dollar sign write `$$`"
        message = f"the default of `{decl.name.text}` cannot refer to anything: it is known before a run"
        report.error("RB403", message, decl.default.span, hint)
        default = None
    elif decl.default is not None:
        bound = bind_literal(decl.default, type_, f"the default of `{decl.name.text}`", report)
        default = getattr(bound.value, "value", None)
    declared = {"type": describe(base), **{key: to_python(node) for key, node in decl.bounds.items()}}
    return InputSpec(decl.name.text, type_, default, default is REQUIRED, decl.about, declared)


def _check_reserved(name: Named, report: Report) -> None:
    if name.text in RESERVED_BY_PREFECT:
        report.error("RB504", f"Prefect reserves the parameter name `{name.text}`", name.span, "choose another name")
    elif keyword.iskeyword(name.text):
        hint = "choose another name; it could not be written as `run(name=...)`"
        report.error("RB504", f"`{name.text}` is a word of Python's own", name.span, hint)


def _with_bounds(decl: InputDecl, base: Any, report: Report) -> Any:
    bounds: dict[str, Any] = {}
    for key, node in decl.bounds.items():
        if key == "choices":
            base = _with_choices(decl, base, node, report)
        elif not _applies(key, base):
            message = f"`{key}` does not apply to {describe(base)}"
            report.error("RB201", message, node.span, _applies_hint(key))
        elif (value := _bound_value(key, base, node, report)) is not None:
            bounds[key] = value
        if base is POISON:
            return POISON
    if not bounds or base is POISON:
        return base
    return POISON if _contradict(decl, bounds, report) else Annotated[base, Field(**bounds)]


def _contradict(decl: InputDecl, bounds: Mapping[str, Any], report: Report) -> bool:
    """Report bounds that no value can meet, which must come before a default is measured by them."""
    for low, high in (("ge", "le"), ("ge", "lt"), ("gt", "le"), ("gt", "lt"), ("min_length", "max_length")):
        if low in bounds and high in bounds:
            excludes = low == "gt" or high == "lt"
            if bounds[low] > bounds[high] or (excludes and bounds[low] == bounds[high]):
                message = f"no value meets both `{low}: {bounds[low]}` and `{high}: {bounds[high]}`"
                report.error("RB201", message, decl.bounds[high].span, "exchange the two, or delete one")
                return True
    return False


def _with_choices(decl: InputDecl, base: Any, node: Node, report: Report) -> Any:
    if not isinstance(node, SequenceNode) or not node.items:
        report.error("RB012", "`choices` is a list of values", node.span, "write `choices: [short, long]`")
        return POISON
    values = []
    for item in node.items:
        value, problem = validate(to_python(item), base)
        if problem is not None:
            report.error("RB201", f"a choice of `{decl.name.text}` {problem}", item.span)
            return POISON
        values.append(value)
    return Literal[tuple(values)]


def _applies(key: str, base: Any) -> bool:
    plain = strip(without_none(base))
    origin = getattr(plain, "__origin__", plain)
    return isinstance(origin, type) and origin is not bool and issubclass(origin, _BOUNDS[key])


def _applies_hint(key: str) -> str:
    return "it bounds the length of texts and lists" if "length" in key else "it bounds numbers and dates"


def _bound_value(key: str, base: Any, node: Node, report: Report) -> Any:
    expected: Any = NonNegativeInt if "length" in key else str if key == "pattern" else strip(without_none(base))
    value, problem = validate(to_python(node), expected)
    if problem is not None:
        report.error("RB201", f"`{key}` {problem}", node.span)
        return None
    if key == "pattern" and (reason := _pattern_problem(value)) is not None:
        report.error("RB201", f"`{value}` is no regular expression: {reason}", node.span)
        return None
    return value


def _pattern_problem(pattern: str) -> str | None:
    """Return why pydantic, whose expressions have no look-around, cannot use a pattern."""
    try:
        TypeAdapter(Annotated[str, Field(pattern=pattern)])
    except SchemaError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return lines[-1].removeprefix("error: ")
    return None


def _within(name: Named, start: int, end: int) -> SourceSpan:
    """Cut a part out of a name's span, where it stands on one line as written."""
    span = name.span
    if span.line != span.end_line or span.end_column - span.column != len(name.text):
        return span
    return SourceSpan(span.file, span.line, span.column + start, span.line, span.column + end)
