"""What travels on the edges of a flow: frozen pydantic models, one set for every method.

Ids are strings. Spans are offsets into `Document.text` in code points, the end exclusive. Ranks are 1-based.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import ConfigDict, Field, JsonValue, PositiveInt, model_validator
from pydantic.dataclasses import dataclass

from ragbraid.registry.contract import Contract
from ragbraid.registry.graph_parts import ChunkGraph
from ragbraid.registry.notebook import answer_html, ranking_html

Metadata = dict[str, JsonValue]

HitKind = Literal["chunk", "entity", "fact", "atom", "summary", "report"]
ScoreKind = Literal["cosine", "bm25", "sparse", "rrf", "norm", "model", "graph", "composite", "rank"]
ChunkKind = Literal["text", "table", "image", "code", "qa", "summary", "row", "atom"]


class Span(Contract):
    """A stretch of a document's text: code point offsets, `end` exclusive."""

    start: Annotated[int, Field(ge=0)]
    end: Annotated[int, Field(ge=0)]

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.end < self.start:
            raise ValueError(f"a span ends before it starts: {self.start}..{self.end}")
        return self


class Document(Contract):
    """A source text as a loader read it.

    `source` says where it came from (a path relative to the loader's root, a URL, a row id) and is what clean-up
    compares; `content_hash` is the SHA-256 of the raw content.
    """

    id: str
    source: str
    text: str
    title: str | None = None
    language: str | None = None
    format: Literal["text", "markdown", "html", "jsonl"] = "text"
    content_hash: str
    metadata: Metadata = {}


class SourceFailure(Contract):
    """A source that could not be read, with the reason as a sentence."""

    source: str
    reason: str


class DocumentSet(Contract):
    """What a loader found: the documents, what failed, and whether it saw its whole scope.

    `scope` names what the loader looked at (a folder with its patterns, a file), by the same name wherever the project
    lies, and `root` the folder that the names of sources are relative to, where they are. `complete` is false when
    something in that scope may have been missed, and then no clean-up mode may take a missing source for a deleted one.
    """

    documents: tuple[Document, ...] = ()
    failures: tuple[SourceFailure, ...] = ()
    scope: str = ""
    root: str = ""
    complete: bool = False

    def __len__(self) -> int:
        return len(self.documents)


class Chunk(Contract):
    """A retrievable piece of a document.

    `text` is what a reader or a model sees; `embed_text` is what is embedded and reranked (`text` when None).
    Where `span` is given, `Document.text[span.start:span.end] == text` holds. `made_by` is the fingerprint of the
    chunker and its settings. `graph` is what it contributes to the knowledge graph. `enrichments` keeps what models said about it, by the stamp of everything that went into
    their answer, so that the next ingestion need not ask again.
    """

    id: str
    document_id: str
    source: str
    index: Annotated[int, Field(ge=0)]
    text: str
    embed_text: str | None = None
    title: str | None = None
    section_path: tuple[str, ...] = ()
    kind: ChunkKind = "text"
    span: Span | None = None
    parent_id: str | None = None
    language: str | None = None
    made_by: str = ""
    metadata: Metadata = {}
    graph: ChunkGraph | None = None
    enrichments: dict[str, JsonValue] = {}

    @property
    def text_to_embed(self) -> str:
        """The text that embedders, sparse encoders and rerankers see."""
        return self.text if self.embed_text is None else self.embed_text


class SourceRecord(Contract):
    """One source that went into a chunk set, also when it gave no chunk at all."""

    source: str
    document_id: str
    content_hash: str
    title: str | None = None


class ChunkSet(Contract):
    """Chunks together with the sources they came from, so that an index can tell changed, empty and missing apart."""

    chunks: tuple[Chunk, ...] = ()
    sources: tuple[SourceRecord, ...] = ()
    failures: tuple[SourceFailure, ...] = ()
    scope: str = ""
    root: str = ""
    complete: bool = False

    def __len__(self) -> int:
        return len(self.chunks)


class Query(Contract):
    """A question or search text, and what a rewriting node knows about it."""

    text: str
    role: Literal["original", "rewrite", "sub", "keyword"] = "original"
    weight: Annotated[float, Field(ge=0)] = 1.0


# A dataclass with slots, not a model: a ranking holds one for every hit and route, and this takes half as long to make
# and a quarter of the room. It is checked, frozen, compared and written as JSON like every other contract.
@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
class RouteScore:
    """Rank and score that one route gave to a hit."""

    rank: PositiveInt
    score: float
    kind: ScoreKind


class Hit(Contract):
    """A scored chunk, entity, fact, atom, summary or report, with the rank and score of every route that found it."""

    id: str
    text: str
    score: float
    rank: PositiveInt
    score_kind: ScoreKind
    kind: HitKind = "chunk"
    scores: dict[str, RouteScore] = {}
    document_id: str | None = None
    source: str | None = None
    index: int | None = None
    title: str | None = None
    section_path: tuple[str, ...] = ()
    embed_text: str | None = None
    span: Span | None = None
    language: str | None = None
    metadata: Metadata = {}

    @property
    def text_to_rank(self) -> str:
        """The text that a reranker sees: the embedded text, headings included."""
        return self.text if self.embed_text is None else self.embed_text


class Ranking(Contract):
    """An ordered list of hits with unique ids, ranks 1..n and scores that never increase.

    Make one with `Ranking.from_hits`, which sorts, removes duplicates (the better one stays) and numbers the ranks.
    Iterating over a ranking yields its hits; `len` counts them.
    """

    hits: tuple[Hit, ...] = ()
    route: str = ""
    score_kind: ScoreKind = "rank"
    degraded: bool = False
    error: str | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        previous = float("inf")
        seen: set[str] = set()
        for position, hit in enumerate(self.hits, start=1):
            if hit.rank != position:
                raise ValueError(f"hit {hit.id!r} has rank {hit.rank} at position {position}")
            if hit.score > previous:
                raise ValueError(f"hit {hit.id!r} at rank {position} scores more than the one before it")
            if hit.id in seen:
                raise ValueError(f"hit {hit.id!r} occurs twice")
            seen.add(hit.id)
            previous = hit.score
        return self

    def _repr_html_(self) -> str:
        return ranking_html(self)

    @classmethod
    def from_hits(cls, hits: Iterable[Hit], *, route: str, score_kind: ScoreKind) -> Self:
        """Build a ranking from hits in any order.

        Sorted by score (descending), then best rank by any route, then order of appearance. Of two hits
        with one id the first in that order stays. Every hit of the result records its rank and score under `route`.
        """
        ordered = sorted(hits, key=lambda hit: (-hit.score, _best_rank(hit)))
        kept: dict[str, Hit] = {}
        for hit in ordered:
            if hit.id in kept:
                continue
            rank = len(kept) + 1
            scores = {**hit.scores, route: RouteScore(rank=rank, score=hit.score, kind=score_kind)}
            kept[hit.id] = hit.model_copy(update={"rank": rank, "score_kind": score_kind, "scores": scores})
        return cls(hits=tuple(kept.values()), route=route, score_kind=score_kind)

    def __len__(self) -> int:
        return len(self.hits)

    def __iter__(self) -> Iterator[Hit]:  # type: ignore[override]  # a ranking reads as a list of hits
        return iter(self.hits)

    def __getitem__(self, position: int) -> Hit:
        if isinstance(position, str):
            return getattr(self, position)  # from `dict(ranking)` alone: see `keys`
        return self.hits[position]

    def keys(self) -> Iterable[str]:
        """Return the names of its fields, so that `dict(ranking)` gives its fields as of any model: Prefect calls it."""
        return type(self).model_fields


class Citation(Contract):
    """A numbered source of an answer.

    `marker` is the number that stands in the answer's text as `[n]`. `kind` says what was read: a passage, or a fact, an
    entity or a report of the knowledge graph, whose words are not those of the passage that is named as its place.
    `verified` says that `quote` was found in what was read.
    """

    marker: PositiveInt
    chunk_id: str
    document_id: str | None = None
    source: str | None = None
    title: str | None = None
    section_path: tuple[str, ...] = ()
    kind: HitKind = "chunk"
    quote: str | None = None
    verified: bool = False


class Usage(Contract):
    """What a step or a run used of paid or slow services."""

    llm_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            llm_calls=self.llm_calls + other.llm_calls,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
        )


class Answer(Contract):
    """An answer with its citations. A refusal has text too: it says why there is no answer."""

    text: str
    citations: tuple[Citation, ...] = ()
    refused: bool = False
    refusal_reason: str | None = None
    unknown_citations: int = 0
    """How many citations of the model pointed at no passage and were removed."""
    rationale: str | None = None
    usage: Usage = Usage()

    def _repr_html_(self) -> str:
        return answer_html(self)


class SourceReport(Contract):
    """What an index run did with one source; atoms are counted apart from chunks."""

    source: str
    status: Literal["added", "updated", "unchanged", "deleted", "failed"]
    chunks_added: int = 0
    chunks_deleted: int = 0
    chunks_unchanged: int = 0
    atoms_added: int = 0
    atoms_deleted: int = 0
    atoms_unchanged: int = 0
    reason: str | None = None
    """Why it failed, that it is empty, or where it was moved."""


class IndexReport(Contract):
    """What an index run did, per source and in total."""

    knowledge_base: str
    generation: int
    sources: tuple[SourceReport, ...] = ()
    added: int = 0
    updated: int = 0
    unchanged: int = 0
    deleted: int = 0
    failed: int = 0
    empty: int = 0
    """How many of the sources that were read hold no text."""
    chunks_added: int = 0
    chunks_deleted: int = 0
    chunks_unchanged: int = 0
    atoms_added: int = 0
    atoms_deleted: int = 0
    atoms_unchanged: int = 0
    entities: int = 0
    """How many entities the knowledge graph has now."""
    facts: int = 0
    """How many facts it has now."""
    embedded: int = 0
    """How many texts were sent to the embedder."""
    notes: tuple[str, ...] = ()
    """What the reader should know besides, one sentence each."""


T = TypeVar("T")


class FanIn(dict[str, T]):
    """A data port that collects every arrow offering a `T`, keyed by the upstream node's name, in the order written."""


CONTRACTS: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        Answer, Chunk, ChunkGraph, ChunkSet, Citation, Document, DocumentSet, Hit, IndexReport, Query, Ranking,
        RouteScore, SourceFailure, SourceRecord, SourceReport, Span, Usage,
    )
}  # fmt: skip
"""The type names that flow files may use, beside the built-in ones and those of plugins."""


def _best_rank(hit: Hit) -> int:
    return min((score.rank for score in hit.scores.values()), default=hit.rank)
