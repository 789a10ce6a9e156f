"""Findings as a terminal shows them: the line, carets under the mistake, labels beside it, a hint below.

    error[RB203]: `rerank` needs Ranking, but `kg_cs` gives list[Triple]
      --> qa.yaml:19:7
       |
    19 | flow: kg_cs, kg_fr, rc -> rerank -> generator
       |       ^^^^^               ------ expects Ranking
       = hint: put a node between them that turns list[Triple] into Ranking

Columns of findings count code points; here they become columns of a terminal, where a Chinese character is two wide.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from ragbraid.registry.errors import Finding, SourceSpan

MAX_WIDTH = 100
"""Longer lines are cut around what is underlined."""
MARGIN = 20
"""How many columns stay visible before the first underline of a line that is cut."""
TAB = "    "
CUT = "..."

_LINE_BREAK = re.compile(r"\r\n|\r|\n")
_CODES = {"error": "1;31", "warning": "1;33", "label": "1;36", "frame": "1;34", "bold": "1"}


def render_findings(findings: Iterable[Finding], texts: Mapping[str, str], *, colour: bool) -> str:
    """Return findings as text for a terminal, with a last line that counts them.

    Args:
        findings: in the order in which they are to be shown.
        texts: the text of every file, by the name that its spans bear; a finding in a file that is not among them is
            shown without its line.
        colour: whether to colour the result with ANSI sequences.
    """
    painter = _Painter(colour)
    listed = list(findings)
    lines = {file: _LINE_BREAK.split(text) for file, text in texts.items()}
    blocks = [_render(finding, lines, painter) for finding in listed]
    return "\n\n".join([*blocks, _summary(listed, painter)]) + "\n"


def display_width(text: str) -> int:
    """Return how many columns of a terminal a text takes: wide characters two, combining ones none, a tab four."""
    return sum(_width(character) for character in text)


def _width(character: str) -> int:
    if " " <= character <= "~":
        return 1
    if character == "\t":
        return len(TAB)
    if unicodedata.category(character) in ("Mn", "Me", "Cf", "Cc"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


@dataclass(frozen=True, slots=True)
class _Painter:
    colour: bool

    def paint(self, kind: str, text: str) -> str:
        return f"\x1b[{_CODES[kind]}m{text}\x1b[0m" if self.colour and text else text


@dataclass(frozen=True, slots=True)
class _Mark:
    """An underline in one line, in columns of the terminal, the end exclusive."""

    start: int
    end: int
    sign: str
    text: str
    kind: str


def _summary(findings: list[Finding], painter: _Painter) -> str:
    counts = {kind: sum(finding.severity == kind for finding in findings) for kind in ("error", "warning")}
    parts = [
        painter.paint(kind, f"{count} {kind}{'' if count == 1 else 's'}") for kind, count in counts.items() if count
    ]
    return ", ".join(parts) or "no findings"


def _render(finding: Finding, files: Mapping[str, list[str]], painter: _Painter) -> str:
    span = finding.span
    shown = [span, *(label.span for label in finding.labels)]
    known = [place for place in shown if place.line <= len(files.get(place.file, ()))]
    gutter = len(str(max((place.line for place in known), default=0)))
    head = painter.paint(finding.severity, f"{finding.severity}[{finding.code}]")
    lines = [f"{head}{painter.paint('bold', f': {_flat(finding.message)}')}"]
    lines.append(f"{' ' * gutter}{painter.paint('frame', '-->')} {span}")
    if span in known:
        lines.append(f"{' ' * gutter} {painter.paint('frame', '|')}")
    for group in _by_line(finding, known):
        lines += _excerpt(finding, group, files, gutter, painter)
    if finding.hint:
        label = painter.paint("frame", "=") + " " + painter.paint("bold", "hint:")
        lines.append(f"{' ' * gutter} {label} {_flat(finding.hint)}")
    return "\n".join(lines)


def _by_line(finding: Finding, known: list[SourceSpan]) -> list[tuple[str, int]]:
    """Return the lines to show: those of the finding's own file in their order, then those of other files."""
    places = list(dict.fromkeys((place.file, place.line) for place in known))
    return sorted(places, key=lambda place: (place[0] != finding.span.file, place[0], place[1]))


def _excerpt(
    finding: Finding, place: tuple[str, int], files: Mapping[str, list[str]], gutter: int, painter: _Painter
) -> list[str]:
    file, number = place
    raw = files[file][number - 1]
    marks = []
    if (finding.span.file, finding.span.line) == place:
        marks.append(_mark(finding.span, raw, "^", "", finding.severity))
    for label in finding.labels:
        if (label.span.file, label.span.line) == place:
            marks.append(_mark(label.span, raw, "-", _flat(label.text), "label"))
    marks.sort(key=lambda mark: (mark.start, mark.end))
    text, marks = _cut("".join(_visible(character) for character in raw), marks)
    bar = painter.paint("frame", "|")
    lines = []
    if file != finding.span.file:
        lines.append(f"{' ' * gutter}{painter.paint('frame', '-->')} {file}:{number}")
    lines.append(f"{painter.paint('frame', str(number).rjust(gutter))} {bar} {text}".rstrip())
    lines += [f"{' ' * gutter} {bar} {row}" for row in _underline(marks, painter)]
    return lines


def _mark(span: SourceSpan, raw: str, sign: str, text: str, kind: str) -> _Mark:
    end_column = span.end_column if span.end_line == span.line else len(raw.rstrip()) + 1
    start = display_width(raw[: span.column - 1])
    end = display_width(raw[: end_column - 1])
    return _Mark(start, max(end, start + 1), sign, text, kind)


def _visible(character: str) -> str:
    if character == "\t":
        return TAB
    return "" if unicodedata.category(character) == "Cc" else character


def _cut(text: str, marks: list[_Mark]) -> tuple[str, list[_Mark]]:
    """Cut a long line around the mistake; what is left out is replaced by three dots."""
    if display_width(text) <= MAX_WIDTH:
        return text, marks
    room = MAX_WIDTH - 2 * len(CUT)
    mistake = next((mark for mark in marks if mark.sign == "^"), marks[0])
    all_fit = max(mark.end for mark in marks) - marks[0].start <= room - MARGIN
    first = marks[0].start if all_fit else mistake.start
    begin = 0 if max(mistake.end, first + MARGIN) <= room else first - MARGIN
    kept, begin = _columns(text, begin, begin + room)
    end = begin + display_width(kept)
    shift = begin - (len(CUT) if begin else 0)
    cut = (CUT if begin else "") + kept + (CUT if end < display_width(text) else "")
    return cut, [
        replace(mark, start=mark.start - shift, end=max(mark.start + 1, min(mark.end, end)) - shift)
        for mark in marks
        if mark is mistake or begin <= mark.start < end
    ]


def _columns(text: str, begin: int, end: int) -> tuple[str, int]:
    """Return the characters that stand wholly in the columns `begin` to `end`, and the column of the first of them."""
    column = 0
    kept: list[str] = []
    first = begin
    for character in text:
        width = _width(character)
        if column >= begin and column + width <= end:
            if not kept:
                first = column
            kept.append(character)
        column += width
    return "".join(kept), first


def _underline(marks: list[_Mark], painter: _Painter) -> list[str]:
    """Return the rows below a line: all underlines, with the text of the last, then one row for every other text."""
    cells: dict[int, _Mark] = {}
    for mark in sorted(marks, key=lambda mark: mark.sign == "^"):  # the mistake is drawn last, over labels
        cells.update(dict.fromkeys(range(mark.start, mark.end), mark))
    row = "".join(
        painter.paint(mark.kind, mark.sign * len(list(run))) if mark else " " * len(list(run))
        for mark, run in groupby(map(cells.get, range(max(cells) + 1)))
    )
    texts = [mark for mark in marks if mark.text]
    beside = texts[-1] if texts and texts[-1] is marks[-1] else None
    if beside is not None:
        row += " " + painter.paint(beside.kind, beside.text)
    rows = [row]
    for mark in reversed(texts):
        if mark is not beside:
            rows.append(" " * mark.start + painter.paint(mark.kind, mark.text))
    return rows


def _flat(text: str) -> str:
    """Return a text as one line without characters that would move the cursor or change colours."""
    return "".join(" " if unicodedata.category(character) == "Cc" else character for character in text)
