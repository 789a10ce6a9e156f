#!/usr/bin/env python
"""What scheduling costs per node, against hand-written asyncio (the limit) and against other orchestrators.

    python tests/bench/bench_orchestration.py [--json out.json] [--rounds 7] [--peers ragbraid,haystack]
        [--python haystack=/path/to/venv/bin/python] [--no-install]

Nodes do nothing (they hand an integer on or add), so that what is left is the orchestrator. Every peer is a process of
its own; rounds go over all peers and shapes in turn, so that the machine's mood hits all alike; figures are medians.
ragbraid checks every input and output against its contract and records a trace, as in every run.

haystack-ai and sf-hamilton run in virtual environments of their own: named with `--python`, else made once under
`~/.cache/ragbraid-bench`. A peer that cannot be had is reported, and so is a shape that it cannot express.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

Graph = dict[str, list[str]]
Runner = Callable[[], Awaitable[int]]

ROWS, COLUMNS, WIDTH, TURNS = 10, 20, 20, 100
CHAINS = {"chain5": 5, "chain50": 50, "chain500": 500}
SHAPES = [*CHAINS, "fan20", "grid200", "loop100x3"]
NODES = {**CHAINS, "fan20": WIDTH + 2, "grid200": ROWS * COLUMNS, "loop100x3": 3 * TURNS}
EXPECTED = {"fan20": WIDTH, "grid200": math.comb(ROWS + COLUMNS - 2, ROWS - 1), "loop100x3": 1 + 3 * TURNS}
DISTRIBUTIONS = {"haystack": "haystack-ai", "hamilton": "sf-hamilton"}


def graph_of(shape: str) -> Graph:
    """Node -> the nodes before it, in an order in which every node comes after those; of the loop, its body."""
    if shape in CHAINS:
        return {f"n{i}": [f"n{i - 1}"] if i else [] for i in range(CHAINS[shape])}
    if shape == "fan20":
        width = {f"w{i}": ["source"] for i in range(WIDTH)}
        return {"source": [], **width, "sink": list(width)}
    if shape == "grid200":
        return {
            f"g{row}_{column}": [f"g{row - 1}_{column}"] * (row > 0) + [f"g{row}_{column - 1}"] * (column > 0)
            for row in range(ROWS)
            for column in range(COLUMNS)
        }
    return {"a": [], "b": ["a"], "c": ["b"]}


def turns(run_once: Callable[[int], Awaitable[int]], shape: str) -> Runner:
    """The loop is a hundred runs of its body, each starting from what the last one gave (its nodes add 1)."""

    async def loop() -> int:
        value = 1
        for _ in range(TURNS):
            value = await run_once(value)
        return value

    return loop if shape.startswith("loop") else lambda: run_once(1)


# -- peers: each gives for a shape an async function that runs it once -------------------------------------------------


def prepare_limit(shape: str) -> Runner:
    """Write the awaits by hand, branches with asyncio.gather."""
    graph, step = graph_of(shape), (1 if shape.startswith("loop") else 0)

    async def node(*values: int) -> int:
        return sum(values) + step

    async def chain(value: int) -> int:
        for _ in graph:
            value = await node(value)
        return value

    async def fan(value: int) -> int:
        value = await node(value)
        return await node(*await asyncio.gather(*[node(value) for _ in range(WIDTH)]))

    levels = [
        [(f"g{row}_{d - row}", graph.get(f"g{row}_{d - row}", [])) for row in range(ROWS) if 0 <= d - row < COLUMNS]
        for d in range(ROWS + COLUMNS - 1)
    ]

    async def grid(value: int) -> int:
        values: dict[str, int] = {}
        for level in levels:
            calls = [node(*[values[name] for name in before]) if before else node(value) for _, before in level]
            for (name, _), result in zip(level, await asyncio.gather(*calls), strict=True):
                values[name] = result
        return values[level[-1][0]]

    return turns({"fan20": fan, "grid200": grid}.get(shape, chain), shape)


def prepare_ragbraid(shape: str, *, is_async: bool) -> Runner:
    """Run a checked flow file inline: contracts checked, trace recorded."""
    from ragbraid.dsl.compile import check_text
    from ragbraid.flows.scheduler import run_plan
    from ragbraid.registry.catalogue import Catalogue

    catalogue = Catalogue()
    for function in _ragbraid_nodes(is_async, 1 if shape.startswith("loop") else 0):
        catalogue.add_node(function)
    checked = check_text(_flow_file(shape), f"{shape}.yaml", catalogue)
    if checked.plan is None:
        raise AssertionError(checked.findings)
    plan = checked.plan

    async def run_once() -> int:
        return int((await run_plan(plan, {"value": 1}, resources=None)).outputs)  # type: ignore[arg-type]

    return run_once


def _flow_file(shape: str) -> str:
    """Return the shape as an author would write it; the loop carries its value through a hundred steps."""
    nodes, last = [], ""
    for name, before in graph_of(shape).items():
        sources = [f"${other}" for other in before or ["value"]]
        written = {1: "{use: bench.one, x: %s}", 2: "{use: bench.two, a: %s, b: %s}"}.get(len(sources))
        nodes.append(
            f"{name}: " + (written % tuple(sources) if written else f"{{use: bench.many, xs: [{', '.join(sources)}]}}")
        )
        last = name
    if shape.startswith("loop"):
        body = "".join(f"        {line}\n" for line in nodes)
        loop = f"carry: {{value: int = $value}}\n      nodes:\n{body}      next: {{value: ${last}}}\n      max_steps: {TURNS}"
        nodes, last = [f"turns:\n    loop:\n      {loop}"], "turns.value"
    head = f"ragbraid: 1\nname: {shape}\ninputs: {{value: int}}\nnodes:\n"
    return head + "".join(f"  {line}\n" for line in nodes) + f"outputs: ${last}\n"


def _ragbraid_nodes(is_async: bool, step: int) -> tuple[Any, Any, Any]:
    from ragbraid.registry.contracts import FanIn
    from ragbraid.registry.node import node

    def one(x: int) -> int:
        """Hand on."""
        return x + step

    def two(a: int, b: int) -> int:
        """Add two."""
        return a + b

    def many(xs: dict[str, int]) -> int:
        """Add many."""
        return sum(xs.values())

    async def aone(x: int) -> int:
        """Hand on."""
        return x + step

    async def atwo(a: int, b: int) -> int:
        """Add two."""
        return a + b

    async def amany(xs: dict[str, int]) -> int:
        """Add many."""
        return sum(xs.values())

    for collect in (many, amany):
        collect.__annotations__ = {"xs": FanIn[int], "return": int}
    functions = (aone, atwo, amany) if is_async else (one, two, many)
    one_node, two_node, many_node = (
        node(f"bench.{name}")(function) for name, function in zip(("one", "two", "many"), functions, strict=True)
    )
    return one_node, two_node, many_node


def prepare_haystack(shape: str, *, is_async: bool) -> Runner:
    """Run a haystack Pipeline; the loop is a hundred runs of it (a cycle inside of one costs about as much)."""
    os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
    from haystack import Pipeline, component
    from haystack.core.component.types import Variadic

    step = 1 if shape.startswith("loop") else 0

    def one(self: Any, x: int) -> dict[str, int]:
        return {"x": x + step}

    def two(self: Any, a: int, b: int) -> dict[str, int]:
        return {"x": a + b}

    def many(self: Any, xs: Variadic[int]) -> dict[str, int]:
        return {"x": sum(xs)}

    many.__annotations__["xs"] = Variadic[int]
    one.__annotations__.update(x=int)
    two.__annotations__.update(a=int, b=int)

    def made(run: Any) -> Any:
        run.__name__ = run.__qualname__ = "run"
        return component(type(f"Bench{run.__code__.co_name.title()}", (), {"run": component.output_types(x=int)(run)}))

    classes = [made(one), made(two), made(many)]
    graph, pipeline = graph_of(shape), Pipeline()
    for name, before in graph.items():
        pipeline.add_component(name, classes[min(max(len(before), 1), 3) - 1]())
        ports = ["x"] if len(before) < 2 else ["a", "b"] if len(before) == 2 else ["xs"] * len(before)
        for other, port in zip(before, ports, strict=False):
            pipeline.connect(f"{other}.x", f"{name}.{port}")
    first, last = next(iter(graph)), list(graph)[-1]

    async def run_once(value: int) -> int:
        given = {first: {"x": value}}
        result = await pipeline.run_async(given) if is_async else pipeline.run(given)
        return int(result[last]["x"])

    return turns(run_once, shape)


def prepare_hamilton(shape: str, *, is_async: bool) -> Runner:
    """Execute a Hamilton driver over a module of functions whose parameters name what they need."""
    os.environ["HAMILTON_TELEMETRY_ENABLED"] = "false"
    from hamilton import ad_hoc_utils, async_driver, driver

    graph, step = graph_of(shape), (1 if shape.startswith("loop") else 0)
    prefix = "async " if is_async else ""
    lines = []
    for name, before in graph.items():
        names = before or ["value"]
        parameters = ", ".join(f"{other}: int" for other in names)
        lines.append(f"{prefix}def {name}({parameters}) -> int:\n    return {' + '.join(names)} + {step}")
    scope: dict[str, Any] = {}
    exec("\n".join(lines), scope)  # noqa: S102 - Hamilton's graphs are functions in a module
    module = ad_hoc_utils.create_temporary_module(*[scope[name] for name in graph], module_name=f"bench_{shape}")
    last = list(graph)[-1]
    built: list[Any] = []

    async def run_once(value: int) -> int:
        if not built:
            builder = (async_driver if is_async else driver).Builder().with_modules(module)
            built.append(await builder.build() if is_async else builder.build())
        result = built[0].execute([last], inputs={"value": value})
        return int((await result if is_async else result)[last])

    return turns(run_once, shape)


PEERS: dict[str, Callable[[str], Runner]] = {
    "limit": prepare_limit,
    "ragbraid": lambda shape: prepare_ragbraid(shape, is_async=True),
    "ragbraid-sync": lambda shape: prepare_ragbraid(shape, is_async=False),
    "haystack": lambda shape: prepare_haystack(shape, is_async=False),
    "haystack-async": lambda shape: prepare_haystack(shape, is_async=True),
    "hamilton": lambda shape: prepare_hamilton(shape, is_async=False),
    "hamilton-async": lambda shape: prepare_hamilton(shape, is_async=True),
}

# -- measuring ---------------------------------------------------------------------------------------------------------


def work(peer: str) -> None:
    """Answer the parent's requests, one JSON line each: be this peer's process."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a peer prints is no answer
    loop = asyncio.new_event_loop()
    runners: dict[str, tuple[Runner, int]] = {}

    async def timed(run: Runner, times: int) -> float:
        gc.collect()
        start = time.perf_counter()
        for _ in range(times):
            await run()
        return (time.perf_counter() - start) / times

    def answer(shape: str) -> dict[str, Any]:
        if shape not in runners:
            run = PEERS[peer](shape)
            found = loop.run_until_complete(_awaited(run))
            if found != EXPECTED.get(shape, 1):
                raise AssertionError(f"gave {found}, not {EXPECTED.get(shape, 1)}")
            once = min(loop.run_until_complete(timed(run, 1)) for _ in range(2))
            runners[shape] = run, max(1, min(5_000, int(0.06 / once)))
            return {"version": _version(peer)}
        return {"seconds": loop.run_until_complete(timed(*runners[shape]))}

    for line in sys.stdin:
        shape = json.loads(line)
        try:
            reply = answer(shape)
        except Exception as error:  # noqa: BLE001 - the parent reports it
            reply = {"error": f"{type(error).__name__}: {error}"[:300]}
        answers.write(json.dumps(reply) + "\n")


async def _awaited(run: Runner) -> int:
    return await run()


def _version(peer: str) -> str | None:
    from importlib.metadata import version

    distribution = DISTRIBUTIONS.get(peer.partition("-")[0])
    return version(distribution) if distribution else None


class Worker:
    """A peer's process."""

    def __init__(self, peer: str, python: str) -> None:
        command = [python, os.path.abspath(__file__), "--worker", peer]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def ask(self, shape: str) -> dict[str, Any]:
        """Have a shape prepared (the first time) or timed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(shape) + "\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"error": "the process ended"}

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait(30)


def python_of(peer: str, given: dict[str, str], install: bool) -> str | None:
    """Return the interpreter of a peer, making its virtual environment where that is needed and wanted."""
    family = peer.partition("-")[0]
    if family in given:
        return given[family]
    if family not in DISTRIBUTIONS:
        return sys.executable
    home = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "ragbraid-bench" / family
    python = home / "bin" / "python"
    if not python.exists():
        if not install:
            return None
        print(f"making {home} for {DISTRIBUTIONS[family]} ...", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-qq", DISTRIBUTIONS[family]], check=True)
    return str(python)


def measure(workers: dict[str, Worker], shapes: list[str], rounds: int) -> dict[str, Any]:
    """Return microseconds per node by peer and shape, and what could not be measured."""
    missing, times, versions = {}, {}, {}
    for peer, worker in workers.items():
        for shape in shapes:
            reply = worker.ask(shape)
            if "error" in reply:
                missing[f"{peer}/{shape}"] = reply["error"]
            else:
                times[peer, shape] = []
                versions[peer] = reply["version"]
    for number in range(rounds):
        for peer, shape in [*times][number % len(times) :] + [*times][: number % len(times)]:
            times[peer, shape].append(workers[peer].ask(shape)["seconds"] * 1e6 / NODES[shape])
    medians: dict[str, dict[str, float]] = {}
    for (peer, shape), found in times.items():
        medians.setdefault(peer, {})[shape] = statistics.median(found)
    return {"us_per_node": medians, "missing": missing, "versions": versions, "rounds": rounds}


def targets(medians: dict[str, dict[str, float]]) -> list[tuple[str, float, float]]:
    """Return what is aimed at: words, figure, bound."""
    found = []
    limit = medians.get("limit", {})
    for peer in ("ragbraid", "ragbraid-sync"):
        ours = medians.get(peer, {})
        for shape in ("chain5", "chain50", "chain500", "loop100x3"):
            if shape in ours:
                found.append((f"{peer} {shape}: us per node", ours[shape], 15.0))
        for shape in ("fan20", "grid200"):
            if shape in ours and shape in limit:
                found.append((f"{peer} {shape}: times hand-written asyncio", ours[shape] / limit[shape], 2.0))
        if {"chain50", "chain500"} <= ours.keys():
            found.append((f"{peer}: chain500 against chain50, per node", ours["chain500"] / ours["chain50"], 1.3))
    return found


def report(result: dict[str, Any], shapes: list[str]) -> None:
    """Print the table, the ratios to ragbraid and how the targets are met."""
    medians = result["us_per_node"]
    base = medians.get("ragbraid", {})
    print(f"us per node, median of {result['rounds']} interleaved rounds (times ragbraid)")
    print(f"{'':22}" + "".join(f"{shape:>19}" for shape in shapes))
    for peer, row in medians.items():
        name = f"{peer} {result['versions'].get(peer) or ''}".strip()
        cells = []
        for shape in shapes:
            ratio = f" (x{row[shape] / base[shape]:.2f})" if shape in row and shape in base else ""
            cells.append(f"{row[shape]:.2f}{ratio}" if shape in row else "-")
        print(f"{name:22}" + "".join(f"{cell:>19}" for cell in cells))
    for what, why in result["missing"].items():
        print(f"not measured: {what}: {why}")
    for words, figure, bound in targets(medians):
        print(f"{'met   ' if figure <= bound else 'MISSED'} {words}: {figure:.2f}, at most {bound:g}")


def main() -> None:
    """Parse the command line, measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--python", action="append", default=[], metavar="PEER=PATH")
    parser.add_argument("--no-install", action="store_true", help="report peers that are not there, make nothing")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker)
        return
    given = dict(item.split("=", 1) for item in options.python)
    workers, absent = {}, {}
    for peer in options.peers.split(","):
        python = python_of(peer, given, not options.no_install)
        if python is None:
            absent[peer] = f"{DISTRIBUTIONS[peer.partition('-')[0]]} is not installed for it"
        else:
            workers[peer] = Worker(peer, python)
    shapes = options.shapes.split(",")
    try:
        result = measure(workers, shapes, options.rounds)
    finally:
        for worker in workers.values():
            worker.close()
    result["missing"].update(absent)
    report(result, shapes)
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
