"""Running a coroutine to its end from code that may or may not stand inside an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Coroutine
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
