"""What nodes report of their progress, as Prefect progress artifacts. Imports prefect: import it inside functions."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from time import monotonic
from uuid import UUID

from prefect.artifacts import acreate_progress_artifact, aupdate_progress_artifact

from ragbraid.flows.artifacts import artifact_key
from ragbraid.flows.prefect_api import is_api_failure
from ragbraid.flows.runner import Listener, RunEvent

_logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_UPDATES = 1.0
"""Every update is one call of the API."""


class ProgressArtifacts:
    """A listener that keeps one progress artifact for every step that reports how far it is.

    Args:
        flow_name: begins the artifacts' keys.
        following: a listener that is told everything too.
    """

    def __init__(self, flow_name: str, following: Listener | None = None) -> None:
        self._flow_name = flow_name
        self._following = following
        self._steps: dict[str, _StepProgress] = {}

    def listen(self, event: RunEvent) -> None:
        """Take an event of the run; never waits."""
        if self._following is not None:
            self._following(event)
        if event.kind == "progress" and event.total:
            step = self._steps.get(event.path)
            if step is None:
                key = artifact_key(self._flow_name, event.path, "progress")
                step = self._steps[event.path] = _StepProgress(key)
            step.report(100.0 * min(event.done / event.total, 1.0), event.label)

    async def finish(self) -> None:
        """Wait until the last state of every artifact has been written."""
        for step in self._steps.values():
            await step.finish()


class _StepProgress:
    """One artifact: written by one task at a time, which goes on until nothing newer was reported meanwhile."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._artifact: UUID | None = None
        self._percent = 0.0
        self._written: float | None = None
        self._label = ""
        self._next_at = 0.0
        self._is_last = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def report(self, percent: float, label: str) -> None:
        self._percent, self._label = percent, label
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._catch_up())

    async def finish(self) -> None:
        self._is_last.set()
        if self._task is not None:
            await self._task

    async def _catch_up(self) -> None:
        while self._written != self._percent:
            # What stands there while a step thinks for long must be the last that it said.
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_last.wait(), max(self._next_at - monotonic(), 0.0))
            self._next_at = monotonic() + _SECONDS_BETWEEN_UPDATES
            await self._write()

    async def _write(self) -> None:
        percent = self._percent
        try:
            if self._artifact is None:
                self._artifact = await acreate_progress_artifact(percent, key=self._key, description=self._label)
            else:
                await aupdate_progress_artifact(self._artifact, percent)
        except Exception as error:
            if not is_api_failure(error):
                raise
            # A bar that cannot be drawn is no reason to lose the run.
            _logger.warning("progress of `%s` could not be shown: %s", self._key, error)
        self._written = percent
