"""Registering flows as Prefect deployments, comparing them with what is registered, removing them.

Imports prefect: import it inside functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal
from uuid import UUID

from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.schedules import CronSchedule
from prefect.exceptions import ObjectNotFound

from ragbraid.dsl.plan import Schedule
from ragbraid.flows.bundle import Bundle
from ragbraid.flows.deployed import ENTRYPOINT, packed_bundle, pull_steps
from ragbraid.flows.deployments import Change, DeploymentSpec, changes_between
from ragbraid.flows.prefect_api import api_client, ui_address
from ragbraid.registry.errors import SettingsError
from ragbraid.registry.suggest import did_you_mean

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import DeploymentSchedule
    from prefect.client.schemas.responses import DeploymentResponse

Action = Literal["create", "update", "nothing"]

_MOST_POOLS = 10
"""How many work pools are listed where the one that was named does not exist."""

_SLUG = "ragbraid"
"""Marks the schedule that comes from the flow or the command line among those that were added on the server."""


@dataclass(frozen=True, slots=True)
class Step:
    """What is to be done, or was done, for one flow."""

    spec: DeploymentSpec
    action: Action
    changes: tuple[Change, ...] = ()
    deployment_id: UUID | None = None
    """None for one that does not exist yet."""
    schedule_is_off: bool = False
    """Whether somebody has switched its schedule off on the server; it stays so."""
    is_paused: bool = False
    """Whether somebody has paused the deployment on the server; it stays so."""

    @property
    def address(self) -> str | None:
        """Its page in Prefect's UI."""
        return ui_address(f"deployments/deployment/{self.deployment_id}") if self.deployment_id else None


async def plan_deployments(specs: Sequence[DeploymentSpec]) -> list[Step]:
    """Return what deploying would do; changes nothing.

    Raises:
        SettingsError: a work pool does not exist, or a deployment of the name was made by something else.
        ServiceError: as `api_client`.
    """
    async with api_client() as client:
        return await _plan(client, specs)


async def deploy(specs: Sequence[DeploymentSpec]) -> list[Step]:
    """Register flows, and update those that are registered: nothing is written before everything was looked at.

    What an operator set on the server stays: a schedule or deployment that was switched off, job variables, parameters.

    Raises:
        SettingsError: as `plan_deployments`.
        ServiceError: as `api_client`.
    """
    async with api_client() as client:
        return [await _apply(client, step) for step in await _plan(client, specs)]


async def find_deployment(name: str) -> UUID | None:
    """Return the id of a flow's deployment, or None where there is none.

    Raises:
        SettingsError: it was made by something else than ragbraid.
        ServiceError: as `api_client`.
    """
    async with api_client() as client:
        found = await _read(client, f"{name}/{name}")
        return None if found is None else found.id


async def remove(deployment_id: UUID) -> None:
    """Delete a deployment with its schedule and the runs that it has planned; runs that were, stay.

    Raises:
        ServiceError: as `api_client`.
    """
    async with api_client() as client:
        await client.delete_deployment(deployment_id)


async def _plan(client: PrefectClient, specs: Sequence[DeploymentSpec]) -> list[Step]:
    await _check_pools(client, specs)
    return [await _plan_one(client, spec) for spec in specs]


async def _check_pools(client: PrefectClient, specs: Sequence[DeploymentSpec]) -> None:
    wanted = [spec.work_pool for spec in specs if spec.work_pool is not None]
    if not wanted:
        return
    known = [pool.name for pool in await client.read_work_pools()]
    for name in wanted:
        if name not in known:
            more = f" and {len(known) - _MOST_POOLS} more" if len(known) > _MOST_POOLS else ""
            listed = ", ".join(f"`{other}`" for other in sorted(known)[:_MOST_POOLS]) + more or "none"
            raise SettingsError(
                f"there is no work pool `{name}`; there are: {listed}",
                hint=did_you_mean(name, known) or f"create it: `prefect work-pool create {name} --type process`",
            )


async def _plan_one(client: PrefectClient, spec: DeploymentSpec) -> Step:
    _to_prefect(spec.schedule)
    found = await _read(client, spec.full_name)
    if found is None:
        return Step(spec, "create")
    if spec.work_pool is None and found.work_pool_name is not None:
        raise SettingsError(
            f"`{spec.name}` is deployed to the work pool `{found.work_pool_name}`; to serve it here would take it away "
            "from its workers",
            hint=f"`ragbraid undeploy {spec.name}` first, or leave it to the workers",
        )
    try:
        changes = changes_between(_spec_of(found), spec)
    except SettingsError:  # another version of ragbraid made it, and knows how to read it
        changes = [Change("version", found.version or "", spec.version)]
    ours = _our_schedule(found)
    is_off = ours is not None and not ours.active
    # `ragbraid serve` leaves what it served paused, which must not outlive the move to a pool.
    is_paused = found.paused and found.work_pool_name is not None
    return Step(spec, "update" if changes else "nothing", tuple(changes), found.id, is_off, is_paused)


async def _apply(client: PrefectClient, step: Step) -> Step:
    if step.action == "nothing":
        return step
    spec = step.spec
    found = None if step.deployment_id is None else await client.read_deployment(step.deployment_id)
    deployment_id = await client.create_deployment(
        flow_id=await client.create_flow_from_name(spec.name),
        name=spec.name,
        version=spec.version,
        description=spec.description,
        tags=list(spec.tags),
        schedules=_schedules(spec.schedule, found, active=not step.schedule_is_off),
        concurrency_limit=spec.concurrency,
        work_pool_name=spec.work_pool,
        work_queue_name=found.work_queue_name if found and found.work_pool_name == spec.work_pool else None,
        entrypoint=ENTRYPOINT,
        pull_steps=pull_steps(spec.bundle.pack(), spec.version, list(spec.inputs["properties"])),
        parameter_openapi_schema=dict(spec.inputs),
        enforce_parameter_schema=True,
        paused=step.is_paused,
        parameters={k: v for k, v in found.parameters.items() if k in spec.inputs["properties"]} if found else None,
        job_variables=found.job_variables if found else None,
    )
    return replace(step, deployment_id=deployment_id)


def _schedules(
    schedule: Schedule | None, found: DeploymentResponse | None, *, active: bool
) -> list[DeploymentScheduleCreate]:
    """Return the flow's own schedule, and beside it those that somebody added on the server."""
    schedules = [
        DeploymentScheduleCreate(schedule=each.schedule, active=each.active, parameters=each.parameters, slug=each.slug)
        for each in (found.schedules if found else [])
        if each.slug != _SLUG
    ]
    cron = _to_prefect(schedule)
    if cron is not None:
        schedules.append(DeploymentScheduleCreate(schedule=cron, active=active, slug=_SLUG))
    return schedules


def _to_prefect(schedule: Schedule | None) -> CronSchedule | None:
    if schedule is None:
        return None
    try:
        return CronSchedule(cron=schedule.cron, timezone=schedule.timezone)
    except ValueError:
        raise SettingsError(
            f"Prefect cannot follow the schedule `{schedule.cron}` ({schedule.timezone})",
            hint="write it with numbers, `*`, `,`, `-` and `/` alone",
        ) from None


async def _read(client: PrefectClient, full_name: str) -> DeploymentResponse | None:
    try:
        found = await client.read_deployment_by_name(full_name)
    except ObjectNotFound:
        return None
    if packed_bundle(found.pull_steps) is None:
        raise SettingsError(
            f"there is a deployment `{full_name}` that ragbraid did not make, and it is left as it is",
            hint="give the flow another name, or delete that deployment in Prefect",
        )
    return found


def _our_schedule(found: DeploymentResponse) -> DeploymentSchedule | None:
    return next((schedule for schedule in found.schedules if schedule.slug == _SLUG), None)


def _spec_of(found: DeploymentResponse) -> DeploymentSpec:
    """Return what is registered, in the form in which it would be registered."""
    ours = _our_schedule(found)
    cron = ours.schedule if ours is not None and isinstance(ours.schedule, CronSchedule) else None
    limit = found.global_concurrency_limit
    return DeploymentSpec(
        name=found.name,
        version=found.version or "",
        description=found.description or "",
        tags=tuple(found.tags),
        schedule=Schedule(cron.cron, cron.timezone or "UTC") if cron is not None else None,
        concurrency=limit.limit if limit is not None else None,
        work_pool=found.work_pool_name,
        inputs=found.parameter_openapi_schema or {},
        bundle=Bundle.unpack(packed_bundle(found.pull_steps) or ""),
    )
