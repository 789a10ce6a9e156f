"""`reason.map_points` and `reason.reduce_points`: what many reports say about a question, in pieces, and then as one answer.

The two steps of GraphRAG's global search (Edge et al. 2024).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import BaseModel, Field, PositiveInt, model_validator

from ragbraid.nodes.citations import cite, marked_numbers, renumber_markers, without_markers
from ragbraid.nodes.generate import NO_PASSAGES, NOT_IN_PASSAGES
from ragbraid.nodes.graph_hits import chunk_hit
from ragbraid.nodes.prompts import Language, choose_language
from ragbraid.nodes.reasoning import (
    Asking,
    Draft,
    Note,
    OnInvalid,
    PromptLanguage,
    Temperature,
    answer_so_far,
    ask_or_none,
    bounded,
    gather,
    has_evidence,
    prompt_file,
    tidy,
    write_messages,
)
from ragbraid.nodes.report_context import count_tokens, interleave
from ragbraid.nodes.report_hits import Source, statements_of
from ragbraid.registry.context import report_degraded, report_note
from ragbraid.registry.contracts import Answer, Citation, Hit, Ranking
from ragbraid.registry.errors import NodeInputError, ServiceError
from ragbraid.registry.knowledge import KnowledgeBase
from ragbraid.registry.node import node
from ragbraid.registry.reports import Point, Points
from ragbraid.registry.resources import LLM

MAX_POINT_CHUNKS = 10
"""How many chunks a point names."""
_NOTHING_SAID: Mapping[Language, str] = {
    "en": "The reports that were read hold nothing that answers this question.",
    "zh": "所读的报告中没有能回答这个问题的内容。",
}
_NOTHING_READ: Mapping[Language, str] = {
    "en": "There are no reports that could answer this question.",
    "zh": "没有可以回答这个问题的报告。",
}


class DraftPoint(BaseModel):
    """One point."""

    text: Note = Field(description="what the statements say to the question, in a sentence or two")
    score: int = Field(ge=0, le=100, description="how much it helps to answer, from 0 to 100")
    statements: list[int] = Field(default=[], description="numbers of the statements that it rests on")


class DraftPoints(Draft):
    """What the statements say to the question."""

    points: list[DraftPoint] = Field(description="the points, the most helpful first; empty when nothing helps")


@node(
    "reason.map_points",
    example="""
    points: {use: reason.map_points, reports: $batch}
    """,
)
async def map_points(
    question: str,
    reports: Ranking,
    *,
    llm: LLM,
    prompt: Annotated[str | None, prompt_file("statements", "max_points")] = None,
    max_points: Annotated[int, Field(ge=1, le=50)] = 10,
    max_tokens: PositiveInt = 1500,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
    on_invalid: OnInvalid = "fail",
) -> Points:
    """Gathers what some reports say about a question as points, each with a score and the statements that it rests on.

    The map step of GraphRAG's global search, for one of the batches of `report.batches`. Summaries and findings are
    shown as numbered statements; the model names numbers, so it cannot invent a source, and numbers that nothing bears
    are counted. Without reports the model is not asked.

    Args:
        question: the question.
        reports: one batch of reports; other hits are read whole.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_points: how many points the model may give; more go back to it as a mistake.
        max_tokens: bounds what the model writes; reaching it is an error.
        temperature: 0 makes the points as repeatable as the model allows.
        language: language of the prompt; `auto` takes the question's.
        on_invalid: after an answer of the wrong form or one that was cut off, `fail` fails the step and `keep` gives no
            points, marked degraded.

    Raises:
        NodeInputError: the question is empty or the template is wrong.
        ServiceError: the model failed, or there are no reports because retrieval failed.
    """
    if not has_evidence(reports):
        return Points()
    sources = statements_of(reports.hits)
    values = gather(question, lists={"statements": [s.text for s in sources]}, facts={"max_points": max_points})
    form = bounded(DraftPoints, "points", max_points)
    how = Asking(prompt, max_tokens, temperature, language)
    draft = await ask_or_none(llm, "map_points", form, values, how, on_invalid, "these reports gave no points")
    if draft is None:
        return Points(degraded=True, error="the model gave no points of the right form for some reports")
    known = [(each, *known_sources(each.statements, sources)) for each in draft.points if tidy(each.text)]
    unknown = sum(lost for _, _, lost in known)
    if unknown:
        report_note(f"{unknown} of the model's numbers stand for no statement and were left out")
    points = tuple(make_point(each.text, each.score, found) for each, found, _ in known)
    return Points(points=points, unknown=unknown, degraded=reports.degraded, error=reports.error)


def known_sources(numbers: Sequence[int], sources: Sequence[Source]) -> tuple[list[Source], int]:
    """Return the statements that these numbers (from 1) stand for, each once, and how many stand for none."""
    wanted = list(dict.fromkeys(numbers))
    known = [sources[number - 1] for number in wanted if 1 <= number <= len(sources)]
    return known, len(wanted) - len(known)


def make_point(text: str, score: int, sources: Sequence[Source]) -> Point:
    """Return a point that rests on these statements."""
    chunk_ids = tuple(interleave([each.chunk_ids for each in sources]))[:MAX_POINT_CHUNKS]
    return Point(
        text=tidy(without_markers(text)),
        score=score,
        source_ids=tuple(dict.fromkeys(each.hit_id for each in sources)),
        chunk_ids=chunk_ids,
    )


class DraftSummary(Draft):
    """The answer to the question, from the points alone."""

    cannot_answer: bool = Field(description="true when the points do not hold the answer")
    answer: str = Field(
        description="the answer with the number of a point in square brackets after every statement",
        json_schema_extra={"minLength": 1, "maxLength": 6000},
    )

    @classmethod
    def text_so_far(cls, written: Mapping[str, Any]) -> str:
        """Return the answer as far as it is written."""
        return answer_so_far(written)

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.answer.strip():
            raise ValueError("`answer` is empty")
        return self


@node(
    "reason.reduce_points",
    example="""
    answer: {use: reason.reduce_points, points: $points}
    """,
)
async def reduce_points(
    question: str,
    points: tuple[Points, ...],
    *,
    llm: LLM,
    kb: KnowledgeBase | None = None,
    prompt: Annotated[str | None, prompt_file("points")] = None,
    max_input_tokens: PositiveInt = 12_000,
    min_score: Annotated[int, Field(ge=1, le=100)] = 1,
    max_citations_each: Annotated[int, Field(ge=1, le=10)] = 3,
    max_tokens: PositiveInt = 2000,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
) -> Answer:
    """Writes one answer from the points of many readings, with citations that lead to chunks.

    The reduce step of GraphRAG's global search, and of DRIFT. The best points are shown, numbered; what the model cites
    becomes citations of the chunks behind those points. Numbers that no point bears, and chunks that no longer exist,
    are left out and counted. Where no point helps, the answer is a refusal that says so, without asking the model; where
    points are missing because something failed, that is an error. A model that fails is an error and never an answer.

    Args:
        question: the question; the answer comes in its language.
        points: what each reading gave.
        kb: the knowledge base that holds the chunks, so that citations say source and title.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_input_tokens: how many tokens the points may have, in words, CJK characters and signs; the weakest are left
            out, with a note in the trace.
        min_score: points below this do not count.
        max_citations_each: how many chunks are cited for one point.
        max_tokens: bounds what the model writes; reaching it is an error.
        temperature: 0 makes the answer as repeatable as the model allows.
        language: language of the prompt and of refusals; `auto` takes the question's.

    Raises:
        NodeInputError: the question is empty or the template is wrong.
        ServiceError: the model failed, or there are no points because something before failed.
    """
    if not question.strip():
        raise NodeInputError("The question is empty.", kind="input")
    spoken = choose_language(question, language)
    useful = [point for each in points for point in each.points if point.score >= min_score and point.text]
    _check_complete(points, useful)
    if not useful:
        return _refusal(points, spoken)
    shown = _fitting(useful, max_input_tokens)
    values = gather(question, lists={"points": [point.text for point in shown]})
    messages = write_messages(spoken, "reduce_points", values, Asking(prompt, max_tokens, temperature, language))
    completion = await llm.extract(messages, DraftSummary, max_tokens=max_tokens, temperature=temperature)
    draft = completion.value
    if draft.cannot_answer:
        rationale = tidy(without_markers(draft.answer)) or None
        return _refusal(points, spoken).model_copy(update={"rationale": rationale, "usage": completion.usage})
    numbers = list(dict.fromkeys(marked_numbers(draft.answer)))
    behind = await _chunks_behind(numbers, shown, kb, max_citations_each)
    citations, markers = _cite(behind)
    unknown = len(numbers) - len(behind)
    if not citations:
        report_degraded("the answer cites no point with a chunk behind it")
    text = renumber_markers(draft.answer, markers)
    return Answer(text=text, citations=citations, unknown_citations=unknown, usage=completion.usage)


def _check_complete(points: Sequence[Points], useful: Sequence[Point]) -> None:
    """Keep "nothing was found" apart from "something failed"."""
    errors = [each.error or "a part of what should have been read was not" for each in points if each.degraded]
    if errors and not useful:
        raise ServiceError(f"There is nothing to answer from, because reading failed: {errors[0]}", kind="unavailable")
    if errors:
        report_degraded(f"answered from incomplete points: {errors[0]}")


def _refusal(points: Sequence[Points], language: Language) -> Answer:
    reason = NOT_IN_PASSAGES if points else NO_PASSAGES
    return Answer(text=(_NOTHING_SAID if points else _NOTHING_READ)[language], refused=True, refusal_reason=reason)


def _fitting(points: Sequence[Point], max_tokens: int) -> list[Point]:
    """Return the best points that fit, the best first; of several with one text the best."""
    ordered = sorted(points, key=lambda point: (-point.score, point.text, point.chunk_ids))
    distinct: dict[str, Point] = {}
    for point in ordered:
        distinct.setdefault(point.text, point)
    room = max_tokens
    kept: list[Point] = []
    for point in distinct.values():
        room -= count_tokens(point.text)
        if room < 0 and kept:
            break
        kept.append(point)
    if len(kept) < len(distinct):
        report_note(f"{len(distinct) - len(kept)} points did not fit into `max_input_tokens` and were left out")
    return kept


async def _chunks_behind(
    numbers: Sequence[int], points: Sequence[Point], kb: KnowledgeBase | None, most: int
) -> dict[int, list[Hit]]:
    """Return the chunks behind the points of these numbers; a number without any that exists is left out."""
    named = {number: points[number - 1].chunk_ids for number in numbers if 1 <= number <= len(points)}
    wanted = list(dict.fromkeys(id_ for ids in named.values() for id_ in ids))
    if kb is None:
        there = {id_: Hit(id=id_, text="", score=1.0, rank=1, score_kind="rank") for id_ in wanted}
    else:
        found = await asyncio.to_thread(kb.fetch, wanted) if wanted else []
        there = {chunk.id: chunk_hit(chunk, 1.0, "rank", {}) for chunk in found}
    behind = {number: [there[id_] for id_ in ids if id_ in there][:most] for number, ids in named.items()}
    return {number: hits for number, hits in behind.items() if hits}


def _cite(behind: Mapping[int, Sequence[Hit]]) -> tuple[tuple[Citation, ...], dict[int, list[int]]]:
    """Return a citation for each chunk, and by the number of a point the markers of its chunks."""
    chunks = list({hit.id: hit for hits in behind.values() for hit in hits}.values())
    citations = tuple(cite(marker, hit, None, verified=False) for marker, hit in enumerate(chunks, start=1))
    marker_of = {hit.id: marker for marker, hit in enumerate(chunks, start=1)}
    return citations, {number: [marker_of[hit.id] for hit in hits] for number, hits in behind.items()}
