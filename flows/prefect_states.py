"""What the states of flow runs and task runs say: our sentences, where Prefect's own would name an exception.

Imports prefect: import it inside functions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any
from uuid import uuid4

from prefect.client.schemas.objects import State
from prefect.results import get_result_store
from prefect.states import Completed, Failed

from ragbraid.flows.outcomes import failures_of, outcome_of
from ragbraid.flows.secrets import redact, redacted
from ragbraid.flows.trace import StepTrace, Trace
from ragbraid.registry.errors import RagbraidError, RunError

_logger = logging.getLogger(__name__)

_MOST_NAMED = 5
"""How many steps a state names that gave less than was asked for."""
_MOST_LOGGED = 20
"""How many sources that failed are logged; the artifact has more."""


why_ended: ContextVar[Callable[[], str | None]] = ContextVar("ragbraid_why_ended", default=lambda: None)
"""Says why the current run was ended from outside, so that it ends as cancelled; else Prefect takes it for a crash."""


def sentence_of(error: RagbraidError) -> str:
    """Return what happened, where, and what to do, without a secret."""
    sentence = str(error)
    step = error.step if isinstance(error, RunError) else None
    if step and f"`{step}`" not in sentence:
        sentence = f"step `{step}`: {sentence}"
    hint = getattr(error, "hint", None)
    return redact(f"{sentence} (hint: {hint})" if hint else sentence)


def failed_step(error: RagbraidError) -> State[Any]:
    """Return the state of a task run whose step failed; Prefect's engine asks it whether to try again."""
    return Failed(message=sentence_of(redacted(error)), data=error)


def error_of_step(state: State[Any]) -> RagbraidError:
    """Return the error of a task run that `failed_step` ended."""
    error = getattr(state.data, "result", state.data)  # Prefect's engine has put a record around it
    assert isinstance(error, RagbraidError)
    return error


async def failed_run(error: RagbraidError) -> State[Any]:
    """Return the state of a flow run that failed; the error itself is stored beside it, as Prefect stores exceptions."""
    store = get_result_store()
    record = store.create_result_record(redacted(error), key=uuid4().hex)
    try:
        await store.apersist_result_record(record)
    except Exception as failure:  # noqa: BLE001 - a store may raise anything; the sentence is in the state all the same
        _logger.warning("the error of the run could not be stored: %s", redact(str(failure)))
    return Failed(message=sentence_of(error), data=record)


def completed_run(outputs: Any, trace: Trace) -> Any:
    """Return the outputs of a flow run, in a state that tells the totals of its ingestions and what was degraded.

    The name of the state stays `Completed`: Prefect's automations wait for the events that bear that name.
    """
    for told in failures_of(outputs, _MOST_LOGGED):
        _logger.warning("failed: %s", redact(told))
    outcome, degraded = outcome_of(outputs), _degraded(trace)
    message = "; ".join(filter(None, (outcome, degraded)))
    return Completed(message=message, data=outputs) if message else outputs


def _degraded(trace: Trace) -> str | None:
    told = [entry for entry in trace.steps if entry.outcome in ("failed", "degraded")]
    if not told:
        return None
    more = f"; and {len(told) - _MOST_NAMED} more" if len(told) > _MOST_NAMED else ""
    return "degraded: " + "; ".join(map(_told, told[:_MOST_NAMED])) + more


def _told(entry: StepTrace) -> str:
    if isinstance(entry.error, RagbraidError):
        return sentence_of(entry.error)
    reason = f": {redact(entry.notes[-1])}" if entry.notes else ""
    return f"`{entry.path}` is degraded{reason}"
