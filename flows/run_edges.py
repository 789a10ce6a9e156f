"""Which task runs a step's task run comes after, for the drawing of a run: through blocks, rounds and items too.

Blocks are no task runs at `visible: steps`. A step behind a block therefore comes after those steps of the block that
nothing inside comes after; the first steps inside come after what the block comes after, or after the round before.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from ragbraid.dsl.plan import AnyStep, BlockStep, Body, Gate, Loop, Plan
from ragbraid.dsl.walk import inner_bodies

MAX_EDGES = 50
"""As many edges into one step are drawn; a map may have thousands of ends."""


class StepOrder:
    """What every step of a plan, at any depth, reads of the steps beside it, and which block it stands in."""

    def __init__(self, plan: Plan) -> None:
        self._beside: dict[int, tuple[str, ...]] = {}
        self._block: dict[int, BlockStep] = {}
        self._note(plan.body, None)

    def beside(self, step: AnyStep) -> tuple[str, ...]:
        """Return the names of the steps beside it whose output a step reads."""
        return self._beside.get(id(step), ())

    def block_of(self, step: AnyStep) -> BlockStep | None:
        """Return the block that a step stands in."""
        return self._block.get(id(step))

    def _note(self, body: Body, block: BlockStep | None) -> None:
        by_slot = {step.slot: step.name for step in body.steps}
        for step in body.steps:
            self._beside[id(step)] = tuple(by_slot[slot] for slot in sorted(step.needs) if slot in by_slot)
            if block is not None:
                self._block[id(step)] = block
            if isinstance(step, BlockStep):
                for inner in inner_bodies(step):
                    self._note(inner, step)


class RunEdges:
    """The task runs of one flow run, by the places of their steps."""

    def __init__(self, order: StepOrder) -> None:
        self._order = order
        self._task_runs: dict[str, UUID] = {}
        self._ends: dict[str, dict[UUID, None]] = {}
        """For a block's place, and a round's or item's (`m`, `m[3]`): the task runs that nothing inside comes after."""

    def add(self, step: AnyStep, path: str, task_run: UUID) -> tuple[UUID, ...]:
        """Note the task run of a step that starts, and return those that it comes after."""
        parents = tuple(dict.fromkeys(self._parents(step, path)))[:MAX_EDGES]
        self._task_runs[path] = task_run
        for place in self._places(step, path):
            ends = self._ends.setdefault(place, {})
            for parent in parents:
                ends.pop(parent, None)
            if len(ends) < MAX_EDGES:
                ends[task_run] = None
        return parents

    def _parents(self, step: AnyStep, path: str) -> list[UUID]:
        prefix = path.removesuffix(step.name)
        parents = [end for name in self._order.beside(step) for end in self._ends_of(prefix + name)]
        block = self._order.block_of(step)
        if parents or block is None:
            return parents
        place, label = _split(prefix, block)
        if isinstance(block.block, Loop | Gate) and label.isdigit():
            earlier = self._ends.get(f"{place}[{int(label) - 1}]")
            if earlier:
                return list(earlier)
        return self._parents(block, place)

    def _ends_of(self, path: str) -> list[UUID]:
        if path in self._task_runs:
            return [self._task_runs[path]]
        return list(self._ends.get(path, ()))

    def _places(self, step: AnyStep, path: str) -> Iterator[str]:
        block = self._order.block_of(step)
        while block is not None:
            place, label = _split(path.removesuffix(step.name), block)
            if label:
                yield f"{place}[{label}]"
            yield place
            step, path = block, place
            block = self._order.block_of(block)


def _split(prefix: str, block: BlockStep) -> tuple[str, str]:
    """Return the place of a block and the label of the round, item or case: `a.m[3].` is `a.m` and `3`."""
    inside = prefix.removesuffix(".")
    place, bracket, label = inside.rpartition(f"{block.name}[")
    return (place + block.name, label.removesuffix("]")) if bracket else (inside, "")
