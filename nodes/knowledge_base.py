"""A knowledge base over one collection: searching it, reading it, and handing updates to `index_update`.

Readers see one committed generation, also while an update commits in another thread or process: what was read is
returned only if the knowledge base still stands where it stood when the reading began, otherwise it is read again.
For an embedded store that is a comparison of two references, for a server one more small request.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import JsonValue

from ragbraid.nodes.graph_reports import replace_reports
from ragbraid.nodes.index_update import exclusive, update_knowledge_base
from ragbraid.nodes.index_verify import drop_knowledge_base, verify_knowledge_base
from ragbraid.nodes.knowledge_base_atoms import ATOMS, found_through, nearest_atoms, not_of, require_atoms
from ragbraid.nodes.knowledge_base_checks import missing, require_same, sparse_kind
from ragbraid.nodes.knowledge_base_filter import FieldChecker, among
from ragbraid.nodes.knowledge_base_graph import FindChunks, GraphReader
from ragbraid.nodes.knowledge_base_hits import FuseKeys, to_fused_hits, to_hits
from ragbraid.nodes.store import (
    ATOM,
    CHUNKS,
    DENSE,
    DOCUMENTS,
    EVERYTHING,
    SPARSE,
    WRITE_BATCH,
    Store,
    Test,
    Tests,
    chunk_from_payload,
    read_info,
    visible_at,
)
from ragbraid.nodes.store_found import Found
from ragbraid.registry.contracts import Chunk, Hit, ScoreKind
from ragbraid.registry.errors import ServiceError, SettingsError
from ragbraid.registry.graph import Report
from ragbraid.registry.graph_store import GraphStore
from ragbraid.registry.graph_view import GraphView
from ragbraid.registry.knowledge import DocumentRecord, GraphKind, IndexUpdate, KnowledgeBaseInfo, Where
from ragbraid.registry.resources import Embedder, SparseEncoder, SparseVector

if TYPE_CHECKING:
    from ragbraid.registry.resources import Vector

T = TypeVar("T")

COSINE: ScoreKind = "cosine"
_ATTEMPTS = 20
"""How often a reader starts over before it says that the knowledge base never stands still."""


_ROUTES_AT_ONCE = 8
"""How many hybrid searches can have their second route beside the first; more take turns."""


class _MovedOnError(Exception):
    """A search met points of an update that began after the state was read."""


class QdrantKnowledgeBase:
    """The `KnowledgeBase` of every Qdrant engine; safe to share between threads."""

    def __init__(self, store: Store, graph: GraphStore, name: str) -> None:
        self._store = store
        self._graph = graph
        self._graph_reader = GraphReader(graph)
        self._name = name
        self._last: KnowledgeBaseInfo | None = None
        self._fields = FieldChecker(store)
        self._pool = ThreadPoolExecutor(_ROUTES_AT_ONCE, thread_name_prefix="ragbraid-search")

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
            raise missing(self._store, self._name, being_filled=info is not None)
        self._last = info
        return info

    def search_dense(
        self,
        vector: Vector,
        *,
        embedder: str,
        top_k: int,
        where: Where | None = None,
        within: Sequence[str] | None = None,
    ) -> list[Hit]:
        """Return the nearest chunks by cosine, best first.

        Raises:
            SettingsError: `embedder` is not the model that filled it, or `where` names a field it does not have.
        """

        def search(info: KnowledgeBaseInfo, visible: Tests) -> Found:
            self._require_same_embedder(info, embedder, vector)
            return self._dense(vector, top_k, visible & self._tests(where, info) & among(within), info)

        return to_hits(self._read(search), DENSE, COSINE)

    def search_sparse(self, vector: SparseVector, *, sparse: str, top_k: int, where: Where | None = None) -> list[Hit]:
        """Return the best chunks by term weight times inverse document frequency, best first.

        Raises:
            SettingsError: `sparse` is not the encoder that filled it, or `where` names a field it does not have.
        """

        def search(info: KnowledgeBaseInfo, visible: Tests) -> Found:
            require_same("sparse encoder", info, info.sparse, sparse)
            return self._sparse(vector, top_k, visible, visible & self._tests(where, info), info)

        return to_hits(self._read(search), SPARSE, sparse_kind(sparse))

    def search_hybrid(
        self,
        vector: Vector,
        terms: SparseVector,
        *,
        embedder: str,
        sparse: str,
        fetch_k: int,
        fuse: FuseKeys,
        where: Where | None = None,
    ) -> list[Hit]:
        """Search by both routes at once, on one generation, and return what `fuse` makes of the two lists.

        Raises:
            SettingsError: another model filled it, or `where` names a field it does not have.
        """

        def search(info: KnowledgeBaseInfo, visible: Tests) -> list[Hit]:
            self._require_same_embedder(info, embedder, vector)
            require_same("sparse encoder", info, info.sparse, sparse)
            tests = visible & self._tests(where, info)
            # Texts are read of the points that the fusion leaves, which is a fraction of what both routes bring.
            by_meaning, by_terms = self._both(
                lambda: self._dense(vector, fetch_k, tests, info, with_payload=False),
                lambda: self._sparse(terms, fetch_k, visible, tests, info, with_payload=False),
            )
            routes = {DENSE: (by_meaning, COSINE), SPARSE: (by_terms, sparse_kind(sparse))}
            fused = fuse({route: found.keys for route, (found, _) in routes.items()})
            ids: dict[Hashable, Any] = {}
            for found in (by_meaning, by_terms):
                ids.update(zip(found.keys, found.ids, strict=True))
            payloads = self._store.payloads([ids[key] for key, _ in fused])
            if len(payloads) < len(fused):
                raise _MovedOnError
            return to_fused_hits(fused, routes, payloads)

        return self._read(search)

    def search_atoms(
        self,
        vector: Vector,
        *,
        embedder: str,
        top_k: int,
        where: Where | None = None,
        exclude: Sequence[str] = (),
    ) -> list[Hit]:
        """Return the chunks with the nearest questions by cosine, best first, each once.

        Raises:
            SettingsError: it holds no atoms, `embedder` is not the model that filled it, or `where` names a field it
                does not have.
        """

        def search(info: KnowledgeBaseInfo, visible: Tests) -> Found:
            self._require_same_embedder(info, embedder, vector)
            require_atoms(info, where)
            tests = visible & not_of(exclude) & self._tests(where, info)
            nearest = nearest_atoms(lambda limit: self._dense(vector, limit, tests, info, using=ATOM), top_k)
            ids = tuple({id_ for _, id_ in nearest})
            stored = self._store.scroll(CHUNKS & visible & Tests(must=(Test("chunk_id", any_of=ids),)))
            chunks = {(point.payload["source"], point.payload["chunk_id"]): point.payload for point in stored}
            if not nearest.keys() <= chunks.keys():
                raise _MovedOnError
            return found_through(nearest, chunks)

        return to_hits(self._read(search), ATOMS, COSINE)

    def graph(self, where: Where | None = None) -> GraphView:
        """Return the knowledge graph of the committed generation, read once and then kept.

        Raises:
            SettingsError: it holds no knowledge graph, or `where` names a field it does not have.
        """
        return self._read(lambda info, visible: self._graph_reader.view(info, where, self._finder(info, visible)))

    def search_graph(
        self, kind: GraphKind, vector: Vector, *, embedder: str, top_k: int, where: Where | None = None
    ) -> list[tuple[str, float]]:
        """Return the ids of the nearest entities, facts or reports with their cosines, best first.

        Raises:
            SettingsError: it holds no knowledge graph (or no report), `embedder` is not the model that filled it, or
                `where` names a field it does not have.
        """

        def search(info: KnowledgeBaseInfo, visible: Tests) -> list[tuple[str, float]]:
            self._require_same_embedder(info, embedder, vector)
            return self._graph_reader.nearest(kind, vector, top_k, info, where, self._finder(info, visible))

        return self._read(search)

    def reports(self, where: Where | None = None) -> tuple[Report, ...]:
        """Return the reports about communities, in order of id; only those all of whose chunks fulfil `where`."""
        return self._read(lambda info, visible: self._graph_reader.reports(info, where, self._finder(info, visible)))

    def replace_reports(self, reports: Sequence[Report], *, embedder: Embedder, generation: int) -> int:
        """Put these reports in the place of all that there are, in one commit; returns the new generation.

        Raises:
            SettingsError: `embedder` is not the model that filled it.
            ServiceError: it has moved on from `generation`, another update is under way, or the embedder failed.
        """
        with exclusive(self._store, self._name):
            return replace_reports(self._store, self._graph, reports, embedder=embedder, generation=generation)

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

    def recall(self, stamps: Sequence[str]) -> dict[str, JsonValue]:
        """Return what models said before, by stamp; unknown stamps are left out."""
        found: dict[str, JsonValue] = {}
        if not self._store.exists():
            return found
        wanted = list(dict.fromkeys(stamps))
        for start in range(0, len(wanted), WRITE_BATCH):
            batch = tuple(wanted[start : start + WRITE_BATCH])
            for point in self._store.scroll(CHUNKS & Tests(must=(Test("enriched_by", any_of=batch),))):
                said = point.payload["enrichments"]
                found |= {stamp: said[stamp] for stamp in batch if stamp in said}
        return found

    def documents(self) -> Iterator[DocumentRecord]:
        """Yield the record of every committed source, in order of source."""

        def read(_: KnowledgeBaseInfo, visible: Tests) -> list[DocumentRecord]:
            points = self._store.scroll(DOCUMENTS & visible)
            return [DocumentRecord.model_validate(point.payload["record"]) for point in points]

        yield from sorted(self._read(read), key=lambda record: record.source)

    def update(
        self, *, embedder: Embedder, sparse: SparseEncoder, scope: str, root: str = ""
    ) -> AbstractContextManager[IndexUpdate]:
        """Begin an update, creating the knowledge base where there is none.

        Raises:
            SettingsError: embedder or sparse encoder are not the ones that filled it.
            ServiceError: another update is under way.
        """
        return update_knowledge_base(
            self._store, self._graph, self._name, embedder=embedder, sparse=sparse, scope=scope, root=root
        )

    def verify(self) -> list[str]:
        """Return what is inconsistent, one sentence each; empty when all is well."""
        return verify_knowledge_base(self._store, self._graph)

    def drop(self) -> None:
        """Delete the knowledge base with everything in it."""
        drop_knowledge_base(self._store, self._graph, self._name)

    def close(self) -> None:
        """Release files and connections."""
        self._pool.shutdown()
        self._graph.close()
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
            except _MovedOnError:
                self._last = None
                continue
            except (ServiceError, SettingsError):
                if not embedded and self.info() != info:
                    continue  # the state taken on trust was out of date, and so may the complaint be
                raise
            if (read_info(self._store) is info) if embedded else (self.info() == info):
                return found
            self._last = None
        raise ServiceError(f"knowledge base `{self._name}` was changed again and again while it was read")

    def _both(self, first: Callable[[], Found], second: Callable[[], Found]) -> tuple[Found, Found]:
        """Search by two routes: side by side on a server, which is waited for, and in turn in this process.

        An engine in this process holds the interpreter while it searches, so a second thread would only cost the change
        between them, which is more than a search by terms takes.
        """
        if self._store.shared is not None:
            return first(), second()
        later = self._pool.submit(second)
        return first(), later.result()

    def _dense(
        self,
        vector: Vector,
        limit: int,
        tests: Tests,
        info: KnowledgeBaseInfo,
        *,
        using: str = DENSE,
        with_payload: bool = True,
    ) -> Found:
        return _not_ahead(self._store.search_dense(vector, limit, tests, using=using, with_payload=with_payload), info)

    def _sparse(
        self,
        terms: SparseVector,
        limit: int,
        visible: Tests,
        tests: Tests,
        info: KnowledgeBaseInfo,
        *,
        with_payload: bool = True,
    ) -> Found:
        corpus = CHUNKS & visible if visible else CHUNKS
        found = self._store.search_sparse(terms, limit, tests, corpus=corpus, with_payload=with_payload)
        return _not_ahead(found, info)

    def _require_same_embedder(self, info: KnowledgeBaseInfo, embedder: str, vector: Vector) -> None:
        require_same("embedder", info, info.embedder, embedder)
        if len(vector) != info.dimension:
            raise SettingsError(
                f"the query has {len(vector)} dimensions, knowledge base `{self._name}` has {info.dimension}"
            )

    def _finder(self, info: KnowledgeBaseInfo, visible: Tests) -> FindChunks:
        def find(where: Where) -> frozenset[str]:
            points = self._store.scroll(CHUNKS & visible & self._tests(where, info))
            return frozenset(point.payload["chunk_id"] for point in points)

        return find

    def _tests(self, where: Where | None, info: KnowledgeBaseInfo) -> Tests:
        return EVERYTHING if where is None else self._fields.tests(where, info)


def _not_ahead(found: Found, info: KnowledgeBaseInfo) -> Found:
    if found.newest_generation() > info.generation:
        raise _MovedOnError
    return found
