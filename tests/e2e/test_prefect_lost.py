"""A Prefect server that dies in the middle of a run of the command line: what the user gets and is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import prefect_server
import pytest
from cli_parts import start

NODES = '''
import time
from pathlib import Path

from ragbraid.registry.node import node


@node("mine.wait", blocking=True, cacheable=False, example="a: {use: mine.wait, text: x}")
def wait(text: str) -> str:
    """Wait until the file `go` is there.

    Args:
        text: given back.
    """
    Path("waits").touch()
    while not Path("go").exists():
        time.sleep(0.05)
    return text


@node("mine.check", cacheable=False, example="a: {use: mine.check, text: x}")
def check(text: str) -> str:
    """Refuse a bad text.

    Args:
        text: given back with a mark, unless it is `bad`.
    """
    if text == "bad":
        raise ValueError("the text is bad")
    return text + "!"
'''
FLOW = """
ragbraid: 1
name: lost
inputs: {text: str}
nodes: {a: {use: mine.wait, text: $text}, b: {use: mine.check, text: $a}}
outputs: $b
"""


class Server:
    """A Prefect server of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self._process, self.url = prefect_server.start(self.home, folder / "server.log")

    def kill(self) -> None:
        """End it and all its processes by SIGKILL."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path / "server")
    yield started
    started.kill()


def begin(folder: Path, server: Server, text: str) -> subprocess.Popen[str]:
    """Start a run in a project of its own."""
    folder.mkdir()
    (folder / "mine.py").write_text(NODES)
    (folder / "ragbraid.toml").write_text('nodes = ["mine.py"]\n')
    (folder / "lost.yaml").write_text(FLOW)
    # The client's own patience: with its default of five tries the same takes a minute longer.
    environment = {**prefect_server.environment(server.home, server.url), "PREFECT_CLIENT_MAX_RETRIES": "1"}
    command = ("run", "lost.yaml", "-i", f"text={text}", "--engine", "prefect", "--trace", "t.json")
    return start(*command, folder=folder, env=environment)


@pytest.mark.slow
def test_a_server_that_is_killed_in_mid_run_takes_neither_result_nor_failure_with_it(
    tmp_path: Path, server: Server
) -> None:
    folders = {text: tmp_path / text for text in ("kept", "bad")}
    runs = {text: begin(folder, server, text) for text, folder in folders.items()}
    try:
        while not all((folders[text] / "waits").exists() or run.poll() is not None for text, run in runs.items()):
            time.sleep(0.05)
        server.kill()
        for folder in folders.values():
            (folder / "go").touch()
        told = {text: run.communicate(timeout=120) for text, run in runs.items()}
    finally:
        for run in runs.values():
            run.kill()
            run.wait()
    lost = f"but the Prefect API at {server.url} was lost and does not know"
    advice = "when it is back, cancel the flow run that it still shows as running"
    for text, code, printed, status, sentences in (
        ("kept", 0, "kept!\n", "ok", (f"the run is done and its result is here, {lost}", advice)),
        (
            "bad",
            1,
            "",
            "failed",
            (f"the run has failed, {lost}", advice, "error: step `b`: `b` failed with ValueError"),
        ),
    ):
        stdout, stderr = told[text]
        assert (runs[text].returncode, stdout) == (code, printed), stderr
        for sentence in sentences:
            assert sentence in stderr
        assert "Traceback" not in stderr
        assert json.loads((folders[text] / "t.json").read_text())["status"] == status
