"""`query.keywords`: what a question is about, as themes and as names of things."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from ragbraid.nodes.reasoning import (
    Asking,
    Draft,
    Line,
    OnInvalid,
    PromptLanguage,
    Temperature,
    Texts,
    ask_or_none,
    gather,
    prompt_file,
    without_repeats,
)
from ragbraid.registry.context import report_degraded, report_note
from ragbraid.registry.errors import NodeInputError
from ragbraid.registry.graph import Keywords
from ragbraid.registry.node import node
from ragbraid.registry.resources import LLM

Levels = Literal["both", "high", "low"]


class KeywordLists(Draft):
    """What the question is about."""

    high: list[Line] = Field(description="themes, such as kinds of relations, processes and aims")
    low: list[Line] = Field(description="names and things: people, places, products, technical terms")


class ThemesAlone(KeywordLists):
    """What the question is about, as themes."""

    low: list[Line] = Field(default=[], description="an empty list")


class NamesAlone(KeywordLists):
    """What the question is about, as names and things."""

    high: list[Line] = Field(default=[], description="an empty list")


_FORMS: dict[Levels, type[KeywordLists]] = {"both": KeywordLists, "high": ThemesAlone, "low": NamesAlone}
"""The form for each level: a list that was not asked for may be missing."""


@node(
    "query.keywords",
    example="""
    keywords: {use: query.keywords, max_keywords: 10}
    things: {use: graph.entities, keywords: $keywords.low, top_k: 40}
    themes: {use: graph.facts, keywords: $keywords.high, top_k: 40}
    """,
)
async def keywords(
    question: str,
    high: Texts | None = None,
    low: Texts | None = None,
    *,
    llm: LLM,
    levels: Levels = "both",
    max_keywords: Annotated[int, Field(ge=1, le=50)] = 10,
    short_question: Annotated[int, Field(ge=0, le=10_000)] = 50,
    prompt: Annotated[str | None, prompt_file("levels", "max_keywords")] = None,
    max_tokens: PositiveInt = 300,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
    on_invalid: OnInvalid = "keep",
) -> Keywords:
    """Writes down what a question is about: its themes, which find facts, and names and things, which find entities.

    The dual-level keywords of LightRAG (Guo et al. 2024). Where the model finds none, the question stands for the names
    and things itself; LightRAG does so for short questions only, and finds nothing for others. A model that fails is
    an error and never "no keywords".

    Args:
        question: the question.
        high: themes that are known already.
        low: names and things that are known already. Where one of the two is given, the model is not asked.
        levels: which of the two the model is asked for, `both`, only `high` or only `low`.
        max_keywords: how many of each level are kept; a note in the trace tells of further ones.
        short_question: how many characters a question without keywords may have to be a normal case; for a longer one
            the step is marked degraded.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_tokens: bounds what the model writes; reaching it is an error.
        temperature: 0 makes the keywords as repeatable as the model allows.
        language: language of the prompt; `auto` takes the question's.
        on_invalid: after an answer of the wrong form or one that was cut off, `fail` fails the step and `keep` takes
            the question as it is for the names and things, marked degraded.

    Raises:
        NodeInputError: the question is empty or the template is wrong.
        ServiceError: the model failed.
    """
    if high is not None or low is not None:
        return Keywords(high=without_repeats(high or ()), low=without_repeats(low or ()))
    if not question.strip():
        raise NodeInputError("The question is empty.", kind="input")
    values = gather(question, facts={"levels": levels, "max_keywords": max_keywords})
    how = Asking(prompt, max_tokens, temperature, language)
    kept = "the question itself is searched for"
    draft = await ask_or_none(llm, "keywords", _FORMS[levels], values, how, on_invalid, kept)
    if draft is None:
        return _question_itself(question, levels)
    found = Keywords(
        high=_first(draft.high, max_keywords) if levels != "low" else (),
        low=_first(draft.low, max_keywords) if levels != "high" else (),
    )
    if found.high or found.low:
        return found
    tell = report_note if len(question) <= short_question else report_degraded
    tell(f"the model found no keywords; {kept}")
    return _question_itself(question, levels)


def _question_itself(question: str, levels: Levels) -> Keywords:
    return Keywords(high=(question,)) if levels == "high" else Keywords(low=(question,))


def _first(texts: list[str], most: int) -> Texts:
    found = without_repeats(texts)
    if len(found) > most:
        report_note(f"{len(found) - most} keywords behind the first {most} were left out")
    return found[:most]
