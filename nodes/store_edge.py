"""Qdrant's own engine in this process (`qdrant-edge-py`), on disk: a `Store` without a server.

What was measured of its durability (`tests/contract/test_store_failures.py` repeats it): every operation goes to a
write-ahead log first, so everything that returned survives `kill -9`; `flush` adds the loss of power.

The engine finds nearest vectors exactly, without a graph index: 21 CPU-ms a query at 100,000 points, and an update is
searchable at once.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
import uuid
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragbraid.nodes.store import (
    CHUNKS,
    DENSE,
    INDEXED_INTEGERS,
    INDEXED_KEYWORDS,
    PAGE,
    SPARSE,
    VECTORS,
    WRITE_BATCH,
    Payload,
    Point,
    SharedState,
    Tests,
)
from ragbraid.nodes.store_damage import damaged, names_in
from ragbraid.nodes.store_edge_values import configuration, from_engine, to_engine, to_filter
from ragbraid.nodes.store_found import NOTHING_FOUND, Found, settle_ties
from ragbraid.registry.errors import ServiceError
from ragbraid.registry.resources import SparseVector

if TYPE_CHECKING:
    import numpy as np
    import qdrant_edge
    from numpy.typing import NDArray

_CONFIG_FILE = "edge_config.json"
_OWN_ENTRIES = {_CONFIG_FILE, "segments", "wal"}
"""All that the engine keeps in a folder; one that holds anything else may be somebody's own, and is never deleted."""
MIN_FREE_BYTES = 128 * 2**20
"""Free room that a write asks for: the engine maps files into memory, and on a full disk the system kills the process."""


class _Engine:
    """The one open shard of a folder in this process, shared by every handle on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.handles = 0
        self.lock = threading.RLock()
        self.shared = SharedState()
        self.shard: qdrant_edge.EdgeShard | None = None


CLOSE_SECONDS = 30.0
"""How long closing waits for calls that other threads have under way."""

_engines: dict[Path, _Engine] = {}
_engines_lock = threading.Lock()


class EdgeStore:
    """A `Store` over the folder `path/name`. Handles on one folder share one engine, the last `close` releases it."""

    def __init__(self, path: str | os.PathLike[str], name: str) -> None:
        self._root = Path(path).expanduser().resolve()
        self._folder = self._root / name
        with _engines_lock:
            self._engine = _engines.setdefault(self._folder, _Engine(self._folder))
            self._engine.handles += 1
        self._open = True
        try:
            self._load()
        except BaseException:
            self.close()
            raise

    @property
    def location(self) -> str:
        """The folder."""
        return str(self._folder)

    @property
    def shared(self) -> SharedState:
        """What the handles on this folder share."""
        return self._engine.shared

    def exists(self) -> bool:
        """Whether the folder holds a collection."""
        return self._engine.shard is not None

    def siblings(self) -> list[str]:
        """Return the sorted names of all collections in the same folder."""
        return sorted(config.parent.name for config in self._root.glob(f"*/{_CONFIG_FILE}"))

    def create(self, dimension: int, *, vectors: Sequence[str] = VECTORS) -> None:
        """Create the collection; does nothing where it exists."""
        import qdrant_edge as edge

        with self._engine.lock:
            if self.exists():
                return
            with self._plain_errors():
                self._root.mkdir(parents=True, exist_ok=True)
                self._require_room()
                # Made beside and moved, so that a killed process leaves no half-made collection under the name.
                draft = self._root / f".{self._folder.name}.{uuid.uuid4().hex}"
                shard = edge.EdgeShard.create(str(draft), configuration(dimension, vectors))
                for key in INDEXED_KEYWORDS:
                    index = edge.UpdateOperation.create_field_index(key, edge.PayloadSchemaType.Keyword)
                    shard.update(index)
                for key in INDEXED_INTEGERS:
                    index = edge.UpdateOperation.create_field_index(key, edge.PayloadSchemaType.Integer)
                    shard.update(index)
                shard.flush()
                shard.close()
                draft.rename(self._folder)
            self._load()

    def drop(self) -> None:
        """Delete the collection with its folder."""
        with self._engine.lock:
            shard, self._engine.shard = self._engine.shard, None
            if shard is None:
                return
            with self._plain_errors():
                _close(shard)
                grave = self._root / f".{self._folder.name}.{uuid.uuid4().hex}"
                self._folder.rename(grave)
                shutil.rmtree(grave)
            self._engine.shared.info = None

    def upsert(self, points: Sequence[Point]) -> None:
        """Write points, each replacing the point of the same id as a whole."""
        import qdrant_edge as edge

        for start in range(0, len(points), WRITE_BATCH):
            batch = [to_engine(point) for point in points[start : start + WRITE_BATCH]]
            self._update(edge.UpdateOperation.upsert_points(batch))

    def patch(self, payload: Payload, *, ids: Sequence[str] | None = None, where: Tests | None = None) -> None:
        """Set these top-level payload keys."""
        import qdrant_edge as edge

        if ids is not None:
            self._update(edge.UpdateOperation.set_payload(list(ids), payload))
        if where is not None:
            self._update(edge.UpdateOperation.set_payload_by_filter(to_filter(where), payload))

    def set_sparse(self, items: Mapping[str, SparseVector]) -> None:
        """Replace the sparse vectors of existing points."""
        import qdrant_edge as edge

        pairs = list(items.items())
        for start in range(0, len(pairs), WRITE_BATCH):
            batch = [
                edge.PointVectors(id_, {SPARSE: edge.SparseVector(list(vector.indices), list(vector.values))})
                for id_, vector in pairs[start : start + WRITE_BATCH]
            ]
            self._update(edge.UpdateOperation.update_vectors(batch))

    def delete(self, *, ids: Sequence[str] | None = None, where: Tests | None = None) -> None:
        """Delete the points of `ids` or those that `where` finds.

        Their term vectors are emptied first: of a point that is deleted as it is the engine goes on counting the terms,
        and every inverse document frequency would be off until the collection is opened anew.
        """
        import qdrant_edge as edge

        filters = [edge.Filter(must=[edge.HasIdCondition(set(ids))])] if ids else []
        if where is not None:
            filters.append(to_filter(where))
        for tests in filters:
            self._empty_terms(tests)
            self._update(edge.UpdateOperation.delete_points_by_filter(tests))

    def get(self, ids: Sequence[str], *, with_vectors: bool = False) -> list[Point]:
        """Return the points of these ids that exist, in the order asked for."""
        with self._plain_errors():
            records = self._shard().retrieve(list(ids), with_payload=True, with_vector=with_vectors)
        found = {point.id: point for point in map(from_engine, records)}
        return [found[id_] for id_ in ids if id_ in found]

    def payloads(self, ids: Sequence[Any]) -> dict[Hashable, Payload]:
        """Return the payloads of the points that exist of these ids."""
        with self._plain_errors():
            records: list[Any] = self._shard().retrieve(list(ids), with_payload=True, with_vector=False)
        if len(records) == len(ids) and _begin_and_end(records, ids):
            return {id_.int: record.payload or {} for id_, record in zip(ids, records, strict=True)}
        return {record.id.int: record.payload or {} for record in records}

    def scroll(self, where: Tests, *, with_vectors: bool = False, page: int = PAGE) -> Iterator[Point]:
        """Yield the points that `where` finds, in order of id."""
        import qdrant_edge as edge

        offset = None
        while True:
            request = edge.ScrollRequest(
                offset=offset, limit=page, filter=to_filter(where), with_payload=True, with_vector=with_vectors
            )
            with self._plain_errors():
                records, offset = self._shard().scroll(request)
            yield from map(from_engine, records)
            if offset is None:
                return

    def count(self, where: Tests) -> int:
        """Return exactly how many points `where` finds."""
        import qdrant_edge as edge

        with self._plain_errors():
            return int(self._shard().count(edge.CountRequest(exact=True, filter=to_filter(where))))

    def search_dense(
        self, vector: NDArray[np.float32], limit: int, where: Tests, *, using: str = DENSE, with_payload: bool = True
    ) -> Found:
        """Return the nearest points by cosine, best first."""
        import qdrant_edge as edge

        return self._search(edge.Query.Nearest(vector.tolist(), using=using), limit, where, None, with_payload)

    def search_sparse(
        self, vector: SparseVector, limit: int, where: Tests, *, corpus: Tests = CHUNKS, with_payload: bool = True
    ) -> Found:
        """Return the points with the greatest weighted dot product, best first."""
        import qdrant_edge as edge

        if not vector.indices:
            return NOTHING_FOUND
        terms = edge.SparseVector(list(vector.indices), list(vector.values))
        params = None
        if corpus is not CHUNKS:
            params = edge.SearchParams(idf=edge.IdfParams(corpus=to_filter(corpus)))
        return self._search(edge.Query.Nearest(terms, using=SPARSE), limit, where, params, with_payload)

    def flush(self) -> None:
        """Make everything written so far survive a loss of power, and give the room of deleted points back."""
        with self._plain_errors():
            shard = self._shard()
            shard.flush()
            shard.optimize()

    def close(self) -> None:
        """Release this handle; the last handle closes the engine."""
        with _engines_lock:
            if not self._open:
                return
            self._open = False
            self._engine.handles -= 1
            if self._engine.handles:
                return
            _engines.pop(self._folder, None)
            shard, self._engine.shard = self._engine.shard, None
        if shard is not None:
            with self._plain_errors():
                _close(shard)

    def _load(self) -> None:
        import qdrant_edge as edge

        with self._engine.lock:
            if self._engine.shard is None and self._folder.exists():
                with self._plain_errors():
                    self._engine.shard = edge.EdgeShard.load(str(self._folder))

    def _shard(self) -> qdrant_edge.EdgeShard:
        shard = self._engine.shard
        if shard is None:
            raise _closed(self._folder)
        return shard

    def _update(self, operation: qdrant_edge.UpdateOperation) -> None:
        self._require_room()
        with self._plain_errors():
            self._shard().update(operation)

    def _empty_terms(self, tests: qdrant_edge.Filter) -> None:
        import qdrant_edge as edge

        with_terms = edge.Filter(must=[tests, edge.HasVectorCondition(SPARSE)])
        nothing = edge.SparseVector([], [])
        offset = None
        while True:
            request = edge.ScrollRequest(
                offset=offset, limit=PAGE, filter=with_terms, with_payload=False, with_vector=False
            )
            with self._plain_errors():
                records, offset = self._shard().scroll(request)
            emptied = [edge.PointVectors(record.id, {SPARSE: nothing}) for record in records]
            self._update(edge.UpdateOperation.update_vectors(emptied))
            if offset is None:
                return

    def _require_room(self) -> None:
        free = shutil.disk_usage(self._root).free
        if free < MIN_FREE_BYTES:
            raise ServiceError(
                f"the disk is full: knowledge base {self._folder} needs {MIN_FREE_BYTES >> 20} MB of free room to "
                f"write safely, and {free >> 20} MB are left; free some space and run again",
                kind="failed",
            )

    def _search(self, query: Any, limit: int, where: Tests, params: Any, with_payload: bool) -> Found:
        import qdrant_edge as edge

        tests = to_filter(where) if where else None

        def fetch(count: int) -> Found:
            request = edge.QueryRequest(
                limit=count, query=query, filter=tests, with_payload=with_payload, params=params
            )
            with self._plain_errors():
                points: list[Any] = self._shard().query(request)
            ids = [point.id for point in points]
            scores = [point.score for point in points]
            payloads = [point.payload or {} for point in points] if with_payload else ()
            return Found(ids, [id_.int for id_ in ids], scores, payloads)

        return settle_ties(fetch, limit)

    @contextlib.contextmanager
    def _plain_errors(self) -> Iterator[None]:
        """Turn what the engine and the file system raise into sentences."""
        try:
            yield
        except ServiceError:
            raise
        except Exception as error:  # the engine raises bare Exception for everything
            raise _failure(error, self._folder) from error
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # what a panic of the engine raises is no Exception
                raise
            raise _failure(error, self._folder) from None


def _close(shard: qdrant_edge.EdgeShard) -> None:
    """Close a shard that nobody can find any more, as soon as the last call on it has returned.

    A step that was given up goes on in its thread until it notices, and the engine refuses to close meanwhile.
    """
    deadline = time.monotonic() + CLOSE_SECONDS
    while True:
        try:
            shard.close()
            return
        except RuntimeError as error:
            if "borrowed" not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _begin_and_end(records: Sequence[Any], ids: Sequence[Any]) -> bool:
    """Whether the first and the last record are those of the first and the last id.

    The engine answers in the order asked for, and to read the id of a record takes half as long as to read its payload.
    An engine that did otherwise would be found out here.
    """
    return not ids or (records[0].id == ids[0] and records[-1].id == ids[-1])


def _closed(folder: Path) -> ServiceError:
    return ServiceError(f"the knowledge base in {folder} has been closed or does not exist", kind="failed")


def _failure(error: BaseException, folder: Path) -> ServiceError:
    text = str(error)
    lower = text.lower()
    place = f"knowledge base {folder}"
    if "can't init wal" in lower and "wouldblock" in lower:
        return ServiceError(
            f"{place} is open in another process; close it there, or share one between processes with qdrant.server",
            kind="unavailable",
        )
    if "shard is not initialized" in lower:  # it was closed between our look and the call
        return _closed(folder)
    if "permission denied" in lower or "read-only file system" in lower:
        sentence = f"no permission to read or write {place}; check the owner and mode of the folder"
    elif "no space left" in lower or "file too large" in lower or "quota exceeded" in lower:
        sentence = f"the disk is full: {place} could not be written; free some space and run again"
    elif "dimension error" in lower or "no point with id" in lower:
        sentence = f"{place}: {text}"
    else:
        names = names_in(folder)
        return damaged(folder, text, is_only_this=bool(names) and names <= _OWN_ENTRIES)
    return ServiceError(sentence, kind="failed")
