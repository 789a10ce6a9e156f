"""The `judge.*` nodes: how good evidence and answers are. None of them is given a reference answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, Field, PositiveInt

from ragbraid.nodes.reasoning import (
    Asking,
    Draft,
    Line,
    Note,
    OnInvalid,
    PassageLimit,
    PromptLanguage,
    Temperature,
    ask,
    ask_or_none,
    bounded,
    gather,
    has_evidence,
    keep_hits,
    pick,
    prompt_file,
    without_repeats,
)
from ragbraid.registry.context import report_note
from ragbraid.registry.contracts import Answer, Hit, Ranking, ScoreKind
from ragbraid.registry.errors import NodeInputError
from ragbraid.registry.node import node
from ragbraid.registry.reasoning import Correctness, Grade, Graded, Judgement, Relevance
from ragbraid.registry.resources import LLM

Keep = Literal["relevant", "not_irrelevant"]


class PassageGrade(BaseModel):
    """The grade of one passage."""

    n: int = Field(description="the passage's number")
    label: Relevance


class Grades(Draft):
    """One grade for every passage."""

    grades: list[PassageGrade]


@node(
    "judge.grade_documents",
    example="""
    found: {use: retrieve.hybrid, query: $question, top_k: 10}
    graded: {use: judge.grade_documents, hits: $found}
    """,
)
async def grade_documents(
    hits: Ranking,
    question: str,
    *,
    llm: LLM,
    keep: Keep = "not_irrelevant",
    prompt: Annotated[str | None, prompt_file("passages")] = None,
    max_passages: PassageLimit = 20,
    max_tokens: PositiveInt = 1000,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
    on_invalid: OnInvalid = "fail",
) -> Graded:
    """Grades each hit as relevant, irrelevant or ambiguous, and says whether retrieval went right as a whole.

    The evaluator and the three actions of CRAG (Yan et al. 2024), with one prompted call for all passages in place of
    a trained model per passage. One relevant hit makes the verdict `correct`, irrelevant ones alone `incorrect`,
    anything else `ambiguous`; no hit at all is `incorrect` and the model is not asked. A hit that the model leaves out
    is ambiguous; of two grades for one hit the first counts.

    Args:
        hits: the hits to grade, best first.
        question: the question.
        keep: which hits stay in `ranking`: only the `relevant` ones, or all that are `not_irrelevant`.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_passages: how many of the hits are graded; those behind them are dropped, with a note in the trace.
        max_tokens: bounds what the model writes; reaching it is an error.
        temperature: 0 makes the grades as repeatable as the model allows.
        language: language of the prompt; `auto` takes the question's.
        on_invalid: after an answer of the wrong form or one that was cut off, `fail` fails the step and `keep` takes
            all hits for ambiguous, marked degraded.

    Raises:
        NodeInputError: the question is empty or the template is wrong.
        ServiceError: the model failed, or there is no hit because retrieval failed.
    """
    if not has_evidence(hits):
        return Graded(ranking=hits)
    shown = hits.hits[:max_passages]
    if len(shown) < len(hits):
        report_note(f"{len(hits) - len(shown)} hits behind the first {max_passages} were not graded and dropped")
    values = gather(question, passages=shown)
    form = bounded(Grades, "grades", max_passages)
    how = Asking(prompt, max_tokens, temperature, language)
    draft = await ask_or_none(llm, "grade_documents", form, values, how, on_invalid, "no hit was graded")
    first: dict[int, Relevance] = {}
    for grade in draft.grades if draft else ():
        first.setdefault(grade.n, grade.label)
    positions, unknown = pick(first, len(shown))
    labels = [first.get(number, "ambiguous") for number in range(1, len(shown) + 1)]
    ungraded = len(shown) - len(positions)
    if ungraded and draft:
        report_note(f"the model left {ungraded} hits ungraded; they count as ambiguous")
    return _graded(hits, shown, labels, keep, ungraded=ungraded, unknown=unknown)


@node(
    "judge.grade_scores",
    example="""
    best: {use: rerank.cross_encoder, hits: $found}
    graded: {use: judge.grade_scores, hits: $best, upper: 0.5, lower: -0.5, kind: model}
    """,
)
def grade_scores(
    hits: Ranking,
    *,
    upper: Annotated[float, Field(allow_inf_nan=False)],
    lower: Annotated[float, Field(allow_inf_nan=False)],
    kind: ScoreKind,
    keep: Keep = "not_irrelevant",
) -> Graded:
    """Grades each hit by its score, such as a reranker's: CRAG's three actions without a language model.

    Above `upper` a hit is relevant, below `lower` irrelevant, else ambiguous; the verdict follows as in
    `judge.grade_documents`. Sound thresholds depend on what made the scores and have to be measured.

    Args:
        hits: the hits to grade.
        upper: scores above this are relevant.
        lower: scores below this are irrelevant.
        kind: the kind of score that both thresholds are meant for.
        keep: which hits stay in `ranking`: only the `relevant` ones, or all that are `not_irrelevant`.

    Raises:
        NodeInputError: `lower` is above `upper`, or the ranking holds scores of another kind.
        ServiceError: there is no hit because retrieval failed.
    """
    if lower > upper:
        raise NodeInputError(f"judge.grade_scores: `lower` ({lower:g}) is above `upper` ({upper:g}).", kind="input")
    if not has_evidence(hits):
        return Graded(ranking=hits)
    if hits.score_kind != kind:
        raise NodeInputError(
            f"The thresholds are meant for `{kind}` scores, but the ranking holds `{hits.score_kind}` scores.",
            hint=f"write `kind: {hits.score_kind}` with thresholds that suit those scores",
        )
    return _graded(hits, hits.hits, [_label(hit.score, upper, lower) for hit in hits], keep)


def _label(score: float, upper: float, lower: float) -> Relevance:
    if score > upper:
        return "relevant"
    return "irrelevant" if score < lower else "ambiguous"


def _graded(
    hits: Ranking,
    shown: Sequence[Hit],
    labels: Sequence[Relevance],
    keep: Keep,
    *,
    ungraded: int = 0,
    unknown: int = 0,
) -> Graded:
    kept = {"relevant"} if keep == "relevant" else {"relevant", "ambiguous"}
    return Graded(
        ranking=keep_hits(hits, [hit for hit, label in zip(shown, labels, strict=True) if label in kept]),
        verdict=_verdict(labels),
        grades=tuple(Grade(hit_id=hit.id, label=label) for hit, label in zip(shown, labels, strict=True)),
        ungraded=ungraded,
        unknown=unknown,
    )


def _verdict(labels: Sequence[Relevance]) -> Correctness:
    if "relevant" in labels:
        return "correct"
    return "ambiguous" if "ambiguous" in labels else "incorrect"


class Verdict(Draft):
    """Whether the answer will do."""

    thinking: Note = Field(default="", description="what was asked and what the answer says, in a sentence or two")
    acceptable: bool = Field(description="whether the answer will do")
    missing: list[Line] = Field(description="what still has to be looked up; empty when acceptable")


@node(
    "judge.answer",
    example="""
    found: {use: retrieve.hybrid, query: $question, top_k: 8}
    draft: {use: generate.answer, hits: $found}
    verdict: {use: judge.answer, answer: $draft, evidence: $found}
    """,
)
async def judge_answer(
    answer: Answer,
    question: str,
    evidence: Ranking = Ranking(),  # noqa: B008  # frozen
    *,
    llm: LLM,
    prompt: Annotated[str | None, prompt_file("passages", "answer", "max_missing")] = None,
    max_missing: Annotated[int, Field(ge=1, le=20)] = 5,
    max_passages: PassageLimit = 10,
    max_tokens: PositiveInt = 500,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
) -> Judgement:
    """Says whether an answer settles the question, and what is still missing.

    It sees question, answer and evidence, never a reference answer. A refusal is not acceptable and the model is not
    asked about it.

    Args:
        answer: the answer to judge.
        question: the question.
        evidence: the passages that it was written from; without them it is judged by what it says alone.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_missing: how many missing things the model may list; more go back to it as a mistake.
        max_passages: how many hits of the evidence the model sees.
        max_tokens: bounds what the model writes; reaching it is an error.
        temperature: 0 makes the judgement as repeatable as the model allows.
        language: language of the prompt; `auto` takes the question's.

    Raises:
        NodeInputError: the question is empty or the template is wrong.
        ServiceError: the model failed, or there is no evidence because retrieval failed.
    """
    if answer.refused or not answer.text.strip():
        return Judgement(acceptable=False)
    has_evidence(evidence)
    values = gather(
        question,
        passages=evidence.hits[:max_passages],
        lists={"answer": [answer.text]},
        facts={"max_missing": max_missing},
    )
    form = bounded(Verdict, "missing", max_missing)
    draft = await ask(llm, "judge_answer", form, values, Asking(prompt, max_tokens, temperature, language))
    missing = without_repeats(draft.missing)
    return Judgement(acceptable=draft.acceptable, missing=missing, thinking=draft.thinking.strip())
