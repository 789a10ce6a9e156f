from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples_flows" / "hybrid_qa.yaml"
HEAVY = frozenset(
    {
        "prefect", "openai", "fastembed", "onnxruntime", "torch", "qdrant_client", "qdrant_edge", "instructor", "jieba",
        "numpy", "networkx",
    }
)  # fmt: skip
RUN = """
import json, sys
from ragbraid.flows.cli import main
try:
    main(json.loads(sys.argv[1]))
except SystemExit as end:
    code = end.code
else:
    code = 0
print("\\n" + json.dumps([code, sorted(sys.modules)]))
"""


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = EXAMPLE.read_text(encoding="utf-8")
    assert "retrieve.dense" in text
    path = tmp_path_factory.mktemp("flows") / "broken.yaml"
    path.write_text(text.replace("retrieve.dense", "retrieve.dens"), encoding="utf-8")
    return path


def run(arguments: list[str], folder: Path) -> tuple[int, set[str], str]:
    """Run a command in a fresh process; returns its exit code, the packages it imported, and what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(arguments)], cwd=folder, capture_output=True, text=True, check=True
    )
    printed, _, last = done.stdout.rstrip().rpartition("\n")
    code, modules = json.loads(last)
    return code or 0, {name.partition(".")[0] for name in modules}, printed


@pytest.mark.parametrize("command", [["check"], ["explain"], ["graph"], ["graph", "--format", "svg"]], ids=" ".join)
def test_a_command_on_a_good_flow_imports_nothing_heavy(command: list[str], tmp_path: Path) -> None:
    code, packages, printed = run([command[0], str(EXAMPLE), *command[1:]], tmp_path)
    assert code == 0
    assert printed.strip()
    assert packages & HEAVY == set()


@pytest.mark.parametrize("command", ["check", "explain", "graph"])
def test_a_command_on_a_broken_flow_imports_nothing_heavy(command: str, broken: Path, tmp_path: Path) -> None:
    code, packages, _ = run([command, str(broken)], tmp_path)
    assert code == 1
    assert packages & HEAVY == set()


@pytest.mark.parametrize(
    "arguments", [["nodes"], ["nodes", "fuse.rrf"], ["nodes", "--json"], ["schema"], ["--help"]], ids=" ".join
)
def test_a_command_over_the_catalogue_imports_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    code, packages, printed = run(arguments, tmp_path)
    assert code == 0
    assert printed.strip()
    assert packages & HEAVY == set()


def test_importing_ragbraid_imports_nothing_of_others() -> None:
    script = "import sys; before = set(sys.modules); import ragbraid; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "pydantic" not in done.stdout
