"""The node that solves a deduce step: a conclusion from what earlier steps have found."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveInt

from ragbraid.nodes.plan_waves import unsolved
from ragbraid.nodes.reasoning import (
    Asking,
    Draft,
    Line,
    Note,
    OnInvalid,
    PassageLimit,
    PromptLanguage,
    Temperature,
    ask_or_none,
    gather,
    has_evidence,
    prompt_file,
    tidy,
)
from ragbraid.registry.contracts import Hit, Ranking
from ragbraid.registry.logic import Binding, Bindings, BindingStatus, LogicStep, StepResult
from ragbraid.registry.node import node
from ragbraid.registry.resources import LLM


class Conclusion(Draft):
    """What follows."""

    reason: Note = Field(description="how it follows, or what is missing, in a sentence or two")
    answered: bool = Field(description="whether what is given settles the question")
    answers: list[Line] = Field(max_length=20, description="the conclusion; several only where several were asked for")


@node(
    "plan.deduce",
    example="""
    result: {use: plan.deduce, step: $concrete, bindings: $bindings}
    """,
)
async def deduce(
    step: LogicStep,
    bindings: Bindings,
    evidence: Ranking | None = None,
    *,
    llm: LLM,
    prompt: Annotated[str | None, prompt_file("kind", "inputs", "facts", "passages")] = None,
    max_passages: PassageLimit = 10,
    max_tokens: PositiveInt = 600,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
    on_invalid: OnInvalid = "keep",
) -> StepResult:
    """Concludes from what earlier steps found: a judgement, what follows, an extract, a choice of options.

    The model sees what the step's inputs stand for, with the facts and passages behind them. Where it says that they
    do not settle the question, the step's variable is `empty`, and nothing is guessed.

    Args:
        step: the step, as `plan.rewrite` gives it.
        bindings: what its variables stand for.
        evidence: passages to read; left out, those that the steps found whose variables are the inputs.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_passages: how many passages the model sees.
        max_tokens: bounds what the model writes; reaching it is an error.
        temperature: 0 makes the conclusion as repeatable as the model allows.
        language: language of the prompt; `auto` takes the question's.
        on_invalid: after an answer of the wrong form or one that was cut off, `keep` lets the step's result fail and
            the plan go on, and `fail` fails the step.

    Raises:
        NodeInputError: the template is wrong.
        ServiceError: the model failed, or `evidence` is empty because retrieval failed.
    """
    sources = [each for each in bindings.results if any(binding.alias in step.inputs for binding in each.bindings)]
    if evidence is not None:
        has_evidence(evidence)
        passages = evidence.hits
    else:
        found: dict[str, Hit] = {hit.id: hit for each in sources for hit in each.evidence}
        passages = tuple(found.values())
    facts = list(dict.fromkeys(fact for each in sources for fact in each.facts))
    values = gather(
        step.target or step.question,
        passages=passages[:max_passages],
        lists={"inputs": [_shown(name, bindings) for name in step.inputs], "facts": facts},
        facts={"kind": step.deduce_kind or "entailment"},
    )
    how = Asking(prompt, max_tokens, temperature, language)
    draft = await ask_or_none(llm, "deduce", Conclusion, values, how, on_invalid, "the step has no conclusion")
    if draft is None:
        return unsolved(step, "failed", "the model gave no conclusion of the right form")
    answers = tuple(dict.fromkeys(text for text in map(tidy, draft.answers) if text))
    if not draft.answered or not answers:
        return unsolved(step, "empty", tidy(draft.reason) or "what is known does not settle it")
    return _result(step, answers, bindings)


def _shown(name: str, bindings: Bindings) -> str:
    binding = bindings.find(name)
    return name if binding is None else f"{name} = {binding.text or 'nothing was found'}"


def _result(step: LogicStep, answers: tuple[str, ...], bindings: Bindings) -> StepResult:
    lesser = [each for name in step.inputs if (each := bindings.find(name)) and each.status != "ok"]
    reason = step.reason or (f"concluded from `{lesser[0].alias}`, of which {lesser[0].reason}" if lesser else None)
    status: BindingStatus = "degraded" if reason else "ok"
    text = ", ".join(answers)
    alias = step.out_alias or f"d{step.n}"
    binding = Binding(alias=alias, text=text, values=answers, status=status, reason=reason)
    return StepResult(
        n=step.n, question=step.question, op=step.op, text=text, bindings=(binding,), status=status, reason=reason
    )
