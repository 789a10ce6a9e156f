"""The scheduler: every step of a body starts as soon as what it needs is there.

A body keeps one counter of open needs per step. A worker that finished a step counts down the steps after it, goes on
with one that became ready and hands the others to tasks of their own, so that a chain is a single coroutine. Nothing
here depends on which of two steps finishes first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

from ragbraid.dsl.plan import Plan
from ragbraid.flows.cache import StepCache
from ragbraid.flows.compiled import CompiledBody, CompiledPlan, compile_plan
from ragbraid.flows.frames import UNSET, Frame
from ragbraid.flows.limits import RunLimits
from ragbraid.flows.loops import end_tasks
from ragbraid.flows.runner import Listener, MapRunner, ResourceLookup, RunResult, StepExecutor
from ragbraid.flows.steps import TURN_SECONDS, Run, run_step
from ragbraid.flows.trace import Trace
from ragbraid.registry.context import StepContext, enter_step, leave_step
from ragbraid.registry.errors import RagbraidError, RunError

_BETWEEN_STEPS = StepContext()


async def run_plan(
    plan: Plan,
    inputs: Mapping[str, Any],
    *,
    resources: ResourceLookup,
    executor: StepExecutor | None = None,
    listener: Listener | None = None,
    cache: StepCache | None = None,
    trace: Trace | None = None,
    map_runner: MapRunner | None = None,
    follow_text: bool = False,
) -> RunResult:
    """Run a plan and return what it gives.

    Args:
        plan: the flow to run.
        inputs: values by name of input; what is left out gets its default.
        resources: what stands behind the plan's resource names.
        executor: how steps are executed; without one, inline.
        listener: told when steps start, progress and end.
        cache: where results of steps with `cache` are kept; without one they are not cached.
        trace: filled with what the run does; for callers who want it when the run is cancelled too.
        map_runner: who runs the items of maps; without one, they run like all other steps.
        follow_text: tell the listener also what steps write while they write it; models are then asked for streams.

    Raises:
        RunError: a step failed, a limit was passed (LimitError), or inputs are wrong (kind `input`). `.trace` holds the
            trace, `.step` the step. Other errors of ragbraid (SettingsError of a resource) come as they are.
    """
    trace = Trace() if trace is None else trace
    compiled = compile_plan(plan)
    frame = Frame(compiled.body.size)
    bound: Mapping[str, Any] = {}
    limits = RunLimits(plan.limits)
    run = Run(
        trace, resources, executor, listener, cache, limits, run_body, map_runner=map_runner, follow_text=follow_text
    )
    trace.begin(plan, bound)
    token = enter_step(_BETWEEN_STEPS)  # steps enter their own contexts and do not leave them
    try:
        trace.inputs = bound = compiled.inputs.check(inputs)
        for slot, name in enumerate(plan.body.inputs):
            frame.values[slot] = bound[name]
        if limits.seconds is None:
            await run_body(compiled.body, frame, run)
        else:
            await _run_in_time(compiled.body, frame, run)
        outputs = {name: get(frame) for name, get, _ in compiled.outputs}
    except asyncio.CancelledError as error:
        trace.finish("cancelled", _reached(compiled, frame), error)
        raise
    except BaseException as error:
        trace.finish("failed", _reached(compiled, frame), error)
        if isinstance(error, RagbraidError):
            error.trace = trace
        raise
    finally:
        leave_step(token)
    trace.finish("ok", outputs)
    return RunResult(outputs[""] if plan.single_output else outputs, trace)


async def run_body(body: CompiledBody, frame: Frame, run: Run, watch: Callable[[int], bool] | None = None) -> None:
    """Run every step of a body, filling the frame's slots. The frame's inputs must be filled.

    May be called while a step of a body around it runs: that body's frame is then the parent of `frame`.

    Args:
        body: the steps.
        frame: their slots.
        run: what all steps of the run share.
        watch: told the slot of every step that ended. When it returns true the body ends: steps that have not started
            are not started, those that run are cancelled.

    Raises:
        RagbraidError: the first failure of a step; every other step has been cancelled and has ended.
    """
    if not body.straight:
        await _BodyRun(body, frame, run, watch).drive()
        return
    values = frame.values
    for step in body.steps:  # each waits for the one before it: there is nothing to share out
        values[step.slot] = await run_step(step, frame, run)
        if watch is not None and watch(step.slot):
            return
        if perf_counter() > run.turn_ends:
            await asyncio.sleep(0)
            run.turn_ends = perf_counter() + TURN_SECONDS


class _Halt(Exception):
    """Ends a body whose watcher has seen enough, by the way that a failure takes."""


class _BodyRun:
    """One run of one body: its open needs, its tasks, its first failure."""

    __slots__ = (
        "body",
        "caller",
        "error",
        "frame",
        "interrupting",
        "live",
        "missing",
        "run",
        "stopping",
        "tasks",
        "waiter",
        "watch",
    )

    def __init__(self, body: CompiledBody, frame: Frame, run: Run, watch: Callable[[int], bool] | None) -> None:
        self.body = body
        self.watch = watch
        self.frame = frame
        self.run = run
        self.missing = body.needs.copy()
        self.caller = asyncio.current_task()
        self.tasks: list[asyncio.Task[None]] = []
        self.live = 0
        self.waiter: asyncio.Future[None] | None = None
        self.error: BaseException | None = None
        self.interrupting = False
        """Whether one of our tasks failed and cancelled the caller, who was busy with a step."""
        self.stopping = False

    async def drive(self) -> None:
        """Run all steps; the caller's task is the first worker."""
        cancelled: asyncio.CancelledError | None = None
        try:
            await self._work(self._share(self.body.roots, []))
            if self.live and self.error is None:
                self.waiter = asyncio.get_running_loop().create_future()
                await self.waiter
        except asyncio.CancelledError as error:
            cancelled = error
        if self.interrupting and self.caller is not None and self.caller.uncancel() == 0:
            cancelled = None  # it was ours, as in asyncio.TaskGroup
        if self.live:
            cancelled = await self._stop() or cancelled
        if cancelled is not None:
            raise cancelled
        if self.error is not None and not isinstance(self.error, _Halt):
            raise self.error

    async def _work(self, todo: list[int]) -> None:
        """Run steps, the last of `todo` first, and then those that became ready; tasks take what must not wait."""
        frame, run, missing, steps = self.frame, self.run, self.missing, self.body.steps
        values = frame.values
        while todo:
            step = steps[todo.pop()]
            try:
                values[step.slot] = await run_step(step, frame, run)
                # Nobody watches a body that has ended: a step that still finished may not change the reason.
                if self.watch is not None and self.error is None and not self.stopping and self.watch(step.slot):
                    self._fail(_Halt())
            except Exception as error:  # noqa: BLE001 - raised by `drive`, once all others have ended
                self._fail(error)
            if self.error is not None:
                return
            freed = []
            for index in step.successors:
                missing[index] -= 1
                if not missing[index]:
                    freed.append(index)
            if freed:
                todo = self._share(freed, todo) if todo or len(freed) > 1 else freed
            if perf_counter() > run.turn_ends:
                await asyncio.sleep(0)
                run.turn_ends = perf_counter() + TURN_SECONDS

    def _share(self, freed: Sequence[int], todo: list[int]) -> list[int]:
        """Return what the calling worker goes on with; the other ready steps are handed to tasks.

        Steps that only compute need no tasks: they run one after the other. Of those that may wait, one stays with a
        worker that has nothing else to do.
        """
        if self.run.executor is not None:
            quick, waiting = [], list(freed)
        else:
            steps = self.body.steps
            quick = [index for index in freed if steps[index].quick]
            waiting = [index for index in freed if not steps[index].quick]
        if todo or not waiting:
            for index in waiting:
                self._spawn([index])
            return quick[::-1] + todo
        for index in waiting[1:]:
            self._spawn([index])
        if quick:
            self._spawn(quick[::-1])
        return waiting[:1]

    def _spawn(self, todo: list[int]) -> None:
        self.live += 1
        self.tasks.append(asyncio.create_task(self._worker(todo)))

    async def _worker(self, todo: list[int]) -> None:
        try:
            await self._work(todo)
        except asyncio.CancelledError as error:
            self._fail(error)  # nobody's but ours, or somebody cancelled one of our tasks behind our back
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self.live -= 1
            if not self.live:
                self._wake()

    def _fail(self, error: BaseException) -> None:
        if self.error is not None or self.stopping:
            return
        self.error = error
        if self.waiter is not None:
            self._wake()
        elif self.caller is not None and asyncio.current_task() is not self.caller:
            self.interrupting = True
            self.caller.cancel()

    def _wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def _stop(self) -> asyncio.CancelledError | None:
        """End all tasks. Returns the cancellation that came meanwhile, if any."""
        self.stopping = True
        try:
            await end_tasks(self.tasks)
        except asyncio.CancelledError as error:
            return error
        return None


async def _run_in_time(body: CompiledBody, frame: Frame, run: Run) -> None:
    scope = asyncio.timeout(run.limits.seconds)
    try:
        async with scope:
            await run_body(body, frame, run)
    except (TimeoutError, RagbraidError) as error:  # a node may answer its cancellation with an error of its own
        if not scope.expired():
            raise
        cut = (entry.path for entry in run.trace.steps if isinstance(entry.error, RunError) and _is_cut(entry.error))
        raise run.limits.timed_out(next(cut, None)) from error


def _is_cut(error: RunError) -> bool:
    return error.kind == "cancelled"


def _reached(compiled: CompiledPlan, frame: Frame) -> dict[str, Any]:
    """Return those outputs of an unfinished run whose steps had all run."""
    reached = {}
    for name, get, slots in compiled.outputs:
        if all(frame.values[slot] is not UNSET for slot in slots):
            try:
                reached[name] = get(frame)
            except RagbraidError:
                continue  # computed from a step that gave nothing; the run's own error is the one to report
    return reached
