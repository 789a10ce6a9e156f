"""BM25 as sparse vectors: term weights are computed here, the inverse document frequency by Qdrant.

Weight of a term in a document: tf (k1 + 1) / (tf + k1 (1 - b + b len / average)). Weight of a term in a query: how
often it stands there. Qdrant multiplies both by ln((N - df + 0.5) / (df + 0.5) + 1). This is Lucene's BM25.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

from ragbraid.nodes.analysis import analyze, analyzer_identity
from ragbraid.registry.resources import SparseVector


class Bm25Encoder:
    """A `SparseEncoder` for text in any language; safe to share between threads.

    Args:
        k1: how soon more occurrences of a term stop to count, at least 0; 0.9 as in Lucene's BEIR baselines.
        b: how much long texts are held back, 0..1; 0.4 as in Lucene's BEIR baselines.
    """

    def __init__(self, k1: float = 0.9, b: float = 0.4) -> None:
        self.k1 = k1
        self.b = b

    @property
    def identity(self) -> str:
        """Names analyzer, segmenter version and constants."""
        return f"bm25 {analyzer_identity()} k1={self.k1:g} b={self.b:g}"

    def count_tokens(self, text: str) -> int:
        """Return the length that the weights are normalised by: words without stop words."""
        return len(analyze(text).words)

    def encode_documents(self, texts: Sequence[str], *, average_length: float) -> list[SparseVector]:
        """Encode passages, given the corpus's average length in tokens (above 0)."""
        return [self._encode_document(text, average_length) for text in texts]

    def encode_query(self, text: str) -> SparseVector:
        """Encode a search text; empty where it holds no term (nothing but stop words or punctuation)."""
        terms = analyze(text)
        counts = Counter((*terms.words, *terms.wholes))
        return _vector({term_id(term): float(count) for term, count in counts.items()})

    def _encode_document(self, text: str, average_length: float) -> SparseVector:
        terms = analyze(text)
        damping = self.k1 * (1 - self.b + self.b * len(terms.words) / average_length)
        weights: dict[int, float] = {}
        for term, count in Counter((*terms.words, *terms.wholes)).items():
            weights[term_id(term)] = count * (self.k1 + 1) / (count + damping)
        return _vector(weights)


@lru_cache(maxsize=500_000)
def term_id(term: str) -> int:
    """Return a term's stable 32-bit id (BLAKE2); among 100,000 different terms about one pair shares an id."""
    return int.from_bytes(hashlib.blake2b(term.encode("utf-8", "surrogatepass"), digest_size=4).digest(), "big")


def _vector(weights: Mapping[int, float]) -> SparseVector:
    ordered = sorted(weights.items())
    return SparseVector(tuple(term for term, _ in ordered), tuple(weight for _, weight in ordered))
