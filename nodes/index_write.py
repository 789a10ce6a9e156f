"""The writes of one update of a knowledge base: points of the next generation, marks on those that they replace.

Nothing here is visible to a reader of the committed generation, and every write can be repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ragbraid.nodes.batches import batches
from ragbraid.nodes.graph_update import GraphChanges
from ragbraid.nodes.index_records import (
    ChunkKey,
    StoredChunk,
    WantedChunk,
    Work,
    average_at,
    chunk_point_id,
    record_point_id,
    stored_payload,
)
from ragbraid.nodes.store import (
    ATOM,
    ATOMS,
    CHUNKS,
    CHUNKS_AND_ATOMS,
    DOCUMENTS,
    FOREVER,
    WRITE_BATCH,
    Payload,
    Point,
    Store,
    Test,
    Tests,
    visible_at,
)
from ragbraid.registry.errors import ServiceError
from ragbraid.registry.graph_parts import ChunkGraph
from ragbraid.registry.knowledge import DocumentRecord
from ragbraid.registry.resources import SparseEncoder

if TYPE_CHECKING:
    from ragbraid.nodes.store import Vector
    from ragbraid.registry.resources import Matrix


class UpdateWriter:
    """Reads the committed generation of a store and writes the next one."""

    def __init__(self, store: Store, sparse: SparseEncoder, *, committed: int) -> None:
        self._store = store
        self._sparse = sparse
        self._committed = committed
        self._next = committed + 1
        self._new_ids: set[str] = set()

    # --- reading ---------------------------------------------------------------------------------------------------

    def records(self) -> dict[str, DocumentRecord]:
        """Return the committed record of every source."""
        points = self._store.scroll(DOCUMENTS & visible_at(self._committed))
        records = (DocumentRecord.model_validate(point.payload["record"]) for point in points)
        return {record.source: record for record in records}

    def stored_chunks(self, sources: Iterable[str]) -> dict[str, dict[ChunkKey, StoredChunk]]:
        """Return the committed chunks of these sources, their atoms among them, by source."""
        found: dict[str, dict[ChunkKey, StoredChunk]] = {}
        for batch in batches(sources):
            for point in self._store.scroll(CHUNKS_AND_ATOMS & visible_at(self._committed) & _of_sources(batch)):
                chunk = StoredChunk.from_point(point)
                found.setdefault(chunk.source, {})[chunk.key] = chunk
        return found

    def killed_chunks(self) -> dict[ChunkKey, StoredChunk]:
        """Return what a killed update wrote into the next generation."""
        points = self._store.scroll(CHUNKS_AND_ATOMS & _written_after(self._committed))
        return {chunk.key: chunk for chunk in map(StoredChunk.from_point, points)}

    def changed_graphs(self) -> GraphChanges:
        """Return what chunks contribute to the knowledge graph otherwise than in the committed generation.

        Where chunks of two sources have one id, as those of a moved file can, the first source in order stands for
        both.
        """
        retired = Tests(must=(Test("gen_to", equals=self._next), Test("gen_from", lte=self._committed)))
        gone = self._graphs(retired) if self._committed else {}
        came = self._graphs(_written_after(self._committed))
        same = {place for place, graph in gone.items() if came.get(place) == graph}
        changed = sorted({id_ for _, id_ in (gone.keys() | came.keys()) - same})
        now: dict[ChunkKey, str] = came
        if self._committed:
            now = {}
            for batch in batches(changed):
                now |= self._graphs(visible_at(self._next) & Tests(must=(Test("chunk_id", any_of=tuple(batch)),)))
        return GraphChanges(gone=_by_chunk(gone, changed), came=_by_chunk(now, changed))

    def _graphs(self, which: Tests) -> dict[ChunkKey, str]:
        contributing = CHUNKS & Tests(must=(Test("graph", exists=True),)) & which
        return {
            (point.payload["source"], point.payload["chunk_id"]): point.payload["graph"]
            for point in self._store.scroll(contributing)
        }

    def donors(self, hashes: Iterable[str]) -> dict[str, str]:
        """Return a committed point for each `embed_hash` that some chunk of any source has.

        Committed points only: of what a killed update wrote, this one may write over any part.
        """
        if self._committed == 0:
            return {}
        found: dict[str, str] = {}
        for batch in batches(hashes):
            same_text = Tests(must=(Test("embed_hash", any_of=tuple(batch)),))
            for point in self._store.scroll(CHUNKS_AND_ATOMS & visible_at(self._committed) & same_text):
                found.setdefault(point.payload["embed_hash"], point.id)
        return found

    # --- recovering ------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Finish the clean-up of a committed update; take the marks and records of a killed one back, not its chunks."""
        self.delete_replaced(self._committed)
        marked = Tests(must=(Test("gen_to", equals=self._next), Test("gen_from", lte=self._committed)))
        self._store.patch({"gen_to": FOREVER}, where=marked)
        self._store.delete(where=DOCUMENTS & _written_after(self._committed))

    def delete_killed_chunks(self) -> None:
        """Delete what a killed update wrote into the next generation."""
        self._store.delete(where=CHUNKS_AND_ATOMS & _written_after(self._committed))

    def delete_replaced(self, generation: int) -> None:
        """Delete what readers of a generation and of later ones do not see any more."""
        self._store.delete(where=Tests(must=(Test("gen_to", lte=generation),)))

    # --- writing ---------------------------------------------------------------------------------------------------

    def put(self, wanted: Sequence[WantedChunk], vectors: Matrix | Sequence[Vector], *, step: int) -> None:
        """Write chunks with their vectors."""
        self._put([stored_payload(item, step=step, generation=self._next) for item in wanted], vectors, step)

    def finish(self, work: Work, after: Sequence[DocumentRecord], *, average_length: float) -> None:
        """Write all of `work` that needs no embedder, and check that the next generation is what was planned.

        Args:
            work: the plan; its `embed` has been written.
            after: the records of all sources of the next generation.
            average_length: the one that the committed term weights were computed with.

        Raises:
            ServiceError: the store does not hold what was written to it.
        """
        self._new_ids |= work.adopted
        self._copy(work)
        self._retire(work)
        if average_at(work.step) != average_length:
            self._weight_anew(work.step)
        for records in batches(work.records):
            self._store.upsert([_record_point(record) for record in records])
        self._remove_strays()
        self._check(after)

    def _put(self, payloads: Sequence[Payload], vectors: Matrix | Sequence[Vector], step: int) -> None:
        texts = [_text_to_embed(payload) for payload in payloads if payload["kind"] != ATOM]
        weights = iter(self._sparse.encode_documents(texts, average_length=average_at(step)) if texts else ())
        points = []
        for payload, vector in zip(payloads, vectors, strict=True):
            id_ = chunk_point_id(payload["source"], payload["chunk_id"], self._next)
            terms = None if payload["kind"] == ATOM else next(weights)
            points.append(Point(id_, payload, dense=vector, sparse=terms if terms and terms.indices else None))
        self._store.upsert(points)
        self._new_ids |= {point.id for point in points}

    def _copy(self, work: Work) -> None:
        """Write chunks whose vector is stored already: something else of them has changed, or the text has moved."""
        for batch in batches(work.copy):
            donors = {point.id: point for point in self._store.get([id_ for _, id_ in batch], with_vectors=True)}
            self.put([item for item, _ in batch], [_dense(donors[id_]) for _, id_ in batch], step=work.step)

    def _retire(self, work: Work) -> None:
        if self._committed == 0:
            return
        mark = {"gen_to": self._next}
        committed = Tests(must=(Test("gen_from", lte=self._committed),))
        for ids in batches(work.retire):
            self._store.patch(mark, ids=ids)
        for sources in batches(work.removed):
            self._store.patch(mark, where=committed & _of_sources(sources))
        for sources in batches(record.source for record in work.records):
            self._store.patch(mark, where=DOCUMENTS & committed & _of_sources(sources))

    def _weight_anew(self, step: int) -> None:
        """Write every staying chunk again with term weights for the new average length.

        Written beside and not over the old ones, so that readers never mix weights of two averages.
        """
        staying = Tests(
            must=(Test("gen_from", lte=self._committed), Test("gen_to", equals=FOREVER)),
            must_not=(Test("average_step", equals=step),),
        )
        for batch in batches(self._store.scroll(CHUNKS & staying, with_vectors=True, page=WRITE_BATCH)):
            payloads = [{**point.payload, "average_step": step, "gen_from": self._next} for point in batch]
            self._put(payloads, [_dense(point) for point in batch], step)
            self._store.patch({"gen_to": self._next}, ids=[point.id for point in batch])

    def _remove_strays(self) -> None:
        """Delete what killed or overtaken updates wrote into the next generation and this one does not want."""
        written = CHUNKS_AND_ATOMS & _written_after(self._committed)
        if self._store.count(written) > len(self._new_ids):
            strays = [point.id for point in self._store.scroll(written) if point.id not in self._new_ids]
            for ids in batches(strays):
                self._store.delete(ids=ids)

    def _check(self, after: Sequence[DocumentRecord]) -> None:
        """Count what readers of the next generation would see, before they do."""
        visible = visible_at(self._next)
        found = tuple(self._store.count(kind & visible) for kind in (CHUNKS, ATOMS, DOCUMENTS))
        chunks, atoms = sum(len(record.chunk_ids) for record in after), sum(record.atoms for record in after)
        if found != (chunks, atoms, len(after)):
            raise ServiceError(
                f"The store does not hold what was written to it ({self._store.location}), perhaps because another "
                "process writes to it as well; nothing was committed. Run the ingestion again.",
                kind="failed",
            )


def _by_chunk(graphs: Mapping[ChunkKey, str], wanted: Iterable[str]) -> dict[str, ChunkGraph]:
    texts = {id_: graphs[source, id_] for source, id_ in sorted(graphs, reverse=True)}
    return {id_: ChunkGraph.from_stored(texts[id_]) for id_ in wanted if id_ in texts}


def _written_after(generation: int) -> Tests:
    return Tests(must=(Test("gen_from", gt=generation),))


def _of_sources(sources: Sequence[str]) -> Tests:
    return Tests(must=(Test("source", any_of=tuple(sources)),))


def _record_point(record: DocumentRecord) -> Point:
    payload: Payload = {
        "kind": "document",
        "source": record.source,
        "document_id": record.document_id,
        "record": record.model_dump(mode="json"),
        "gen_from": record.generation,
        "gen_to": FOREVER,
    }
    return Point(record_point_id(record), payload)


def _text_to_embed(payload: Payload) -> str:
    text: str = payload["text"] if payload["embed_text"] is None else payload["embed_text"]
    return text


def _dense(point: Point) -> Vector:
    if point.dense is None:
        raise ServiceError(
            f"The stored chunk `{point.payload['chunk_id']}` has no vector; run the ingestion with `force: true`.",
            kind="failed",
        )
    return point.dense
