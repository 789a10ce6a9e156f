"""A blocking node whose run was cancelled: its thread ends where the node asks, or reports something."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from ragbraid.flows.inline import ThreadCall
from ragbraid.flows.trace import StepTrace, Trace
from ragbraid.nodes.onnx_text import OnnxTextModel
from ragbraid.registry.context import report_progress, stop_if_cancelled
from ragbraid.registry.errors import RunError


def embed_in_batches() -> None:
    class Model:
        model = None

        def passage_embed(self, texts: list[str], batch_size: int) -> list[list[float]]:
            return [[1.0, 0.0] for _ in texts]

    while True:
        OnnxTextModel(Model, label="m", batch_size=1, batch_tokens=1).embed(["a", "b"], role="document")


def report() -> None:
    while True:
        report_progress("going on", 1)


def ask() -> None:
    while True:
        stop_if_cancelled()


@pytest.mark.parametrize("work", [ask, report, embed_in_batches])
def test_its_thread_ends(work: Callable[[], None]) -> None:
    began, ended = threading.Event(), threading.Event()
    failures: list[RunError] = []

    def node() -> None:
        began.set()
        try:
            work()
        except RunError as error:
            failures.append(error)
        finally:
            ended.set()

    async def run() -> None:
        call = asyncio.create_task(ThreadCall(StepTrace("a", "n", 0.0)).run(node, {}, Trace()))
        await asyncio.to_thread(began.wait, 30)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(run())
    assert ended.wait(30)
    assert [error.kind for error in failures] == ["cancelled"]


def test_outside_of_a_run_there_is_nothing_to_stop() -> None:
    stop_if_cancelled()
