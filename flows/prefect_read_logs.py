"""What a run has logged, with the names of its steps, and what it logs while it goes on.

Imports prefect: import it inside functions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING
from uuid import UUID

from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId, LogFilterLevel, LogFilterTimestamp
from prefect.client.schemas.sorting import LogSort

from ragbraid.flows.prefect_api import api_client
from ragbraid.flows.prefect_history import PAGE, pages, read_run, task_runs_of

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import Log

POLL_SECONDS = 1.0
_LATE = timedelta(seconds=30)
"""How much older than the newest line one may be that arrives after it: each process sends its own from time to time."""
_LAST_SECONDS = 4.0
"""How long lines may be on their way after a run has ended; Prefect's client sends them every two seconds."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One entry of a run's log; `step` is empty where the run itself logged it."""

    timestamp: datetime
    level: int
    step: str
    message: str

    @property
    def level_name(self) -> str:
        """The level in a word: `INFO`."""
        return logging.getLevelName(self.level)


async def read_log(run_id: UUID, level: int) -> AsyncIterator[LogLine]:
    """Yield what a run and its steps have logged so far, in order.

    Args:
        run_id: the flow run.
        level: the lowest level, as a number of `logging`.

    Raises:
        ServiceError: as `api_client`.
    """
    async with api_client() as client:
        names = _StepNames(client, run_id)
        async for entry in _entries(client, run_id, level, None):
            yield await names.line_of(entry)


async def follow_log(run_id: UUID, level: int) -> AsyncIterator[LogLine]:
    """Yield what a run and its steps have logged and log, until the run is over. Raises as `read_log`."""
    seen: set[UUID] = set()
    newest: datetime | None = None
    ended_at: float | None = None
    async with api_client() as client:
        names = _StepNames(client, run_id)
        while ended_at is None or monotonic() < ended_at + _LAST_SECONDS:
            after = None if newest is None else newest - _LATE
            async for entry in _entries(client, run_id, level, after):
                if entry.id in seen:
                    continue
                seen.add(entry.id)
                newest = entry.timestamp if newest is None else max(newest, entry.timestamp)
                yield await names.line_of(entry)
            if ended_at is None and (await read_run(run_id)).is_over:
                ended_at = monotonic()
            await asyncio.sleep(POLL_SECONDS)


class _StepNames:
    """The names of a run's task runs, read again when one is met that was not known."""

    def __init__(self, client: PrefectClient, run_id: UUID) -> None:
        self._client = client
        self._run_id = run_id
        self._names: dict[UUID, str] = {}
        self._read_at = float("-inf")

    async def line_of(self, entry: Log) -> LogLine:
        return LogLine(entry.timestamp, entry.level, await self._name_of(entry.task_run_id), entry.message)

    async def _name_of(self, task_run_id: UUID | None) -> str:
        if task_run_id is None:
            return ""
        if task_run_id not in self._names and monotonic() >= self._read_at + POLL_SECONDS:
            async for task_run in task_runs_of(self._client, self._run_id):
                self._names[task_run.id] = task_run.name
            self._read_at = monotonic()
        # The server learns of task runs by events, which may come after their log.
        return self._names.get(task_run_id, str(task_run_id)[:8])


async def _entries(client: PrefectClient, run_id: UUID, level: int, after: datetime | None) -> AsyncIterator[Log]:
    only = LogFilter(
        flow_run_id=LogFilterFlowRunId(any_=[run_id]),
        level=LogFilterLevel(ge_=level),
        timestamp=None if after is None else LogFilterTimestamp.model_validate({"after_": after}),
    )

    async def read(offset: int) -> list[Log]:
        return await client.read_logs(log_filter=only, limit=PAGE, offset=offset, sort=LogSort.TIMESTAMP_ASC)

    async for entry in pages(read):
        yield entry
