"""The `retrieve.*` nodes: from a question to a ranking of chunks.

Every hit carries rank and score of each route that found it, under `dense` and `sparse`.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

from pydantic import Field

from ragbraid.nodes.fusion import vote_by_rank
from ragbraid.nodes.retrieve_atoms import atoms
from ragbraid.registry.contracts import Query, Ranking
from ragbraid.registry.errors import NodeInputError
from ragbraid.registry.knowledge import KnowledgeBase, Where
from ragbraid.registry.node import node
from ragbraid.registry.resources import Embedder, SparseEncoder

__all__ = ["atoms", "dense", "hybrid", "sparse"]

MAX_TOP_K = 10_000

HowMany = Annotated[int, Field(ge=1, le=MAX_TOP_K)]
RankOffset = Annotated[float, Field(ge=1, allow_inf_nan=False)]

_ambient = {"query": ("question",)}


@node(
    "retrieve.dense",
    ambient=_ambient,
    blocking=True,
    example="""
    dense: {use: retrieve.dense, top_k: 20}
    """,
)
def dense(
    query: Query, *, kb: KnowledgeBase, embedder: Embedder, top_k: HowMany = 50, where: Where | None = None
) -> Ranking:
    """Find the chunks whose embedding is nearest to the query's, by cosine.

    Args:
        query: the question or search text; one that is longer than the model reads is cut, with a note in the trace.
        kb: the knowledge base.
        embedder: the model that filled it.
        top_k: how many chunks to return at most.
        where: only chunks that fulfil these conditions on source, title, language, kind or metadata.

    Raises:
        NodeInputError: the query is empty.
        SettingsError: the knowledge base does not exist, was filled with another model, or lacks a field of `where`.
        ServiceError: the store or the embedder failed.
    """
    text = _text_of(query, "retrieve.dense")
    vector = embedder.embed_query(text)
    hits = kb.search_dense(vector, embedder=embedder.identity, top_k=top_k, where=where)
    return Ranking(hits=tuple(hits), route="dense", score_kind="cosine")


@node(
    "retrieve.sparse",
    ambient=_ambient,
    blocking=True,
    example="""
    sparse: {use: retrieve.sparse, top_k: 20}
    """,
)
def sparse(
    query: Query, *, kb: KnowledgeBase, sparse: SparseEncoder, top_k: HowMany = 50, where: Where | None = None
) -> Ranking:
    """Find the chunks that share the query's terms, rare terms counting most (BM25 with the default encoder).

    Args:
        query: the question or search text; one of nothing but stop words or punctuation finds nothing.
        kb: the knowledge base.
        sparse: the encoder that filled it.
        top_k: how many chunks to return at most.
        where: only chunks that fulfil these conditions on source, title, language, kind or metadata.

    Raises:
        NodeInputError: the query is empty.
        SettingsError: the knowledge base does not exist, was filled with another encoder, or lacks a field of `where`.
        ServiceError: the store failed.
    """
    vector = sparse.encode_query(_text_of(query, "retrieve.sparse"))
    hits = kb.search_sparse(vector, sparse=sparse.identity, top_k=top_k, where=where)
    return Ranking(hits=tuple(hits), route="sparse", score_kind=hits[0].score_kind if hits else "sparse")


@node(
    "retrieve.hybrid",
    ambient=_ambient,
    blocking=True,
    example="""
    rc: {use: retrieve.hybrid, top_k: 20}
    """,
)
def hybrid(
    query: Query,
    *,
    kb: KnowledgeBase,
    embedder: Embedder,
    sparse: SparseEncoder,
    top_k: HowMany = 50,
    fetch_k: HowMany = 100,
    k: RankOffset = 60.0,
    weights: dict[str, float] | None = None,
    where: Where | None = None,
) -> Ranking:
    """Find chunks by embedding and by terms at once and fuse both rankings by reciprocal rank.

    The sum of w / (k + rank) over the routes `dense` and `sparse` (Cormack, Clarke and Buettcher 2009), computed here
    and not by the engine, whose weights mean something else.

    Args:
        query: the question or search text.
        kb: the knowledge base.
        embedder: the model that filled it.
        sparse: the encoder that filled it.
        top_k: how many chunks to return at most.
        fetch_k: how many chunks each route brings; at least `top_k`.
        k: added to every rank; larger values give lower ranks more say.
        weights: weight of `dense` and of `sparse`; 1 each when not given.
        where: only chunks that fulfil these conditions on source, title, language, kind or metadata.

    Raises:
        NodeInputError: the query is empty, `fetch_k` is below `top_k`, or the weights do not fit the two routes.
        SettingsError: the knowledge base does not exist, was filled with other models, or lacks a field of `where`.
        ServiceError: the store or the embedder failed.
    """
    text = _text_of(query, "retrieve.hybrid")
    if fetch_k < top_k:
        raise NodeInputError(f"retrieve.hybrid: `fetch_k` is {fetch_k}, it must be at least `top_k` ({top_k})")
    hits = kb.search_hybrid(
        embedder.embed_query(text),
        sparse.encode_query(text),
        embedder=embedder.identity,
        sparse=sparse.identity,
        fetch_k=fetch_k,
        fuse=partial(vote_by_rank, k=k, weights=weights, top_k=top_k),
        where=where,
    )
    return Ranking(hits=tuple(hits), route="hybrid", score_kind="rrf")


def _text_of(query: Query, node_name: str) -> str:
    if not query.text.strip():
        raise NodeInputError(f"{node_name}: the question is empty; give it a text to search for")
    return query.text
