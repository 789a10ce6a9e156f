"""What the tests of the graph's query nodes share: a knowledge base with given chunks and what each contributes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from graph_parts import open_kb
from index_parts import AngleEmbedder, WordSparse

from ragbraid.nodes.index import upsert
from ragbraid.nodes.knowledge_base import QdrantKnowledgeBase
from ragbraid.nodes.store_client import MEMORY, open_local
from ragbraid.registry.contracts import Chunk, ChunkSet, Hit, HitKind, Ranking, ScoreKind, SourceRecord
from ragbraid.registry.graph_names import entity_id, fact_id
from ragbraid.registry.graph_parts import ChunkGraph, Mention, Triple
from ragbraid.registry.knowledge import Condition, Where
from ragbraid.registry.resources import Embedder

Facts = Sequence[str | Triple]
"""Triples, or texts such as "acme > based in > paris"."""


def triple(text: str, **given: Any) -> Triple:
    subject, predicate, object_ = (part.strip() for part in text.split(">"))
    return Triple(subject=subject, predicate=predicate, object=object_, **given)


def fact(text: str) -> str:
    """The id of a fact that is written as `triple` reads it."""
    found = triple(text)
    return fact_id(found.subject, found.predicate, found.object)


def contribution(facts: Facts, mentions: Iterable[str | Mention] = ()) -> ChunkGraph:
    return ChunkGraph(
        mentions=tuple(Mention(name=each) if isinstance(each, str) else each for each in mentions),
        triples=tuple(triple(each) if isinstance(each, str) else each for each in facts),
    )


def chunk(id_: str, text: str = "", *, source: str = "a.md", index: int = 0, **given: Any) -> Chunk:
    return Chunk(
        id=id_, document_id=f"doc:{source}", source=source, index=index, text=text or f"text of {id_}", **given
    )


def fill(chunks: Sequence[Chunk], *, embedder: Embedder | None = None, **given: Any) -> QdrantKnowledgeBase:
    """A knowledge base in memory that holds these chunks and the graph that they contribute."""
    sources = [SourceRecord(source=s, document_id=f"doc:{s}", content_hash=s) for s in {c.source for c in chunks}]
    kb = open_kb(open_local(MEMORY, "kb"))
    upsert(
        ChunkSet(chunks=tuple(chunks), sources=tuple(sources)),
        kb=kb,
        embedder=embedder or AngleEmbedder(),
        sparse=WordSparse(),
        **{"neighbour_min_score": None, **given},
    )
    return kb


def filled(graphs: Mapping[str, ChunkGraph | None], **given: Any) -> QdrantKnowledgeBase:
    """A knowledge base of one chunk for each contribution."""
    chunks = [chunk(id_, index=n, graph=graph) for n, (id_, graph) in enumerate(graphs.items())]
    return fill(chunks, **given)


def ranked(kind: HitKind, scores: Mapping[str, float], *, score_kind: ScoreKind = "cosine", **given: Any) -> Ranking:
    """A ranking of hits of one kind with these ids and scores."""
    hits = [Hit(id=id_, text=id_, score=s, rank=1, score_kind=score_kind, kind=kind) for id_, s in scores.items()]
    return Ranking.from_hits(hits, route="given", score_kind=score_kind).model_copy(update=given)


def entities(*names: str, **given: Any) -> Ranking:
    return ranked("entity", {entity_id(name): 1 / n for n, name in enumerate(names, start=1)}, **given)


def facts(*texts: str, **given: Any) -> Ranking:
    return ranked("fact", {fact(text): 1 / n for n, text in enumerate(texts, start=1)}, **given)


def source(name: str) -> Where:
    return Where(all=(Condition(field="source", equals=name),))
