"""Rough token counts and deterministic vectors for the scripted server: good enough to exercise, not to measure."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator

_WORD = re.compile(r"[㐀-鿿]|[^\W㐀-鿿]+")
_CJK = re.compile(r"[㐀-鿿]")


def count_tokens(text: str) -> int:
    """Estimate tokens: one for a Chinese character, one for every four other characters begun."""
    chinese = len(_CJK.findall(text))
    return chinese + math.ceil((len(text) - chinese) / 4)


def embed_text(text: str, dimension: int) -> list[float]:
    """Return a vector of unit length in which texts that share words (or Chinese characters) are near each other.

    Every word adds 1 or -1 at a place that its SHA-256 names, so the same text has the same vector everywhere. A text
    without a word points along the first axis.
    """
    vector = [0.0] * dimension
    for word in _WORD.findall(text.lower()):
        digest = hashlib.sha256(word.encode()).digest()
        vector[int.from_bytes(digest[:8], "big") % dimension] += 1.0 if digest[8] % 2 else -1.0
    length = math.sqrt(sum(value * value for value in vector))
    if length == 0:
        return [1.0] + [0.0] * (dimension - 1)
    return [value / length for value in vector]


def split_pieces(text: str, size: int = 16) -> Iterator[str]:
    """Cut a text into the pieces that a stream sends."""
    for start in range(0, len(text), size):
        yield text[start : start + size]
