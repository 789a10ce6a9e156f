"""A plan as an async `prefect.Flow`: every step a task run, with Prefect's retries, timeouts and persisted results.

This is the only module that leans on Prefect's internals (`run_task_async`), and the reason for the upper bound of its
version in pyproject.toml. It imports prefect, which takes seconds: import it inside functions.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import prefect
from prefect.blocks.system import Secret
from prefect.client.orchestration import PrefectClient, get_client
from prefect.context import FlowRunContext, TagsContext
from prefect.exceptions import CancelledRun, ObjectNotFound
from prefect.settings import get_current_settings
from prefect.states import Cancelled
from pydantic import Field
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ragbraid.dsl.plan import InputSpec, Plan
from ragbraid.flows.api import Flow
from ragbraid.flows.artifacts import RunArtifact, drawing_of
from ragbraid.flows.deployed import VERSION_LENGTH
from ragbraid.flows.inputs import refuse_reserved_inputs
from ragbraid.flows.loops import run_to_end
from ragbraid.flows.prefect_api import API_FAILURES, api_failure, api_url, is_api_failure, wait_for_api
from ragbraid.flows.prefect_artifacts import write_artifacts, write_drawing
from ragbraid.flows.prefect_logs import forward_node_logs
from ragbraid.flows.prefect_progress import ProgressArtifacts
from ragbraid.flows.prefect_states import completed_run, failed_run, why_ended
from ragbraid.flows.prefect_tasks import StepTasks
from ragbraid.flows.prefect_trace import OUR_TAG, leave_trace
from ragbraid.flows.prefect_turns import turn_of
from ragbraid.flows.run_names import run_name
from ragbraid.flows.runner import Listener, RunResult
from ragbraid.flows.secrets import redact
from ragbraid.flows.trace import Trace
from ragbraid.registry.errors import RagbraidError, ServiceError

_logger = logging.getLogger(__name__)

VERSION_TAG = "version:"
"""What the tag of a deployment's run begins with; the version of the flow follows."""

PATIENCE_SECONDS = 5.0
"""How long the API may take to learn that a run is done before the user is told what is waited for."""


@dataclass
class _Delivery:
    """What the caller of a flow and the run inside Prefect's engine hand each other past the engine.

    `result` is what the run gave and `failure` what ended it; both outlive an API that is lost before it can be told.
    Where a caller has `awaited` them, `waiting` tells the user when the API takes long, until the caller cancels that.
    """

    listener: Listener | None = None
    trace: Trace | None = None
    follow_text: bool = False
    result: RunResult | None = None
    failure: RagbraidError | None = None
    awaited: bool = False
    waiting: asyncio.TimerHandle | None = None


_delivery: ContextVar[_Delivery | None] = ContextVar("ragbraid_delivery", default=None)


class PlanFlow(prefect.Flow[..., Coroutine[Any, Any, Any]]):
    """A `prefect.Flow` made from a plan.

    It differs from a hand-written flow in two ways: an API that does not answer is one sentence, and an API that is
    lost while the flow runs does not take the result with it.
    """

    notes: tuple[str, ...] = ()
    """Sentences that every run logs as it begins."""

    inputs: tuple[InputSpec, ...] = ()
    """The inputs of the plan, of which a run is called after one."""

    def __call__(self, *args: Any, return_state: bool = False, **kwargs: Any) -> Any:
        """Start a run; the coroutine gives the flow's output, or Prefect's state with `return_state=True`."""
        work = _tagged(super().__call__(*args, return_state=return_state, **kwargs))
        return work if return_state else _deliver(work)


def build_flow(flow: Flow) -> PlanFlow:
    """Make the `prefect.Flow` of a flow; its module-level name is `ragbraid.flows.library:<file stem>`.

    Raises:
        SettingsError: an input bears a name that Prefect keeps for itself.
    """
    plan = flow.plan
    refuse_reserved_inputs(plan)
    tasks = StepTasks(plan, flow.resources)
    drawing = cache(partial(drawing_of, plan))

    async def run(**parameters: Any) -> Any:
        given = {name: value for name, value in parameters.items() if not _is_absent(value)}
        try:
            async with turn_of(flow, partial(_present_run, plan, given)) as ended:
                given_back = await _run_in_engine(flow, tasks, drawing(), given) if ended is None else ended
        except RagbraidError as error:
            given_back = await failed_run(error)
        except asyncio.CancelledError:
            if (reason := why_ended.get()()) is None:
                raise  # Prefect's own worker ends the run, and says so itself
            return Cancelled(message=reason)
        await _until_end_can_be_told()
        return given_back

    # Prefect finds a generated flow again by this name: a nested function has none that a worker could import.
    run.__module__ = "ragbraid.flows.library"
    run.__name__ = run.__qualname__ = Path(plan.file).stem
    run.__doc__ = plan.about or None
    run.__signature__ = signature_of(plan)  # type: ignore[attr-defined]
    # Inputs are checked by the flow itself, which says what is wrong in its own words and all at once.
    made = PlanFlow(
        run,
        name=plan.name,
        version=plan.hash[:VERSION_LENGTH],
        description=plan.about or None,
        validate_parameters=False,
    )
    made.inputs = plan.inputs
    return made


def build_failing_flow(error: RagbraidError, inputs: Sequence[str]) -> PlanFlow:
    """Make a flow that fails with an error, for a deployment whose own flow cannot be made here.

    Raised where Prefect imports the flow, the error would be a traceback in the log of a run that "crashed".
    """

    async def run(**_: Any) -> Any:
        return await failed_run(error)

    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in inputs]
    )
    return PlanFlow(run, name="unavailable", validate_parameters=False)


def signature_of(plan: Plan) -> inspect.Signature:
    """Return the signature that gives Prefect's form its types, bounds, defaults and descriptions."""
    return inspect.Signature([_parameter(spec) for spec in plan.inputs])


async def run_traced(
    flow: Flow,
    inputs: Mapping[str, Any],
    *,
    listener: Listener | None = None,
    trace: Trace | None = None,
    follow_text: bool = False,
) -> RunResult:
    """Run a flow as a flow run and return what it gives with its trace: see `prefect_runner.run_on_prefect`."""
    values = flow.check_inputs(inputs)
    delivery = _Delivery(listener, trace, follow_text)
    with _delivered_to(delivery):
        await flow.prefect(**values)
    if delivery.result is None:
        raise ServiceError(f"Prefect reported `{flow.name}` as done without running it; look at the flow run's state")
    return delivery.result


def read_secret_block(name: str) -> str | None:
    """Return a Secret block's value or None: see `prefect_runner.load_secret_block`."""

    async def read() -> Any:
        block: Any = await Secret.aload(name)
        return block.get()

    try:
        return str(run_to_end(read()))
    except (ValueError, ObjectNotFound):
        return None
    except (*API_FAILURES, RuntimeError) as error:
        raise api_failure(error) from None


async def _run_in_engine(flow: Flow, tasks: StepTasks, drawing: RunArtifact, given: dict[str, Any]) -> Any:
    plan = flow.plan
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        raise ServiceError(f"`{plan.name}` was called outside of a Prefect flow run")
    forward_node_logs(plan)
    for note in getattr(context.flow, "notes", ()):
        _logger.warning("%s", note)
    flow.check_resources()
    # Meanwhile the steps begin: a run waits for no request that it can do without.
    presenting = asyncio.gather(_present_run(plan, given), write_drawing(drawing, context.flow_run.id))
    delivery = _delivery.get() or _Delivery()
    executor = tasks.executor(str(context.flow_run.id))
    progress = ProgressArtifacts(plan.name, delivery.listener)
    trace = Trace() if delivery.trace is None else delivery.trace
    try:
        with _delivered_to(None), _untagged():  # a node may run a flow of its own, whose result is not this one's
            delivery.result = await flow.execute(
                given,
                executor=executor,
                listener=progress.listen,
                trace=trace,
                follow_text=delivery.follow_text,
            )
    except RagbraidError as error:
        delivery.failure = error
        await presenting
        await write_artifacts(plan, trace, context.flow_run.id)
        raise
    except BaseException:
        presenting.cancel()
        await leave_trace(trace, context.flow_run.id)
        raise
    finally:
        await progress.finish()
    if delivery.awaited:
        delivery.waiting = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, _say_what_is_waited_for)
    await presenting
    await write_artifacts(plan, trace, context.flow_run.id)
    return completed_run(delivery.result.outputs, trace)


async def _until_end_can_be_told() -> None:
    """Wait for an API that is away, where it is the only one that the end of the run can be told."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or context.flow_run.deployment_id is None:
        return
    if isinstance(context.client, PrefectClient):
        await wait_for_api(context.client)


async def _present_run(plan: Plan, given: Mapping[str, Any]) -> None:
    """Call the run after its question or source, and tag that of a deployment with the version that it executes.

    A later deployment may have replaced that version.
    """
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or context.flow is None:
        return
    run = context.flow_run
    changes: dict[str, Any] = {}
    if name := run_name(plan.inputs, given, run.name):
        changes["name"] = name
    tags = [tag for tag in run.tags if tag != OUR_TAG and not tag.startswith(VERSION_TAG)]
    version = [] if run.deployment_id is None else [f"{VERSION_TAG}{context.flow.version}"]
    before = [tag for tag in run.tags if tag.startswith(VERSION_TAG)]
    if version and before and before != version:
        _logger.warning(
            "the run began as %s and goes on as %s, which was deployed since: steps that are the same keep what they "
            "gave, all others are carried out again",
            *before,
            *version,
        )
    changes["tags"] = [*tags, OUR_TAG, *version]
    if not name and set(changes["tags"]) == set(run.tags):
        return
    try:
        async with get_client() as client:
            await client.update_flow_run(run.id, **changes)
    except Exception as error:
        if not is_api_failure(error):
            raise
        _logger.warning("the run could not be named and tagged with its version: %s", api_failure(error))
    else:
        run.name, run.tags = name or run.name, changes["tags"]


async def _tagged(work: Coroutine[Any, Any, Any]) -> Any:
    """Await work whose flow run is made with our tag, which spares a request."""
    with prefect.tags(OUR_TAG):
        return await work


def _untagged() -> TagsContext:
    """Return the context in which task runs are made: the tag is for runs, and Prefect would look for a limit of it."""
    return TagsContext(current_tags=TagsContext.get().current_tags - {OUR_TAG})


async def _deliver(work: Coroutine[Any, Any, Any]) -> Any:
    """Await a run of the engine; where the API is lost after the flow is done, give its result with a warning."""
    delivery = _delivery.get() or _Delivery()
    delivery.awaited = True
    token = why_ended.set(lambda: "the run was stopped")
    with _delivered_to(delivery):
        try:
            return await work
        except RagbraidError:
            raise
        except CancelledRun:
            raise asyncio.CancelledError from None
        except Exception as error:
            if not is_api_failure(error):
                raise
            ended = delivery.failure if delivery.result is None else delivery.result
            if ended is None:
                raise api_failure(error) from None
            _logger.warning(
                "the run %s, but the Prefect API at %s was lost and does not know (%s); "
                "when it is back, cancel the flow run that it still shows as running",
                "has failed" if isinstance(ended, RagbraidError) else "is done and its result is here",
                api_url(),
                redact(str(error) or type(error).__name__),
            )
            if isinstance(ended, RagbraidError):
                raise ended from None
            return ended.outputs
        finally:
            why_ended.reset(token)
            if delivery.waiting is not None:
                delivery.waiting.cancel()


def _say_what_is_waited_for() -> None:
    _logger.warning(
        "the run is done, but the Prefect API at %s has not taken note of it yet; its client tries up to %s times "
        "(PREFECT_CLIENT_MAX_RETRIES), then the result is given without it",
        api_url(),
        get_current_settings().client.max_retries,
    )


@contextmanager
def _delivered_to(delivery: _Delivery | None) -> Iterator[None]:
    token = _delivery.set(delivery)
    try:
        yield
    finally:
        _delivery.reset(token)


def _parameter(spec: InputSpec) -> inspect.Parameter:
    # A description reaches the form only through a Field that *is* the default; one inside Annotated is dropped.
    default: Any = inspect.Parameter.empty if spec.required else spec.default
    if spec.about:
        value = PydanticUndefined if spec.required else spec.default
        default = Field(default=value, description=spec.about)
    return inspect.Parameter(spec.name, inspect.Parameter.KEYWORD_ONLY, annotation=spec.type, default=default)


def _is_absent(value: Any) -> bool:
    """Whether Prefect filled a parameter that the caller left out with the stand-in for "no default"."""
    return value is PydanticUndefined or value is Ellipsis or isinstance(value, FieldInfo)
