"""Answering without a language model: the sentences of the evidence that support a question best, cited."""

from __future__ import annotations

from ragbraid.registry.contracts import Answer, Ranking
from ragbraid.registry.resources import Embedder


def extract_answer(
    question: str,
    hits: Ranking,
    embedder: Embedder | None,
    *,
    max_sentences: int = 3,
    min_score: float | None = None,
) -> Answer:
    """Answer a question with sentences quoted from the hits, each followed by its marker `[n]`.

    Args:
        question: the question, Chinese or English.
        hits: the evidence, best first.
        embedder: scores sentences by meaning; without it only shared words count.
        max_sentences: how many sentences the answer holds at most.
        min_score: the relevance below which a sentence is no evidence (0 to 1); None takes the measured default.

    Returns:
        An answer whose citations are verified quotes, or a refusal when no sentence is relevant enough.
    """
    raise NotImplementedError
