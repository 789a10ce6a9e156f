"""The `query.*` nodes: from a question to better search texts, and to the strategy that answers it."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from ragbraid.nodes.citations import without_markers
from ragbraid.nodes.graph_keywords import keywords
from ragbraid.nodes.reasoning import (
    Asking,
    Draft,
    Line,
    Note,
    OnInvalid,
    PromptLanguage,
    Temperature,
    Texts,
    ask_or_none,
    bounded,
    gather,
    prompt_file,
    tidy,
    without_repeats,
)
from ragbraid.nodes.report_drift import hyde_report
from ragbraid.nodes.sentences import sentence_spans
from ragbraid.registry.context import report_note
from ragbraid.registry.contracts import Answer, Query
from ragbraid.registry.node import node
from ragbraid.registry.reasoning import Route, Strategy
from ragbraid.registry.resources import LLM

__all__ = ["from_answer", "from_thought", "hyde", "hyde_report", "keywords", "multi", "rewrite", "route"]

_REASONING = re.compile(r"(?:thus|so|therefore|hence|that is)\b|(?:所以|因此|因而|于是|也就是说|综上)", re.IGNORECASE)
_ARITHMETIC = re.compile(r"\d+(?:\.\d+)?\s*[+\-−]\s*\d+(?:\.\d+)?\s*=\s*\d+")
_QUESTION_WORDS = re.compile(r"\b(?:who|whom|whose|what|when|where|which|why|how)\b\s*", re.IGNORECASE)
_COSTLIER: dict[Strategy, Strategy] = {"none": "single", "single": "multi", "multi": "multi"}


class Rewriting(Draft):
    """The question as a search engine finds it best."""

    query: Line = Field(description="the search text")

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not tidy(self.query):
            raise ValueError("`query` is empty")
        return self


@node(
    "query.rewrite",
    example="""
    better: {use: query.rewrite, style: keywords}
    """,
)
async def rewrite(
    question: str,
    missing: Texts = (),
    *,
    llm: LLM,
    style: Literal["question", "keywords"] = "question",
    prompt: Annotated[str | None, prompt_file("missing", "style")] = None,
    max_tokens: PositiveInt = 200,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
    on_invalid: OnInvalid = "fail",
) -> Query:
    """Rewrites a question so that a search engine finds more, as a clearer question or as keywords.

    Keywords are what CRAG (Yan et al. 2024) sends to its second source.

    Args:
        question: the question.
        missing: what an earlier search did not bring, such as `judge.answer` says it.
        style: `question` gives one complete question, `keywords` a few search terms.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_tokens: bounds what the model writes; reaching it is an error.
        temperature: 0 makes the query as repeatable as the model allows.
        language: language of the prompt; `auto` takes the question's.
        on_invalid: after an answer of the wrong form or one that was cut off, `fail` fails the step and `keep` gives
            the question as it is, marked degraded.

    Raises:
        NodeInputError: the question is empty or the template is wrong.
        ServiceError: the model failed.
    """
    values = gather(question, lists={"missing": missing}, facts={"style": style})
    how = Asking(prompt, max_tokens, temperature, language)
    draft = await ask_or_none(llm, "rewrite", Rewriting, values, how, on_invalid, "the question was kept")
    if draft is None:
        return Query(text=question)
    return Query(text=tidy(draft.query), role="keyword" if style == "keywords" else "rewrite")


class Variants(Draft):
    """The question in other words."""

    queries: list[Line] = Field(description="the variants", min_length=1)

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not any(map(tidy, self.queries)):
            raise ValueError("every query is empty")
        return self


@node(
    "query.multi",
    example="""
    variants: {use: query.multi, n: 3}
    """,
)
async def multi(
    question: str,
    *,
    llm: LLM,
    n: Annotated[int, Field(ge=1, le=20)] = 3,
    include_original: bool = True,
    prompt: Annotated[str | None, prompt_file("n")] = None,
    max_tokens: PositiveInt = 500,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
    on_invalid: OnInvalid = "fail",
) -> list[Query]:
    """Asks the same question in several ways, to search with each and fuse what they find.

    As LangChain's multi-query retriever, but a variant that repeats another (or the original, where that is searched
    for as well) is left out, so that no list counts twice in the fusion.

    Args:
        question: the question.
        n: how many variants the model writes at most, the original not counted; more go back to it as a mistake.
        include_original: put the question itself first.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_tokens: bounds what the model writes; reaching it is an error.
        temperature: 0 makes the variants as repeatable as the model allows.
        language: language of the prompt; `auto` takes the question's.
        on_invalid: after an answer of the wrong form or one that was cut off, `fail` fails the step and `keep` keeps
            the question alone, marked degraded.

    Raises:
        NodeInputError: the question is empty or the template is wrong.
        ServiceError: the model failed.
    """
    form = bounded(Variants, "queries", n)
    values = gather(question, facts={"n": n})
    how = Asking(prompt, max_tokens, temperature, language)
    draft = await ask_or_none(llm, "multi_query", form, values, how, on_invalid, "only the question is searched for")
    if draft is None:
        return [Query(text=question)]
    variants = without_repeats(draft.queries, [question] if include_original else [])
    if len(variants) < n:
        report_note(f"{len(variants)} different variants instead of {n}")
    original = [Query(text=question)] if include_original else []
    return original + [Query(text=variant, role="rewrite") for variant in variants]


class Hypothesis(Draft):
    """A passage that could stand in a document and answers the question."""

    passage: str = Field(
        description="the passage, a few sentences", json_schema_extra={"minLength": 1, "maxLength": 1200}
    )

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not tidy(self.passage):
            raise ValueError("`passage` is empty")
        return self


@node(
    "query.hyde",
    example="""
    imagined: {use: query.hyde}
    """,
)
async def hyde(
    question: str,
    *,
    llm: LLM,
    include_question: bool = True,
    prompt: Annotated[str | None, prompt_file()] = None,
    max_tokens: PositiveInt = 500,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
    on_invalid: OnInvalid = "fail",
) -> Query:
    """Writes a passage that would answer the question, to search for passages like it (HyDE, Gao et al. 2022).

    What it says is made up and serves the search alone. Where the original averages the vectors of several passages
    and the question, this node gives one text.

    Args:
        question: the question.
        include_question: put the question before the passage, so that its own words count in the search.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_tokens: bounds what the model writes; reaching it is an error.
        temperature: 0 makes the passage as repeatable as the model allows.
        language: language of the prompt; `auto` takes the question's.
        on_invalid: after an answer of the wrong form or one that was cut off, `fail` fails the step and `keep` keeps
            the question alone, marked degraded.

    Raises:
        NodeInputError: the question is empty or the template is wrong.
        ServiceError: the model failed.
    """
    how = Asking(prompt, max_tokens, temperature, language)
    kept = "only the question is searched for"
    draft = await ask_or_none(llm, "hyde", Hypothesis, gather(question), how, on_invalid, kept)
    if draft is None:
        return Query(text=question)
    passage = tidy(draft.passage)
    return Query(text=f"{question}\n{passage}" if include_question else passage, role="rewrite")


class Routing(Draft):
    """How much has to be looked up."""

    reason: Note = Field(default="", description="why, in a sentence")
    strategy: Strategy
    confidence: float = Field(ge=0, le=1, description="how sure this is, from 0 to 1")


@node(
    "query.route",
    example="""
    route: {use: query.route, min_confidence: 0.6}
    """,
)
async def route(
    question: str,
    *,
    llm: LLM,
    min_confidence: Annotated[float, Field(ge=0, le=1)] = 0.5,
    prompt: Annotated[str | None, prompt_file()] = None,
    max_tokens: PositiveInt = 200,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
    on_invalid: OnInvalid = "fail",
) -> Route:
    """Says whether a question needs no retrieval, a single one, or several in turn.

    After Adaptive-RAG (Jeong et al. 2024), with a prompted model in place of its trained classifier. Below
    `min_confidence` the next costlier strategy is taken, since looking up too much costs less than a wrong answer.

    Args:
        question: the question.
        min_confidence: the confidence from which on the model's choice stands; 0 takes it always.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_tokens: bounds what the model writes; reaching it is an error.
        temperature: 0 makes the choice as repeatable as the model allows.
        language: language of the prompt; `auto` takes the question's.
        on_invalid: after an answer of the wrong form or one that was cut off, `fail` fails the step and `keep` takes
            the costliest strategy, marked degraded.

    Raises:
        NodeInputError: the question is empty or the template is wrong.
        ServiceError: the model failed.
    """
    how = Asking(prompt, max_tokens, temperature, language)
    draft = await ask_or_none(llm, "route", Routing, gather(question), how, on_invalid, "the costliest was taken")
    if draft is None:
        return Route(strategy="multi", proposed="multi", confidence=0)
    is_sure = draft.confidence >= min_confidence
    return Route(
        strategy=draft.strategy if is_sure else _COSTLIER[draft.strategy],
        proposed=draft.strategy,
        confidence=draft.confidence,
        reason=draft.reason.strip(),
    )


@node(
    "query.from_thought",
    example="""
    search_text: {use: query.from_thought, thought: $thought}
    """,
)
def from_thought(thought: str, question: str, *, drop_question_words: bool = False) -> Query:
    """Turns a thought into a search text: its sentences that state something, else the question.

    Sentences that only conclude (they begin with thus, so, therefore, hence, that is, or 所以, 因此, ...) or calculate
    hold nothing to look up, as in IRCoT (Trivedi et al. 2023).

    Args:
        thought: the newest thought.
        question: the question, searched for when nothing of the thought is left.
        drop_question_words: leave out who, what, when, where, which, why and how, as IRCoT does for its BM25 search;
            off, because our own term search gives such words no weight and an embedder reads them.
    """
    sentences = [thought[start:end] for start, end in sentence_spans(thought)]
    stating = [each for each in sentences if not _REASONING.match(each) and not _ARITHMETIC.search(each)]
    text = " ".join(stating) or question
    shortened = " ".join(_QUESTION_WORDS.sub("", text).split()) if drop_question_words else text
    return Query(text=shortened or text, role="sub" if stating else "original")


@node(
    "query.from_answer",
    example="""
    found: {use: retrieve.hybrid, query: $question, top_k: 5}
    draft: {use: generate.answer, hits: $found}
    again: {use: query.from_answer, answer: $draft}
    """,
)
def from_answer(answer: Answer, question: str) -> Query:
    """Turns a question and an answer to it into a search text, to find what a better answer can be written from.

    The step between two rounds of ITER-RETGEN (Shao et al. 2023). Markers of citations are left out, since their
    numbers are no words to search for. A refusal says nothing of its subject: what the model said to be missing takes
    its place, and where it said nothing the question is searched for alone.

    Args:
        answer: the answer so far.
        question: the question, which comes first.
    """
    said = (answer.rationale or "") if answer.refused else answer.text
    text = f"{question}\n{without_markers(said)}".strip()
    return Query(text=text, role="original" if text == question else "rewrite")
