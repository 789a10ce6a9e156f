"""A knowledge graph in memory, as one committed generation of a knowledge base has it; never changed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

from ragbraid.registry.graph import Entity, Fact, make_entity, make_fact
from ragbraid.registry.graph_names import normalize_name

T = TypeVar("T")


class GraphView:
    """Entities and facts with the ways between them, for reading; safe to share between threads.

    Everything comes in one order, whatever order it was given in: entities and facts by id.

    Args:
        entities: all entities.
        facts: all facts; both ends of each are among the entities.
        generation: the committed generation of the knowledge base.
    """

    def __init__(self, entities: Iterable[Entity], facts: Iterable[Fact], *, generation: int = 0) -> None:
        self.entities: Mapping[str, Entity] = {each.id: each for each in sorted(entities, key=lambda e: e.id)}
        self.facts: Mapping[str, Fact] = {each.id: each for each in sorted(facts, key=lambda f: f.id)}
        self.generation = generation
        self._memory: dict[str, Any] = {}
        self._lock = threading.RLock()

    def facts_of(self, entity_id: str) -> tuple[Fact, ...]:
        """Return the facts that an entity takes part in, as subject or object, in order of id."""
        return tuple(self.facts[id_] for id_ in self._facts_by_entity.get(entity_id, ()))

    def degree(self, entity_id: str) -> int:
        """Return how many facts an entity takes part in."""
        return len(self._facts_by_entity.get(entity_id, ()))

    def named(self, name: str) -> tuple[Entity, ...]:
        """Return the entities of this name, then those of which it is an alias, whatever its case and marks."""
        return tuple(self.entities[id_] for id_ in self._by_name.get(normalize_name(name), ()))

    @property
    def names(self) -> Iterable[str]:
        """All names and aliases, normalised, as `named` looks them up."""
        return self._by_name.keys()

    def entities_in(self, chunk_id: str) -> tuple[str, ...]:
        """Return the ids of the entities that a chunk names."""
        return self._entities_by_chunk.get(chunk_id, ())

    @property
    def chunk_ids(self) -> Iterable[str]:
        """The chunks that contribute to the graph, in order of id."""
        return self._entities_by_chunk.keys()

    def restricted(self, allowed: frozenset[str]) -> GraphView:
        """Return the graph as it would be if there were no chunks but these.

        A name, an alias, a type or a description that only other chunks give is gone with them.
        """
        entities = []
        for entity in self.entities.values():
            parts = [part for part in entity.parts if part.chunk_id in allowed]
            if len(parts) == len(entity.parts):
                entities.append(entity)
            elif parts:
                entities.append(make_entity(entity.id, parts, entity.neighbours))
        present = {entity.id for entity in entities}
        facts = []
        for fact in self.facts.values():
            stated = [part for part in fact.parts if part.chunk_id in allowed]
            if len(stated) == len(fact.parts):
                facts.append(fact)
            elif stated:
                facts.append(make_fact(fact.id, stated))
        near = (_among(entity, present) for entity in entities)
        return GraphView(near, facts, generation=self.generation)

    def remember(self, what: str, make: Callable[[GraphView], T]) -> T:
        """Return what `make` derives from this graph, made once for each name `what`."""
        with self._lock:
            if what not in self._memory:
                self._memory[what] = make(self)
            made: T = self._memory[what]
            return made

    @cached_property
    def _facts_by_entity(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, list[str]] = {}
        for fact in self.facts.values():
            found.setdefault(fact.subject, []).append(fact.id)
            found.setdefault(fact.object, []).append(fact.id)
        return {id_: tuple(facts) for id_, facts in found.items()}

    @cached_property
    def _by_name(self) -> dict[str, tuple[str, ...]]:
        names: dict[str, list[str]] = {}
        for entity in self.entities.values():
            names.setdefault(normalize_name(entity.name), []).append(entity.id)
        for entity in self.entities.values():
            for alias in entity.aliases:
                names.setdefault(normalize_name(alias), []).append(entity.id)
        return {name: tuple(dict.fromkeys(ids)) for name, ids in names.items()}

    @cached_property
    def _entities_by_chunk(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, list[str]] = {}
        for entity in self.entities.values():
            for chunk_id in entity.chunk_ids:
                found.setdefault(chunk_id, []).append(entity.id)
        return {id_: tuple(found[id_]) for id_ in sorted(found)}


def _among(entity: Entity, present: set[str]) -> Entity:
    near = tuple(each for each in entity.neighbours if each.entity_id in present)
    return entity if len(near) == len(entity.neighbours) else replace(entity, neighbours=near)
