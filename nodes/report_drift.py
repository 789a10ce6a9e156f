"""The steps of DRIFT: a first answer from reports, follow-ups answered from what lies around entities, and what is next.

GraphRAG's DRIFT search as single steps, so that a flow says how many rounds there are and how many follow-ups each has.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from ragbraid.nodes.citations import without_markers
from ragbraid.nodes.reason_points import known_sources, make_point
from ragbraid.nodes.reasoning import (
    Asking,
    Draft,
    Line,
    OnInvalid,
    PromptLanguage,
    Temperature,
    Texts,
    ask_or_none,
    bounded,
    gather,
    has_evidence,
    prompt_file,
    tidy,
    without_repeats,
)
from ragbraid.nodes.report_context import interleave
from ragbraid.nodes.report_hits import statements_of
from ragbraid.registry.context import report_note
from ragbraid.registry.contracts import Query, Ranking
from ragbraid.registry.node import node
from ragbraid.registry.reports import Leads, PartialAnswer, Points
from ragbraid.registry.resources import LLM

_LOST = "a part of the answers was of the wrong form"
FollowUpLimit = Annotated[int, Field(ge=0, le=20)]


class DraftPartial(Draft):
    """What the statements say, and what to look up next."""

    answer: Annotated[str, Field(json_schema_extra={"maxLength": 2000})] = Field(
        default="", description="what the statements say to the question; empty when they say nothing"
    )
    score: int = Field(ge=0, le=100, description="how well that answers the question, from 0 to 100")
    statements: list[int] = Field(default=[], description="numbers of the statements that the answer rests on")
    follow_ups: list[Line] = Field(default=[], description="questions to look up next, the most promising first")


@node(
    "reason.primer",
    example="""
    found: {use: report.search, top_k: 20}
    primer: {use: reason.primer, reports: $found}
    """,
)
async def primer(
    question: str,
    reports: Ranking,
    *,
    llm: LLM,
    prompt: Annotated[str | None, prompt_file("statements", "max_follow_ups")] = None,
    max_follow_ups: FollowUpLimit = 5,
    max_tokens: PositiveInt = 1500,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
    on_invalid: OnInvalid = "fail",
) -> PartialAnswer:
    """Writes a first answer from reports, says how good it is, and asks what to look up next.

    The primer of GraphRAG's DRIFT search, for one of the batches of `report.batches`. Nothing to follow is a normal
    result, as are no reports, about which the model is not asked; DRIFT raises an exception in both cases.

    Args:
        question: the question.
        reports: some reports.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_follow_ups: how many questions the model may ask; more go back to it as a mistake.
        max_tokens: bounds what the model writes; reaching it is an error.
        temperature: 0 makes the answer as repeatable as the model allows.
        language: language of the prompt; `auto` takes the question's.
        on_invalid: after an answer of the wrong form or one that was cut off, `fail` fails the step and `keep` gives no
            answer, marked degraded.

    Raises:
        NodeInputError: the question is empty or the template is wrong.
        ServiceError: the model failed, or there are no reports because retrieval failed.
    """
    how = Asking(prompt, max_tokens, temperature, language)
    return await _answer_in_part(llm, "primer", question, reports, {}, (), how, max_follow_ups, on_invalid)


@node(
    "reason.follow_lead",
    example="""
    things: {use: graph.entities, query: $lead, top_k: 10}
    texts: {use: graph.text_units, entities: $things, top_k: 10}
    partial: {use: reason.follow_lead, lead: $lead, evidence: $texts, asked: $asked}
    """,
)
async def follow_lead(
    lead: str,
    evidence: Ranking,
    question: str,
    asked: Texts = (),
    *,
    llm: LLM,
    prompt: Annotated[str | None, prompt_file("statements", "lead", "asked", "max_follow_ups")] = None,
    max_follow_ups: FollowUpLimit = 3,
    max_tokens: PositiveInt = 1500,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
    on_invalid: OnInvalid = "fail",
) -> PartialAnswer:
    """Answers a follow-up question from evidence, says how much that helps with the question behind it, and asks on.

    The local step of GraphRAG's DRIFT search. Follow-ups that were asked before are left out. Without evidence the model
    is not asked.

    Args:
        lead: the follow-up question.
        evidence: what was found for it: chunks, facts, entities or reports.
        question: the question that all this serves.
        asked: the follow-ups so far, which are not worth asking again.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_follow_ups: how many questions the model may ask; more go back to it as a mistake.
        max_tokens: bounds what the model writes; reaching it is an error.
        temperature: 0 makes the answer as repeatable as the model allows.
        language: language of the prompt; `auto` takes the question's.
        on_invalid: after an answer of the wrong form or one that was cut off, `fail` fails the step and `keep` gives no
            answer, marked degraded.

    Raises:
        NodeInputError: the question is empty or the template is wrong.
        ServiceError: the model failed, or there is no evidence because retrieval failed.
    """
    how = Asking(prompt, max_tokens, temperature, language)
    lists = {"lead": [lead], "asked": asked}
    return await _answer_in_part(
        llm, "follow_lead", question, evidence, lists, (*asked, lead), how, max_follow_ups, on_invalid
    )


async def _answer_in_part(
    llm: LLM,
    name: str,
    question: str,
    evidence: Ranking,
    lists: dict[str, Sequence[str]],
    asked: Texts,
    how: Asking,
    max_follow_ups: int,
    on_invalid: OnInvalid,
) -> PartialAnswer:
    if not has_evidence(evidence):
        return PartialAnswer()
    sources = statements_of(evidence.hits)
    values = gather(
        question,
        lists={"statements": [each.text for each in sources], **lists},
        facts={"max_follow_ups": max_follow_ups},
    )
    form = bounded(DraftPartial, "follow_ups", max_follow_ups)
    draft = await ask_or_none(llm, name, form, values, how, on_invalid, "there is no answer from this part")
    if draft is None:
        return PartialAnswer(degraded=True, error=_LOST)
    known, unknown = known_sources(draft.statements, sources)
    if unknown:
        report_note(f"{unknown} of the model's numbers stand for no statement and were left out")
    point = make_point(draft.answer, draft.score, known)
    return PartialAnswer(
        answer=point.text,
        score=point.score if point.text else 0,
        follow_ups=without_repeats(draft.follow_ups, (*asked, question)),
        source_ids=point.source_ids,
        chunk_ids=point.chunk_ids,
        unknown=unknown,
        degraded=evidence.degraded,
        error=evidence.error,
    )


@node(
    "reason.gather_leads",
    example="""
    leads: {use: reason.gather_leads, answers: $answers, asked: $asked, points: $points}
    """,
)
def gather_leads(
    answers: tuple[PartialAnswer, ...],
    asked: Texts = (),
    points: tuple[Points, ...] = (),
    *,
    max_questions: Annotated[int, Field(ge=0, le=200)] = 20,
) -> Leads:
    """Puts together what a round of follow-ups has brought, and which follow-ups the next round has.

    In turns the first follow-up of every answer, then the second, the best answers first; repetitions and what was asked
    before are left out. DRIFT shuffles them, so that no two runs are the same.

    Args:
        answers: what this round gave.
        asked: the follow-ups of all rounds so far.
        points: what all rounds before gave.
        max_questions: how many follow-ups the next round has at most.
    """
    best_first = sorted(answers, key=lambda each: -each.score)
    fresh = without_repeats(interleave([each.follow_ups for each in best_first]), asked)
    questions = fresh[:max_questions]
    if len(fresh) > len(questions):
        report_note(f"{len(fresh) - len(questions)} follow-ups are behind `max_questions` and are not followed")
    return Leads(
        questions=questions,
        asked=(*asked, *questions),
        points=(*points, *(each.points for each in answers)),
        left_out=len(fresh) - len(questions),
    )


class DraftHypothesis(Draft):
    """A report that would answer the question."""

    passage: str = Field(description="the text", json_schema_extra={"minLength": 1, "maxLength": 3000})

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not tidy(self.passage):
            raise ValueError("`passage` is empty")
        return self


@node(
    "query.hyde_report",
    example="""
    reports: {use: report.select, level: 1}
    imagined: {use: query.hyde_report, reports: $reports}
    found: {use: report.search, query: $imagined, top_k: 20}
    """,
)
async def hyde_report(
    question: str,
    reports: Ranking,
    *,
    llm: LLM,
    seed: NonNegativeInt = 86,
    include_question: bool = True,
    prompt: Annotated[str | None, prompt_file("example")] = None,
    max_tokens: PositiveInt = 800,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
    on_invalid: OnInvalid = "fail",
) -> Query:
    """Writes a report that would answer the question, in the form of one that exists, to search for reports like it.

    The first step of GraphRAG's DRIFT search. The example is chosen at random there, from a source of random numbers
    that no one can repeat; here seed and question choose it. What the text says is made up and serves the search alone.
    Without reports the question itself is searched for, and the model is not asked.

    Args:
        question: the question.
        reports: reports to take the example from.
        seed: chooses the example, together with the question.
        include_question: put the question before the text, so that its own words count in the search.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_tokens: bounds what the model writes; reaching it is an error.
        temperature: 0 makes the text as repeatable as the model allows.
        language: language of the prompt; `auto` takes the question's.
        on_invalid: after an answer of the wrong form or one that was cut off, `fail` fails the step and `keep` keeps
            the question alone, marked degraded.

    Raises:
        NodeInputError: the question is empty or the template is wrong.
        ServiceError: the model failed, or there are no reports because retrieval failed.
    """
    if not has_evidence(reports):
        return Query(text=question)
    example = random.Random(f"{seed} {question}").choice(reports.hits)
    values = gather(question, lists={"example": example.text.splitlines()})
    how = Asking(prompt, max_tokens, temperature, language)
    kept = "only the question is searched for"
    draft = await ask_or_none(llm, "hyde_report", DraftHypothesis, values, how, on_invalid, kept)
    if draft is None:
        return Query(text=question)
    passage = tidy(without_markers(draft.passage))
    return Query(text=f"{question}\n{passage}" if include_question else passage, role="rewrite")
