"""Qdrant through `qdrant-client`: local mode (a folder or memory, in this process) and a server by URL.

Local mode is not safe between threads (8 threads of 100 upserts left about half of the points and a broken index), so
every call on one folder goes through one lock. A server is safe, and may have other writers.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ragbraid.nodes.store import (
    ATOM,
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
from ragbraid.nodes.store_client_errors import local_sentence, plain_sentence
from ragbraid.nodes.store_client_values import from_client, to_client, to_filter, to_terms
from ragbraid.nodes.store_found import NOTHING_FOUND, Found, settle_ties
from ragbraid.registry.errors import RagbraidError
from ragbraid.registry.resources import SparseVector

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from qdrant_client import QdrantClient, models

MEMORY = ":memory:"


class _LocalClient:
    """The one client of a folder in this process, its lock, and what the handles on its collections share."""

    def __init__(self, path: str) -> None:
        from qdrant_client import QdrantClient

        self.lock = threading.RLock()
        self.handles = 0
        self.states: dict[str, SharedState] = {}
        self.client = QdrantClient(location=MEMORY) if path == MEMORY else QdrantClient(path=path)
        atexit.register(self.client.close)  # or its own finalizer fails noisily at the end of the process

    def close(self) -> None:
        atexit.unregister(self.client.close)
        self.client.close()


_locals: dict[str, _LocalClient] = {}
_locals_lock = threading.Lock()


class ClientStore:
    """A `Store` over one collection of a qdrant-client. Made by `open_local` and `open_server`."""

    def __init__(
        self,
        client: QdrantClient,
        name: str,
        *,
        location: str,
        lock: AbstractContextManager[Any],
        shared: SharedState | None,
        release: Any,
        folder: Path | None = None,
    ) -> None:
        self._client = client
        self._name = name
        self._location = location
        self._lock = lock
        self._shared = shared
        self._release = release
        self._folder = folder
        self._open = True
        self._known_to_exist = False

    @property
    def location(self) -> str:
        """The folder, `:memory:`, or the server's address, and the collection."""
        return self._location

    @property
    def shared(self) -> SharedState | None:
        """What the handles on this collection share; None for a server."""
        return self._shared

    def exists(self) -> bool:
        """Whether the collection has been created."""
        if self._known_to_exist and self._shared is not None:
            return True
        with self._call():
            self._known_to_exist = self._client.collection_exists(self._name)
        return self._known_to_exist

    def siblings(self) -> list[str]:
        """Return the sorted names of all collections at the same place."""
        with self._call():
            return sorted(collection.name for collection in self._client.get_collections().collections)

    def create(self, dimension: int, *, vectors: Sequence[str] = VECTORS) -> None:
        """Create the collection; does nothing where it exists."""
        from qdrant_client import models

        with self._call():
            if self._client.collection_exists(self._name):
                return
            self._client.create_collection(
                self._name,
                vectors_config={
                    name: models.VectorParams(size=dimension, distance=models.Distance.COSINE, on_disk=name == ATOM)
                    for name in vectors
                    if name != SPARSE
                },
                sparse_vectors_config=(
                    {SPARSE: models.SparseVectorParams(modifier=models.Modifier.IDF)} if SPARSE in vectors else None
                ),
            )
            if self._shared is None:  # local mode has no payload indexes and warns about them
                for key in INDEXED_KEYWORDS:
                    self._client.create_payload_index(self._name, key, models.PayloadSchemaType.KEYWORD)
                for key in INDEXED_INTEGERS:
                    self._client.create_payload_index(self._name, key, models.PayloadSchemaType.INTEGER)

    def drop(self) -> None:
        """Delete the collection."""
        with self._call():
            self._client.delete_collection(self._name)
        self._known_to_exist = False
        if self._shared is not None:
            self._shared.info = None

    def upsert(self, points: Sequence[Point]) -> None:
        """Write points, each replacing the point of the same id as a whole."""
        for start in range(0, len(points), WRITE_BATCH):
            batch = [to_client(point) for point in points[start : start + WRITE_BATCH]]
            with self._call():
                self._client.upsert(self._name, batch, wait=True)

    def patch(self, payload: Payload, *, ids: Sequence[str] | None = None, where: Tests | None = None) -> None:
        """Set these top-level payload keys."""
        with self._call():
            if ids:
                self._client.set_payload(self._name, payload, points=list(ids), wait=True)
            if where is not None:
                self._client.set_payload(self._name, payload, points=to_filter(where), wait=True)

    def set_sparse(self, items: Mapping[str, SparseVector]) -> None:
        """Replace the sparse vectors of existing points."""
        from qdrant_client import models

        pairs = list(items.items())
        for start in range(0, len(pairs), WRITE_BATCH):
            batch = [
                models.PointVectors(id=id_, vector={SPARSE: to_terms(vector)})
                for id_, vector in pairs[start : start + WRITE_BATCH]
            ]
            with self._call():
                self._client.update_vectors(self._name, batch, wait=True)

    def delete(self, *, ids: Sequence[str] | None = None, where: Tests | None = None) -> None:
        """Delete the points of `ids` or those that `where` finds."""
        with self._call():
            if ids:
                self._client.delete(self._name, list(ids), wait=True)
            if where is not None:
                self._client.delete(self._name, to_filter(where), wait=True)

    def get(self, ids: Sequence[str], *, with_vectors: bool = False) -> list[Point]:
        """Return the points of these ids that exist, in the order asked for."""
        if not ids:
            return []
        with self._call():
            records = self._client.retrieve(self._name, list(ids), with_payload=True, with_vectors=with_vectors)
        found = {point.id: point for point in map(from_client, records)}
        return [found[id_] for id_ in ids if id_ in found]

    def payloads(self, ids: Sequence[Any]) -> dict[Hashable, Payload]:
        """Return the payloads of the points that exist of these ids."""
        return {_key(point.id): point.payload for point in self.get(ids)}

    def scroll(self, where: Tests, *, with_vectors: bool = False, page: int = PAGE) -> Iterator[Point]:
        """Yield the points that `where` finds, in order of id."""
        offset = None
        while True:
            with self._call():
                records, offset = self._client.scroll(
                    self._name,
                    to_filter(where),
                    limit=page,
                    offset=offset,
                    with_payload=True,
                    with_vectors=with_vectors,
                )
            yield from map(from_client, records)
            if offset is None:
                return

    def count(self, where: Tests) -> int:
        """Return exactly how many points `where` finds."""
        with self._call():
            return self._client.count(self._name, to_filter(where), exact=True).count

    def search_dense(
        self, vector: NDArray[np.float32], limit: int, where: Tests, *, using: str = DENSE, with_payload: bool = True
    ) -> Found:
        """Return the nearest points by cosine, best first."""
        return self._search(vector.tolist(), using, limit, where, None, with_payload)

    def search_sparse(
        self, vector: SparseVector, limit: int, where: Tests, *, corpus: Tests = CHUNKS, with_payload: bool = True
    ) -> Found:
        """Return the points with the greatest weighted dot product, best first."""
        from qdrant_client import models

        if not vector.indices:
            return NOTHING_FOUND
        params = None
        if corpus is not CHUNKS:
            params = models.SearchParams(idf=models.IdfCorpusParams(corpus=to_filter(corpus)))
        return self._search(to_terms(vector), SPARSE, limit, where, params, with_payload)

    def flush(self) -> None:
        """Nothing to do: every write was waited for; local mode commits each to its SQLite file."""

    def close(self) -> None:
        """Release this handle; the last handle on a folder closes the client."""
        if self._open:
            self._open = False
            self._release()

    def _search(
        self, query: Any, using: str, limit: int, where: Tests, params: models.SearchParams | None, with_payload: bool
    ) -> Found:
        tests = to_filter(where) if where else None

        def fetch(count: int) -> Found:
            with self._call():
                found = self._client.query_points(
                    self._name,
                    query=query,
                    using=using,
                    limit=count,
                    query_filter=tests,
                    with_payload=with_payload,
                    search_params=params,
                ).points
            ids = [str(point.id) for point in found]
            scores = [point.score for point in found]
            payloads = [point.payload or {} for point in found] if with_payload else ()
            return Found(ids, [_key(id_) for id_ in ids], scores, payloads)

        return settle_ties(fetch, limit)

    @contextlib.contextmanager
    def _call(self) -> Iterator[None]:
        """Hold the lock of local mode, and turn what the client raises into sentences."""
        try:
            with self._lock:
                yield
        except RagbraidError:
            raise
        except Exception as error:  # the client raises httpx, grpc, numpy, sqlite and its own errors
            if self._folder is not None:
                raise local_sentence(error, self._folder, self._name) from error
            raise plain_sentence(error, self._location) from error


def open_local(path: str | os.PathLike[str], name: str) -> ClientStore:
    """Open a collection of qdrant-client's local mode: a folder, or `:memory:` for one that ends with the handle.

    Raises:
        ServiceError: the folder is open in another process, or cannot be read or written.
    """
    in_memory = str(path) == MEMORY
    key = MEMORY if in_memory else str(Path(path).expanduser().resolve())
    with _locals_lock:
        local = None if in_memory else _locals.get(key)
        if local is None:
            try:
                local = _LocalClient(key)
            except Exception as error:  # portalocker, SQLite and file system errors
                raise local_sentence(error, Path(key), name, opening=True) from error
            if not in_memory:
                _locals[key] = local
        local.handles += 1
        shared = local.states.setdefault(name, SharedState())
    held = local

    def release() -> None:
        with _locals_lock:
            held.handles -= 1
            if held.handles == 0:
                _locals.pop(key, None)
                held.close()

    return ClientStore(
        local.client,
        name,
        location=f"{key} ({name})",
        lock=local.lock,
        shared=shared,
        release=release,
        folder=None if in_memory else Path(key),
    )


def open_server(
    url: str, name: str, *, api_key: str | None = None, prefer_grpc: bool = False, timeout_seconds: int = 30
) -> ClientStore:
    """Open a collection of a Qdrant server; nothing is sent before the first call."""
    from qdrant_client import QdrantClient

    client = QdrantClient(
        url=url, api_key=api_key, prefer_grpc=prefer_grpc, timeout=timeout_seconds, check_compatibility=False
    )
    parts = urlsplit(url)
    address = f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
    return ClientStore(
        client,
        name,
        location=f"{address} ({name})",
        lock=contextlib.nullcontext(),
        shared=None,
        release=client.close,
    )


def _key(id_: str) -> int:
    return int(id_.replace("-", ""), 16)
