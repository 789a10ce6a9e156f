"""The nodes that end a retrieve step: its answer from facts and passages, and what its variables are bound to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, Field, PositiveInt

from ragbraid.nodes.plan_check import unknowns
from ragbraid.nodes.plan_waves import known_binding, unsolved
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
    pick,
    prompt_file,
    tidy,
)
from ragbraid.registry.context import report_degraded, report_note
from ragbraid.registry.contracts import Ranking
from ragbraid.registry.graph import Fact, SubGraph
from ragbraid.registry.graph_names import normalize_name
from ragbraid.registry.logic import Binding, BindingStatus, LogicStep, Slot, StepAnswer, StepResult
from ragbraid.registry.node import node
from ragbraid.registry.resources import LLM

_MOST_VALUES = 50

_NO_RANKING = Ranking()


class ValueDraft(BaseModel):
    """One name, date or number of the answer."""

    value: Line = Field(description="the name, date or number alone")
    of: Line | None = Field(
        default=None, description="what it belongs to, where the question asks about several things"
    )


class StepAnswerDraft(Draft):
    """The answer to the step's question."""

    answered: bool = Field(description="whether facts and passages answer the question")
    answer: Note = Field(description="the answer in one short sentence, else what is missing")
    values: list[ValueDraft] = Field(max_length=_MOST_VALUES, description="the names, dates or numbers of the answer")
    passages_used: list[int] = Field(max_length=200, description="numbers of the passages that were used")


@node(
    "plan.answer_step",
    example="""
    found: {use: retrieve.hybrid, query: $concrete.question, top_k: 10}
    said: {use: plan.answer_step, question: $concrete.question, evidence: $found}
    """,
)
async def answer_step(
    question: str,
    evidence: Ranking = _NO_RANKING,
    facts: SubGraph | None = None,
    *,
    llm: LLM,
    prompt: Annotated[str | None, prompt_file("passages", "facts")] = None,
    max_passages: PassageLimit = 10,
    max_facts: Annotated[int, Field(ge=1, le=500)] = 50,
    max_tokens: PositiveInt = 800,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
    on_invalid: OnInvalid = "fail",
) -> StepAnswer:
    """Answers the question of one step from facts of the graph and passages together, and lists the values alone.

    The model always sees both; KAG shows it the facts only where there is no passage (KAG #574), and so loses them.
    Without any of them it is not asked, and the step has no answer.

    Args:
        question: the step's question, with its variables replaced.
        evidence: the passages, best first.
        facts: the facts of the graph, best first.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_passages: how many passages the model sees.
        max_facts: how many facts the model sees; how many were left out is noted.
        max_tokens: bounds what the model writes; reaching it is an error.
        temperature: 0 makes the answer as repeatable as the model allows.
        language: language of the prompt; `auto` takes the question's.
        on_invalid: after an answer of the wrong form or one that was cut off, `fail` fails the step and `keep` goes on
            without an answer, marked degraded.

    Raises:
        NodeInputError: the question is empty or the template is wrong.
        ServiceError: the model failed, or there is nothing to read because retrieval failed.
    """
    known = facts.facts if facts else ()
    if known and not evidence and (evidence.degraded or evidence.error):
        report_degraded(f"answered from facts alone: {evidence.error or 'a part of retrieval failed'}")
    elif not has_evidence(evidence) and not known:
        return StepAnswer(answered=False)
    if len(known) > max_facts:
        report_note(f"{len(known) - max_facts} facts behind the first {max_facts} were not shown")
    shown = evidence.hits[:max_passages]
    values = gather(question, passages=shown, lists={"facts": [fact.text for fact in known[:max_facts]]})
    how = Asking(prompt, max_tokens, temperature, language)
    draft = await ask_or_none(llm, "answer_step", StepAnswerDraft, values, how, on_invalid, "the step has no answer")
    if draft is None:
        return StepAnswer(answered=False)
    used, _ = pick(draft.passages_used, len(shown))
    cited = tuple(shown[place].id for place in used)
    text = tidy(draft.answer)
    pairs = dict.fromkeys((tidy(each.value), tidy(each.of)) for each in draft.values if tidy(each.value))
    if not draft.answered or not (text or pairs):
        return StepAnswer(answered=False, text=text, cited=cited)
    found, of = zip(*pairs, strict=True) if pairs else ((), ())
    return StepAnswer(answered=True, text=text or ", ".join(found), values=found, of=of, cited=cited)


@node(
    "plan.bind",
    example="""
    result: {use: plan.bind, step: $concrete, evidence: $found, answer: $said}
    """,
)
def bind(
    step: LogicStep,
    facts: SubGraph | None = None,
    evidence: Ranking | None = None,
    answer: StepAnswer | None = None,
) -> StepResult:
    """Binds the variables of a retrieve step to what was found.

    With an answer they get its values, and the entities of these names in the facts; without one the other ends of the
    facts. Facts and passages stay with the result in any case. A variable for which nothing was found is `empty`, or
    `failed` where the search did not run.

    Args:
        step: the step, with its variables replaced by `plan.rewrite`.
        facts: the facts that were found for it.
        evidence: the passages that were found for it; those that the answer rests on come first.
        answer: what `plan.answer_step` made of both.
    """
    passages = _cited_first(evidence or _NO_RANKING, answer)
    texts = tuple(dict.fromkeys(fact.text for fact in facts.facts)) if facts else ()
    broken = _broken(facts, evidence)
    if not (answer.answered if answer else facts and facts.facts):
        if broken and not (texts or passages.hits):
            return unsolved(step, "failed", broken, evidence=passages)
        reason = answer.text if answer and answer.text else "nothing was found that answers it"
        return unsolved(step, "empty", reason, facts=texts, evidence=passages)
    reason = step.reason or broken or ""
    status: BindingStatus = "degraded" if reason else "ok"
    found = _from_answer(step, answer, facts) if answer else _from_facts(step, facts or SubGraph())
    marked = [_marked(each, status, reason) for each in found]
    known = [known_binding(slot.alias, slot.names) for slot in step.slots if slot.names]
    return StepResult(
        n=step.n,
        question=step.question,
        op=step.op,
        text=answer.text if answer else "; ".join(each.text for each in marked) or "; ".join(texts),
        bindings=(*known, *marked),
        facts=texts,
        evidence=passages,
        status=status,
        reason=reason or None,
    )


def _marked(binding: Binding, status: BindingStatus, reason: str) -> Binding:
    if not binding.values:
        return binding.model_copy(update={"status": "empty", "reason": "the answer does not name it"})
    return binding.model_copy(update={"status": status, "reason": reason or None})


def _broken(facts: SubGraph | None, evidence: Ranking | None) -> str | None:
    for found in (facts, evidence):
        if found is not None and (found.error or found.degraded):
            return found.error or "a part of retrieval failed"
    return None


def _cited_first(evidence: Ranking, answer: StepAnswer | None) -> Ranking:
    cited = answer.cited if answer else ()
    first = [hit for hit in evidence if hit.id in cited]
    if not first:
        return evidence
    ordered = [*first, *(hit for hit in evidence if hit.id not in cited)]
    hits = [
        hit.model_copy(update={"rank": n, "score": 1 / n, "score_kind": "rank"}) for n, hit in enumerate(ordered, 1)
    ]
    return evidence.model_copy(update={"hits": tuple(hits), "score_kind": "rank"})


def _wanted(step: LogicStep) -> list[str]:
    """Return the variables that a step's answer is for: what it looks for, or its predicate where both ends are known."""
    names = [step.out_alias] if step.out_alias else [slot.alias for slot in (step.o, step.s) if slot in unknowns(step)]
    if not names and step.p is not None:
        names = [step.p.alias]
    return names


def _from_answer(step: LogicStep, answer: StepAnswer, facts: SubGraph | None) -> list[Binding]:
    names = _wanted(step)
    if not names:
        return []
    values = answer.values or (answer.text,)
    of = answer.of if answer.values else ("",)
    start = _only_start(step)
    pairs = [(value, owner or start) for value, owner in zip(values, of, strict=True)]
    owners = [(owner, "") for owner in dict.fromkeys(of) if owner]
    return [_binding(names[0], pairs, facts), *(_binding(name, owners, facts) for name in names[1:])]


def _only_start(step: LogicStep) -> str:
    """Return the one name that the step starts from, which all of its answer belongs to; "" where there are several."""
    names = [name for slot in (step.s, step.o) if slot is not None for name in slot.names]
    return names[0] if len(names) == 1 else ""


def _from_facts(step: LogicStep, facts: SubGraph) -> list[Binding]:
    """Take the ends of the facts that the step does not know; a fact may stand the other way round."""
    ends = [_ends(step, fact, facts) for fact in facts.facts]
    found: list[Binding] = []
    for name in _wanted(step):
        if step.p is not None and name == step.p.alias:
            pairs = [(fact.predicate, "") for fact in facts.facts if fact.predicate]
        elif step.s is not None and name == step.s.alias:
            pairs = [(subject, "" if found else object_) for subject, object_ in ends]
        else:
            pairs = [(object_, subject) for subject, object_ in ends]
        found.append(_binding(name, list(dict.fromkeys(pairs)), facts))
    return found


def _ends(step: LogicStep, fact: Fact, facts: SubGraph) -> tuple[str, str]:
    """Return the fact's names as the step's subject and object."""
    straight = fact.subject_name, fact.object_name
    starts_at_subject = step.s is not None and bool(step.s.names)
    start = step.s if starts_at_subject else step.o
    if start is None or not start.names:
        return straight
    known = _known(start, facts)
    subject_known, object_known = fact.subject in known, fact.object in known
    if subject_known == object_known:
        return straight
    return straight if subject_known == starts_at_subject else straight[::-1]


def _known(slot: Slot, facts: SubGraph) -> set[str]:
    names = {normalize_name(name) for name in slot.names}
    return set(facts.seeds) | {entity.id for entity in facts.entities if normalize_name(entity.name) in names}


def _binding(alias: str, pairs: Sequence[tuple[str, str]], facts: SubGraph | None) -> Binding:
    values = tuple(value for value, _ in pairs)
    ids = {normalize_name(name): e.id for e in (facts.entities if facts else ()) for name in (*e.aliases, e.name)}
    entity_ids = dict.fromkeys(ids[name] for name in map(normalize_name, values) if name in ids)
    return Binding(
        alias=alias,
        text=", ".join(f"{value} ({owner})" if owner else value for value, owner in pairs),
        values=values,
        of=tuple(owner for _, owner in pairs),
        entity_ids=tuple(entity_ids),
    )
