"""What a hybrid query costs beside the engine calls that it makes (`bench_retrieval.py --cost`), and in which part.

The calls are not written down here but recorded: every query is answered once with a recorder before the engine, and the
very calls that the node made are made again without it: the same searches with the same limits (the surplus that settles
equal scores included), filters and payload choices, and the same texts read. Requests are taken as they were recorded,
so that not even making one is paid for. Two figures of it:

- `calls`: the methods of the engine alone; nothing is read of what they return.
- `made`: the calls, and one look at the id and score of every point found and at the id and payload of every point read.
  The engine makes Python values only then, so this is the least that anybody pays who wants the answer. The target
  (1.2) is held against this.

And of ours:

- `hybrid`: the node from the question's text to the checked `Ranking`. The embedder is a table, so that no model counts.
- `encoded`: the same where the question's terms come from a table too: both vectors are given, as to the engine.

Each of them answers all questions before the next takes its turn, as each would in a process of its own, several rounds;
medians over all answers.
"""

from __future__ import annotations

import hashlib
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from ragbraid.nodes import knowledge_base, retrieve
from ragbraid.nodes.bm25 import Bm25Encoder
from ragbraid.nodes.resource_qdrant import embedded
from ragbraid.nodes.retrieve import hybrid
from ragbraid.nodes.store import CHUNKS, Point
from ragbraid.nodes.store_edge import EdgeStore
from ragbraid.registry.contracts import Query
from ragbraid.registry.knowledge import KnowledgeBase
from ragbraid.registry.resources import Embedder, SparseEncoder, SparseVector

BM25 = Bm25Encoder()
ROUNDS = 7
TARGET = 1.2

Figures = dict[str, float]
Call = tuple[str, tuple[Any, ...], dict[str, Any]]


class RandomEmbedder:
    """Gives every text a fixed random direction, so that a query costs nothing but the search."""

    identity = "random"
    dimension = 384

    def __init__(self) -> None:
        self._known: dict[str, np.ndarray] = {}

    def embed_documents(self, texts: Sequence[str]) -> np.ndarray:
        return np.stack([self.embed_query(text) for text in texts])

    def embed_query(self, text: str) -> np.ndarray:
        if text not in self._known:
            seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
            vector = np.random.default_rng(seed).standard_normal(self.dimension).astype(np.float32)
            self._known[text] = vector / np.linalg.norm(vector)
        return self._known[text]


class TableEncoder(Bm25Encoder):
    """Knows the terms of every question already."""

    def __init__(self, texts: Sequence[str]) -> None:
        super().__init__()
        self._known = {text: BM25.encode_query(text) for text in texts}

    def encode_query(self, text: str) -> SparseVector:
        return self._known[text]


class Recorder:
    """Stands before the engine, hands every call on, and keeps it with the seconds that it took."""

    def __init__(self, shard: Any) -> None:
        self.shard = shard
        self.calls: list[Call] = []
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.shard, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, args, kwargs))
            began = time.perf_counter()
            answer = method(*args, **kwargs)
            self.seconds += time.perf_counter() - began
            return answer

        return call


def run_cost(chunks: int, count: int, fill: Callable[[KnowledgeBase, list[Any], Any], None]) -> tuple[Any, bool]:
    """Measure hybrid queries beside their engine calls, and eight threads beside one; print all figures."""
    embedder = RandomEmbedder()
    rng = np.random.default_rng(7)
    words = [f"word{number}" for number in range(20_000)]
    texts = [" ".join(words[int(w)] for w in np.minimum(rng.zipf(1.3, 120), 19_999)) for _ in range(chunks)]
    queries = [" ".join(rng.choice(text.split(), 6)) for text in texts[:count]]
    with tempfile.TemporaryDirectory() as place:
        kb = embedded(place, "bench")
        fill(kb, [{"id": f"p{number}", "text": text} for number, text in enumerate(texts)], embedder)
        store = EdgeStore(place, "bench")
        result: dict[str, Any] = {
            "chunks": chunks,
            **compare_cost(kb, store, embedder, queries),
            **measure_parts(kb, store, embedder, queries),
            **compare_threads(kb, embedder, queries),
        }
        store.close()
        kb.close()
    with tempfile.TemporaryDirectory() as place:
        result["points_written_by_8_threads"] = write_from_threads(Path(place))
    for key, value in result.items():
        print(f"{key:36} {value:.3f}" if isinstance(value, float) else f"{key:36} {value}")
    print(f"target: hybrid_to_made_wall at most {TARGET}")
    good = result["same_answers_from_8_threads"] and result["points_written_by_8_threads"] == 800
    return result, good


def compare_cost(kb: KnowledgeBase, store: EdgeStore, embedder: Embedder, queries: list[str]) -> Figures:
    """Time hybrid queries and the engine calls that they made; medians in milliseconds, and their ratios."""
    shard = store._shard()
    recorded = [record_calls(kb, store, embedder, text) for text in queries]
    table = TableEncoder(queries)

    def calls(position: int) -> None:
        for name, args, kwargs in recorded[position]:
            getattr(shard, name)(*args, **kwargs)

    def made(position: int) -> None:
        for name, args, kwargs in recorded[position]:
            answer = getattr(shard, name)(*args, **kwargs)
            if name == "query":
                _ = [(point.id, point.score) for point in answer]
            else:
                _ = [(record.id, record.payload) for record in answer]

    def ours(encoder: SparseEncoder) -> Callable[[int], None]:
        return lambda position: ask(kb, embedder, encoder, queries[position])

    ways = {"calls": calls, "made": made, "hybrid": ours(BM25), "encoded": ours(table)}
    medians = {name: statistics.median(times) for name, times in time_in_rounds(ways, len(queries)).items()}
    ratios = {
        f"{way}_to_{against}_{clock}": medians[f"{way}_{clock}_ms"] / medians[f"{against}_{clock}_ms"]
        for against in ("made", "calls")
        for way in ("hybrid", "encoded")
        for clock in ("wall", "cpu")
    }
    return medians | ratios


def ask(kb: KnowledgeBase, embedder: Embedder, encoder: SparseEncoder, text: str) -> None:
    """Answer one question and let the answer go."""
    hybrid(Query(text=text), kb=kb, embedder=embedder, sparse=encoder)


def record_calls(kb: KnowledgeBase, store: EdgeStore, embedder: Embedder, text: str) -> list[Call]:
    """Return the engine calls that one hybrid query makes: searches and reads."""
    with mock.patch.object(store._engine, "shard", Recorder(store._shard())) as recorder:
        ask(kb, embedder, BM25, text)
    assert {name for name, _, _ in recorder.calls} == {"query", "retrieve"}
    return recorder.calls


def time_in_rounds(ways: dict[str, Callable[[int], None]], count: int) -> dict[str, list[float]]:
    """Let every way answer all queries in its turn, several rounds; milliseconds by way and clock."""
    timings: dict[str, list[float]] = defaultdict(list)
    for _ in range(ROUNDS):
        for name, way in ways.items():
            for position in range(count):
                wall, cpu = time.perf_counter(), time.process_time()
                way(position)
                timings[f"{name}_wall_ms"].append((time.perf_counter() - wall) * 1000)
                timings[f"{name}_cpu_ms"].append((time.process_time() - cpu) * 1000)
    return timings


def measure_parts(kb: KnowledgeBase, store: EdgeStore, embedder: Embedder, queries: list[str]) -> Figures:
    """Say where a hybrid query spends its microseconds: medians, each part with one wrapper around it.

    `store` is all that turns engine results into ids, scores and payloads, equal scores included; `glue` what no other
    part holds: the node, the state of the knowledge base, filters, closures.
    """
    timed = {
        "encode": (Bm25Encoder, "encode_query"),
        "vote": (retrieve, "vote_by_rank"),
        "hits": (knowledge_base, "to_fused_hits"),
        "ranking": (retrieve, "Ranking"),
        "search_dense": (EdgeStore, "search_dense"),
        "search_sparse": (EdgeStore, "search_sparse"),
        "payloads": (EdgeStore, "payloads"),
    }
    parts: dict[str, list[float]] = defaultdict(list)
    recorder = Recorder(store._shard())
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(store._engine, "shard", recorder))
        spent: dict[str, float] = {}
        for name, (owner, attribute) in timed.items():
            stack.enter_context(mock.patch.object(owner, attribute, with_watch(owner, attribute, name, spent)))
        for text in queries * ROUNDS:
            recorder.seconds = 0.0
            began = time.perf_counter()
            ask(kb, embedder, BM25, text)
            whole = time.perf_counter() - began
            stores = spent["search_dense"] + spent["search_sparse"] + spent["payloads"]
            own = {name: spent[name] for name in ("encode", "vote", "hits", "ranking")}
            own |= {"engine": recorder.seconds, "store": stores - recorder.seconds}
            for name, seconds in {**own, "glue": whole - sum(own.values()), "whole": whole}.items():
                parts[name].append(seconds)
    return {f"part_{name}_us": statistics.median(seconds) * 1e6 for name, seconds in parts.items()}


def with_watch(owner: Any, attribute: str, name: str, spent: dict[str, float]) -> Callable[..., Any]:
    """Return a function that does the same and writes down the seconds of its last call."""
    inner = getattr(owner, attribute)

    def watched(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        answer = inner(*args, **kwargs)
        spent[name] = time.perf_counter() - began
        return answer

    return watched


def compare_threads(kb: KnowledgeBase, embedder: Embedder, queries: list[str]) -> dict[str, Any]:
    """Answer all queries alone and from eight threads; the answers must be the same to the last digit."""

    def answer(text: str) -> str:
        return hybrid(Query(text=text), kb=kb, embedder=embedder, sparse=BM25).model_dump_json()

    with stopwatch() as alone_seconds:
        alone = [answer(text) for text in queries]
    with ThreadPoolExecutor(8) as pool, stopwatch() as threads_seconds:
        together = list(pool.map(answer, queries))
    return {
        "same_answers_from_8_threads": alone == together,
        "queries_a_second_alone": len(queries) / alone_seconds[0],
        "queries_a_second_8_threads": len(queries) / threads_seconds[0],
    }


def write_from_threads(folder: Path) -> int:
    """Write 100 points from each of eight threads; returns how many the store then holds."""
    store = EdgeStore(folder, "threads")
    store.create(2)

    def write(thread: int) -> None:
        for number in range(100):
            id_ = f"00000000-0000-0000-0000-{thread * 100 + number:012d}"
            store.upsert([Point(id_, {"kind": "chunk"}, np.ones(2, dtype=np.float32))])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    count = store.count(CHUNKS)
    store.close()
    return count


@contextmanager
def stopwatch() -> Iterator[list[float]]:
    """Measure a block; the list holds its seconds afterwards."""
    seconds: list[float] = []
    began = time.perf_counter()
    yield seconds
    seconds.append(time.perf_counter() - began)
