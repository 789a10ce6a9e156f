"""The nodes that write logical forms: of a question, and anew after an answer that would not do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Annotated

from pydantic import Field, PositiveInt

from ragbraid.nodes.plan_check import MAX_STEPS, introduced, make_plan
from ragbraid.nodes.plan_draft import plan_form, steps_of
from ragbraid.nodes.reasoning import (
    Asking,
    OnInvalid,
    PromptLanguage,
    Temperature,
    ask_or_none,
    gather,
    prompt_file,
)
from ragbraid.registry.errors import NodeInputError
from ragbraid.registry.graph_parts import OTHER
from ragbraid.registry.graph_view import GraphView
from ragbraid.registry.knowledge import KnowledgeBase, Where
from ragbraid.registry.logic import Bindings, GraphSchema, LogicPlan, LogicStep
from ragbraid.registry.node import node
from ragbraid.registry.reasoning import Judgement
from ragbraid.registry.resources import LLM

StepLimit = Annotated[int, Field(ge=1, le=20)]

_NO_SCHEMA = GraphSchema()


@node(
    "plan.schema",
    blocking=True,
    example="""
    schema: {use: plan.schema, top_k: 40}
    plan: plan.logical_form
    """,
)
def schema(
    *, kb: KnowledgeBase, top_k: Annotated[int, Field(ge=1, le=500)] = 40, where: Where | None = None
) -> GraphSchema:
    """Names the types of entities and the predicates that a knowledge graph knows best, so that a plan can use them.

    Args:
        kb: the knowledge base.
        top_k: how many types and how many predicates at most, the most frequent first.
        where: only what chunks that fulfil these conditions contribute.

    Raises:
        SettingsError: the knowledge base holds no knowledge graph, or lacks a field of `where`.
        ServiceError: the store failed.
    """
    known = kb.graph(where).remember("plan.schema", _count_names)
    return GraphSchema(types=known.types[:top_k], predicates=known.predicates[:top_k])


def _count_names(view: GraphView) -> GraphSchema:
    types = Counter(entity.type for entity in view.entities.values() if entity.type != OTHER)
    predicates = Counter(fact.predicate for fact in view.facts.values() if fact.predicate)
    return GraphSchema(types=_by_frequency(types), predicates=_by_frequency(predicates))


def _by_frequency(counted: Counter[str]) -> tuple[str, ...]:
    return tuple(sorted(counted, key=lambda name: (-counted[name], name)))


@node(
    "plan.logical_form",
    example="""
    plan: {use: plan.logical_form, max_steps: 8}
    """,
)
async def logical_form(
    question: str,
    schema: GraphSchema = _NO_SCHEMA,
    *,
    llm: LLM,
    max_steps: StepLimit = 8,
    prompt: Annotated[str | None, prompt_file("max_steps", "types", "predicates", "known", "missing")] = None,
    max_tokens: PositiveInt = 2000,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
    on_invalid: OnInvalid = "keep",
) -> LogicPlan:
    """Writes a question as a logical form: steps that retrieve, compute, deduce and output, and share variables.

    After KAG (Liang et al. 2024, arXiv:2409.13731), as an object instead of lines of text. A plan is checked before
    anything runs: an unknown variable, one that is used before it is made, a circle, a part that is missing or an
    output that is not the last step goes back to the model as a sentence.

    Args:
        question: the question.
        schema: types and predicates that the knowledge graph knows; the model is asked to prefer them.
        max_steps: how many steps the plan has at most, the output included; more go back to the model as a mistake.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_tokens: bounds what the model writes; reaching it is an error.
        temperature: 0 makes the plan as repeatable as the model allows.
        language: language of the prompt; `auto` takes the question's.
        on_invalid: after a plan of the wrong form or one that was cut off, `keep` retrieves for the question itself, in
            one step and marked degraded, and `fail` fails the step.

    Raises:
        NodeInputError: the question is empty or the template is wrong.
        ServiceError: the model failed.
    """
    how = Asking(prompt, max_tokens, temperature, language)
    plan = await _write(llm, question, schema, how, on_invalid, max_steps, (), Bindings(), ())
    if plan is not None:
        return plan
    note = "the model wrote no plan that can run; one step retrieves for the question itself"
    return make_plan(_plain_steps(question, 1), notes=[note])


@node(
    "plan.replan",
    example="""
    again: {use: plan.replan, plan: $plan, bindings: $bound, judgement: $verdict}
    """,
)
async def replan(
    question: str,
    plan: LogicPlan,
    bindings: Bindings,
    judgement: Judgement,
    schema: GraphSchema = _NO_SCHEMA,
    *,
    llm: LLM,
    max_steps: StepLimit = 8,
    prompt: Annotated[str | None, prompt_file("max_steps", "types", "predicates", "known", "missing")] = None,
    max_tokens: PositiveInt = 2000,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
    on_invalid: OnInvalid = "keep",
) -> LogicPlan:
    """Continues a plan whose answer would not do; everything that was found stays and need not be looked for again.

    The new plan has the old steps in front, with their results as they are, and then those that the model adds. It may
    build on every variable that has a value. KAG starts over with nothing, and starts over wherever the answer holds
    the word "unknown"; here the judgement alone counts, and a plan whose answer is acceptable is returned as it is.

    Args:
        question: the question.
        plan: the plan so far.
        bindings: what its steps have given.
        judgement: what the answer lacks, as `judge.answer` says it.
        schema: types and predicates that the knowledge graph knows; the model is asked to prefer them.
        max_steps: how many steps the model adds at most, the output included.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_tokens: bounds what the model writes; reaching it is an error.
        temperature: 0 makes the plan as repeatable as the model allows.
        language: language of the prompt; `auto` takes the question's.
        on_invalid: after a plan of the wrong form or one that was cut off, `keep` retrieves for what is missing, in one
            step and marked degraded, and `fail` fails the step.

    Raises:
        NodeInputError: the question is empty, the template is wrong, or the plan has grown beyond 50 steps.
        ServiceError: the model failed.
    """
    if judgement.acceptable:
        return plan
    kept = [step for step in plan.steps if step.op != "output"]
    if len(kept) + max_steps > MAX_STEPS:
        raise NodeInputError(
            f"The plan has {len(kept)} steps already; with {max_steps} more it would have over {MAX_STEPS}.",
            kind="input",
            hint="plan anew less often, or lower `max_steps`",
        )
    how = Asking(prompt, max_tokens, temperature, language)
    renumbered = _renumbered(kept, plan)
    found = await _write(llm, question, schema, how, on_invalid, max_steps, renumbered, bindings, judgement.missing)
    if found is not None:
        return found
    wanted = "; ".join(judgement.missing) or question
    note = "the model wrote no plan that can run; one more step retrieves for what is missing"
    return make_plan([*renumbered, *_plain_steps(wanted, len(renumbered) + 1)], raw=plan.raw, notes=[note])


def _renumbered(kept: Sequence[LogicStep], plan: LogicPlan) -> list[LogicStep]:
    """Return the steps without the output, which has to be the last one for the numbers to stay what results bear."""
    if [step.n for step in kept] != list(range(1, len(kept) + 1)):
        numbers = ", ".join(str(step.n) for step in plan.steps)
        raise NodeInputError(f"The plan's steps are numbered {numbers}; its output has to be the last.", kind="input")
    return list(kept)


async def _write(
    llm: LLM,
    question: str,
    schema: GraphSchema,
    how: Asking,
    on_invalid: OnInvalid,
    max_steps: int,
    before: Sequence[LogicStep],
    bindings: Bindings,
    missing: Sequence[str],
) -> LogicPlan | None:
    lost = _lost(before, bindings)
    known = [f"{each.alias} = {each.text}" for result in bindings.results for each in result.bindings if each.values]
    values = gather(
        question,
        lists={"types": schema.types, "predicates": schema.predicates, "known": known, "missing": missing},
        facts={"max_steps": max_steps},
    )
    form = plan_form(max_steps, before, lost)
    kept = "no plan could be used"
    draft = await ask_or_none(llm, "logical_form", form, values, how, on_invalid, kept)
    if draft is None:
        return None
    return make_plan([*before, *steps_of(draft, len(before) + 1)], raw=draft.model_dump_json(exclude_none=True))


def _lost(before: Sequence[LogicStep], bindings: Bindings) -> Collection[str]:
    """Return the variables of earlier steps that ran and found no value."""
    found = {alias: bindings.find(alias) for alias in introduced(before)}
    return [alias for alias, binding in found.items() if binding is not None and not binding.values]


def _plain_steps(question: str, n: int) -> list[LogicStep]:
    retrieve = LogicStep(n=n, question=question, op="retrieve", out_alias=f"r{n}")
    return [retrieve, LogicStep(n=n + 1, question=question, op="output", inputs=(f"r{n}",))]
