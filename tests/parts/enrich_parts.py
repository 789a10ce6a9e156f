"""What the tests of the enrichers share: chunk sets, and a scripted model that answers by what stands in a prompt."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Self

from graph_parts import open_kb
from index_parts import HashEmbedder, WordSparse
from reasoning_parts import Asked, model

from ragbraid.flows.scripted_llm import ScriptedLLM
from ragbraid.flows.scripted_rules import ChatRequest, Reply, Responder
from ragbraid.nodes.graph_pmi import view_of
from ragbraid.nodes.index import upsert
from ragbraid.nodes.store_client import MEMORY, open_local
from ragbraid.registry.context import StepContext, step_context
from ragbraid.registry.contracts import Chunk, ChunkSet, IndexReport, SourceRecord
from ragbraid.registry.graph import Entity, Fact
from ragbraid.registry.graph_view import GraphView


def documents(**texts: str | tuple[str, ...]) -> ChunkSet:
    """A chunk set of one source for each keyword, with a chunk for each text."""
    chunks, sources = [], []
    for name, given in texts.items():
        source = f"{name}.md"
        sources.append(SourceRecord(source=source, document_id=name, content_hash=str(given)))
        for n, text in enumerate((given,) if isinstance(given, str) else given):
            chunks.append(Chunk(id=f"{name}:{text}", document_id=name, source=source, index=n, text=text))
    return ChunkSet(chunks=tuple(chunks), sources=tuple(sources), scope="docs", complete=True)


def answers(**fields: Any) -> str:
    return json.dumps(fields, ensure_ascii=False)


def when(*texts: str, system: str = "", **fields: Any) -> Responder:
    """Answers a request whose user message holds all of these texts and whose system message holds that one."""

    def respond(request: ChatRequest) -> Reply | None:
        held = all(text in request.user for text in texts) and system in request.system
        return Reply(text=answers(**fields)) if held else None

    return respond


def view(chunks: ChunkSet) -> GraphView:
    """The knowledge graph of a chunk set."""
    return view_of(chunks.chunks)


def entity(graph: GraphView, name: str) -> Entity:
    """The one entity of this name."""
    (found,) = graph.named(name)
    return found


def texts(facts: Any) -> list[str]:
    """The facts as lines, in alphabetical order."""
    return sorted(fact.text for fact in facts if isinstance(fact, Fact))


class Index:
    """An ingestion by one enricher into a knowledge base in memory, its model's script replaced from run to run."""

    def __init__(self, enricher: Callable[..., Awaitable[ChunkSet]], rule: Responder, **settings: Any) -> None:
        self.kb = open_kb(open_local(MEMORY, "kb"))
        self._enricher = enricher
        self._settings = settings
        self._rule = rule
        self._script: list[Responder] = []
        self._server = ScriptedLLM([self._respond])

    def run(self, chunks: ChunkSet, *rules: Responder, **settings: Any) -> tuple[Asked[ChunkSet], IndexReport]:
        """Ingest chunks; the model answers by these rules, else always by the index's own."""
        self._script[:] = rules or [self._rule]
        before, step = len(self._server.chats), StepContext()
        with step_context(step):
            given = {**self._settings, **settings, "llm": model(self._server), "kb": self.kb}
            enriched = asyncio.run(_call(self._enricher, chunks, given))
        report = upsert(enriched, kb=self.kb, embedder=HashEmbedder(), sparse=WordSparse(), cleanup="scoped_full")
        assert self.kb.verify() == []
        return Asked(enriched, self._server.chats[before:], step), report

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.__exit__(*error)
        self.kb.close()

    def _respond(self, request: ChatRequest) -> Reply | None:
        return next((found for rule in self._script if (found := rule(request)) is not None), None)


async def _call(enricher: Callable[..., Awaitable[ChunkSet]], chunks: ChunkSet, given: dict[str, Any]) -> ChunkSet:
    return await enricher(chunks, **given)
