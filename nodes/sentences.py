"""Cutting a passage into the units that an extractive answer quotes: sentences, list items, table rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

LONGEST_ITEM = 300
"""A list item up to this many characters is one unit; a longer one is cut into sentences."""
COLONS = (":", "：")
SHORTEST_WRAPPED_LINE = 40
"""A line of fewer columns (a Chinese character is two wide) was not broken for want of room: it ends its paragraph."""

# fmt: off
_ABBREVIATIONS = frozenset({
    "al", "apr", "approx", "art", "aug", "bros", "ca", "capt", "cf", "ch", "co", "col", "corp", "dec", "dept", "dr",
    "eq", "est", "ext", "feb", "fig", "figs", "fri", "gen", "gov", "inc", "jan", "jr", "jul", "jun", "lt", "ltd",
    "mar", "max", "min", "mon", "mr", "mrs", "ms", "mt", "no", "nos", "nov", "oct", "p", "pp", "prof", "rev", "sat",
    "sec", "sen", "sep", "sept", "sgt", "sr", "st", "sun", "tel", "thu", "tue", "vol", "vs", "wed",
})
# fmt: on
_END = re.compile(r"[。！？!?…]+[”’」』）)\]\"']*|\.+[”’)\]\"']*(?=\s|$|[\u4e00-\u9fff])")
_LIST_ITEM = re.compile(
    r"[ \t]*(?:[-*+•·]|\d{1,3}(?:\.(?!\d)|[)、])|[(（]?[a-z\d一二三四五六七八九十]{1,3}[)）]|[一二三四五六七八九十]{1,3}、)[ \t]*(?=\S)"
)
_RULE = re.compile(r"[ \t]*\|?[ \t]*:?-{2,}:?[ \t]*(\|[ \t]*:?-{2,}:?[ \t]*)*\|?[ \t]*")
_HEADING = re.compile(r"[ \t]*#{1,6}[ \t]+(?P<title>.*\S)")
_QUESTION = re.compile(r"[?？][”’」』）)\]\"'*_]*$")
_FINISHED = re.compile(r"[.。！？!?…；;][”’」』）)\]\"']*\s*$")
_LABEL = re.compile(r"[ \t]*[^\s:：。.!?！？]{1,30}( [^\s:：。.!?！？]{1,30})?[:：]\s?\S")
_WIDE = re.compile(r"[\u2e80-\u9fff\uf900-\ufaff\uff00-\uff60]")
_HAS_WORDS = re.compile(r"\w")
_FENCE = re.compile(r"[ \t]*(```|~~~)")


@dataclass(frozen=True, slots=True)
class Unit:
    """A stretch of a passage that can stand in an answer: `text[start:end]` is the quote.

    `shown` is how it reads on its own: white space collapsed, a table row with its column names. `heading` is the last
    heading above it in the passage; `opening` is the question that it answers or the line that introduces its list.
    """

    start: int
    end: int
    shown: str
    heading: str = ""
    opening: str = ""
    in_list: bool = False

    @property
    def introduced(self) -> str:
        """The unit after the line that introduces its list, if there is one."""
        return f"{self.opening} {self.shown}" if self.opening.endswith(COLONS) else self.shown


@dataclass(frozen=True, slots=True)
class _Line:
    start: int
    text: str

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def split_units(text: str) -> list[Unit]:
    """Cut a passage into its units, in order.

    Headings and questions are no units: they tell what follows and become its context. Markdown tables give one unit
    per row, list items one each, everything else one per sentence, Chinese or English. Hard line breaks inside a
    paragraph do not end a sentence.
    """
    units: list[Unit] = []
    heading = ""
    for block in _blocks(text):
        first = block[0].text
        if match := _HEADING.fullmatch(first):
            heading = match["title"]
        elif "|" in first and len(block) > 1 and _RULE.fullmatch(block[1].text):
            units += _rows(block, heading)
        else:
            units += _sentences_of(text, block, heading)
    return _answers(units)


def _blocks(text: str) -> Iterator[list[_Line]]:
    """Group lines: a heading alone, a table whole, a list item with its continuation lines, a paragraph."""
    block: list[_Line] = []
    for match in re.finditer(r"[^\n]*\n?", text):
        line = _Line(match.start(), match[0].rstrip("\r\n"))
        blank = not line.text.strip() or _FENCE.match(line.text) is not None
        heading = _HEADING.fullmatch(line.text) is not None
        if block and (blank or heading or _begins_block(block, line)):
            yield block
            block = []
        if heading:
            yield [line]
        elif not blank:
            block.append(line)
    if block:
        yield block


def _begins_block(block: list[_Line], line: _Line) -> bool:
    in_table = block[0].text.lstrip().startswith("|") or (len(block) > 1 and _RULE.fullmatch(block[1].text) is not None)
    if in_table or _RULE.fullmatch(line.text):
        return "|" not in line.text
    if _stands_alone(block[-1].text, line.text):
        return True
    return _LIST_ITEM.match(line.text) is not None or line.text.lstrip().startswith("|")


def _stands_alone(line: str, following: str) -> bool:
    """Whether a line ends its paragraph: it is too short to have been wrapped, finished, or a new speaker follows."""
    width = sum(2 if _WIDE.match(char) else 1 for char in line.strip())
    if following.startswith((" ", "\t")) and _LIST_ITEM.match(line):
        return False
    return width < SHORTEST_WRAPPED_LINE or _FINISHED.search(line) is not None or _LABEL.match(following) is not None


def _rows(block: list[_Line], heading: str) -> Iterator[Unit]:
    names = _cells(block[0].text)
    for line in block[2:]:
        cells = _cells(line.text)
        if not any(cells):
            continue
        if len(cells) == len(names):
            parts = [f"{name}: {cell}" if name else cell for name, cell in zip(names, cells, strict=True) if cell]
        else:
            parts = [cell for cell in cells if cell]
        yield _unit(line.text, line.start, "; ".join(parts), heading, in_list=True)


def _cells(line: str) -> list[str]:
    return [_plain(cell) for cell in re.split(r"(?<!\\)\|", line.strip().removeprefix("|").removesuffix("|"))]


def _sentences_of(text: str, block: list[_Line], heading: str) -> Iterator[Unit]:
    start, end = block[0].start, block[-1].end
    if item := _LIST_ITEM.match(block[0].text):
        start += item.end()
        if end - start <= LONGEST_ITEM:
            yield _unit(text[start:end], start, _plain(text[start:end]), heading, in_list=True)
            return
    for piece_start, piece_end in sentence_spans(text[start:end]):
        piece = text[start + piece_start : start + piece_end]
        yield _unit(piece, start + piece_start, _plain(piece), heading)


def _unit(raw: str, start: int, shown: str, heading: str, *, in_list: bool = False) -> Unit:
    left = len(raw) - len(raw.lstrip())
    return Unit(start + left, start + len(raw.rstrip()), shown, heading, in_list=in_list)


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Return the (start, end) of each sentence, surrounding white space left out.

    A full stop after an abbreviation, a single letter or between digits ends no sentence.
    """
    spans = []
    start = 0
    for match in _END.finditer(text):
        if match[0].startswith(".") and _is_abbreviation(text, start, match.start(), match.end()):
            continue
        spans.append((start, match.end()))
        start = match.end()
    spans.append((start, len(text)))
    trimmed = []
    for begin, end in spans:
        raw = text[begin:end]
        if raw.strip():
            trimmed.append((begin + len(raw) - len(raw.lstrip()), begin + len(raw.rstrip())))
    return trimmed


def _is_abbreviation(text: str, start: int, dot: int, after: int) -> bool:
    words = text[start:dot].split()
    word = words[-1].lstrip("(（\"'“").lower() if words else ""
    follows = text[after:].lstrip()[:1]
    if word in _ABBREVIATIONS or re.fullmatch(r"[a-z]|([a-z]\.)+[a-z]", word):
        return bool(follows)
    return follows.islower() and (word == "etc" or text[dot:after].startswith(".."))


def _plain(text: str) -> str:
    """Collapse white space (none between Chinese characters) and drop Markdown emphasis and link targets."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)\s]*\)", r"\1", text)
    text = re.sub(r"\*\*|__|`|\\(?=\|)", "", text)
    text = re.sub(r"(?<=[\u3000-\u9fff\uff00-\uffef])\s*\n\s*(?=[\u3000-\u9fff\uff00-\uffef])", "", text)
    return " ".join(text.split())


def _answers(units: list[Unit]) -> list[Unit]:
    """Turn questions and introductions ("as follows:") into the opening of what comes after them.

    A question opens one unit, its answer; an introduction the unit after it, and the whole list or table where that is
    one.
    """
    kept: list[Unit] = []
    opening = heading = ""
    is_first = False
    for unit in units:
        if unit.heading != heading:
            opening, heading = "", unit.heading
        if _QUESTION.search(unit.shown) or unit.shown.endswith(COLONS):
            opening, is_first = unit.shown, True
        elif _HAS_WORDS.search(unit.shown):
            holds = is_first or (unit.in_list and opening.endswith(COLONS))
            opening = opening if holds else ""
            kept.append(replace(unit, opening=opening))
            is_first = False
    return kept
