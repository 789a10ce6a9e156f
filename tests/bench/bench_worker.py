"""From request to answer: one small deployment run by our worker, by `serve` and by Prefect's process worker.

    python tests/bench/bench_worker.py [--rounds 5] [--runs 50] [--json out.json]

Starts a server and four keepers of its own in a temporary folder. In every round each of them gets one run, so that load
on the machine meets all; the time is that from `create_flow_run_from_deployment` until the server says Completed, asked
every 50 ms. Prefect's process worker is measured as it comes (it looks for runs every 10 s) and looking as often as ours
does. Then our worker gets more runs, and its memory after 5 is compared with that after all.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "parts"))

NODES = '''
from ragbraid import node


@node("bench.step")
async def step(value: int) -> int:
    """Add one to a number."""
    return value + 1
'''

FLOW = """
ragbraid: 1
name: {name}
inputs: {{value: int = 1}}
nodes:
  a: {{use: bench.step, value: $value}}
  b: bench.step
flow: a -> b
outputs: $b
"""

OURS, SERVE, PROCESS, QUICK = (
    "ragbraid worker",
    "ragbraid serve",
    "process worker",
    "process worker, asking every 0.5 s",
)
NAMES = {OURS: "ours", SERVE: "served", PROCESS: "process", QUICK: "quick"}


def command(*words: str) -> list[str]:
    """Return a command of ragbraid or Prefect as this Python has it."""
    module, *rest = words
    return [sys.executable, "-m", "ragbraid.flows.cli" if module == "ragbraid" else module, *rest]


@contextmanager
def running(*words: str, folder: Path, env: dict[str, str]) -> Iterator[int]:
    """Keep a command running; yields its process id."""
    with (folder / f"{'-'.join(words[:3])}.log").open("ab") as log:
        process = subprocess.Popen(command(*words), cwd=folder, env=env, stdout=log, stderr=log)
        try:
            yield process.pid
        finally:
            process.terminate()
            process.wait(60)


async def answer_seconds(client: Any, name: str) -> float:
    """Return the time from the request of a run to its answer."""
    deployment = await client.read_deployment_by_name(f"{name}/{name}")
    begun = time.perf_counter()
    run = await client.create_flow_run_from_deployment(deployment.id)
    while not (state := (await client.read_flow_run(run.id)).state).is_final():
        await asyncio.sleep(0.05)
    assert state.is_completed(), state
    return time.perf_counter() - begun


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def measure(rounds: int, runs: int, pid: int) -> dict[str, Any]:
    """Ask all keepers in turn, then ours alone."""
    from prefect.client.orchestration import get_client

    async with get_client() as client:
        for name in NAMES.values():
            await answer_seconds(client, name)
        times: dict[str, list[float]] = {keeper: [] for keeper in NAMES}
        for _ in range(rounds):
            for keeper, name in NAMES.items():
                times[keeper].append(await answer_seconds(client, name))
        while_few = memory_mb(pid) if rounds >= 4 else 0.0
        alone = [await answer_seconds(client, NAMES[OURS]) for _ in range(runs - rounds - 1)]
        return {
            "seconds": {keeper: round(statistics.median(found), 2) for keeper, found in times.items()},
            "worst": {keeper: round(max(found), 2) for keeper, found in times.items()},
            "alone": round(statistics.median(alone), 2),
            "memory_mb": {f"after {rounds + 1} runs": round(while_few), f"after {runs} runs": round(memory_mb(pid))},
        }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    import prefect_server

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "bench_nodes.py").write_text(NODES)
        (folder / "ragbraid.toml").write_text('nodes = ["bench_nodes.py"]\n')
        for name in NAMES.values():
            (folder / f"{name}.yaml").write_text(FLOW.format(name=name))
        server, url = prefect_server.start(folder / "home", folder / "server.log")
        env = {**prefect_server.environment(folder / "home", url), "OMP_NUM_THREADS": "1"}
        os.environ.update(env)
        try:
            for keeper in (OURS, PROCESS, QUICK):
                name, kind = NAMES[keeper], "ragbraid" if keeper == OURS else "process"
                for words in (
                    ("prefect", "work-pool", "create", name, "--type", kind),
                    ("ragbraid", "deploy", f"{name}.yaml", "--pool", name),
                ):
                    subprocess.run(command(*words), cwd=folder, env=env, check=True, capture_output=True)
            quick = {**env, "PREFECT_WORKER_QUERY_SECONDS": "0.5"}
            with (
                running("ragbraid", "worker", "--pool", "ours", folder=folder, env=env) as pid,
                running("ragbraid", "serve", "served.yaml", folder=folder, env=env),
                running("prefect", "worker", "start", "--pool", "process", folder=folder, env=env),
                running("prefect", "worker", "start", "--pool", "quick", folder=folder, env=quick),
            ):
                wait_for_deployment(url)
                found = asyncio.run(measure(options.rounds, options.runs, pid))
        finally:
            prefect_server.stop(server)
    ours = found["seconds"][OURS]
    for keeper, seconds in found["seconds"].items():
        print(f"{keeper:36} {seconds:6.2f} s  (worst {found['worst'][keeper]:.2f})  {seconds / ours:5.1f} x ours")
    print(f"{OURS}, alone {found['alone']:.2f} s; memory in MB: {found['memory_mb']}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


def wait_for_deployment(url: str) -> None:
    """Wait until `serve` has registered its flow."""
    import httpx

    while httpx.get(f"{url}/deployments/name/served/served").status_code != 200:
        time.sleep(0.2)


if __name__ == "__main__":
    main()
