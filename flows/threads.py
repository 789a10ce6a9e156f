"""Worker threads for blocking nodes.

They are daemons, unlike those of `concurrent.futures`: a function that never returns can neither keep the process
alive nor hold up a run that has given it up.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

_IDLE_SECONDS = 5.0


class Threads:
    """A pool that grows with need up to `limit` threads and shrinks when idle. One serves all runs of a process."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._busy = 0

    @property
    def busy(self) -> int:
        """How many calls are under way or waiting for a thread, abandoned ones included."""
        return self._busy

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Have the function called by a worker thread."""
        future: Future[T] = Future()
        with self._lock:
            self._busy += 1
            grow = self._busy > self._threads and self._threads < self._limit
            self._threads += grow
        self._jobs.put((future, function))
        if grow:
            threading.Thread(target=self._serve, name="ragbraid-worker", daemon=True).start()
        return future

    async def call(self, function: Callable[[], T]) -> T:
        """Call the function in a worker thread and return what it returns."""
        return await asyncio.wrap_future(self.submit(function))

    def abandon(self, future: Future[Any]) -> bool:
        """Give up on a call. Returns whether it is under way and now goes on without anybody waiting for it.

        Its thread no longer counts towards the limit, so that calls that never return cannot use the pool up.
        """
        if future.cancel() or future.done():
            return False
        with self._lock:
            self._limit += 1
        future.add_done_callback(self._give_back)
        return True

    def _give_back(self, _: Future[Any]) -> None:
        with self._lock:
            self._limit -= 1

    def _serve(self) -> None:
        while True:
            try:
                future, function = self._jobs.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._busy < self._threads:
                        self._threads -= 1
                        return
                continue
            _fulfil(future, function)
            del future, function  # an idle thread must not keep a result alive
            with self._lock:
                self._busy -= 1


def _fulfil(future: Future[Any], function: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except StopIteration as error:  # a future of asyncio cannot hold one
        future.set_exception(RuntimeError(f"a node raised StopIteration: {error}"))
    except BaseException as error:  # noqa: BLE001 - handed to whoever waits
        future.set_exception(error)
    else:
        future.set_result(result)


THREADS = Threads(64)
