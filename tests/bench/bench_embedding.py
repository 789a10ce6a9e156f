"""How fast the packaged embedder works against the bare fastembed model that it wraps.

    OMP_NUM_THREADS=1 python tests/bench/bench_embedding.py [passages]

Prints texts per second of processor time for both, medians of alternating rounds, and the ratio to the fastest bare
run (1.0 means that the wrapper costs nothing). The bare model runs one by one and in unsorted batches of 8.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from ragbraid.nodes.fastembed_models import open_local_folder
from ragbraid.nodes.packaged_e5 import NAME, converted_folder
from ragbraid.nodes.resource_packaged import PASSAGE_PREFIX, packaged_embedder

ENGLISH = (
    "desk",
    "lends",
    "laptops",
    "for",
    "ninety",
    "days",
    "refunds",
    "receipts",
    "of",
    "travel",
    "by",
    "the",
    "fifth",
)
CHINESE = "员工借用的笔记本电脑须在九十天内归还前台差旅费用由部门负责人批准并于次月五日报销"
ROUNDS = 3
BATCHES = (1, 8)


def make_passages(count: int) -> list[str]:
    """Return passages of 20 to 250 words or 30 to 400 characters, half of them Chinese, always the same."""
    chance = random.Random(7)
    passages = []
    for number in range(count):
        if number % 2:
            passages.append(" ".join(chance.choices(ENGLISH, k=chance.randint(20, 250))))
        else:
            passages.append("".join(chance.choices(CHINESE, k=chance.randint(30, 400))))
    return passages


def main() -> None:
    """Measure and print."""
    passages = make_passages(int(sys.argv[1]) if len(sys.argv) > 1 else 32)
    ours = packaged_embedder()
    bare = open_local_folder(converted_folder(), name=f"bench/{NAME}", threads=1)
    written = [PASSAGE_PREFIX + passage for passage in passages]
    runs: dict[str, Callable[[], object]] = {"packaged.e5": lambda: ours.embed_documents(passages)}
    for size in BATCHES:
        runs[f"bare, batch {size}"] = partial(_embed, bare, written, size)
    rates: dict[str, list[float]] = {name: [] for name in runs}
    ours.embed_query("warm")
    list(bare.embed(["warm"]))
    for _ in range(ROUNDS):
        for name, run in runs.items():
            start = time.process_time()
            run()
            rates[name].append(len(passages) / (time.process_time() - start))
    medians = {name: statistics.median(found) for name, found in rates.items()}
    for name, median in medians.items():
        print(f"{name:15s} {median:7.2f} texts per CPU-second")
    best = max(median for name, median in medians.items() if name != "packaged.e5")
    print(f"ratio {medians['packaged.e5'] / best:.2f}")


def _embed(model: Any, texts: list[str], batch_size: int) -> list[Any]:
    return list(model.embed(texts, batch_size=batch_size))


if __name__ == "__main__":
    main()
