"""The conversions that the checker may put on a connection, at most one each: named, total and documented."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ragbraid.registry.contracts import Answer, Chunk, ChunkSet, Document, DocumentSet, Hit, Query, Ranking


@dataclass(frozen=True, slots=True)
class Conversion:
    """A total function from one type to another that a connection may apply."""

    name: str
    source: Any
    target: Any
    apply: Callable[[Any], Any]
    about: str


def text_to_query(text: str) -> Query:
    """A text becomes a query of role `original`."""
    return Query(text=text)


def query_to_text(query: Query) -> str:
    """A query becomes its text."""
    return query.text


def answer_to_text(answer: Answer) -> str:
    """An answer becomes its text, markers included."""
    return answer.text


def hit_to_chunk(hit: Hit) -> Chunk:
    """A hit becomes a chunk; a hit that is no chunk (an entity, a fact) becomes a chunk of its text."""
    return Chunk(
        id=hit.id,
        document_id=hit.document_id or hit.id,
        source=hit.source or "",
        index=hit.index or 0,
        text=hit.text,
        embed_text=hit.embed_text,
        title=hit.title,
        section_path=hit.section_path,
        span=hit.span,
        language=hit.language,
        metadata=hit.metadata,
    )


def ranking_to_chunks(ranking: Ranking) -> list[Chunk]:
    """A ranking becomes its chunks, in order."""
    return [hit_to_chunk(hit) for hit in ranking.hits]


def ranking_to_hits(ranking: Ranking) -> list[Hit]:
    """A ranking becomes its hits, in order."""
    return list(ranking.hits)


def document_to_set(document: Document) -> DocumentSet:
    """A document becomes a set of one; the set does not claim to be complete."""
    return DocumentSet(documents=(document,), scope=document.source)


def documents_to_set(documents: list[Document]) -> DocumentSet:
    """Documents become a set that does not claim to be complete."""
    return DocumentSet(documents=tuple(documents))


def set_to_documents(found: DocumentSet) -> list[Document]:
    """A document set becomes its documents, in order."""
    return list(found.documents)


def set_to_chunks(chunks: ChunkSet) -> list[Chunk]:
    """A chunk set becomes its chunks, in order."""
    return list(chunks.chunks)


def _conversion(source: Any, target: Any, apply: Callable[[Any], Any]) -> Conversion:
    return Conversion(apply.__name__, source, target, apply, (apply.__doc__ or "").strip())


CONVERSIONS: tuple[Conversion, ...] = (
    _conversion(str, Query, text_to_query),
    _conversion(Query, str, query_to_text),
    _conversion(Answer, str, answer_to_text),
    _conversion(Hit, Chunk, hit_to_chunk),
    _conversion(Ranking, list[Chunk], ranking_to_chunks),
    _conversion(Ranking, list[Hit], ranking_to_hits),
    _conversion(Document, DocumentSet, document_to_set),
    _conversion(list[Document], DocumentSet, documents_to_set),
    _conversion(DocumentSet, list[Document], set_to_documents),
    _conversion(ChunkSet, list[Chunk], set_to_chunks),
)
