"""`retrieve.atoms`: from sub-questions, through the questions that chunks answer, to the chunks."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ragbraid.registry.context import report_note
from ragbraid.registry.contracts import Hit, Query, Ranking
from ragbraid.registry.errors import NodeInputError
from ragbraid.registry.knowledge import KnowledgeBase, Where
from ragbraid.registry.node import node
from ragbraid.registry.reasoning import ATOM_QUERY
from ragbraid.registry.resources import Embedder

ATOMS = "atoms"

HowManyChunks = Annotated[int, Field(ge=1, le=1000)]


@node(
    "retrieve.atoms",
    ambient={"query": ("question",)},
    blocking=True,
    example="""
    propose: {use: reason.propose_subquestions, evidence: $chosen}
    atoms: {use: retrieve.atoms, queries: $propose.questions, exclude: $chosen}
    """,
)
def atoms(
    query: Query,
    queries: tuple[str, ...] | None = None,
    exclude: Ranking = Ranking(),  # noqa: B008  # frozen
    *,
    kb: KnowledgeBase,
    embedder: Embedder,
    top_k: HowManyChunks = 8,
    top_k_each: HowManyChunks = 4,
    min_score: Annotated[float, Field(ge=-1, le=1)] | None = 0.5,
    where: Where | None = None,
) -> Ranking:
    """Find chunks through the questions that they answer: hit the atom, return its chunk, once.

    The atom retriever of PIKE-RAG (Wang et al. 2025) with the numbers of its decomposition workflow. A hit is the chunk
    with the cosine of its best atom; its metadata hold the question of the atom (`atom`) and what was searched for
    (`atom_query`), as `reason.select_atom` reads them, and being a ranking of chunks it can be fused with any other.
    Both limits count chunks, after those of `exclude` are left out. Only meaning is searched: atoms have no term
    weights, so that they change no BM25 score.

    Args:
        query: the question; it is searched for where `queries` is left out.
        queries: sub-questions to search for instead, each by itself; the best hit of a chunk stays. An empty list
            finds nothing.
        exclude: chunks that are not wanted again, such as those chosen so far.
        kb: the knowledge base, filled by a flow with `enrich.tag_atoms`.
        embedder: the model that filled it.
        top_k: how many chunks the question brings at most.
        top_k_each: how many chunks each of the `queries` brings at most.
        min_score: hits below this cosine are left out; what fits depends on the embedder, and a note in the trace names
            the best that was rejected when nothing is left. None (null) keeps all.
        where: only chunks that fulfil these conditions on source, title, language or metadata.

    Raises:
        NodeInputError: the question, or one of the `queries`, is empty.
        SettingsError: the knowledge base does not exist, holds no atoms, was filled with another model, or lacks a
            field of `where`.
        ServiceError: the store or the embedder failed.
    """
    texts, limit = ((query.text,), top_k) if queries is None else (tuple(dict.fromkeys(queries)), top_k_each)
    if not all(text.strip() for text in texts):
        raise NodeInputError("retrieve.atoms: a question to search for is empty; give it a text")
    chosen = [hit.id for hit in exclude]
    found: list[Hit] = []
    for text in texts:
        vector = embedder.embed_query(text)
        hits = kb.search_atoms(vector, embedder=embedder.identity, top_k=limit, where=where, exclude=chosen)
        found += [hit.model_copy(update={"metadata": {**hit.metadata, ATOM_QUERY: text}}) for hit in hits]
    kept = [hit for hit in found if min_score is None or hit.score >= min_score]
    if found and not kept:
        best = max(hit.score for hit in found)
        report_note(f"no atom reached `min_score` {min_score:g}; the best of {len(found)} had {best:.3f}")
    return Ranking.from_hits(kept, route=ATOMS, score_kind="cosine")
