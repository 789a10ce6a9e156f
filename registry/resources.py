"""Resources: what nodes ask for by type (a knowledge base, an embedder, a model), and how providers declare them.

A node names a protocol in its signature (`kb: KnowledgeBase`). A flow binds the role to a provider (`use:
qdrant.embedded`) directly, through the project file, or not at all, and then the embedded default serves.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from ragbraid.registry.contracts import Chunk, Hit, SourceRecord, SourceReport, Usage
from ragbraid.registry.errors import ContractError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]
    Vector = NDArray[np.float32]

F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M", bound=BaseModel)
V = TypeVar("V")

RESOURCE_ATTRIBUTE = "__ragbraid_resource__"


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into dense vectors of unit length."""

    @property
    def identity(self) -> str:
        """Names model and weights; recorded in every knowledge base that it fills."""
        ...

    @property
    def dimension(self) -> int:
        """Length of its vectors."""
        ...

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        """Embed passages: float32, shape (len(texts), dimension), rows of unit length."""
        ...

    def embed_query(self, text: str) -> Vector:
        """Embed a search text: float32, shape (dimension,), unit length."""
        ...


@runtime_checkable
class TokenEmbedder(Protocol):
    """Turns texts into one vector per token, for late interaction."""

    @property
    def identity(self) -> str:
        """Names model and weights."""
        ...

    def embed_tokens(self, texts: Sequence[str], *, role: Literal["query", "document"]) -> list[Matrix]:
        """Embed each text as float32 of shape (tokens, dimension), rows of unit length."""
        ...


@dataclass(frozen=True, slots=True)
class SparseVector:
    """Term ids and their weights, ids unique and ascending."""

    indices: tuple[int, ...]
    values: tuple[float, ...]


@runtime_checkable
class SparseEncoder(Protocol):
    """Turns texts into sparse term vectors; the knowledge base applies the inverse document frequency."""

    @property
    def identity(self) -> str:
        """Names tokenizer, version and constants; recorded in every knowledge base that it fills."""
        ...

    def count_tokens(self, text: str) -> int:
        """Length of the text in the encoder's own tokens; the average over a corpus normalises document weights."""
        ...

    def encode_documents(self, texts: Sequence[str], *, average_length: float) -> list[SparseVector]:
        """Encode passages, given the corpus's average length in tokens (ignored by learned encoders)."""
        ...

    def encode_query(self, text: str) -> SparseVector:
        """Encode a search text; an empty vector where it holds no term."""
        ...


@runtime_checkable
class Reranker(Protocol):
    """Scores passages against a query with a model that reads both."""

    @property
    def identity(self) -> str:
        """Names model and weights."""
        ...

    def score(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return one score per text, in order; higher is better, the scale is the model's."""
        ...


class Message(BaseModel):
    """One turn of a chat."""

    model_config = ConfigDict(frozen=True)

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class Completion(Generic[V]):
    """What a model returned: the text or the validated object, and what it cost."""

    value: V
    usage: Usage
    model: str


@runtime_checkable
class LLM(Protocol):
    """A chat model behind an OpenAI-compatible endpoint.

    Both calls raise ServiceError with a kind: `auth`, `rate_limit`, `timeout`, `unavailable`, `truncated`,
    `invalid_output` or `refused`. There is one retry layer, in the resource.
    """

    @property
    def identity(self) -> str:
        """Names endpoint and model; never a key."""
        ...

    async def complete(self, messages: Sequence[Message], *, max_tokens: int, temperature: float) -> Completion[str]:
        """Return the model's text."""
        ...

    async def extract(
        self, messages: Sequence[Message], output: type[M], *, max_tokens: int, temperature: float
    ) -> Completion[M]:
        """Return the model's answer as an instance of `output`, repaired at most twice."""
        ...


Scalar = str | int | float | bool


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


class DocumentRecord(BaseModel):
    """What a knowledge base records about one source."""

    model_config = ConfigDict(frozen=True)

    source: str
    document_id: str
    content_hash: str
    scope: str = ""
    pipeline: str = ""
    """Fingerprint of chunker and settings that made its chunks."""
    state: Literal["pending", "written", "committed"] = "pending"
    generation: int = 0
    chunk_ids: tuple[str, ...] = ()
    digest: str = ""
    """Hash over everything that is stored of its chunks."""
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

    def search_dense(self, vector: Vector, *, embedder: str, top_k: int, where: Where | None = None) -> list[Hit]:
        """Return the nearest chunks by cosine, best first: unique ids, ranks from 1, the score under the route `dense`.

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

    def fetch(self, chunk_ids: Sequence[str]) -> list[Chunk]:
        """Return the chunks with these ids that exist, in the order asked for."""
        ...

    def update(self, *, embedder: Embedder, sparse: SparseEncoder, scope: str) -> AbstractContextManager[IndexUpdate]:
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


ROLES: Mapping[str, type[Any]] = {
    "kb": KnowledgeBase,
    "embedder": Embedder,
    "token_embedder": TokenEmbedder,
    "sparse": SparseEncoder,
    "reranker": Reranker,
    "llm": LLM,
}
"""The roles that a flow or the project file can bind, and the protocol behind each."""

_ROLE_OF = {protocol: role for role, protocol in ROLES.items()}


def unwrap_optional(annotation: Any) -> Any:
    """Return `T` for `T | None` and `Annotated[T, ...]`, anything else unchanged."""
    if get_origin(annotation) in (Union, types.UnionType):
        rest = [arg for arg in get_args(annotation) if arg is not type(None)]
        return rest[0] if len(rest) == 1 else annotation
    return annotation


def is_resource_type(annotation: Any) -> bool:
    """Whether a parameter of this annotation is filled by a resource and not by a port."""
    return unwrap_optional(annotation) in _ROLE_OF


def role_of(annotation: Any) -> str:
    """Return the role that a resource annotation asks for."""
    return _ROLE_OF[unwrap_optional(annotation)]


@dataclass(frozen=True)
class ResourceSetting:
    """One setting of a provider."""

    name: str
    type: Any
    default: Any
    required: bool
    secret: bool
    about: str = ""


@dataclass(frozen=True)
class ResourceProvider:
    """A way to get a resource: a factory whose keyword parameters are the provider's settings."""

    name: str
    role: str
    factory: Callable[..., Any]
    settings: tuple[ResourceSetting, ...]
    about: str
    docstring: str
    place: str
    secrets: frozenset[str]


def resource(name: str, *, secrets: Sequence[str] = ()) -> Callable[[F], F]:
    """Declare a factory as a resource provider; its role follows from the return annotation.

    Args:
        name: `family.name`, written as `use:` in flow and project files.
        secrets: settings whose values never reach logs, traces, artifacts, caches or error messages.

    Raises:
        ContractError: no docstring, or the return annotation is none of the resource protocols.
    """

    def attach(factory: F) -> F:
        code = factory.__code__
        place = f"{code.co_filename}:{code.co_firstlineno}"
        hints = get_type_hints(factory, include_extras=True)
        if not is_resource_type(hints.get("return")):
            raise ContractError(f"resource {name}: the return annotation must be a resource protocol ({place})")
        docstring = inspect.getdoc(factory)
        if not docstring:
            raise ContractError(f"resource {name}: a provider needs a docstring ({place})")
        settings = tuple(
            ResourceSetting(
                name=parameter.name,
                type=hints[parameter.name],
                default=None if parameter.default is parameter.empty else parameter.default,
                required=parameter.default is parameter.empty,
                secret=parameter.name in secrets,
            )
            for parameter in inspect.signature(factory).parameters.values()
        )
        provider = ResourceProvider(
            name=name,
            role=role_of(hints["return"]),
            factory=factory,
            settings=settings,
            about=docstring.splitlines()[0],
            docstring=docstring,
            place=place,
            secrets=frozenset(secrets),
        )
        setattr(factory, RESOURCE_ATTRIBUTE, provider)
        return factory

    return attach
