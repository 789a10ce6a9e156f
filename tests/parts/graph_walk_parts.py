"""What the tests of linking and walking share: a graph in memory, links to its entities, and what a walk reads as."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from graph_kb_parts import contribution

from ragbraid.registry.context import StepContext, step_context
from ragbraid.registry.graph import EntityLink, EntityLinks, SubGraph, make_entity, make_fact
from ragbraid.registry.graph_names import entity_id
from ragbraid.registry.graph_parts import ChunkGraph, EntityPart, FactPart, parts_of
from ragbraid.registry.graph_view import GraphView
from ragbraid.registry.knowledge import KnowledgeBase

R = TypeVar("R")


class _Closed:
    """A resource that must not be touched."""

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"{name} was asked for")


CLOSED: Any = _Closed()


class Viewed:
    """A knowledge base of which only the graph can be read."""

    def __init__(self, view: GraphView) -> None:
        self._view = view

    def graph(self, where: object = None) -> GraphView:
        return self._view


def view_of(graphs: Mapping[str, ChunkGraph]) -> GraphView:
    """The graph of some chunks, by their ids."""
    mentioned: dict[str, list[EntityPart]] = {}
    stated: dict[str, list[FactPart]] = {}
    for chunk_id, graph in graphs.items():
        entities, facts = parts_of(chunk_id, graph)
        for id_, part in entities.items():
            mentioned.setdefault(id_, []).append(part)
        for id_, said in facts.items():
            stated.setdefault(id_, []).append(said)
    return GraphView(
        [make_entity(id_, parts) for id_, parts in mentioned.items()],
        [make_fact(id_, parts) for id_, parts in stated.items()],
    )


def graph(*facts: Any, mentions: Any = ()) -> GraphView:
    """The graph of one chunk."""
    return view_of({"c1": contribution(facts, mentions)})


def kb_of(view: GraphView) -> KnowledgeBase:
    return Viewed(view)  # type: ignore[return-value]


def linked(view: GraphView, *names: str) -> EntityLinks:
    found = [view.entities[entity_id(name)] for name in names]
    return EntityLinks(links=tuple(EntityLink(mention=e.name, entity=e, score=1.0, how="exact") for e in found))


def texts(found: SubGraph) -> list[str]:
    return [path.text for path in found.paths]


def facts_in(found: SubGraph) -> list[str]:
    return [fact.text for fact in found.facts]


def names_in(found: SubGraph) -> list[str]:
    return [entity.name for entity in found.entities]


class Noted(NamedTuple):
    value: Any
    notes: list[str]


def noting(node: Callable[..., R], *args: Any, **settings: Any) -> Noted:
    """Call a node and return what it gave, and its notes in the trace."""
    step = StepContext()
    with step_context(step):
        return Noted(node(*args, **settings), step.notes)
