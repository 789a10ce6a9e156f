#!/usr/bin/env python
"""What reading, checking and compiling a flow file costs, and how soon the command answers.

    python tests/bench/bench_check.py [--rounds 15] [--json out.json] [--haystack /path/to/venv/bin/python]

Figures are CPU milliseconds (user and system, the machine's other work left out), median and best of the rounds:
- `check N`: a flow of N nodes from the text on disk to the plan, in a process whose nodes are imported (no flow is
  remembered);
- `ragbraid check`, `ragbraid --help`: whole processes, start of the interpreter included; wall-clock time beside it;
- `haystack N`: `Pipeline.loads` of N components in the same rounds, where a Python with haystack is named or found
  under `~/.cache/ragbraid-bench`.

The flow has layers of ten: eight retrievers, a fusion of them (and of the layer before), and a reranker, with
expressions, weights, retries and conditions as authors write them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

SIZES = (50, 200)
TARGETS = {"check 50": "10", "check 200": "100", "ragbraid check (200)": "500", "ragbraid --help": "150"}
HAYSTACK = Path.home() / ".cache" / "ragbraid-bench" / "haystack" / "bin" / "python"


def flow_of(size: int) -> str:
    """Return a flow of `size` nodes."""
    nodes, arrows = [], []
    before = ""
    for layer in range(size // 10):
        names = [f"r{layer}_{number}" for number in range(8)]
        for number, name in enumerate(names):
            if number % 2:
                nodes.append(
                    f'  {name}: {{use: retrieve.sparse, query: "${{ question | lower }}", top_k: {number + 5}}}'
                )
            else:
                nodes.append(f"  {name}: {{use: retrieve.dense, top_k: $top_k, retry: 3, timeout: 30s}}")
        weights = ", ".join(f"{name}: 0.1" for name in names)
        nodes.append(f"  m{layer}: {{use: fuse.rrf, k: 60, weights: {{{weights}}}}}")
        nodes.append(f'  t{layer}: {{use: rank.top_k, k: 5, ensure: "${{ out | length <= 5 }}"}}')
        arrows.append(f"  - {', '.join([*names, before] if before else names)} -> m{layer} -> t{layer}")
        before = f"t{layer}"
    head = ["ragbraid: 1", "name: big", "inputs:", "  question: str", "  top_k: {type: int, default: 5, ge: 1, le: 50}"]
    return "\n".join([*head, "nodes:", *nodes, "flow:", *arrows, f"outputs: ${before}", ""])


HAYSTACK_SIDE = """
import json, sys, time
from haystack import Pipeline
from haystack.components.joiners import DocumentJoiner
sizes = json.loads(sys.argv[1])
texts = {}
for size in sizes:
    pipeline = Pipeline()
    for number in range(size):
        pipeline.add_component(f"j{number}", DocumentJoiner())
        if number:
            pipeline.connect(f"j{number - 1}.documents", f"j{number}.documents")
    texts[size] = pipeline.dumps()
    Pipeline.loads(texts[size])
print("ready", flush=True)
for line in sys.stdin:
    size = int(line)
    start = time.process_time()
    Pipeline.loads(texts[size])
    print((time.process_time() - start) * 1000, flush=True)
"""


def measure_check(path: Path) -> float:
    """Return the CPU milliseconds of one compilation in this process."""
    from ragbraid.dsl.compile import check_file
    from ragbraid.dsl.expressions import parse_value
    from ragbraid.registry.catalogue import installed_catalogue

    parse_value.cache_clear()
    start = time.process_time()
    checked = check_file(path, installed_catalogue())
    spent = time.process_time() - start
    assert checked.plan is not None, checked.findings
    assert len(checked.plan.body.steps) == int(path.stem)
    return spent * 1000


def measure_command(arguments: list[str]) -> tuple[float, float]:
    """Return the CPU and wall-clock milliseconds of a whole process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    # An installed package has its bytecode, which some environments forbid to write for a source tree.
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-m", "ragbraid.flows.cli", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=env)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent * 1000, wall * 1000


def start_haystack(python: Path | None) -> subprocess.Popen[str] | None:
    """Return a process that loads haystack pipelines on demand, or None where there is no such Python."""
    if python is None or not python.exists():
        return None
    command = [str(python), "-c", HAYSTACK_SIDE, json.dumps(SIZES)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process if process.stdout.readline().strip() == "ready" else None


def ask_haystack(process: subprocess.Popen[str], size: int) -> float:
    """Return the CPU milliseconds of one `Pipeline.loads`."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{size}\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def run_rounds(rounds: int, folder: Path, haystack: subprocess.Popen[str] | None) -> dict[str, list[float]]:
    """Return every figure of every round, by what was measured."""
    figures: dict[str, list[float]] = {}
    paths = {size: folder / f"{size}.yaml" for size in SIZES}
    measures: dict[str, Callable[[], float]] = {f"check {n}": lambda n=n: measure_check(paths[n]) for n in SIZES}  # type: ignore[misc]
    if haystack is not None:
        measures |= {f"haystack {n}": lambda n=n: ask_haystack(haystack, n) for n in SIZES}  # type: ignore[misc]
    for size, path in paths.items():
        path.write_text(flow_of(size), encoding="utf-8")
        measure_check(path)
    for _ in range(rounds):
        for name, measure in measures.items():
            figures.setdefault(name, []).append(measure())
        for name, arguments in (("ragbraid check (200)", ["check", str(paths[200])]), ("ragbraid --help", ["--help"])):
            spent, wall = measure_command(arguments)
            figures.setdefault(name, []).append(spent)
            figures.setdefault(f"{name}, wall clock", []).append(wall)
    return figures


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--haystack", type=Path, default=HAYSTACK, help="a Python that has haystack-ai")
    options = parser.parse_args()
    haystack = start_haystack(options.haystack)
    with tempfile.TemporaryDirectory() as folder:
        figures = run_rounds(options.rounds, Path(folder), haystack)
    if haystack is not None:
        haystack.terminate()
    print(f"{'milliseconds':<34} {'median':>8} {'best':>8} {'target':>8}")
    for name, values in figures.items():
        print(f"{name:<34} {statistics.median(values):>8.1f} {min(values):>8.1f} {TARGETS.get(name, ''):>8}")
    if haystack is None:
        print("haystack: absent (name a Python that has it with --haystack)")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
