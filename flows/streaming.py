"""Runs as iterators: what happens, as it happens, and at the end what the run gave.

The queue between run and consumer has no bound. A listener is called on the event loop and cannot wait, and a run that
waited for its consumer would hold connections to models and stores open for as long as somebody looks away. What piles
up is small: steps of a run that the trace keeps anyway, and text that `max_tokens` bounds, of which a consumer who
fell behind gets what has come of one step in one piece.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

from ragbraid.flows.loops import end_tasks
from ragbraid.flows.runner import Listener, RunEvent, RunResult

Start = Callable[[Listener], Coroutine[Any, Any, RunResult]]
"""Makes the run that tells a listener what happens."""


class _Waiting:
    """The events that nobody has taken yet. One thread puts them in, one takes them out."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._events: deque[RunEvent] = deque()
        self._wake = wake

    def put(self, event: RunEvent) -> None:
        """Add an event; never waits."""
        self._events.append(event)
        self._wake()

    def take(self) -> RunEvent | None:
        """Return the next event, or None. Text that one step wrote without anything in between is one event."""
        if not self._events:
            return None
        event = self._events.popleft()
        if event.kind != "text":
            return event
        pieces = [event.text]
        while self._events and _goes_on(event, self._events[0]):
            pieces.append(self._events.popleft().text)
        return event if len(pieces) == 1 else replace(event, text="".join(pieces))


def _goes_on(event: RunEvent, following: RunEvent) -> bool:
    return following.kind == "text" and following.path == event.path and not following.restart


async def stream_run(start: Start) -> AsyncGenerator[RunEvent, None]:
    """Run on the current event loop and yield the run's events, the result last.

    Closing the generator, or cancelling whoever waits for its next event, cancels the run and waits until everything
    that it started has ended.

    Raises:
        RagbraidError: the run failed; every event that came before was yielded.
    """
    told = asyncio.Event()
    waiting = _Waiting(told.set)
    run = asyncio.get_running_loop().create_task(start(waiting.put))
    run.add_done_callback(lambda _: told.set())
    try:
        while True:
            told.clear()
            while (event := waiting.take()) is not None:
                yield event
            if run.done():
                break
            await told.wait()
        yield RunEvent("result", "", "", result=run.result())
    finally:
        await end_tasks([run])


def stream_run_in_thread(start: Start) -> Generator[RunEvent, None, None]:
    """Run on an event loop of its own in another thread and yield the run's events, the result last.

    So it works whether or not a loop runs in the calling thread, and the run goes on while the caller is busy. Closing
    the generator cancels the run and waits until everything that it started has ended.

    Raises:
        RagbraidError: the run failed; every event that came before was yielded.
    """
    told = threading.Event()
    waiting = _Waiting(told.set)
    with _loop_in_thread() as loop:
        run = asyncio.run_coroutine_threadsafe(start(waiting.put), loop)
        run.add_done_callback(lambda _: told.set())
        try:
            while True:
                told.clear()
                ended = run.done()  # looked at before the events are taken: nothing can come after
                while (event := waiting.take()) is not None:
                    yield event
                if ended:
                    break
                told.wait()
            yield RunEvent("result", "", "", result=run.result())
        finally:
            run.cancel()


@contextmanager
def _loop_in_thread() -> Iterator[asyncio.AbstractEventLoop]:
    """Lend an event loop that runs in a thread of its own; at the end its tasks are cancelled and waited for."""
    lent: SimpleQueue[asyncio.AbstractEventLoop] = SimpleQueue()

    def serve() -> None:
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            lent.put(loop)
            loop.run_forever()

    thread = threading.Thread(target=serve, name="ragbraid-stream", daemon=True)
    thread.start()
    loop = lent.get()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
