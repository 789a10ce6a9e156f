"""Declarations: `name: TYPE`, `name: TYPE = VALUE`, or a mapping. Inputs of a flow, states of a loop."""

from __future__ import annotations

from ragbraid.dsl.keys import check_keys, check_name, read_text
from ragbraid.dsl.report import Report
from ragbraid.dsl.source import read_inline
from ragbraid.dsl.source_nodes import Entry, MappingNode, ScalarNode, subspan
from ragbraid.dsl.syntax import InputDecl, Named
from ragbraid.dsl.types import split_declaration

BOUND_KEYS = ("ge", "gt", "le", "lt", "min_length", "max_length", "pattern", "choices")
INPUT_KEYS = ("type", "default", "about", *BOUND_KEYS)


def parse_declaration(entry: Entry, what: str, report: Report) -> InputDecl:
    """Read one declaration; its type is None where that cannot be read. `what` names it: "an input", "a state"."""
    name = Named(entry.key, entry.key_span)
    unknown = InputDecl(name, None, None, {}, "")
    if not check_name(name, what, report):
        return unknown
    value = entry.value
    if isinstance(value, ScalarNode) and isinstance(value.value, str):
        return _short_declaration(name, value, report)
    if not isinstance(value, MappingNode):
        hint = f"write `{name.text}: str` or `{name.text}: {{type: int, default: 5}}`"
        report.error("RB012", f"{_the(what)} `{name.text}` has no type", value.span, hint)
        return unknown
    value = check_keys(value, INPUT_KEYS, what, report)
    type_node = value.get("type")
    if type_node is None:
        report.error("RB011", f"{_the(what)} `{name.text}` has no `type`", entry.key_span, "write `type: str`")
        return unknown
    if not isinstance(type_node, ScalarNode) or not isinstance(type_node.value, str):
        hint = 'a type with brackets is quoted here: `type: "list[str]"`'
        report.error("RB012", "`type` is the name of a type", type_node.span, hint)
        return unknown
    bounds = {e.key: e.value for e in value.entries if e.key in BOUND_KEYS}
    about = read_text(value, "about", report) or ""
    return InputDecl(name, Named(type_node.value, type_node.span), value.get("default"), bounds, about)


def _short_declaration(name: Named, value: ScalarNode, report: Report) -> InputDecl:
    type_text, default_text = split_declaration(value.text)
    start = value.text.index(type_text)
    type_name = Named(type_text, subspan(value, start, start + len(type_text)))
    if default_text is None:
        return InputDecl(name, type_name, None, {}, "")
    begin = len(value.text) - len(default_text.lstrip())
    if not default_text.strip():
        hint = f"write `{name.text}: {type_text} = VALUE`, or delete the `=`"
        at = value.text.rindex("=", 0, max(begin, 1))
        report.error("RB011", "a value is missing after the `=`", subspan(value, at, at + 1), hint)
        return InputDecl(name, None, None, {}, "")
    default, findings = read_inline(value, begin)
    report.extend(findings)
    return InputDecl(name, None if findings else type_name, default, {}, "")


def _the(what: str) -> str:
    return f"the {what.partition(' ')[2]}"
