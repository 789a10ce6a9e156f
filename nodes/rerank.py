"""The `rerank.*` nodes: order a ranking anew by a model that looks at the question and each passage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import PositiveInt

from ragbraid.registry.contracts import Query, Ranking
from ragbraid.registry.errors import ServiceError
from ragbraid.registry.node import node
from ragbraid.registry.resources import Reranker, TokenEmbedder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]


@node(
    "rerank.cross_encoder",
    ambient={"query": ("question",)},
    blocking=True,
    example="""
    found: {use: retrieve.hybrid, query: $question, top_k: 50}
    rerank: {use: rerank.cross_encoder, hits: $found, query: $question, top_k: 5}
    """,
)
def rerank_with_cross_encoder(
    hits: Ranking, query: Query, *, reranker: Reranker, top_k: PositiveInt | None = None
) -> Ranking:
    """Order hits by a model that reads the question and each passage together.

    Every hit keeps the ranks and scores of earlier routes and gets the model's under `cross_encoder`. The model sees
    the embedded text, headings included. An empty ranking is returned as it is and the model is not called.
    Source: Nogueira and Cho, "Passage Re-ranking with BERT", arXiv:1901.04085.

    Args:
        hits: the ranking to order anew; the model scores every hit, so cut long rankings before.
        query: the question.
        reranker: the cross-encoder.
        top_k: how many of the best hits to keep; all where it is left out.

    Raises:
        ServiceError: the model failed, or did not give one finite score per hit.
    """
    if not hits.hits:
        return hits
    scores = reranker.score(query.text, [hit.text_to_rank for hit in hits])
    _check_scores(scores, len(hits), reranker.identity)
    return _reordered(hits, scores, route="cross_encoder", top_k=top_k)


@node(
    "rerank.late_interaction",
    ambient={"query": ("question",)},
    blocking=True,
    example="""
    found: {use: retrieve.hybrid, query: $question, top_k: 50}
    rerank: {use: rerank.late_interaction, hits: $found, query: $question, top_k: 5}
    """,
)
def rerank_with_late_interaction(
    hits: Ranking, query: Query, *, token_embedder: TokenEmbedder, top_k: PositiveInt | None = None
) -> Ranking:
    """Order hits by how well each word of the question finds its like in the passage (MaxSim).

    The score of a passage is the mean, over the tokens of the question, of the highest cosine between that token and
    any token of the passage; special tokens take no part. ColBERT sums instead; the mean gives the same order and a
    score from -1 to 1 that does not grow with the question. A passage without tokens scores -1.
    Source: Khattab and Zaharia, "ColBERT", arXiv:2004.12832.

    Args:
        hits: the ranking to order anew; every hit is embedded, so cut long rankings before.
        query: the question.
        token_embedder: gives one vector per token.
        top_k: how many of the best hits to keep; all where it is left out.

    Raises:
        ServiceError: the model failed, or gave not one matrix per hit.
    """
    if not hits.hits:
        return hits
    asked = token_embedder.embed_tokens([query.text], role="query")
    passages = token_embedder.embed_tokens([hit.text_to_rank for hit in hits], role="document")
    if len(asked) != 1 or len(passages) != len(hits):
        raise ServiceError(
            f"{token_embedder.identity} returned {len(passages)} matrices for {len(hits)} passages.",
            kind="invalid_output",
        )
    scores = [max_similarity(asked[0], passage) for passage in passages]
    _check_scores(scores, len(hits), token_embedder.identity)
    return _reordered(hits, scores, route="late_interaction", top_k=top_k)


def max_similarity(query: Matrix, passage: Matrix) -> float:
    """Return the mean over the query's rows of the highest cosine with a row of the passage; -1 where one is empty."""
    if not len(query) or not len(passage):
        return -1.0
    return float((query @ passage.T).max(axis=1).mean())


def _check_scores(scores: Sequence[float], count: int, identity: str) -> None:
    if len(scores) != count:
        raise ServiceError(f"{identity} returned {len(scores)} scores for {count} passages.", kind="invalid_output")
    if not all(math.isfinite(score) for score in scores):
        raise ServiceError(f"{identity} returned a score that is not a number.", kind="invalid_output")


def _reordered(hits: Ranking, scores: Sequence[float], *, route: str, top_k: int | None) -> Ranking:
    scored = [hit.model_copy(update={"score": float(score)}) for hit, score in zip(hits, scores, strict=True)]
    ranking = Ranking.from_hits(scored, route=route, score_kind="model")
    return ranking.model_copy(update={"hits": ranking.hits[:top_k], "degraded": hits.degraded, "error": hits.error})
