"""What the tests of the enrichers share: chunk sets, and a scripted model that answers by what stands in a prompt."""

from __future__ import annotations

import json
from typing import Any

from ragbraid.flows.scripted_rules import ChatRequest, Reply, Responder
from ragbraid.registry.contracts import Chunk, ChunkSet, SourceRecord
from ragbraid.registry.graph import Entity, Fact, make_entity, make_fact
from ragbraid.registry.graph_parts import EntityPart, FactPart, parts_of
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
    """The knowledge graph of a chunk set, as a knowledge base makes it of the parts of its chunks."""
    mentioned: dict[str, list[EntityPart]] = {}
    stated: dict[str, list[FactPart]] = {}
    for chunk in chunks.chunks:
        if chunk.graph is None:
            continue
        entities, facts = parts_of(chunk.id, chunk.graph)
        for id_, part in entities.items():
            mentioned.setdefault(id_, []).append(part)
        for id_, fact in facts.items():
            stated.setdefault(id_, []).append(fact)
    return GraphView(
        [make_entity(id_, parts) for id_, parts in mentioned.items()],
        [make_fact(id_, parts) for id_, parts in stated.items()],
    )


def entity(graph: GraphView, name: str) -> Entity:
    """The one entity of this name."""
    (found,) = graph.named(name)
    return found


def texts(facts: Any) -> list[str]:
    """The facts as lines, in alphabetical order."""
    return sorted(fact.text for fact in facts if isinstance(fact, Fact))
