"""The nodes by which a flow runs a plan in waves: which steps are ready, what they gave, and what came of it all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import Field

from ragbraid.nodes.plan_check import dependencies, find_cycle, unknowns
from ragbraid.registry.context import report_degraded, report_note
from ragbraid.registry.contracts import Hit, Ranking
from ragbraid.registry.errors import NodeInputError
from ragbraid.registry.logic import (
    Binding,
    Bindings,
    BindingStatus,
    LogicPlan,
    LogicStep,
    Solution,
    StepResult,
    StepSlots,
)
from ragbraid.registry.node import node

ROUTE = "plan.output"


@node(
    "plan.ready",
    example="""
    wave: {use: plan.ready, plan: $plan, bindings: $bindings}
    """,
)
def ready(plan: LogicPlan, bindings: Bindings) -> list[LogicStep]:
    """Names the steps of a plan that can run now: those not yet run that wait for nothing but what has run.

    A step that ran and found nothing holds up no other. The output step is none of these; `plan.output` does its work.
    Steps that are ready together do not depend on each other, so a flow may run them side by side. Of a plan with n
    steps at most n - 1 waves come.

    Args:
        plan: the plan.
        bindings: what its steps have given so far.

    Raises:
        NodeInputError: steps are left that wait for each other, or for a step that does not exist.
    """
    solved = set(bindings.solved)
    waits = dependencies(plan.steps)
    left = [step for step in plan.steps if step.op != "output" and step.n not in solved]
    found = [step for step in left if solved.issuperset(waits[step.n])]
    if left and not found:
        circle = find_cycle({step.n: waits[step.n] - solved for step in left})
        numbers = f"Steps {circle} of the plan wait for each other." if circle else _waiting_in_vain(left[0], waits)
        raise NodeInputError(numbers, kind="input", hint="make plans with plan.logical_form or plan.parse, which check")
    return found


def _waiting_in_vain(step: LogicStep, waits: dict[int, set[int]]) -> str:
    others = ", ".join(map(str, sorted(waits[step.n])))
    return f"Step {step.n} of the plan waits for step {others}, which the plan does not have."


@node(
    "plan.slots",
    example="""
    known: {use: plan.slots, step: $concrete}
    """,
)
def slots(step: LogicStep) -> StepSlots:
    """Says what a retrieve step knows about its subject, predicate and object, for linking them to a graph.

    Args:
        step: the step, with its variables replaced by `plan.rewrite`.
    """
    subject, object_ = (() if slot is None else slot.names for slot in (step.s, step.o))
    return StepSlots(
        subject=subject,
        subject_types=step.s.types if step.s else (),
        predicates=step.p.names or step.p.types if step.p else (),
        object=object_,
        object_types=step.o.types if step.o else (),
        mentions=tuple(dict.fromkeys([*subject, *object_])),
    )


@node(
    "plan.collect",
    example="""
    bound: {use: plan.collect, bindings: $bindings, steps: $wave, found: $results}
    """,
)
def collect(bindings: Bindings, found: Sequence[StepResult | None], steps: Sequence[LogicStep] = ()) -> Bindings:
    """Adds what the steps of a wave gave to what was known before.

    A step of the wave without a result has failed: its variables are bound to nothing, and steps that need them run
    in a lesser way instead of waiting for ever. What a step gave first stays.

    Args:
        bindings: what was known before.
        found: the results of the wave, in any order; none where a step failed.
        steps: the steps of the wave.
    """
    results = {result.n: result for result in bindings.results}
    for result in found:
        if result is not None:
            results.setdefault(result.n, result)
    for step in steps:
        if step.n not in results:
            report_degraded(f"step {step.n} gave no result")
            results[step.n] = unsolved(step, "failed", "the step failed")
    return Bindings(results=tuple(results[n] for n in sorted(results)))


def unsolved(
    step: LogicStep,
    status: BindingStatus,
    reason: str,
    *,
    facts: Sequence[str] = (),
    evidence: Ranking = Ranking(),  # noqa: B008  # frozen
) -> StepResult:
    """Return the result of a step that found nothing: every variable that it should bind has no value."""
    names = [slot.alias for slot in unknowns(step)] + ([step.out_alias] if step.out_alias else [])
    known = [known_binding(slot.alias, slot.names) for slot in step.slots if slot.names]
    lost = [Binding(alias=name, status=status, reason=reason) for name in names]
    return StepResult(
        n=step.n,
        question=step.question,
        op=step.op,
        bindings=(*known, *lost),
        facts=tuple(facts),
        evidence=evidence,
        status=status,
        reason=reason,
    )


def known_binding(alias: str, names: Sequence[str]) -> Binding:
    """Return the binding of a variable whose name was known from the beginning."""
    return Binding(alias=alias, text=", ".join(names), values=tuple(names))


@node(
    "plan.output",
    example="""
    result: {use: plan.output, plan: $plan, bindings: $bound}
    answer: {use: generate.answer, hits: $result.evidence, thoughts: $result.lines}
    """,
)
def output(plan: LogicPlan, bindings: Bindings, *, max_passages: Annotated[int, Field(ge=1, le=1000)] = 50) -> Solution:
    """Puts together what a plan came to: the values of its output, every step as a line, and all passages.

    Also of a plan that was not solved to its end. A variable that stands for a name of the question gives what its step
    found out. Passages come one of each step in turn, the best first, each once.

    Args:
        plan: the plan.
        bindings: what its steps have given.
        max_passages: how many passages are kept; how many were left out is noted.
    """
    names = next((step.inputs for step in reversed(plan.steps) if step.op == "output"), ())
    found = {name: _values_of(name, plan, bindings) for name in names}
    values = tuple(value for each in found.values() for value in each)
    notes = [f"step {result.n}: {result.reason}" for result in bindings.results if result.reason]
    notes += [
        f"step {step.n} has not run" for step in plan.steps if step.op != "output" and not bindings.result(step.n)
    ]
    notes += [f"`{name}` has no value" for name, each in found.items() if not each]
    status: BindingStatus = "ok"
    if notes or not values:
        status = "degraded" if values else "empty"
        report_degraded("; ".join(notes) or "the plan has no output")
    return Solution(
        text=", ".join(values),
        values=values,
        lines=_lines(bindings),
        evidence=_evidence(bindings.results, max_passages),
        status=status,
        reason="; ".join(notes) or None,
    )


def _values_of(name: str, plan: LogicPlan, bindings: Bindings) -> tuple[str, ...]:
    binding = bindings.find(name)
    if binding is None:
        return ()
    if any(slot.alias == name and slot.mention for step in plan.steps for slot in step.slots):
        result = next(each for each in bindings.results if binding in each.bindings)
        return (result.text,) if result.text else ()
    return binding.values


def _lines(bindings: Bindings) -> tuple[str, ...]:
    lines: list[str] = []
    for result in bindings.results:
        lines.append(f"{result.question} -> {result.text or 'nothing was found'}")
        lines += result.facts
    return tuple(dict.fromkeys(lines))


def _evidence(results: Iterable[StepResult], limit: int) -> Ranking:
    """Take the passages of the steps in turn; a passage that two steps found stands where the first has it."""
    rankings = [result.evidence for result in results if result.evidence.hits or result.evidence.error]
    longest = max((len(each) for each in rankings), default=0)
    in_turn = [each.hits[place] for place in range(longest) for each in rankings if place < len(each)]
    hits: dict[str, Hit] = {}
    for hit in in_turn:
        hits.setdefault(hit.id, hit)
    if len(hits) > limit:
        report_note(f"{len(hits) - limit} passages of the steps behind the first {limit} were left out")
    kept = list(hits.values())[:limit]
    ranked = [hit.model_copy(update={"score": 1 / n, "rank": n}) for n, hit in enumerate(kept, start=1)]
    found = Ranking.from_hits(ranked, route=ROUTE, score_kind="rank")
    errors = [each.error for each in rankings if each.error]
    degraded = any(each.degraded for each in rankings)
    return found.model_copy(update={"degraded": degraded, "error": "; ".join(dict.fromkeys(errors)) or None})
