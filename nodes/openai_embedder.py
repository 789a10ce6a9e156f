"""Embeddings from any endpoint that speaks OpenAI's protocol."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, PositiveFloat, PositiveInt

from ragbraid.nodes.background_loop import begin, run_cancellable
from ragbraid.nodes.onnx_text import unit_rows
from ragbraid.nodes.openai_chat import LONGEST_WAIT_SECONDS, RetryPolicy
from ragbraid.nodes.openai_errors import Endpoint, Failure, read_failure, secrets_of, unusable
from ragbraid.nodes.prefixes import known_prefixes, prefix_marks
from ragbraid.registry.context import report_usage
from ragbraid.registry.contracts import Usage
from ragbraid.registry.providers import resource
from ragbraid.registry.resources import Embedder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]


@resource("openai.embedder", secrets=("api_key",))
def openai_embedder(
    *,
    model: str,
    base_url: str | None = None,
    api_key: str | None = None,
    dimension: PositiveInt | None = None,
    batch_size: PositiveInt = 64,
    timeout_seconds: PositiveFloat = 60.0,
    max_attempts: Annotated[int, Field(ge=1, le=10)] = 3,
    query_prefix: str | None = None,
    passage_prefix: str | None = None,
) -> Embedder:
    """Embed through any OpenAI-compatible endpoint (`POST {base_url}/embeddings`).

    Connection errors, timeouts, 429 (its Retry-After is honoured up to 60 seconds) and 5xx are tried again with a
    growing delay; this is the only retry layer.

    Args:
        model: the model's name at the endpoint.
        base_url: the endpoint, such as http://127.0.0.1:8080/v1; OpenAI itself when left out.
        api_key: the key, written as a reference such as `${env.OPENAI_API_KEY}`; may be left out for local servers.
        dimension: length of vectors to ask for, where the model can shorten them; left out, the model's own.
        batch_size: texts in one request.
        timeout_seconds: bounds each single request.
        max_attempts: how often one request is tried, the first time included.
        query_prefix: written before every query; left out, what the model's authors ask for where that is known.
        passage_prefix: written before every passage; left out, what the model's authors ask for where that is known.

    Raises:
        SettingsError: the address is no http address or holds a password, or OpenAI itself is used without a key.
    """
    # Not at the top: that module offers this provider and so imports this one.
    from ragbraid.nodes.resource_openai import check_base_url

    default_query, default_passage = known_prefixes(model)
    return OpenAIEmbedder(
        endpoint=Endpoint(
            check_base_url(base_url, api_key, provider="openai.embedder"), model, secrets_of(api_key, {})
        ),
        api_key=api_key,
        dimension=dimension,
        batch_size=batch_size,
        timeout_seconds=timeout_seconds,
        retry=RetryPolicy(max_attempts=max_attempts),
        query_prefix=default_query if query_prefix is None else query_prefix,
        passage_prefix=default_passage if passage_prefix is None else passage_prefix,
    )


class OpenAIEmbedder:
    """A remote embedding model; its client is made when first used and safe to share between threads."""

    def __init__(
        self,
        *,
        endpoint: Endpoint,
        api_key: str | None,
        dimension: int | None,
        batch_size: int,
        timeout_seconds: float,
        retry: RetryPolicy,
        query_prefix: str,
        passage_prefix: str,
    ) -> None:
        self._endpoint = endpoint
        self._api_key = api_key
        self._asked_dimension = dimension
        self._batch_size = batch_size
        self._timeout_seconds = timeout_seconds
        self._retry = retry
        self._query_prefix = query_prefix
        self._passage_prefix = passage_prefix
        self._lock = threading.Lock()
        self._made: Any = None

    @property
    def identity(self) -> str:
        """Names the model and how it is asked, not the address: the same model may move to another server."""
        shortened = f" dimension={self._asked_dimension}" if self._asked_dimension else ""
        return f"openai:{self._endpoint.model}{shortened}{prefix_marks(self._query_prefix, self._passage_prefix)}"

    @cached_property
    def dimension(self) -> int:
        """Length of its vectors; asks the endpoint where the settings do not say."""
        return self._asked_dimension or len(self.embed_query("dimension"))

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        """Embed passages: float32, shape (len(texts), dimension), rows of unit length.

        Raises:
            ServiceError: the endpoint failed, with a kind that says how, or did not give one vector per text.
        """
        import numpy as np

        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        written = [self._passage_prefix + text for text in texts]
        batches = [written[i : i + self._batch_size] for i in range(0, len(written), self._batch_size)]
        return np.vstack([self._embed(batch) for batch in batches])

    def embed_query(self, text: str) -> Matrix:
        """Embed a search text: float32, shape (dimension,), unit length. Raises as `embed_documents` does."""
        vector: Matrix = self._embed([self._query_prefix + text])[0]
        return vector

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            client, self._made = self._made, None
        if client is not None:
            self._closing.detach()
            begin(client.close()).result()

    def _embed(self, texts: list[str]) -> Matrix:
        attempt = 0
        while True:
            attempt += 1
            answer = self._request(texts)
            if not isinstance(answer, Failure):
                return self._checked(answer, len(texts))
            wait = self._retry.delay(attempt, answer.retry_after_seconds)
            if not answer.retry or attempt >= self._retry.max_attempts or wait > LONGEST_WAIT_SECONDS:
                raise answer.error
            run_cancellable(asyncio.sleep(wait))

    def _request(self, texts: list[str]) -> Any:
        import openai

        options = {} if self._asked_dimension is None else {"dimensions": self._asked_dimension}
        try:
            # `float` and not the client's own base64: many compatible servers know only this form.
            return run_cancellable(
                self._client().embeddings.create(
                    model=self._endpoint.model, input=texts, encoding_format="float", **options
                )
            )
        except (openai.OpenAIError, ValueError, TypeError, AttributeError) as error:
            return read_failure(error, self._endpoint, self._timeout_seconds)

    def _checked(self, response: Any, count: int) -> Matrix:
        import numpy as np

        if response.usage is not None:
            report_usage(Usage(prompt_tokens=response.usage.prompt_tokens or 0))
        by_index = {item.index: item.embedding for item in response.data or ()}
        if sorted(by_index) != list(range(count)):
            raise unusable(self._endpoint, f"it holds {len(by_index)} vectors for {count} texts")
        lengths = sorted({len(by_index[i]) for i in range(count)})
        if len(lengths) > 1:
            raise unusable(self._endpoint, f"its vectors differ in length: {', '.join(map(str, lengths))}")
        if self._asked_dimension not in (None, lengths[0]):
            raise unusable(
                self._endpoint, f"its vectors have {lengths[0]} numbers, not the `dimension` of {self._asked_dimension}"
            )
        return unit_rows(np.asarray([by_index[i] for i in range(count)], dtype=np.float32), f"The {self._endpoint}")

    def _client(self) -> Any:
        from openai import AsyncOpenAI

        with self._lock:
            if self._made is None:
                client = self._made = AsyncOpenAI(
                    base_url=self._endpoint.url,
                    api_key=self._api_key or "none",
                    timeout=self._timeout_seconds,
                    max_retries=0,
                )
                self._closing = weakref.finalize(self, lambda: begin(client.close()))
                self._closing.atexit = False
            return self._made
