"""Event loops: running a coroutine to its end wherever the caller stands, and ending tasks for certain."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine and return its result, blocking the caller.

    Where a loop already runs in this thread (a notebook, a web handler) it cannot be entered twice: the coroutine then
    runs on a loop of its own in another thread, which sees the caller's context variables.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    outcome: list[T] = []
    failure: list[BaseException] = []
    context = contextvars.copy_context()

    def target() -> None:
        try:
            outcome.append(context.run(asyncio.run, work))
        except BaseException as error:  # noqa: BLE001 - raised again below, in the caller's thread
            failure.append(error)

    thread = threading.Thread(target=target, name="ragbraid-run", daemon=True)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]


async def end_tasks(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks and return when all have ended; what they raise is dropped.

    Raises:
        asyncio.CancelledError: the caller was cancelled meanwhile. It still waited for all of them.
    """
    cancelled = None
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            cancelled = error
    for task in tasks:
        if not task.cancelled():
            task.exception()  # looked at, so that asyncio does not report it as never retrieved
    if cancelled is not None:
        raise cancelled


def in_main_thread() -> bool:
    """Whether the caller runs in the process's main thread, where signals arrive."""
    return threading.current_thread() is threading.main_thread()
