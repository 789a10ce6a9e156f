"""How enrichers ask a model about chunks: about each chunk once, as long as a knowledge base remembers the answer.

An enricher stamps every question it would ask. The stamp stands for all that the answer depends on: the enricher with
its settings, its prompt, the model, and what it shows of the chunk. A chunk carries the answers by stamp
(`Chunk.enrichments`) into the knowledge base, where the next ingestion finds them: `docs/decisions/0006-*.md`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from ragbraid.nodes.prompts import Language, choose_language, load_template
from ragbraid.nodes.reasoning import Asking
from ragbraid.registry.context import report_degraded, report_note, report_progress
from ragbraid.registry.contracts import Chunk, ChunkSet, Hit, SourceFailure
from ragbraid.registry.errors import ServiceError
from ragbraid.registry.knowledge import KnowledgeBase
from ragbraid.registry.resources import LLM

ABOUT_ONE_CHUNK = ("invalid_output", "truncated", "refused")
"""Kinds of failures that say something about a single chunk; any other one is about the service."""
GIVE_UP_AFTER = 3
"""How many failures of the service in a row end the asking; each has been retried by the resource before."""
INCOMPLETE = "incomplete"
"""A key of answers of which a part is missing: they are used, but not kept, so that the next run asks again."""

Ask = Callable[[Chunk], Awaitable[JsonValue]]


@dataclass(frozen=True)
class Enricher:
    """An enricher in the words that users read: "tag chunks", "tagged", "question", "questions".

    `share_setting` is the setting that bounds the share of chunks which get nothing, and `is_nothing` tells whether an
    answer gives nothing.
    """

    name: str
    doing: str
    done: str
    one: str
    many: str
    share_setting: str
    is_nothing: Callable[[JsonValue], bool]


@dataclass
class Answers:
    """What a model said, by stamp.

    `recalled` holds the stamps whose answers were there before. `unusable` holds the stamps for which it gave no answer of the
    right form, `failed` those for which the service failed, and those that it was not asked about any more.
    """

    said: dict[str, JsonValue] = field(default_factory=dict)
    recalled: frozenset[str] = frozenset()
    unusable: dict[str, ServiceError] = field(default_factory=dict)
    failed: dict[str, ServiceError] = field(default_factory=dict)


def make_stamp(enricher: str, *parts: object) -> str:
    """Return the stamp of a question.

    Args:
        enricher: names the kind of question, for readers.
        parts: everything that the answer depends on; each must print the same in every process.
    """
    return f"{enricher}-{hashlib.sha256(repr(parts).encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"


def show(chunk: Chunk) -> Hit:
    """Return a chunk as the passage that a prompt shows."""
    return Hit(
        id=chunk.id,
        text=chunk.text,
        score=0.0,
        rank=1,
        score_kind="rank",
        title=chunk.title,
        section_path=chunk.section_path,
        source=chunk.source,
    )


def language_of(chunk: Chunk, how: Asking) -> Language:
    """Return the language to ask in about a chunk: the node's, else the chunk's own."""
    if how.language == "auto" and chunk.language in ("en", "zh"):
        return "zh" if chunk.language == "zh" else "en"
    return choose_language(chunk.text, how.language)


def fingerprint(llm: LLM, how: Asking, templates: Sequence[str], *settings: object) -> str:
    """Return what stands for model, prompts and settings in stamps; `max_tokens` only bounds an answer and is left out.

    Args:
        llm: the model.
        how: the node's settings for asking.
        templates: our templates that the node uses, by name.
        settings: everything else that the answer depends on.
    """
    texts = [load_template(name, language) for name in templates for language in ("en", "zh")]
    parts = (llm.identity, how.prompt or texts, how.temperature, how.language, *settings)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def stamp_chunk(enricher: Enricher, chunk: Chunk, made_by: str, how: Asking, *more: object) -> str:
    """Return the stamp of what an enricher asks about a chunk; `more` is what it shows beside the chunk."""
    # Our own templates do not show where a chunk comes from, so a file that was moved need not be asked about anew.
    place = None if how.prompt is None else chunk.source
    return make_stamp(
        enricher.name, made_by, chunk.text, chunk.title, chunk.section_path, place, language_of(chunk, how), *more
    )


def readable(chunks: ChunkSet) -> list[Chunk]:
    """Return the chunks that there is something to read in: those that are no atoms and not blank."""
    return [chunk for chunk in chunks.chunks if chunk.kind != "atom" and chunk.text.strip()]


@dataclass(frozen=True)
class Enriched:
    """The chunks whose sources are finished, and what the model said about them, by id of the chunk."""

    chunks: ChunkSet
    said: Mapping[str, JsonValue]
    stamps: Mapping[str, str]

    def attach(self, make: Callable[[Chunk, JsonValue], Sequence[Chunk]]) -> ChunkSet:
        """Return the chunks, each with what was said about it kept under its stamp, as `make` turns them into chunks."""
        merged: list[Chunk] = []
        for chunk in self.chunks.chunks:
            if chunk.id not in self.said:
                merged.append(chunk)
                continue
            said = self.said[chunk.id]
            if not (isinstance(said, dict) and said.get(INCOMPLETE)):
                kept = {**chunk.enrichments, self.stamps[chunk.id]: said}
                chunk = chunk.model_copy(update={"enrichments": kept})
            merged += make(chunk, said)
        return self.chunks.model_copy(update={"chunks": tuple(merged)})


async def enrich(
    enricher: Enricher,
    chunks: ChunkSet,
    stamps: Mapping[str, str],
    ask: Ask,
    *,
    kb: KnowledgeBase | None,
    concurrency: int,
    max_share: float,
) -> Enriched:
    """Ask a model about chunks once, and report what it did not answer.

    Sources that the model's failure left unfinished are taken out and reported as failed.

    Args:
        enricher: says what users read.
        chunks: all chunks, also those that are not asked about.
        stamps: the stamps of the chunks to ask about, by id of the chunk.
        ask: asks the model about one chunk.
        kb: where answers of earlier runs are kept; None where there is none to ask.
        concurrency: how many chunks are with the model at once.
        max_share: the largest share of the chunks asked about that may get nothing.

    Raises:
        ServiceError: the model failed from the start, or too many chunks got nothing (kind `invalid_output`).
    """
    answers = await ask_once(
        {stamps[chunk.id]: chunk for chunk in chunks.chunks if chunk.id in stamps},
        ask,
        kb=kb,
        concurrency=concurrency,
        label=enricher.doing,
        most_unusable=int(max_share * len(stamps)),
    )
    if answers.recalled:
        recalled = sum(stamp in answers.recalled for stamp in stamps.values())
        report_note(f"{recalled} chunks kept the {enricher.many} they had")
    finished = _without_failed(enricher, chunks, stamps, answers.failed)
    _require_enough(enricher, [stamps[c.id] for c in finished.chunks if c.id in stamps], answers, max_share)
    said = {id_: answers.said[stamp] for id_, stamp in stamps.items() if stamp in answers.said}
    return Enriched(finished, said, stamps)


def _without_failed(
    enricher: Enricher, chunks: ChunkSet, stamps: Mapping[str, str], failed: Mapping[str, ServiceError]
) -> ChunkSet:
    """Take the sources out that are not finished because the model failed, and report them as failed."""
    reasons = {
        chunk.source: failed[stamps[chunk.id]] for chunk in reversed(chunks.chunks) if stamps.get(chunk.id) in failed
    }
    if not reasons:
        return chunks
    failures = [
        SourceFailure(source=record.source, reason=f"Its chunks could not be {enricher.done}: {reasons[record.source]}")
        for record in chunks.sources
        if record.source in reasons
    ]
    report_degraded(
        f"{len(failures)} of {len(chunks.sources)} sources could not be {enricher.done}: {failures[0].reason}"
    )
    return chunks.model_copy(
        update={
            "chunks": tuple(chunk for chunk in chunks.chunks if chunk.source not in reasons),
            "sources": tuple(record for record in chunks.sources if record.source not in reasons),
            "failures": (*chunks.failures, *failures),
        }
    )


def _require_enough(enricher: Enricher, asked: Sequence[str], answers: Answers, max_share: float) -> None:
    errors = [answers.unusable[stamp] for stamp in asked if stamp in answers.unusable]
    nothing = len(errors) + sum(1 for s in asked if s in answers.said and enricher.is_nothing(answers.said[s]))
    summary = f"{nothing} of {len(asked)} chunks got no {enricher.one}"
    if errors:
        summary += f", {len(errors)} of them because of a failure: {str(errors[0]).rstrip('.')}"
    if nothing > max_share * len(asked):
        allowed = f"`{enricher.share_setting}` allows {max_share:.0%}"
        raise ServiceError(f"{summary} ({allowed}).", kind="invalid_output")
    if errors:
        report_degraded(summary)
    elif nothing:
        report_note(summary)


async def ask_once(
    chunks: Mapping[str, Chunk],
    ask: Ask,
    *,
    kb: KnowledgeBase | None,
    concurrency: int,
    label: str,
    most_unusable: int,
) -> Answers:
    """Return the answers about these chunks, asking only for those that neither chunk nor knowledge base has.

    Args:
        chunks: the chunks, by stamp.
        ask: asks the model about one chunk.
        kb: where answers of earlier runs are kept; None where there is none to ask.
        concurrency: how many chunks are with the model at once.
        label: of the progress.
        most_unusable: stop when more chunks than this have an unusable answer.

    Raises:
        ServiceError: the service failed and there is no answer at all.
    """
    answers = Answers(
        {stamp: chunk.enrichments[stamp] for stamp, chunk in chunks.items() if stamp in chunk.enrichments}
    )
    unknown = [stamp for stamp in chunks if stamp not in answers.said]
    if kb is not None and unknown:
        answers.said |= await asyncio.to_thread(kb.recall, unknown)
    answers.recalled = frozenset(answers.said)
    waiting = deque(stamp for stamp in unknown if stamp not in answers.said)
    await _Round(chunks, waiting, ask, answers, label, most_unusable).run(concurrency)
    if answers.failed and not answers.said:
        raise next(iter(answers.failed.values()))
    return answers


class _Round:
    """Asks about the chunks that wait, several at once, and knows when to stop."""

    def __init__(
        self,
        chunks: Mapping[str, Chunk],
        waiting: deque[str],
        ask: Ask,
        answers: Answers,
        label: str,
        most_unusable: int,
    ) -> None:
        self._chunks = chunks
        self._waiting = waiting
        self._ask = ask
        self._answers = answers
        self._label = label
        self._most_unusable = most_unusable
        self._total = len(waiting)
        self._done = 0
        self._in_a_row = 0
        self._given_up: ServiceError | None = None

    async def run(self, concurrency: int) -> None:
        """Ask until nothing waits or it makes no sense to go on; the first unexpected error stops everything."""
        workers = [asyncio.create_task(self._work()) for _ in range(min(concurrency, self._total))]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        if self._given_up is not None:
            self._answers.failed |= dict.fromkeys(self._waiting, self._given_up)

    async def _work(self) -> None:
        while self._waiting and self._given_up is None and len(self._answers.unusable) <= self._most_unusable:
            stamp = self._waiting.popleft()
            try:
                self._answers.said[stamp] = await self._ask(self._chunks[stamp])
                self._in_a_row = 0
            except ServiceError as error:
                self._note(stamp, error)
            self._done += 1
            report_progress(self._label, self._done, self._total)

    def _note(self, stamp: str, error: ServiceError) -> None:
        if error.kind in ABOUT_ONE_CHUNK:
            self._answers.unusable[stamp] = error
            self._in_a_row = 0
            return
        self._answers.failed[stamp] = error
        self._in_a_row += 1
        if error.kind == "auth" or self._in_a_row >= GIVE_UP_AFTER:
            self._given_up = error
