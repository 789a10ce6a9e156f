"""Running blocks: loops, maps, switches, gates, groups, and flows in the place of nodes.

Every body runs in a frame of its own whose parent is the frame around it, so blocks nest to any depth. Steps and items
are counted from 1 in names: `interleave[2].think` is the step `think` in the second round of `interleave`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from ragbraid.dsl.plan import DONE, MAX_STEPS
from ragbraid.flows.compiled import (
    AnyBlock,
    CompiledBranch,
    CompiledCall,
    CompiledGate,
    CompiledGroup,
    CompiledLoop,
    CompiledMap,
    CompiledSwitch,
)
from ragbraid.flows.frames import UNSET, Frame
from ragbraid.flows.loops import end_tasks
from ragbraid.flows.trace import StepTrace
from ragbraid.registry.errors import LimitError, NodeInputError, RagbraidError, RunError

if TYPE_CHECKING:
    from ragbraid.flows.steps import Run

LEFT_OUT = object()
"""Stands for the result of an item that failed and is left out."""


async def run_block(block: AnyBlock, frame: Frame, run: Run, entry: StepTrace) -> Any:
    """Run a block whose surroundings are `frame`, and return its output.

    Raises:
        RagbraidError: the first failure of a step inside it; everything else inside has ended.
    """
    match block:
        case CompiledLoop():
            return await _run_loop(block, frame, run, entry)
        case CompiledMap():
            return await _run_map(block, frame, run, entry)
        case CompiledSwitch():
            return await _run_switch(block, frame, run, entry)
        case CompiledGate():
            return await _run_gate(block, frame, run, entry)
        case CompiledGroup():
            return await _run_branch(block.branch, frame, run, f"{entry.path}.")
        case CompiledCall():
            return await _run_call(block, frame, run, entry)


async def _run_branch(branch: CompiledBranch, frame: Frame, run: Run, prefix: str) -> Any:
    inner = Frame(branch.body.size, frame, prefix)
    await run.run_body(branch.body, inner, run, None)
    return branch.output(inner)


# -- loop --------------------------------------------------------------------------------------------------------------


class _Stops:
    """Looks at the conditions of one step of a loop, each as soon as the steps that it names have ended."""

    def __init__(self, loop: CompiledLoop, frame: Frame) -> None:
        self._loop = loop
        self._frame = frame
        self._open = [set(needs) for _, _, needs in loop.stops]
        self.held: int | None = None
        """Number of the condition that held; of several that could be looked at together, the first in the file."""

    def begin(self) -> bool:
        """Look at the conditions that name no step of the body; returns whether one of them holds."""
        return self._look([number for number, needs in enumerate(self._open) if not needs])

    def step_ended(self, slot: int) -> bool:
        """Look at the conditions that waited for this step; returns whether one of them holds."""
        ready = []
        for number, needs in enumerate(self._open):
            if slot in needs:
                needs.discard(slot)
                if not needs:
                    ready.append(number)
        return bool(ready) and self._look(ready)

    def _look(self, numbers: Sequence[int]) -> bool:
        for number in numbers:
            if self._loop.stops[number][1](self._frame):
                self.held = number
                return True
        return False


async def _run_loop(loop: CompiledLoop, frame: Frame, run: Run, entry: StepTrace) -> Any:
    path = entry.path
    states = [state.check(state.start(frame), path) for state in loop.states]
    limit = _step_limit(loop.max_steps(frame), path)
    items = None if loop.items is None else _items(loop.items(frame), path)
    stopped_by, steps = MAX_STEPS, 0
    for number in range(1, limit + 1):
        if items is not None and steps == len(items):
            break
        inner = Frame(loop.body.size, frame, f"{path}[{number}].")
        inner.values[: len(states)] = states
        if items is not None:
            inner.values[len(states)] = items[steps]
        stops = _Stops(loop, inner) if loop.stops else None
        if stops is not None and stops.begin():
            stopped_by = loop.stops[stops.held or 0][0]
            break
        await run.run_body(loop.body, inner, run, None if stops is None else stops.step_ended)
        steps = number
        held = None if stops is None else stops.held
        states = _next_states(loop, inner, states, held, path)
        if held is not None:
            stopped_by = loop.stops[held][0]
            break
    if stopped_by == MAX_STEPS and items is not None and steps == len(items):
        stopped_by = DONE
    entry.notes.append(f"ended after {steps} {'step' if steps == 1 else 'steps'}: {stopped_by}")
    values = {state.name: value for state, value in zip(loop.states, states, strict=True)}
    return loop.record.model_construct(**values, steps=steps, stopped_by=stopped_by)


def _next_states(loop: CompiledLoop, inner: Frame, states: list[Any], held: int | None, path: str) -> list[Any]:
    """Return the states after a step.

    When a condition ended the step early, only those states move on whose `next` reads nothing but steps that the
    condition itself had to wait for: others may or may not have been reached, depending on which was faster.
    """
    settled = None if held is None else loop.settled[held]
    following = []
    for state, value in zip(loop.states, states, strict=True):
        if state.next is None or (settled is not None and not _is_settled(state.next_needs, settled, inner)):
            following.append(value)
        else:
            moved = state.next(inner)
            instance = state.instance
            passes = instance is not None and isinstance(moved, instance)
            following.append(moved if passes else state.check(moved, path))
    return following


def _is_settled(needs: frozenset[int], settled: frozenset[int], inner: Frame) -> bool:
    return needs <= settled and all(inner.values[slot] is not UNSET for slot in needs)


def _step_limit(value: Any, path: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise NodeInputError(f"`max_steps` of `{path}` is a whole number of at least 0, not {value!r}", step=path)
    return value


def _items(value: Any, path: str) -> list[Any]:
    try:
        return list(value)
    except TypeError:
        raise NodeInputError(f"`{path}` goes over a list, but was given {type(value).__name__}", step=path) from None


# -- map ---------------------------------------------------------------------------------------------------------------


async def _run_map(block: CompiledMap, frame: Frame, run: Run, entry: StepTrace) -> list[Any]:
    items = _items(block.items(frame), entry.path)
    if run.map_runner is not None and items:
        return await run.map_runner.run_items(block, items, frame, run, entry)
    results: list[Any] = [LEFT_OUT] * len(items)
    numbers = iter(range(len(items)))

    async def work() -> None:
        for position in numbers:
            results[position] = await run_item(block, frame, run, entry, position, items[position])

    workers = min(block.concurrency, len(items))
    if workers == 1:
        await work()
    elif workers:
        await all_or_none([work() for _ in range(workers)])
    return [result for result in results if result is not LEFT_OUT]


async def run_item(block: CompiledMap, frame: Frame, run: Run, entry: StepTrace, position: int, item: Any) -> Any:
    """Run a map's body for one item and return what it gives, or what `on_error` says: None, or `LEFT_OUT`.

    Args:
        block: the map.
        frame: the frame of the body around the map.
        run: the run.
        entry: the trace of the map, which learns of a failure that `on_error` makes up for.
        position: the item's place, counted from 0.
        item: the item.

    Raises:
        RagbraidError: the body failed, and the map fails with it.
    """
    inner = Frame(block.branch.body.size, frame, f"{entry.path}[{position + 1}].")
    inner.values[0] = item
    try:
        await run.run_body(block.branch.body, inner, run, None)
        return block.branch.output(inner)
    except LimitError:
        raise
    except RagbraidError as error:
        if block.on_error == "fail" or (isinstance(error, RunError) and error.kind == "cancelled"):
            raise
        entry.notes.append(f"item {position + 1} failed: {error}")
        entry.status = "degraded"
        return None if block.on_error == "none" else LEFT_OUT


async def all_or_none(works: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Await all; when one fails, cancel the others, wait until they have ended, and raise the failure."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        await end_tasks(tasks)


# -- switch, gate, call ------------------------------------------------------------------------------------------------


async def _run_switch(block: CompiledSwitch, frame: Frame, run: Run, entry: StepTrace) -> Any:
    label, branch = _choose(block, frame)
    entry.notes.append(f"took {label}")
    if branch is None:
        return None
    return await _run_branch(branch, frame, run, f"{entry.path}[{label}].")


def _choose(block: CompiledSwitch, frame: Frame) -> tuple[str, CompiledBranch | None]:
    wanted = None if block.on is None else block.on(frame)
    for label, case, branch in block.cases:
        if case(frame) if block.on is None else case == wanted:
            return label, branch
    return ("else" if block.otherwise is not None else "no branch"), block.otherwise


async def _run_gate(block: CompiledGate, frame: Frame, run: Run, entry: StepTrace) -> Any:
    value: Any = None
    for number, branch in enumerate(block.tries, start=1):
        value = await _run_branch(branch, frame, run, f"{entry.path}[{number}].")
        if block.enough(frame, value):
            entry.notes.append(f"try {number} of {len(block.tries)} was enough")
            return value
    entry.notes.append(f"none of {len(block.tries)} tries was enough; the last one's result is taken")
    return value


async def _run_call(block: CompiledCall, frame: Frame, run: Run, entry: StepTrace) -> Any:
    given = {name: get(frame) for name, get in block.arguments}
    inner = Frame(block.body.size, None, f"{entry.path}.")
    for slot, value in enumerate(block.inputs.check(given).values()):
        inner.values[slot] = value
    await run.run_body(block.body, inner, run, None)
    outputs = {name: get(inner) for name, get in block.outputs}
    return outputs[""] if block.record is None else block.record.model_construct(**outputs)
