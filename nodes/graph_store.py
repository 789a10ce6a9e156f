"""The knowledge graph in a Qdrant collection of its own beside the chunks, over the same `Store` as these.

Of its own, because its points have one vector where chunks have room for three, and a knowledge base without a graph
pays nothing for it. Payload of a point: kind, key, body, text, embed_hash, gen_from, gen_to, as in `GraphRecord`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ragbraid.nodes.batches import batches
from ragbraid.nodes.store import DENSE, FOREVER, Point, Store, Test, Tests, point_id, visible_at
from ragbraid.registry.graph_store import GraphRecord, RecordKind, StoredRecord

if TYPE_CHECKING:
    from ragbraid.registry.resources import Matrix, Vector

SUFFIX = ".graph"
"""Ends the name of the collection that holds the graph of a knowledge base."""
_PAGE = 4096


class QdrantGraphStore:
    """The `GraphStore` of every Qdrant engine; see `ragbraid.registry.graph_store.GraphStore`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def location(self) -> str:
        """Where its collection is."""
        return self._store.location

    def exists(self) -> bool:
        """Whether its collection has been created."""
        return self._store.exists()

    def create(self, dimension: int) -> None:
        """Create the collection; does nothing where it exists."""
        self._store.create(dimension, vectors=(DENSE,))

    def put(self, records: Sequence[GraphRecord], vectors: Matrix | None, *, generation: int) -> None:
        """Write records of a generation, each in the place of what that generation has under its kind and key."""
        rows: Iterable[Vector | None] = [None] * len(records) if vectors is None else vectors
        self._store.upsert(
            [
                Point(_id(record.kind, record.key, generation), _payload(record, generation), dense=vector)
                for record, vector in zip(records, rows, strict=True)
            ]
        )

    def retire(self, kind: RecordKind, keys: Collection[str], *, generation: int) -> None:
        """Mark what earlier generations wrote under these keys as invisible from this generation on."""
        earlier = Tests(must=(_of_kind(kind), Test("gen_from", lt=generation), Test("gen_to", equals=FOREVER)))
        for batch in batches(sorted(keys)):
            self._store.patch({"gen_to": generation}, where=earlier & _of_keys(batch))

    def read(
        self,
        kind: RecordKind,
        *,
        generation: int,
        keys: Collection[str] | None = None,
        with_vectors: bool = False,
    ) -> Iterator[StoredRecord]:
        """Yield the records that a reader of a generation sees: those of these keys, or all."""
        if not self.exists():
            return
        which = Tests(must=(_of_kind(kind),)) & visible_at(generation)
        wanted = [which] if keys is None else [which & _of_keys(batch) for batch in batches(sorted(keys))]
        for tests in wanted:
            yield from map(_read, self._store.scroll(tests, with_vectors=with_vectors, page=_PAGE))

    def written(self, generation: int, *, with_vectors: bool = False) -> Iterator[StoredRecord]:
        """Yield what was written by a generation, of every kind."""
        if self.exists():
            by_it = Tests(must=(Test("gen_from", equals=generation),))
            yield from map(_read, self._store.scroll(by_it, with_vectors=with_vectors, page=_PAGE))

    def nearest(self, kind: RecordKind, vector: Vector, limit: int, *, generation: int) -> list[tuple[str, float]]:
        """Return the keys of the nearest records with their cosines, best first, equal ones in the order of keys."""
        which = Tests(must=(_of_kind(kind),)) & visible_at(generation)
        found = self._store.search_dense(vector, limit, which)
        pairs = [(payload["key"], score) for payload, score in zip(found.payloads, found.scores, strict=True)]
        return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))

    def count(self, kind: RecordKind, *, generation: int) -> int:
        """Return how many records of a kind a reader of a generation sees."""
        which = Tests(must=(_of_kind(kind),)) & visible_at(generation)
        return self._store.count(which) if self.exists() else 0

    def delete_written(self, kind: RecordKind, keys: Collection[str], *, generation: int) -> None:
        """Delete what a generation wrote under these keys."""
        for batch in batches(sorted(keys)):
            self._store.delete(ids=[_id(kind, key, generation) for key in batch])

    def take_back(self, generation: int) -> None:
        """Take back the marks that `retire` made for this generation."""
        if self.exists():
            marked = Tests(must=(Test("gen_to", equals=generation), Test("gen_from", lt=generation)))
            self._store.patch({"gen_to": FOREVER}, where=marked)

    def delete_retired(self, generation: int) -> None:
        """Delete what is invisible from this generation on."""
        if self.exists():
            self._store.delete(where=Tests(must=(Test("gen_to", lte=generation),)))

    def flush(self) -> None:
        """Make everything written so far survive a loss of power."""
        if self.exists():
            self._store.flush()

    def drop(self) -> None:
        """Delete the collection; does nothing where there is none."""
        if self.exists():
            self._store.drop()

    def close(self) -> None:
        """Release files and connections."""
        self._store.close()


def _id(kind: RecordKind, key: str, generation: int) -> str:
    return point_id(kind, key, generation)


def _of_kind(kind: RecordKind) -> Test:
    return Test("kind", equals=kind)


def _of_keys(keys: Sequence[str]) -> Tests:
    return Tests(must=(Test("key", any_of=tuple(keys)),))


def _payload(record: GraphRecord, generation: int) -> dict[str, object]:
    return {
        "kind": record.kind,
        "key": record.key,
        "body": record.body,
        "text": record.text,
        "embed_hash": record.embed_hash,
        "gen_from": generation,
        "gen_to": FOREVER,
    }


def _read(point: Point) -> StoredRecord:
    payload = point.payload
    record = GraphRecord(
        kind=payload["kind"],
        key=payload["key"],
        body=payload["body"],
        text=payload["text"],
        embed_hash=payload["embed_hash"],
    )
    return StoredRecord(record, point.dense)
