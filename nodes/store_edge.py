"""Qdrant's own engine in this process (`qdrant-edge-py`), on disk: a `Store` without a server.

What was measured of its durability (`tests/contract/test_durability.py` repeats it): every operation goes to a
write-ahead log first, so everything that returned survives `kill -9`; `flush` adds the loss of power.

The engine finds nearest vectors exactly, without a graph index: 21 CPU-ms a query at 100,000 points, and an update is
searchable at once.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragbraid.nodes.store import (
    CHUNKS,
    DENSE,
    INDEXED_INTEGERS,
    INDEXED_KEYWORDS,
    PAGE,
    SPARSE,
    WRITE_BATCH,
    Payload,
    Point,
    ScoredPoint,
    SharedState,
    Test,
    Tests,
    is_exact_number,
    payload_path,
    settle_ties,
)
from ragbraid.registry.errors import ServiceError
from ragbraid.registry.resources import Scalar, SparseVector

if TYPE_CHECKING:
    import numpy as np
    import qdrant_edge
    from numpy.typing import NDArray

_CONFIG_FILE = "edge_config.json"
_NO_GRAPH_INDEX_KB = 2**40


class _Engine:
    """The one open shard of a folder in this process, shared by every handle on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.handles = 0
        self.lock = threading.RLock()
        self.shared = SharedState()
        self.shard: qdrant_edge.EdgeShard | None = None
        self.stale_frequencies = False
        """Whether points were deleted or reweighted since loading: the engine then still counts the old ones."""


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

    def create(self, dimension: int) -> None:
        """Create the collection; does nothing where it exists."""
        import qdrant_edge as edge

        with self._engine.lock:
            if self.exists():
                return
            with self._plain_errors():
                self._root.mkdir(parents=True, exist_ok=True)
                # Made beside and moved, so that a killed process leaves no half-made collection under the name.
                draft = self._root / f".{self._folder.name}.{uuid.uuid4().hex}"
                shard = edge.EdgeShard.create(str(draft), _configuration(dimension))
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
                shard.close()
                grave = self._root / f".{self._folder.name}.{uuid.uuid4().hex}"
                self._folder.rename(grave)
                shutil.rmtree(grave)
            self._engine.shared.info = None

    def upsert(self, points: Sequence[Point]) -> None:
        """Write points, each replacing the point of the same id as a whole."""
        import qdrant_edge as edge

        for start in range(0, len(points), WRITE_BATCH):
            batch = [_to_engine(point) for point in points[start : start + WRITE_BATCH]]
            self._update(edge.UpdateOperation.upsert_points(batch))

    def patch(self, payload: Payload, *, ids: Sequence[str] | None = None, where: Tests | None = None) -> None:
        """Set these top-level payload keys."""
        import qdrant_edge as edge

        if ids is not None:
            self._update(edge.UpdateOperation.set_payload(list(ids), payload))
        if where is not None:
            self._update(edge.UpdateOperation.set_payload_by_filter(_filter(where), payload))

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
        self._engine.stale_frequencies = True

    def delete(self, *, ids: Sequence[str] | None = None, where: Tests | None = None) -> None:
        """Delete the points of `ids` or those that `where` finds."""
        import qdrant_edge as edge

        if ids is not None:
            self._update(edge.UpdateOperation.delete_points(list(ids)))
        if where is not None:
            self._update(edge.UpdateOperation.delete_points_by_filter(_filter(where)))
        self._engine.stale_frequencies = True

    def get(self, ids: Sequence[str], *, with_vectors: bool = False) -> list[Point]:
        """Return the points of these ids that exist, in the order asked for."""
        with self._plain_errors():
            records = self._shard().retrieve(list(ids), with_payload=True, with_vector=with_vectors)
        found = {str(record.id): _from_engine(record) for record in records}
        return [found[id_] for id_ in ids if id_ in found]

    def scroll(self, where: Tests, *, with_vectors: bool = False, page: int = PAGE) -> Iterator[Point]:
        """Yield the points that `where` finds, in order of id."""
        import qdrant_edge as edge

        offset = None
        while True:
            request = edge.ScrollRequest(
                offset=offset, limit=page, filter=_filter(where), with_payload=True, with_vector=with_vectors
            )
            with self._plain_errors():
                records, offset = self._shard().scroll(request)
            yield from map(_from_engine, records)
            if offset is None:
                return

    def count(self, where: Tests) -> int:
        """Return exactly how many points `where` finds."""
        import qdrant_edge as edge

        with self._plain_errors():
            return int(self._shard().count(edge.CountRequest(exact=True, filter=_filter(where))))

    def search_dense(self, vector: NDArray[np.float32], limit: int, where: Tests) -> list[ScoredPoint]:
        """Return the nearest points by cosine, best first."""
        import qdrant_edge as edge

        return self._search(edge.Query.Nearest(vector.tolist(), using=DENSE), limit, where, None)

    def search_sparse(
        self, vector: SparseVector, limit: int, where: Tests, *, corpus: Tests = CHUNKS
    ) -> list[ScoredPoint]:
        """Return the points with the greatest weighted dot product, best first."""
        import qdrant_edge as edge

        if not vector.indices:
            return []
        terms = edge.SparseVector(list(vector.indices), list(vector.values))
        params = None
        if corpus is not CHUNKS or self._engine.stale_frequencies:
            params = edge.SearchParams(idf=edge.IdfParams(corpus=_filter(corpus)))
        return self._search(edge.Query.Nearest(terms, using=SPARSE), limit, where, params)

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
                shard.close()

    def _load(self) -> None:
        import qdrant_edge as edge

        with self._engine.lock:
            if self._engine.shard is None and self._folder.exists():
                with self._plain_errors():
                    self._engine.shard = edge.EdgeShard.load(str(self._folder))
                self._engine.stale_frequencies = False

    def _shard(self) -> qdrant_edge.EdgeShard:
        shard = self._engine.shard
        if shard is None:
            raise ServiceError(f"the knowledge base in {self._folder} has been closed or does not exist", kind="failed")
        return shard

    def _update(self, operation: qdrant_edge.UpdateOperation) -> None:
        with self._plain_errors():
            self._shard().update(operation)

    def _search(self, query: Any, limit: int, where: Tests, params: Any) -> list[ScoredPoint]:
        import qdrant_edge as edge

        tests = _filter(where) if where else None

        def fetch(count: int) -> list[ScoredPoint]:
            request = edge.QueryRequest(limit=count, query=query, filter=tests, with_payload=True, params=params)
            with self._plain_errors():
                found = self._shard().query(request)
            return [ScoredPoint(str(point.id), point.score, point.payload or {}) for point in found]

        return settle_ties(fetch, limit)

    @contextlib.contextmanager
    def _plain_errors(self) -> Iterator[None]:
        """Turn what the engine and the file system raise into sentences."""
        try:
            yield
        except ServiceError:
            raise
        except Exception as error:  # the engine raises bare Exception for everything
            raise ServiceError(_sentence(error, self._folder), kind="failed") from error
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # what a panic of the engine raises is no Exception
                raise
            raise ServiceError(_sentence(error, self._folder), kind="failed") from None


def _configuration(dimension: int) -> qdrant_edge.EdgeConfig:
    import qdrant_edge as edge

    return edge.EdgeConfig(
        vectors={DENSE: edge.EdgeVectorParams(size=dimension, distance=edge.Distance.Cosine)},
        sparse_vectors={SPARSE: edge.EdgeSparseVectorParams(modifier=edge.Modifier.Idf)},
        optimizers=edge.EdgeOptimizersConfig(indexing_threshold=_NO_GRAPH_INDEX_KB),
    )


def _to_engine(point: Point) -> qdrant_edge.Point:
    import qdrant_edge as edge

    vectors: dict[str, Any] = {}
    if point.dense is not None:
        vectors[DENSE] = point.dense.tolist()
    if point.sparse is not None:
        vectors[SPARSE] = edge.SparseVector(list(point.sparse.indices), list(point.sparse.values))
    return edge.Point(point.id, vectors, point.payload)


def _from_engine(record: qdrant_edge.Record) -> Point:
    import numpy as np

    vectors: dict[str, Any] = record.vector if isinstance(record.vector, dict) else {}
    dense = vectors.get(DENSE)
    terms = vectors.get(SPARSE)
    return Point(
        id=str(record.id),
        payload=record.payload or {},
        dense=None if dense is None else np.asarray(dense, dtype=np.float32),
        sparse=None if terms is None else SparseVector(tuple(terms.indices), tuple(terms.values)),
    )


def _filter(tests: Tests) -> qdrant_edge.Filter:
    import qdrant_edge as edge

    return edge.Filter(
        must=[_condition(test) for test in tests.must], must_not=[_condition(test) for test in tests.must_not]
    )


def _condition(test: Test) -> qdrant_edge.Filter:
    """Every part of one test must pass, as a filter of its own."""
    import qdrant_edge as edge

    path = payload_path(test.key)
    must: list[Any] = []
    must_not: list[Any] = []
    if test.equals is not None:
        must.append(_equals(path, test.equals))
    if test.any_of is not None:
        # An empty `should` would match everything, an empty list of ids matches nothing.
        accepted = [_equals(path, value) for value in test.any_of]
        must.append(edge.Filter(should=accepted) if accepted else edge.HasIdCondition(set()))
    if any(bound is not None for bound in (test.gte, test.lte, test.lt, test.gt)):
        bounds = edge.RangeFloat(gte=test.gte, gt=test.gt, lte=test.lte, lt=test.lt)
        must.append(edge.FieldCondition(path, range=bounds))
    if test.exists is not None:
        (must_not if test.exists else must).append(edge.IsEmptyCondition(path))
    return edge.Filter(must=must, must_not=must_not)


def _equals(path: str, value: Scalar) -> qdrant_edge.FieldCondition:
    import numpy as np
    import qdrant_edge as edge

    if is_exact_number(value):
        number = float(value)
        return edge.FieldCondition(path, range=edge.RangeFloat(gte=number, lte=number))
    # The engine takes a Python bool for the integers 0 and 1, and NumPy's for a boolean.
    exact = np.bool_(value) if isinstance(value, bool) else value
    return edge.FieldCondition(path, match=edge.MatchValue(exact))


def _sentence(error: BaseException, folder: Path) -> str:
    text = str(error)
    if "Can't init WAL" in text and "WouldBlock" in text:
        return (
            f"knowledge base {folder} is open in another process; close it there, or share one between processes "
            "with qdrant.server"
        )
    if isinstance(error, PermissionError) or "Permission denied" in text:
        return f"no permission to read or write knowledge base {folder}; check the owner and mode of the folder"
    if "No space left" in text or "os error 28" in text or getattr(error, "errno", None) == 28:
        return f"the disk is full: knowledge base {folder} could not be written; free some space and run again"
    if "Read-only file system" in text:
        return f"knowledge base {folder} is on a read-only file system"
    if "dimension error" in text or "No point with id" in text:
        return f"knowledge base {folder}: {text}"
    return f"knowledge base {folder} cannot be read: its files are damaged or not Qdrant's ({_first_line(text)})"


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:200] if text.strip() else "no reason given"
