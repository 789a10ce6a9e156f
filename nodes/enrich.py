"""The `enrich.*` nodes: what a model adds to chunks before they are indexed."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, TypeVar

from pydantic import Field, PositiveInt

from ragbraid.nodes.prompts import Language, choose_language, load_template
from ragbraid.nodes.reasoning import (
    Asking,
    Draft,
    Line,
    PromptLanguage,
    Temperature,
    Texts,
    ask_in,
    bounded,
    gather,
    without_repeats,
)
from ragbraid.registry.context import report_degraded, report_note, report_progress
from ragbraid.registry.contracts import Chunk, ChunkSet, Hit
from ragbraid.registry.errors import ServiceError
from ragbraid.registry.node import PromptFile, node
from ragbraid.registry.resources import LLM

T = TypeVar("T")
R = TypeVar("R")

_NAMESPACE = uuid.UUID("0f6c8f5a-3f43-5c0b-9d0e-52f1f3a7a6d1")
_FAILURES_OF_ONE_CHUNK = ("invalid_output", "truncated", "refused")
"""Failures that say something about a single chunk; any other one would meet all of them."""


class AtomQuestions(Draft):
    """The questions that the passage answers."""

    questions: list[Line] = Field(description="one self-contained question each; empty when the passage states nothing")


@node(
    "enrich.tag_atoms",
    example="""
    chunks: {use: chunk.recursive, documents: $documents}
    tagged: {use: enrich.tag_atoms, chunks: $chunks, max_questions: 10}
    """,
)
async def tag_atoms(
    chunks: ChunkSet,
    *,
    llm: LLM,
    prompt: Annotated[str | None, PromptFile(("passages", "max_questions", "rule", "key", "language"))] = None,
    max_questions: Annotated[int, Field(ge=1, le=100)] = 10,
    max_untagged_share: Annotated[float, Field(ge=0, le=1)] = 0.2,
    concurrency: Annotated[int, Field(ge=1, le=64)] = 4,
    max_tokens: PositiveInt = 1500,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
) -> ChunkSet:
    """Adds to each chunk the questions that it answers, as chunks of kind `atom` that point back to it.

    The atomic tagging of PIKE-RAG (Wang et al. 2025), at temperature 0 where that has 0.7, so that unchanged chunks
    keep their atoms. An atom follows its chunk, has its id as `parent_id`, and its source, title and metadata; its own
    id follows from both, so a rerun gives the same. Repeated questions are left out. A chunk whose answer had the wrong
    form or was cut off stays without atoms, which marks the step as degraded.

    Args:
        chunks: the chunks to tag; atoms among them stay as they are.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_questions: how many questions the model may write for one chunk; more go back to it as a mistake.
        max_untagged_share: fail when a larger share of the chunks than this gets no atom.
        concurrency: how many chunks are with the model at once.
        max_tokens: bounds what the model writes for one chunk.
        temperature: 0 makes the questions as repeatable as the model allows.
        language: language of the prompt and so of the questions; `auto` takes each chunk's.

    Raises:
        NodeInputError: the template is wrong.
        ServiceError: the model failed, or gave too many chunks no question (kind `invalid_output`).
    """
    how = Asking(prompt, max_tokens, temperature, language)
    form = bounded(AtomQuestions, "questions", max_questions)
    plain = [chunk for chunk in chunks.chunks if chunk.kind != "atom"]
    if not plain:
        return chunks
    done = 0
    failures: dict[str, ServiceError] = {}

    async def tag(chunk: Chunk) -> Texts:
        nonlocal done
        try:
            found = await _ask_about(chunk, llm, form, how, max_questions)
        except ServiceError as error:
            if error.kind not in _FAILURES_OF_ONE_CHUNK:
                raise
            failures[chunk.id] = error
            if len(failures) > max_untagged_share * len(plain):
                raise _too_few(len(failures), len(plain), failures, max_untagged_share) from None
            found = ()
        done += 1
        report_progress("tag chunks", done, len(plain))
        return found

    tagged = dict(zip((chunk.id for chunk in plain), await _map(plain, tag, concurrency), strict=True))
    _require_enough(tagged, failures, max_untagged_share)
    made_by = _fingerprint(llm, how, max_questions)
    merged: list[Chunk] = []
    for chunk in chunks.chunks:
        merged.append(chunk)
        merged += [_atom(chunk, question, made_by) for question in tagged.get(chunk.id, ())]
    return chunks.model_copy(update={"chunks": tuple(merged)})


async def _ask_about(chunk: Chunk, llm: LLM, form: type[AtomQuestions], how: Asking, max_questions: int) -> Texts:
    shown = Hit(
        id=chunk.id,
        text=chunk.text,
        score=0.0,
        rank=1,
        score_kind="rank",
        title=chunk.title,
        section_path=chunk.section_path,
        source=chunk.source,
    )
    values = gather(None, passages=[shown], facts={"max_questions": max_questions})
    draft = await ask_in(_language_of(chunk, how), llm, "tag_atoms", form, values, how)
    return without_repeats(draft.questions)


def _language_of(chunk: Chunk, how: Asking) -> Language:
    if how.language == "auto" and chunk.language in ("en", "zh"):
        return "zh" if chunk.language == "zh" else "en"
    return choose_language(chunk.text, how.language)


def _atom(chunk: Chunk, question: str, made_by: str) -> Chunk:
    return Chunk(
        id=str(uuid.uuid5(_NAMESPACE, f"{chunk.id}\x1f{question}")),
        document_id=chunk.document_id,
        source=chunk.source,
        index=chunk.index,
        text=question,
        title=chunk.title,
        section_path=chunk.section_path,
        kind="atom",
        parent_id=chunk.id,
        language=chunk.language,
        made_by=made_by,
        metadata=chunk.metadata,
    )


def _require_enough(tagged: dict[str, Texts], failures: dict[str, ServiceError], max_share: float) -> None:
    untagged = sum(1 for questions in tagged.values() if not questions)
    if untagged > max_share * len(tagged):
        raise _too_few(untagged, len(tagged), failures, max_share)
    if failures:
        report_degraded(_summary(untagged, len(tagged), failures))
    elif untagged:
        report_note(_summary(untagged, len(tagged), failures))


def _too_few(untagged: int, total: int, failures: dict[str, ServiceError], max_share: float) -> ServiceError:
    allowed = f"`max_untagged_share` allows {max_share:.0%}"
    return ServiceError(f"{_summary(untagged, total, failures)} ({allowed}).", kind="invalid_output")


def _summary(untagged: int, total: int, failures: dict[str, ServiceError]) -> str:
    summary = f"{untagged} of {total} chunks got no question"
    if not failures:
        return summary
    first = str(next(iter(failures.values()))).rstrip(".")
    return f"{summary}, {len(failures)} of them because of a failure: {first}"


def _fingerprint(llm: LLM, how: Asking, max_questions: int) -> str:
    templates = [load_template("tag_atoms", "en"), load_template("tag_atoms", "zh")]
    settings = (llm.identity, how.prompt or templates, how.temperature, how.language, max_questions)
    return hashlib.sha256(repr(settings).encode()).hexdigest()[:16]


async def _map(items: Sequence[T], work: Callable[[T], Awaitable[R]], concurrency: int) -> list[R]:
    """Do the work for every item, results in the order of the items; the first failure stops the rest."""
    gate = asyncio.Semaphore(concurrency)

    async def one(item: T) -> R:
        async with gate:
            return await work(item)

    tasks = [asyncio.create_task(one(item)) for item in items]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
