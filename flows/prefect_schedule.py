"""Missed schedules do not pile up: of the scheduled runs of a deployment that are due, the newest stands for all.

Imports prefect: import it inside functions.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterExpectedStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.sorting import FlowRunSort

from ragbraid.flows.prefect_api import api_failure, is_api_failure

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

_logger = logging.getLogger(__name__)

_STANDING: list[StateType] = [state for state in StateType if state not in (StateType.CANCELLED, StateType.CANCELLING)]
_LOOKED_AT = 50
"""How many later runs are looked at; among them may be those that people started."""


async def is_planned(run: FlowRun) -> bool:
    """Whether a run that has just begun was planned by a schedule, and not started, or started again, by a person."""
    if not run.auto_scheduled or run.deployment_id is None or run.expected_start_time is None:
        return False
    try:
        async with get_client() as client:
            return (await client.read_flow_run(run.id)).run_count <= 1
    except Exception as error:
        if not is_api_failure(error):
            raise
        _logger.warning("whether the run was started again could not be asked: %s", api_failure(error))
        return False


async def missed_by(run: FlowRun) -> str | None:
    """Return the sentence for a planned run that a later one stands for; None for a run that shall go on.

    A later run of the same deployment with the same parameters stands for it when it was scheduled too, is due, and was
    not cancelled. Runs that people start stand for no other.

    Args:
        run: one that `is_planned`.
    """
    later = FlowRunFilter(
        expected_start_time=FlowRunFilterExpectedStartTime.model_validate(
            {"after_": run.expected_start_time, "before_": datetime.now(UTC)}
        ),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_STANDING)),
        deployment_id=FlowRunFilterDeploymentId(any_=[run.deployment_id] if run.deployment_id else []),
    )
    try:
        async with get_client() as client:
            found = await client.read_flow_runs(
                flow_run_filter=later, sort=FlowRunSort.EXPECTED_START_TIME_DESC, limit=_LOOKED_AT
            )
            standing = next((other for other in found if _stands_for(other, run)), None)
            if standing is None:
                return None
    except Exception as error:
        if not is_api_failure(error):
            raise
        _logger.warning("whether a later run stands for this one could not be asked: %s", api_failure(error))
        return None
    return f"missed: the run of {_time(standing)} stands for that of {_time(run)}"


def _stands_for(other: FlowRun, run: FlowRun) -> bool:
    return (
        other.auto_scheduled
        and other.expected_start_time is not None
        and run.expected_start_time is not None
        and other.expected_start_time > run.expected_start_time
        and other.parameters == run.parameters
    )


def _time(run: FlowRun) -> str:
    assert run.expected_start_time is not None
    return run.expected_start_time.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
