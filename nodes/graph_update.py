"""One update of a knowledge graph, as part of the update of its knowledge base and committed with it.

An entity or a fact is a sum of parts, one for each chunk. So an update takes out the parts of chunks that went, puts
in those of chunks that came, and touches nothing else; what stands afterwards is what indexing from nothing gives.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from ragbraid.nodes.graph_neighbours import NeighbourUpdate
from ragbraid.nodes.graph_records import entity_parts, entity_records, fact_parts, fact_record, read_report
from ragbraid.registry.errors import ServiceError
from ragbraid.registry.graph_parts import ChunkGraph, EntityPart, FactPart, parts_of
from ragbraid.registry.graph_store import GraphRecord, GraphStore, RecordKind, StoredRecord

if TYPE_CHECKING:
    from ragbraid.registry.resources import Matrix, Vector

Place = tuple[RecordKind, str]
P = TypeVar("P", EntityPart, FactPart)


@dataclass(frozen=True, slots=True)
class GraphChanges:
    """What chunks contributed that are gone, and what chunks contribute that came, by chunk id.

    A chunk that says something else than before is in both.
    """

    gone: Mapping[str, ChunkGraph] = field(default_factory=dict)
    came: Mapping[str, ChunkGraph] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.gone or self.came)

    @property
    def chunk_ids(self) -> frozenset[str]:
        """The chunks that changed."""
        return frozenset(self.gone) | frozenset(self.came)


@dataclass
class _Work:
    """What an update of the graph has found to do."""

    embed: dict[Place, GraphRecord] = field(default_factory=dict)
    copy: list[tuple[GraphRecord, Vector]] = field(default_factory=list)
    retire: dict[RecordKind, set[str]] = field(default_factory=dict)
    kept: set[Place] = field(default_factory=set)
    """Records of a killed update that are right as they are."""
    has_other_names: bool = False
    """Whether a name has come, gone or changed, so that names must be compared."""

    def replace(self, kind: RecordKind, key: str) -> None:
        """Take a record of the committed generation out of the next one."""
        self.retire.setdefault(kind, set()).add(key)

    def written(self) -> set[Place]:
        """Return the place of every record that the next generation has."""
        return {*self.embed, *(record.place for record, _ in self.copy), *self.kept}


class GraphUpdate:
    """Plans once, writes what was embedded, and finishes; nothing of it is seen before the knowledge base commits."""

    def __init__(self, graph: GraphStore, *, committed: int, embedder: str, dimension: int) -> None:
        self._graph = graph
        self._committed = committed
        self._next = committed + 1
        self._embedder = embedder
        self._dimension = dimension
        self._work = _Work()
        self._unwritten: set[Place] = set()

    def plan(self, changes: GraphChanges, *, force: bool = False) -> tuple[GraphRecord, ...]:
        """Work out what the graph becomes; returns the records that need a vector.

        Args:
            changes: what chunks contribute otherwise than before.
            force: embed everything anew that the changes touch.
        """
        if changes:
            self._graph.create(self._dimension)
            touched, changed = _touched(changes), changes.chunk_ids
            before = {each.record.place: each for each in self._stored(touched.places())}
            wanted = [
                *_wanted_entities(touched, before, changed, self._embedder),
                *_wanted_facts(touched, before, changed, self._embedder),
            ]
            self._compare(wanted, before, force=force)
            self._retire_reports(changed)
        self._unwritten = set(self._work.embed)
        return tuple(self._work.embed.values())

    def write(self, records: Sequence[GraphRecord], vectors: Matrix) -> None:
        """Store records of the plan with their vectors, row by row; safe to repeat."""
        self._graph.put(records, vectors, generation=self._next)
        self._unwritten -= {record.place for record in records}

    def finish(self, *, min_score: float | None, anew: bool) -> None:
        """Write all that needs no embedder, and mark what is replaced.

        Args:
            min_score: cosine from which on two names count as nearly the same; None links none.
            anew: compare all names with each other, because that limit has changed.

        Raises:
            ServiceError: records of the plan have not been written.
        """
        if self._unwritten:
            raise ServiceError(f"{len(self._unwritten)} records of the knowledge graph have not been written.")
        if not self._graph.exists():
            return
        self._put_copies()
        for kind, keys in sorted(self._work.retire.items()):
            self._graph.retire(kind, keys, generation=self._next)
        written = self._work.written()
        if self._work.has_other_names or anew:
            neighbours = NeighbourUpdate(self._graph, committed=self._committed, min_score=min_score, anew=anew)
            written |= neighbours.run()
        delete_all_written(self._graph, self._next, but=written)
        self._graph.flush()

    def _stored(self, places: Mapping[RecordKind, set[str]]) -> Iterator[StoredRecord]:
        """Yield what the committed generation has at these places; the first update looks up nothing."""
        if self._committed:
            for kind, keys in places.items():
                yield from self._graph.read(kind, generation=self._committed, keys=keys, with_vectors=True)

    def _compare(self, wanted: Sequence[GraphRecord], before: dict[Place, StoredRecord], *, force: bool) -> None:
        """Find out which records are new, changed or gone, and which of them have a vector already.

        Args:
            wanted: what the next generation shall have.
            before: what the committed one has at the same places; emptied of everything that stays or is replaced.
            force: embed all of it anew.
        """
        killed = {each.record.place: each for each in self._graph.written(self._next, with_vectors=True)}
        for record in wanted:
            old, half = before.pop(record.place, None), killed.get(record.place)
            if record.kind == "entity" and (old is None or old.record.embed_hash != record.embed_hash):
                self._work.has_other_names = True
            if old is not None:
                if old.record == record and not force:
                    continue
                self._work.replace(record.kind, record.key)
            if force:
                self._work.embed[record.place] = record
            elif half is not None and half.record == record:
                self._work.kept.add(record.place)
            else:
                same = [
                    each.vector
                    for each in (half, old)
                    if each is not None and each.vector is not None and each.record.embed_hash == record.embed_hash
                ]
                if same:
                    self._work.copy.append((record, same[0]))
                else:
                    self._work.embed[record.place] = record
        for kind, key in before:
            self._work.replace(kind, key)
            self._work.has_other_names |= kind == "entity"

    def _retire_reports(self, changed: frozenset[str]) -> None:
        """Take out the reports about anything that has changed: a reader must not be told what is gone."""
        for each in self._graph.read("report", generation=self._committed):
            if not changed.isdisjoint(read_report(each.record).chunk_ids):
                self._work.replace("report", each.record.key)

    def _put_copies(self) -> None:
        import numpy as np

        if self._work.copy:
            vectors = np.asarray([vector for _, vector in self._work.copy], dtype=np.float32)
            self._graph.put([record for record, _ in self._work.copy], vectors, generation=self._next)


def delete_all_written(graph: GraphStore, generation: int, *, but: Container[Place] = ()) -> None:
    """Delete what a generation wrote, except for some records."""
    strays: dict[RecordKind, list[str]] = {}
    for each in graph.written(generation):
        if each.record.place not in but:
            strays.setdefault(each.record.kind, []).append(each.record.key)
    for kind, keys in strays.items():
        graph.delete_written(kind, keys, generation=generation)


@dataclass(frozen=True, slots=True)
class _Touched:
    """The entities and facts that changes are about, each with the parts that came."""

    entities: dict[str, list[EntityPart]]
    facts: dict[str, list[FactPart]]

    def places(self) -> dict[RecordKind, set[str]]:
        """Return the keys by kind of record."""
        entities, facts = set(self.entities), set(self.facts)
        return {"entity": entities, "profile": entities, "fact": facts}


def _touched(changes: GraphChanges) -> _Touched:
    touched = _Touched({}, {})
    for graphs, are_new in ((changes.gone, False), (changes.came, True)):
        for chunk_id, graph in graphs.items():
            entities, facts = parts_of(chunk_id, graph)
            for key, part in entities.items():
                touched.entities.setdefault(key, []).extend([part] * are_new)
            for key, stated in facts.items():
                touched.facts.setdefault(key, []).extend([stated] * are_new)
    return touched


def _wanted_entities(
    touched: _Touched, before: Mapping[Place, StoredRecord], changed: frozenset[str], embedder: str
) -> Iterator[GraphRecord]:
    for key, new in touched.entities.items():
        old = before.get(("entity", key))
        if parts := _replace_parts(entity_parts(old.record) if old else (), new, changed):
            yield from entity_records(key, parts, embedder)


def _wanted_facts(
    touched: _Touched, before: Mapping[Place, StoredRecord], changed: frozenset[str], embedder: str
) -> Iterator[GraphRecord]:
    for key, new in touched.facts.items():
        old = before.get(("fact", key))
        if parts := _replace_parts(fact_parts(old.record) if old else (), new, changed):
            yield fact_record(key, parts, embedder)


def _replace_parts(before: Iterable[P], new: Sequence[P], changed: frozenset[str]) -> list[P]:
    return [part for part in before if part.chunk_id not in changed] + list(new)
