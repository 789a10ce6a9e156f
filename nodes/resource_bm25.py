"""The `bm25.*` resource providers."""

from __future__ import annotations

from ragbraid.nodes.bm25 import Bm25Encoder
from ragbraid.registry.errors import SettingsError
from ragbraid.registry.providers import resource
from ragbraid.registry.resources import SparseEncoder


@resource("bm25.multilingual")
def multilingual(k1: float = 0.9, b: float = 0.4) -> SparseEncoder:
    """BM25 for text in any language: Chinese is segmented, English stemmed, identifiers found whole and in parts.

    Args:
        k1: how soon more occurrences of a term stop to count; at least 0.
        b: how much long texts are held back; 0 (not at all) to 1.

    Raises:
        SettingsError: a constant is out of its range.
    """
    if not k1 >= 0:
        raise SettingsError(f"bm25.multilingual: `k1` is {k1}, it must be at least 0")
    if not 0 <= b <= 1:
        raise SettingsError(f"bm25.multilingual: `b` is {b}, it must be between 0 and 1")
    return Bm25Encoder(k1, b)
