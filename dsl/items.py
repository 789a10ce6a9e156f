"""What a block goes over: `{item: $list}`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ragbraid.dsl.scope import POISON
from ragbraid.dsl.source_nodes import Entry, ScalarNode
from ragbraid.dsl.types import assignable, describe, field_names, field_type, is_optional, item_type
from ragbraid.dsl.values import WRONG, Bound, Context, bind_value


def bind_items(entry: Entry, key: str, context: Context) -> tuple[Bound, Any]:
    """Return the list that a block goes over, and the type of its items; RB310 where it is no list."""
    bound = bind_value(entry.value, Any, key, context)
    if bound.type is POISON:
        return WRONG, POISON
    if is_optional(bound.type):
        hint = "give it a value, such as `${ ... | default([]) }`"
        context.report.error("RB308", f"{key} always needs a list, but this may be none", entry.value.span, hint)
        return WRONG, POISON
    item = item_type(bound.type)
    if item is None or not _is_list(bound.type):
        message = f"{key} goes over a list, but this is {describe(bound.type)}"
        context.report.error("RB310", message, entry.value.span, _hint(entry, bound.type))
        return WRONG, POISON
    return bound, item


def _is_list(tp: Any) -> bool:
    return assignable(tp, list[Any]) or (
        assignable(tp, Iterable) and not assignable(tp, str) and not assignable(tp, Mapping)
    )


def _hint(entry: Entry, tp: Any) -> str | None:
    """Name a field of the value that is a list."""
    if not isinstance(entry.value, ScalarNode) or not str(entry.value.value).startswith("$"):
        return "write a list, or refer to one"
    lists = [name for name in field_names(tp) if (found := field_type(tp, name)) is not None and _is_list(found)]
    return f"did you mean `{entry.value.text}.{lists[0]}`?" if lists else "refer to a list"
