"""Running the planned runs of deployments in this process, on one event loop: what is behind `ragbraid serve`.

Prefect's own `serve` starts a Python for every run. Here models and stores stay open between runs, and an embedded
knowledge base, which belongs to one process, serves all of them. Imports prefect: import it inside functions.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from os import getpid
from socket import gethostname
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.exceptions import Abort, ObjectNotFound
from prefect.flow_engine import run_flow_async
from prefect.states import Cancelled, Crashed, Pending
from prefect.utilities.engine import propose_state

from ragbraid.flows.loops import end_tasks
from ragbraid.flows.prefect_api import API_FAILURES, api_client, api_failure, is_api_failure
from ragbraid.flows.run_names import run_name
from ragbraid.flows.secrets import redact
from ragbraid.registry.errors import RagbraidError

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

    from ragbraid.flows.api import Flow

_logger = logging.getLogger(__name__)

_PATIENCE_SECONDS = 30.0
"""The longest pause between two attempts to reach an API that is away."""


class Server:
    """Takes the runs of some deployments as they come due, and runs them until it is told to stop.

    Args:
        flows: the flow behind each deployment.
        limit: how many runs may be under way at once.
        poll_seconds: the pause between two looks for what is due.
        tell: called with one sentence when a run begins, when it ends, and while the API is away.
    """

    def __init__(
        self,
        flows: Mapping[UUID, Flow],
        *,
        limit: int,
        poll_seconds: float = 1.0,
        tell: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self._flows = flows
        self._limit = limit
        self._poll_seconds = poll_seconds
        self._tell = tell
        self._runs: dict[UUID, asyncio.Task[None]] = {}
        self._ended_by: dict[UUID, str] = {}
        """Why a run was ended from outside, until it has ended."""

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set; then end what is under way, and have no schedule plan what nobody would run.

        Raises:
            ServiceError: the API does not answer at the beginning. Lost later, it is waited for.
        """
        async with api_client() as client:
            await self._set_paused(client, paused=False)
            try:
                await self._serve(client, stop)
            finally:
                for run_id in self._runs:
                    self._ended_by[run_id] = "`ragbraid serve` was stopped"
                await end_tasks(list(self._runs.values()))
                await self._set_paused(client, paused=True)

    async def _serve(self, client: PrefectClient, stop: asyncio.Event) -> None:
        pause = self._poll_seconds
        while not stop.is_set():
            try:
                await self._take_what_is_due(client)
                await self._end_what_was_cancelled(client)
                pause = self._poll_seconds
            except Exception as error:
                if not is_api_failure(error):
                    raise
                pause = min(pause * 2, _PATIENCE_SECONDS)
                self._tell(f"{api_failure(error)}; trying again in {pause:g} s")
            try:
                await asyncio.wait_for(stop.wait(), pause)
            except TimeoutError:
                continue

    async def _set_paused(self, client: PrefectClient, *, paused: bool) -> None:
        for deployment_id in self._flows:
            change = client.pause_deployment if paused else client.resume_deployment
            with suppress(ObjectNotFound):  # it was removed while it was served
                await change(deployment_id)

    async def _take_what_is_due(self, client: PrefectClient) -> None:
        free = self._limit - len(self._runs)
        if free <= 0:
            return
        soon = datetime.now(UTC) + timedelta(seconds=self._poll_seconds)
        due = await client.get_scheduled_flow_runs_for_deployments(
            list(self._flows), scheduled_before=soon, limit=self._limit
        )
        due.sort(key=lambda run: run.next_scheduled_start_time or soon)
        for run in [run for run in due if run.id not in self._runs][:free]:
            task = asyncio.create_task(self._carry_out(client, run), name=f"run {run.name}")
            self._runs[run.id] = task
            task.add_done_callback(partial(self._forget, run.id))

    def _forget(self, run_id: UUID, _: asyncio.Task[None]) -> None:
        self._runs.pop(run_id, None)
        self._ended_by.pop(run_id, None)

    async def _end_what_was_cancelled(self, client: PrefectClient) -> None:
        if not self._runs:
            return
        cancelling = FlowRunFilter(
            id=FlowRunFilterId(any_=list(self._runs)),
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.CANCELLING])),
        )
        for run in await client.read_flow_runs(flow_run_filter=cancelling):
            task = self._runs.get(run.id)
            if task is not None and run.id not in self._ended_by:
                self._ended_by[run.id] = "the run was cancelled"
                task.cancel()

    async def _carry_out(self, client: PrefectClient, run: FlowRun) -> None:
        """Run one flow run to its end. Its failure is its own: it stands in its state and log."""
        if run.deployment_id is None or not await self._claim(client, run):
            return
        flow = self._flows[run.deployment_id]
        name = run_name(flow.plan.inputs, run.parameters, run.name) or run.name  # as the engine is about to call it
        self._tell(f"{flow.name}: run {name} begins")
        began = time.monotonic()
        try:
            state: Any = await run_flow_async(
                flow.prefect, flow_run=run, parameters=dict(run.parameters), return_type="state"
            )
            outcome = f"{state.name}: {state.message}" if state.message else state.name
        except asyncio.CancelledError:
            outcome = self._ended_by.get(run.id, "cancelled")
            await client.set_flow_run_state(run.id, Cancelled(message=outcome), force=True)
        except Abort as abort:
            outcome = f"Prefect took it back: {abort}"
        except Exception as error:
            if not is_api_failure(error) and not isinstance(error, RagbraidError):
                _logger.exception("the run %s ended by a fault of ragbraid or Prefect", run.name)
            outcome = await self._crash(client, run, error)
        self._tell(f"{flow.name}: run {name} has ended after {time.monotonic() - began:.1f} s: {outcome}")

    async def _crash(self, client: PrefectClient, run: FlowRun, error: Exception) -> str:
        """End a run that its engine could not carry out, which would stay as it is for ever; return the reason."""
        if is_api_failure(error):
            return str(api_failure(error))
        reason = str(error) if isinstance(error, RagbraidError) else f"{type(error).__name__}: {error}"
        try:
            state = (await client.read_flow_run(run.id)).state
            if state is None or not state.is_final():
                await client.set_flow_run_state(run.id, Crashed(message=redact(reason)), force=True)
        except API_FAILURES as lost:
            return f"{reason}; and {api_failure(lost)}"
        return reason

    async def _claim(self, client: PrefectClient, run: FlowRun) -> bool:
        """Whether the run is ours: another process that serves the same deployment may have been faster.

        Where an answer is lost, the claim is made again; the mark in the state says whose the first one was.
        """
        mark = f"taken by `ragbraid serve` on {gethostname()}, process {getpid()} ({uuid4().hex[:8]})"
        pause = self._poll_seconds
        while True:
            try:
                return await self._propose(client, run, mark)
            except Exception as error:
                if not is_api_failure(error):
                    raise
                pause = min(pause * 2, _PATIENCE_SECONDS)
                await asyncio.sleep(pause)

    async def _propose(self, client: PrefectClient, run: FlowRun, mark: str) -> bool:
        try:
            state = await propose_state(client, Pending(message=mark), flow_run_id=run.id)
        except Abort:
            found = (await client.read_flow_run(run.id)).state
            if found is None or not found.is_pending() or found.message != mark:
                return False
            state = found
        run.state = state  # it holds the lease of a concurrency slot, which the engine must renew
        return state.is_pending()
