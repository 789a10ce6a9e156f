"""A small project for tests of the command line: real files and a real store, vectors from a server on loopback."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from ragbraid.flows.cli import app
from ragbraid.flows.resources import shared_pool
from ragbraid.flows.scripted_llm import ScriptedLLM

EXAMPLES = Path(__file__).parents[2] / "examples_flows"

PROJECT = """
[resources.embedder]
use = "openai.embedder"
base_url = "{url}"
model = "{model}"
dimension = 64
max_attempts = 1
"""
DOCUMENTS = {
    "pump.md": "# Alpha pump\n\nThe alpha pump needs oil every 12 days.\n",
    "gate.md": "# Gate\n\nThe north gate closes at 21:30 on weekdays.\n",
    "zh.md": "# 水泵\n\n乙号水泵每周检查一次。\n",
}

Command = Callable[..., Result]


def run_here(*arguments: str | Path) -> Result:
    """Run a command in this process, and close what it opened, as its end would."""
    try:
        return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="ragbraid")
    finally:
        shared_pool().close()


def start(*arguments: str | Path, folder: Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start a command in a process of its own."""
    command = [sys.executable, "-m", "ragbraid.flows.cli", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, env=environment
    )


def run_apart(*arguments: str | Path, folder: Path, env: Mapping[str, str] | None = None) -> Result:
    """Run a command in a process of its own to its end."""
    process = start(*arguments, folder=folder, env=env)
    stdout, stderr = process.communicate()
    return as_result(process.returncode, stdout, stderr)


def as_result(code: int, stdout: str, stderr: str) -> Result:
    """Return what a process left in the form of `CliRunner`."""
    return Result(CliRunner(), stdout.encode(), stderr.encode(), (stdout + stderr).encode(), None, code, None)


def bind(folder: Path, url: str, *, model: str = "tiny", more: str = "") -> None:
    """Write the project file, with the embedder at `url`."""
    (folder / "ragbraid.toml").write_text(PROJECT.format(url=url, model=model) + more)


def make_project(folder: Path, url: str) -> None:
    """Make a folder with the example flows, documents and a filled knowledge base."""
    for flow in EXAMPLES.glob("*.yaml"):
        shutil.copy(flow, folder)
    (folder / "docs").mkdir()
    for name, text in DOCUMENTS.items():
        (folder / "docs" / name).write_text(text, encoding="utf-8")
    bind(folder, url)


@contextmanager
def embedding_server() -> Iterator[ScriptedLLM]:
    """A server of vectors in which texts that share words are near each other."""
    with ScriptedLLM() as server:
        yield server


def once_per_session(base: Path, name: str, build: Callable[[Path], Any]) -> Path:
    """Return a folder that is built once for all workers of pytest-xdist; copy it, never change it.

    Args:
        base: `tmp_path_factory.getbasetemp()`.
        name: the folder's name.
        build: fills the folder.
    """
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder.with_suffix(".done")
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            build(folder)
            done.touch()
    return folder
