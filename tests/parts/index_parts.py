"""Parts of the index tests: a fast deterministic embedder, a small BM25, corpora, and the content of a store."""

from __future__ import annotations

import hashlib
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ragbraid.nodes.store import EVERYTHING, Store, read_info
from ragbraid.registry.contracts import Chunk, ChunkSet, SourceFailure, SourceRecord
from ragbraid.registry.resources import SparseVector

Corpus = Mapping[str, Sequence[str]]
"""Source -> the texts of its chunks."""


class HashEmbedder:
    """Unit vectors from hashes of texts; counts what it embeds, and calls `before_batch` ahead of each call."""

    def __init__(
        self, *, dimension: int = 8, identity: str = "hash-1", before_batch: Callable[[int], None] | None = None
    ) -> None:
        self.identity = identity
        self.dimension = dimension
        self.batches: list[list[str]] = []
        self._before_batch = before_batch

    @property
    def embedded(self) -> int:
        return sum(map(len, self.batches))

    def embed_documents(self, texts: Sequence[str]) -> Any:
        if self._before_batch is not None:
            self._before_batch(len(self.batches))
        self.batches.append(list(texts))
        return np.stack([self.embed_query(text) for text in texts])

    def embed_query(self, text: str) -> Any:
        seed = int.from_bytes(hashlib.sha256(f"{self.identity} {text}".encode()).digest()[:8], "big")
        vector = np.random.default_rng(seed).standard_normal(self.dimension)
        return (vector / np.linalg.norm(vector)).astype(np.float32)


class AngleEmbedder:
    """Vectors in a plane: a text that ends in `@0.8` has the cosine 0.8 with one that has no such ending."""

    identity = "angles"
    dimension = 2

    def embed_documents(self, texts: Sequence[str]) -> Any:
        return np.stack([self.embed_query(text) for text in texts])

    def embed_query(self, text: str) -> Any:
        cosine = float(text.rpartition("@")[2]) if "@" in text else 1.0
        return np.asarray([cosine, (1 - cosine**2) ** 0.5], dtype=np.float32)


class WordSparse:
    """BM25 weights over words split at blanks (k1 1.2, b 0.75)."""

    def __init__(self, identity: str = "words-1") -> None:
        self.identity = identity

    def count_tokens(self, text: str) -> int:
        return len(text.split())

    def encode_documents(self, texts: Sequence[str], *, average_length: float) -> list[SparseVector]:
        return [self._encode(text.split(), average_length) for text in texts]

    def encode_query(self, text: str) -> SparseVector:
        return SparseVector(tuple(sorted({_term(word) for word in text.split()})), (1.0,) * len(set(text.split())))

    def _encode(self, words: list[str], average_length: float) -> SparseVector:
        norm = 1.2 * (0.25 + 0.75 * len(words) / average_length)
        weights = {_term(word): count * 2.2 / (count + norm) for word, count in Counter(words).items()}
        return SparseVector(tuple(sorted(weights)), tuple(weights[term] for term in sorted(weights)))


def _term(word: str) -> int:
    return zlib.crc32(word.encode())


def chunk_id(source: str, text: str, occurrence: int = 0) -> str:
    return hashlib.sha256(f"{source}\x1f{text}\x1f{occurrence}".encode()).hexdigest()[:16]


def make_chunks(source: str, texts: Sequence[str], *, made_by: str = "split-1", **fields: Any) -> tuple[Chunk, ...]:
    seen: Counter[str] = Counter()
    chunks = []
    for index, text in enumerate(texts):
        id_ = chunk_id(source, text, seen[text])
        seen[text] += 1
        given = {"document_id": f"doc:{source}", "source": source, "index": index, "made_by": made_by, **fields}
        chunks.append(Chunk(id=id_, text=text, **given))
    return tuple(chunks)


def make_set(
    corpus: Corpus, *, scope: str = "", complete: bool = True, failed: Sequence[str] = (), **fields: Any
) -> ChunkSet:
    return ChunkSet(
        chunks=tuple(chunk for source, texts in corpus.items() for chunk in make_chunks(source, texts, **fields)),
        sources=tuple(
            SourceRecord(source=source, document_id=f"doc:{source}", content_hash=_hash(texts))
            for source, texts in corpus.items()
        ),
        failures=tuple(SourceFailure(source=source, reason="cannot be read") for source in failed),
        scope=scope,
        complete=complete,
    )


def with_atoms(chunk_set: ChunkSet, questions: Callable[[Chunk], Sequence[str]]) -> ChunkSet:
    """Give chunks the questions that they answer, as `enrich.tag_atoms` does, stamped with `asked-` and their text."""
    chunks = []
    for chunk in chunk_set.chunks:
        asked = list(questions(chunk))
        chunks.append(chunk.model_copy(update={"enrichments": {f"asked-{chunk.text}": asked}}))
        chunks += [
            chunk.model_copy(
                update={"id": chunk_id(chunk.id, question), "text": question, "kind": "atom", "parent_id": chunk.id}
            )
            for question in asked
        ]
    return chunk_set.model_copy(update={"chunks": tuple(chunks)})


def _hash(texts: Sequence[str]) -> str:
    return hashlib.sha256("\x1f".join(texts).encode()).hexdigest()


def content_of(store: Store) -> dict[Any, Any]:
    """Everything in a store, save for the numbers of generations and the last bits of vectors."""
    content: dict[Any, Any] = {}
    for point in store.scroll(EVERYTHING, with_vectors=True):
        payload = dict(point.payload)
        key = (payload["kind"], payload.get("source"), payload.get("chunk_id"))
        assert key not in content, f"stored twice: {key}"
        for name in ("gen_from", "gen_to"):
            payload.pop(name, None)
        for name in ("info", "record"):
            if name in payload:
                payload[name] = {k: v for k, v in payload[name].items() if k != "generation"}
        dense = None if point.dense is None else tuple(np.round(point.dense, 5).tolist())
        terms = None if point.sparse is None else tuple(zip(point.sparse.indices, point.sparse.values, strict=True))
        content[key] = (payload, dense, terms and tuple((term, round(weight, 5)) for term, weight in terms))
    info = read_info(store)
    assert info is not None
    assert not info.updating
    return content
