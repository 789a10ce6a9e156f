"""An event loop in a thread of its own, where blocking nodes have their requests made: there they can be cut off.

A thread that waits for a socket cannot be stopped; a task can, and its connection is closed with it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from functools import cache
from typing import Any, TypeVar

from ragbraid.registry.context import stop_if_cancelled

T = TypeVar("T")

_SECONDS_BETWEEN_LOOKS = 0.5
"""How soon a request ends after its run was cancelled."""


def run_cancellable(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the background loop and return its result, blocking the caller.

    Raises:
        RunError: of kind `cancelled`, when the step that the caller belongs to was cancelled. The coroutine is, too.
    """
    future = begin(work)
    try:
        while True:
            try:
                return future.result(_SECONDS_BETWEEN_LOOKS)
            except TimeoutError:
                if future.done():  # the work's own
                    raise
            stop_if_cancelled()
    finally:
        future.cancel()


def begin(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Have the background loop run a coroutine, and return at once."""
    return asyncio.run_coroutine_threadsafe(work, _loop(os.getpid()))


@cache
def _loop(pid: int) -> asyncio.AbstractEventLoop:
    """Return the loop of this process; the thread of another one does not live on in its fork."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name=f"ragbraid-requests-{pid}", daemon=True).start()
    return loop
