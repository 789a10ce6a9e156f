"""Running one step: its condition, its inputs, its call with what surrounds it, and what happens when it fails."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter
from typing import Any

from ragbraid.flows.blocks import run_block
from ragbraid.flows.cache import StepCache
from ragbraid.flows.compiled import AnyCompiled, CompiledBlock, CompiledBody, CompiledStep
from ragbraid.flows.frames import Frame
from ragbraid.flows.inline import ThreadCall, as_failure
from ragbraid.flows.limits import RunLimits
from ragbraid.flows.outcomes import refused_outcome
from ragbraid.flows.policies import CachedResult, with_retries
from ragbraid.flows.runner import Listener, MapRunner, ResourceLookup, RunEvent, StepExecutor
from ragbraid.flows.threads import THREADS
from ragbraid.flows.trace import StepTrace, Trace
from ragbraid.registry.context import enter_step
from ragbraid.registry.errors import NodeOutputError, RagbraidError, RunError

TURN_SECONDS = 0.02
"""After so long without giving the event loop a turn, a worker gives it one. It counts over all bodies of a run, since
the many short ones of a loop or a map hold it up just as a long one does."""

BodyRunner = Callable[[CompiledBody, Frame, "Run", "Callable[[int], bool] | None"], Awaitable[None]]
"""Runs the steps of a body. The last argument is told the slot of every step that ended; true ends the body early."""


class Run:
    """What all steps of one run share.

    `run_body` is the scheduler's, for blocks: their bodies are scheduled like the flow's own.
    """

    __slots__ = (
        "_loop",
        "_opened",
        "_thread",
        "cache",
        "executor",
        "follow_text",
        "limits",
        "listener",
        "map_runner",
        "resources",
        "run_body",
        "trace",
        "turn_ends",
        "watched",
        "written",
    )

    def __init__(
        self,
        trace: Trace,
        resources: ResourceLookup,
        executor: StepExecutor | None,
        listener: Listener | None,
        cache: StepCache | None,
        limits: RunLimits,
        run_body: BodyRunner,
        *,
        map_runner: MapRunner | None = None,
        follow_text: bool = False,
    ) -> None:
        self.trace = trace
        self.run_body = run_body
        self.resources = resources
        self.executor = executor
        self.map_runner = map_runner
        self.listener = listener
        self.cache = cache
        self.limits = limits
        self.watched = listener is not None or limits.counted
        self.follow_text = follow_text and listener is not None
        self.written: set[str] = set()
        """The steps, by path, whose text the listener has seen something of."""
        self.turn_ends = perf_counter() + TURN_SECONDS
        """When, on the clock of `perf_counter`, a worker gives the event loop a turn."""
        self._opened: dict[tuple[str, str], Any] = {}
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def without_executor(self) -> Run:
        """Return the same run for what is inside an execution: its steps are run here and now."""
        inner = copy.copy(self)
        inner.executor = None
        return inner

    def begin(self, entry: StepTrace) -> None:
        """Tell the listener that a step starts, and connect the step's own reports."""
        if self.limits.counted:
            entry.on_usage = partial(self.limits.charge, entry.path)
        if self.listener is not None:
            entry.on_progress = partial(self._progress, entry)
            if self.follow_text:
                entry.on_text = partial(self._text, entry)
            self.listener(RunEvent("started", entry.path, entry.node))

    def end(self, entry: StepTrace) -> None:
        """Tell the listener how a step ended."""
        if self.listener is not None:
            seconds = (entry.ended or entry.started) - entry.started
            event = RunEvent("finished", entry.path, entry.node, entry.outcome, seconds, entry.output, entry.error)
            self.listener(event)

    def _progress(self, entry: StepTrace, label: str, done: int, total: int | None) -> None:
        if threading.get_ident() != self._thread:  # listeners need not be safe under threads
            self._loop.call_soon_threadsafe(self._progress, entry, label, done, total)
        elif self.listener is not None:
            self.listener(RunEvent("progress", entry.path, entry.node, label=label, done=done, total=total))

    def _text(self, entry: StepTrace, piece: str, restart: bool = False) -> None:
        if threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self._text, entry, piece, restart)
            return
        restart = restart and entry.path in self.written
        if self.listener is None or entry.ended is not None or not (piece or restart):
            return
        if piece:
            self.written.add(entry.path)
        else:
            self.written.discard(entry.path)
        self.listener(RunEvent("text", entry.path, entry.node, text=piece, restart=restart))

    async def open(self, step: CompiledStep) -> dict[str, Any]:
        """Return the resources of a step by parameter. Those that are not open yet are opened in a worker thread."""
        found = {}
        for parameter, name, role in step.resources:
            if (name, role) not in self._opened:
                self._opened[name, role] = await THREADS.call(partial(self.resources.get, name, role))
            resource = self._opened[name, role]
            if resource is not None:
                found[parameter] = resource
        return found


async def run_step(step: AnyCompiled, frame: Frame, run: Run) -> Any:
    """Run a step, record it, and return its output: None where it was skipped, or failed with `on_error: skip`.

    Raises:
        RagbraidError: the step failed and nothing replaces it.
    """
    path = step.path if frame.prefix is None else frame.prefix + step.path
    trace = run.trace
    entry = StepTrace(path, step.reference, perf_counter() - trace.origin)
    trace.steps.append(entry)
    enter_step(entry)
    if run.watched:
        run.begin(entry)
    try:
        if step.when is not None and not step.when(frame):
            entry.state, entry.attempts = "skipped", 0
            return None
        if isinstance(step, CompiledBlock):
            value = await _run_block(step, entry, frame, run)
        else:
            value = await _run_node(step, entry, frame, run)
        if run.limits.passed is not None:
            raise run.limits.passed
        return value
    except asyncio.CancelledError:
        failure: RagbraidError = RunError(f"`{path}` was cancelled", kind="cancelled", step=path)
        entry.state, entry.error = "failed", failure
        if _is_being_cancelled():
            raise
    except Exception as error:  # noqa: BLE001 - a node may raise anything; recorded and raised by `_recover`
        failure = as_failure(error, path)
        entry.state, entry.error = "failed", failure
    finally:
        entry.ended = perf_counter() - trace.origin
        if run.watched:
            run.end(entry)
    return await _recover(step, failure, frame, run)


async def _run_node(step: CompiledStep, entry: StepTrace, frame: Frame, run: Run) -> Any:
    inputs = entry.inputs = step.bind(frame, entry.path)
    if not step.plain or run.executor is not None:
        return await _produce(step, entry, frame, run)
    value = await step.function(**inputs) if step.is_async else step.function(**inputs)
    if step.output_class is None or not isinstance(value, step.output_class):
        value = step.check_output(value, entry.path)
    entry.output = value
    return value


async def _recover(step: AnyCompiled, failure: RagbraidError, frame: Frame, run: Run) -> Any:
    """Do what `on_error` says; nothing makes up for a limit of the run."""
    if run.limits.passed is not None:
        raise run.limits.passed
    if step.replacement is not None:
        return await run_step(step.replacement, frame, run)
    if step.policy.on_error == "skip":
        return None
    if step.policy.output is not None:
        return step.policy.output(degraded=True, error=str(failure))
    raise failure


async def _produce(step: CompiledStep, entry: StepTrace, frame: Frame, run: Run) -> Any:
    """Get the step's output from a cache or by calling its node as its policy says."""
    entry.attempts = 0
    executor = run.executor
    if executor is not None and executor.handles_policies:
        value = await executor.execute(step.step, entry.path, partial(_attempt, step, entry, run), entry.inputs)
        if not entry.attempts:
            entry.cached = True
            value = step.check_output(value, entry.path)
        return _ensured(step, entry, frame, value)
    cached = _cached_result(step, entry, run)
    found = None if cached is None else await cached.load(run.resources)
    if found is not None:
        entry.cached = True
        return _ensured(step, entry, frame, found.value)
    policy = step.policy
    value = await with_retries(partial(_execute, step, entry, run), policy.retry, policy.timeout_seconds, entry)
    _ensured(step, entry, frame, value)
    if cached is not None:
        await cached.store(value)
    return value


async def _run_block(step: CompiledBlock, entry: StepTrace, frame: Frame, run: Run) -> Any:
    """Get a block's output, with the retries and the timeout that its policy asks for."""
    entry.attempts = 0
    executor = run.executor if run.executor is not None and run.executor.takes_blocks else None
    inner = run if executor is None else run.without_executor()

    async def attempt() -> Any:
        entry.attempts += 1
        entry.status = None
        return await run_block(step.block, frame, inner, entry)

    if executor is None:
        policy = step.policy
        value = await with_retries(attempt, policy.retry, policy.timeout_seconds, entry)
    else:
        reads = {str(slot): frame.values[slot] for slot in sorted(step.step.needs)}
        value = await executor.execute(step.step, entry.path, attempt, reads)
        entry.cached = not entry.attempts
    enter_step(entry)
    return _ensured(step, entry, frame, value)


def _execute(step: CompiledStep, entry: StepTrace, run: Run) -> Awaitable[Any]:
    """Make one attempt, through the executor where there is one."""
    if run.executor is None:
        return _attempt(step, entry, run)
    return run.executor.execute(step.step, entry.path, partial(_attempt, step, entry, run), entry.inputs)


async def _attempt(step: CompiledStep, entry: StepTrace, run: Run) -> Any:
    """Call the node once and return its checked output; what it raises is always a RagbraidError."""
    entry.attempts += 1
    entry.status = None
    enter_step(entry)
    try:
        arguments = {**entry.inputs, **await run.open(step)} if step.resources else entry.inputs
        if step.threaded:
            value = await ThreadCall(entry).run(step.function, arguments, run.trace)
        else:
            value = await step.function(**arguments) if step.is_async else step.function(**arguments)
        return step.check_output(value, entry.path)
    except Exception as error:  # noqa: BLE001 - a node may raise anything; raised below
        failure = as_failure(error, entry.path)
    raise failure


def _ensured(step: AnyCompiled, entry: StepTrace, frame: Frame, value: Any) -> Any:
    """Record the output and return it if it keeps the step's post-condition."""
    entry.output = value
    if step.ensure is not None and not step.ensure(frame, value):
        condition = "" if step.policy.ensure is None else step.policy.ensure.text
        told = refused_outcome(value)
        raise NodeOutputError(
            f"what `{entry.path}` gave does not keep `ensure: {condition}`" + (f": {told}" if told else ""),
            step=entry.path,
        )
    return value


def _cached_result(step: CompiledStep, entry: StepTrace, run: Run) -> CachedResult | None:
    if run.cache is None or step.policy.cache_seconds is None:
        return None
    if not step.node.cacheable:
        entry.notes.append(f"not cached: {step.node.name} does more than return a value")
        return None
    return CachedResult(run.cache, step, entry)


def _is_being_cancelled() -> bool:
    """Whether the cancellation comes from outside of the node, who may also have awaited something cancelled."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
