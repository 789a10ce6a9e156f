"""Pointwise mutual information of things that chunks name together, read off the knowledge graph.

`n_x` and `n_y` are the numbers of chunks that name the one and the other thing, `n_xy` of those that name both, `n` of
all chunks; a graph knows only those that contribute to it, which is what counts unless a number is given. `PMI = log2(n_xy n / (n_x n_y))` is positive where two things stand together
more often than by chance. Divided by `-log2(n_xy / n)` it is at most 1, which two things reach that never stand apart
(normalised PMI, Bouma 2009). All of it follows from the view, so it is always that of the chunks that a reader may see.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ragbraid.registry.contracts import Chunk
from ragbraid.registry.graph import Fact, make_entity, make_fact
from ragbraid.registry.graph_parts import ChunkGraph, EntityPart, FactPart, parts_of
from ragbraid.registry.graph_view import GraphView

CO_OCCURRENCE = "co-occurrence"
"""The keyword of relations that say no more than that a chunk names both ends."""


@dataclass(frozen=True, slots=True)
class Association:
    """How much two things have to do with each other, counted in chunks."""

    n: int
    n_x: int
    n_y: int
    n_xy: int

    @property
    def pmi(self) -> float:
        """Pointwise mutual information in bits; minus infinity for what never stands together."""
        return math.log2(self.n_xy * self.n / (self.n_x * self.n_y)) if self.n_xy else -math.inf

    @property
    def npmi(self) -> float:
        """Normalised pointwise mutual information, from -1 to 1."""
        if not self.n_xy:
            return -1.0
        return self.pmi / -math.log2(self.n_xy / self.n) if self.n_xy < self.n else 1.0


def view_of(chunks: Iterable[Chunk]) -> GraphView:
    """Return the graph that chunks make together, as a knowledge base of just these has it, without near names."""
    entities: dict[str, list[EntityPart]] = {}
    facts: dict[str, list[FactPart]] = {}
    for chunk in chunks:
        mentioned, stated = parts_of(chunk.id, chunk.graph or ChunkGraph())
        for id_, part in mentioned.items():
            entities.setdefault(id_, []).append(part)
        for id_, fact in stated.items():
            facts.setdefault(id_, []).append(fact)
    return GraphView(
        [make_entity(id_, parts) for id_, parts in entities.items()],
        [make_fact(id_, parts) for id_, parts in facts.items()],
    )


def associate(view: GraphView, fact: Fact, *, chunks: int | None = None) -> Association:
    """Return how much the two ends of a fact have to do with each other.

    Args:
        view: the graph.
        fact: the fact.
        chunks: how many chunks there are; those that contribute to the graph when left out.
    """
    ends = [set(view.entities[id_].chunk_ids) for id_ in (fact.subject, fact.object)]
    total = view.remember("contributing chunks", _count_chunks) if chunks is None else chunks
    return Association(total, len(ends[0]), len(ends[1]), len(ends[0] & ends[1]))


def associations(
    view: GraphView, *, min_joint: int = 2, min_pmi: float = 0.0, chunks: int | None = None
) -> Mapping[str, Association]:
    """Return the co-occurrences that are more than chance, by id of the fact, the strongest by normalised PMI first.

    Args:
        view: the graph.
        min_joint: in how many chunks both ends stand at least.
        min_pmi: bound above which their PMI lies.
        chunks: as for `associate`.
    """

    def make(graph: GraphView) -> Mapping[str, Association]:
        together = (fact for fact in graph.facts.values() if CO_OCCURRENCE in fact.keywords)
        found = ((fact.id, associate(graph, fact, chunks=chunks)) for fact in together)
        kept = [(id_, each) for id_, each in found if each.n_xy >= min_joint and each.pmi > min_pmi]
        return dict(sorted(kept, key=lambda pair: (-pair[1].npmi, -pair[1].n_xy, pair[0])))

    return view.remember(f"associations {min_joint} {min_pmi} {chunks}", make)


def _count_chunks(view: GraphView) -> int:
    return sum(1 for _ in view.chunk_ids)
