"""Flow files as trees in which every key and every value knows where it stands.

YAML is read as version 1.2 of the language has it (core schema): `no`, `on` and `12:30:00` are text, `017` is the
number 17 and `1e3` is 1000.0. PyYAML supplies the events (its C parser where it was built with one); what a plain
scalar means, which keys are doubled and how far aliases may expand is decided here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import Any

import yaml

from ragbraid.dsl.files import read_bytes
from ragbraid.dsl.source_errors import explain_yaml_error
from ragbraid.dsl.source_nodes import (
    YAML_SPACES,
    Entry,
    MappingNode,
    Node,
    ScalarNode,
    SequenceNode,
    SourceText,
    direct_offset,
    subspan,
    to_python,
)
from ragbraid.registry.errors import Finding, Label, SourceSpan

__all__ = [
    "Entry",
    "MappingNode",
    "Node",
    "ScalarNode",
    "SequenceNode",
    "SourceText",
    "read_file",
    "read_inline",
    "read_source",
    "subspan",
    "to_python",
]

MAX_BYTES = 1024 * 1024
"""Larger files are refused: a flow is written by hand."""
MAX_DEPTH = 60
MAX_EXPANDED = 10_000
"""How many nodes all aliases of a file may stand for together."""

_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_PROPERTIES = re.compile(r"(?:&[^\s,\[\]{}]+\s*|(?P<tag>![^\s,\[\]{}]*)\s*)*")
_GLUED_KEY = re.compile(r"([^\W\d][\w.-]*):(?!/)\S")
_WIDE_KEY = re.compile(r"[A-Za-z_]\w*\s*\uff1a")
_MAYBE_TYPED = frozenset("0123456789+-.~nNtTfF")
_INT = re.compile(r"[-+]?[0-9]{1,300}")
_OCTAL_OR_HEX = re.compile(r"0o[0-7]{1,300}|0x[0-9a-fA-F]{1,300}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_INFINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)")
_WORDS: dict[str, None | bool | float] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}


def read_file(path: str | Path) -> tuple[str | None, Node | None, tuple[Finding, ...]]:
    """Read a flow file: its text, its tree, and what is wrong with it.

    The text is None when the file cannot be read (RB005), the tree when it is no YAML.
    """
    file = str(path)
    try:
        raw = read_bytes(path, MAX_BYTES + 1)
    except OSError as error:
        return None, None, (_unreadable(file, error),)
    start = SourceSpan(file, 1, 1, 1, 1)
    if len(raw) > MAX_BYTES:
        return None, None, (Finding("RB005", "the file is larger than 1 MiB, which no flow file is", start),)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8-sig")
        span = SourceText(file, before).span(len(before), len(before))
        message = f"the file is not UTF-8: byte 0x{raw[error.start]:02x} in line {span.line} is no part of a character"
        return None, None, (Finding("RB005", message, span, "save the file in the encoding UTF-8"),)
    node, findings = read_source(text, file)
    return text, node, findings


def read_source(text: str, file: str) -> tuple[Node | None, tuple[Finding, ...]]:
    """Read YAML text into a tree. `file` is only what positions call the file.

    Returns:
        The tree (None for an empty file and for one that does not parse) and the findings, in file order.
    """
    source = SourceText(file, text.removeprefix("\ufeff"))
    odd = _UNPRINTABLE.search(source.text)
    if odd:
        message = f"the character U+{ord(odd[0]):04X} cannot be seen and is not allowed in YAML"
        return None, (Finding("RB001", message, source.span(odd.start(), odd.end()), "delete it"),)
    return _compose(source, source.text, shift=0, within=None)


def read_inline(scalar: ScalarNode, start: int) -> tuple[Node | None, tuple[Finding, ...]]:
    """Read the rest of a scalar from offset `start` as YAML of its own: the `VALUE` of `TYPE = VALUE`.

    Positions are those of the file; where the scalar is folded or has escapes they are those of the whole scalar.
    """
    shift = direct_offset(scalar)
    text = scalar.text[start:]
    source = scalar.source or SourceText(scalar.span.file, text)
    if shift is None:
        return _compose(source, text, shift=0, within=scalar.span)
    return _compose(source, text, shift=shift + start, within=None)


def _unreadable(file: str, error: OSError) -> Finding:
    if isinstance(error, FileNotFoundError):
        message, hint = f"there is no file `{file}`", "check the path"
    elif isinstance(error, IsADirectoryError):
        message, hint = f"`{file}` is a folder, not a flow file", "name the file in it"
    elif isinstance(error, PermissionError):
        message, hint = f"the file `{file}` may not be read by this user", "check its permissions"
    else:
        message, hint = f"the file `{file}` cannot be read: {error.strerror or error}", None
    return Finding("RB005", message, SourceSpan(file, 1, 1, 1, 1), hint)


# -- events to nodes ---------------------------------------------------------------------------------------------------


def _compose(
    source: SourceText, text: str, *, shift: int, within: SourceSpan | None
) -> tuple[Node | None, tuple[Finding, ...]]:
    builder = _Builder(source, text, shift, within)
    try:
        for event in _events(text):
            if not builder.take(event):
                break
    except yaml.YAMLError as error:
        message, start, end, hint = explain_yaml_error(text, error)
        broken = Finding("RB001", message, builder.span(start, end), hint)
        return None, (*builder.findings, broken)
    if builder.root is None and not builder.findings:
        empty = Finding("RB004", "the file is empty", builder.span(0, 0), "begin with `ragbraid: 1`")
        return None, (empty,)
    return builder.root, tuple(sorted(builder.findings, key=lambda finding: finding.span))


def _events(text: str) -> Iterator[Any]:
    loader_class: Any = getattr(yaml, "CLoader", yaml.Loader)
    loader = loader_class(text)
    try:
        while loader.check_event():
            yield loader.get_event()
    finally:
        loader.dispose()


class _Open:
    """A collection whose end has not been reached."""

    __slots__ = ("anchor", "children", "flow", "is_mapping", "key", "seen", "size", "start", "waiting")

    def __init__(self, is_mapping: bool, start: int, flow: bool, anchor: str | None) -> None:
        self.is_mapping = is_mapping
        self.start = start
        self.flow = flow
        self.anchor = anchor
        self.children: list[Any] = []
        self.seen: dict[str, ScalarNode] = {}
        self.key: ScalarNode | None = None
        self.waiting = False  # a key (a good one or not) has been read, its value comes next
        self.size = 1


class _Builder:
    def __init__(self, source: SourceText, text: str, shift: int, within: SourceSpan | None) -> None:
        self.source = source
        self.text = text
        self.shift = shift
        self.within = within
        self.root: Node | None = None
        self.findings: list[Finding] = []
        self.stack: list[_Open] = []
        self.anchors: dict[str, tuple[Node, int] | None] = {}  # None: still open, so an alias to it is recursive
        self.expanded = 0
        self.documents = 0

    def span(self, start: int, end: int) -> SourceSpan:
        return self.within or self.source.span(start + self.shift, end + self.shift)

    def complain(self, code: str, message: str, start: int, end: int, hint: str | None = None) -> None:
        self.findings.append(Finding(code, message, self.span(start, end), hint))

    def take(self, event: Any) -> bool:
        """Take in one event; false when the rest of the file is not worth reading."""
        kind = type(event)
        if kind is yaml.ScalarEvent:
            self.scalar(event)
        elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
            return self.open(event, kind is yaml.MappingStartEvent)
        elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
            self.close(event)
        elif kind is yaml.AliasEvent:
            return self.alias(event)
        elif kind is yaml.DocumentStartEvent:
            return self.document(event)
        return True

    def document(self, event: Any) -> bool:
        self.documents += 1
        if self.documents == 1:
            return True
        start = event.start_mark.index
        hint = "keep each flow in a file of its own"
        self.complain("RB003", "a second document begins here, but one file is one flow", start, start + 3, hint)
        return False

    def scalar(self, event: Any) -> None:
        text = event.value
        plain = not event.style
        start, end = self.check_properties(event), event.end_mark.index
        if event.style in ("|", ">"):
            end = start + len(self.text[start:end].rstrip(YAML_SPACES))
        value = _resolve(text) if plain else text
        source = None if self.within else self.source
        span = self.span(start, end)
        node = ScalarNode(value, text, plain, span, source, start + self.shift, end + self.shift)
        if event.anchor:
            self.anchors[event.anchor] = (node, 1)
        self.add(node, 1)

    def open(self, event: Any, is_mapping: bool) -> bool:
        start = self.check_properties(event)
        if len(self.stack) >= MAX_DEPTH:
            self.complain("RB003", f"the file is nested deeper than {MAX_DEPTH} levels", start, start + 1)
            return False
        if event.anchor:
            self.anchors[event.anchor] = None
        self.stack.append(_Open(is_mapping, start, bool(event.flow_style), event.anchor))
        return True

    def close(self, event: Any) -> None:
        done = self.stack.pop()
        span = self.span(done.start, event.end_mark.index)
        if not done.flow and done.children:
            # The parser ends a block where the next token begins; the last value says where it ends for a reader.
            last = done.children[-1]
            end = last.value.span if isinstance(last, Entry) else last.span
            if (end.end_line, end.end_column) >= (span.line, span.column):
                span = SourceSpan(span.file, span.line, span.column, end.end_line, end.end_column)
        node: Node = (
            MappingNode(tuple(done.children), span) if done.is_mapping else SequenceNode(tuple(done.children), span)
        )
        if done.anchor:
            self.anchors[done.anchor] = (node, done.size)
        self.add(node, done.size)

    def alias(self, event: Any) -> bool:
        start, end = event.start_mark.index, event.end_mark.index
        if event.anchor not in self.anchors:
            hint = f"put `&{event.anchor}` before the value it stands for, or quote the text"
            self.complain(
                "RB003", f"`*{event.anchor}` stands for nothing: there is no `&{event.anchor}` above", start, end, hint
            )
            return False
        known = self.anchors[event.anchor]
        if known is None:
            self.complain("RB003", f"`*{event.anchor}` stands inside the value that it stands for", start, end)
            return False
        node, size = known
        self.expanded += size
        if self.expanded > MAX_EXPANDED:
            self.complain("RB003", f"the aliases of this file stand for more than {MAX_EXPANDED:,} values", start, end)
            return False
        self.add(node, size)
        return True

    def add(self, node: Node, size: int) -> None:
        if not self.stack:
            self.root = node if self.root is None else self.root
            return
        parent = self.stack[-1]
        parent.size += size
        if not parent.is_mapping:
            parent.children.append(node)
        elif not parent.waiting:
            parent.waiting = True
            parent.key = self.check_key(node, parent.seen)
        else:
            parent.waiting = False
            if parent.key is not None:
                parent.children.append(Entry(parent.key.text, parent.key.span, node))

    def check_key(self, node: Node, seen: dict[str, ScalarNode]) -> ScalarNode | None:
        if not isinstance(node, ScalarNode):
            braced = node.entries[0].key if isinstance(node, MappingNode) and len(node.entries) == 1 else None
            hint = f"for a reference write `${braced}`" if braced else None
            self.findings.append(Finding("RB004", "a key must be text, not a list or a mapping", node.span, hint))
            return None
        if not isinstance(node.value, str):
            message = "a key is missing before the colon" if not node.text else f"the key `{node.text}` is not text"
            hint = f'write "{node.text}" with quotes' if node.text else None
            self.findings.append(Finding("RB004", message, node.span, hint))
            return None
        if node.plain and (problem := _odd_key(node)) is not None:
            self.findings.append(problem)
            return None
        glued = _GLUED_KEY.match(node.text) if node.plain and ":" in node.text else None
        if glued:
            hint = f"write `{glued[1]}: ` with a space"
            self.findings.append(Finding("RB001", f"a space is missing after `{glued[1]}:`", node.span, hint))
            return None
        first = seen.setdefault(node.text, node)
        if first is not node:
            label = Label(first.span, "first written here")
            message = f"the key `{node.text}` occurs twice"
            self.findings.append(
                Finding("RB002", message, node.span, "delete or rename one of the two", labels=(label,))
            )
            return None
        return node

    def check_properties(self, event: Any) -> int:
        """Refuse a tag, and return where the value itself begins, behind its tag and anchor."""
        start: int = event.start_mark.index
        if not event.anchor and not event.tag:
            return start
        found = _PROPERTIES.match(self.text, start)
        if found is None:
            return start
        if event.tag and found["tag"]:
            message = f"the tag `{found['tag']}` is not allowed: a flow file holds plain values only"
            self.complain(
                "RB003", message, *found.span("tag"), "quote the text if it begins with `!`, else delete the tag"
            )
        return found.end()


def _odd_key(node: ScalarNode) -> Finding | None:
    """Return what is wrong with a key that was meant as something else."""
    if node.text == "<<":
        hint = "write the keys out, or use an alias for the whole value"
        return Finding("RB003", "YAML 1.2 has no `<<`: mappings cannot be merged", node.span, hint)
    wide = _WIDE_KEY.match(node.text)
    if wide is None:
        return None
    at = wide.end() - 1
    return Finding("RB001", "`\uff1a` is a full-width character", subspan(node, at, at + 1), "write `: `")


def _resolve(text: str) -> None | bool | int | float | str:
    """Return what the core schema of YAML 1.2 makes of a plain scalar."""
    if text and text[0] not in _MAYBE_TYPED:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        number = float(text)
        return number if isfinite(number) else text
    if _OCTAL_OR_HEX.fullmatch(text):
        return int(text, 0)
    return float(text.replace(".", "")) if _INFINITE.fullmatch(text) else text
