"""One Qdrant collection behind few methods: what the knowledge base needs of an engine, and how it lays out its data.

`store_edge` (the engine in the process) and `store_client` (qdrant-client: local mode and a server) implement `Store`;
one contract suite runs over all of them. Nothing outside these adapters knows which engine it talks to.

Records, chunks and atoms of a knowledge base live in one collection, so that they cannot disagree; its graph has one
beside (`graph_store`), which follows the committed generation of this one. Points of
records carry no vectors; they take part in no search and do not count in the inverse document frequency (the contract
suite checks both on every engine). Atoms carry their vector under a name of their own and no term weights, so that
searches among chunks neither meet them nor need a filter against them, and no frequency counts them.

Payload of a chunk (`kind: "chunk"`, id by `index_records.chunk_point_id`):
    chunk_id, document_id, source, index, text, embed_text, title, section_path, chunk_kind, span_start, span_end,
    parent_id, language, made_by, metadata (a mapping), gen_from, gen_to; and where models were asked about it:
    enrichments (a mapping of their answers by stamp), enriched_by (its keys).
Payload of an atom (`kind: "atom"`): as of a chunk; parent_id names the chunk, text is the question.
Payload of a document record (`kind: "document"`, id by `index_records.record_point_id`):
    source, document_id, record (a `DocumentRecord` as JSON), gen_from, gen_to. Its `state` follows from visibility.
Payload of the info record (`kind: "info"`, id `INFO_ID`): info (a `KnowledgeBaseInfo` as JSON).

With the committed generation G a reader sees the points with gen_from <= G < gen_to; a current point has
`gen_to = FOREVER`. While `info.updating` is false every stored point is visible, and readers send no filter on it.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from ragbraid.registry.contracts import Chunk, Span
from ragbraid.registry.graph_parts import ChunkGraph
from ragbraid.registry.knowledge import KnowledgeBaseInfo, Scalar
from ragbraid.registry.resources import SparseVector

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ragbraid.nodes.store_found import Found

    Vector = NDArray[np.float32]

Payload = dict[str, Any]

DENSE = "dense"
SPARSE = "sparse"
FOREVER = 1_000_000_000_000
"""`gen_to` of a point that no update has replaced."""
ATOM = "atom"
"""The vector of atoms, left on disk: nothing of it is in memory where there are none."""
VECTORS = (DENSE, ATOM, SPARSE)
"""What a collection of chunks has room for."""
INDEXED_KEYWORDS = ("kind", "chunk_id", "document_id", "source", "embed_hash", "parent_id", "enriched_by", "key")
INDEXED_INTEGERS = ("gen_from", "gen_to")
WRITE_BATCH = 256
"""How many points go to an engine in one operation."""
PAGE = 512
"""How many points a scroll reads at a time."""

_NAMESPACE = uuid.UUID("5d0b1e52-6b0f-5d0e-9a55-3c1c7d6d4c11")


def point_id(kind: str, key: str, gen_from: int = 0) -> str:
    """Return the UUID under which a record of ours is stored.

    Its first 96 bits are a UUID of version 5 over kind and key, the last 32 the generation: the old and the new form of
    one chunk stand side by side, and the order of ids, which settles equal scores, is the same after any history.

    Args:
        kind: `chunk`, `document` or `info`.
        key: what identifies the record, such as the source.
        gen_from: the generation that wrote it.
    """
    name = uuid.uuid5(_NAMESPACE, f"{kind}\x1f{key}").bytes
    return str(uuid.UUID(bytes=name[:12] + gen_from.to_bytes(4, "big")))


INFO_ID = point_id("info", "info")


@dataclass(frozen=True, slots=True)
class Point:
    """One stored point. A record has no vectors; cosine engines return dense vectors at unit length."""

    id: str
    payload: Payload
    dense: Vector | None = None
    sparse: SparseVector | None = None

    @property
    def dense_name(self) -> str:
        """The name under which its dense vector is stored."""
        return ATOM if self.payload.get("kind") == ATOM else DENSE


def point_of(id_: str, payload: Payload | None, vectors: Mapping[str, Any]) -> Point:
    """Make a point of what an engine gave back: `vectors` by name, those it was asked for and has."""
    if not vectors:
        return Point(id_, payload or {})
    import numpy as np

    dense, terms = vectors.get(DENSE, vectors.get(ATOM)), vectors.get(SPARSE)
    return Point(
        id=id_,
        payload=payload or {},
        dense=None if dense is None else np.asarray(dense, dtype=np.float32),
        sparse=None if terms is None else SparseVector(tuple(terms.indices), tuple(terms.values)),
    )


@dataclass(frozen=True, slots=True)
class Test:
    """One test of a payload value; several bounds of one test hold together.

    `key` is a payload key or `metadata.<key>`. Of a list value it is enough that one item passes. Numbers compare by
    value (2 equals 2.0); a boolean equals only a boolean.
    """

    __test__: ClassVar[bool] = False  # pytest collects classes of this name

    key: str
    equals: Scalar | None = None
    any_of: tuple[Scalar, ...] | None = None
    gte: float | None = None
    lte: float | None = None
    lt: float | None = None
    gt: float | None = None
    exists: bool | None = None


@dataclass(frozen=True, slots=True)
class Tests:
    """A payload filter: every test of `must` passes and none of `must_not` does."""

    __test__: ClassVar[bool] = False

    must: tuple[Test, ...] = ()
    must_not: tuple[Test, ...] = ()

    def __and__(self, other: Tests) -> Tests:
        return Tests(self.must + other.must, self.must_not + other.must_not)

    def __bool__(self) -> bool:
        return bool(self.must or self.must_not)


EVERYTHING = Tests()
CHUNKS = Tests(must=(Test("kind", equals="chunk"),))
ATOMS = Tests(must=(Test("kind", equals="atom"),))
CHUNKS_AND_ATOMS = Tests(must=(Test("kind", any_of=("chunk", "atom")),))
DOCUMENTS = Tests(must=(Test("kind", equals="document"),))


def visible_at(generation: int) -> Tests:
    """Return the filter for what a reader of a committed generation sees."""
    return Tests(must=(Test("gen_from", lte=generation), Test("gen_to", gt=generation)))


@dataclass
class SharedState:
    """What all handles on one embedded collection share, so that readers need not ask the engine.

    `info` is replaced as a whole, never changed, so a reader detects an update by comparing identities.
    """

    info: KnowledgeBaseInfo | None = None
    loaded: bool = False
    update_lock: threading.Lock = field(default_factory=threading.Lock)
    """Held by the one update that may be under way in this process."""


class Store(Protocol):
    """One Qdrant collection, with the named vectors `dense`, `atom` (both cosine) and `sparse`, or those it was given.

    Of the terms in `sparse` it counts the inverse document frequency.

    Safe to share between threads. Every method may raise ServiceError with a plain sentence: the engine cannot be
    reached, the folder is in use by another process, is damaged, full or not writable.
    """

    @property
    def location(self) -> str:
        """Where it is, for messages; never holds a key."""
        ...

    @property
    def shared(self) -> SharedState | None:
        """What the handles of this process share; None where other processes may write too (a server)."""
        ...

    def exists(self) -> bool:
        """Whether the collection has been created."""
        ...

    def siblings(self) -> list[str]:
        """Return the sorted names of all collections at the same place, this one included."""
        ...

    def create(self, dimension: int, *, vectors: Sequence[str] = VECTORS) -> None:
        """Create the collection with room for these vectors; does nothing where it exists."""
        ...

    def drop(self) -> None:
        """Delete the collection; does nothing where there is none."""
        ...

    def upsert(self, points: Sequence[Point]) -> None:
        """Write points, each replacing the point of the same id as a whole."""
        ...

    def patch(self, payload: Payload, *, ids: Sequence[str] | None = None, where: Tests | None = None) -> None:
        """Set these top-level payload keys on the points of `ids` or on those that `where` finds."""
        ...

    def set_sparse(self, items: Mapping[str, SparseVector]) -> None:
        """Replace the sparse vectors of existing points; everything else of them stays."""
        ...

    def delete(self, *, ids: Sequence[str] | None = None, where: Tests | None = None) -> None:
        """Delete the points of `ids` or those that `where` finds."""
        ...

    def get(self, ids: Sequence[str], *, with_vectors: bool = False) -> list[Point]:
        """Return the points of these ids that exist, in the order asked for."""
        ...

    def scroll(self, where: Tests, *, with_vectors: bool = False, page: int = PAGE) -> Iterator[Point]:
        """Yield the points that `where` finds, in order of id, a page at a time."""
        ...

    def count(self, where: Tests) -> int:
        """Return exactly how many points `where` finds."""
        ...

    def payloads(self, ids: Sequence[Any]) -> dict[Hashable, Payload]:
        """Return the payloads of the points that exist of these `Found.ids`, by their `Found.keys`."""
        ...

    def search_dense(
        self, vector: Vector, limit: int, where: Tests, *, using: str = DENSE, with_payload: bool = True
    ) -> Found:
        """Return the nearest points by cosine, best first, equal scores in order of id.

        `using` names the vector: `DENSE` finds chunks, `ATOM` atoms.
        """
        ...

    def search_sparse(
        self, vector: SparseVector, limit: int, where: Tests, *, corpus: Tests = CHUNKS, with_payload: bool = True
    ) -> Found:
        """Return the points with the greatest weighted dot product, best first, equal scores in order of id.

        `corpus` names the points that the inverse document frequency counts, whatever `where` says: all chunks, or
        those of one generation.
        """
        ...

    def flush(self) -> None:
        """Make everything written so far survive a loss of power; returns when it is on disk."""
        ...

    def close(self) -> None:
        """Release this handle; the last handle releases files and connections."""
        ...


def read_info(store: Store) -> KnowledgeBaseInfo | None:
    """Return what the knowledge base records about itself, or None where it has not been created.

    For an embedded store this reads memory, for a server it fetches one point.
    """
    shared = store.shared
    if shared is None:
        return _fetch_info(store)
    if not shared.loaded:
        shared.info = _fetch_info(store)
        shared.loaded = True
    return shared.info


def write_info(store: Store, info: KnowledgeBaseInfo) -> None:
    """Record what the knowledge base says about itself: one point, so readers see the old or the new state."""
    payload = {"kind": "info", "info": info.model_dump(mode="json")}
    store.upsert([Point(INFO_ID, payload)])
    if store.shared is not None:
        store.shared.info = info
        store.shared.loaded = True


def payload_path(key: str) -> str:
    """Return a key as a JSON path of Qdrant: what follows `metadata.` is one key, dots and spaces included."""
    prefix, dot, name = key.partition(".")
    return f'{prefix}."{name}"' if dot else key


def is_exact_number(value: Scalar) -> bool:
    """Whether a value is a number that floats hold exactly, so that it can be compared as a range."""
    return isinstance(value, float) or (type(value) is int and abs(value) <= 2**53)


def chunk_payload(chunk: Chunk, *, gen_from: int, gen_to: int = FOREVER) -> Payload:
    """Lay a chunk or an atom out as the payload of its point."""
    span = chunk.span
    payload: Payload = {
        "kind": "atom" if chunk.kind == "atom" else "chunk",
        "chunk_id": chunk.id,
        "document_id": chunk.document_id,
        "source": chunk.source,
        "index": chunk.index,
        "text": chunk.text,
        "embed_text": chunk.embed_text,
        "title": chunk.title,
        "section_path": list(chunk.section_path),
        "chunk_kind": chunk.kind,
        "span_start": None if span is None else span.start,
        "span_end": None if span is None else span.end,
        "parent_id": chunk.parent_id,
        "language": chunk.language,
        "made_by": chunk.made_by,
        "metadata": dict(chunk.metadata),
        "gen_from": gen_from,
        "gen_to": gen_to,
    }
    if chunk.graph is not None:
        payload["graph"] = chunk.graph.model_dump_json()
    if chunk.enrichments:
        payload |= {"enrichments": dict(chunk.enrichments), "enriched_by": sorted(chunk.enrichments)}
    return payload


def chunk_from_payload(payload: Payload) -> Chunk:
    """Read a chunk back from the payload of its point."""
    graph = payload.get("graph")
    return Chunk(
        id=payload["chunk_id"],
        document_id=payload["document_id"],
        source=payload["source"],
        index=payload["index"],
        text=payload["text"],
        embed_text=payload["embed_text"],
        title=payload["title"],
        section_path=tuple(payload["section_path"]),
        kind=payload["chunk_kind"],
        span=span_from_payload(payload),
        parent_id=payload["parent_id"],
        language=payload["language"],
        made_by=payload["made_by"],
        metadata=payload["metadata"],
        graph=None if graph is None else ChunkGraph.from_stored(graph),
        enrichments=payload.get("enrichments", {}),
    )


def span_from_payload(payload: Payload) -> Span | None:
    """Read a chunk's span back from the payload of its point."""
    start = payload["span_start"]
    return None if start is None else Span(start=start, end=payload["span_end"])


def _fetch_info(store: Store) -> KnowledgeBaseInfo | None:
    if not store.exists():
        return None
    found = store.get([INFO_ID])
    return KnowledgeBaseInfo.model_validate(found[0].payload["info"]) if found else None
