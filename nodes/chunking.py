"""Splitters: functions from a text to spans. No text is copied, changed or searched for again.

Every splitter works on a stretch of a text and yields spans (start, end) in code points, in order, trimmed of
whitespace at both ends and never empty.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Unit = Literal["chars", "tokens"]
KeepSeparator = Literal["start", "end", "none"]
Offsets = tuple[int, int]

DEFAULT_SEPARATORS = ("\n\n", "\n", "。", "！", "？", "；", ". ", "! ", "? ", " ", "")
"""From coarse to fine: paragraphs, lines, Chinese and Western sentence ends, words, characters."""

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_TOKEN = re.compile(rf"[{_CJK}]|[^\W{_CJK}]{{1,40}}|[^\w\s]")
"""A Chinese or Japanese character or Korean syllable; a run of letters and digits, at most 40; any other sign."""


def find_tokens(text: str, start: int = 0, end: int | None = None) -> Iterator[Offsets]:
    """Yield the tokens of a stretch of text: words, CJK characters and single signs.

    This is a count that needs no model: about 1.3 model tokens per English word, about 1 or less per CJK character.
    """
    for match in _TOKEN.finditer(text, start, len(text) if end is None else end):
        yield match.span()


def slide_window(tokens: Iterable[Offsets], size: int, overlap: int) -> Iterator[Offsets]:
    """Yield the spans of windows of `size` tokens, each starting `size - overlap` tokens after the one before.

    The last window is the first that reaches the end, so it is never wholly inside the one before; for n > size
    tokens there are 1 + ceil((n - size) / (size - overlap)) windows.
    """
    window: deque[Offsets] = deque(maxlen=size)
    seen = 0
    next_end = size
    for seen, token in enumerate(tokens, start=1):
        window.append(token)
        if seen == next_end:
            yield window[0][0], window[-1][1]
            next_end += size - overlap
    fresh = seen - (next_end - size + overlap)
    if seen and next_end == size:
        yield window[0][0], window[-1][1]
    elif fresh > 0:
        yield window[-(overlap + fresh)][0], window[-1][1]


def split_windows(text: str, *, size: int, overlap: int, unit: Unit) -> Iterator[Offsets]:
    """Split a text into windows of equal size in tokens (see `find_tokens`) or characters."""
    if unit == "tokens":
        yield from slide_window(find_tokens(text), size, overlap)
    else:
        yield from filter(None, (trim(text, *each) for each in _character_windows(0, len(text), size, overlap)))


def trim(text: str, start: int, end: int) -> Offsets | None:
    """Take whitespace off both ends of a span; None when nothing is left."""
    piece = text[start:end]
    stripped = piece.lstrip()
    if not stripped:
        return None
    start += len(piece) - len(stripped)
    return start, start + len(stripped.rstrip())


class Ruler(Protocol):
    """Measures stretches of one text, and cuts where no separator is left."""

    def measure(self, start: int, end: int) -> int:
        """The size of a stretch in the ruler's unit."""
        ...

    def cut(self, start: int, end: int, size: int, overlap: int) -> Iterator[Offsets]:
        """Cut a stretch into windows."""
        ...


class _CharacterRuler:
    def measure(self, start: int, end: int) -> int:
        return end - start

    def cut(self, start: int, end: int, size: int, overlap: int) -> Iterator[Offsets]:
        return _character_windows(start, end, size, overlap)


class _TokenRuler:
    def __init__(self, text: str) -> None:
        self._text = text
        self._starts = array("Q", (start for start, _ in find_tokens(text)))

    def measure(self, start: int, end: int) -> int:
        return bisect_left(self._starts, end) - bisect_left(self._starts, start)

    def cut(self, start: int, end: int, size: int, overlap: int) -> Iterator[Offsets]:
        return slide_window(find_tokens(self._text, start, end), size, overlap)


@dataclass(frozen=True, slots=True)
class RecursiveSplitter:
    """Splits at the coarsest separator that occurs, and what is still too long at the next finer one.

    The behaviour is that of LangChain's `RecursiveCharacterTextSplitter`: pieces below `size` are joined while they
    fit, an overlap consists of whole pieces only (so it is often shorter than `overlap`, or none), and a separator
    counts for its piece although whitespace is trimmed from the chunk in the end. Spans come from the places where
    the text was cut.
    """

    size: int
    overlap: int = 0
    separators: tuple[str, ...] = DEFAULT_SEPARATORS
    keep_separator: KeepSeparator = "end"
    unit: Unit = "chars"
    keeps_whole: Callable[[str, int, int], bool] | None = None
    """Says of a piece (text, start, end) that it must not be cut, however long it is."""

    def split(self, text: str, start: int = 0, end: int | None = None) -> Iterator[Offsets]:
        """Yield the spans of a stretch of the text."""
        ruler: Ruler = _TokenRuler(text) if self.unit == "tokens" else _CharacterRuler()
        end = len(text) if end is None else end
        yield from filter(None, (trim(text, *each) for each in self._split(text, start, end, self.separators, ruler)))

    def _split(self, text: str, start: int, end: int, separators: Sequence[str], ruler: Ruler) -> Iterator[Offsets]:
        separator, finer = _first_present(text, start, end, separators)
        if separator == "":
            yield from ruler.cut(start, end, self.size, self.overlap)
            return
        joined: deque[Offsets] = deque()
        for piece in _pieces(text, start, end, separator, self.keep_separator):
            is_long = ruler.measure(*piece) >= self.size
            if joined and (is_long or ruler.measure(joined[0][0], piece[1]) > self.size):
                yield joined[0][0], joined[-1][1]
                self._make_room(joined, piece, ruler)
            if not is_long:
                joined.append(piece)
                continue
            joined.clear()
            if not finer or (self.keeps_whole is not None and self.keeps_whole(text, *piece)):
                yield piece
            else:
                yield from self._split(text, *piece, finer, ruler)
        if joined:
            yield joined[0][0], joined[-1][1]

    def _make_room(self, joined: deque[Offsets], piece: Offsets, ruler: Ruler) -> None:
        """Drop pieces from the left until what stays is within the overlap and the next piece fits."""
        while joined and (
            ruler.measure(joined[0][0], joined[-1][1]) > self.overlap
            or ruler.measure(joined[0][0], piece[1]) > self.size
        ):
            joined.popleft()


def _first_present(text: str, start: int, end: int, separators: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The first separator that occurs, and the ones after it; the last one when none occurs."""
    for position, separator in enumerate(separators):
        if text.find(separator, start, end) >= 0:
            return separator, separators[position + 1 :]
    return separators[-1], ()


def _pieces(text: str, start: int, end: int, separator: str, keep: KeepSeparator) -> Iterator[Offsets]:
    """Cut a stretch at every separator; empty pieces are left out."""
    at = start
    search_from = start
    while (found := text.find(separator, search_from, end)) >= 0:
        after = found + len(separator)
        cut = found if keep in ("start", "none") else after
        if cut > at:
            yield at, cut
        at = after if keep == "none" else cut
        search_from = after
    if end > at:
        yield at, end


def _character_windows(start: int, end: int, size: int, overlap: int) -> Iterator[Offsets]:
    while start < end:
        stop = min(start + size, end)
        yield start, stop
        if stop == end:
            return
        start = stop - overlap
