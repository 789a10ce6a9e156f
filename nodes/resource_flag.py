"""The `flag.*` resource providers: embedders and rerankers of FlagEmbedding (BGE), run by PyTorch."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import PositiveInt

from ragbraid.nodes.batches import batches
from ragbraid.nodes.fastembed_models import folder_digest
from ragbraid.nodes.onnx_text import note_truncated, unit_rows
from ragbraid.nodes.prefixes import known_prefixes, prefix_marks
from ragbraid.registry.context import stop_if_cancelled
from ragbraid.registry.errors import ServiceError, SettingsError
from ragbraid.registry.providers import resource
from ragbraid.registry.resources import Embedder, Reranker

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]

EmbedderClass = Literal["encoder-only-base", "encoder-only-m3", "decoder-only-base", "decoder-only-icl"]
RerankerClass = Literal["encoder-only-base", "decoder-only-base", "decoder-only-layerwise", "decoder-only-lightweight"]

INSTALL_LINE = 'pip install "ragbraid[flag]"'
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")


@resource("flag.embedder")
def flag_embedder(
    model: str,
    model_class: EmbedderClass | None = None,
    query_prefix: str | None = None,
    passage_prefix: str = "",
    device: str | None = None,
    half_precision: bool = False,
    batch_size: PositiveInt = 16,
    max_length: PositiveInt = 512,
    pooling: Literal["cls", "mean", "last_token"] | None = None,
) -> Embedder:
    """Embed with a model of FlagEmbedding, such as `BAAI/bge-m3` or a folder of a fine-tuned one.

    The extra `flag` brings PyTorch. The import alone takes several seconds, so it happens when the model is first used.

    Args:
        model: name on the model hub, or a folder.
        model_class: how FlagEmbedding is to run it; needed where it does not know the name of the model or folder.
        query_prefix: instruction before every query; left out, what the model's authors ask for where that is known.
        passage_prefix: written before every passage.
        device: `cpu`, `cuda:0`, ...; left out, every accelerator that is found, else the CPU.
        half_precision: compute with 16-bit numbers; for accelerators.
        batch_size: texts in one call of the model.
        max_length: tokens beyond which a text is cut, with a note in the trace; BGE-M3 reads up to 8192.
        pooling: how token vectors become one; left out, as the model's class does it.

    Raises:
        SettingsError: the extra is not installed, or the model is unknown or cannot be loaded.
    """
    require_flag()
    query = known_prefixes(model)[0] if query_prefix is None else query_prefix

    def open_model() -> Any:
        from FlagEmbedding import FlagAutoModel

        return FlagAutoModel.from_finetuned(
            model,
            model_class=model_class,
            query_instruction_for_retrieval=query or None,
            query_instruction_format="{}{}",
            pooling_method=pooling,
            **_common(device, half_precision),
        )

    return FlagEmbedder(
        open_model=_told_in_sentences(open_model, model),
        identity=_identity(model) + prefix_marks(query, passage_prefix),
        passage_prefix=passage_prefix,
        batch_size=batch_size,
        max_length=max_length,
    )


@resource("flag.reranker")
def flag_reranker(
    model: str,
    model_class: RerankerClass | None = None,
    device: str | None = None,
    half_precision: bool = False,
    batch_size: PositiveInt = 16,
    max_length: PositiveInt = 512,
    normalize: bool = True,
) -> Reranker:
    """Rerank with a model of FlagEmbedding, such as `BAAI/bge-reranker-v2-m3` or a folder of a fine-tuned one.

    Args:
        model: name on the model hub, or a folder.
        model_class: how FlagEmbedding is to run it; needed where it does not know the name of the model or folder.
        device: `cpu`, `cuda:0`, ...; left out, every accelerator that is found, else the CPU.
        half_precision: compute with 16-bit numbers; for accelerators.
        batch_size: pairs in one call of the model.
        max_length: tokens of question and passage together that the model reads.
        normalize: whether scores go through a sigmoid into 0..1; the order is the same.

    Raises:
        SettingsError: the extra is not installed, or the model is unknown or cannot be loaded.
    """
    require_flag()

    def open_model() -> Any:
        from FlagEmbedding import FlagAutoReranker

        return FlagAutoReranker.from_finetuned(model, model_class=model_class, **_common(device, half_precision))

    options = {"batch_size": batch_size, "max_length": max_length, "normalize": normalize}
    return FlagReranker(_told_in_sentences(open_model, model), _identity(model), options)


class FlagEmbedder:
    """A FlagEmbedding model as dense embedder. One call at a time: its tokenizer is changed by every call."""

    def __init__(
        self,
        *,
        open_model: Callable[[], Any],
        identity: str,
        passage_prefix: str,
        batch_size: int,
        max_length: int,
    ) -> None:
        self.identity = identity
        self._open_model = open_model
        self._passage_prefix = passage_prefix
        self._options = {"batch_size": batch_size, "max_length": max_length}
        self._lock = threading.Lock()
        self._loaded: Any = None

    @cached_property
    def dimension(self) -> int:
        """Length of the vectors, taken from the model itself."""
        return len(self.embed_query("dimension"))

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        """Embed passages: float32, shape (len(texts), dimension), rows of unit length."""
        import numpy as np

        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        written = [self._passage_prefix + text for text in texts]
        with self._lock:
            model = self._model()
            lengths = [len(ids) for ids in model.tokenizer(written, verbose=False)["input_ids"]]
            rows = []
            for batch in batches(written, self._options["batch_size"]):
                stop_if_cancelled()
                rows.append(self._dense(model.encode_corpus(batch, **self._options)))
        limit = self._options["max_length"]
        note_truncated(sum(length > limit for length in lengths), len(texts), limit=limit, label=self.identity)
        return np.vstack(rows)

    def embed_query(self, text: str) -> Matrix:
        """Embed a search text: float32, shape (dimension,), unit length."""
        with self._lock:
            found = self._model().encode_queries([text], **self._options)
        vector: Matrix = self._dense(found)[0]
        return vector

    def _dense(self, found: Any) -> Matrix:
        """Unpack: BGE-M3 returns dense, sparse and token vectors by name, the other classes an array."""
        import numpy as np

        vectors = found["dense_vecs"] if isinstance(found, dict) else found
        return unit_rows(np.asarray(vectors, dtype=np.float32), self.identity)

    def _model(self) -> Any:
        if self._loaded is None:
            self._loaded = self._open_model()
        return self._loaded


class FlagReranker:
    """A FlagEmbedding reranker. One call at a time: its tokenizer is changed by every call."""

    def __init__(self, open_model: Callable[[], Any], identity: str, options: dict[str, Any]) -> None:
        self.identity = identity
        self._open_model = open_model
        self._options = options
        self._lock = threading.Lock()
        self._loaded: Any = None

    def score(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return one score per text, in order; higher is better.

        Raises:
            ServiceError: a score is not a number.
        """
        import numpy as np

        if not texts:
            return []
        with self._lock:
            if self._loaded is None:
                self._loaded = self._open_model()
            scores: list[float] = []
            for batch in batches(texts, self._options["batch_size"]):
                stop_if_cancelled()
                found = self._loaded.compute_score([(query, text) for text in batch], **self._options)
                scores += map(float, np.atleast_1d(found))
        if not all(map(math.isfinite, scores)):
            raise ServiceError(f"{self.identity} returned a score that is not a number.", kind="invalid_output")
        return scores


def require_flag() -> None:
    """Raise SettingsError with the line to type where FlagEmbedding is not installed."""
    if find_spec("FlagEmbedding") is None:
        raise SettingsError(f"FlagEmbedding is not installed. Install it: {INSTALL_LINE}", hint=INSTALL_LINE)


def _common(device: str | None, half_precision: bool) -> dict[str, Any]:
    return {"devices": device, "use_fp16": half_precision, "trust_remote_code": False}


def _identity(model: str) -> str:
    folder = Path(model).expanduser()
    for name in WEIGHT_FILES:
        if (folder / name).is_file():
            return f"flag:{folder.name}@{folder_digest(folder, name)}"
    return f"flag:{model}"


def _told_in_sentences(open_model: Callable[[], Any], model: str) -> Callable[[], Any]:
    def opened() -> Any:
        try:
            return open_model()
        except ImportError as error:
            raise SettingsError(
                f"FlagEmbedding cannot be imported: {error}. It needs transformers from 5 to below 5.24: {INSTALL_LINE}"
            ) from error
        except ValueError as error:
            if "not found in the model mapping" not in str(error):
                raise SettingsError(f"The model {model} cannot be loaded: {error}") from error
            raise SettingsError(
                f"FlagEmbedding does not know how to run `{model}`. Say it in `model_class`, "
                "`encoder-only-base` for most BERT-like models."
            ) from error
        except OSError as error:
            raise SettingsError(
                f"The model {model} is neither in the local cache nor a folder, and could not be fetched from the hub. "
                "Run once with a connection, or give the folder of a downloaded model."
            ) from error

    return opened
