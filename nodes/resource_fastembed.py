"""The `fastembed.*` resource providers: ONNX embedders and cross-encoders, from the hub or from a folder."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from pydantic import PositiveInt

from ragbraid.nodes.fastembed_models import (
    MODEL_FILE,
    Pooling,
    check_folder,
    check_known,
    folder_digest,
    known_file,
    open_from_hub,
    open_local_cross_encoder,
    open_local_folder,
    require_fastembed,
)
from ragbraid.nodes.onnx_text import OnnxTextModel
from ragbraid.nodes.prefixes import known_prefixes, prefix_marks
from ragbraid.registry.context import stop_if_cancelled
from ragbraid.registry.errors import ServiceError
from ragbraid.registry.providers import resource
from ragbraid.registry.resources import Embedder, Reranker

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]


@resource("fastembed.embedder")
def fastembed_embedder(
    model: str,
    path: str | None = None,
    threads: PositiveInt | None = None,
    query_prefix: str | None = None,
    passage_prefix: str | None = None,
    batch_size: PositiveInt = 64,
    batch_tokens: PositiveInt = 1024,
    pooling: Pooling = "mean",
    model_file: str = MODEL_FILE,
) -> Embedder:
    """Embed with an ONNX model that fastembed loads, by its name on the hub or from a folder.

    Args:
        model: a model that fastembed knows, such as `BAAI/bge-small-en-v1.5`; with `path` any name of your own.
        path: folder with `tokenizer.json`, `tokenizer_config.json` and the model file; then nothing is downloaded.
        threads: cores that one call uses; all where it is left out.
        query_prefix: written before every query; left out, what the model's authors ask for where that is known.
        passage_prefix: written before every passage; left out, what the model's authors ask for where that is known.
        batch_size: most texts in one call of the model.
        batch_tokens: most tokens in one call, padding included; on a CPU more of them are slower, not faster.
        pooling: how token vectors become one vector; only for a folder whose model fastembed does not know.
        model_file: the ONNX file inside the folder; only for a folder whose model fastembed does not know.

    Raises:
        SettingsError: fastembed is not installed, the model is unknown, the folder is incomplete, or the model is
            neither in the cache nor can be fetched.
    """
    require_fastembed()
    from fastembed import TextEmbedding

    if path is None:
        check_known(TextEmbedding, model, "embedding model")
        open_model = partial(open_from_hub, TextEmbedding, model, threads=threads)
        identity = f"fastembed:{model}"
    else:
        file = known_file(TextEmbedding, model) or model_file
        folder = check_folder(path, file)
        open_model = partial(open_local_folder, folder, name=model, threads=threads, pooling=pooling, model_file=file)
        pooled = "" if pooling == "mean" else f" pooling={pooling}"
        identity = f"fastembed:{model}@{folder_digest(folder, file)}{pooled}"
    default_query, default_passage = known_prefixes(model)
    return FastembedEmbedder(
        open_model=open_model,
        identity=identity,
        query_prefix=default_query if query_prefix is None else query_prefix,
        passage_prefix=default_passage if passage_prefix is None else passage_prefix,
        batch_size=batch_size,
        batch_tokens=batch_tokens,
    )


@resource("fastembed.cross_encoder")
def fastembed_cross_encoder(
    model: str,
    path: str | None = None,
    threads: PositiveInt | None = None,
    batch_size: PositiveInt = 32,
    model_file: str = MODEL_FILE,
) -> Reranker:
    """Rerank with an ONNX cross-encoder that fastembed loads, by its name on the hub or from a folder.

    Args:
        model: a model that fastembed knows, such as `BAAI/bge-reranker-base`; with `path` any name of your own.
        path: folder with `tokenizer.json`, `tokenizer_config.json` and the model file; then nothing is downloaded.
        threads: cores that one call uses; all where it is left out.
        batch_size: pairs in one call of the model.
        model_file: the ONNX file inside the folder; only for a folder whose model fastembed does not know.

    Raises:
        SettingsError: fastembed is not installed, the model is unknown, the folder is incomplete, or the model is
            neither in the cache nor can be fetched.
    """
    require_fastembed()
    from fastembed.rerank.cross_encoder import TextCrossEncoder

    if path is None:
        check_known(TextCrossEncoder, model, "cross-encoder")
        open_model = partial(open_from_hub, TextCrossEncoder, model, threads=threads)
        identity = f"fastembed:{model}"
    else:
        file = known_file(TextCrossEncoder, model) or model_file
        folder = check_folder(path, file)
        open_model = partial(open_local_cross_encoder, folder, name=model, threads=threads, model_file=file)
        identity = f"fastembed:{model}@{folder_digest(folder, file)}"
    return FastembedReranker(open_model, identity, batch_size)


class FastembedEmbedder:
    """A fastembed model as dense embedder; loaded when first used."""

    def __init__(
        self,
        *,
        open_model: Callable[[], Any],
        identity: str,
        query_prefix: str,
        passage_prefix: str,
        batch_size: int,
        batch_tokens: int,
    ) -> None:
        self.identity = identity + prefix_marks(query_prefix, passage_prefix)
        self._query_prefix = query_prefix
        self._passage_prefix = passage_prefix
        self._model = OnnxTextModel(open_model, label=identity, batch_size=batch_size, batch_tokens=batch_tokens)

    @cached_property
    def dimension(self) -> int:
        """Length of the vectors, taken from the model itself."""
        return len(self.embed_query("dimension"))

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        """Embed passages: float32, shape (len(texts), dimension), rows of unit length."""
        vectors = self._model.embed([self._passage_prefix + text for text in texts], role="document")
        return vectors if texts else vectors.reshape(0, self.dimension)

    def embed_query(self, text: str) -> Matrix:
        """Embed a search text: float32, shape (dimension,), unit length."""
        vector: Matrix = self._model.embed([self._query_prefix + text], role="query")[0]
        return vector


class FastembedReranker:
    """A fastembed cross-encoder; loaded when first used, safe to share between threads."""

    def __init__(self, open_model: Callable[[], Any], identity: str, batch_size: int) -> None:
        self.identity = identity
        self._open_model = open_model
        self._batch_size = batch_size
        self._lock = threading.Lock()
        self._loaded: Any = None

    def score(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return one score per text, in order; higher is better, the scale is the model's (mostly logits).

        Raises:
            ServiceError: a score is not a number.
        """
        if not texts:
            return []
        with self._lock:
            if self._loaded is None:
                self._loaded = self._open_model()
        scores = []
        for score in self._loaded.rerank(query, list(texts), batch_size=self._batch_size):  # batch by batch
            stop_if_cancelled()
            scores.append(float(score))
        if not all(map(math.isfinite, scores)):
            raise ServiceError(f"{self.identity} returned a score that is not a number.", kind="invalid_output")
        return scores
