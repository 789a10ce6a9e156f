"""The `context.*` nodes: what of the evidence a model gets to read."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveInt

from ragbraid.nodes.context_budget import budget
from ragbraid.nodes.prompts import one_line
from ragbraid.nodes.reasoning import (
    Asking,
    Draft,
    OnInvalid,
    PassageLimit,
    PromptLanguage,
    Temperature,
    ask_or_none,
    bounded,
    gather,
    has_evidence,
    keep_hits,
    pick,
    prompt_file,
)
from ragbraid.nodes.sentences import sentence_spans
from ragbraid.registry.context import report_note
from ragbraid.registry.contracts import Hit, Ranking, Span
from ragbraid.registry.node import node
from ragbraid.registry.resources import LLM

__all__ = ["budget", "compress"]

_PARAGRAPH_BREAK = re.compile(r"\n[ \t]*\n\s*")
_GAP = " … "


class Compression(Draft):
    """The sentences that matter."""

    sentences: list[int] = Field(description="numbers of the sentences that help to answer; empty when none does")


@dataclass(frozen=True, slots=True)
class _Sentence:
    """A sentence of a hit: `hits[hit].text[start:end]`."""

    hit: int
    start: int
    end: int


@node(
    "context.compress",
    example="""
    found: {use: retrieve.hybrid, query: $question, top_k: 8}
    short: {use: context.compress, hits: $found, min_items: 2}
    """,
)
async def compress(
    hits: Ranking,
    question: str,
    *,
    llm: LLM,
    min_items: NonNegativeInt = 1,
    max_sentences: Annotated[int, Field(ge=1, le=500)] = 30,
    prompt: Annotated[str | None, prompt_file("sentences", "max_sentences")] = None,
    max_passages: PassageLimit = 10,
    max_tokens: PositiveInt = 500,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
    on_invalid: OnInvalid = "fail",
) -> Ranking:
    """Keeps the sentences of the evidence that help to answer, letter for letter, and drops hits without any.

    The model sees all sentences numbered and returns numbers, so nothing can be invented. Kept sentences stand in
    their order; "…" marks a gap. A hit keeps its id, score and rank order; its span stays true, and is dropped where
    the kept sentences are not adjacent.

    Args:
        hits: the evidence, best first.
        question: the question.
        min_items: how many hits stay at least; the best of the dropped ones come back whole to fill up.
        max_sentences: how many sentences the model may keep; more go back to it as a mistake.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_passages: how many of the hits are read; those behind them are dropped, with a note in the trace.
        max_tokens: bounds what the model writes; reaching it is an error.
        temperature: 0 makes the choice as repeatable as the model allows.
        language: language of the prompt; `auto` takes the question's.
        on_invalid: after an answer of the wrong form or one that was cut off, `fail` fails the step and `keep` keeps
            all hits, marked degraded.

    Raises:
        NodeInputError: the question is empty or the template is wrong.
        ServiceError: the model failed, or there is no evidence because retrieval failed.
    """
    if not has_evidence(hits):
        return hits
    shown = hits.hits[:max_passages]
    if len(shown) < len(hits):
        report_note(f"{len(hits) - len(shown)} hits behind the first {max_passages} were not read and dropped")
    sentences = [each for position, hit in enumerate(shown) for each in _split(position, hit.text)]
    values = gather(
        question,
        lists={"sentences": [_shown(shown[each.hit], each) for each in sentences]},
        facts={"max_sentences": max_sentences},
    )
    form = bounded(Compression, "sentences", max_sentences)
    how = Asking(prompt, max_tokens, temperature, language)
    draft = await ask_or_none(llm, "compress", form, values, how, on_invalid, "nothing was left out")
    if draft is None:
        return hits
    positions, _ = pick(draft.sentences, len(sentences))
    return keep_hits(hits, _compressed(shown, [sentences[each] for each in sorted(positions)], min_items))


def _split(hit: int, text: str) -> list[_Sentence]:
    found = []
    start = 0
    for end in (*(match.end() for match in _PARAGRAPH_BREAK.finditer(text)), len(text)):
        spans = sentence_spans(text[start:end])
        found += [_Sentence(hit, start + first, start + last) for first, last in spans]
        start = end
    return found


def _shown(hit: Hit, sentence: _Sentence) -> str:
    """A sentence as the model sees it: the title tells what "it" is about."""
    text = one_line(hit.text[sentence.start : sentence.end])
    return f"({hit.title}) {text}" if hit.title else text


def _compressed(shown: Sequence[Hit], kept: Sequence[_Sentence], min_items: int) -> list[Hit]:
    by_hit: dict[int, list[_Sentence]] = {}
    for sentence in kept:
        by_hit.setdefault(sentence.hit, []).append(sentence)
    whole = _first_missing(len(shown), by_hit, min_items - len(by_hit))
    return [
        _shortened(hit, by_hit[position]) if position in by_hit else hit
        for position, hit in enumerate(shown)
        if position in by_hit or position in whole
    ]


def _first_missing(total: int, present: Collection[int], count: int) -> list[int]:
    return [position for position in range(total) if position not in present][: max(count, 0)]


def _shortened(hit: Hit, sentences: Sequence[_Sentence]) -> Hit:
    """Cut a hit down to sentences of it; adjacent ones stay together with what stands between them."""
    runs: list[tuple[int, int]] = []
    for sentence in sentences:
        if runs and not hit.text[runs[-1][1] : sentence.start].strip():
            runs[-1] = (runs[-1][0], sentence.end)
        else:
            runs.append((sentence.start, sentence.end))
    if len(runs) == 1 and not (hit.text[: runs[0][0]].strip() or hit.text[runs[0][1] :].strip()):
        return hit
    span = None
    if len(runs) == 1 and hit.span is not None and hit.span.end - hit.span.start == len(hit.text):
        span = Span(start=hit.span.start + runs[0][0], end=hit.span.start + runs[0][1])
    text = _GAP.join(hit.text[start:end] for start, end in runs)
    return hit.model_copy(update={"text": text, "embed_text": None, "span": span})
