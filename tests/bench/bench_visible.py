"""What a run costs the Prefect server at each `visible`: processor time of the server, by flow.

    python tests/bench/bench_visible.py [--runs 5] [--json out.json] [--default-server]

A flow of 50 steps at `steps`, `blocks` and `flow`; a loop of 100 steps and a map of 10,000 items at `blocks`, each beside
a flow in which a node stands in the place of the block. Starts a server of its own in a temporary folder, with events
recorded in batches as docs/operation.md recommends; `--default-server` leaves Prefect's own settings. The server's time
is read when it has taken in everything that a run sent, and what it uses when idle is taken off.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "parts"))

NODES = '''
from ragbraid import node


@node("bench.step")
async def step(value: int, *, add: int = 1) -> int:
    """Add to a number."""
    return value + add


@node("bench.numbers")
async def numbers(value: int, *, count: int = 10000) -> list[int]:
    """Count."""
    return list(range(count))
'''

HEAD = "ragbraid: 1\nname: {name}\ninputs: {{value: int}}\n"
CHAIN = """
nodes:
  a1: {{use: bench.step, value: $value}}
{nodes}
flow: {arrows}
outputs: $a{last}
"""
ONE = """
nodes:
  many: {use: bench.numbers, value: $value}
  block: {use: bench.step, value: "${ many | length }"}
  after: {use: bench.step, value: $block}
outputs: $after
"""
LOOP = """
nodes:
  many: {use: bench.numbers, value: $value}
  block:
    loop:
      carry: {n: int = $value}
      nodes: {more: {use: bench.step, value: "${ n + (many | length) }"}}
      next: {n: $more}
      max_steps: 100
  after: {use: bench.step, value: $block.n}
outputs: $after
"""
MAP = """
nodes:
  many: {use: bench.numbers, value: $value}
  block:
    map:
      over: {item: $many}
      nodes: {more: {use: bench.step, value: $item}}
      output: $more
  after: {use: bench.step, value: "${ block | length }"}
outputs: $after
"""
SETTLE_SECONDS = 4.0


def chain(length: int) -> str:
    """Return a flow of steps that each wait for the one before."""
    nodes = "\n".join(f"  a{number}: bench.step" for number in range(2, length + 1))
    return CHAIN.format(nodes=nodes, arrows=" -> ".join(f"a{n}" for n in range(1, length + 1)), last=length)


def server_seconds(pid: int) -> float:
    """Return the processor time that a process and its children have used."""
    import psutil

    process = psutil.Process(pid)
    return sum(sum(each.cpu_times()[:2]) for each in [process, *process.children(recursive=True)])


async def settled(pid: int, idle: float) -> float:
    """Return the server's processor time when it uses no more than it does idle."""
    before = server_seconds(pid)
    while True:
        await asyncio.sleep(SETTLE_SECONDS)
        now = server_seconds(pid)
        if now - before <= idle * SETTLE_SECONDS * 1.5 + 0.05:
            return now
        before = now


async def idle_share(pid: int) -> float:
    """Return how much of a core the server uses when nobody asks for anything."""
    await asyncio.sleep(15)
    before = server_seconds(pid)
    await asyncio.sleep(15)
    return (server_seconds(pid) - before) / 15


async def cost(run: Any, pid: int, idle: float, runs: int) -> dict[str, float]:
    """Return the server's and the client's seconds for one run, on average."""
    await run(value=0)
    began, before, mine = time.perf_counter(), await settled(pid, idle), time.process_time()
    began = time.perf_counter()
    for number in range(runs):
        await run(value=number)
    wall, mine = time.perf_counter() - began, time.process_time() - mine
    after = await settled(pid, idle)
    used = after - before - idle * (time.perf_counter() - began)
    return {"server_s": used / runs, "wall_s": wall / runs, "client_s": mine / runs}


async def measure(folder: Path, pid: int, runs: int) -> Mapping[str, dict[str, float]]:
    """Measure every flow at every level."""
    import ragbraid

    (folder / "bench_nodes.py").write_text(NODES)
    (folder / "ragbraid.toml").write_text('nodes = ["bench_nodes.py"]\n')

    def flow(name: str, text: str) -> Any:
        path = folder / f"{name}.yaml"
        path.write_text(HEAD.format(name=name) + text)
        return ragbraid.load(path)

    fifty, one, loop, items = flow("fifty", chain(50)), flow("one", ONE), flow("loop", LOOP), flow("items", MAP)
    cases = {
        "50 steps, steps": fifty.with_visible("steps"),
        "50 steps, blocks": fifty.with_visible("blocks"),
        "50 steps, flow": fifty.with_visible("flow"),
        "3 nodes, blocks": one.with_visible("blocks"),
        "loop of 100 and 2 nodes, blocks": loop.with_visible("blocks"),
        "map of 10,000 and 2 nodes, blocks": items.with_visible("blocks"),
        "loop of 100 and 2 nodes, steps": loop.with_visible("steps"),
    }
    idle = await idle_share(pid)
    return {name: await cost(case.prefect, pid, idle, runs) for name, case in cases.items()}


def main() -> None:
    """Start a server, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--default-server", action="store_true")
    options = parser.parse_args()
    import prefect_server

    with tempfile.TemporaryDirectory(prefix="ragbraid_bench_") as name:
        folder = Path(name)
        if options.default_server:
            recommended = prefect_server.environment
            prefect_server.environment = lambda home, url: {
                key: value for key, value in recommended(home, url).items() if "_SERVICES_" not in key
            }
        server, url = prefect_server.start(folder / "home", folder / "server.log")
        try:
            for variable in [variable for variable in os.environ if variable.startswith("PREFECT_")]:
                del os.environ[variable]
            os.environ.update(prefect_server.environment(folder / "home", url), PREFECT_LOGGING_LEVEL="WARNING")
            result = asyncio.run(measure(folder, server.pid, options.runs))
        finally:
            prefect_server.stop(server)
    print(f"{'a run of':34} {'server CPU s':>12} {'client CPU s':>12} {'wall s':>8}")
    for case, figures in result.items():
        print(f"{case:34} {figures['server_s']:12.3f} {figures['client_s']:12.3f} {figures['wall_s']:8.2f}")
    base = result["3 nodes, blocks"]["server_s"]
    for case in ("loop of 100 and 2 nodes, blocks", "map of 10,000 and 2 nodes, blocks"):
        print(f"{case} / 3 nodes: server {result[case]['server_s'] / base:.2f} (target: no more than noise)")
    if options.json:
        options.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
