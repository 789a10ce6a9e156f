"""Walking through a plan: what values and steps read, and which steps stand inside others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from ragbraid.dsl.plan import (
    AnyStep,
    Binding,
    Block,
    BlockStep,
    Body,
    Branch,
    Call,
    Computed,
    Converted,
    Gate,
    Group,
    Literally,
    Loop,
    Map,
    Mapped,
    Policy,
    Sequenced,
    SlotRef,
    Step,
    Switch,
    Value,
)


def read_slots(value: Value) -> Iterator[tuple[int, int]]:
    """Yield what a value reads: how many bodies outwards, and the slot there."""
    match value:
        case SlotRef():
            yield value.depth, value.slot
        case Computed(names=names):
            yield from ((reference.depth, reference.slot) for _, reference in names)
        case Sequenced(items=items):
            for item in items:
                yield from read_slots(item)
        case Mapped(items=pairs):
            for _, item in pairs:
                yield from read_slots(item)
        case Converted(value=inner):
            yield from read_slots(inner)
        case Literally():
            return


def slots_of(values: Iterable[Value]) -> frozenset[tuple[int, int]]:
    """Return what several values read, as `read_slots` gives it."""
    return frozenset(read for value in values for read in read_slots(value))


def own_slots(value: Value) -> frozenset[int]:
    """Return the slots of the value's own body that it reads."""
    return frozenset(slot for depth, slot in read_slots(value) if depth == 0)


def policy_reads(policy: Policy) -> Iterator[tuple[int, int]]:
    """Yield what the condition, the post-condition and the replacement of a step read."""
    for condition in (policy.when, policy.ensure):
        if condition is not None:
            yield from read_slots(condition)
    if not isinstance(policy.on_error, str):
        for binding in replacement_bindings(policy.on_error):
            yield from read_slots(binding.value)


def replacement_bindings(step: AnyStep) -> tuple[Binding, ...]:
    """Return what fills the ports of a replacement, which is a node or a flow."""
    if isinstance(step, Step):
        return step.bindings
    return step.block.inputs if isinstance(step.block, Call) else ()


def deepened(value: Value, by: int) -> Value:
    """Return a value as a body inside its own sees it: every reference `by` bodies further outwards."""
    match value:
        case SlotRef():
            return replace(value, depth=value.depth + by)
        case Computed():
            names = tuple((name, replace(reference, depth=reference.depth + by)) for name, reference in value.names)
            return replace(value, names=names)
        case Sequenced(items=items):
            return Sequenced(tuple(deepened(item, by) for item in items))
        case Mapped(items=pairs):
            return Mapped(tuple((key, deepened(item, by)) for key, item in pairs))
        case Converted():
            return Converted(deepened(value.value, by), value.conversion)
        case Literally():
            return value


def inner_bodies(step: AnyStep) -> tuple[Body, ...]:
    """Return the bodies inside a step: none for a node, one or several for a block."""
    if isinstance(step, Step):
        return ()
    match step.block:
        case Loop(body=body) | Call(body=body):
            return (body,)
        case Map(branch=branch) | Group(branch=branch):
            return (branch.body,)
        case Switch(cases=cases, otherwise=otherwise):
            branches = [branch for _, _, branch in cases] + ([otherwise] if otherwise is not None else [])
            return tuple(branch.body for branch in branches)
        case Gate(tries=tries):
            return tuple(branch.body for branch in tries)


def map_steps(body: Body) -> Iterator[BlockStep]:
    """Yield every `map` at any depth, each before those inside it; the order is that of the plan."""
    for step in every_step(body):
        if isinstance(step, BlockStep) and isinstance(step.block, Map):
            yield step


def records_of(body: Body) -> Iterator[type[Any]]:
    """Yield the models of the plan's own making: the outputs of its loops and of the flows it calls, at any depth."""
    for step in every_step(body):
        if isinstance(step, BlockStep) and isinstance(step.block, Loop | Call) and step.block.record is not None:
            yield step.block.record


def branch_reads(branch: Branch) -> frozenset[tuple[int, int]]:
    """Return what a branch reads of the bodies around it: how many bodies outwards of its own, and the slot there."""
    reads = body_reads(branch.body) | slots_of([branch.output])
    return frozenset(read for read in reads if read[0] > 0)


def body_reads(body: Body) -> frozenset[tuple[int, int]]:
    """Return what the steps of a body read, at any depth, as `read_slots` gives it; depth 0 is the body itself."""
    return frozenset(read for step in body.steps for read in _step_reads(step))


def _step_reads(step: AnyStep) -> Iterator[tuple[int, int]]:
    yield from policy_reads(step.policy)
    if isinstance(step, Step):
        yield from slots_of(binding.value for binding in step.bindings)
        return
    yield from slots_of(_values_around(step.block))
    if not isinstance(step.block, Call):  # the body of another flow stands in no scope around it
        inside = _values_inside(step.block)
        for inner in inner_bodies(step):
            inside |= body_reads(inner)
        yield from ((depth - 1, slot) for depth, slot in inside if depth > 0)


def _values_around(block: Block) -> Iterator[Value]:
    """Yield the values of a block that are read in the body around it."""
    match block:
        case Loop():
            yield from (state.start for state in block.carried)
            yield block.max_steps
            if block.items is not None:
                yield block.items
        case Map():
            yield block.items
        case Switch():
            if block.on is None:
                yield from (condition for _, condition, _ in block.cases)
            else:
                yield block.on
        case Gate():
            yield block.enough
        case Call():
            yield from (binding.value for binding in block.inputs)


def _values_inside(block: Block) -> frozenset[tuple[int, int]]:
    """Return what leaves a block's bodies or is looked at in them, beside their steps."""
    match block:
        case Loop():
            following = (state.next for state in block.carried if state.next is not None)
            return slots_of([*following, *(stop.condition for stop in block.stops)])
        case Map(branch=branch) | Group(branch=branch):
            return slots_of([branch.output])
        case Switch():
            branches = [branch for _, _, branch in block.cases] + ([block.otherwise] if block.otherwise else [])
            return slots_of(branch.output for branch in branches)
        case Gate():
            return slots_of(branch.output for branch in block.tries)
        case _:
            return frozenset()


def node_steps(body: Body) -> Iterator[Step]:
    """Yield every step that runs a node, at any depth, replacements included."""
    return (step for step in every_step(body) if isinstance(step, Step))


def every_step(body: Body) -> Iterator[AnyStep]:
    """Yield every step at any depth, replacements included; a block before what is inside it."""
    for step in body.steps:
        yield from _with_inner_steps(step)
        if not isinstance(step.policy.on_error, str):
            yield from _with_inner_steps(step.policy.on_error)


def _with_inner_steps(step: AnyStep) -> Iterator[AnyStep]:
    yield step
    for inner in inner_bodies(step):
        yield from every_step(inner)
