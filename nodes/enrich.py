"""The `enrich.*` nodes: what is added to chunks before they are indexed, most of it by a model."""

from __future__ import annotations

import uuid
from typing import Annotated

from pydantic import Field, JsonValue, PositiveInt

from ragbraid.nodes.enrich_graph import extract_graph
from ragbraid.nodes.enrich_pmi import label_pairs, pmi_graph
from ragbraid.nodes.enrich_triples import extract_triples
from ragbraid.nodes.enriching import Enricher, enrich, fingerprint, language_of, show, stamp_chunk
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
from ragbraid.registry.contracts import Chunk, ChunkSet
from ragbraid.registry.knowledge import KnowledgeBase
from ragbraid.registry.node import PromptFile, node
from ragbraid.registry.resources import LLM

__all__ = ["extract_graph", "extract_triples", "label_pairs", "pmi_graph", "tag_atoms"]

_NAMESPACE = uuid.UUID("0f6c8f5a-3f43-5c0b-9d0e-52f1f3a7a6d1")
_TAGGER = Enricher(
    name="tag_atoms",
    doing="tag chunks",
    done="tagged",
    one="question",
    many="questions",
    share_setting="max_untagged_share",
    is_nothing=lambda said: said == [],
)


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
    made_by = fingerprint(llm, how, [_TAGGER.name], max_questions)
    stamps = {chunk.id: stamp_chunk(_TAGGER, chunk, made_by, how) for chunk in chunks.chunks if chunk.kind != "atom"}

    async def tag(chunk: Chunk) -> JsonValue:
        values = gather(None, passages=[show(chunk)], facts={"max_questions": max_questions})
        draft = await ask_in(language_of(chunk, how), llm, _TAGGER.name, form, values, how)
        return list(without_repeats(draft.questions))

    tagged = await enrich(_TAGGER, chunks, stamps, tag, kb=kb, concurrency=concurrency, max_share=max_untagged_share)
    return tagged.attach(lambda chunk, said: _with_atoms(chunk, said, made_by))


def _with_atoms(chunk: Chunk, said: JsonValue, made_by: str) -> list[Chunk]:
    questions = [str(question) for question in said] if isinstance(said, list) else []
    return [chunk, *(_atom(chunk, question, made_by) for question in questions)]


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
