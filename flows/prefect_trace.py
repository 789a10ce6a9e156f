"""What every run leaves on the Prefect server: a tag to find it by, and its trace, for `ragbraid trace` on any machine.

The trace is an artifact of the type `result`, which is Prefect's own for what its pages do not show: they leave it out
of a run's artifacts and never load it. It has no key, so it is not under *Artifacts* either.

Imports prefect: import it inside functions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, ArtifactFilterType
from prefect.client.schemas.sorting import ArtifactSort

from ragbraid.flows.prefect_api import api_failure, api_url, is_api_failure
from ragbraid.flows.trace import Trace
from ragbraid.flows.trace_pack import pack_trace, unpack_trace
from ragbraid.flows.trace_record import RunRecord

_logger = logging.getLogger(__name__)

OUR_TAG = "ragbraid"
"""The tag of every run of a flow of ours, by which they are found among others."""

MOST_SECONDS = 1.5
"""How long writing may hold up the end of a run that is to stop at once."""

_TYPE = "result"
_MARK = {"ragbraid": "trace"}
_FORMAT = "gzip+base64"
_PAGE = 50
_MOST_PAGES = 20


async def write_trace(client: PrefectClient, trace: Trace, flow_run_id: UUID) -> None:
    """Write the trace of a run; a run that was refused before it began has none."""
    if not trace.flow:
        return
    packed = await asyncio.to_thread(pack_trace, trace)
    await client.create_artifact(
        ArtifactCreate(
            type=_TYPE,
            description=f"Trace of the run, for `ragbraid trace {flow_run_id}`",
            data={"format": _FORMAT, "trace": packed},
            metadata_=_MARK,
            flow_run_id=flow_run_id,
        )
    )


async def leave_trace(trace: Trace, flow_run_id: UUID) -> None:
    """Write the trace of a run that was cancelled; being cancelled does not stop the writing.

    Where it cannot be written in time, the run's log says so: whatever ended the run is more important.

    Raises:
        asyncio.CancelledError: the caller was cancelled meanwhile.
    """
    writing = asyncio.create_task(_write_in_time(trace, flow_run_id))
    cancelled = None
    while not writing.done():
        try:
            await asyncio.wait([writing])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


async def read_trace_of(client: PrefectClient, flow_run_id: UUID) -> RunRecord | None:
    """Return what the last attempt of a run has left, or None where there is nothing.

    Raises:
        SettingsError: there is something that cannot be read.
    """
    only = ArtifactFilter(
        flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run_id]), type=ArtifactFilterType(any_=[_TYPE])
    )
    # Results of the run's own states are of this type as well; the trace was written last, or nearly so.
    for page in range(_MOST_PAGES):
        found = await client.read_artifacts(
            artifact_filter=only, sort=ArtifactSort.CREATED_DESC, limit=_PAGE, offset=page * _PAGE
        )
        for artifact in found:
            if artifact.metadata_ == _MARK and isinstance(artifact.data, dict):
                return unpack_trace(str(artifact.data.get("trace", "")))
        if len(found) < _PAGE:
            break
    return None


async def _write_in_time(trace: Trace, flow_run_id: UUID) -> None:
    async with client_in_time("the trace", MOST_SECONDS, _logger) as client:
        await write_trace(client, trace, flow_run_id)


@asynccontextmanager
async def client_in_time(what: str, seconds: float, logger: logging.Logger) -> AsyncIterator[PrefectClient]:
    """Lend a client to write what a run leaves; what goes wrong is logged, since the run's own end is more important.

    Args:
        what: what is written, for the log: "the trace".
        seconds: how long it may take.
        logger: the logger of whoever writes.
    """
    try:
        async with asyncio.timeout(seconds), get_client() as client:
            yield client
    except TimeoutError:
        logger.warning("%s could not be written: the Prefect API at %s took more than %g s", what, api_url(), seconds)
    except Exception as error:  # noqa: BLE001 - it would take the place of the run's own end
        reason = api_failure(error, dispensable=False) if is_api_failure(error) else f"{type(error).__name__}: {error}"
        logger.warning("%s could not be written: %s", what, reason)
