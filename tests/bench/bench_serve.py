"""Runs at once: how many runs of a deployment `ragbraid serve` and `ragbraid worker` finish in a minute, and that none is lost.

    python tests/bench/bench_serve.py [--runs 32] [--limits 8 32] [--json out.json]

Starts a server of its own in a temporary folder. For each keeper and each `--limit`, the runs are requested one
after the other, four at a time, and the clock stops when the server says that the last one is Completed. The flow has five nodes that do nothing;
`visible: flow` shows what the server's task runs take of it.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "parts"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench_worker import NODES, command, running

FLOW = """
ragbraid: 1
name: {name}
inputs: {{value: int = 1}}
nodes:
  a: {{use: bench.step, value: $value}}
  b: bench.step
  c: bench.step
  d: bench.step
  e: bench.step
flow: a -> b -> c -> d -> e
deploy: {{visible: {visible}}}
outputs: $e
"""

REQUESTS_AT_ONCE = 4
"""More at once get 503 from a server on SQLite, and Prefect's client then waits longer than the runs take."""


async def finish(name: str, runs: int) -> dict[str, Any]:
    """Request runs at once and return how long all of them took; raises where one was lost."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
    from prefect.exceptions import ObjectNotFound

    async with get_client() as client:
        while True:
            try:
                deployment = await client.read_deployment_by_name(f"{name}/{name}")
                break
            except ObjectNotFound:
                await asyncio.sleep(0.2)
        first = await client.create_flow_run_from_deployment(deployment.id)
        while not (await client.read_flow_run(first.id)).state.is_final():
            await asyncio.sleep(0.2)
        began = time.perf_counter()
        places = asyncio.Semaphore(REQUESTS_AT_ONCE)

        async def request(number: int) -> Any:
            async with places:
                return await client.create_flow_run_from_deployment(deployment.id, parameters={"value": number})

        ids = [run.id for run in await asyncio.gather(*map(request, range(runs)))]
        requested = time.perf_counter() - began
        while True:
            found = await client.read_flow_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=ids)))
            if all(run.state.is_final() for run in found):
                break
            await asyncio.sleep(0.2)
        seconds = time.perf_counter() - began
    lost = [f"{run.name}: {run.state.name} {run.state.message}" for run in found if not run.state.is_completed()]
    assert len(found) == runs
    assert not lost, lost
    return {"seconds": round(seconds, 2), "requested": round(requested, 2), "per_second": round(runs / seconds, 2)}


def main() -> None:
    """Measure every keeper and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=32)
    parser.add_argument("--limits", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    import prefect_server

    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="ragbraid_bench_") as place:
        folder = Path(place)
        (folder / "bench_nodes.py").write_text(NODES)
        (folder / "ragbraid.toml").write_text('nodes = ["bench_nodes.py"]\n')
        server, url = prefect_server.start(folder / "home", folder / "server.log")
        env = {**prefect_server.environment(folder / "home", url), "OMP_NUM_THREADS": "1"}
        os.environ.update(env)
        try:
            for visible in ("steps", "flow"):
                for limit in options.limits:
                    name = f"served_{visible}_{limit}"
                    (folder / f"{name}.yaml").write_text(FLOW.format(name=name, visible=visible))
                    with running("ragbraid", "serve", f"{name}.yaml", "--limit", str(limit), folder=folder, env=env):
                        found[f"serve --limit {limit}, {visible}"] = asyncio.run(finish(name, options.runs))
            (folder / "pooled.yaml").write_text(FLOW.format(name="pooled", visible="steps"))
            make = command("prefect", "work-pool", "create", "bench", "--type", "ragbraid")
            subprocess.run(make, cwd=folder, env=env, check=True, capture_output=True)
            deploy = command("ragbraid", "deploy", "pooled.yaml", "--pool", "bench")
            subprocess.run(deploy, cwd=folder, env=env, check=True, capture_output=True)
            with running("ragbraid", "worker", "--pool", "bench", "--limit", "8", folder=folder, env=env):
                found["worker --limit 8, steps"] = asyncio.run(finish("pooled", options.runs))
        finally:
            prefect_server.stop(server)
    print(f"{options.runs} runs requested at once, none lost")
    for keeper, figures in found.items():
        print(
            f"{keeper:28} {figures['seconds']:7.2f} s  {figures['per_second']:5.2f} runs/s "
            f"(requests took {figures['requested']:.2f} s)"
        )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
