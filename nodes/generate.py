"""The `generate.*` nodes: from evidence to a cited answer, or to a refusal that says why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from ragbraid.nodes.citations import resolve_citations, without_markers
from ragbraid.nodes.prompts import Language, choose_language, load_template, render_messages
from ragbraid.nodes.reasoning import Draft, PromptLanguage, Temperature, Texts, answer_so_far, gather, tidy
from ragbraid.registry.context import report_degraded, report_note
from ragbraid.registry.contracts import Answer, Ranking
from ragbraid.registry.errors import NodeInputError, ServiceError
from ragbraid.registry.node import PromptFile, node
from ragbraid.registry.reasoning import Segment
from ragbraid.registry.resources import LLM, Embedder

NO_PASSAGES = "no_passages"
NOT_IN_PASSAGES = "not_in_passages"
NOT_KNOWN = "not_known"
_REFUSALS: dict[tuple[str, Language], str] = {
    (NO_PASSAGES, "en"): "No passage was found that could answer this question.",
    (NO_PASSAGES, "zh"): "没有找到可以回答这个问题的内容。",
    (NOT_IN_PASSAGES, "en"): "The passages that were found do not answer this question.",
    (NOT_IN_PASSAGES, "zh"): "找到的内容没有回答这个问题。",
    (NOT_KNOWN, "en"): "The model does not know the answer, and nothing was looked up.",
    (NOT_KNOWN, "zh"): "模型不知道答案，也没有检索任何内容。",
}


class DraftCitation(BaseModel):
    """One passage that supports the answer."""

    n: int = Field(description="the passage's number")
    # A bound that only the schema knows: it stops small models from copying on, and a longer quote does no harm.
    quote: str = Field(
        description="words copied from that passage", json_schema_extra={"minLength": 1, "maxLength": 300}
    )


class DraftAnswer(BaseModel):
    """The answer to the question, from the passages alone."""

    # The schema wants all three, because what it leaves open small models leave out; what arrives may lack the lists.
    model_config = ConfigDict(json_schema_extra={"required": ["cannot_answer", "answer", "citations"]})

    cannot_answer: bool = Field(default=False, description="true when the passages do not hold the answer")
    answer: str = Field(
        description="the answer with a passage number in square brackets after every statement",
        json_schema_extra={"minLength": 1, "maxLength": 2000},
    )
    citations: list[DraftCitation] = Field(default=[], json_schema_extra={"maxItems": 10})

    @classmethod
    def text_so_far(cls, written: Mapping[str, Any]) -> str:
        """Return the answer as far as it is written; a model that cannot answer writes why, which is no answer."""
        return answer_so_far(written)

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.cannot_answer and not self.answer.strip():
            raise ValueError("`answer` is empty although `cannot_answer` is false")
        return self


@node(
    "generate.answer",
    example="""
    found: {use: retrieve.hybrid, query: $question, top_k: 20}
    answer: {use: generate.answer, hits: $found, max_passages: 8}
    """,
)
async def answer(
    hits: Ranking,
    question: str,
    *,
    llm: LLM,
    thoughts: Texts = (),
    prompt: Annotated[str | None, PromptFile(("question", "passages", "thoughts", "language"))] = None,
    max_passages: Annotated[int, Field(ge=1, le=200)] = 10,
    max_tokens: PositiveInt = 1000,
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0,
    language: Literal["auto", "en", "zh"] = "auto",
    on_empty: Literal["refuse", "fail"] = "refuse",
) -> Answer:
    """Answers a question from passages with a language model, with citations that are checked against them.

    The model gets the passages numbered, each between marks that a passage cannot forge, and is told that what stands
    between them is material and never an instruction. Citations of numbers that no passage bears are removed and
    counted (`unknown_citations`); a quote that occurs in its passage is `verified`; markers are renumbered in order of
    appearance. An answer that cites nothing marks the step as degraded. Without passages the model is not asked: the
    answer is a refusal. After structured citations as in dsRAG and the refusal gate of AnythingLLM.

    Args:
        hits: the evidence, best first.
        question: the question; the answer comes in its language.
        thoughts: steps of reasoning that were written from such passages; shown beside them, never cited.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_passages: how many of the hits the model sees.
        max_tokens: bounds what the model writes, JSON and quotes included; reaching it is an error, not an answer.
        temperature: 0 makes the answer as repeatable as the model allows.
        language: language of the prompt and of refusals; `auto` takes the question's.
        on_empty: without any hit, `refuse` answers with a refusal and `fail` fails the step.

    Raises:
        NodeInputError: the question is empty, the template is wrong, or there is no hit and `on_empty` is `fail`.
        ServiceError: the model failed, or there is no hit because retrieval failed. Neither is ever a refusal.
    """
    if not question.strip():
        raise NodeInputError("The question is empty.", kind="input")
    spoken = choose_language(question, language)
    if not hits:
        return _without_passages(hits, spoken, on_empty)
    if hits.degraded:
        report_degraded(f"answered from incomplete evidence: {hits.error or 'a part of retrieval failed'}")
    shown = hits.hits[:max_passages]
    default = load_template("answer", spoken)
    values = {**gather(question, passages=shown, lists={"thoughts": thoughts}), "language": spoken}
    messages = render_messages(default if prompt is None else prompt, default, values)
    completion = await llm.extract(messages, DraftAnswer, max_tokens=max_tokens, temperature=temperature)
    draft = completion.value
    if draft.cannot_answer:
        return _refusal(NOT_IN_PASSAGES, spoken).model_copy(
            update={"rationale": draft.answer.strip() or None, "usage": completion.usage}
        )
    cited = resolve_citations(draft.answer, [(c.n, c.quote) for c in draft.citations], shown)
    if not cited.citations:
        report_degraded("the answer cites no passage")
    return Answer(text=cited.text, citations=cited.citations, unknown_citations=cited.unknown, usage=completion.usage)


def _without_passages(hits: Ranking, language: Language, on_empty: Literal["refuse", "fail"]) -> Answer:
    if hits.degraded or hits.error:
        raise ServiceError(
            f"There are no passages to answer from, because retrieval failed: {hits.error or 'no reason was given'}",
            kind="unavailable",
        )
    if on_empty == "fail":
        raise NodeInputError("There are no passages to answer from.", kind="input")
    return _refusal(NO_PASSAGES, language)


def _refusal(reason: str, language: Language) -> Answer:
    return Answer(text=_REFUSALS[reason, language], refused=True, refusal_reason=reason)


class DraftRecollection(Draft):
    """The answer to the question, from what is known."""

    cannot_answer: bool = Field(description="true when the answer is not known for sure")
    answer: str = Field(description="the answer", json_schema_extra={"minLength": 1, "maxLength": 2000})

    @classmethod
    def text_so_far(cls, written: Mapping[str, Any]) -> str:
        """Return the answer as far as it is written; see `DraftAnswer`."""
        return answer_so_far(written)

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.cannot_answer and not tidy(self.answer):
            raise ValueError("`answer` is empty although `cannot_answer` is false")
        return self


@node(
    "generate.closed_book",
    example="""
    answer: generate.closed_book
    """,
)
async def closed_book(
    question: str,
    *,
    llm: LLM,
    prompt: Annotated[str | None, PromptFile(("question", "language"))] = None,
    max_tokens: PositiveInt = 1000,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
) -> Answer:
    """Answers a question from what the model knows, without any passage and so without citations; refuses when unsure.

    For questions that need no search, such as `query.route` finds them; nothing of such an answer can be checked, which
    the trace says. A refusal lets a flow look the question up after all.

    Args:
        question: the question; the answer comes in its language.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_tokens: bounds what the model writes; reaching it is an error, not an answer.
        temperature: 0 makes the answer as repeatable as the model allows.
        language: language of the prompt and of refusals; `auto` takes the question's.

    Raises:
        NodeInputError: the question is empty or the template is wrong.
        ServiceError: the model failed.
    """
    if not question.strip():
        raise NodeInputError("The question is empty.", kind="input")
    spoken = choose_language(question, language)
    default = load_template("closed_book", spoken)
    values = {"question": question, "language": spoken}
    messages = render_messages(default if prompt is None else prompt, default, values)
    completion = await llm.extract(messages, DraftRecollection, max_tokens=max_tokens, temperature=temperature)
    draft, usage = completion.value, completion.usage
    if draft.cannot_answer:
        rationale = draft.answer.strip() or None
        return _refusal(NOT_KNOWN, spoken).model_copy(update={"rationale": rationale, "usage": usage})
    report_note("written from what the model knows; nothing was looked up")
    return Answer(text=without_markers(draft.answer), usage=usage)


@node(
    "generate.from_segments",
    example="""
    answer: {use: generate.from_segments, segments: $written}
    """,
)
def from_segments(
    segments: Sequence[Segment], question: str, *, language: Literal["auto", "en", "zh"] = "auto"
) -> Answer:
    """Puts sentences that were written one by one together as an answer; each cites the passage that supports it.

    A sentence that its passage does not support at all, or that has no passage, stands without a citation, which marks
    the step as degraded. Without any sentence the answer is a refusal.

    Args:
        segments: the sentences, in order.
        question: the question; a refusal comes in its language.
        language: language of a refusal; `auto` takes the question's.
    """
    spoken = choose_language(question, language)
    if not segments:
        return _refusal(NOT_IN_PASSAGES, spoken)
    hits = list({each.hit.id: each.hit for each in segments if each.hit}.values())
    numbers = {hit.id: number for number, hit in enumerate(hits, start=1)}
    parts, quotes = [], []
    for each in segments:
        number = numbers[each.hit.id] if each.hit and each.support != "none" else None
        parts.append(each.text if number is None else f"{each.text} [{number}]")
        quotes += [(number, each.quote)] if number is not None else []
    bare = len(segments) - len(quotes)
    if bare:
        report_degraded(f"{bare} of {len(segments)} sentences are supported by no passage")
    cited = resolve_citations(("" if spoken == "zh" else " ").join(parts), quotes, hits)
    return Answer(text=cited.text, citations=cited.citations)


@node(
    "generate.extract",
    blocking=True,
    example="""
    found: {use: retrieve.hybrid, query: $question, top_k: 20}
    answer: {use: generate.extract, hits: $found, max_sentences: 3}
    """,
)
def extract(
    hits: Ranking,
    question: str,
    *,
    embedder: Embedder,
    max_sentences: Annotated[int, Field(ge=1, le=20)] = 3,
    min_score: Annotated[float, Field(ge=0, le=1)] | None = None,
) -> Answer:
    """Answers a question with the sentences of the evidence that support it best, cited; needs no language model.

    Args:
        hits: the evidence, best first.
        question: the question, Chinese or English.
        max_sentences: how many sentences the answer holds at most.
        min_score: the relevance below which a sentence is no evidence; the measured default when left out.

    Raises:
        NodeInputError: the question is empty.
        ServiceError: there is no hit because retrieval failed.
    """
    if not question.strip():
        raise NodeInputError("The question is empty.", kind="input")
    if not hits and (hits.degraded or hits.error):
        return _without_passages(hits, choose_language(question), "refuse")
    from ragbraid.nodes.extract import extract_answer  # its patterns take longer to compile than a flow to check

    return extract_answer(question, hits, embedder, max_sentences=max_sentences, min_score=min_score)
