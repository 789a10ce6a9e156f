"""`report.rate`: a model chooses the reports that a question is answered from, going from coarse to fine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveInt

from ragbraid.nodes.reasoning import Asking, Draft, Note, PromptLanguage, Temperature, ask, gather, prompt_file
from ragbraid.nodes.report_asking import for_each
from ragbraid.nodes.report_hits import by_importance, report_hit
from ragbraid.nodes.report_read import REPORTS, with_report_places
from ragbraid.registry.context import report_degraded, report_note, report_progress
from ragbraid.registry.contracts import Ranking
from ragbraid.registry.errors import NodeInputError, ServiceError
from ragbraid.registry.graph import Report
from ragbraid.registry.knowledge import KnowledgeBase, Where
from ragbraid.registry.node import node
from ragbraid.registry.resources import LLM

_UNRATED = 1
_ABOUT_ONE_REPORT = ("invalid_output", "truncated", "refused")


class DraftRating(Draft):
    """How much the report helps."""

    reason: Note = Field(default="", description="why, in a sentence")
    rating: int | None = Field(default=None, ge=0, le=5, description="from 0, no help, to 5, answers the question")


@node(
    "report.rate",
    example="""
    reports: {use: report.rate, max_level: 2}
    """,
)
async def rate(
    question: str,
    *,
    kb: KnowledgeBase,
    llm: LLM,
    max_level: NonNegativeInt = 2,
    min_rating: Annotated[int, Field(ge=1, le=5)] = 1,
    max_reports: Annotated[int, Field(ge=1, le=10_000)] = 200,
    concurrency: Annotated[int, Field(ge=1, le=64)] = 8,
    where: Where | None = None,
    prompt: Annotated[str | None, prompt_file("statements")] = None,
    max_tokens: PositiveInt = 300,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
) -> Ranking:
    """Chooses reports by asking a model about each how much it helps, and looks into those that do.

    The dynamic selection of GraphRAG's global search. The reports of the coarsest communities are rated from 0 to 5;
    those that help stay, and the reports about their parts are rated next. A report goes once one about a part of it
    stays. Where none of a level helps, all of the next level are rated. One call for each report, so the number of
    reports is bounded; the best rated by their writer come first. An answer without a rating counts as 1.

    Args:
        question: the question.
        kb: the knowledge base, with the reports of `report.write`.
        llm: rates the reports.
        max_level: the finest level to look into; 0 are the coarsest communities.
        min_rating: reports with this rating or a higher one help.
        max_reports: how many reports are rated at most; when there are more, a note in the trace says so.
        concurrency: how many reports are with the model at once.
        where: only reports all of whose chunks fulfil these conditions.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_tokens: bounds what the model writes about one report.
        temperature: 0 makes the ratings as repeatable as the model allows.
        language: language of the prompt; `auto` takes the question's.

    Raises:
        NodeInputError: the question is empty or the template is wrong.
        SettingsError: the knowledge base does not exist, or lacks a field of `where`.
        ServiceError: the model or the store failed.
    """
    if not question.strip():
        raise NodeInputError("The question is empty.", kind="input")
    seen = await asyncio.to_thread(kb.reports, where)
    rater = _Rater(question, llm, Asking(prompt, max_tokens, temperature, language), max_reports, concurrency)
    kept = await _descend([each for each in seen if each.level <= max_level], rater, min_rating, max_level)
    rater.tell()
    ordered = sorted(kept, key=lambda each: (-rater.ratings[each.id], by_importance(each)))
    hits = (report_hit(each, float(rater.ratings[each.id]), "model") for each in ordered)
    return await asyncio.to_thread(with_report_places, Ranking.from_hits(hits, route=REPORTS, score_kind="model"), kb)


class _Rater:
    """Asks about reports, each once and not more than allowed; `ratings` holds what the model said, by id."""

    def __init__(self, question: str, llm: LLM, how: Asking, max_reports: int, concurrency: int) -> None:
        self.ratings: dict[str, int] = {}
        self._question = question
        self._llm = llm
        self._how = how
        self._left = max_reports
        self._concurrency = concurrency
        self._unrated = 0
        self._passed_over = 0
        self._errors: list[ServiceError] = []

    async def rate(self, reports: Sequence[Report]) -> None:
        """Ask about reports, the most important first, as far as the limit goes."""
        wanted = sorted(reports, key=by_importance)
        allowed = wanted[: self._left]
        self._left -= len(allowed)
        self._passed_over += len(wanted) - len(allowed)
        await for_each(allowed, self._ask, concurrency=self._concurrency)

    async def _ask(self, report: Report) -> None:
        lines = [f"{report.title}: {report.summary}", *(f"– {f.summary}: {f.explanation}" for f in report.findings)]
        values = gather(self._question, lists={"statements": [line.rstrip(": ") for line in lines]})
        try:
            rating = (await ask(self._llm, "rate_report", DraftRating, values, self._how)).rating
        except ServiceError as error:
            if error.kind not in _ABOUT_ONE_REPORT:
                raise
            self._errors.append(error)
            rating = None
        self._unrated += rating is None
        self.ratings[report.id] = _UNRATED if rating is None else rating
        report_progress("rate reports", len(self.ratings))

    def tell(self) -> None:
        """Say what was not as it should be."""
        if self._passed_over:
            report_note(f"{self._passed_over} reports were not rated, because `max_reports` was reached")
        if self._errors:
            report_degraded(f"{self._unrated} reports got no rating and count as {_UNRATED}: {self._errors[0]}")
        elif self._unrated:
            report_note(f"{self._unrated} reports got no rating and count as {_UNRATED}")


async def _descend(reports: Sequence[Report], rater: _Rater, min_rating: int, max_level: int) -> list[Report]:
    above = {child: each.id for each in reports for child in each.children}
    kept: dict[str, Report] = {}
    helpful: set[str] = set()
    for level in range(max_level + 1):
        # A report above which none can be seen is rated like those of the coarsest level.
        here = [each for each in reports if each.level == level]
        waiting = [each for each in here if not kept or each.id not in above or above[each.id] in helpful]
        await rater.rate(waiting)
        for each in waiting:
            if rater.ratings.get(each.id, 0) >= min_rating:
                helpful.add(each.id)
                kept.pop(above.get(each.id, ""), None)
                kept[each.id] = each
    return list(kept.values())
