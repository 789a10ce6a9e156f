"""The steps of Self-RAG: whether to search, one sentence from each passage with a critique, and the best of these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import Field, NonNegativeFloat, PositiveInt, model_validator

from ragbraid.nodes.citations import without_markers
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
    gather,
    prompt_file,
    tidy,
    without_repeats,
)
from ragbraid.registry.context import report_note
from ragbraid.registry.contracts import Hit
from ragbraid.registry.node import node
from ragbraid.registry.reasoning import Need, Segment, Support
from ragbraid.registry.resources import LLM

_SUPPORT: dict[Support, float] = {"full": 1.0, "partial": 0.5, "none": 0.0}


class NeedDraft(Draft):
    """Whether something has to be looked up for the next sentence."""

    retrieve: bool = Field(description="true unless the next sentence needs no source at all")
    query: Note = Field(description="what to search for; empty when nothing")


@node(
    "reason.decide_retrieval",
    example="""
    need: {use: reason.decide_retrieval, written: $written}
    """,
)
async def decide_retrieval(
    question: str,
    written: Texts = (),
    *,
    llm: LLM,
    prompt: Annotated[str | None, prompt_file("written")] = None,
    max_tokens: PositiveInt = 200,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
    on_invalid: OnInvalid = "fail",
) -> Need:
    """Says whether the next sentence of an answer needs a search, and what to search for.

    The reflection token Retrieve of Self-RAG (Asai et al. 2023), asked of an ordinary model. Where the model wants to
    search and does not say for what, the question is searched for.

    Args:
        question: the question.
        written: the sentences of the answer so far, in order.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_tokens: bounds what the model writes; reaching it is an error.
        temperature: 0 makes the decision as repeatable as the model allows.
        language: language of the prompt; `auto` takes the question's.
        on_invalid: after an answer of the wrong form or one that was cut off, `fail` fails the step and `keep` searches
            for the question, marked degraded.

    Raises:
        NodeInputError: the question is empty or the template is wrong.
        ServiceError: the model failed.
    """
    values = gather(question, lists={"written": written})
    how = Asking(prompt, max_tokens, temperature, language)
    draft = await ask_or_none(
        llm, "decide_retrieval", NeedDraft, values, how, on_invalid, "the question is searched for"
    )
    if draft is None:
        return Need(retrieve=True, query=question)
    return Need(retrieve=draft.retrieve, query=tidy(draft.query) or question)


class SegmentDraft(Draft):
    """The next sentence of the answer and what you think of it."""

    is_relevant: bool = Field(description="whether the passage helps with the next sentence")
    sentence: Note = Field(description="the next sentence; empty when the passage does not help")
    quote: Line | None = Field(
        description="the words of the passage that bear it out, copied; null when there are none"
    )
    support: Support = Field(description="how far the passage bears the sentence out")
    usefulness: int = Field(ge=1, le=5, description="how much the sentence helps to answer, from 1 to 5")
    is_final: bool = Field(description="whether the answer is complete with this sentence")

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.is_relevant and not tidy(self.sentence):
            raise ValueError("`sentence` is empty although `is_relevant` is true")
        return self


@node(
    "reason.write_segment",
    example="""
    draft: {use: reason.write_segment, passage: $hit, written: $written}
    """,
)
async def write_segment(
    question: str,
    passage: Hit | None = None,
    written: Texts = (),
    *,
    llm: LLM,
    prompt: Annotated[str | None, prompt_file("passages", "written")] = None,
    max_tokens: PositiveInt = 500,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
    on_invalid: OnInvalid = "fail",
) -> Segment:
    """Writes the next sentence of an answer from one passage, and judges passage and sentence.

    Sentence and reflection tokens IsRel, IsSup and IsUse of Self-RAG (Asai et al. 2023) in one call of an ordinary model:
    it judges its own writing and has no probabilities, so that its critique is worth less than that of the trained
    model. Without a passage the sentence comes from what the model knows, is supported by nothing, and is noted.

    Args:
        question: the question.
        passage: the passage.
        written: the sentences of the answer so far, in order.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_tokens: bounds what the model writes; reaching it is an error.
        temperature: 0 makes the sentence as repeatable as the model allows.
        language: language of the prompt; `auto` takes the question's.
        on_invalid: after an answer of the wrong form or one that was cut off, `fail` fails the step and `keep` takes the
            passage for irrelevant, marked degraded.

    Raises:
        NodeInputError: the question is empty or the template is wrong.
        ServiceError: the model failed.
    """
    values = gather(question, passages=[] if passage is None else [passage], lists={"written": written})
    how = Asking(prompt, max_tokens, temperature, language)
    draft = await ask_or_none(llm, "write_segment", SegmentDraft, values, how, on_invalid, "the passage was left out")
    if draft is None:
        return Segment(hit=passage)
    if passage is None:
        report_note("written from what the model knows; nothing was looked up")
    return Segment(
        text=without_markers(tidy(draft.sentence)),
        hit=passage,
        quote=(draft.quote or "").strip() if passage else "",
        is_relevant=draft.is_relevant,
        support=draft.support if passage else "none",
        usefulness=draft.usefulness,
        is_final=draft.is_final,
    )


@node(
    "reason.best_segment",
    example="""
    best: {use: reason.best_segment, segments: $drafts, written: $written}
    """,
)
def best_segment(
    segments: Sequence[Segment],
    written: Texts = (),
    *,
    relevance_weight: NonNegativeFloat = 1.0,
    support_weight: NonNegativeFloat = 1.0,
    usefulness_weight: NonNegativeFloat = 0.5,
) -> Segment | None:
    """Takes the best of several sentences by the weighted sum of their critiques, or none of them.

    The score of Self-RAG (Asai et al. 2023) without the probability of the text, which services do not give:
    relevance (0 or 1), support (1, 0.5 or 0) and usefulness ((n - 3) / 2). Sentences that are irrelevant, empty or written
    already are left out; of equal ones the first is taken.

    Args:
        segments: the sentences, those of better passages first.
        written: the sentences of the answer so far.
        relevance_weight: what a relevant passage counts.
        support_weight: what full support counts.
        usefulness_weight: what usefulness counts; 1 to 5 becomes -1 to 1.
    """
    usable = [each for each in segments if each.is_relevant and without_repeats([each.text], written)]
    if len(usable) < len(segments):
        report_note(
            f"{len(segments) - len(usable)} of {len(segments)} sentences were irrelevant, empty or written already"
        )

    def score(segment: Segment) -> float:
        support = _SUPPORT[segment.support]
        usefulness = (segment.usefulness - 3) / 2
        relevance = float(segment.hit is not None)
        return relevance_weight * relevance + support_weight * support + usefulness_weight * usefulness

    return max(usable, key=score, default=None)
