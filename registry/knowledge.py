"""The knowledge base as a resource: searching it, filtering, and updating it as a whole."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from ragbraid.registry.contracts import Chunk, Hit, SourceRecord, SourceReport
from ragbraid.registry.resources import Embedder, SparseEncoder, SparseVector

if TYPE_CHECKING:
    from ragbraid.registry.graph import Report
    from ragbraid.registry.graph_store import GraphRecord
    from ragbraid.registry.graph_view import GraphView
    from ragbraid.registry.resources import Matrix, Vector

Scalar = str | int | float | bool
GraphKind = Literal["entity", "profile", "fact", "report"]


class Condition(BaseModel):
    """One condition on a payload field. Exactly one of the tests is given.

    Fields are `source`, `document_id`, `title`, `language`, `kind`, and `metadata.<key>`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    field: str
    equals: Scalar | None = None
    any_of: tuple[Scalar, ...] | None = None
    gte: float | None = None
    lte: float | None = None


class Where(BaseModel):
    """A payload filter: every condition of `all` holds and none of `none` does."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    all: tuple[Condition, ...] = ()
    none: tuple[Condition, ...] = ()


class KnowledgeBaseInfo(BaseModel):
    """What a knowledge base records about itself, in its own store."""

    model_config = ConfigDict(frozen=True)

    name: str
    schema_version: int = 1
    embedder: str
    dimension: int
    sparse: str
    average_length: float = 1.0
    """Average chunk length in tokens of the sparse encoder that the stored term weights were computed with."""
    generation: int = 0
    """The committed generation: counts up by one with every committed update."""
    updating: bool = False
    """Whether an update has begun, and has neither been cleaned up after its commit nor rolled back."""
    update_id: str = ""
    """Names the update under way; one that finds another name here has been taken over and stops."""
    documents: int = 0
    chunks: int = 0
    atoms: int = 0
    """How many questions of chunks are stored beside the chunks; they count among no chunks and in no average."""
    entities: int = 0
    facts: int = 0
    reports: int = 0
    neighbour_min_score: float | None = None
    """Cosine from which on the names of two entities count as nearly the same; None where none are compared."""


class DocumentRecord(BaseModel):
    """What a knowledge base records about one source."""

    model_config = ConfigDict(frozen=True)

    source: str
    document_id: str
    content_hash: str
    scope: str = ""
    root: str = ""
    pipeline: str = ""
    """Fingerprint of chunker and settings that made its chunks."""
    state: Literal["pending", "written", "committed"] = "pending"
    generation: int = 0
    chunk_ids: tuple[str, ...] = ()
    atoms: int = 0
    """How many atoms its chunks have, together."""
    old_atoms: int = 0
    """How many of these its chunks no longer give; they stay because a clean-up mode deletes nothing."""
    digest: str = ""
    """Hash over everything that is stored of its chunks and their atoms."""
    tokens: int = 0
    """Length of its chunks in tokens of the sparse encoder, together."""
    title: str | None = None
    metadata: dict[str, JsonValue] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SourceChunks:
    """A source and all the chunks that it shall consist of after an update; none where it gave no text."""

    record: SourceRecord
    chunks: tuple[Chunk, ...] = ()


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """What an update is going to do: per source, and which chunks still need a vector."""

    sources: tuple[SourceReport, ...]
    """One report per source that was given, in that order, then one per removed source."""
    to_embed: tuple[Chunk, ...]


@runtime_checkable
class IndexUpdate(Protocol):
    """One update of a knowledge base: plan once, write the vectors asked for, commit.

    Everything written becomes visible at once, when it is committed; until then readers see the generation that was
    committed before. Chunks that an update wrote before it was killed are taken over by the next one that wants the
    same, without being embedded again.
    """

    def sources(self) -> Iterator[DocumentRecord]:
        """Yield the committed record of every source, in order of source."""
        ...

    def plan(
        self,
        sources: Sequence[SourceChunks],
        *,
        remove: Sequence[str] = (),
        keep_old_chunks: bool = False,
        force: bool = False,
    ) -> UpdatePlan:
        """Compare sources with what is stored and say what has to be embedded; called once, before anything is written.

        Sources neither given nor removed stay as they are.

        Args:
            sources: each source with all its chunks; chunk ids are unique.
            remove: sources to take out with their chunks.
            keep_old_chunks: whether chunks that a changed source no longer has stay searchable.
            force: treat every source as changed and embed all its chunks.
        """
        ...

    def write(self, chunks: Sequence[Chunk], vectors: Matrix) -> None:
        """Store chunks of the plan with their vectors, row by row; safe to repeat.

        Raises:
            ServiceError: the vectors are not finite or have another dimension, or another process took over.
        """
        ...

    def plan_graph(self, *, neighbour_min_score: float | None = None) -> Sequence[GraphRecord]:
        """Work out what the knowledge graph becomes, once every chunk is written; returns the texts to embed for it.

        Args:
            neighbour_min_score: cosine from which on the names of two entities count as nearly the same; None compares
                none.
        """
        ...

    def write_graph(self, records: Sequence[GraphRecord], vectors: Matrix) -> None:
        """Store records of the graph with their vectors, row by row; safe to repeat.

        Raises:
            ServiceError: the vectors are not finite or have another dimension, or another process took over.
        """
        ...

    def commit(self) -> int:
        """Make the update visible and clean up after it; returns the committed generation.

        The generation stays the same where the plan had nothing to change.
        """
        ...


@runtime_checkable
class KnowledgeBase(Protocol):
    """A searchable index of chunks over Qdrant, embedded or a server. Safe to share between threads."""

    @property
    def name(self) -> str:
        """The name it was opened under."""
        ...

    def info(self) -> KnowledgeBaseInfo:
        """Return what it records about itself.

        Raises:
            SettingsError: it does not exist yet, naming the ones that do.
        """
        ...

    def search_dense(
        self,
        vector: Vector,
        *,
        embedder: str,
        top_k: int,
        where: Where | None = None,
        within: Sequence[str] | None = None,
    ) -> list[Hit]:
        """Return the nearest chunks by cosine, best first: unique ids, ranks from 1, the score under the route `dense`.

        Args:
            vector: the query.
            embedder: identity of the model that made `vector`.
            top_k: how many chunks to return at most.
            where: only chunks that fulfil these conditions.
            within: only chunks with these ids; all when None.

        Raises:
            SettingsError: `embedder` is not the model that filled it, or `where` names a field it does not have.
        """
        ...

    def search_sparse(self, vector: SparseVector, *, sparse: str, top_k: int, where: Where | None = None) -> list[Hit]:
        """Return the best chunks by term weight times inverse document frequency, best first, under the route `sparse`.

        Raises:
            SettingsError: `sparse` is not the encoder that filled it, or `where` names a field it does not have.
        """
        ...

    def search_hybrid(
        self,
        vector: Vector,
        terms: SparseVector,
        *,
        embedder: str,
        sparse: str,
        fetch_k: int,
        fuse: Callable[[Mapping[str, Sequence[Hashable]]], Sequence[tuple[Hashable, float]]],
        where: Where | None = None,
    ) -> list[Hit]:
        """Search by both routes at once, on one generation, and return what `fuse` makes of the two lists.

        Args:
            vector: the query for the route `dense`.
            terms: the query for the route `sparse`.
            embedder: identity of the model that made `vector`.
            sparse: identity of the encoder that made `terms`.
            fetch_k: how many chunks each route brings.
            fuse: makes of the ids of every route, best first, the ids that stay with their scores, best first.
            where: only chunks that fulfil these conditions.

        Raises:
            SettingsError: another model filled it, or `where` names a field it does not have.
        """
        ...

    def search_atoms(
        self,
        vector: Vector,
        *,
        embedder: str,
        top_k: int,
        where: Where | None = None,
        exclude: Sequence[str] = (),
    ) -> list[Hit]:
        """Return the chunks with the nearest questions by cosine, best first, each once, under the route `atoms`.

        A hit is the chunk, its score that of its nearest question, which stands in its metadata under `ATOM`.

        Args:
            vector: the query.
            embedder: identity of the model that made `vector`.
            top_k: how many chunks to return at most.
            where: only chunks that fulfil these conditions; `kind` is none of them.
            exclude: ids of chunks that are left out before the cut.

        Raises:
            SettingsError: it holds no atoms, `embedder` is not the model that filled it, or `where` names a field it
                does not have.
        """
        ...

    def graph(self, where: Where | None = None) -> GraphView:
        """Return the knowledge graph of the committed generation, read once and then kept.

        Args:
            where: only what chunks that fulfil these conditions contribute; everything else might not exist.

        Raises:
            SettingsError: it holds no knowledge graph, or `where` names a field it does not have.
        """
        ...

    def search_graph(
        self, kind: GraphKind, vector: Vector, *, embedder: str, top_k: int, where: Where | None = None
    ) -> list[tuple[str, float]]:
        """Return the ids of the nearest entities, facts or reports with their cosines, best first.

        Args:
            kind: `entity` compares with names, `profile` with names and descriptions of entities, `fact` with facts
                (and their keywords and descriptions), `report` with reports of communities.
            vector: the query.
            embedder: identity of the model that made `vector`.
            top_k: how many to return at most.
            where: only what chunks that fulfil these conditions contribute to; of reports those all of whose chunks do.

        Raises:
            SettingsError: it holds no knowledge graph (or no report), `embedder` is not the model that filled it, or
                `where` names a field it does not have.
        """
        ...

    def reports(self, where: Where | None = None) -> tuple[Report, ...]:
        """Return the reports about communities, in order of id; only those all of whose chunks fulfil `where`."""
        ...

    def replace_reports(self, reports: Sequence[Report], *, embedder: Embedder, generation: int) -> int:
        """Put these reports in the place of all that there are, in one commit; returns the new generation.

        Reports that stay as they are keep their vectors. The generation stays the same where nothing changes.

        Raises:
            SettingsError: `embedder` is not the model that filled it.
            ServiceError: it has moved on from `generation`, another update is under way, or the embedder failed.
        """
        ...

    def fetch(self, chunk_ids: Sequence[str]) -> list[Chunk]:
        """Return the chunks with these ids that exist, in the order asked for."""
        ...

    def recall(self, stamps: Sequence[str]) -> dict[str, JsonValue]:
        """Return what models said before, by stamp (see `Chunk.enrichments`); unknown stamps are left out.

        Reads every stored chunk, also those of an update that was killed; empty where nothing has been created.
        """
        ...

    def update(
        self, *, embedder: Embedder, sparse: SparseEncoder, scope: str, root: str = ""
    ) -> AbstractContextManager[IndexUpdate]:
        """Begin an update, creating the knowledge base where there is none.

        Leaving without `commit` changes nothing that a reader sees; the next update takes over or removes what was
        written.

        Raises:
            SettingsError: embedder or sparse encoder are not the ones that filled it.
            ServiceError: another update is under way.
        """
        ...

    def documents(self) -> Iterator[DocumentRecord]:
        """Yield the record of every committed source, in order of source."""
        ...

    def verify(self) -> list[str]:
        """Return what is inconsistent, one sentence each; empty when all is well."""
        ...

    def drop(self) -> None:
        """Delete the knowledge base with everything in it."""
        ...

    def close(self) -> None:
        """Release files and connections."""
        ...

    def fingerprint(self) -> str:
        """Identify name and committed generation, for cache keys."""
        ...


KNOWLEDGE_CONTRACTS: dict[str, type[Any]] = {cls.__name__: cls for cls in (Condition, Where)}
"""The type names of filters that flow files may use, so that a flow can take one as an input and hand it on."""
