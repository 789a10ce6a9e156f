"""The node that solves a maths step: an expression, written by rule or by a model, evaluated by ourselves."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated

from pydantic import Field, PositiveInt, create_model, model_validator

from ragbraid.nodes.math_eval import MAX_TEXT, Variables, evaluate
from ragbraid.nodes.math_functions import FUNCTIONS, Item
from ragbraid.nodes.math_values import MathError, read_value, show_value
from ragbraid.nodes.plan_waves import unsolved
from ragbraid.nodes.reasoning import (
    Asking,
    Draft,
    Note,
    OnInvalid,
    PromptLanguage,
    Temperature,
    ask_or_none,
    gather,
    prompt_file,
    tidy,
)
from ragbraid.registry.context import report_degraded, report_note
from ragbraid.registry.logic import Binding, Bindings, BindingStatus, LogicStep, StepResult
from ragbraid.registry.node import node
from ragbraid.registry.resources import LLM

_GREATEST = r"max|maximum|largest|greatest|highest|biggest|latest|newest|most recent|最大值?|最高|最晚|最新"
_SMALLEST = r"min|minimum|smallest|lowest|earliest|最小值?|最低|最早"
_OF = r"(?:\s+(?:of|among|between)\s+(?:the\s+)?(?:them|values|dates|numbers|two|all)?)?"
_VALUE = r"(?:\s+(?:value|date|year|number|amount))?"


class ExpressionDraft(Draft):
    """The expression that computes what is wanted."""

    expression: str = Field(
        description="the expression, empty when it cannot be computed", json_schema_extra={"maxLength": MAX_TEXT}
    )
    problem: Note = Field(default="", description="why it cannot be computed, else empty")


@node(
    "plan.math",
    example="""
    result: {use: plan.math, step: $concrete, bindings: $bindings}
    """,
)
async def math(
    step: LogicStep,
    bindings: Bindings,
    *,
    llm: LLM | None = None,
    prompt: Annotated[str | None, prompt_file("wanted", "variables", "functions")] = None,
    max_tokens: PositiveInt = 400,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
    on_invalid: OnInvalid = "keep",
) -> StepResult:
    """Computes the result of a maths step: numbers, dates, lengths of time, amounts with a unit.

    What is wanted in plain words (the sum, the latest, how many, the person with the earliest date) needs no model. For
    anything else the model writes an expression over the step's variables; it never sees a result and nothing of it is
    executed: the expression is evaluated by rules of our own, bounded in length, depth and size of numbers. What is
    wrong with it goes back to the model. A step that cannot be computed fails with the reason and ends nothing else.

    Args:
        step: the step, as `plan.rewrite` gives it.
        bindings: what its variables stand for.
        llm: the model that writes the expression where plain words do not do; without one such a step fails.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_tokens: bounds what the model writes; reaching it is an error.
        temperature: 0 makes the expression as repeatable as the model allows.
        language: language of the prompt; `auto` takes the question's.
        on_invalid: after an expression that cannot be evaluated, `keep` lets the step's result fail and the plan go
            on, and `fail` fails the step.

    Raises:
        NodeInputError: the template is wrong.
        ServiceError: the model failed.
    """
    try:
        variables = _variables(step, bindings)
        expression = _plain_expression(step, variables)
        if expression is not None:
            return _result(step, evaluate(expression, variables), expression, bindings)
    except MathError as error:
        return _failed(step, f"it cannot be computed: {error}")
    if llm is None:
        return _failed(step, "there is no language model to write the expression for it")
    shown = [f"{name}: {_shown(items)}" for name, items in variables.items()]
    asked = gather(
        step.question,
        lists={"wanted": [step.target or step.question], "variables": shown},
        facts={"functions": ", ".join(FUNCTIONS)},
    )
    how = Asking(prompt, max_tokens, temperature, language)
    form = _expression_form(variables)
    draft = await ask_or_none(llm, "math_request", form, asked, how, on_invalid, "the step was not computed")
    if draft is None:
        return _failed(step, "the model wrote no expression that can be evaluated")
    if not draft.expression.strip():
        return _failed(step, tidy(draft.problem) or "the model says that it cannot be computed")
    return _result(step, evaluate(draft.expression, variables), draft.expression, bindings)


def _variables(step: LogicStep, bindings: Bindings) -> dict[str, Sequence[Item]]:
    """Read what the inputs stand for; a value that is given as such gets the name x1, x2, ...

    Texts that are neither variable nor value are left to the step's words. What one variable names and another values
    belong to stays readable: names are no numbers, and are only counted or compared by what belongs to them.
    """
    found: dict[str, Sequence[Item]] = {}
    for text in step.inputs:
        binding = bindings.find(text)
        if binding is None:
            try:
                found[f"x{len(found) + 1}"] = [Item(read_value(text))]
            except MathError:
                report_note(f"`{text[:60]}` is no variable and no value; it takes no part in the expression")
            continue
        found[text] = _read(binding)
    return found


def _read(binding: Binding) -> list[Item]:
    of = binding.of or ("",) * len(binding.values)
    try:
        return [Item(read_value(value), owner) for value, owner in zip(binding.values, of, strict=True)]
    except MathError:
        return [Item(value, owner) for value, owner in zip(binding.values, of, strict=True)]


def _plain_expression(step: LogicStep, variables: Variables) -> str | None:
    """Return the expression for what is wanted where its words are plain, else None."""
    words = re.sub(r"[`'\"?？.。]", "", step.target or "").strip().casefold().removeprefix("the ")
    for name in variables:
        words = re.sub(
            rf"\s*(?:,|and|和|与)?\s*(?<![a-z0-9_]){re.escape(name.casefold())}(?![a-z0-9_])", "", words
        ).strip()
    words = re.sub(r"\s+(?:of|between|among)$", "", words)
    make = next((make for pattern, make in _PLAIN if pattern.fullmatch(words)), None)
    if make is None:
        return None
    computable = [name for name, items in variables.items() if _is_computable(items)]
    if make is _count:
        return make(list(variables))
    if make in _OWNERS:  # the things themselves may stand beside their dates or numbers
        return make(computable) if computable else None
    return make(computable) if computable and len(computable) == len(variables) else None


def _is_computable(items: Sequence[Item]) -> bool:
    return bool(items) and not any(isinstance(item.value, str) for item in items)


def _count(names: Sequence[str]) -> str | None:
    return f"len({names[0]})" if len(names) == 1 else None


def _calling(function: str) -> Callable[[Sequence[str]], str | None]:
    return lambda names: f"{function}({', '.join(names)})"


def _difference(names: Sequence[str]) -> str | None:
    return f"abs({names[0]} - {names[1]})" if len(names) == 2 else None


def _average(names: Sequence[str]) -> str | None:
    return f"sum({names[0]}) / len({names[0]})" if len(names) == 1 else None


_ARGMIN, _ARGMAX = _calling("argmin"), _calling("argmax")
_OWNERS = (_ARGMIN, _ARGMAX)
_PLAIN: tuple[tuple[re.Pattern[str], Callable[[Sequence[str]], str | None]], ...] = (
    (re.compile(rf"(?:{_GREATEST}){_VALUE}{_OF}"), _calling("max")),
    (re.compile(rf"(?:{_SMALLEST}){_VALUE}{_OF}"), _calling("min")),
    (re.compile(rf"(?:sum|total|总和|合计|之和){_OF}"), _calling("sum")),
    (re.compile(rf"(?:count|number|how many|数量|个数|多少个?){_OF}"), _count),
    (re.compile(rf"(?:average|mean|平均值?){_VALUE}{_OF}"), _average),
    (re.compile(rf"(?:difference|差|差值|之差){_OF}"), _difference),
    (re.compile(rf"(?:compare|comparison|比较|排序){_OF}"), _calling("sorted")),
    (re.compile(rf"(?:\w+\s){{1,3}}with the (?:{_GREATEST})(?:\s\w+){{0,2}}"), _ARGMAX),
    (re.compile(rf"(?:\w+\s){{1,3}}with the (?:{_SMALLEST})(?:\s\w+){{0,2}}"), _ARGMIN),
    (re.compile(r"\w{1,6}最(?:晚|大|高|新|多)的\w{1,6}"), _ARGMAX),
    (re.compile(r"\w{1,6}最(?:早|小|低|少)的\w{1,6}"), _ARGMIN),
)


def _expression_form(variables: Variables) -> type[ExpressionDraft]:
    """Return a form that takes only expressions that can be evaluated; the reason goes back to the model."""

    def computes(draft: ExpressionDraft) -> ExpressionDraft:
        if draft.expression.strip():
            evaluate(draft.expression, variables)
        return draft

    validators: dict[str, Callable[..., object]] = {"_computes": model_validator(mode="after")(computes)}  # type: ignore[dict-item]
    return create_model(
        ExpressionDraft.__name__, __base__=ExpressionDraft, __doc__=ExpressionDraft.__doc__, __validators__=validators
    )


def _result(step: LogicStep, items: Sequence[Item], expression: str, bindings: Bindings) -> StepResult:
    report_note(f"computed {expression}")
    lesser = [each for name in step.inputs if (each := bindings.find(name)) and each.status != "ok"]
    reason = f"computed from `{lesser[0].alias}`, of which {lesser[0].reason}" if lesser else None
    status: BindingStatus = "degraded" if reason else "ok"
    binding = Binding(
        alias=step.out_alias or f"m{step.n}",
        text=_shown(items),
        values=tuple(map(_text, items)),
        of=tuple(item.of for item in items),
        status=status,
        reason=reason,
    )
    return StepResult(
        n=step.n,
        question=step.question,
        op=step.op,
        text=binding.text,
        bindings=(binding,),
        status=status,
        reason=reason,
    )


def _failed(step: LogicStep, reason: str) -> StepResult:
    report_degraded(reason)
    return unsolved(step, "failed", reason)


def _shown(items: Sequence[Item]) -> str:
    return ", ".join(f"{_text(item)} ({item.of})" if item.of else _text(item) for item in items)


def _text(item: Item) -> str:
    return item.value if isinstance(item.value, str) else show_value(item.value)
