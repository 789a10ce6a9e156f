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

_STANDING = [state for state in StateType if state not in (StateType.CANCELLED, StateType.CANCELLING)]
_LOOKED_AT = 50
"""How many later runs are looked at; among them may be those that people started."""


async def missed_by(run: FlowRun) -> str | None:
    """Return the sentence for a scheduled run that a later one stands for; None for a run that shall go on.

    A later run of the same deployment with the same parameters stands for it when it was scheduled too, is due, and was
    not cancelled. Runs that people start are never left out, and stand for no other.
    """
    if not run.auto_scheduled or run.deployment_id is None or run.expected_start_time is None:
        return None
    later = FlowRunFilter(
        expected_start_time=FlowRunFilterExpectedStartTime(after_=run.expected_start_time, before_=datetime.now(UTC)),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_STANDING)),
        deployment_id=FlowRunFilterDeploymentId(any_=[run.deployment_id]),
    )
    try:
        async with get_client() as client:
            found = await client.read_flow_runs(
                flow_run_filter=later, sort=FlowRunSort.EXPECTED_START_TIME_DESC, limit=_LOOKED_AT
            )
    except Exception as error:
        if not is_api_failure(error):
            raise
        _logger.warning("whether a later run stands for this one could not be asked: %s", api_failure(error))
        return None
    for other in found:
        if other.id != run.id and other.auto_scheduled and _is_later(other, run) and other.parameters == run.parameters:
            return f"missed: the run of {_time(other)} stands for that of {_time(run)}"
    return None


def _is_later(other: FlowRun, run: FlowRun) -> bool:
    if other.expected_start_time is None or run.expected_start_time is None:
        return False
    return other.expected_start_time > run.expected_start_time


def _time(run: FlowRun) -> str:
    assert run.expected_start_time is not None
    return run.expected_start_time.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
