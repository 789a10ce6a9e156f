"""`graph.local_facts` and `graph.text_units`: the tables and the texts around entities, as GraphRAG's local search reads them.

The third part, reports about their communities, is `report.of_entities`. A flow gives each part its share of the room
with `context.budget` and puts them together with `fuse.append`.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from pydantic import Field

from ragbraid.nodes.graph_hits import FACTS, MAX_FACTS, chunk_hit, fact_hit, in_order, only, with_places
from ragbraid.nodes.reasoning import has_evidence
from ragbraid.registry.context import report_note
from ragbraid.registry.contracts import Ranking
from ragbraid.registry.graph import Fact
from ragbraid.registry.graph_view import GraphView
from ragbraid.registry.knowledge import KnowledgeBase, Where
from ragbraid.registry.node import node

LOCAL_FACTS = "local_facts"
TEXT_UNITS = "text_units"


@node(
    "graph.local_facts",
    blocking=True,
    example="""
    things: {use: graph.entities, top_k: 10}
    around: {use: graph.local_facts, entities: $things, per_entity: 10}
    """,
)
def local_facts(
    entities: Ranking,
    *,
    kb: KnowledgeBase,
    per_entity: Annotated[int, Field(ge=1, le=1000)] = 10,
    where: Where | None = None,
) -> Ranking:
    """Goes from entities to the facts among them, and then to those that lead from them to others.

    The relationship table of GraphRAG's local search. First come the facts both of whose ends are among the entities,
    those with the best connected ends first; then the others, those first whose outer end is linked with most of the
    entities, then with the best connected ends.

    Args:
        entities: what was found, such as by `graph.entities`; their order does not matter.
        kb: the knowledge base.
        per_entity: how many facts to return at most, for each of the entities: ten entities bring a hundred facts.
        where: only what chunks that fulfil these conditions contribute.

    Raises:
        NodeInputError: a hit is no entity.
        SettingsError: there is no knowledge graph, or it lacks a field of `where`.
        ServiceError: the store failed, or there are no entities because retrieval failed.
    """
    names = [hit.id for hit in only(("entity",), entities, "graph.local_facts")]
    if not has_evidence(entities):
        return Ranking(route=LOCAL_FACTS)
    view = kb.graph(where)
    wanted = [id_ for id_ in names if id_ in view.entities]
    ordered = order_facts(view, wanted)
    limit = per_entity * len(wanted)
    if len(ordered) > limit:
        report_note(f"{len(ordered) - limit} of {len(ordered)} facts are behind `per_entity` and were left out")
    ranking = in_order((fact_hit(fact, 1.0, "rank") for fact in ordered[:limit]), route=LOCAL_FACTS)
    return _as_complete_as(entities, with_places(ranking, kb))


def order_facts(view: GraphView, entities: list[str]) -> list[Fact]:
    """Return the facts that entities take part in: first those among them, then those that lead out of them."""
    inside = set(entities)
    found = {fact.id: fact for entity in entities for fact in view.facts_of(entity)}
    links = Counter(end for fact in found.values() for end in {fact.subject, fact.object} - inside)

    def place(fact: Fact) -> tuple[bool, int, int, str]:
        outer = {fact.subject, fact.object} - inside
        degree = view.degree(fact.subject) + view.degree(fact.object)
        return (bool(outer), -max((links[end] for end in outer), default=0), -degree, fact.id)

    return sorted(found.values(), key=place)


@node(
    "graph.text_units",
    blocking=True,
    example="""
    things: {use: graph.entities, top_k: 10}
    texts: {use: graph.text_units, entities: $things, top_k: 20}
    """,
)
def text_units(
    entities: Ranking,
    *,
    kb: KnowledgeBase,
    top_k: Annotated[int, Field(ge=1, le=10_000)] = 20,
    where: Where | None = None,
) -> Ranking:
    """Goes from entities to the chunks that name them, in the order of the entities.

    The text units of GraphRAG's local search: the chunks of the first entity come first, and among them those that state
    most of its facts. Each chunk comes once.

    Args:
        entities: what was found, best first, such as by `graph.entities`.
        kb: the knowledge base.
        top_k: how many chunks to return at most.
        where: only chunks that fulfil these conditions.

    Raises:
        NodeInputError: a hit is no entity.
        SettingsError: there is no knowledge graph, or it lacks a field of `where`.
        ServiceError: the store failed, or there are no entities because retrieval failed.
    """
    names = [hit.id for hit in only(("entity",), entities, "graph.text_units")]
    if not has_evidence(entities):
        return Ranking(route=TEXT_UNITS)
    view = kb.graph(where)
    why = order_chunks(view, [id_ for id_ in names if id_ in view.entities])
    chunks = kb.fetch(list(why)[:top_k])
    hits = (chunk_hit(chunk, 1.0, "rank", {FACTS: why[chunk.id][:MAX_FACTS]}) for chunk in chunks)
    return _as_complete_as(entities, in_order(hits, route=TEXT_UNITS))


def order_chunks(view: GraphView, entities: list[str]) -> dict[str, list[str]]:
    """Return the chunks of entities in order, each with the facts that it states of its entity, else with its name."""
    ordered: dict[str, list[str]] = {}
    for id_ in entities:
        stated: dict[str, list[str]] = {chunk_id: [] for chunk_id in view.entities[id_].chunk_ids}
        for fact in view.facts_of(id_):
            for chunk_id in fact.chunk_ids:
                stated.setdefault(chunk_id, []).append(fact.text)
        for chunk_id in sorted(stated, key=lambda each: (-len(stated[each]), each)):
            ordered.setdefault(chunk_id, stated[chunk_id] or [view.entities[id_].name])
    return ordered


def _as_complete_as(given: Ranking, found: Ranking) -> Ranking:
    return found.model_copy(update={"degraded": given.degraded, "error": given.error})
