"""Embeddings from any endpoint that speaks OpenAI's protocol."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pydantic import PositiveFloat, PositiveInt

from ragbraid.nodes.onnx_text import unit_rows
from ragbraid.nodes.prefixes import prefix_marks
from ragbraid.registry.context import report_usage
from ragbraid.registry.contracts import Usage
from ragbraid.registry.errors import FailureKind, ServiceError
from ragbraid.registry.resources import Embedder, resource

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]

MAX_RETRIES = 2
"""The client repeats a call after 429, 5xx, a timeout or a lost connection; nothing above it repeats again."""


@resource("openai.embedder", secrets=("api_key",))
def openai_embedder(
    base_url: str,
    model: str,
    api_key: str | None = None,
    dimension: PositiveInt | None = None,
    batch_size: PositiveInt = 64,
    timeout_seconds: PositiveFloat = 60,
    query_prefix: str = "",
    passage_prefix: str = "",
) -> Embedder:
    """Embed through an OpenAI-compatible endpoint (`POST {base_url}/embeddings`).

    Args:
        base_url: address up to and including the version, such as `http://127.0.0.1:8000/v1`.
        model: the model's name at that endpoint.
        api_key: sent as bearer token; left out for servers that need none.
        dimension: length of vectors to ask for, where the model can shorten them; left out, the model's own.
        batch_size: texts in one request.
        timeout_seconds: how long one request may take.
        query_prefix: written before every query, where the model wants one (`query: ` for E5).
        passage_prefix: written before every passage.

    Raises:
        ServiceError: when used: the endpoint failed, with a kind that says how.
    """
    return OpenAIEmbedder(
        base_url=base_url.rstrip("/"),
        model=model,
        api_key=api_key,
        dimension=dimension,
        batch_size=batch_size,
        timeout_seconds=timeout_seconds,
        prefixes=(query_prefix, passage_prefix),
    )


class OpenAIEmbedder:
    """A remote embedding model; its client is made when first used and safe to share between threads."""

    def __init__(
        self,
        *,
        base_url: str,
        model: str,
        api_key: str | None,
        dimension: int | None,
        batch_size: int,
        timeout_seconds: float,
        prefixes: tuple[str, str],
    ) -> None:
        self._base_url = base_url
        self._name = model
        self._api_key = api_key
        self._asked_dimension = dimension
        self._batch_size = batch_size
        self._timeout_seconds = timeout_seconds
        self._query_prefix, self._passage_prefix = prefixes
        self._lock = threading.Lock()
        self._made: Any = None

    @property
    def identity(self) -> str:
        """Names the model and how it is asked, not the address: the same model may move to another server."""
        shortened = f" dimension={self._asked_dimension}" if self._asked_dimension else ""
        return f"openai:{self._name}{shortened}{prefix_marks(self._query_prefix, self._passage_prefix)}"

    @cached_property
    def dimension(self) -> int:
        """Length of its vectors; asks the endpoint where the settings do not say."""
        return self._asked_dimension or len(self.embed_query("dimension"))

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        """Embed passages: float32, shape (len(texts), dimension), rows of unit length."""
        import numpy as np

        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        written = [self._passage_prefix + text for text in texts]
        batches = [written[i : i + self._batch_size] for i in range(0, len(written), self._batch_size)]
        return np.vstack([self._request(batch) for batch in batches])

    def embed_query(self, text: str) -> Matrix:
        """Embed a search text: float32, shape (dimension,), unit length."""
        vector: Matrix = self._request([self._query_prefix + text])[0]
        return vector

    def _request(self, texts: list[str]) -> Matrix:
        options = {} if self._asked_dimension is None else {"dimensions": self._asked_dimension}
        with _told_in_sentences(self._where, self._timeout_seconds):
            # `float` and not the client's own base64: many compatible servers know only this form.
            response = self._client().embeddings.create(
                model=self._name, input=texts, encoding_format="float", **options
            )
        vectors = self._checked(response, len(texts))
        if response.usage is not None:
            report_usage(Usage(prompt_tokens=response.usage.prompt_tokens or 0))
        return vectors

    def _checked(self, response: Any, count: int) -> Matrix:
        import numpy as np

        by_index = {item.index: item.embedding for item in response.data or ()}
        if sorted(by_index) != list(range(count)):
            raise ServiceError(
                f"{self._where} returned {len(by_index)} vectors for {count} texts.", kind="invalid_output"
            )
        rows = [by_index[i] for i in range(count)]
        lengths = {len(row) for row in rows}
        if len(lengths) != 1 or (self._asked_dimension or min(lengths)) not in lengths:
            asked = f"{self._asked_dimension} numbers were asked for" if self._asked_dimension else "they differ"
            found = ", ".join(map(str, sorted(lengths)))
            raise ServiceError(
                f"{self._where} returned vectors of length {found}, but {asked}. Correct `dimension` or leave it out.",
                kind="invalid_output",
            )
        return unit_rows(np.asarray(rows, dtype=np.float32), self._where)

    @property
    def _where(self) -> str:
        return f"The embedding model `{self._name}` at {self._base_url}"

    def _client(self) -> Any:
        from openai import OpenAI

        with self._lock:
            if self._made is None:
                self._made = OpenAI(
                    base_url=self._base_url,
                    api_key=self._api_key or "none",
                    timeout=self._timeout_seconds,
                    max_retries=MAX_RETRIES,
                )
            return self._made


@contextmanager
def _told_in_sentences(where: str, timeout_seconds: float) -> Iterator[None]:
    """Turn the client's exceptions into ServiceErrors whose text holds no key and no body of a request."""
    import openai

    try:
        yield
    except openai.APITimeoutError as error:
        raise ServiceError(f"{where} did not answer within {timeout_seconds:g} seconds.", kind="timeout") from error
    except openai.APIConnectionError as error:
        raise ServiceError(f"{where} cannot be reached. Is the server running?", kind="unavailable") from error
    except openai.APIStatusError as error:
        kind, sentence = _status_sentence(error.status_code)
        raise ServiceError(f"{where} {sentence}", kind=kind) from error
    except (openai.OpenAIError, ValueError, TypeError, AttributeError) as error:
        raise ServiceError(f"{where} answered with something that is no embedding.", kind="invalid_output") from error


def _status_sentence(status: int) -> tuple[FailureKind, str]:
    if status in (401, 403):
        return "auth", f"refused the key (status {status}). Check `api_key`."
    if status == 404:
        return "input", "is not known there (status 404). Check `model` and `base_url`."
    if status == 429:
        return "rate_limit", "has too many requests (status 429)."
    if status >= 500:
        return "unavailable", f"failed (status {status})."
    return "input", f"refused the request (status {status}). A text may be too long, or a setting unknown to it."
