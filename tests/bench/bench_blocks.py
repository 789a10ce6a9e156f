#!/usr/bin/env python
"""What blocks cost: a map over many items against asyncio with a semaphore, and its memory; scopes inside scopes.

    python tests/bench/bench_blocks.py [--items 10000] [--rounds 5] [--json out.json]

The node of the map does nothing. Memory is the peak of what Python allocates during the run, the result included,
measured in a run of its own; it is also given for a tenth of the items, since flat memory means that it grows by the
items' results and trace entries and by nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from ragbraid.dsl.compile import check_text
from ragbraid.dsl.plan import Plan
from ragbraid.flows.scheduler import run_plan
from ragbraid.registry.catalogue import Catalogue
from ragbraid.registry.node import node

CONCURRENCY = 8
HEAD = "ragbraid: 1\nname: bench\ninputs: {items: 'list[int]'}\nnodes:\n"
MAP = HEAD + (
    "  each:\n    map:\n      over: {item: $items}\n      nodes: {same: {use: bench.same, x: $item}}\n"
    f"      output: $same\n      concurrency: {CONCURRENCY}\noutputs: $each\n"
)
NESTED = HEAD + (
    "  each:\n    map:\n      over: {item: $items}\n      nodes:\n        again:\n          loop:\n"
    "            carry: {n: int = $item}\n            nodes: {same: {use: bench.same, x: $n}}\n"
    "            next: {n: $same}\n            max_steps: 10\n      output: $again.n\noutputs: $each\n"
)


@node("bench.same")
async def same(x: int) -> int:
    """Hand on."""
    return x


def plan_of(text: str) -> Plan:
    """Return the plan of a flow over `bench.same`."""
    catalogue = Catalogue()
    catalogue.add_node(same)
    checked = check_text(text, "bench.yaml", catalogue)
    if checked.plan is None:
        raise AssertionError(checked.findings)
    return checked.plan


async def run(plan: Plan, items: list[int]) -> None:
    """Run a plan and see that every item came through."""
    result = await run_plan(plan, {"items": items}, resources=None)  # type: ignore[arg-type]
    if result.outputs != items:
        raise AssertionError("the items came out otherwise than they went in")


async def by_hand(items: list[int]) -> None:
    """Do the same with asyncio alone."""
    limit = asyncio.Semaphore(CONCURRENCY)

    async def one(item: int) -> int:
        async with limit:
            return await same(item)

    if list(await asyncio.gather(*[one(item) for item in items])) != items:
        raise AssertionError("the items came out otherwise than they went in")


def seconds(work: Callable[[], Awaitable[None]], rounds: int) -> float:
    """Return the median duration."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        asyncio.run(_awaited(work))
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def peak_mb(work: Callable[[], Awaitable[None]]) -> float:
    """Return the peak of what Python allocates during a run, in MB."""
    tracemalloc.start()
    asyncio.run(_awaited(work))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6


async def _awaited(work: Callable[[], Awaitable[None]]) -> None:
    await work()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    items, few = list(range(arguments.items)), list(range(arguments.items // 10))
    flat, nested = plan_of(MAP), plan_of(NESTED)
    asyncio.run(run(flat, few))
    ours = seconds(lambda: run(flat, items), arguments.rounds)
    limit = seconds(lambda: by_hand(items), arguments.rounds)
    inner = seconds(lambda: run(nested, few), arguments.rounds)
    found: dict[str, Any] = {
        "items": len(items),
        "map_seconds": ours,
        "by_hand_seconds": limit,
        "ratio": ours / limit,
        "map_us_per_item": ours / len(items) * 1e6,
        "nested_us_per_node": inner / (len(few) * 10) * 1e6,
        "peak_mb": peak_mb(lambda: run(flat, items)),
        "peak_mb_of_a_tenth": peak_mb(lambda: run(flat, few)),
    }
    print(f"map over {len(items)} items: {ours:.3f} s, {found['map_us_per_item']:.1f} us per item")
    print(f"asyncio with a semaphore:  {limit:.3f} s; ratio {found['ratio']:.2f}")
    print(f"loops inside a map:        {found['nested_us_per_node']:.1f} us per node")
    print(f"peak of memory:            {found['peak_mb']:.1f} MB, for a tenth {found['peak_mb_of_a_tenth']:.1f} MB")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
