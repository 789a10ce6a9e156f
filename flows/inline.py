"""One attempt at one step, in this process: on the event loop, or in a worker thread where the node blocks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextvars import copy_context
from typing import Any

from ragbraid.flows.threads import THREADS
from ragbraid.flows.trace import StepTrace, Trace
from ragbraid.registry.context import StepContext, enter_step
from ragbraid.registry.contracts import Usage
from ragbraid.registry.errors import RagbraidError, RunError


def as_failure(error: Exception, path: str) -> RagbraidError:
    """Return what a step's failure is known as: ragbraid's own errors as they are, any other one in a RunError."""
    if isinstance(error, RagbraidError):
        if isinstance(error, RunError) and error.step is None:
            error.step = path
        return error
    words = str(error).strip()
    failure = RunError(f"`{path}` failed with {type(error).__name__}{f': {words}' if words else ''}", step=path)
    failure.__cause__ = error
    return failure


class ThreadCall(StepContext):
    """A call of a blocking node in a worker thread: what it reports reaches the step as long as the step waits.

    A thread cannot be stopped from outside. A call that was given up ends at its next report of progress, usage or
    text, or where it asks by `stop_if_cancelled`.
    """

    def __init__(self, entry: StepTrace) -> None:
        super().__init__(path=entry.path)
        self._entry = entry
        self._abandoned = False
        self.on_progress = self._progress
        self.on_usage = self._usage
        self.on_check = self._stop_if_abandoned
        if entry.on_text is not None:
            self.on_text = self._text

    async def run(self, function: Callable[..., Any], arguments: Mapping[str, Any], trace: Trace) -> Any:
        """Call the function in a thread, in a copy of the current context, and return what it gives."""
        context = copy_context()
        context.run(enter_step, self)
        future = THREADS.submit(lambda: context.run(function, **arguments))
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if THREADS.abandon(future):
                self._abandoned = True
                trace.abandoned_calls += 1
            raise
        finally:
            entry = self._entry
            entry.usage = entry.usage + self.usage
            entry.notes.extend(self.notes)
            entry.status = self.status or entry.status

    def _progress(self, label: str, done: int, total: int | None) -> None:
        self._stop_if_abandoned()
        if self._entry.on_progress is not None:
            self._entry.on_progress(label, done, total)

    def _usage(self, usage: Usage) -> None:
        if self._entry.on_usage is not None:
            self._entry.on_usage(usage)
        self._stop_if_abandoned()

    def _text(self, piece: str, restart: bool = False) -> None:
        self._stop_if_abandoned()
        if self._entry.on_text is not None:
            self._entry.on_text(piece, restart)

    def _stop_if_abandoned(self) -> None:
        if self._abandoned:
            raise RunError(f"`{self.path}` goes on without anybody waiting for it", kind="cancelled", step=self.path)
