"""Running the planned runs of deployments in this process, on one event loop: what is behind `ragbraid serve`.

Prefect's own `serve` starts a Python for every run. Here models and stores stay open between runs, and an embedded
knowledge base, which belongs to one process, serves all of them. Imports prefect: import it inside functions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.exceptions import ObjectNotFound

from ragbraid.flows.prefect_api import api_client, api_failure, is_api_failure
from ragbraid.flows.prefect_runs import PATIENCE_SECONDS, FlowRuns, Job, engine_job

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

    from ragbraid.flows.api import Flow


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
        self._runs = FlowRuns("`ragbraid serve`", poll_seconds=poll_seconds, tell=tell)

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
                await self._runs.end_all()
                await self._set_paused(client, paused=True)

    async def _serve(self, client: PrefectClient, stop: asyncio.Event) -> None:
        pause = self._poll_seconds
        while not stop.is_set():
            try:
                await self._take_what_is_due(client)
                await self._runs.end_what_was_cancelled(client)
                pause = self._poll_seconds
            except Exception as error:
                if not is_api_failure(error):
                    raise
                pause = min(pause * 2, PATIENCE_SECONDS)
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
            self._runs.begin(client, run, partial(self._find_job, run))

    async def _find_job(self, run: FlowRun) -> Job:
        assert run.deployment_id is not None  # it was found by its deployment
        flow = self._flows[run.deployment_id]
        return engine_job(flow.name, flow.prefect, flow.plan.inputs, run)
