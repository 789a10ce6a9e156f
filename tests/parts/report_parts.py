"""Graphs for the tests of communities and reports, written as facts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ragbraid.flows.scripted_rules import ChatRequest
from ragbraid.nodes.report_hits import report_hit
from ragbraid.registry.contracts import Ranking
from ragbraid.registry.graph import Entity, Fact, Insight, Report, make_entity, make_fact
from ragbraid.registry.graph_names import entity_id
from ragbraid.registry.graph_parts import ChunkGraph, EntityPart, FactPart, Mention, Triple, parts_of
from ragbraid.registry.graph_view import GraphView
from ragbraid.registry.resources import LLM

TRIANGLES = [
    ("a", "b", 1.0), ("b", "c", 1.0), ("a", "c", 1.0), ("d", "e", 1.0), ("e", "f", 1.0), ("d", "f", 1.0),
    ("c", "d", 0.1),
]  # fmt: skip
"""Section 15.9: two triangles with a weak fact between them."""


def stated(*triples: tuple[str, str, str], **mentions: str) -> ChunkGraph:
    """What a chunk contributes that states these facts and describes these entities."""
    return ChunkGraph(
        triples=tuple(Triple(subject=s, predicate=p, object=o) for s, p, o in triples),
        mentions=tuple(Mention(name=name, description=text or None) for name, text in mentions.items()),
    )


def view_of(chunks: Mapping[str, ChunkGraph], *, generation: int = 1) -> GraphView:
    """The graph of these chunks, by id."""
    entities: dict[str, list[EntityPart]] = {}
    facts: dict[str, list[FactPart]] = {}
    for id_, graph in chunks.items():
        named, stating = parts_of(id_, graph)
        for entity, part in named.items():
            entities.setdefault(entity, []).append(part)
        for fact, stated_part in stating.items():
            facts.setdefault(fact, []).append(stated_part)
    made: list[Entity] = [make_entity(id_, parts) for id_, parts in entities.items()]
    facts_made: list[Fact] = [make_fact(id_, stated_parts) for id_, stated_parts in facts.items()]
    return GraphView(made, facts_made, generation=generation)


def weighted(edges: Iterable[tuple[str, str, float]], alone: Sequence[str] = ()) -> GraphView:
    """The graph of relations of these weights, and entities without any; each in a chunk of its own."""
    chunks = {
        f"c{n:03}": ChunkGraph(triples=(Triple(subject=first, object=second, weight=weight),))
        for n, (first, second, weight) in enumerate(edges)
    }
    return view_of({**chunks, **{f"alone-{name}": stated(**{name: ""}) for name in alone}})


def ids(*names: str) -> tuple[str, ...]:
    return tuple(entity_id(name) for name in names)


def shown(request: ChatRequest) -> str:
    """What the user messages show; a request to repair an answer has several."""
    return "\n".join(str(message["content"]) for message in request.messages if message["role"] == "user")


class SameModel:
    """The scripted model under one identity, whatever port its server has."""

    identity = "scripted"

    def __init__(self, llm: LLM) -> None:
        self.complete, self.extract = llm.complete, llm.extract


def ranked_reports(*summaries: str, **more: Any) -> Ranking:
    """Reports with these summaries, each with two chunks and one finding that rests on the second."""
    made = [
        Report(
            id=f"r{n}", community_id=f"k{n}", level=0, title=f"T{n}", summary=summary, chunk_ids=(f"c{n}a", f"c{n}b"),
            findings=(Insight(summary=f"F{n}.", explanation="E.", chunk_ids=(f"c{n}b",)),),
        )
        for n, summary in enumerate(summaries, start=1)
    ]  # fmt: skip
    ranked = Ranking.from_hits([report_hit(r, 1.0, "model") for r in made], route="reports", score_kind="model")
    return ranked.model_copy(update=more)
