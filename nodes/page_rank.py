"""Personalised PageRank over a knowledge graph: the matrix of its edges, and the walk over it by power iteration.

Nodes are the entities and, where wanted, the chunks that name them. All edges go both ways. Between two nodes the
weights of all kinds of edges add up: facts by their weight, mentions with 1, near names with their cosine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ragbraid.registry.graph_view import GraphView

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TOLERANCE = 1e-10
"""The walk ends when all scores together change by less than this."""

Edge = tuple[int, int, float]


@dataclass(frozen=True, slots=True, eq=False)
class Edges:
    """The edges of a graph as a matrix of steps.

    `step[i, j]` is the probability of going from node j to node i; `is_stuck` marks the nodes without any edge.
    """

    entities: Mapping[str, int]
    chunks: Mapping[str, int]
    step: Any
    is_stuck: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.entities) + len(self.chunks)


def edges_of(view: GraphView, *, synonyms: bool, chunks: bool) -> Edges:
    """Return the edges of a graph, made once for each graph.

    Args:
        view: the graph.
        synonyms: whether near names are edges.
        chunks: whether chunks are nodes, with an edge to every entity that they name.
    """
    what = f"page_rank edges, synonyms={synonyms}, chunks={chunks}"
    return view.remember(what, lambda graph: _make_edges(graph, synonyms=synonyms, chunks=chunks))


def page_rank(edges: Edges, restart: NDArray[np.float64], damping: float) -> NDArray[np.float64]:
    """Return the share of time that a walk spends in each node, when it starts over with probability 1 - `damping`.

    From a node without any edge the walk always starts over, as in networkx. Nodes behind the last one of `edges` have
    none.

    Args:
        edges: the edges.
        restart: for each node, and any further ones without edges, the probability of starting there; sums to 1.
        damping: above 0 and below 1.
    """
    import numpy as np

    known = len(edges)
    further = len(restart) - known
    stuck = np.concatenate([edges.is_stuck, np.ones(further, dtype=bool)])
    score = restart
    for _ in range(_enough_steps(damping)):
        moved = np.concatenate([edges.step @ score[:known], np.zeros(further)])
        again = 1 - damping + damping * score[stuck].sum()
        following = damping * moved + again * restart
        change = np.abs(following - score).sum()
        score = following
        if change < TOLERANCE:
            break
    return score


def _enough_steps(damping: float) -> int:
    """Return after how many steps the change is below the tolerance: it is at most 2 and shrinks by `damping` each."""
    return math.ceil(math.log(TOLERANCE / 2) / math.log(damping)) + 2


def _make_edges(view: GraphView, *, synonyms: bool, chunks: bool) -> Edges:
    import numpy as np
    from scipy.sparse import csr_array

    entities = {id_: position for position, id_ in enumerate(view.entities)}
    chunk_ids = view.chunk_ids if chunks else ()
    places = {id_: position for position, id_ in enumerate(chunk_ids, start=len(entities))}
    found = [*_facts(view, entities), *_mentions(view, entities, places)]
    if synonyms:
        found += _near_names(view, entities)
    total = len(entities) + len(places)
    ends = np.asarray([edge[:2] for edge in found], dtype=np.int64).reshape(-1, 2)
    weights = np.asarray([edge[2] for edge in found], dtype=np.float64)
    rows, columns = np.concatenate([ends, ends[:, ::-1]]).T
    # Entries of the same place are added up when the matrix is made.
    matrix = csr_array((np.concatenate([weights, weights]), (rows, columns)), shape=(total, total))
    weight_of = np.asarray(matrix.sum(axis=0)).ravel()
    is_stuck = weight_of == 0
    share = np.divide(1.0, weight_of, out=np.zeros(total), where=~is_stuck)
    matrix.data *= share[matrix.indices]
    return Edges(entities, places, matrix, is_stuck)


def _facts(view: GraphView, entities: Mapping[str, int]) -> Iterator[Edge]:
    for fact in view.facts.values():
        if fact.subject != fact.object:
            yield entities[fact.subject], entities[fact.object], fact.weight


def _mentions(view: GraphView, entities: Mapping[str, int], chunks: Mapping[str, int]) -> Iterator[Edge]:
    for chunk_id, position in chunks.items():
        for entity_id in view.entities_in(chunk_id):
            yield entities[entity_id], position, 1.0


def _near_names(view: GraphView, entities: Mapping[str, int]) -> Iterator[Edge]:
    """Yield each pair once: both ends may name the other."""
    best: dict[tuple[int, int], float] = {}
    for entity in view.entities.values():
        for near in entity.neighbours:
            if near.score > 0 and near.entity_id != entity.id:
                first, second = sorted((entities[entity.id], entities[near.entity_id]))
                best[first, second] = max(near.score, best.get((first, second), 0.0))
    for (first, second), score in best.items():
        yield first, second, score
