"""The tree of a flow file: nodes that know where they stand, down to single characters of a value."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from ragbraid.registry.errors import SourceSpan

LINE_BREAK = re.compile(r"\r\n|\r|\n")
YAML_SPACES = " \t\r\n\x85\u2028\u2029"
_ESCAPES = {
    "0": "\0", "a": "\a", "b": "\b", "t": "\t", "\t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "e": "\x1b",
    "N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029",
}  # fmt: skip
_HEX_ESCAPES = {"x": 2, "u": 4, "U": 8}


class SourceText:
    """The text of a file together with the offsets at which its lines begin."""

    __slots__ = ("file", "starts", "text")

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.text = text
        self.starts = (0, *(match.end() for match in LINE_BREAK.finditer(text)))

    def span(self, start: int, end: int) -> SourceSpan:
        """Return lines and columns of a stretch that is given in code point offsets."""
        line = bisect_right(self.starts, start)
        end_line = bisect_right(self.starts, end)
        return SourceSpan(
            self.file, line, start - self.starts[line - 1] + 1, end_line, end - self.starts[end_line - 1] + 1
        )


@dataclass(frozen=True, slots=True)
class ScalarNode:
    """A single value. `text` is the string that stands in the file, `value` what YAML 1.2 makes of it."""

    value: None | bool | int | float | str
    text: str
    plain: bool
    """Whether it is written without quotes and not as a block of text."""
    span: SourceSpan = field(compare=False)
    """Where the value stands, quotes included."""
    source: SourceText | None = field(default=None, repr=False, compare=False)
    """What `subspan` needs beside the offsets of the value in it; None for a value that stands in no file."""
    start: int = field(default=0, repr=False, compare=False)
    end: int = field(default=0, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class SequenceNode:
    """A list."""

    items: tuple[Node, ...]
    span: SourceSpan = field(compare=False)


@dataclass(frozen=True, slots=True)
class Entry:
    """A key and its value."""

    key: str
    key_span: SourceSpan = field(compare=False)
    value: Node


@dataclass(frozen=True, slots=True)
class MappingNode:
    """A mapping in the order of the file; no key occurs twice."""

    entries: tuple[Entry, ...]
    span: SourceSpan = field(compare=False)

    def entry(self, key: str) -> Entry | None:
        """Return the entry of a key, or None."""
        return next((entry for entry in self.entries if entry.key == key), None)

    def get(self, key: str) -> Node | None:
        """Return the value of a key, or None."""
        entry = self.entry(key)
        return None if entry is None else entry.value

    def keys(self) -> tuple[str, ...]:
        """Return the keys in the order of the file."""
        return tuple(entry.key for entry in self.entries)


Node = ScalarNode | SequenceNode | MappingNode


def to_python(node: Node) -> Any:
    """Return the plain value of a tree: None, bool, int, float, str, list or dict."""
    if isinstance(node, ScalarNode):
        return node.value
    if isinstance(node, SequenceNode):
        return [to_python(item) for item in node.items]
    return {entry.key: to_python(entry.value) for entry in node.entries}


def subspan(scalar: ScalarNode, start: int, end: int) -> SourceSpan:
    """Return where the characters `start` to `end` of a scalar's text stand in the file.

    Quotes, escapes and folded lines are looked through. Where that is impossible the span of the whole scalar is
    returned.
    """
    source = scalar.source
    if source is None or not 0 <= start <= end <= len(scalar.text):
        return scalar.span
    shift = direct_offset(scalar)
    if shift is not None:
        return source.span(shift + start, shift + end)
    places = _align(source, scalar.start, scalar.end, scalar.text)
    if places is None:
        return scalar.span
    if start == len(places):
        return source.span(scalar.end, scalar.end)
    first = places[start][0]
    return source.span(first, max(first, places[end - 1][1] if end > start else first))


# -- offsets in a scalar to offsets in the file ------------------------------------------------------------------------


def direct_offset(scalar: ScalarNode) -> int | None:
    """Return where the scalar's text begins in the file when it stands there character by character."""
    if scalar.source is None:
        return None
    inset = 0 if scalar.plain else 1
    start = scalar.start + inset
    return start if scalar.source.text[start : scalar.end - inset] == scalar.text else None


@lru_cache(maxsize=64)
def _align(source: SourceText, start: int, end: int, value: str) -> list[tuple[int, int]] | None:
    """Return begin and end in the file for every character of a scalar's value, or None when they do not agree.

    Folding changes nothing but white space, so the visible characters of the value and of the file are the same
    sequence once escapes are decoded; white space in the value goes wherever its neighbours leave room.
    """
    units = _units(source.text, start, end)
    places: list[tuple[int, int]] = []
    previous_end = start
    position = 0
    for character in value:
        if position < len(units) and units[position][0] == character:
            _, begin, previous_end = units[position]
            places.append((begin, previous_end))
            position += 1
        elif character in YAML_SPACES:
            ceiling = units[position][1] if position < len(units) else end
            begin = min(previous_end, ceiling)
            previous_end = min(begin + 1, ceiling)
            places.append((begin, previous_end))
        else:
            return None
    return places if position == len(units) else None


def _units(text: str, start: int, end: int) -> list[tuple[str, int, int]]:
    """Return the visible characters of a scalar as they stand in the file, escapes decoded, with begin and end."""
    style = text[start : start + 1]
    if style == '"':
        return list(_double_quoted_units(text, start + 1, end - 1))
    if style == "'":
        return list(_single_quoted_units(text, start + 1, end - 1))
    if style in ("|", ">"):
        start = next((match.end() for match in LINE_BREAK.finditer(text, start, end)), end)
    return [(text[i], i, i + 1) for i in range(start, end) if text[i] not in YAML_SPACES]


def _single_quoted_units(text: str, start: int, end: int) -> Iterator[tuple[str, int, int]]:
    position = start
    while position < end:
        width = 2 if text[position] == "'" else 1
        if text[position] not in YAML_SPACES:
            yield text[position], position, position + width
        position += width


def _double_quoted_units(text: str, start: int, end: int) -> Iterator[tuple[str, int, int]]:
    position = start
    while position < end:
        character = text[position]
        width = 1
        if character == "\\":
            letter = text[position + 1]
            digits = _HEX_ESCAPES.get(letter, 0)
            width = 2 + digits
            character = chr(int(text[position + 2 : position + width], 16)) if digits else _ESCAPES.get(letter, letter)
            if letter not in "\r\n":
                yield character, position, position + width
        elif character not in YAML_SPACES:
            yield character, position, position + 1
        position += width
