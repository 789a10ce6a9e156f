"""Flows whose steps write down on disk that they were done, served here or run by workers, and what an operator does."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from cli_parts import run_here, start

T = TypeVar("T")

NODES = '''
import threading
import time
from pathlib import Path

from ragbraid import ServiceError, node
from ragbraid.registry.context import current_folder, stop_if_cancelled


def lines(name):
    path = current_folder() / name
    return path.read_text().splitlines() if path.exists() else []


@node("mine.work", cacheable=False)
def work(text: str, *, name: str = "work") -> str:
    """Write down what is done; fail where the file `broken` says so."""
    done = f"{name} {text}"
    with (current_folder() / "done").open("a") as file:
        file.write(done + "\\n")
    if done in lines("broken"):
        raise ServiceError("the service is away")
    return text + "+"


@node("mine.hold", blocking=True, cacheable=False)
def hold(text: str) -> str:
    """Wait while the file `hold` is there."""
    (current_folder() / "holds").touch()
    while lines("hold"):
        time.sleep(0.05)
        stop_if_cancelled()
    return text
'''
STEPS = """
inputs: {text: str = a}
nodes:
  begin: {use: mine.work, name: begin, text: $text}
  grow:
    loop:
      carry: {said: str = $begin}
      nodes: {more: {use: mine.work, name: more, text: $said}}
      next: {said: $more}
      max_steps: 3
  sub: {use: ./sub.yaml, text: $grow.said}
  some:
    map:
      over: {letter: "${ ['x', 'y', 'z'] }"}
      nodes: {one: {use: mine.work, name: some, text: "${ sub ~ letter }"}}
      output: $one
      on_error: skip
  all:
    map:
      over: {letter: $some}
      nodes: {one: {use: mine.work, name: all, text: $letter}}
      output: $one
      concurrency: 1
  held: {use: mine.hold, text: "${ all | join(' ') }"}
  end: {use: mine.work, name: end, text: $held}
outputs: $end
"""
SUB = """
ragbraid: 1
name: sub
inputs: {text: str}
nodes:
  one: {use: mine.work, name: sub, text: $text}
outputs: $one
"""
ENDED = ("Completed", "Failed", "Crashed", "Cancelled", "TimedOut")


class Shop:
    """A project folder whose nodes are told by files what to do, and tell by files what they did."""

    def __init__(self, folder: Path, server: Any) -> None:
        self.folder = folder
        self.server = server
        self.name = f"recover_{os.urandom(4).hex()}"
        (folder / "my_nodes.py").write_text(NODES)
        (folder / "ragbraid.toml").write_text('nodes = ["my_nodes.py"]\n')
        (folder / "sub.yaml").write_text(SUB)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PREFECT_API_URL": self.server.url,
            "PREFECT_HOME": str(self.server.home),
            "PREFECT_LOCAL_STORAGE_PATH": str(self.server.home / "storage"),
            "DO_NOT_TRACK": "1",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }

    def write(self, text: str = STEPS) -> Path:
        file = self.folder / f"{self.name}.yaml"
        file.write_text(f"ragbraid: 1\nname: {self.name}\n" + inspect.cleandoc(text) + "\n")
        return file

    def break_at(self, *steps: str) -> None:
        (self.folder / "broken").write_text("\n".join(steps))

    def hold(self) -> None:
        (self.folder / "hold").write_text("yes")
        (self.folder / "holds").unlink(missing_ok=True)

    def release(self) -> None:
        (self.folder / "hold").unlink(missing_ok=True)

    def until_held(self) -> None:
        wait_for(lambda: (self.folder / "holds").exists())

    def take_done(self) -> list[str]:
        """Return what was done since the last call."""
        path = self.folder / "done"
        found = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return sorted(found)

    def deployment(self) -> Any:
        return ask(lambda client: client.read_deployment_by_name(f"{self.name}/{self.name}"))

    def begin(self) -> Any:
        """Start a run, as *Run* in the UI does."""
        found = self.deployment()
        return ask(lambda client: client.create_flow_run_from_deployment(found.id))

    def log_of(self, run: Any) -> str:
        from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId

        only = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run.id]))
        return "\n".join(log.message for log in ask(lambda client: client.read_logs(log_filter=only)))

    def slots_taken(self) -> float:
        """Return how many slots of the deployment's concurrency limit are taken."""
        limit = self.deployment().global_concurrency_limit
        return float(limit.active_slots)


def wait_for(condition: Callable[[], Any], seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
    return found


def ask(question: Callable[[Any], Awaitable[T]]) -> T:
    """Ask the server something."""
    from prefect.client.orchestration import get_client

    async def work() -> T:
        async with get_client() as client:
            return await question(client)

    return asyncio.run(work())


def state_of(run: Any) -> Any:
    return ask(lambda client: client.read_flow_run(run.id)).state


def until(run: Any, *names: str, seconds: float = 60) -> Any:
    """Return the run when its state has one of these names."""

    async def look(client: Any) -> Any:
        for _ in range(int(seconds * 10)):
            found = await client.read_flow_run(run.id)
            if found.state.name in names:
                return found
            await asyncio.sleep(0.1)
        raise AssertionError(f"{found.state} is none of {names}")

    return ask(look)


def until_ended(run: Any) -> Any:
    return until(run, *ENDED)


def retry(run: Any) -> None:
    """Do what *Retry* in the UI does; both UIs of Prefect 3.9 send this, the newer one with `force`."""
    body = {"state": {"type": "SCHEDULED", "name": "AwaitingRetry", "message": "Retry from the UI"}, "force": False}
    answer = ask(lambda client: client._client.post(f"/flow_runs/{run.id}/set_state", json=body))
    assert answer.json()["status"] == "ACCEPT", answer.text


def cancel(run: Any) -> None:
    """Do what *Cancel* in the UI does."""
    body = {"state": {"type": "CANCELLING", "name": "Cancelling"}, "force": False}
    answer = ask(lambda client: client._client.post(f"/flow_runs/{run.id}/set_state", json=body))
    assert answer.json()["status"] == "ACCEPT", answer.text


@contextmanager
def served(shop: Shop, *options: str, env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """Serve the shop's flow in a process of its own, as it is now."""
    file = shop.folder / f"{shop.name}.yaml"
    process = start("serve", file, *options, folder=shop.folder, env={**shop.environment, **(env or {})})
    try:
        assert process.stderr is not None
        first = process.stderr.readline()
        assert re.match(f"serving {shop.name}", first), first + process.stderr.read()
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=60)
        finally:
            process.kill()


def make_pool(shop: Shop, kind: str = "process") -> str:
    from prefect.client.schemas.actions import WorkPoolCreate

    name = f"pool-{shop.name}"
    ask(lambda client: client.create_work_pool(WorkPoolCreate(name=name, type=kind)))
    return name


def deploy(shop: Shop, pool: str) -> None:
    result = run_here("deploy", shop.folder / f"{shop.name}.yaml", "--pool", pool)
    assert result.exit_code == 0, result.output


@contextmanager
def worker(shop: Shop, pool: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run Prefect's process worker."""
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool, "--type", "process", *options]
    environment = {**os.environ, **shop.environment, "PREFECT_WORKER_QUERY_SECONDS": "1"}
    with (shop.folder / "worker.log").open("ab") as log:
        process = subprocess.Popen(
            command, cwd=shop.folder, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
