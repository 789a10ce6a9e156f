"""The node that makes a step concrete: what its variables stand for takes their place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from ragbraid.nodes.plan_check import uses
from ragbraid.nodes.prompts import one_line
from ragbraid.nodes.reasoning import (
    Asking,
    Draft,
    Line,
    OnInvalid,
    PromptLanguage,
    Temperature,
    ask_or_none,
    gather,
    prompt_file,
    tidy,
)
from ragbraid.registry.context import report_degraded, report_note
from ragbraid.registry.errors import NodeInputError
from ragbraid.registry.logic import Binding, Bindings, LogicStep, Slot
from ragbraid.registry.node import node
from ragbraid.registry.resources import LLM

_LONGEST_NAME = 200
_MOST_VALUES = 20


class StepRewriting(Draft):
    """The step's question, concrete."""

    question: Line = Field(description="the question with everything known put into it")

    @model_validator(mode="after")
    def _says_something(self) -> StepRewriting:
        if not tidy(self.question):
            raise ValueError("`question` is empty")
        return self


@node(
    "plan.rewrite",
    example="""
    concrete: {use: plan.rewrite, step: $step, bindings: $bindings}
    """,
)
async def rewrite(
    step: LogicStep,
    bindings: Bindings,
    question: str,
    *,
    llm: LLM | None = None,
    by: Literal["template", "model"] = "template",
    max_values: Annotated[int, Field(ge=1, le=100)] = _MOST_VALUES,
    prompt: Annotated[str | None, prompt_file("whole", "known")] = None,
    max_tokens: PositiveInt = 300,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
    on_invalid: OnInvalid = "keep",
) -> LogicStep:
    """Puts what the variables of a step stand for in their place; a step that uses none stays as it is.

    A step that needs a variable without a value is not skipped: it becomes a plain retrieval for its own question
    beside the whole one, runs once, and its result is marked degraded.

    Args:
        step: the step.
        bindings: what the steps before it have given.
        question: the question that the plan answers.
        llm: the model that rewrites the step's question, for `by: model`.
        by: `template` puts the values into the question, or behind it where no variable stands in it; `model` has it
            rewritten by the language model.
        max_values: how many values of one variable take part; how many were left out is noted.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_tokens: bounds what the model writes; reaching it is an error.
        temperature: 0 makes the question as repeatable as the model allows.
        language: language of the prompt; `auto` takes the question's.
        on_invalid: after an answer of the wrong form or one that was cut off, `keep` goes on with the template's
            question, marked degraded, and `fail` fails the step.

    Raises:
        NodeInputError: `by` is `model` and there is none, or the template is wrong.
        ServiceError: the model failed.
    """
    found = {alias: binding for alias in uses(step) if (binding := bindings.find(alias)) is not None}
    lost = [alias for alias, binding in found.items() if not binding.values]
    if lost:
        return _lesser(step, found, lost, question)
    if not found:
        return step
    values = {alias: _names(binding, max_values) for alias, binding in found.items()}
    concrete = _filled(step, values)
    if by == "template" or step.op == "output":
        return concrete
    if llm is None:
        raise NodeInputError(
            "plan.rewrite: `by` is `model`, but there is no language model.",
            kind="input",
            hint="name one under `resources`, or write `by: template`",
        )
    known = [f"{alias} = {', '.join(names)}" for alias, names in values.items()]
    asked = gather(step.question, lists={"whole": [question], "known": known})
    how = Asking(prompt, max_tokens, temperature, language)
    draft = await ask_or_none(
        llm, "rewrite_step", StepRewriting, asked, how, on_invalid, "the template's question was kept"
    )
    return concrete if draft is None else concrete.model_copy(update={"question": tidy(draft.question)})


def _names(binding: Binding, limit: int) -> tuple[str, ...]:
    if len(binding.values) > limit:
        left = len(binding.values) - limit
        report_note(f"`{binding.alias}` stands for {len(binding.values)} values; {left} of them were left out")
    return tuple(one_line(value)[:_LONGEST_NAME] for value in binding.values[:limit])


def _lesser(step: LogicStep, found: Mapping[str, Binding], lost: list[str], question: str) -> LogicStep:
    """Return the step as a retrieval that does without the variables for which nothing was found."""
    reason = f"nothing is known for {', '.join(f'`{alias}`' for alias in lost)}, so its own question was looked up"
    report_degraded(reason)
    values = {alias: _names(binding, _MOST_VALUES) for alias, binding in found.items() if binding.values}
    concrete = _filled(step, values)
    slots = {name: _without(slot, lost) for name, slot in (("s", concrete.s), ("p", concrete.p), ("o", concrete.o))}
    asked = concrete.question
    if question.strip() and question.strip() not in asked:
        asked = f"{asked} ({question.strip()})"
    changes = {**slots, "question": asked, "reason": reason, "op": "retrieve", "inputs": (), "deduce_kind": None}
    return concrete.model_copy(update=changes)


def _without(slot: Slot | None, lost: list[str]) -> Slot | None:
    """Return a slot unless its variable is lost, without the conditions that nobody can check any more."""
    if slot is None or (slot.alias in lost and not slot.names):
        return None
    kept = {name: value for name, value in slot.constraints.items() if value not in lost}
    return slot.model_copy(update={"constraints": kept})


def _filled(step: LogicStep, values: Mapping[str, tuple[str, ...]]) -> LogicStep:
    slots = {name: _slot(slot, values) for name, slot in (("s", step.s), ("p", step.p), ("o", step.o))}
    return step.model_copy(update={"question": _text(step.question, values), **slots})


def _slot(slot: Slot | None, values: Mapping[str, tuple[str, ...]]) -> Slot | None:
    if slot is None:
        return None
    limits = {name: ", ".join(values.get(value, (value,))) for name, value in slot.constraints.items()}
    return slot.model_copy(update={"constraints": limits, "values": values.get(slot.alias, slot.values)})


def _text(question: str, values: Mapping[str, tuple[str, ...]]) -> str:
    """Put values where their variables stand in a question; those that do not stand there come behind it."""
    behind = []
    for alias, names in values.items():
        text = ", ".join(names)
        variable = re.compile(rf"(?<![A-Za-z0-9_])[#$`]?{re.escape(alias)}`?(?![A-Za-z0-9_])")
        if variable.search(question):
            question = text.join(variable.split(question))
        elif text not in question:
            behind.append(text)
    return f"{question} ({'; '.join(behind)})" if behind else question
