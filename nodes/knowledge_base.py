"""A knowledge base over one collection: searching it, reading it, and handing updates to `index_update`.

Readers see one committed generation, also while an update commits in another thread or process: what was read is
returned only if the knowledge base still stands where it stood when the reading began, otherwise it is read again.
For an embedded store that is a comparison of two references, for a server one more small request.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TypeVar

from ragbraid.nodes.index_update import update_knowledge_base
from ragbraid.nodes.index_verify import drop_knowledge_base, verify_knowledge_base
from ragbraid.nodes.knowledge_base_filter import FieldChecker
from ragbraid.nodes.store import (
    CHUNKS,
    DOCUMENTS,
    EVERYTHING,
    ScoredPoint,
    Store,
    Test,
    Tests,
    chunk_from_payload,
    read_info,
    span_from_payload,
    visible_at,
)
from ragbraid.registry.contracts import Chunk, Contract, Hit, RouteScore, ScoreKind
from ragbraid.registry.errors import ServiceError, SettingsError
from ragbraid.registry.knowledge import DocumentRecord, IndexUpdate, KnowledgeBaseInfo, Where
from ragbraid.registry.resources import Embedder, SparseEncoder, SparseVector

if TYPE_CHECKING:
    from ragbraid.registry.resources import Vector

T = TypeVar("T")
C = TypeVar("C", bound=Contract)

_ATTEMPTS = 20
"""How often a reader starts over before it says that the knowledge base never stands still."""


class QdrantKnowledgeBase:
    """The `KnowledgeBase` of every Qdrant engine; safe to share between threads."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self._last: KnowledgeBaseInfo | None = None
        self._fields = FieldChecker(store)

    @property
    def name(self) -> str:
        """The name it was opened under."""
        return self._name

    def info(self) -> KnowledgeBaseInfo:
        """Return what it records about itself.

        Raises:
            SettingsError: it does not exist yet, naming the ones that do.
        """
        info = read_info(self._store)
        if info is None or info.generation == 0:
            raise self._missing(being_filled=info is not None)
        self._last = info
        return info

    def search_dense(self, vector: Vector, *, embedder: str, top_k: int, where: Where | None = None) -> list[Hit]:
        """Return the nearest chunks by cosine, best first.

        Raises:
            SettingsError: `embedder` is not the model that filled it, or `where` names a field it does not have.
        """

        def search(info: KnowledgeBaseInfo, visible: Tests) -> list[ScoredPoint]:
            _require_same("embedder", info, info.embedder, embedder)
            if len(vector) != info.dimension:
                raise SettingsError(
                    f"the query has {len(vector)} dimensions, knowledge base `{self._name}` has {info.dimension}"
                )
            return self._store.search_dense(vector, top_k, visible & self._tests(where, info))

        return _to_hits(self._read(search), "dense", "cosine")

    def search_sparse(self, vector: SparseVector, *, sparse: str, top_k: int, where: Where | None = None) -> list[Hit]:
        """Return the best chunks by term weight times inverse document frequency, best first.

        Raises:
            SettingsError: `sparse` is not the encoder that filled it, or `where` names a field it does not have.
        """

        def search(info: KnowledgeBaseInfo, visible: Tests) -> list[ScoredPoint]:
            _require_same("sparse encoder", info, info.sparse, sparse)
            corpus = CHUNKS & visible if visible else CHUNKS
            return self._store.search_sparse(vector, top_k, visible & self._tests(where, info), corpus=corpus)

        kind: ScoreKind = "bm25" if sparse.startswith("bm25") else "sparse"
        return _to_hits(self._read(search), "sparse", kind)

    def fetch(self, chunk_ids: Sequence[str]) -> list[Chunk]:
        """Return the chunks with these ids that exist, in the order asked for."""
        wanted = tuple(dict.fromkeys(chunk_ids))
        if not wanted:
            return []
        which = CHUNKS & Tests(must=(Test("chunk_id", any_of=wanted),))

        def read(_: KnowledgeBaseInfo, visible: Tests) -> dict[str, Chunk]:
            points = self._store.scroll(which & visible)
            return {point.payload["chunk_id"]: chunk_from_payload(point.payload) for point in points}

        found = self._read(read)
        return [found[id_] for id_ in wanted if id_ in found]

    def documents(self) -> Iterator[DocumentRecord]:
        """Yield the record of every committed source, in order of source."""

        def read(_: KnowledgeBaseInfo, visible: Tests) -> list[DocumentRecord]:
            points = self._store.scroll(DOCUMENTS & visible)
            return [DocumentRecord.model_validate(point.payload["record"]) for point in points]

        yield from sorted(self._read(read), key=lambda record: record.source)

    def update(self, *, embedder: Embedder, sparse: SparseEncoder, scope: str) -> AbstractContextManager[IndexUpdate]:
        """Begin an update, creating the knowledge base where there is none.

        Raises:
            SettingsError: embedder or sparse encoder are not the ones that filled it.
            ServiceError: another update is under way.
        """
        return update_knowledge_base(self._store, self._name, embedder=embedder, sparse=sparse, scope=scope)

    def verify(self) -> list[str]:
        """Return what is inconsistent, one sentence each; empty when all is well."""
        return verify_knowledge_base(self._store)

    def drop(self) -> None:
        """Delete the knowledge base with everything in it."""
        drop_knowledge_base(self._store, self._name)

    def close(self) -> None:
        """Release files and connections."""
        self._store.close()

    def fingerprint(self) -> str:
        """Identify place, name and committed generation, for cache keys.

        Raises:
            SettingsError: it does not exist yet.
        """
        info = self.info()
        parts = (self._store.location, self._name, info.embedder, info.sparse, str(info.generation))
        return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()

    def _read(self, read: Callable[[KnowledgeBaseInfo, Tests], T]) -> T:
        """Run `read` with a filter for the committed generation until it has read from one generation alone."""
        embedded = self._store.shared is not None
        for _ in range(_ATTEMPTS):
            # From a server the state seen last is taken on trust; whether it still holds is asked afterwards anyway.
            info = self.info() if embedded or self._last is None else self._last
            try:
                found = read(info, visible_at(info.generation) if info.updating else EVERYTHING)
            except (ServiceError, SettingsError):
                if not embedded and self.info() != info:
                    continue  # the state taken on trust was out of date, and so may the complaint be
                raise
            if (read_info(self._store) is info) if embedded else (self.info() == info and not _is_ahead(found, info)):
                return found
            self._last = None
        raise ServiceError(f"knowledge base `{self._name}` was changed again and again while it was read")

    def _tests(self, where: Where | None, info: KnowledgeBaseInfo) -> Tests:
        return EVERYTHING if where is None else self._fields.tests(where, info)

    def _missing(self, *, being_filled: bool) -> SettingsError:
        if being_filled:
            return SettingsError(
                f"knowledge base `{self._name}` at {self._store.location} holds nothing yet: its first ingestion has "
                "not been completed",
                hint="run the ingestion again; it continues where it stopped",
            )
        others = [f"`{other}`" for other in self._store.siblings() if other != self._name]
        beside = f"beside it are {', '.join(others)}" if others else "there is no other beside it"
        return SettingsError(
            f"there is no knowledge base `{self._name}` at {self._store.location}; {beside}",
            hint="run an ingestion flow (with `index.upsert`) first, or correct its path and name",
        )


def _require_same(what: str, info: KnowledgeBaseInfo, filled_by: str, given: str) -> None:
    if given != filled_by:
        raise SettingsError(
            f"knowledge base `{info.name}` was filled with the {what} `{filled_by}`, the query comes from `{given}`",
            hint=f"use `{filled_by}` for queries, or ingest the documents again with `{given}`",
        )


def _is_ahead(found: object, info: KnowledgeBaseInfo) -> bool:
    """Whether a search met points of an update that began after `info` was read."""
    points = found if isinstance(found, list) else []
    return any(isinstance(point, ScoredPoint) and point.payload["gen_from"] > info.generation for point in points)


def _to_hits(points: Sequence[ScoredPoint], route: str, kind: ScoreKind) -> list[Hit]:
    """Turn found points into hits, best first; of two points with one chunk id the better one stays."""
    hits: dict[str, Hit] = {}
    for point in points:
        payload = point.payload
        chunk_id = payload["chunk_id"]
        if chunk_id in hits:
            continue
        rank, span = len(hits) + 1, span_from_payload(payload)
        score = _trusted(RouteScore, {"rank": rank, "score": point.score, "kind": kind})
        fields = {
            "id": chunk_id,
            "text": payload["text"],
            "score": point.score,
            "rank": rank,
            "score_kind": kind,
            "kind": "summary" if payload["chunk_kind"] == "summary" else "chunk",
            "scores": {route: score},
            "document_id": payload["document_id"],
            "source": payload["source"],
            "index": payload["index"],
            "title": payload["title"],
            "section_path": tuple(payload["section_path"]),
            "embed_text": payload["embed_text"],
            "span": span,
            "language": payload["language"],
            "metadata": payload["metadata"],
        }
        hits[chunk_id] = _trusted(Hit, fields)
    return list(hits.values())


def _trusted(cls: type[C], fields: dict[str, object]) -> C:
    """Make a contract of fields that were validated when they were written.

    As `model_construct`, which goes through every field by name again and costs more than the search of the engine.
    """
    made = cls.__new__(cls)
    object.__setattr__(made, "__dict__", fields)
    object.__setattr__(made, "__pydantic_fields_set__", set(fields))
    object.__setattr__(made, "__pydantic_extra__", None)
    object.__setattr__(made, "__pydantic_private__", None)
    return made
