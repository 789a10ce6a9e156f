"""How well and how fast retrieval works, on the real nodes and the embedded engine.

    python tests/bench/bench_retrieval.py --data /path/to/sets                     # BM25 on every set
    python tests/bench/bench_retrieval.py --data /path/to/sets --dense --sets hotpot_200
    python tests/bench/bench_retrieval.py --cost                                   # see query_cost.py

A set is a folder with `corpus.jsonl.gz` (`id title text`) and `questions.dev.jsonl.gz` (`question gold_passage_ids`).
Where `baseline.json` stands beside the folder of sets, the figures are compared with its `bm25_dev`, and the command
fails when BM25 falls more than 0.01 nDCG@10 below. Relevance is binary. Embeddings are kept in `--cache`.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cached_embedder import DEFAULT_CACHE, CachedEmbedder, open_embedder
from query_cost import run_cost
from question_sets import Passage, read_corpus, read_questions, recall

from ragbraid.nodes.bm25 import Bm25Encoder
from ragbraid.nodes.resource_qdrant import embedded
from ragbraid.nodes.retrieve import dense, hybrid, sparse
from ragbraid.registry.contracts import Chunk, Query, Ranking, SourceRecord
from ragbraid.registry.knowledge import KnowledgeBase, SourceChunks
from ragbraid.registry.resources import Embedder

TOLERANCE = 0.01
BATCH = 64
BM25 = Bm25Encoder()

Figures = dict[str, float]


class NoEmbedder:
    """Stands where only terms are searched: every text has the same one-dimensional vector."""

    identity = "none"
    dimension = 1

    def embed_documents(self, texts: Sequence[str]) -> np.ndarray:
        return np.ones((len(texts), 1), dtype=np.float32)

    def embed_query(self, text: str) -> np.ndarray:
        return np.ones(1, dtype=np.float32)


# -- quality -----------------------------------------------------------------------------------------------------------


def measure_set(folder: Path, embedder: Embedder | None) -> dict[str, Figures]:
    """Index a set and answer its questions by every route; figures per route."""
    passages = read_corpus(folder)
    questions = read_questions(folder)
    with tempfile.TemporaryDirectory() as place:
        kb = embedded(place, "bench")
        fill(kb, passages, embedder or NoEmbedder())
        routes: dict[str, Callable[[Query], Ranking]] = {"sparse": lambda query: sparse(query, kb=kb, sparse=BM25)}
        if embedder is not None:
            routes["dense"] = lambda query: dense(query, kb=kb, embedder=embedder)
            routes["hybrid"] = lambda query: hybrid(query, kb=kb, embedder=embedder, sparse=BM25)
        figures = {name: measure_route(search, questions) for name, search in routes.items()}
        kb.close()
    return figures


def measure_route(search: Callable[[Query], Ranking], questions: list[Passage]) -> Figures:
    """Return nDCG@10, recall and the median time of one route over all questions."""
    gains, recall_5, recall_10, seconds = [], [], [], []
    for each in questions:
        began = time.perf_counter()
        found = [hit.id for hit in search(Query(text=each["question"]))]
        seconds.append(time.perf_counter() - began)
        gold = set(each["gold_passage_ids"])
        gains.append(ndcg(found[:10], gold))
        recall_5.append(recall(found[:5], gold))
        recall_10.append(recall(found[:10], gold))
    return {
        "nDCG@10": statistics.fmean(gains),
        "R@5": statistics.fmean(recall_5),
        "R@10": statistics.fmean(recall_10),
        "ms": statistics.median(seconds) * 1000,
        "n": len(questions),
    }


def ndcg(found: Sequence[str], gold: set[str]) -> float:
    """Normalised discounted cumulative gain at 10 with binary relevance."""
    gain = sum(1 / math.log2(place + 2) for place, id_ in enumerate(found) if id_ in gold)
    return gain / sum(1 / math.log2(place + 2) for place in range(min(10, len(gold))))


def fill(kb: KnowledgeBase, passages: list[Passage], embedder: Embedder) -> None:
    """Ingest passages, one source each, through an update as an ingestion flow does."""
    sources = []
    for each in passages:
        text = f"{each.get('title') or ''}\n{each['text']}".strip()
        chunk = Chunk(id=each["id"], document_id=each["id"], source=each["id"], index=0, text=text)
        record = SourceRecord(source=each["id"], document_id=each["id"], content_hash=each["id"])
        sources.append(SourceChunks(record, (chunk,)))
    with kb.update(embedder=embedder, sparse=BM25, scope="bench") as update:
        to_embed = update.plan(sources).to_embed
        for start in range(0, len(to_embed), BATCH):
            batch = to_embed[start : start + BATCH]
            update.write(batch, embedder.embed_documents([chunk.text_to_embed for chunk in batch]))
        update.commit()


def run_quality(args: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """Measure every set, print the table, and say whether BM25 is good enough on each."""
    baseline_file = args.data.parent / "baseline.json"
    baseline = json.loads(baseline_file.read_text("utf-8")) if baseline_file.exists() else {}
    names = args.sets.split(",") if args.sets else sorted(path.name for path in args.data.iterdir() if path.is_dir())
    embedder = CachedEmbedder(open_embedder(args.embedder), args.cache) if args.dense else None
    results: dict[str, Any] = {}
    good = True
    print(
        f"{'set':18} {'route':7} {'n':>5} {'nDCG@10':>8} {'bm25_dev':>9} {'diff':>8} {'R@5':>7} {'R@10':>7} {'ms':>7}"
    )
    for name in names:
        results[name] = measure_set(args.data / name, embedder)
        reference = baseline.get(name, {}).get("bm25_dev", {}).get("nDCG@10", math.nan)
        for route, figures in results[name].items():
            difference = figures["nDCG@10"] - reference
            good = good and not (route == "sparse" and difference < -TOLERANCE)
            print(
                f"{name:18} {route:7} {figures['n']:5} {figures['nDCG@10']:8.4f} {reference:9.4f} {difference:+8.4f} "
                f"{figures['R@5']:7.4f} {figures['R@10']:7.4f} {figures['ms']:7.2f}",
                flush=True,
            )
    return results, good


def main() -> None:
    """Run what the command line asks for; the exit status is 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the sets")
    parser.add_argument("--sets", help="names of sets, separated by commas; all when left out")
    parser.add_argument("--dense", action="store_true", help="also measure retrieve.dense and retrieve.hybrid")
    parser.add_argument("--embedder", default="packaged.e5", help="embedder of the catalogue for --dense")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE)
    parser.add_argument("--cost", action="store_true", help="measure what a hybrid query costs beside the engine")
    parser.add_argument("--chunks", type=int, default=10_000)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    if not args.data and not args.cost:
        parser.error("give --data, --cost or both")
    report: dict[str, Any] = {}
    good = True
    if args.data:
        report["quality"], good = run_quality(args)
    if args.cost:
        report["cost"], cost_good = run_cost(args.chunks, args.queries, fill)
        good = good and cost_good
    if args.json:
        args.json.write_text(json.dumps(report, indent=1), "utf-8")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
