"""What the loaders and chunkers need to know of Markdown: headings, table rows and front matter, all by offset."""

from __future__ import annotations

import re
from dataclasses import dataclass

import yaml
from pydantic import JsonValue

_MARK = re.compile(
    r"^ {0,3}(?:"
    r"(?P<fence>`{3,}|~{3,})(?P<info>[^\n]*)"
    r"|(?P<hashes>#{1,6})(?P<title>[ \t][^\n]*|\r?)$"
    r"|(?P<underline>=+|-+)[ \t\r]*$"
    r")",
    re.MULTILINE,
)
_NO_PARAGRAPH = re.compile(r"[ \t]*(?:[-+*>|#]|\d+[.)]|`{3}|~{3})|(?: {4}|\t)")
"""Starts of lines that an underline does not turn into a heading: lists, quotes, tables, code."""

_FRONT_MATTER = re.compile(r"---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_FRONT_MATTER_LIMIT = 20_000
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,17})(\.\d+)?")
_CONSTANTS: dict[str, JsonValue] = {"true": True, "false": False, "null": None, "~": None, "": None}


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading: its level (1-6), its text, and where its lines start and end (offsets, the line break included)."""

    level: int
    title: str
    start: int
    end: int


def find_headings(text: str) -> list[Heading]:
    """Find the headings of a Markdown text, `#` style and underlined (setext) style, in order.

    Lines inside fenced code are no headings, and a fence that is never closed reaches to the end (CommonMark). An
    underline counts below a paragraph of a single line only, so that a rule under a list or a table row stays a rule.
    """
    headings: list[Heading] = []
    fence = ""
    for mark in _MARK.finditer(text):
        if mark["fence"]:
            fence = _next_fence(fence, mark["fence"], mark["info"])
        elif fence:
            continue
        elif mark["hashes"]:
            title = _without_closing_hashes(mark["title"])
            headings.append(Heading(len(mark["hashes"]), title, mark.start(), _after_line(text, mark.end())))
        elif heading := _underlined(text, mark, headings):
            headings.append(heading)
    return headings


def is_table_row(text: str, start: int, end: int) -> bool:
    """Say whether a stretch of the text is one whole line of a table: it and the line before or after have a `|`."""
    line = text[start:end].strip("\r\n")
    if "|" not in line or "\n" in line:
        return False
    line_start = text.rfind("\n", 0, start) + 1
    if text[line_start:start].strip():
        return False
    before = text[text.rfind("\n", 0, max(line_start - 1, 0)) + 1 : max(line_start - 1, 0)]
    after_start = _after_line(text, start + len(line))
    after = text[after_start : _after_line(text, after_start)]
    return "|" in before or "|" in after


def split_front_matter(text: str) -> tuple[dict[str, JsonValue], str]:
    """Take the front matter off a Markdown text: its fields, and the text after it.

    Only a simple mapping (texts, numbers, true, false, null and lists of these) is taken off; anything else stays in
    the text. Dates stay texts, and `no` and `on` are texts too, as in YAML 1.2.
    """
    match = _FRONT_MATTER.match(text) if text.startswith("---") else None
    if match is None or match.end(1) > _FRONT_MATTER_LIMIT:
        return {}, text
    try:
        root = yaml.compose(match[1], Loader=yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError):
        return {}, text
    fields = _simple_mapping(root)
    return ({}, text) if fields is None else (fields, text[match.end() :].lstrip("\n"))


def _next_fence(open_fence: str, marks: str, info: str) -> str:
    """The fence that is open after a fence line; empty for none."""
    if not open_fence:
        return "" if marks[0] == "`" and "`" in info else marks
    closes = marks[0] == open_fence[0] and len(marks) >= len(open_fence) and not info.strip()
    return "" if closes else open_fence


def _without_closing_hashes(title: str) -> str:
    title = title.strip()
    shorter = title.rstrip("#")
    return shorter.rstrip() if not shorter or shorter[-1] in " \t" else title


def _underlined(text: str, mark: re.Match[str], headings: list[Heading]) -> Heading | None:
    """The setext heading that an underline makes of the line above it, or None."""
    line_start = text.rfind("\n", 0, max(mark.start() - 1, 0)) + 1
    line = text[line_start : mark.start()]
    if not line.strip() or _NO_PARAGRAPH.match(line):
        return None
    above = text[text.rfind("\n", 0, max(line_start - 1, 0)) + 1 : line_start] if line_start else ""
    if above.strip() and not (headings and headings[-1].end == line_start):
        return None
    level = 1 if mark["underline"][0] == "=" else 2
    return Heading(level, line.strip(), line_start, _after_line(text, mark.end()))


def _after_line(text: str, position: int) -> int:
    line_break = text.find("\n", position)
    return len(text) if line_break < 0 else line_break + 1


def _simple_mapping(root: yaml.Node | None) -> dict[str, JsonValue] | None:
    if not isinstance(root, yaml.MappingNode):
        return None
    fields: dict[str, JsonValue] = {}
    for key, value in root.value:
        if not isinstance(key, yaml.ScalarNode):
            return None
        if isinstance(value, yaml.ScalarNode):
            fields[key.value] = _scalar(value)
        elif isinstance(value, yaml.SequenceNode) and all(isinstance(item, yaml.ScalarNode) for item in value.value):
            fields[key.value] = [_scalar(item) for item in value.value]
        else:
            return None
    return fields


def _scalar(node: yaml.ScalarNode) -> JsonValue:
    value: str = node.value
    if node.style is not None:  # quoted or a block: a text, whatever it looks like
        return value
    if value.lower() in _CONSTANTS:
        return _CONSTANTS[value.lower()]
    if number := _NUMBER.fullmatch(value):
        return float(value) if number[1] else int(value)
    return value
