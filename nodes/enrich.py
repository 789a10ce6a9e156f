"""The `enrich.*` nodes: what a model adds to chunks before they are indexed."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field, JsonValue, PositiveInt

from ragbraid.nodes.enriching import Answers, ask_once, make_stamp
from ragbraid.nodes.prompts import Language, choose_language, load_template
from ragbraid.nodes.reasoning import (
    Asking,
    Draft,
    Line,
    PromptLanguage,
    Temperature,
    ask_in,
    bounded,
    gather,
    without_repeats,
)
from ragbraid.registry.context import report_degraded, report_note
from ragbraid.registry.contracts import Chunk, ChunkSet, Hit, SourceFailure
from ragbraid.registry.errors import ServiceError
from ragbraid.registry.knowledge import KnowledgeBase
from ragbraid.registry.node import PromptFile, node
from ragbraid.registry.resources import LLM

_NAMESPACE = uuid.UUID("0f6c8f5a-3f43-5c0b-9d0e-52f1f3a7a6d1")


class AtomQuestions(Draft):
    """The questions that the passage answers."""

    questions: list[Line] = Field(description="one self-contained question each; empty when the passage states nothing")


@node(
    "enrich.tag_atoms",
    cacheable=False,
    example="""
    chunks: {use: chunk.recursive, documents: $documents}
    tagged: {use: enrich.tag_atoms, chunks: $chunks, max_questions: 10}
    """,
)
async def tag_atoms(
    chunks: ChunkSet,
    *,
    llm: LLM,
    kb: KnowledgeBase | None = None,
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
    id follows from both, so a rerun gives the same. Repeated questions are left out.

    A chunk that the knowledge base holds as it was tagged before (same text, title, prompt, settings and model) keeps
    its questions, and the model is not asked about it. Where the model fails, the sources that it left unfinished are
    reported as failed and stay in the knowledge base as they are; the others go on. A chunk whose answer had the wrong
    form or was cut off stays without atoms, which marks the step as degraded; it is asked about again by the next run.

    Args:
        chunks: the chunks to tag; atoms among them stay as they are.
        kb: the knowledge base that the chunks will go to.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_questions: how many questions the model may write for one chunk; more go back to it as a mistake.
        max_untagged_share: fail when a larger share of the chunks than this gets no atom.
        concurrency: how many chunks are with the model at once.
        max_tokens: bounds what the model writes for one chunk.
        temperature: 0 makes the questions as repeatable as the model allows.
        language: language of the prompt and so of the questions; `auto` takes each chunk's.

    Raises:
        NodeInputError: the template is wrong.
        ServiceError: the model failed from the start, or gave too many chunks no question (kind `invalid_output`).
    """
    how = Asking(prompt, max_tokens, temperature, language)
    form = bounded(AtomQuestions, "questions", max_questions)
    made_by = _fingerprint(llm, how, max_questions)
    plain = [chunk for chunk in chunks.chunks if chunk.kind != "atom"]
    stamps = {chunk.id: _stamp(chunk, made_by, how) for chunk in plain}

    async def tag(chunk: Chunk) -> JsonValue:
        return list(await _ask_about(chunk, llm, form, how, max_questions))

    answers = await ask_once(
        {stamps[chunk.id]: chunk for chunk in plain},
        tag,
        kb=kb,
        concurrency=concurrency,
        label="tag chunks",
        most_unusable=int(max_untagged_share * len(plain)),
    )
    if answers.recalled:
        report_note(f"{sum(stamps[c.id] in answers.recalled for c in plain)} chunks kept the questions they had")
    tagged = _without_failed(chunks, stamps, answers.failed)
    _require_enough(tagged, stamps, answers, max_untagged_share)
    merged: list[Chunk] = []
    for chunk in tagged.chunks:
        stamp = stamps.get(chunk.id) if chunk.kind != "atom" else None
        merged += [chunk] if stamp not in answers.said else _with_atoms(chunk, stamp, answers.said[stamp], made_by)
    return tagged.model_copy(update={"chunks": tuple(merged)})


async def _ask_about(
    chunk: Chunk, llm: LLM, form: type[AtomQuestions], how: Asking, max_questions: int
) -> Sequence[str]:
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


def _stamp(chunk: Chunk, made_by: str, how: Asking) -> str:
    # Our own template does not show where a chunk comes from, so a file that was moved need not be tagged anew.
    place = None if how.prompt is None else chunk.source
    return make_stamp(
        "tag_atoms", made_by, chunk.text, chunk.title, chunk.section_path, place, _language_of(chunk, how)
    )


def _language_of(chunk: Chunk, how: Asking) -> Language:
    if how.language == "auto" and chunk.language in ("en", "zh"):
        return "zh" if chunk.language == "zh" else "en"
    return choose_language(chunk.text, how.language)


def _with_atoms(chunk: Chunk, stamp: str, said: JsonValue, made_by: str) -> list[Chunk]:
    questions = [str(question) for question in said] if isinstance(said, list) else []
    stamped = chunk.model_copy(update={"enrichments": {**chunk.enrichments, stamp: said}})
    return [stamped, *(_atom(chunk, question, made_by) for question in questions)]


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


def _without_failed(chunks: ChunkSet, stamps: Mapping[str, str], failed: Mapping[str, ServiceError]) -> ChunkSet:
    """Take the sources out that are not finished because the model failed, and report them as failed."""
    reasons = {
        chunk.source: failed[stamps[chunk.id]] for chunk in reversed(chunks.chunks) if stamps.get(chunk.id) in failed
    }
    if not reasons:
        return chunks
    failures = [
        SourceFailure(source=record.source, reason=f"Its chunks could not be tagged: {reasons[record.source]}")
        for record in chunks.sources
        if record.source in reasons
    ]
    report_degraded(f"{len(failures)} of {len(chunks.sources)} sources could not be tagged: {failures[0].reason}")
    return chunks.model_copy(
        update={
            "chunks": tuple(chunk for chunk in chunks.chunks if chunk.source not in reasons),
            "sources": tuple(record for record in chunks.sources if record.source not in reasons),
            "failures": (*chunks.failures, *failures),
        }
    )


def _require_enough(tagged: ChunkSet, stamps: Mapping[str, str], answers: Answers, max_share: float) -> None:
    mine = [stamps[chunk.id] for chunk in tagged.chunks if chunk.kind != "atom"]
    errors = [answers.unusable[stamp] for stamp in mine if stamp in answers.unusable]
    untagged = len(errors) + sum(1 for stamp in mine if answers.said.get(stamp) == [])
    summary = f"{untagged} of {len(mine)} chunks got no question"
    if errors:
        summary += f", {len(errors)} of them because of a failure: {str(errors[0]).rstrip('.')}"
    if untagged > max_share * len(mine):
        allowed = f"`max_untagged_share` allows {max_share:.0%}"
        raise ServiceError(f"{summary} ({allowed}).", kind="invalid_output")
    if errors:
        report_degraded(summary)
    elif untagged:
        report_note(summary)


def _fingerprint(llm: LLM, how: Asking, max_questions: int) -> str:
    templates = [load_template("tag_atoms", "en"), load_template("tag_atoms", "zh")]
    settings = (llm.identity, how.prompt or templates, how.temperature, how.language, max_questions)
    return hashlib.sha256(repr(settings).encode()).hexdigest()[:16]
