"""What ragbraid adds to Prefect: a flow of five nodes against the same five tasks written by hand in one async flow.

    python tests/bench/bench_prefect_runner.py [--rounds 60] [--json out.json]

Starts a server of its own in a temporary folder. Both flows run in one process, in turn, so that load on the machine
meets both; the figures are medians, the ratio is that of the medians of wall time. The nodes do nothing: the ratio is
that of the overheads alone, the worst case.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "parts"))

NODES = '''
from ragbraid import node


@node("bench.step")
async def step(value: int, *, add: int = 1) -> int:
    """Add to a number."""
    return value + add
'''

FLOW = """
ragbraid: 1
name: bench
inputs: {value: int}
nodes:
  a: {use: bench.step, value: $value}
  b: bench.step
  c: bench.step
  d: bench.step
  e: bench.step
flow: a -> b -> c -> d -> e
outputs: $e
"""


def by_hand() -> Any:
    """Return the five tasks as one writes them."""
    from prefect import flow, task

    async def add(value: int, add: int = 1) -> int:
        return value + add

    a, b, c, d, e = (task(add, name=name) for name in "abcde")

    @flow(name="by-hand")
    async def bench(value: int) -> int:
        return await e(await d(await c(await b(await a(value)))))

    return bench


def compiled(folder: Path) -> Any:
    """Return the same as a ragbraid flow."""
    import ragbraid

    (folder / "bench_nodes.py").write_text(NODES)
    (folder / "ragbraid.toml").write_text('nodes = ["bench_nodes.py"]\n')
    (folder / "bench.yaml").write_text(FLOW)
    return ragbraid.load(folder / "bench.yaml").prefect


async def measure(run: Callable[..., Awaitable[int]], value: int) -> tuple[float, float]:
    """Return wall and processor milliseconds of one run."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = await run(value=value)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert result == value + 5, result
    return wall * 1e3, cpu * 1e3


async def compare(rounds: int, folder: Path) -> dict[str, Any]:
    """Run both flows in turn and return medians and their ratios."""
    flows = {"by hand": by_hand(), "ragbraid": compiled(folder)}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in flows}
    for number in range(rounds + 3):
        for name in sorted(flows, reverse=bool(number % 2)):
            taken = await measure(flows[name], number * 1000)
            if number >= 3:  # the first rounds open connections
                times[name].append(taken)
            await asyncio.sleep(0.1)
    result: dict[str, Any] = {
        name: {
            "wall_ms": statistics.median(wall for wall, _ in taken),
            "cpu_ms": statistics.median(cpu for _, cpu in taken),
        }
        for name, taken in times.items()
    }
    for figure in ("wall_ms", "cpu_ms"):
        result[f"ratio_{figure}"] = result["ragbraid"][figure] / result["by hand"][figure]
    return result


def main() -> None:
    """Start a server, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    from prefect_server import environment, start, stop

    with tempfile.TemporaryDirectory(prefix="ragbraid_bench_") as name:
        folder = Path(name)
        server, url = start(folder / "home", folder / "server.log")
        try:
            for variable in [variable for variable in os.environ if variable.startswith("PREFECT_")]:
                del os.environ[variable]
            os.environ.update(environment(folder / "home", url), PREFECT_LOGGING_LEVEL="WARNING")
            result = asyncio.run(compare(options.rounds, folder))
        finally:
            stop(server)
    for flow in ("by hand", "ragbraid"):
        print(f"{flow:10} {result[flow]['wall_ms']:8.1f} ms a run {result[flow]['cpu_ms']:8.1f} ms CPU")
    print(f"ragbraid / by hand: wall {result['ratio_wall_ms']:.2f}, CPU {result['ratio_cpu_ms']:.2f} (target 1.15)")
    if options.json:
        options.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
