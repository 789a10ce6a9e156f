"""What it costs and gains to run the items of a map in the processes of a task runner.

    OMP_NUM_THREADS=1 python tests/bench/bench_task_runners.py [--items 64] [--ray] [--rounds 3]

A map embeds passages with the packaged embedder, one in each item: inline, on one and on two Dask workers, with `--ray` on
two of Ray. Wall seconds (medians of rounds in turns) and the ratio to inline. The same with items that hold their process
for 50 ms without using a processor, which tells on a busy machine too. Then what an item costs whose body does nothing, and
how many bytes pass the loopback when 5 MB of surroundings go to two workers.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench_embedding import make_passages

from ragbraid.flows.api import Flow, load
from ragbraid.flows.fleets import close_fleets

NODES = '''
import time

from ragbraid import Embedder, node


@node("bench.embed", cacheable=False)
def embed(text: str, embedder: Embedder) -> int:
    """Embed a passage."""
    return int(embedder.embed_documents([text]).shape[1])


@node("bench.hold", cacheable=False)
def hold(text: str) -> str:
    """Hold the process for 50 ms."""
    time.sleep(0.05)
    return text


@node("bench.nothing", cacheable=False)
def nothing(text: str, *, words: list[str] = []) -> int:
    """Do nothing."""
    return len(words)
'''
FLOW = """
ragbraid: 1
name: {name}
inputs: {{texts: "list[str]", words: {{type: "list[str]", default: []}}}}
nodes: {{m: {{map: {{over: {{text: $texts}}, nodes: {{it: {body}}}, output: $it}}}}}}
outputs: $m
"""


def write_flows(folder: Path) -> dict[str, Flow]:
    """Return a flow that embeds, one that holds its process, and one that does nothing."""
    (folder / "bench_nodes.py").write_text(NODES)
    (folder / "ragbraid.toml").write_text('nodes = ["bench_nodes.py"]\n')
    bodies = {
        "embeds": "{use: bench.embed}",
        "holds": "{use: bench.hold}",
        "idles": "{use: bench.nothing, words: $words}",
    }
    for name, body in bodies.items():
        (folder / f"{name}.yaml").write_text(FLOW.format(name=name, body=body))
    return {name: load(folder / f"{name}.yaml") for name in bodies}


def seconds(flow: Flow, **inputs: Any) -> float:
    """Return how long a run takes."""
    began = time.perf_counter()
    flow.run(**inputs)
    return time.perf_counter() - began


def compare(flow: Flow, places: Mapping[str, str], rounds: int, texts: Sequence[str]) -> None:
    """Run a flow in all places in turns, and print medians."""
    flows = {name: flow.with_task_runner(place) for name, place in places.items()}
    for name, one in flows.items():
        print(f"first run: {name} {seconds(one, texts=texts):.2f} s", file=sys.stderr)
    found = [{name: seconds(one, texts=texts) for name, one in flows.items()} for _ in range(rounds)]
    print(f"a map of {len(texts)} items, `{flow.name}` (medians of {rounds} rounds)")
    for name in flows:
        wall = statistics.median(one[name] for one in found)
        ratio = statistics.median(one[name] / one["inline"] for one in found)
        print(f"  {name:16} {wall:6.2f} s  {ratio:.2f} of inline")


def loopback_bytes() -> int:
    """Return how many bytes the loopback has carried."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        if line.strip().startswith("lo:"):
            return int(line.split()[1])
    return 0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--items", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ray", action="store_true")
    given = parser.parse_args()
    import distributed

    clusters = {
        f"dask, {count} worker{'s' * (count > 1)}": distributed.LocalCluster(
            n_workers=count, threads_per_worker=1, dashboard_address="127.0.0.1:0"
        )
        for count in (1, 2)
    }
    places = {"inline": "threads", **{name: f"dask={one.scheduler_address}" for name, one in clusters.items()}}
    if given.ray:
        places["ray, 2 workers"] = "ray"
    with tempfile.TemporaryDirectory() as folder:
        flows = write_flows(Path(folder))
        compare(flows["embeds"], places, given.rounds, make_passages(given.items))
        compare(flows["holds"], places, given.rounds, ["x"] * 64)
        idles = flows["idles"]
        print("an item that does nothing")
        texts = ["x"] * 2000
        for name, place in places.items():
            flow = idles.with_task_runner(place)
            flow.run(texts=texts)
            wall = statistics.median(seconds(flow, texts=texts) for _ in range(given.rounds))
            print(
                f"  {name:16} {wall / len(texts) * 1e6:8.1f} µs an item, {seconds(flow, texts=['x']) * 1e3:6.1f} ms for one"
            )
        words = [f"{number:0100}" for number in range(50_000)]
        before = loopback_bytes()
        idles.with_task_runner(places["dask, 2 workers"]).run(texts=["x"] * given.items, words=words)
        carried = (loopback_bytes() - before) / 1e6
        print(f"{given.items} items that read 5 MB around them, two Dask workers: {carried:.1f} MB over the loopback")
    close_fleets()
    for cluster in clusters.values():
        cluster.close()


if __name__ == "__main__":
    main()
