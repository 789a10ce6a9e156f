"""How enrichers ask a model about chunks: about each chunk once, as long as a knowledge base remembers the answer.

An enricher stamps every question it would ask. The stamp stands for all that the answer depends on: the enricher with
its settings, its prompt, the model, and what it shows of the chunk. A chunk carries the answers by stamp
(`Chunk.enrichments`) into the knowledge base, where the next ingestion finds them: `docs/decisions/0006-*.md`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue

from ragbraid.registry.context import report_progress
from ragbraid.registry.contracts import Chunk
from ragbraid.registry.errors import ServiceError
from ragbraid.registry.knowledge import KnowledgeBase

ABOUT_ONE_CHUNK = ("invalid_output", "truncated", "refused")
"""Kinds of failures that say something about a single chunk; any other one is about the service."""
GIVE_UP_AFTER = 3
"""How many failures of the service in a row end the asking; each has been retried by the resource before."""


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


async def ask_once(
    chunks: Mapping[str, Chunk],
    ask: Callable[[Chunk], Awaitable[JsonValue]],
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
        ask: Callable[[Chunk], Awaitable[JsonValue]],
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
