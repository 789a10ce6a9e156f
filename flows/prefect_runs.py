"""Flow runs under way in this process: claimed once, carried out to their end, ended when they are cancelled.

Shared by `ragbraid serve` and `ragbraid worker`. Imports prefect: import it inside functions.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar
from uuid import UUID, uuid4

from prefect import Flow
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.exceptions import Abort, ObjectNotFound
from prefect.flow_engine import run_flow_async
from prefect.states import Cancelled, Crashed, Failed, Pending
from prefect.utilities.engine import propose_state

from ragbraid.dsl.plan import InputSpec
from ragbraid.flows.loops import end_tasks
from ragbraid.flows.memory import release_memory
from ragbraid.flows.prefect_api import api_failure, is_api_failure
from ragbraid.flows.prefect_orphans import process_mark
from ragbraid.flows.prefect_states import why_ended
from ragbraid.flows.run_names import run_name
from ragbraid.flows.secrets import redact
from ragbraid.registry.errors import RagbraidError

_logger = logging.getLogger(__name__)

T = TypeVar("T")

Job = tuple[str, Callable[[FlowRun], Awaitable[str]]]
"""What a run is called, and what carries it out and returns its outcome as a sentence."""

PATIENCE_SECONDS = 30.0
"""The longest pause between two attempts to reach an API that is away."""

RELEASE_SECONDS = 30.0
"""How often memory is given back at most, when no run is under way."""


class FlowRuns:
    """The flow runs that this process carries out, each in a task of its own on the running loop.

    Args:
        keeper: the command behind it, for messages: "`ragbraid serve`".
        poll_seconds: the first pause before an API that is away is asked again; it doubles each time.
        tell: called with one sentence when a run begins and when it ends.
    """

    def __init__(self, keeper: str, *, poll_seconds: float, tell: Callable[[str], None]) -> None:
        self._keeper = keeper
        self._poll_seconds = poll_seconds
        self._tell = tell
        self._tasks: dict[UUID, asyncio.Task[None]] = {}
        self._released = time.monotonic()
        self._ended_by: dict[UUID, str] = {}
        """Why a run was ended from outside, until it has ended."""

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, run_id: object) -> bool:
        return run_id in self._tasks

    def begin(self, client: PrefectClient, run: FlowRun, find_job: Callable[[], Awaitable[Job]]) -> None:
        """Claim a run that is due, and carry it out where it is ours.

        Args:
            client: stays open until the run has ended.
            run: a run that is not under way here.
            find_job: says what the run is of; called once the run is ours, and again while the API is away.
        """
        task = asyncio.create_task(self._carry_out(client, run, find_job), name=f"run {run.name}")
        self._tasks[run.id] = task
        task.add_done_callback(partial(self._forget, run.id))

    async def end_what_was_cancelled(self, client: PrefectClient) -> None:
        """End the runs that somebody has set to Cancelling on the server."""
        if not self._tasks:
            return
        cancelling = FlowRunFilter(
            id=FlowRunFilterId(any_=list(self._tasks)),
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.CANCELLING])),
        )
        for run in await client.read_flow_runs(flow_run_filter=cancelling):
            task = self._tasks.get(run.id)
            if task is not None and run.id not in self._ended_by:
                self._ended_by[run.id] = "the run was cancelled"
                task.cancel()

    async def end_all(self) -> None:
        """End what is under way and mark it as cancelled; return when all of it has ended."""
        for run_id in self._tasks:
            self._ended_by[run_id] = f"{self._keeper} was stopped"
        await end_tasks(list(self._tasks.values()))

    async def finish(self) -> None:
        """Return when all that is under way has ended by itself."""
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    def _forget(self, run_id: UUID, _: asyncio.Task[None]) -> None:
        self._tasks.pop(run_id, None)
        self._ended_by.pop(run_id, None)
        if not self._tasks and time.monotonic() - self._released > RELEASE_SECONDS:
            self._released = time.monotonic()
            release_memory()

    async def _carry_out(self, client: PrefectClient, run: FlowRun, find_job: Callable[[], Awaitable[Job]]) -> None:
        """Run one flow run to its end. Its failure is its own: it stands in its state and log."""
        mark = f"taken by {self._keeper} {process_mark()} ({uuid4().hex[:8]})"
        try:
            if not await self._when_answered(partial(_propose, client, run, mark)):
                return
        except asyncio.CancelledError:
            reason = self._ended_by.get(run.id, "cancelled")
            await _write(partial(_give_up_claim, client, run, mark, reason))
            raise
        why_ended.set(partial(self._ended_by.get, run.id))  # for this run alone: its task has a context of its own
        label, began = f"run {run.name}", time.monotonic()
        try:
            label, work = await self._when_answered(find_job)
            self._tell(f"{label} begins")
            outcome = await work(run)
        except asyncio.CancelledError:
            outcome = self._ended_by.get(run.id, "cancelled")
            await _write(partial(client.set_flow_run_state, run.id, Cancelled(message=outcome), force=True))
        except Abort as abort:
            outcome = f"Prefect took it back: {abort}"
        except Exception as error:  # noqa: BLE001 - told, and written into the state of the run
            outcome = _sentence_of(error, run)
            ending = Failed if isinstance(error, RagbraidError) else Crashed
            await _write(partial(_end_unless_ended, client, run, ending(message=outcome)))
        self._tell(f"{label} has ended after {time.monotonic() - began:.1f} s: {outcome}")

    async def _when_answered(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask the API until it answers.

        Where the answer to a claim is lost, it is made again; the mark in the state says whose the first one was.
        """
        pause = self._poll_seconds
        while True:
            try:
                return await ask()
            except Exception as error:
                if not is_api_failure(error):
                    raise
                pause = min(pause * 2, PATIENCE_SECONDS)
                await asyncio.sleep(pause)


def engine_job(name: str, flow: Flow[..., Any], inputs: Sequence[InputSpec], run: FlowRun) -> Job:
    """Return the job of a run that is to go on in this process, on the loop that begins it.

    Args:
        name: what the flow is called.
        flow: what is run.
        inputs: the inputs of its plan.
        run: a run that was claimed.
    """
    called = run_name(inputs, run.parameters, run.name) or run.name  # as the engine is about to call it
    return f"{name}: run {called}", partial(_run_in_engine, flow)


def sentence_of_state(state: State[Any] | None) -> str:
    """Return a state's name, and its message where it has one."""
    if state is None:
        return "its state is not known"
    return f"{state.name}: {state.message}" if state.message else str(state.name)


async def _run_in_engine(flow: Flow[..., Any], run: FlowRun) -> str:
    state: Any = await run_flow_async(flow, flow_run=run, parameters=dict(run.parameters), return_type="state")
    return sentence_of_state(state)


async def _propose(client: PrefectClient, run: FlowRun, mark: str) -> bool:
    """Whether the run is ours: another process that takes runs of the same flow may have been faster."""
    try:
        state = await propose_state(client, Pending(message=mark), flow_run_id=run.id)
    except ObjectNotFound:
        return False  # it was deleted since it was found to be due
    except Abort:
        found = (await client.read_flow_run(run.id)).state
        if found is None or not found.is_pending() or found.message != mark:
            return False
        state = found
    run.state = state  # it holds the lease of a concurrency slot, which the engine must renew
    return state.is_pending()


async def _give_up_claim(client: PrefectClient, run: FlowRun, mark: str, reason: str) -> None:
    """Cancel a run whose claim was under way when it was ended from outside, if the claim has arrived."""
    state = (await client.read_flow_run(run.id)).state
    if state is not None and state.message == mark:
        await client.set_flow_run_state(run.id, Cancelled(message=reason), force=True)


async def _end_unless_ended(client: PrefectClient, run: FlowRun, ending: State[Any]) -> None:
    state = (await client.read_flow_run(run.id)).state
    if state is None or not state.is_final():
        await client.set_flow_run_state(run.id, ending, force=True)


async def _write(call: Callable[[], Awaitable[Any]]) -> None:
    """Tell the server about an end that it cannot change; where it is away, or the run deleted, nobody is told."""
    try:
        with suppress(ObjectNotFound):
            await call()
    except Exception as error:
        if not is_api_failure(error):
            raise
        _logger.warning("the end of a run could not be recorded: %s", api_failure(error))


def _sentence_of(error: Exception, run: FlowRun) -> str:
    if isinstance(error, RagbraidError):
        return redact(str(error))
    if is_api_failure(error):
        return str(api_failure(error))
    _logger.error("the run %s ended by a fault of ragbraid or Prefect", run.name, exc_info=error)
    return redact(f"{type(error).__name__}: {error}")
