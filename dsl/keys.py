"""Keys, names and texts of a flow file: what is the same wherever they stand."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ragbraid.dsl.report import Report
from ragbraid.dsl.source_nodes import Entry, MappingNode, Node, ScalarNode
from ragbraid.dsl.syntax import Named
from ragbraid.registry.suggest import nearest

WORDS_OF_EXPRESSIONS = frozenset(
    {"and", "or", "not", "in", "is", "if", "else", "true", "false", "none", "env", "secret", "out"}
)
"""Names that an expression could not refer to; `out` is a node's own output in its `ensure`."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_NODE_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+(@\d+)?")

_OTHER_WORDS = {
    "min": "ge", "minimum": "ge", "max": "le", "maximum": "le", "enum": "choices", "options": "choices",
    "description": "about", "doc": "about", "help": "about", "steps": "nodes", "edges": "flow", "arrows": "flow",
    "version": "ragbraid", "tz": "timezone", "max_attempts": "attempts", "pool": "work_pool", "title": "name",
}  # fmt: skip
"""What other tools call our keys."""


def check_keys(mapping: MappingNode, known: Iterable[str], where: str, report: Report) -> MappingNode:
    """Report every key that is none of `known`, with the nearest one as a hint.

    Returns the mapping without unknown keys; one that is only misspelt stands under its right name, so that what
    depends on it is not reported as missing.
    """
    known = tuple(known)
    entries = {entry.key: entry for entry in mapping.entries if entry.key in known}
    for entry in mapping.entries:
        if entry.key in known:
            continue
        meant = nearest(entry.key, known)
        if meant is None and _OTHER_WORDS.get(entry.key) in known:
            meant = _OTHER_WORDS[entry.key]
        hint = f"did you mean `{meant}`?" if meant else f"known keys are {', '.join(known)}"
        report.error("RB010", f"`{entry.key}` is not a key of {where}", entry.key_span, hint)
        if meant is not None:
            entries.setdefault(meant, Entry(meant, entry.key_span, entry.value))
    return MappingNode(tuple(entries.values()), mapping.span)


def is_name(text: str) -> bool:
    """Whether a text is well formed as a name."""
    return _NAME.fullmatch(text) is not None


def check_name(name: Named, what: str, report: Report) -> bool:
    """Report a name that could not be referred to; returns whether it is well formed."""
    if not is_name(name.text):
        hint = "names start with a letter from a to z and go on with letters, digits and `_`"
        report.error("RB014", f"`{name.text}` cannot be the name of {what}", name.span, hint)
        return False
    if name.text in WORDS_OF_EXPRESSIONS:
        message = f"`{name.text}` cannot be the name of {what}: it means something else in expressions"
        report.error("RB014", message, name.span, "choose another name")
        return False
    return True


def read_text(mapping: MappingNode, key: str, report: Report) -> str | None:
    """Return the text of a key; RB012 where it is none."""
    node = mapping.get(key)
    if node is None:
        return None
    if isinstance(node, ScalarNode) and isinstance(node.value, str) and node.value.strip():
        return node.value
    report.error("RB012", f"`{key}` is a text", node.span, quote_hint(node))
    return None


def quote_hint(node: Node) -> str | None:
    """Return how a value that YAML reads as a number, a date or a truth value is written as text."""
    if isinstance(node, ScalarNode) and node.value is not None and not isinstance(node.value, str):
        return f'write "{node.text}" with quotes'
    return None


def use_hint(name: str, value: MappingNode, what: str) -> str:
    """Return how the node would be written right, as far as one can tell what was meant."""
    for entry in value.entries:
        if "." in entry.key and len(value.entries) == 1:
            return f"write `{name}: {{use: {entry.key}, ...}}` with the settings beside `use`"
        if isinstance(entry.value, ScalarNode) and _NODE_NAME.fullmatch(entry.value.text):
            return f"write `use: {entry.value.text}` instead of `{entry.key}: {entry.value.text}`"
    return f"write `{name}: {{use: family.{what}, ...}}`"
