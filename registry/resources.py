"""Models as resources: what nodes ask for by type (an embedder, a reranker, a language model).

The knowledge base is in `ragbraid.registry.knowledge`, how providers are declared in `ragbraid.registry.providers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar, runtime_checkable

from pydantic import BaseModel, ConfigDict

from ragbraid.registry.contracts import SourceFailure, Usage

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]
    Vector = NDArray[np.float32]

M = TypeVar("M", bound=BaseModel)
V = TypeVar("V")


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

    An adapter that can stream does so where `ragbraid.registry.context.begin_text` says that somebody follows the text:
    all of a `complete`, and of an `extract` what the form shows (`ragbraid.registry.context.WritesText`).
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


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a remote place, as it was when it was listed.

    `name` is its URL without credentials, `path` what it is called below `place`, which was listed, and `address` what
    it is fetched by. `version` stands for exactly these bytes, where the place can tell; `modified` is ISO 8601.
    """

    name: str
    path: str
    place: str
    address: str = field(repr=False)
    size: int | None = None
    version: str | None = None
    modified: str | None = None
    media_type: str | None = None


@dataclass(frozen=True, slots=True)
class RemoteListing:
    """Everything that lies at a remote place: its name without credentials, the files, and what has no usable name."""

    place: str
    files: tuple[RemoteFile, ...]
    failures: tuple[SourceFailure, ...] = ()
    is_file: bool = False


@runtime_checkable
class RemoteFiles(Protocol):
    """Lists and reads files by URL. Safe to share between threads; tries again what may succeed a second time."""

    @property
    def connections(self) -> int:
        """How many files to read at once."""
        ...

    def find(self, url: str) -> RemoteListing:
        """List a file, or all files below a place whose URL ends with a slash, wholly or not at all.

        Raises:
            RunError: of kind `input`, when nothing is there or the URL cannot be used.
            ServiceError: the place cannot be listed to its end; nothing may be concluded from what is missing.
        """
        ...

    def look(self, file: RemoteFile) -> RemoteFile:
        """Return the file with what its listing did not say of it: size, version, date.

        Raises:
            FileNotFoundError: it is gone.
            ServiceError: it cannot be looked at, with the reason as a sentence.
        """
        ...

    def read(self, file: RemoteFile, max_bytes: int) -> bytes:
        """Return the content of a file; no more than `max_bytes + 1` bytes of one that is larger.

        Raises:
            FileNotFoundError: it is gone.
            ServiceError: it cannot be read, with the reason as a sentence.
        """
        ...
