"""The `chunk.*` nodes: documents become chunks.

For every chunk `Document.text[span.start:span.end] == Chunk.text` holds; headings and titles that go along into the
embedding stand in `embed_text`, outside the span. A chunk's id depends on its document, its text and how often that
text occurred before in the document, so unchanged text keeps its id when its surroundings change. Documents without
text give no chunk but stay among the sources; failures, scope and completeness are carried over.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, JsonValue, NonNegativeInt, PositiveInt

from ragbraid.nodes.chunking import (
    DEFAULT_SEPARATORS,
    KeepSeparator,
    Offsets,
    RecursiveSplitter,
    Unit,
    split_windows,
    trim,
)
from ragbraid.nodes.markdown import find_headings, is_table_row
from ragbraid.registry.context import report_progress
from ragbraid.registry.contracts import Chunk, ChunkSet, Document, DocumentSet, SourceRecord, Span
from ragbraid.registry.errors import NodeInputError
from ragbraid.registry.node import node

_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "ragbraid:chunk")


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a document that becomes a chunk, with the headings above it and a text to embed beside its own."""

    start: int
    end: int
    section_path: tuple[str, ...] = ()
    embed_text: str | None = None


@node(
    "chunk.recursive",
    blocking=True,
    example="""
    chunks: {use: chunk.recursive, documents: $documents, size: 800, overlap: 80}
    """,
)
def chunk_recursively(
    documents: DocumentSet,
    *,
    size: PositiveInt = 800,
    overlap: NonNegativeInt = 0,
    unit: Unit = "chars",
    separators: Annotated[list[str], Field(min_length=1)] | None = None,
    keep_separator: KeepSeparator = "end",
) -> ChunkSet:
    """Split documents at paragraphs, where these are too long at lines, then sentences, then words.

    Behaves as LangChain's recursive character splitter: pieces are joined while they fit into `size`; an overlap
    consists of whole pieces, so it is at most `overlap` and often less; no separator left and still too long means a
    chunk above `size`, unless the last separator is the empty text, which cuts anywhere.

    Args:
        documents: what to split.
        size: the most that a chunk holds, in `unit`.
        overlap: the most that a chunk repeats of the one before, in `unit`; less than `size`.
        unit: `chars` are Unicode code points; `tokens` are words, CJK characters and signs, counted without a model.
        separators: from coarse to fine; the empty text cuts between any two characters. When left out: empty line,
            line, Chinese sentence ends, Western sentence ends, space, any character.
        keep_separator: whether a separator goes to the `end` of the piece before it, to the `start` of the piece
            after it, or to neither (`none`; between joined pieces it stays).

    Raises:
        NodeInputError: `overlap` is not below `size`.
    """
    _check_overlap(size, overlap)
    chosen = DEFAULT_SEPARATORS if separators is None else tuple(separators)
    splitter = RecursiveSplitter(size, overlap, chosen, keep_separator, unit)
    settings: dict[str, JsonValue] = {
        "size": size,
        "overlap": overlap,
        "unit": unit,
        "separators": list(chosen),
        "keep_separator": keep_separator,
    }
    return _chunk_set(
        documents, lambda document: _plain(splitter.split(document.text)), _fingerprint("chunk.recursive", settings)
    )


@node(
    "chunk.window",
    blocking=True,
    example="""
    chunks: {use: chunk.window, documents: $documents, size: 500, overlap: 50}
    """,
)
def chunk_by_window(
    documents: DocumentSet, *, size: PositiveInt = 500, overlap: NonNegativeInt = 50, unit: Unit = "tokens"
) -> ChunkSet:
    """Split documents into windows of equal size, each starting `size - overlap` after the one before.

    No window lies wholly inside the one before it: n tokens, n > size, give 1 + ceil((n - size) / (size - overlap)).

    Args:
        documents: what to split.
        size: the size of a window, in `unit`.
        overlap: how much a window repeats of the one before, in `unit`; less than `size`.
        unit: `tokens` are words (at most 40 letters), CJK characters and single signs, counted without loading a
            model, so a model's own count differs (about 1.3 times as many for English); `chars` are code points.

    Raises:
        NodeInputError: `overlap` is not below `size`.
    """
    _check_overlap(size, overlap)
    settings: dict[str, JsonValue] = {"size": size, "overlap": overlap, "unit": unit}
    return _chunk_set(
        documents,
        lambda document: _plain(split_windows(document.text, size=size, overlap=overlap, unit=unit)),
        _fingerprint("chunk.window", settings),
    )


@node(
    "chunk.headings",
    blocking=True,
    example="""
    chunks: {use: chunk.headings, documents: $documents, size: 1200, levels: 3}
    """,
)
def chunk_by_headings(
    documents: DocumentSet,
    *,
    size: PositiveInt = 1200,
    overlap: NonNegativeInt = 0,
    levels: Annotated[int, Field(ge=1, le=6)] = 6,
) -> ChunkSet:
    """Split documents at their Markdown headings; what is long under one heading is split further.

    A chunk's text is what stands under the heading; the headings above it are its `section_path`, and what is
    embedded is `title > heading > heading`, an empty line, and the text. A heading with nothing under it gives no
    chunk. Headings inside fenced code do not count. Rows of a table are never cut, even when one is above `size`.

    Args:
        documents: what to split.
        size: the most characters that a chunk holds, headings not counted.
        overlap: the most characters that a chunk repeats of the one before in the same section; less than `size`.
        levels: headings down to this level (1-6) begin a section; deeper ones stay in the text.

    Raises:
        NodeInputError: `overlap` is not below `size`.
    """
    _check_overlap(size, overlap)
    splitter = RecursiveSplitter(size, overlap, keeps_whole=is_table_row)
    settings: dict[str, JsonValue] = {"size": size, "overlap": overlap, "levels": levels}
    return _chunk_set(
        documents, lambda document: _sections(document, splitter, levels), _fingerprint("chunk.headings", settings)
    )


@node(
    "chunk.whole",
    blocking=True,
    example="""
    chunks: {use: chunk.whole, documents: $passages}
    """,
)
def keep_whole(documents: DocumentSet, *, embed_title: bool = True) -> ChunkSet:
    """Make one chunk of every document, for passages that are ready as they are.

    Args:
        documents: the passages.
        embed_title: put a document's title and an empty line before the text that is embedded and reranked.
    """

    def pieces(document: Document) -> Iterator[Piece]:
        if document.text.strip():
            embed_text = f"{document.title}\n\n{document.text}" if embed_title and document.title else None
            yield Piece(0, len(document.text), embed_text=embed_text)

    return _chunk_set(documents, pieces, _fingerprint("chunk.whole", {"embed_title": embed_title}))


def _check_overlap(size: int, overlap: int) -> None:
    if overlap >= size:
        raise NodeInputError(f"The overlap ({overlap}) must be smaller than the size ({size}) of a chunk.")


def _fingerprint(name: str, settings: dict[str, JsonValue], version: int = 1) -> str:
    canonical = json.dumps([name, version, settings], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _plain(spans: Iterable[Offsets]) -> Iterator[Piece]:
    return (Piece(start, end) for start, end in spans)


def _sections(document: Document, splitter: RecursiveSplitter, levels: int) -> Iterator[Piece]:
    text = document.text
    path: list[tuple[int, str]] = []
    start = 0
    for heading in find_headings(text):
        if heading.level > levels:
            continue
        yield from _section(document, start, heading.start, path, splitter)
        while path and path[-1][0] >= heading.level:
            path.pop()
        path.append((heading.level, heading.title))
        start = heading.end
    yield from _section(document, start, len(text), path, splitter)


def _section(
    document: Document, start: int, end: int, path: list[tuple[int, str]], splitter: RecursiveSplitter
) -> Iterator[Piece]:
    body = trim(document.text, start, end)
    if body is None:
        return
    section_path = tuple(title for _, title in path if title)
    crumbs = section_path
    if document.title and section_path[:1] != (document.title,):
        crumbs = (document.title, *section_path)
    breadcrumb = " > ".join(crumbs)
    for piece_start, piece_end in splitter.split(document.text, *body):
        embed_text = f"{breadcrumb}\n\n{document.text[piece_start:piece_end]}" if breadcrumb else None
        yield Piece(piece_start, piece_end, section_path, embed_text)


def _chunk_set(documents: DocumentSet, split: Callable[[Document], Iterable[Piece]], made_by: str) -> ChunkSet:
    chunks: list[Chunk] = []
    total = len(documents)
    for done, document in enumerate(documents.documents):
        report_progress("split documents", done, total)
        chunks.extend(_chunks(document, split(document), made_by))
    report_progress("split documents", total, total)
    return ChunkSet(
        chunks=tuple(chunks),
        sources=tuple(
            SourceRecord(
                source=document.source,
                document_id=document.id,
                content_hash=document.content_hash,
                title=document.title,
            )
            for document in documents.documents
        ),
        failures=documents.failures,
        scope=documents.scope,
        root=documents.root,
        complete=documents.complete,
    )


def _chunks(document: Document, pieces: Iterable[Piece], made_by: str) -> Iterator[Chunk]:
    occurrences: Counter[str] = Counter()
    for index, piece in enumerate(pieces):
        text = document.text[piece.start : piece.end]
        text_hash = hashlib.sha256(unicodedata.normalize("NFC", text).encode("utf-8", "surrogatepass")).hexdigest()
        yield Chunk(
            id=str(uuid.uuid5(_NAMESPACE, f"{document.id}\x1f{text_hash}\x1f{occurrences[text_hash]}")),
            document_id=document.id,
            source=document.source,
            index=index,
            text=text,
            embed_text=piece.embed_text,
            title=document.title,
            section_path=piece.section_path,
            span=Span(start=piece.start, end=piece.end),
            language=document.language,
            made_by=made_by,
            metadata=document.metadata,
        )
        occurrences[text_hash] += 1
