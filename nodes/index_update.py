"""One update of a knowledge base: planned as a whole, invisible while it is written, committed by one write.

The committed generation is G. An update writes points with `gen_from = G + 1` and marks the points that they replace
with `gen_to = G + 1`, so that readers of G see neither. Writing the info record with G + 1 is the commit; deleting
what no reader needs any more comes after it. Every step can be repeated, so whenever a process is killed the next
update either finishes that clean-up or takes over the vectors that were written and removes the rest.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from ragbraid.nodes.graph_update import GraphUpdate, delete_all_written
from ragbraid.nodes.index_records import (
    ChunkKey,
    SourceDraft,
    StoredChunk,
    Tally,
    Work,
    average_at,
    average_step,
    compare,
    count_tokens,
    draft_source,
    hashes_without_vector,
    is_unchanged,
    report_source,
)
from ragbraid.nodes.index_write import UpdateWriter
from ragbraid.nodes.store import Store, read_info, write_info
from ragbraid.registry.contracts import Chunk, SourceReport
from ragbraid.registry.errors import RunError, ServiceError, SettingsError
from ragbraid.registry.graph_store import GraphRecord, GraphStore
from ragbraid.registry.knowledge import DocumentRecord, KnowledgeBaseInfo, SourceChunks, UpdatePlan
from ragbraid.registry.resources import Embedder, SparseEncoder

if TYPE_CHECKING:
    from ragbraid.registry.resources import Matrix

_server_locks: dict[str, threading.Lock] = {}
_server_locks_guard = threading.Lock()


@contextmanager
def update_knowledge_base(
    store: Store,
    graph: GraphStore,
    name: str,
    *,
    embedder: Embedder,
    sparse: SparseEncoder,
    scope: str,
    root: str = "",
) -> Iterator[Update]:
    """Begin the one update that may be under way in this process; nothing is written before it is planned.

    On a server another process can begin one too: the later one takes over and the earlier one stops with an error.

    Raises:
        SettingsError: embedder or sparse encoder are not the ones that filled the knowledge base.
        ServiceError: another update is under way.
    """
    with exclusive(store, name):
        info = read_info(store)
        if info is not None and info.generation == 0 and not _is_filled_by(info, embedder, sparse):
            info = None  # a first ingestion was killed and this one has another model: begin anew
            store.drop()
            graph.drop()
        if info is not None:
            _require_same_models(info, embedder, sparse)
        yield Update(store, graph, name, info, embedder=embedder, sparse=sparse, scope=scope, root=root)


@contextmanager
def exclusive(store: Store, name: str) -> Iterator[None]:
    """Hold a knowledge base against every other update in this process.

    Raises:
        ServiceError: another update is under way.
    """
    lock = _update_lock(store)
    if not lock.acquire(blocking=False):
        raise ServiceError(
            f"The knowledge base `{name}` is being updated by another run; wait until that has finished and try again.",
            kind="unavailable",
        )
    try:
        yield
    finally:
        lock.release()


class Update:
    """One update of a knowledge base; see `ragbraid.registry.knowledge.IndexUpdate`."""

    def __init__(
        self,
        store: Store,
        graph: GraphStore,
        name: str,
        info: KnowledgeBaseInfo | None,
        *,
        embedder: Embedder,
        sparse: SparseEncoder,
        scope: str,
        root: str,
    ) -> None:
        self._store = store
        self._graph = graph
        self._embedder = embedder
        self._sparse = sparse
        self._scope = scope
        self._root = root
        self._is_stored = info is not None
        self._must_recover = info is not None and info.updating
        self._info = info or KnowledgeBaseInfo(
            name=name, embedder=embedder.identity, dimension=embedder.dimension, sparse=sparse.identity
        )
        self._next = self._info.generation + 1
        self._id = uuid.uuid4().hex
        self._writer = UpdateWriter(store, sparse, committed=self._info.generation)
        self._records = self._writer.records() if self._is_stored else {}
        self._killed: dict[ChunkKey, StoredChunk] = {}
        self._work: Work | None = None
        self._unwritten: set[ChunkKey] = set()
        self._force = False
        self._graph_update: GraphUpdate | None = None
        self._neighbour_min_score = self._info.neighbour_min_score

    def sources(self) -> Iterator[DocumentRecord]:
        """Yield the committed record of every source, in order of source."""
        for source in sorted(self._records):
            yield self._records[source]

    def plan(
        self,
        sources: Sequence[SourceChunks],
        *,
        remove: Sequence[str] = (),
        keep_old_chunks: bool = False,
        force: bool = False,
    ) -> UpdatePlan:
        """Compare sources with what is stored and say what has to be embedded.

        Args:
            sources: each source with all its chunks; chunk ids are unique.
            remove: sources to take out with their chunks.
            keep_old_chunks: whether chunks that a changed source no longer has stay searchable.
            force: treat every source as changed and embed all its chunks.
        """
        self._force = force
        reports: dict[str, SourceReport] = {}
        changed: list[SourceDraft] = []
        for given in sources:
            before = self._records.get(given.record.source)
            draft = draft_source(
                given,
                embedder=self._embedder.identity,
                scope=self._scope,
                root=self._root,
                old_chunk_ids=before.chunk_ids if before is not None and keep_old_chunks else (),
                old_atoms=before.old_atoms if before is not None and keep_old_chunks else 0,
            )
            if is_unchanged(draft.record, before) and not force:
                source, atoms = draft.record.source, draft.record.atoms - draft.record.old_atoms
                chunks = len(draft.chunks) - atoms
                reports[source] = report_source(source, "unchanged", Tally(unchanged=chunks), Tally(unchanged=atoms))
            else:
                changed.append(draft)
        removed = [source for source in sorted(set(remove)) if source in self._records]
        work = Work(removed=removed)
        if changed or removed or self._info.generation == 0:
            self._begin()
            reports |= self._compare(changed, work, keep_old_chunks=keep_old_chunks, force=force)
            self._work = work
        self._unwritten = set(work.embed)
        return UpdatePlan(
            sources=(*(reports[given.record.source] for given in sources), *map(self._report_removed, removed)),
            to_embed=tuple(item.chunk for item in work.embed.values()),
        )

    def write(self, chunks: Sequence[Chunk], vectors: Matrix) -> None:
        """Store chunks of the plan with their vectors, row by row; safe to repeat.

        Raises:
            ServiceError: the vectors are not finite or have another dimension, or another process took over.
        """
        if self._work is None:
            raise RunError(f"The update of `{self._info.name}` has not planned to write anything.")
        self._require_vectors(vectors, len(chunks))
        self._stop_if_taken_over()
        wanted = [self._work.embed[chunk.source, chunk.id] for chunk in chunks]
        self._writer.put(wanted, vectors, step=self._work.step)
        self._unwritten -= {item.key for item in wanted}

    def plan_graph(self, *, neighbour_min_score: float | None = None) -> tuple[GraphRecord, ...]:
        """Work out what the knowledge graph becomes, once every chunk is written; returns the texts to embed for it."""
        if self._work is None:
            return ()
        if self._unwritten:
            raise RunError(
                f"{len(self._unwritten)} chunks of `{self._info.name}` have not been written; write them first."
            )
        self._neighbour_min_score = neighbour_min_score
        self._writer.finish(self._work, self._records_after(self._work), average_length=self._info.average_length)
        self._graph_update = GraphUpdate(
            self._graph,
            committed=self._info.generation,
            embedder=self._embedder.identity,
            dimension=self._info.dimension,
        )
        return self._graph_update.plan(self._writer.changed_graphs(), force=self._force)

    def write_graph(self, records: Sequence[GraphRecord], vectors: Matrix) -> None:
        """Store records of the graph with their vectors, row by row; safe to repeat.

        Raises:
            ServiceError: the vectors are not finite or have another dimension, or another process took over.
        """
        if self._graph_update is None:
            raise RunError(f"The update of `{self._info.name}` has not planned its knowledge graph.")
        self._require_vectors(vectors, len(records))
        self._stop_if_taken_over()
        self._graph_update.write(records, vectors)

    def commit(self) -> int:
        """Make the update visible and clean up after it; returns the committed generation."""
        if self._work is None:
            if self._must_recover:
                self._roll_back_killed()
            return self._info.generation
        if self._graph_update is None:
            self.plan_graph(neighbour_min_score=self._neighbour_min_score)
        self._finish_graph()
        after = self._records_after(self._work)
        self._store.flush()
        self._stop_if_taken_over()
        self._write_info(
            generation=self._next,
            average_length=average_at(self._work.step),
            documents=len(after),
            chunks=sum(len(record.chunk_ids) for record in after),
            atoms=sum(record.atoms for record in after),
            entities=self._graph.count("entity", generation=self._next),
            facts=self._graph.count("fact", generation=self._next),
            reports=self._graph.count("report", generation=self._next),
            neighbour_min_score=self._neighbour_min_score,
        )
        # Committed: everything from here on is clean-up, which the next update would finish as well.
        self._writer.delete_replaced(self._next)
        self._graph.delete_retired(self._next)
        self._end()
        return self._next

    def _begin(self) -> None:
        """Announce the update, then bring what a killed one left into a known state."""
        if not self._is_stored:
            self._store.drop()  # a collection without an info record was killed while it was being created
            self._graph.drop()
            self._store.create(self._info.dimension)
        self._write_info(updating=True, update_id=self._id)
        if self._must_recover:
            self._recover()
            self._killed = self._writer.killed_chunks()

    def _roll_back_killed(self) -> None:
        """Remove a killed update of which nothing is wanted, or finish the clean-up of a committed one."""
        self._recover()
        self._writer.delete_killed_chunks()
        delete_all_written(self._graph, self._next)
        self._end()

    def _recover(self) -> None:
        """Finish the clean-up of a committed update; take the marks of a killed one back."""
        self._writer.recover()
        self._graph.delete_retired(self._info.generation)
        self._graph.take_back(self._next)

    def _finish_graph(self) -> None:
        if self._graph_update is not None:
            another_limit = self._neighbour_min_score != self._info.neighbour_min_score
            self._graph_update.finish(min_score=self._neighbour_min_score, anew=another_limit)

    def _require_vectors(self, vectors: Matrix, count: int) -> None:
        import numpy as np

        if vectors.shape != (count, self._info.dimension) or not np.isfinite(vectors).all():
            raise ServiceError(
                f"The embedder `{self._embedder.identity}` returned an array of shape {vectors.shape} for {count} "
                f"texts; finite vectors of dimension {self._info.dimension} are needed.",
                kind="invalid_output",
            )

    def _end(self) -> None:
        # Flushed before and not after: until the flush an engine that is killed counts deleted points among the
        # document frequencies when it is opened again, and only readers who see `updating` take care of that.
        self._store.flush()
        self._write_info(updating=False, update_id="")

    def _write_info(self, **changes: object) -> None:
        self._info = self._info.model_copy(update=changes)
        write_info(self._store, self._info)

    def _compare(
        self, changed: Sequence[SourceDraft], work: Work, *, keep_old_chunks: bool, force: bool
    ) -> dict[str, SourceReport]:
        before = self._writer.stored_chunks(
            draft.record.source for draft in changed if draft.record.source in self._records
        )
        counted = [
            count_tokens(
                draft,
                before.get(draft.record.source, {}),
                self._killed,
                self._sparse.count_tokens,
                generation=self._next,
                keep_old_chunks=keep_old_chunks,
            )
            for draft in changed
        ]
        work.records = [draft.record for draft in counted]
        after = self._records_after(work)
        work.step = average_step(sum(r.tokens for r in after), sum(len(r.chunk_ids) for r in after))
        donors = {} if force else self._donors(counted, before)
        reports = {}
        for draft in counted:
            source = draft.record.source
            known = before.get(source, {})
            chunks, atoms = compare(
                draft.chunks, known, self._killed, donors, work, keep_old_chunks=keep_old_chunks, force=force
            )
            status: Literal["added", "updated"] = "updated" if source in self._records else "added"
            reports[source] = report_source(source, status, chunks, atoms)
        return reports

    def _donors(
        self, drafts: Sequence[SourceDraft], before: Mapping[str, Mapping[ChunkKey, StoredChunk]]
    ) -> dict[str, str]:
        """Find vectors of texts that have moved: the same text under another source, id or heading."""
        wanted: set[str] = set()
        for draft in drafts:
            wanted |= hashes_without_vector(draft.chunks, before.get(draft.record.source, {}), self._killed)
        return self._writer.donors(sorted(wanted))

    def _report_removed(self, source: str) -> SourceReport:
        record = self._records[source]
        return report_source(source, "deleted", Tally(deleted=len(record.chunk_ids)), Tally(deleted=record.atoms))

    def _records_after(self, work: Work) -> list[DocumentRecord]:
        after = {**self._records, **{record.source: record for record in work.records}}
        for source in work.removed:
            del after[source]
        return list(after.values())

    def _stop_if_taken_over(self) -> None:
        found = read_info(self._store)
        if found is None or found.update_id != self._id:
            raise ServiceError(
                f"The knowledge base `{self._info.name}` was deleted, or its update taken over, by another process; "
                "nothing of this update was committed. Make sure that one ingestion runs at a time.",
                kind="failed",
            )


def _update_lock(store: Store) -> threading.Lock:
    if store.shared is not None:
        return store.shared.update_lock
    with _server_locks_guard:
        return _server_locks.setdefault(store.location, threading.Lock())


def _is_filled_by(info: KnowledgeBaseInfo, embedder: Embedder, sparse: SparseEncoder) -> bool:
    mine = (embedder.identity, embedder.dimension, sparse.identity)
    return (info.embedder, info.dimension, info.sparse) == mine


def _require_same_models(info: KnowledgeBaseInfo, embedder: Embedder, sparse: SparseEncoder) -> None:
    pairs = (
        ("embedder", info.embedder, embedder.identity),
        ("sparse encoder", info.sparse, sparse.identity),
        ("dimension", str(info.dimension), str(embedder.dimension)),
    )
    for what, filled_by, given in pairs:
        if filled_by != given:
            raise SettingsError(
                f"The knowledge base `{info.name}` was filled with the {what} `{filled_by}`, "
                f"and this update brings `{given}`.",
                hint=f"Use `{filled_by}` again, ingest into a knowledge base of another name, or drop this one first.",
            )
