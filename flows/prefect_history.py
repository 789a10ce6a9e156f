"""Runs of ragbraid's flows as the Prefect server remembers them: which there are, what they logged, what they did.

Imports prefect: import it inside functions.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowFilter,
    FlowFilterId,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterExpectedStartTime,
    FlowRunFilterId,
    FlowRunFilterName,
    FlowRunFilterState,
    FlowRunFilterStateName,
    FlowRunFilterTags,
)
from prefect.client.schemas.sorting import FlowRunSort, TaskRunSort
from prefect.exceptions import ObjectNotFound

from ragbraid.flows.deployed import packed_bundle
from ragbraid.flows.prefect_api import api_client
from ragbraid.flows.prefect_trace import OUR_TAG, read_trace_of
from ragbraid.flows.run_states import STATES
from ragbraid.registry.errors import SettingsError
from ragbraid.registry.suggest import did_you_mean

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import FlowRun, State, TaskRun

    from ragbraid.flows.trace_record import RunRecord

T = TypeVar("T")

PAGE = 200
"""What the API gives at most in one answer."""

MOST_SEARCHED = 2_000
"""How many of the newest runs the beginning of an id is looked for in."""

_LATEST = "latest"
_CLOCK_SECONDS = 5
"""How far the server's clock may be ahead of ours."""
_SOON = 20
"""How many runs a schedule may have planned for that time; they are read and not listed."""

_MOST_CANDIDATES = 10


@dataclass(frozen=True, slots=True)
class PastRun:
    """A flow run as the server tells it; `flow` and `deployment` are empty where they are gone."""

    id: UUID
    name: str
    flow: str
    version: str
    state: str
    sentence: str
    planned: datetime | None
    started: datetime | None
    ended: datetime | None
    seconds: float | None
    deployment: str

    @property
    def is_over(self) -> bool:
        """Whether it has come to an end, whichever."""
        return self.ended is not None

    @property
    def when(self) -> datetime | None:
        """When it began, or was or is to begin."""
        return self.started or self.planned


@dataclass(frozen=True, slots=True)
class PastStep:
    """A task run: what is known of a step where there is no trace."""

    name: str
    state: str
    sentence: str
    started: datetime | None
    seconds: float | None
    attempts: int


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Which runs to list. Runs that a schedule has only planned are listed where `states` asks for them."""

    flows: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    """Keys of `run_states.STATES`."""
    since: datetime | None = None
    deployed: bool = False
    """Whether to leave out runs that were started by `ragbraid run` or from Python."""
    limit: int = 20


async def list_runs(query: RunQuery) -> list[PastRun]:
    """Return the newest runs of ragbraid's flows first.

    Raises:
        SettingsError: the server knows no flow of a name that was asked for, or no API is configured.
        ServiceError: as `api_client`.
    """
    async with api_client() as client:
        await _refuse_unknown_flows(client, query.flows)
        return await _described(client, await _newest(client, query))


async def find_run(wanted: str) -> PastRun:
    """Return the run that somebody means by its id, the beginning of its id, its name, or `latest`.

    Raises:
        SettingsError: there is none, or there are several.
        ServiceError: as `api_client`.
    """
    async with api_client() as client:
        if wanted == _LATEST:
            found = await _newest(client, RunQuery(limit=1))
            if not found:
                raise SettingsError("no flow of ragbraid has been run on this server yet")
        else:
            found = await _by_id(client, wanted) or await _by_name(client, wanted) or await _by_prefix(client, wanted)
        runs = await _described(client, found[: _MOST_CANDIDATES + 1])
        if len(runs) == 1:
            return runs[0]
        if runs:
            raise SettingsError(f"several runs are meant by `{wanted}`:\n{_candidates(runs)}", hint="give its id")
        newest = await _described(client, await _newest(client, RunQuery(limit=5)))
        listed = f"; the newest are:\n{_candidates(newest)}" if newest else ""
        raise SettingsError(
            f"there is no run `{wanted}` of a flow of ragbraid{listed}", hint="`ragbraid runs` lists them"
        )


async def read_run(run_id: UUID) -> PastRun:
    """Return a run as it is now.

    Raises:
        SettingsError: it has been deleted.
        ServiceError: as `api_client`.
    """
    async with api_client() as client:
        found = await _by_id(client, str(run_id))
        if not found:
            raise SettingsError(f"the run {run_id} has been deleted on the server")
        return (await _described(client, found))[0]


async def read_steps(run_id: UUID) -> list[PastStep]:
    """Return what the server knows of a run's steps, in the order in which they started.

    Raises:
        ServiceError: as `api_client`.
    """
    async with api_client() as client:
        return [_step(task_run) async for task_run in task_runs_of(client, run_id)]


async def read_run_trace(run_id: UUID) -> RunRecord | None:
    """Return the trace of a run's last attempt, or None where it has left none.

    Raises:
        SettingsError: what it has left cannot be read.
        ServiceError: as `api_client`.
    """
    async with api_client() as client:
        return await read_trace_of(client, run_id)


async def task_runs_of(client: PrefectClient, run_id: UUID) -> AsyncIterator[TaskRun]:
    """Yield the task runs of a flow run in the order in which they were to start."""
    only = FlowRunFilter(id=FlowRunFilterId(any_=[run_id]))

    async def read(offset: int) -> list[TaskRun]:
        return await client.read_task_runs(
            flow_run_filter=only, sort=TaskRunSort.EXPECTED_START_TIME_ASC, limit=PAGE, offset=offset
        )

    async for task_run in pages(read):
        yield task_run


async def pages(read: Callable[[int], Awaitable[Sequence[T]]], most: int | None = None) -> AsyncIterator[T]:
    """Yield what the API lists, page after page.

    Args:
        read: reads a page of `PAGE` entries from an offset on.
        most: when to stop.
    """
    offset = 0
    while most is None or offset < most:
        found = await read(offset)
        for each in found:
            yield each
        if len(found) < PAGE:
            return
        offset += PAGE


async def _newest(client: PrefectClient, query: RunQuery) -> list[FlowRun]:
    """Return the newest runs that bear our tag or belong to a deployment of ours, which also holds those not begun."""
    ours = [each async for each in _our_deployments(client)]
    deployed = FlowRunFilterDeploymentId(any_=ours)
    tagged = FlowRunFilterTags(all_=[OUR_TAG])
    found: dict[UUID, FlowRun] = {}
    if ours:
        found.update({run.id: run for run in await _read_runs(client, query, deployment_id=deployed)})
    if not query.deployed:
        found.update({run.id: run for run in await _read_runs(client, query, tags=tagged)})
    return sorted(found.values(), key=_begin, reverse=True)[: query.limit]


async def _read_runs(
    client: PrefectClient,
    query: RunQuery,
    *,
    deployment_id: FlowRunFilterDeploymentId | None = None,
    tags: FlowRunFilterTags | None = None,
) -> list[FlowRun]:
    names = [STATES[state] for state in query.states]
    now = datetime.now(UTC)
    before = None if query.states else now + timedelta(seconds=_CLOCK_SECONDS)
    most = query.limit if query.states else query.limit + _SOON
    only = FlowRunFilter(
        deployment_id=deployment_id,
        tags=tags,
        state=FlowRunFilterState(name=FlowRunFilterStateName(any_=names)) if names else None,
        expected_start_time=FlowRunFilterExpectedStartTime.model_validate({"after_": query.since, "before_": before}),
    )
    flows = FlowFilter(name=FlowFilterName(any_=list(query.flows))) if query.flows else None

    async def read(offset: int) -> list[FlowRun]:
        return await client.read_flow_runs(
            flow_filter=flows,
            flow_run_filter=only,
            sort=FlowRunSort.START_TIME_DESC,
            limit=min(PAGE, most - offset),
            offset=offset,
        )

    found = [run async for run in pages(read, most)]
    return [run for run in found if query.states or not is_only_planned(run, now)][: query.limit]


def is_only_planned(run: FlowRun, now: datetime) -> bool:
    """Return whether a schedule has planned a run that is not due yet."""
    due = run.expected_start_time
    return run.auto_scheduled and run.start_time is None and due is not None and due > now


async def _our_deployments(client: PrefectClient) -> AsyncIterator[UUID]:
    async for deployment in pages(lambda offset: client.read_deployments(limit=PAGE, offset=offset)):
        if packed_bundle(deployment.pull_steps) is not None:
            yield deployment.id


async def _refuse_unknown_flows(client: PrefectClient, names: Sequence[str]) -> None:
    if not names:
        return
    known = [flow.name async for flow in pages(lambda offset: client.read_flows(limit=PAGE, offset=offset))]
    for name in names:
        if name not in known:
            raise SettingsError(
                f"the server knows no flow `{name}`",
                hint=did_you_mean(name, known) or "give the flow's name, not its file; `ragbraid runs` lists all runs",
            )


async def _by_id(client: PrefectClient, wanted: str) -> list[FlowRun]:
    try:
        return [await client.read_flow_run(UUID(wanted))]
    except (ValueError, ObjectNotFound):
        return []


async def _by_name(client: PrefectClient, wanted: str) -> list[FlowRun]:
    only = FlowRunFilter(name=FlowRunFilterName(any_=[wanted]))
    found = await client.read_flow_runs(flow_run_filter=only, sort=FlowRunSort.START_TIME_DESC, limit=PAGE)
    ours = {each async for each in _our_deployments(client)} if found else set()
    return [run for run in found if OUR_TAG in run.tags or run.deployment_id in ours]


async def _by_prefix(client: PrefectClient, wanted: str) -> list[FlowRun]:
    prefix = wanted.lower().rstrip("…")
    if not prefix or set(prefix) - set("0123456789abcdef-"):
        return []
    return [run for run in await _newest(client, RunQuery(limit=MOST_SEARCHED)) if str(run.id).startswith(prefix)]


async def _described(client: PrefectClient, runs: Sequence[FlowRun]) -> list[PastRun]:
    flows: dict[UUID, str] = {}
    deployments: dict[UUID, str] = {}
    for ids in _chunks({run.flow_id for run in runs}):
        only = FlowFilter(id=FlowFilterId(any_=ids))
        flows.update({flow.id: flow.name for flow in await client.read_flows(flow_filter=only)})
    for ids in _chunks({run.deployment_id for run in runs if run.deployment_id is not None}):
        which = DeploymentFilter(id=DeploymentFilterId(any_=ids))
        deployments.update({each.id: each.name for each in await client.read_deployments(deployment_filter=which)})
    return [_described_run(run, flows, deployments) for run in runs]


def _chunks(ids: Iterable[UUID]) -> list[list[UUID]]:
    listed = list(ids)
    return [listed[start : start + PAGE] for start in range(0, len(listed), PAGE)]


def _described_run(run: FlowRun, flows: dict[UUID, str], deployments: dict[UUID, str]) -> PastRun:
    state, sentence = _state(run.state)
    return PastRun(
        id=run.id,
        name=run.name,
        flow=flows.get(run.flow_id, ""),
        version=run.flow_version or "",
        state=state,
        sentence=sentence,
        planned=run.expected_start_time,
        started=run.start_time,
        ended=(run.end_time or run.state.timestamp) if run.state is not None and run.state.is_final() else None,
        seconds=run.estimated_run_time.total_seconds() if run.start_time else None,
        deployment=deployments.get(run.deployment_id, "") if run.deployment_id else "",
    )


def _step(task_run: TaskRun) -> PastStep:
    state, sentence = _state(task_run.state)
    return PastStep(
        name=task_run.name,
        state=state,
        sentence=sentence,
        started=task_run.start_time,
        seconds=task_run.estimated_run_time.total_seconds() if task_run.start_time else None,
        attempts=task_run.run_count,
    )


def _state(state: State[object] | None) -> tuple[str, str]:
    return ("Pending", "") if state is None else (state.name or state.type.value.title(), state.message or "")


def _begin(run: FlowRun) -> datetime:
    return run.start_time or run.expected_start_time or datetime.min.replace(tzinfo=UTC)


def _candidates(runs: Sequence[PastRun]) -> str:
    listed = [f"  {run.id}  {run.flow}  {run.state}  {run.name}" for run in runs[:_MOST_CANDIDATES]]
    return "\n".join([*listed, *(["  ..."] if len(runs) > _MOST_CANDIDATES else [])])
