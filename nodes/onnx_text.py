"""A fastembed text model shared by threads: batches that waste no padding, and no text cut off in silence."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ragbraid.registry.context import report_note, stop_if_cancelled
from ragbraid.registry.errors import ServiceError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]

WINDOW = 512
"""How many texts are tokenised, sorted and embedded before the next ones are looked at; bounds memory."""


def batches_by_length(lengths: Sequence[int], *, batch_size: int, batch_tokens: int) -> Iterator[list[int]]:
    """Group positions into batches of similar length, longest first.

    A batch holds at most `batch_size` texts and, padded to its longest, at most `batch_tokens` tokens; a text that is
    longer than that alone has a batch to itself.
    """
    batch: list[int] = []
    for position in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        width = lengths[batch[0]] if batch else lengths[position]
        if batch and (len(batch) == batch_size or width * (len(batch) + 1) > batch_tokens):
            yield batch
            batch = []
        batch.append(position)
    if batch:
        yield batch


class OnnxTextModel:
    """A `fastembed.TextEmbedding` that is loaded when first used.

    Safe to share between threads: loading is guarded by a lock; afterwards tokenizer and ONNX session are only read,
    and both allow calls from many threads at once.

    Args:
        open_model: returns the loaded `fastembed.TextEmbedding`; called once.
        label: names the model in messages.
        batch_size: most texts in one call of the model.
        batch_tokens: most tokens in one call, padding included.
    """

    def __init__(self, open_model: Callable[[], Any], *, label: str, batch_size: int, batch_tokens: int) -> None:
        self._open_model = open_model
        self._label = label
        self._batch_size = batch_size
        self._batch_tokens = batch_tokens
        self._lock = threading.Lock()
        self._loaded: Any = None

    def embed(self, texts: Sequence[str], *, role: Literal["query", "document"]) -> Matrix:
        """Return one vector of unit length per text, in order; shape (0, 0) for no text.

        Raises:
            ServiceError: the model failed, or gave a vector that is no direction (not finite, or zero).
        """
        import numpy as np

        model = self._model()
        run = model.query_embed if role == "query" else model.passage_embed
        rows: list[Matrix | None] = [None] * len(texts)
        for batch in self._batches(texts):
            vectors = list(run([texts[i] for i in batch], batch_size=len(batch)))
            for position, vector in zip(batch, vectors, strict=True):
                rows[position] = vector
        if not rows:
            return np.zeros((0, 0), np.float32)
        return unit_rows(np.asarray(rows, dtype=np.float32), self._label)

    def embed_tokens(self, texts: Sequence[str]) -> list[Matrix]:
        """Return one matrix per text: a vector of unit length for every token, special tokens and padding left out."""
        import numpy as np

        inner = self._model().model
        found: list[Matrix] = [np.zeros((0, 0), np.float32)] * len(texts)
        for batch in self._batches(texts):
            chosen = [texts[i] for i in batch]
            states = inner.onnx_embed(chosen).model_output
            for position, encoding, state in zip(batch, inner.tokenize(chosen), states, strict=True):
                kept = np.asarray(encoding.special_tokens_mask) == 0
                found[position] = unit_rows(np.asarray(state[kept], dtype=np.float32), self._label)
        return found

    def _model(self) -> Any:
        with self._lock:
            if self._loaded is None:
                self._loaded = self._open_model()
            return self._loaded

    def _batches(self, texts: Sequence[str]) -> Iterator[list[int]]:
        tokenize = getattr(self._model().model, "tokenize", None)
        cut = limit = 0
        for start in range(0, len(texts), WINDOW):
            window = list(texts[start : start + WINDOW])
            if tokenize is None:
                lengths = [len(text) for text in window]
            else:
                encodings = tokenize(window)
                lengths = [sum(encoding.attention_mask) for encoding in encodings]
                longer = [length for length, made in zip(lengths, encodings, strict=True) if made.overflowing]
                cut, limit = cut + len(longer), max([limit, *longer])
            for batch in batches_by_length(lengths, batch_size=self._batch_size, batch_tokens=self._batch_tokens):
                stop_if_cancelled()
                yield [start + i for i in batch]
        note_truncated(cut, len(texts), limit=limit, label=self._label)


def note_truncated(cut: int, total: int, *, limit: int, label: str) -> None:
    """Leave a note in the trace when texts were longer than a model reads."""
    if cut:
        report_note(
            f"{cut} of {total} texts are longer than the {limit} tokens that {label} reads; "
            "only their beginning was embedded. Smaller chunks avoid this."
        )


def unit_rows(matrix: Matrix, label: str) -> Matrix:
    """Scale every row to length 1.

    Raises:
        ServiceError: a row is zero or not finite, so that it has no direction.
    """
    import numpy as np

    norms = np.linalg.norm(matrix, axis=-1, keepdims=True)
    if not np.all(np.isfinite(norms)) or not np.all(norms > 0):
        raise ServiceError(f"{label} returned a vector that is zero or not finite.", kind="invalid_output")
    scaled: Matrix = matrix / norms
    return scaled
