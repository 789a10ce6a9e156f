"""The form in which a model writes a logical form; what is wrong with it goes back to the model as sentences."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Literal

from pydantic import BaseModel, Field, create_model, model_validator

from ragbraid.nodes.plan_check import check_steps
from ragbraid.nodes.reasoning import Draft, Line, bounded, tidy
from ragbraid.registry.logic import DeduceKind, LogicOp, LogicStep, Slot

_MAX_TYPES = 5
_ALIAS = re.compile(r"[^\W\d]\w{0,39}")


class ConstraintDraft(BaseModel):
    """A condition on a subject, predicate or object."""

    name: Line = Field(description="the property")
    value: Line = Field(description="what it has to be, or a variable")


class SlotDraft(BaseModel):
    """A subject, predicate or object."""

    alias: Line | None = Field(default=None, description="the variable, such as s1, p1 or o1")
    types: list[Line] = Field(
        default=[], max_length=_MAX_TYPES, description="types of the thing, or names of the relation"
    )
    mention: Line | None = Field(default=None, description="the name that the question gives, else null")
    constraints: list[ConstraintDraft] = Field(default=[], max_length=_MAX_TYPES)


class StepDraft(BaseModel):
    """One step."""

    question: Line = Field(description="what this step asks, in words")
    op: LogicOp
    s: SlotDraft | None = Field(default=None, description="retrieve: the subject")
    p: SlotDraft | None = Field(default=None, description="retrieve: the predicate")
    o: SlotDraft | None = Field(default=None, description="retrieve: the object")
    inputs: list[Line] = Field(default=[], max_length=20, description="math, deduce, output: variables or texts")
    target: Line | None = Field(default=None, description="math, deduce: what is wanted")
    deduce_kind: DeduceKind | None = Field(default=None, description="deduce: how to conclude")
    out_alias: Line | None = Field(default=None, description="math, deduce: the variable of the result, such as m1")


class PlanDraft(Draft):
    """The steps that lead to the answer; the last one is the output."""

    steps: list[StepDraft] = Field(min_length=1)


def plan_form(max_steps: int, before: Sequence[LogicStep] = (), lost: Collection[str] = ()) -> type[PlanDraft]:
    """Return a form that takes only plans that can run.

    Args:
        max_steps: how many steps the model may write.
        before: steps that have run already, in front of those that the model writes.
        lost: variables of these steps for which nothing was found.
    """

    def can_run(draft: PlanDraft) -> PlanDraft:
        problems = _misnamed(draft)
        if not problems:
            first = len(before) + 1
            problems = check_steps([*before, *steps_of(draft, first)], lost=lost, since=first)
        if problems:
            raise ValueError(" ".join(problems))
        return draft

    validators: dict[str, Callable[..., object]] = {"_can_run": model_validator(mode="after")(can_run)}  # type: ignore[dict-item]
    form = bounded(PlanDraft, "steps", max_steps)
    return create_model(PlanDraft.__name__, __base__=form, __doc__=PlanDraft.__doc__, __validators__=validators)


def steps_of(draft: PlanDraft, first: int = 1) -> list[LogicStep]:
    """Return a draft's steps, numbered from `first`."""
    return [_step(step, n) for n, step in enumerate(draft.steps, start=first)]


def _misnamed(draft: PlanDraft) -> list[str]:
    given = [slot.alias for step in draft.steps for slot in (step.s, step.p, step.o) if slot is not None]
    given += [step.out_alias for step in draft.steps]
    wrong = [name for name in map(_plain, given) if name and not _ALIAS.fullmatch(name)]
    return [f"`{name[:40]}` is no name of a variable: take letters and digits, such as o1." for name in wrong]


def _step(draft: StepDraft, n: int) -> LogicStep:
    """Turn a step of the form into one of ours. What its kind has no use for is left out; models like to fill in all."""
    question = tidy(draft.question)
    if draft.op == "retrieve":
        return LogicStep(
            n=n,
            question=question,
            op="retrieve",
            s=_slot(draft.s, "s", n),
            p=_slot(draft.p, "p", n),
            o=_slot(draft.o, "o", n),
        )
    inputs = tuple(text for text in map(_plain, draft.inputs) if text)
    if draft.op == "output":
        return LogicStep(n=n, question=question, op="output", inputs=inputs)
    return LogicStep(
        n=n,
        question=question,
        op=draft.op,
        inputs=inputs,
        target=tidy(draft.target) or question,
        deduce_kind=draft.deduce_kind if draft.op == "deduce" else None,
        out_alias=_plain(draft.out_alias) or f"{draft.op[0]}{n}",
    )


def _slot(draft: SlotDraft | None, role: Literal["s", "p", "o"], n: int) -> Slot | None:
    if draft is None:
        return None
    return Slot(
        alias=_plain(draft.alias) or f"{role}{n}",
        types=tuple(text for text in map(tidy, draft.types) if text),
        mention=tidy(draft.mention) or None,
        constraints={tidy(each.name): _plain(each.value) for each in draft.constraints if tidy(each.name)},
    )


def _plain(text: str | None) -> str:
    return tidy(text).strip("$#{}")
