"""Where the knowledge graph of a knowledge base is kept, as a protocol: records by generation, with their vectors."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from ragbraid.registry.resources import Matrix, Vector

RecordKind = Literal["entity", "profile", "fact", "neighbours", "report"]


@dataclass(frozen=True, slots=True)
class GraphRecord:
    """One stored record of a knowledge graph.

    `key` is the id of the entity, fact or report, `body` what is stored about it as JSON: the parts of an entity or of
    a fact, the neighbours of an entity, a report; nothing for a profile, which is only searched. `text` is what its
    vector is made from, and `embed_hash` names that text and the model; both are empty where it has no vector.
    """

    kind: RecordKind
    key: str
    body: str = ""
    text: str = ""
    embed_hash: str = ""

    @property
    def place(self) -> tuple[RecordKind, str]:
        """Kind and key, which name it within a generation."""
        return self.kind, self.key


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record as it was read, with the vector where that was asked for and there is one."""

    record: GraphRecord
    vector: Vector | None = None


@runtime_checkable
class GraphStore(Protocol):
    """Keeps the records of a knowledge graph; a reader of a generation sees what was written up to it and not retired.

    The knowledge base alone says which generation is committed, so chunks and graph become visible together. Every
    write can be repeated. Safe to share between threads; every method may raise ServiceError with a plain sentence.
    """

    @property
    def location(self) -> str:
        """Where it is, for messages; never holds a key."""
        ...

    def exists(self) -> bool:
        """Whether it has been created."""
        ...

    def create(self, dimension: int) -> None:
        """Create it for vectors of this length; does nothing where it exists."""
        ...

    def put(self, records: Sequence[GraphRecord], vectors: Matrix | None, *, generation: int) -> None:
        """Write records of a generation, each in the place of what that generation has under its kind and key.

        Args:
            records: either all with a text or all without.
            vectors: one row for each; None where the records have no text.
            generation: the one that writes them.
        """
        ...

    def retire(self, kind: RecordKind, keys: Collection[str], *, generation: int) -> None:
        """Mark what earlier generations wrote under these keys as invisible from this generation on."""
        ...

    def read(
        self,
        kind: RecordKind,
        *,
        generation: int,
        keys: Collection[str] | None = None,
        with_vectors: bool = False,
    ) -> Iterator[StoredRecord]:
        """Yield the records that a reader of a generation sees: those of these keys, or all; in no order."""
        ...

    def written(self, generation: int, *, with_vectors: bool = False) -> Iterator[StoredRecord]:
        """Yield what was written by a generation, of every kind."""
        ...

    def nearest(self, kind: RecordKind, vector: Vector, limit: int, *, generation: int) -> list[tuple[str, float]]:
        """Return the keys of the nearest records with their cosines, best first, equal ones in the order of keys."""
        ...

    def count(self, kind: RecordKind, *, generation: int) -> int:
        """Return how many records of a kind a reader of a generation sees."""
        ...

    def delete_written(self, kind: RecordKind, keys: Collection[str], *, generation: int) -> None:
        """Delete what a generation wrote under these keys."""
        ...

    def take_back(self, generation: int) -> None:
        """Take back the marks that `retire` made for this generation."""
        ...

    def delete_retired(self, generation: int) -> None:
        """Delete what is invisible from this generation on."""
        ...

    def flush(self) -> None:
        """Make everything written so far survive a loss of power."""
        ...

    def drop(self) -> None:
        """Delete everything; does nothing where there is nothing."""
        ...

    def close(self) -> None:
        """Release files and connections."""
        ...
