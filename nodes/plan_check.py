"""Logical forms as graphs of variables: which step makes which variable, what waits for what, and what is wrong.

Pure functions; everything is known before a step runs. A variable belongs to the step that introduces it:

- one that makes it as `out_alias`, or names it with a mention;
- else the first retrieve step in which it stands, unless it stands there as a bare subject and a later step looks for
  it as its object: then the first one was too early.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter

from ragbraid.registry.logic import LogicPlan, LogicStep, Slot

MAX_STEPS = 50
_LOOKS_LIKE_VARIABLE = re.compile(r"[A-Za-z]{1,2}\d{1,3}")


def make_plan(steps: Sequence[LogicStep], *, raw: str = "", notes: Sequence[str] = ()) -> LogicPlan:
    """Return checked steps as a plan, each with the numbers of the steps that it waits for."""
    waits = dependencies(steps)
    linked = (step.model_copy(update={"depends_on": tuple(sorted(waits[step.n]))}) for step in steps)
    return LogicPlan(steps=tuple(linked), raw=raw, notes=tuple(notes))


def dependencies(steps: Sequence[LogicStep]) -> dict[int, set[int]]:
    """Return for every step the numbers of the steps whose variables it uses, and of those it says it waits for."""
    made_by = introduced(steps)
    waits = {step.n: set(step.depends_on) for step in steps}
    for step in steps:
        waits[step.n] |= {made_by[alias] for alias in uses(step) if made_by.get(alias, step.n) != step.n}
    return waits


def introduced(steps: Iterable[LogicStep]) -> dict[str, int]:
    """Return every variable with the number of the step that introduces it."""
    found: dict[str, int] = {}
    bare_subjects: set[str] = set()
    for step in steps:
        for name, slot in _named_slots(step):
            too_early = slot.alias in bare_subjects and name == "o"
            if slot.alias not in found or too_early or (slot.mention and slot.alias in bare_subjects):
                found[slot.alias] = step.n
                if name == "s" and _is_bare(slot):
                    bare_subjects.add(slot.alias)
                else:
                    bare_subjects.discard(slot.alias)
        if step.out_alias and (step.out_alias not in found or step.out_alias in bare_subjects):
            found[step.out_alias] = step.n
            bare_subjects.discard(step.out_alias)
    return found


def uses(step: LogicStep) -> list[str]:
    """Return the names that stand in a step and may be variables of others: slots, inputs, values of constraints."""
    names = [slot.alias for slot in step.slots if slot.mention is None]
    names += [value for slot in step.slots for value in slot.constraints.values()]
    return list(dict.fromkeys([*names, *step.inputs]))


def unknowns(step: LogicStep) -> tuple[Slot, ...]:
    """Return the subject and object that a retrieve step looks for: those of which no name is known yet."""
    return tuple(slot for slot in (step.s, step.o) if slot is not None and not slot.names)


def check_steps(steps: Sequence[LogicStep], *, lost: Collection[str] = (), since: int = 1) -> list[str]:
    """Return what is wrong with a plan, one sentence each; empty when it can run.

    Args:
        steps: the steps in order.
        lost: variables that earlier steps looked for in vain.
        since: the first step that may not build on them.
    """
    if not steps:
        return ["The plan has no step."]
    if [step.n for step in steps] != list(range(1, len(steps) + 1)):
        numbers = ", ".join(str(step.n) for step in steps)
        return [f"The steps have to be numbered 1 to {len(steps)} in order, but they are numbered {numbers}."]
    found = [sentence for step in steps for sentence in _shape(step)]
    found += _check_output(steps)
    found += _check_variables(steps, lost, since)
    return found + _check_cycles(steps)


def _shape(step: LogicStep) -> Iterator[str]:
    """Say what a step of its kind lacks."""
    if not step.question.strip():
        yield f"Step {step.n} has no question."
    if step.op == "retrieve":
        yield from _retrieve_shape(step)
        return
    if step.slots:
        yield f"Step {step.n} is a {step.op} step, so it takes inputs and no subject, predicate or object."
    if step.op == "output":
        if not step.inputs:
            yield f"Step {step.n} outputs nothing: name the variables of the answer as its inputs."
        if step.out_alias:
            yield f"Step {step.n} is the output, so it makes no variable."
        return
    if not step.out_alias:
        yield f"Step {step.n} names no variable for its result."
    if not (step.target or "").strip():
        yield f"Step {step.n} does not say what is wanted; write it as its target."
    if step.op == "deduce" and step.deduce_kind is None:
        yield f"Step {step.n} does not say what kind of deduction it is."


def _retrieve_shape(step: LogicStep) -> Iterator[str]:
    if step.out_alias and not step.slots:  # retrieval for the question's own words
        return
    missing = [word for word, slot in (("subject", step.s), ("predicate", step.p), ("object", step.o)) if slot is None]
    alone = step.s is not None and step.s.mention and len(missing) == 2  # "who is X?" asks about X alone
    if missing and not alone:
        yield f"Step {step.n} has no {' and no '.join(missing)}; a retrieve step has all three."
    names = [slot.alias for slot in step.slots]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"Step {step.n} has `{name}` in two places; subject, predicate and object are three variables."
    if step.inputs:
        yield f"Step {step.n} is a retrieve step, so it takes no inputs."


def _check_output(steps: Sequence[LogicStep]) -> list[str]:
    outputs = [step.n for step in steps if step.op == "output"]
    if not outputs:
        return ["The plan has no output step; the last step has to output the answer's variables."]
    if len(outputs) > 1:
        return [f"Steps {', '.join(map(str, outputs))} are all output steps; only the last step may be one."]
    if outputs[0] != steps[-1].n:
        return [f"Step {outputs[0]} is the output step, but it is not the last one."]
    return []


def _check_variables(steps: Sequence[LogicStep], lost: Collection[str], since: int) -> list[str]:
    made_by = introduced(steps)
    found: list[str] = []
    for step in steps:
        found += _defined_twice(step, made_by, steps)
        slots = {slot.alias for slot in step.slots}
        for name in uses(step):
            maker = made_by.get(name)
            if name in lost and step.n >= since and maker is not None and maker < since:
                found.append(f"Step {step.n} uses `{name}`, for which nothing was found; ask for it under a new name.")
            elif maker is None and (step.op == "output" or _LOOKS_LIKE_VARIABLE.fullmatch(name)):
                found.append(f"Step {step.n} uses `{name}`, which no step introduces.")
            elif maker is not None and maker > step.n:
                found.append(f"Step {step.n} uses `{name}`, which only step {maker} introduces.")
            elif maker == step.n and name not in slots:
                found.append(f"Step {step.n} uses its own result `{name}`.")
    return found


def _defined_twice(step: LogicStep, made_by: dict[str, int], steps: Sequence[LogicStep]) -> Iterator[str]:
    if step.out_alias and (made_by[step.out_alias] != step.n or step.out_alias in {s.alias for s in step.slots}):
        yield f"Step {step.n} makes `{step.out_alias}`, which step {made_by[step.out_alias]} introduced already."
    for name, slot in _named_slots(step):
        first = next(s for s in steps if s.n == made_by[slot.alias])
        if first.n >= step.n:
            continue
        earlier = next((other for other in first.slots if other.alias == slot.alias), None)
        renamed = slot.mention is not None and (earlier is None or slot.mention != earlier.mention)
        retyped = name == "p" and bool(slot.types) and (earlier is None or slot.types != earlier.types)
        if renamed or retyped:
            yield f"Step {step.n} introduces `{slot.alias}`, which step {first.n} introduced as something else already."


def _check_cycles(steps: Sequence[LogicStep]) -> list[str]:
    waits = dependencies(steps)
    found = [
        f"Step {n} waits for step {other}, which does not exist."
        for n, others in waits.items()
        for other in sorted(others - waits.keys())
    ]
    circle = find_cycle(waits)
    return [*found, f"Steps {circle} wait for each other in a circle."] if circle else found


def find_cycle(waits: dict[int, set[int]]) -> str:
    """Return the numbers of steps that wait for each other, as in "2, 3 and 4"; empty when none do."""
    try:
        TopologicalSorter(waits).prepare()
    except CycleError as error:
        numbers = sorted(set(error.args[1]))
        return f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}" if len(numbers) > 1 else f"{numbers[0]}"
    return ""


def _named_slots(step: LogicStep) -> list[tuple[str, Slot]]:
    return [(name, slot) for name, slot in (("s", step.s), ("p", step.p), ("o", step.o)) if slot is not None]


def _is_bare(slot: Slot) -> bool:
    return not slot.types and slot.mention is None
