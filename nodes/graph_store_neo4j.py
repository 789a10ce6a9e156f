"""The knowledge graph in Neo4j 5.18 or later, where people and other programs can read it too.

Several knowledge bases share a database by their names. What a person finds, `handbook` being the knowledge base:

- `(:RagbraidEntity {name, type, aliases, description, chunk_ids})`
- `(:RagbraidEntity)-[:RAGBRAID_SUBJECT_OF]->(:RagbraidFact {name, predicate, weight, ...})-[:RAGBRAID_OBJECT]->(...)`.
  A fact is a node because it has a vector and generations of its own; directed paths through facts are paths through
  the graph, whose even steps are entities.
- `(:RagbraidReport {name, summary, level, rating, chunk_ids})`
- `(:RagbraidGraph {kb, generation})`, one for each knowledge base; generation is the one that is committed.

    MATCH path = (a:RagbraidEntity {kb: 'handbook', name: 'Acme'})-[:RAGBRAID_SUBJECT_OF|RAGBRAID_OBJECT*..4]->()
    RETURN path

At rest all of it is the committed generation. While an ingestion runs, the next one stands beside it, and

    MATCH (g:RagbraidGraph {kb: 'handbook'})
    MATCH (a:RagbraidEntity {kb: g.kb})-[:RAGBRAID_SUBJECT_OF]->(f)-[:RAGBRAID_OBJECT]->(b)
    WHERE all(n IN [a, f, b] WHERE n.gen_from <= g.generation AND n.gen_to > g.generation)
    RETURN a.name, f.predicate, b.name

leaves that out. Only read: the next ingestion replaces what it finds, and `ragbraid kb verify` reports the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ragbraid.nodes import neo4j_cypher as cypher
from ragbraid.nodes.batches import batches
from ragbraid.nodes.neo4j_connection import Neo4jConnection, Row, Work
from ragbraid.nodes.neo4j_readable import readable
from ragbraid.nodes.store import FOREVER
from ragbraid.registry.errors import ServiceError
from ragbraid.registry.graph_store import GraphRecord, RecordKind, StoredRecord

if TYPE_CHECKING:
    from ragbraid.registry.resources import Matrix, Vector

_PAGE = 2048
_BATCH = 1000
"""How many records one transaction changes or deletes."""
_INDEX_SECONDS = 300
_FIRST_FETCH = 64
_MOST_FETCHED = 4096
"""How many an index is asked for at most; beyond it all vectors of the knowledge base are compared, which is exact."""
_NO_VECTOR = cypher.vector_property(0)
"""A property that no record has."""


class Neo4jGraphStore:
    """The `GraphStore` in Neo4j; see `ragbraid.registry.graph_store.GraphStore`.

    Args:
        connection: the database.
        name: the knowledge base, in letters, digits, `_`, `-` and `.`.
    """

    def __init__(self, connection: Neo4jConnection, name: str) -> None:
        self._connection = connection
        self._name = name
        self._known_dimension: int | None = None

    @property
    def location(self) -> str:
        """Where it is, for messages."""
        return f"{self._connection.location} ({self._name})"

    def exists(self) -> bool:
        """Whether it has been created."""
        rows = self._run(cypher.FIND_GRAPH)
        self._known_dimension = rows[0]["dimension"] if rows else None
        return bool(rows)

    def create(self, dimension: int) -> None:
        """Create indexes and the node that stands for the graph; does nothing where that exists."""
        if self.exists():
            return
        for command in cypher.SCHEMA:
            self._connection.run(command)
        self._create_vector_indexes(dimension)
        self._known_dimension = self._run(cypher.CREATE_GRAPH, dimension=dimension)[0]["dimension"]

    def put(self, records: Sequence[GraphRecord], vectors: Matrix | None, *, generation: int) -> None:
        """Write records of a generation, each in the place of what that generation has under its kind and key."""
        rows: dict[RecordKind, list[Row]] = {}
        found: list[Mapping[str, Any]] = [{}] * len(records) if vectors is None else self._vectors(vectors)
        for record, vector in zip(records, found, strict=True):
            id_ = self._id(record.kind, record.key, generation)
            row = {"id": id_, "properties": {"id": id_, **self._properties(record, generation), **vector}}
            rows.setdefault(record.kind, []).append(row)
        work: list[Work] = [(cypher.PUT[kind], {"rows": each}) for kind, each in rows.items()]
        for kind in ("fact", "entity"):
            ids = [row["id"] for row in rows.get(kind, ())]
            work += [(statement, {"ids": ids}) for statement in cypher.LINK[kind] if ids]
        # In one transaction: an update that takes over from a killed one does not write again what it finds.
        self._connection.run_all(work)

    def retire(self, kind: RecordKind, keys: Collection[str], *, generation: int) -> None:
        """Mark what earlier generations wrote under these keys as invisible from this generation on."""
        for batch in batches(sorted(keys), _BATCH):
            self._run(cypher.RETIRE, kind=kind, keys=batch, generation=generation, forever=FOREVER)

    def read(
        self,
        kind: RecordKind,
        *,
        generation: int,
        keys: Collection[str] | None = None,
        with_vectors: bool = False,
    ) -> Iterator[StoredRecord]:
        """Yield the records that a reader of a generation sees: those of these keys, or all."""
        vector = self._vector_property() if with_vectors else _NO_VECTOR
        if keys is None:
            yield from self._pages(cypher.READ_RANGE, f"{self._name}/{kind}", generation, vector)
            return
        for batch in batches(sorted(keys), _PAGE):
            rows = self._run(cypher.READ_KEYS, kind=kind, keys=batch, generation=generation, vector=vector)
            yield from map(_read, rows)

    def written(self, generation: int, *, with_vectors: bool = False) -> Iterator[StoredRecord]:
        """Yield what was written by a generation, of every kind."""
        vector = self._vector_property() if with_vectors else _NO_VECTOR
        yield from self._pages(cypher.READ_WRITTEN, self._name, generation, vector)

    def nearest(self, kind: RecordKind, vector: Vector, limit: int, *, generation: int) -> list[tuple[str, float]]:
        """Return the keys of the nearest records with their cosines, best first, equal ones in the order of keys.

        An index finds them approximately, as on a Qdrant server. It also finds what is not wanted (other knowledge
        bases of the same database, other generations): so more are fetched than are wanted, until there are enough
        and the last of them scores less than the last that is returned.
        """
        if limit < 1 or self._dimension() is None:
            return []
        asked = {"query": vector.tolist(), "vector": self._vector_property(), "generation": generation}
        fetch = max(2 * limit, _FIRST_FETCH)
        while fetch <= _MOST_FETCHED:
            index = cypher.vector_index(kind, len(vector))
            row = self._run(cypher.NEAREST, index=index, fetch=fetch, **asked)[0]
            found = _scored(row["found"], vector)
            if row["fetched"] < fetch or (len(found) > limit and found[-1][1] < found[limit - 1][1]):
                return found[:limit]
            fetch *= 4
        after, end = _range(f"{self._name}/{kind}")
        return _scored(self._run(cypher.SCAN, after=after, end=end, limit=limit, **asked), vector)

    def count(self, kind: RecordKind, *, generation: int) -> int:
        """Return how many records of a kind a reader of a generation sees."""
        after, end = _range(f"{self._name}/{kind}")
        return int(self._run(cypher.COUNT, after=after, end=end, generation=generation)[0]["count"])

    def delete_written(self, kind: RecordKind, keys: Collection[str], *, generation: int) -> None:
        """Delete what a generation wrote under these keys."""
        for batch in batches(sorted(keys), _BATCH):
            self._run(cypher.DELETE_IDS, ids=[self._id(kind, key, generation) for key in batch])

    def take_back(self, generation: int) -> None:
        """Take back the marks that `retire` made for this generation."""
        self._repeat(cypher.TAKE_BACK, generation=generation, forever=FOREVER)

    def delete_retired(self, generation: int) -> None:
        """Delete what is invisible from this generation on, which has been committed; people can read which it is."""
        self._run(cypher.NOTE_GENERATION, generation=generation)
        self._repeat(cypher.DELETE_RETIRED, generation=generation)

    def flush(self) -> None:
        """Do nothing: Neo4j has every transaction on disk when it says that it is committed."""

    def drop(self) -> None:
        """Delete all records of the knowledge base, then the node that stands for it; indexes stay for others."""
        after, end = _range(self._name)
        self._repeat(cypher.DELETE_RANGE, after=after, end=end)
        self._run(cypher.DELETE_GRAPH)
        self._known_dimension = None

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

    def _create_vector_indexes(self, dimension: int) -> None:
        for kind in cypher.SEARCHED:
            self._connection.run(cypher.create_vector_index(kind, dimension))
        self._connection.run(cypher.AWAIT_INDEXES, seconds=_INDEX_SECONDS)

    def _run(self, statement: str, **parameters: Any) -> list[Row]:
        return self._connection.run(statement, kb=self._name, **parameters)

    def _repeat(self, statement: str, **parameters: Any) -> None:
        """Repeat a statement that changes one batch at a time until nothing is left, so that none needs much memory."""
        while self._run(statement, batch=_BATCH, **parameters)[0]["changed"]:
            pass

    def _pages(self, statement: str, prefix: str, generation: int, vector: str) -> Iterator[StoredRecord]:
        after, end = _range(prefix)
        while rows := self._run(statement, after=after, end=end, generation=generation, vector=vector, page=_PAGE):
            yield from map(_read, rows)
            after = rows[-1]["id"]

    def _id(self, kind: RecordKind, key: str, generation: int) -> str:
        return f"{self._name}/{kind}/{generation}/{key}"

    def _properties(self, record: GraphRecord, generation: int) -> Row:
        return {
            "kb": self._name,
            "kind": record.kind,
            "key": record.key,
            "body": record.body,
            "text": record.text,
            "embed_hash": record.embed_hash,
            "gen_from": generation,
            "gen_to": FOREVER,
            **readable(record),
        }

    def _vectors(self, vectors: Matrix) -> list[Mapping[str, Any]]:
        if vectors.shape[1] != self._dimension():
            raise ServiceError(
                f"the knowledge graph at {self.location} was made for vectors of length {self._dimension()} and got "
                f"some of length {vectors.shape[1]}; run its ingestion again with `force: true`",
                kind="failed",
            )
        return [{self._vector_property(): row} for row in vectors.tolist()]

    def _dimension(self) -> int | None:
        if self._known_dimension is None:
            self.exists()
        return self._known_dimension

    def _vector_property(self) -> str:
        return cypher.vector_property(self._dimension() or 0)


def _range(prefix: str) -> tuple[str, str]:
    """Return the bounds between which the ids that begin with a prefix and a slash lie; `0` follows on `/`."""
    return f"{prefix}/", f"{prefix}0"


def _read(row: Row) -> StoredRecord:
    record = GraphRecord(row["kind"], row["key"], row["body"], row["text"], row["embed_hash"])
    if row["vector"] is None:
        return StoredRecord(record)
    import numpy as np

    return StoredRecord(record, np.asarray(row["vector"], dtype=np.float32))


def _scored(rows: Sequence[Row], vector: Vector) -> list[tuple[str, float]]:
    """Score what was found, best first: an index answers with (1 + cosine) / 2, and of quantized vectors at that."""
    import numpy as np

    if not rows:
        return []
    found = np.asarray([row["vector"] for row in rows], dtype=np.float64)
    # Single precision: sums in another order make equal vectors differ in the last bits of double precision.
    scores = (found @ vector.astype(np.float64)).astype(np.float32).tolist()
    pairs = zip((row["key"] for row in rows), scores, strict=True)
    return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))
