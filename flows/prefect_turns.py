"""Runs that write one knowledge base take turns, whatever deployment, flow file or machine they come from.

A run that writes holds a slot of a global concurrency limit that is named after the knowledge base. Its lease is
renewed while the run lives, so a run that was killed holds nobody up for longer than the lease. Runs that only read take
no part. Imports prefect: import it inside functions.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateName,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import ConcurrencyLeaseHolder, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound, PrefectHTTPStatusError
from prefect.logging import get_run_logger
from prefect.states import Cancelled, Running
from prefect.utilities.engine import propose_state

from ragbraid.dsl.walk import node_steps
from ragbraid.flows.prefect_api import api_failure, is_api_failure
from ragbraid.flows.prefect_schedule import is_planned, missed_by
from ragbraid.flows.secrets import resolve
from ragbraid.registry.errors import SettingsError

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun, State

    from ragbraid.flows.api import Flow

_logger = logging.getLogger(__name__)

LEASE_SECONDS = 60.0
"""How long a slot is kept for a run that is not heard of; Prefect allows no less, and looks every 15 s."""

WAITING = "AwaitingKnowledgeBase"
"""The name of the state of a run that waits for its turn."""

_RENEW_SECONDS = LEASE_SECONDS / 4
_LONGEST_PAUSE_SECONDS = 5.0
_PLACE_SETTINGS = ("path", "url", "name")
_LOCKED = 423

_held: ContextVar[frozenset[str]] = ContextVar("ragbraid_turns", default=frozenset())


@asynccontextmanager
async def turn_of(flow: Flow, present: Callable[[], Awaitable[None]]) -> AsyncIterator[State[Any] | None]:
    """Wait until the current flow run may begin; yields None, or the state in which it ends without having begun.

    A scheduled run for which a later one stands ends at once, also where that came due while it waited. A run that
    writes a knowledge base waits until no other does; its state and log say for whom.

    Args:
        flow: the flow that is run.
        present: gives the run its name and tags; called where it has to wait, since it is listed by them.
    """
    context = FlowRunContext.get()
    run = None if context is None else context.flow_run
    if run is None:
        yield None
        return
    planned = await is_planned(run)
    if planned and (missed := await missed_by(run)) is not None:
        yield Cancelled(message=missed)
        return
    names = sorted(frozenset(knowledge_bases_written(flow)) - _held.get())  # a node may run a flow of its own
    if not names:
        yield None
        return
    async with _slots(names, run, present, planned=planned) as missed:
        if missed is not None:
            yield Cancelled(message=missed)
            return
        token = _held.set(_held.get() | set(names))
        try:
            yield None
        finally:
            _held.reset(token)


def knowledge_bases_written(flow: Flow) -> Iterator[str]:
    """Yield the names of the limits of every knowledge base that a flow writes: that of a node with effects."""
    for step in node_steps(flow.plan.body):
        required = {need.name for need in step.node.resources if need.role == "kb" and need.required}
        if not step.node.cacheable:
            for parameter, name in step.resources:
                if parameter in required:
                    yield limit_name(flow, name)


def limit_name(flow: Flow, name: str) -> str:
    """Return the name of the limit of a knowledge base: the same for every flow that writes it, by place and name."""
    bound = flow.resources.bound(name, "kb")
    # What no place can be told from is told by everything, but for secrets.
    place = {key: bound.settings[key] for key in _PLACE_SETTINGS if key in bound.settings}
    place = place or {key: value for key, value in bound.settings.items() if key not in bound.provider.secrets}
    with suppress(SettingsError):  # a variable that is missing is told where the resource is opened
        place = resolve(place)
    if isinstance(path := place.get("path"), str):
        place["path"] = str((bound.folder / path).resolve())
    family = bound.provider.name.partition(".")[0]
    known = sorted((key, str(value).rstrip("/")) for key, value in place.items())
    shown = re.sub(r"[^\w.-]+", "-", str(place.get("name", name)))
    return f"ragbraid-kb-{shown}-{sha256(repr((family, known)).encode()).hexdigest()[:8]}"


@asynccontextmanager
async def _slots(
    names: list[str], run: FlowRun, present: Callable[[], Awaitable[None]], *, planned: bool
) -> AsyncIterator[str | None]:
    """Hold a slot of every limit; yields a sentence, and holds none, where a later run came to stand for this one.

    An API that cannot give slots does not keep the run from going on: the knowledge base itself refuses a second
    update in one process, and stops one that another has overtaken.
    """
    async with get_client() as client:
        try:
            taken = await _acquire(client, names, run, present, planned=planned)
        except Exception as error:
            if not is_api_failure(error):
                raise
            get_run_logger().warning("no turn could be taken among the runs that write: %s", api_failure(error))
            yield None
            return
        if isinstance(taken, str):
            yield taken
            return
        renewing = asyncio.create_task(_renew(client, taken))
        try:
            yield None
        finally:
            renewing.cancel()
            with suppress(asyncio.CancelledError):
                await renewing
            await _release(client, taken)


async def _acquire(
    client: PrefectClient, names: list[str], run: FlowRun, present: Callable[[], Awaitable[None]], *, planned: bool
) -> UUID | str:
    """Wait for a slot of every limit; returns their lease, or why the run need not wait any longer."""
    await _make_limits(client, names)
    told = ""
    while True:
        pause = _LONGEST_PAUSE_SECONDS
        try:
            answer = await client.increment_concurrency_slots_with_lease(
                names=names,
                slots=1,
                mode="concurrency",
                lease_duration=LEASE_SECONDS,
                holder=ConcurrencyLeaseHolder(type="flow_run", id=run.id),
            )
        except PrefectHTTPStatusError as error:
            if error.response.status_code != _LOCKED:
                raise
            pause = min(float(error.response.headers.get("Retry-After", pause)), pause)
        else:
            lease = UUID(answer.json()["lease_id"])
            await _begin(client, names, run, waited=bool(told))
            return lease
        # Without this a schedule that is faster than its runs would fill a process with runs that wait.
        if planned and (missed := await missed_by(run)) is not None:
            return missed
        holder = await _holder(client, names, run)
        if holder != told:
            if not told:
                await present()
            told = holder
            sentence = f"waits for {holder} to finish, which writes the same knowledge base"
            get_run_logger().info("%s", sentence)
            await _set_state(client, run, Running(name=WAITING, message=sentence))
        await asyncio.sleep(pause)


async def _make_limits(client: PrefectClient, names: list[str]) -> None:
    for name in names:
        try:
            await client.read_global_concurrency_limit_by_name(name)
        except ObjectNotFound:
            with suppress(ObjectAlreadyExists):  # another run was faster
                await client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=1))


async def _begin(client: PrefectClient, names: list[str], run: FlowRun, *, waited: bool) -> None:
    """Show that the run writes, to those that wait for it."""
    run.tags = [*(tag for tag in run.tags if tag not in names), *names]
    await client.update_flow_run(run.id, tags=run.tags)
    if waited:
        await _set_state(client, run, Running())


async def _set_state(client: PrefectClient, run: FlowRun, state: State[Any]) -> None:
    if run.state is not None:
        # The slot of a deployment's `concurrency` is given back by way of the state in which the run ends.
        state.state_details.deployment_concurrency_lease_id = run.state.state_details.deployment_concurrency_lease_id
    await propose_state(client, state, flow_run_id=run.id)


async def _holder(client: PrefectClient, names: list[str], run: FlowRun) -> str:
    running = FlowRunFilter(
        id=FlowRunFilterId(not_any_=[run.id]),
        tags=FlowRunFilterTags(any_=names),
        state=FlowRunFilterState(
            type=FlowRunFilterStateType(any_=[StateType.RUNNING, StateType.CANCELLING]),
            name=FlowRunFilterStateName(not_any_=[WAITING]),
        ),
    )
    found = await client.read_flow_runs(flow_run_filter=running, sort=FlowRunSort.START_TIME_DESC, limit=1)
    return f"the run `{found[0].name}`" if found else "another run"


async def _renew(client: PrefectClient, lease: UUID) -> None:
    while True:
        await asyncio.sleep(_RENEW_SECONDS)
        try:
            await client.renew_concurrency_lease(lease, LEASE_SECONDS)
        except Exception as error:
            if not is_api_failure(error):
                raise
            _logger.warning("the run's turn to write could not be prolonged: %s", api_failure(error))


async def _release(client: PrefectClient, lease: UUID) -> None:
    try:
        await asyncio.shield(client.release_concurrency_slots_with_lease(lease))
    except Exception as error:
        if not is_api_failure(error):
            raise
        _logger.warning(
            "the run's turn to write could not be given back and ends by itself after %g s: %s",
            LEASE_SECONDS,
            api_failure(error),
        )
