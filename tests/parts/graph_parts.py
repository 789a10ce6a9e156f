"""Parts of the graph tests: knowledge bases with a graph beside them, chunks with contributions, content of a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ragbraid.nodes.graph_store import QdrantGraphStore
from ragbraid.nodes.knowledge_base import QdrantKnowledgeBase
from ragbraid.nodes.store import Store
from ragbraid.nodes.store_client import MEMORY, open_local
from ragbraid.registry.contracts import Chunk, ChunkSet
from ragbraid.registry.graph_parts import ChunkGraph, Mention, Triple
from ragbraid.registry.graph_store import GraphStore, RecordKind

KINDS: tuple[RecordKind, ...] = ("entity", "profile", "fact", "neighbours", "report")


def open_kb(store: Store, name: str = "kb", graph: Store | None = None) -> QdrantKnowledgeBase:
    """A knowledge base over a store; its graph is in the store beside it, or in memory."""
    return QdrantKnowledgeBase(store, QdrantGraphStore(graph or open_local(MEMORY, "kb.graph")), name)


def graph_of(text: str) -> ChunkGraph | None:
    """Read triples out of a text: "acme > based in > paris; acme > makes > tea | acme is a company"."""
    facts, _, about = text.partition("|")
    triples = [tuple(part.strip() for part in each.split(">")) for each in facts.split(";") if each.count(">") == 2]
    mentions = [Mention(name=triples[0][0], description=about.strip())] if triples and about.strip() else []
    made = [Triple(subject=s, predicate=p, object=o) for s, p, o in triples]
    return ChunkGraph(mentions=tuple(mentions), triples=tuple(made)) if made else None


def with_graphs(chunk_set: ChunkSet, graph: Callable[[Chunk], ChunkGraph | None] | None = None) -> ChunkSet:
    """Give chunks what they contribute to the graph; without a function what stands in their text."""
    read = graph or (lambda chunk: graph_of(chunk.text))
    chunks = tuple(chunk.model_copy(update={"graph": read(chunk)}) for chunk in chunk_set.chunks)
    return chunk_set.model_copy(update={"chunks": chunks})


def graph_content(graph: GraphStore, generation: int) -> Mapping[tuple[str, str], Any]:
    """Everything that a reader of a generation finds in a graph, without the last bits of vectors."""
    content: dict[tuple[str, str], Any] = {}
    for kind in KINDS:
        for each in graph.read(kind, generation=generation, with_vectors=True):
            assert each.record.place not in content, f"stored twice: {each.record.place}"
            vector = None if each.vector is None else tuple(np.round(each.vector, 5).tolist())
            content[each.record.place] = (each.record, vector)
    return content
