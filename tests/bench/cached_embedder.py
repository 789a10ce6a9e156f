"""An embedder whose vectors are kept in a file, for benchmarks: in Python, or bound in a project as `bench.cached`."""

from __future__ import annotations

import hashlib
import sqlite3
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ragbraid.registry.catalogue import installed_catalogue
from ragbraid.registry.providers import resource
from ragbraid.registry.resources import Embedder

DEFAULT_CACHE = Path.home() / ".cache" / "ragbraid-bench"


class CachedEmbedder:
    """Keeps the vectors of an embedder in a SQLite file, so that an interrupted benchmark continues."""

    def __init__(self, inner: Embedder, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._inner = inner
        self._file = sqlite3.connect(folder / "embeddings.sqlite3", check_same_thread=False)
        self._file.execute("create table if not exists vectors (key text primary key, vector blob)")
        self.identity = inner.identity
        self.dimension = inner.dimension

    def embed_documents(self, texts: Sequence[str]) -> np.ndarray:
        return self._through_cache("document", texts, self._inner.embed_documents)

    def embed_query(self, text: str) -> np.ndarray:
        return self._through_cache("query", [text], lambda texts: np.stack([self._inner.embed_query(texts[0])]))[0]

    def close(self) -> None:
        self._file.close()

    def _through_cache(self, role: str, texts: Sequence[str], embed: Callable[[list[str]], np.ndarray]) -> np.ndarray:
        keys = [hashlib.sha256(f"{self.identity}\0{role}\0{text}".encode()).hexdigest() for text in texts]
        known = {key: vector for key in keys if (vector := self._look_up(key)) is not None}
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
        if missing:
            for key, vector in zip(missing, embed(list(missing.values())), strict=True):
                known[key] = vector
                self._file.execute("insert or replace into vectors values (?, ?)", (key, vector.tobytes()))
            self._file.commit()
        return np.stack([known[key] for key in keys])

    def _look_up(self, key: str) -> np.ndarray | None:
        row = self._file.execute("select vector from vectors where key = ?", (key,)).fetchone()
        return None if row is None else np.frombuffer(row[0], dtype=np.float32)


@resource("bench.cached")
def cached(folder: str, embedder: str = "packaged.e5") -> Embedder:
    """Take vectors from a file where it has them, else from another embedder, and keep them.

    Args:
        folder: where the file lies.
        embedder: embedder of the catalogue, with its default settings.
    """
    return CachedEmbedder(open_embedder(embedder), Path(folder))


def open_embedder(name: str) -> Embedder:
    """Open an embedder of the catalogue with its default settings."""
    provider = installed_catalogue().find_resource(name)
    if provider is None or provider.role != "embedder":
        sys.exit(f"there is no embedder {name!r}")
    opened: Embedder = provider.factory()
    return opened
