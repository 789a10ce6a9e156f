"""The artifacts of a run on the Prefect server. Imports prefect: import it inside functions."""

from __future__ import annotations

import asyncio
import json
import logging
from uuid import UUID

from prefect.client.schemas.actions import ArtifactCreate

from ragbraid.dsl.plan import Plan
from ragbraid.flows.artifacts import RunArtifact, artifacts_of
from ragbraid.flows.prefect_trace import client_in_time, write_trace
from ragbraid.flows.reached import reached_outputs
from ragbraid.flows.trace import Trace

_logger = logging.getLogger(__name__)

_WHAT = "the artifacts of the run"

MOST_SECONDS = 10.0
"""How long writing may take before the run ends without what is not written; a lost server is retried for longer."""


async def write_artifacts(plan: Plan, trace: Trace, flow_run_id: UUID) -> None:
    """Write what a run that has ended, well or not, leaves for its reader.

    Where that fails, the run's log says so and nothing else happens: what became of the run is more important.

    Args:
        plan: the flow that ran.
        trace: what its steps did and what it gave.
        flow_run_id: the run that the artifacts belong to.
    """
    async with client_in_time(_WHAT, MOST_SECONDS, _logger) as client:
        # At once, since each is a request that the end of the run waits for.
        found = artifacts_of(plan, reached_outputs(plan, trace))
        writes = [client.create_artifact(_to_prefect(artifact, flow_run_id)) for artifact in found]
        ended = await asyncio.gather(*writes, write_trace(client, trace, flow_run_id), return_exceptions=True)
        if failure := next((each for each in ended if isinstance(each, BaseException)), None):
            raise failure


async def write_drawing(drawing: RunArtifact, flow_run_id: UUID) -> None:
    """Write the drawing of the flow, which is known as soon as a run begins; fails as `write_artifacts` does."""
    async with client_in_time(_WHAT, MOST_SECONDS, _logger) as client:
        await client.create_artifact(_to_prefect(drawing, flow_run_id))


def _to_prefect(artifact: RunArtifact, flow_run_id: UUID) -> ArtifactCreate:
    rows = artifact.content
    return ArtifactCreate(
        key=artifact.key,
        type=artifact.kind,
        description=artifact.description,
        data=rows if isinstance(rows, str) else json.dumps(rows),
        flow_run_id=flow_run_id,
    )
