"""Steps as Prefect task runs. Imports prefect: import it inside functions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from math import isinf
from typing import Any
from uuid import uuid4

from prefect import Task
from prefect.client.schemas.objects import RunInput, State, TaskRun, TaskRunResult
from prefect.context import TaskRunContext
from prefect.task_engine import TaskRunTimeoutError, run_task_async
from prefect.utilities.annotations import quote

from ragbraid.dsl.plan import AnyStep, Plan, Retry, Step
from ragbraid.dsl.walk import inner_bodies, node_steps
from ragbraid.flows.cache import NoStableFormError, canonical, result_key
from ragbraid.flows.prefect_states import error_of_step, failed_step
from ragbraid.flows.project import code_of
from ragbraid.flows.resources import PlanResources
from ragbraid.flows.run_edges import RunEdges, StepOrder
from ragbraid.registry.context import report_note
from ragbraid.registry.errors import RagbraidError, RunError, ServiceError

_MOST_DELAYS = 50
"""Prefect takes no longer list of delays; it repeats the last one."""


@dataclass(frozen=True, slots=True)
class _Execution:
    """The one execution of a step that the current task run is for."""

    path: str
    key: str | None
    call: Callable[[], Awaitable[Any]]


_execution: ContextVar[_Execution] = ContextVar("ragbraid_execution")


class StepTasks:
    """The Prefect tasks of a plan's steps, made once and used by every run of the flow."""

    def __init__(self, plan: Plan, resources: PlanResources) -> None:
        self._plan = plan
        self._resources = resources
        self._tasks: dict[int, Task[..., Any]] = {}
        self._surrounding: dict[int, list[str]] = {}
        self.order = StepOrder(plan)

    def executor(self, run_id: str) -> TaskRunExecutor | None:
        """Return the executor of one flow run, or None where nothing of the flow is a task run."""
        visible = self._plan.deploy.visible
        return None if visible == "flow" else TaskRunExecutor(self, run_id, takes_blocks=visible == "blocks")

    def task_of(self, step: AnyStep) -> Task[..., Any]:
        """Return the task of a step, with the retries, timeout and expiry that its policy asks for."""
        task = self._tasks.get(id(step))
        if task is None:
            task = self._tasks[id(step)] = _make_task(step)
        return task

    async def key_of(self, step: AnyStep, path: str, inputs: Mapping[str, Any], run_id: str) -> str | None:
        """Return the key under which the step's result is kept, or None where it can have none.

        Prefect's own key hashes a function's source, and so takes two nodes made by one factory for one. This one names
        the step's path, the node, its code, version and settings, what goes in, and what stands behind it.

        A cached step's key outlives the run and so holds the fingerprints of its resources. Any other step's key holds
        the flow run's id, so that a retried run repeats only what had not finished, and what may change between two
        attempts where the flow is deployed anew: what is bound to its resources, and the file of a local node.
        """
        if not isinstance(step, Step):
            return self._key_of_block(step, path, inputs, run_id)
        lasting = step.policy.cache_seconds is not None
        try:
            prints = await asyncio.to_thread(self._fingerprints, step) if lasting else []
            content = result_key(step.node, inputs, prints)
            run = [] if lasting else [run_id, *self._surroundings(step)]
        except RagbraidError:
            return None  # the step is about to fail on the same resource, and says so itself
        except NoStableFormError as error:
            if lasting:
                report_note(f"not cached: {error}")
            return None
        function = step.node.function
        return _digest([path, function.__module__, function.__qualname__, *run, content])

    def _key_of_block(self, block: AnyStep, path: str, inputs: Mapping[str, Any], run_id: str) -> str | None:
        """Return the key of a block within its run: everything inside it is part of the plan's hash."""
        try:
            steps = [step for body in inner_bodies(block) for step in node_steps(body)]
            inside = sorted({part for step in steps for part in self._surroundings(step)})
            return _digest([path, self._plan.hash, run_id, *inside, json.dumps(canonical(inputs))])
        except (RagbraidError, NoStableFormError):
            return None

    def _surroundings(self, step: Step) -> list[str]:
        """Return what a step's result depends on beside its node and inputs, without opening anything."""
        found = self._surrounding.get(id(step))
        if found is None:
            bindings = [self._resources.binding(name, self._plan.roles[name]) for _, name in step.resources]
            found = self._surrounding[id(step)] = [*bindings, code_of(step.node.function)]
        return found

    def _fingerprints(self, step: Step) -> list[tuple[str, str]]:
        roles = self._plan.roles
        return [(parameter, self._resources.fingerprint(name, roles[name])) for parameter, name in step.resources]


class TaskRunExecutor:
    """A `StepExecutor` that gives every step of one flow run a task run of its own.

    Args:
        tasks: the tasks of the plan.
        run_id: the flow run's id.
        takes_blocks: whether a block is one task run, which costs the server the same however much it holds.
    """

    handles_policies = True

    def __init__(self, tasks: StepTasks, run_id: str, *, takes_blocks: bool) -> None:
        self.takes_blocks = takes_blocks
        self._tasks = tasks
        self._run_id = run_id
        self._edges = RunEdges(tasks.order)

    async def execute(
        self, step: AnyStep, path: str, call: Callable[[], Awaitable[Any]], inputs: Mapping[str, Any]
    ) -> Any:
        """Run one step as a task run: see `ragbraid.flows.runner.StepExecutor`."""
        key = await self._tasks.key_of(step, path, inputs, self._run_id)
        task_run_id = uuid4()
        parents: set[RunInput] = {TaskRunResult(id=parent) for parent in self._edges.add(step, path, task_run_id)}
        with _executing(_Execution(path, key, call)):
            try:
                # `quote` keeps Prefect from searching big values for futures; edges are told by hand instead.
                given = await run_task_async(
                    self._tasks.task_of(step),
                    task_run_id=task_run_id,
                    parameters={"inputs": quote(inputs)},
                    dependencies={"inputs": parents},
                )
            except TaskRunTimeoutError:
                raise ServiceError(
                    f"`{path}` ({step.label}) did not finish within {step.policy.timeout_seconds:g} s",
                    kind="timeout",
                    step=path,
                ) from None
        if isinstance(given, State):
            raise error_of_step(given)
        return given


async def _run_step(inputs: Mapping[str, Any]) -> Any:
    """Run the step of the current execution; `inputs` are shown here for Prefect only, `call` knows them."""
    try:
        return await _execution.get().call()
    except RagbraidError as error:
        return failed_step(error)  # raised, it would be told in Prefect's words


def _make_task(step: AnyStep) -> Task[..., Any]:
    policy = step.policy
    lifetime = policy.cache_seconds
    reference = step.node.reference if isinstance(step, Step) else step.label
    task: Task[..., Any] = Task(
        _run_step,
        name=step.path,
        description=step.about or (step.node.about if isinstance(step, Step) else None),
        version=reference,
        task_run_name=_task_run_name,
        cache_key_fn=_cache_key,
        cache_expiration=None if lifetime is None or isinf(lifetime) else timedelta(seconds=lifetime),
        persist_result=True,
        retries=policy.retry.attempts - 1,
        retry_delay_seconds=_delays(policy.retry),
        retry_condition_fn=_retry_condition(policy.retry),
        timeout_seconds=policy.timeout_seconds,
    )
    # All tasks are made of one function; without keys of their own they would be one task to Prefect.
    task.task_key = f"{reference}-{step.path}"
    return task


def _task_run_name() -> str:
    return _execution.get().path


def _cache_key(context: TaskRunContext, parameters: dict[str, Any]) -> str | None:
    return _execution.get().key


def _delays(retry: Retry) -> list[float]:
    count = min(retry.attempts - 1, _MOST_DELAYS)
    return [retry.delay * retry.backoff**number for number in range(count)]


def _retry_condition(retry: Retry) -> Callable[[Any, TaskRun, State[Any]], bool]:
    def may_retry(task: Any, task_run: TaskRun, state: State[Any]) -> bool:
        error = state.data
        if isinstance(error, RunError):
            return error.kind in retry.on
        return isinstance(error, TimeoutError) and "timeout" in retry.on

    return may_retry


def _digest(parts: list[str]) -> str:
    return f"ragbraid-{sha256(json.dumps(parts).encode()).hexdigest()}"


@contextmanager
def _executing(execution: _Execution) -> Iterator[None]:
    token = _execution.set(execution)
    try:
        yield
    finally:
        _execution.reset(token)
