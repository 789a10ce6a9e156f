"""A project with nodes of its own on a real Prefect server, and what its runs leave there."""

from __future__ import annotations

import asyncio
import inspect
import uuid
from pathlib import Path
from typing import Any

from ragbraid.flows.api import Flow, load

NODES = '''
import logging
import threading
from pathlib import Path

from ragbraid import Document, Reranker, ServiceError, node, resource
from ragbraid.registry.context import report_progress

COUNTS = {}
STARTED = threading.Event()
RELEASE = threading.Event()
BARRIER = threading.Barrier(2)
LOGGER = logging.getLogger(__name__)


def count(name):
    COUNTS[name] = COUNTS.get(name, 0) + 1
    return COUNTS[name]


def make(name, times):
    @node(f"mine.{name}")
    def repeat(text: str) -> str:
        """Say it several times."""
        count(name)
        return text * times

    return repeat


twice, thrice = make("twice", 2), make("thrice", 3)


@node("mine.tag")
def tag(text: str, *, mark: str = "!") -> str:
    """Put a mark behind a text."""
    count("tag")
    LOGGER.info("tagging %s", text)
    return text + mark


@node("mine.join")
def join(first: str, second: str) -> str:
    """Join two texts."""
    return first + "|" + second


@node("mine.stuck", blocking=True)
def stuck(text: str) -> str:
    """Wait for a long time."""
    STARTED.set()
    RELEASE.wait(120)
    return text


@node("mine.meet", blocking=True)
def meet(text: str) -> str:
    """Wait for another one."""
    BARRIER.wait(60)
    return text


@node("mine.flaky")
def flaky(text: str, *, kind: str = "unavailable", failures: int = 2) -> str:
    """Fail a few times."""
    if count("flaky") <= failures:
        raise ServiceError("the service is away", kind=kind)
    return text


@node("mine.crash")
def crash(text: str) -> str:
    """Have a mistake."""
    raise ValueError(f"cannot do {text}")


@node("mine.documents")
def documents(count: int) -> list[Document]:
    """Make documents."""
    return [Document(id=str(n), source=str(n), text="x", content_hash="0") for n in range(count)]


@node("mine.measure")
def measure(documents: list[Document]) -> int:
    """Count documents."""
    return len(documents)


class Locked:
    def __init__(self, model):
        self.lock = threading.Lock()
        self.identity = model

    def score(self, query, texts):
        with self.lock:
            return [float(len(text)) for text in texts]


@resource("mine.locked")
def locked(*, model: str = "a") -> Reranker:
    """Hold a lock."""
    return Locked(model)


@node("mine.slow", blocking=True)
def slow(text: str) -> str:
    """Report progress."""
    for number in range(5):
        report_progress("letters", number, 4)
    return text


@node("mine.rate")
def rate(text: str, reranker: Reranker) -> float:
    """Score a text."""
    count("rate")
    return reranker.score("", [text])[0]
'''

HEAD = "ragbraid: 1\nname: {name}\n"


class Project:
    """A folder with nodes of its own, as a user has it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "my_nodes.py").write_text(NODES)
        self.configure()

    def configure(self, more: str = "") -> None:
        (self.folder / "ragbraid.toml").write_text('nodes = ["my_nodes.py"]\n' + more)

    def flow(self, text: str, name: str = "") -> Flow:
        name = name or f"flow_{uuid.uuid4().hex[:8]}"
        path = self.folder / f"{name}.yaml"
        path.write_text(HEAD.format(name=name) + inspect.cleandoc(text) + "\n")
        return load(path)

    def module(self, flow: Flow) -> Any:
        contract = flow.catalogue.find_node("mine.tag")
        assert contract is not None
        return inspect.getmodule(contract.function)


async def records_of(flow_run_id: Any, expected: int) -> list[Any]:
    """Read a flow run's task runs when that many have reached a final state: they arrive by events, a little later."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    only = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id]))
    async with get_client() as client:
        for _ in range(300):
            found = await client.read_task_runs(flow_run_filter=only)
            if sum(1 for run in found if run.state is not None and run.state.is_final()) >= expected:
                break
            await asyncio.sleep(0.1)
        return sorted(found, key=lambda run: run.name)


def run_state(flow: Flow, **inputs: Any) -> Any:
    """Run a flow on Prefect and return its final state."""
    return asyncio.run(flow.prefect(**inputs, return_state=True))


def task_runs(flow: Flow, expected: int, **inputs: Any) -> list[Any]:
    async def run() -> list[Any]:
        state: Any = await flow.prefect(**inputs, return_state=True)
        return await records_of(state.state_details.flow_run_id, expected)

    return asyncio.run(run())
