"""Which entities have nearly the same name: each knows its nearest ones, kept up to date by comparing new with all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from ragbraid.nodes.graph_records import neighbours_of, neighbours_record
from ragbraid.registry.graph import Neighbour
from ragbraid.registry.graph_names import ENTITY_PREFIX
from ragbraid.registry.graph_store import GraphStore, RecordKind

if TYPE_CHECKING:
    from ragbraid.registry.resources import Matrix, Vector

MAX_NEIGHBOURS = 16
"""How many neighbours an entity has at most; HippoRAG 2 keeps 100, which links every year with every other."""
_ROWS = 1024
"""How many names are compared with all others at once."""


@dataclass(frozen=True, slots=True)
class _Names:
    """The names that can have neighbours, in order of their ids, and their vectors."""

    keys: list[str]
    vectors: Matrix
    new: list[int]
    """Places of the names whose vector the committed generation does not have."""
    gone: set[str]
    """Names that the committed generation has, with another vector or none in the next."""


class NeighbourUpdate:
    """Brings the neighbours of all entities in line with the entities of the next generation.

    The result is the same after any history: the neighbours of an entity are the nearest ones above the limit, and
    when one of them goes, those that had been crowded out are looked up again.

    Args:
        graph: the graph; everything else of the next generation has been written.
        committed: the committed generation.
        min_score: cosine from which on two names count as nearly the same; None links none.
        anew: compare all names, whatever is stored, because the limit is another one than before.
    """

    def __init__(self, graph: GraphStore, *, committed: int, min_score: float | None, anew: bool = False) -> None:
        self._graph = graph
        self._committed = committed
        self._next = committed + 1
        self._min_score = min_score
        self._anew = anew

    def run(self) -> set[tuple[RecordKind, str]]:
        """Write what has changed; returns the places of the records that it wrote."""
        before = {
            each.record.key: neighbours_of(each.record)
            for each in self._graph.read("neighbours", generation=self._committed)
        }
        after = self._after(before)
        changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        self._graph.retire("neighbours", [key for key in changed if key in before], generation=self._next)
        records = [neighbours_record(key, after[key]) for key in sorted(changed) if key in after]
        if records:
            self._graph.put(records, None, generation=self._next)
        return {record.place for record in records}

    def _after(self, before: Mapping[str, Sequence[Neighbour]]) -> dict[str, tuple[Neighbour, ...]]:
        if self._min_score is None:
            return {}
        names = self._names()
        new = set(names.new)
        kept = {
            key: _Nearest(() if place in new else before.get(key, ()), names.gone)
            for place, key in enumerate(names.keys)
        }
        crowded = [place for place, key in enumerate(names.keys) if kept[key].lost_some]
        near = chain(_near_pairs(names, [*names.new, *crowded], self._min_score), _near_old(names, self._min_score))
        for place, other, score in near:
            kept[names.keys[place]].add(names.keys[other], score)
        return {key: found for key, nearest in kept.items() if (found := nearest.best())}

    def _names(self) -> _Names:
        import numpy as np

        committed = self._graph.read("entity", generation=self._committed)
        old = {} if self._anew else {each.record.key: each.record.embed_hash for each in committed}
        entities = [
            each
            for each in self._graph.read("entity", generation=self._next, with_vectors=True)
            if each.vector is not None and can_have_neighbours(each.record.key)
        ]
        entities.sort(key=lambda each: each.record.key)
        now = {each.record.key: each.record.embed_hash for each in entities}
        return _Names(
            keys=list(now),
            vectors=np.asarray([each.vector for each in entities], dtype=np.float32),
            new=[place for place, (key, hash_) in enumerate(now.items()) if old.get(key) != hash_],
            gone={key for key, hash_ in old.items() if now.get(key) != hash_},
        )


def _near_pairs(names: _Names, places: Sequence[int], limit: float) -> Iterator[tuple[int, int, float]]:
    """Yield the nearest neighbours of these names: place, place of the neighbour, cosine."""
    import numpy as np

    for start in range(0, len(places), _ROWS):
        rows = places[start : start + _ROWS]
        scores = names.vectors[rows] @ names.vectors.T
        scores[np.arange(len(rows)), rows] = -1.0
        for row, place in enumerate(rows):
            yield from ((place, other, score) for other, score in _best(scores[row], limit))


def _near_old(names: _Names, limit: float) -> Iterator[tuple[int, int, float]]:
    """Yield for every name that is not new the nearest among the new ones."""
    if not names.new:
        return
    old = sorted(set(range(len(names.keys))) - set(names.new))
    for start in range(0, len(old), _ROWS):
        rows = old[start : start + _ROWS]
        scores = names.vectors[rows] @ names.vectors[names.new].T
        for row, place in enumerate(rows):
            yield from ((place, names.new[column], score) for column, score in _best(scores[row], limit))


def _best(scores: Vector, limit: float) -> list[tuple[int, float]]:
    """Return the greatest scores with their places, in no order; more than are wanted only where scores are equal."""
    import numpy as np

    found = np.flatnonzero(scores >= limit)
    if len(found) > MAX_NEIGHBOURS:
        least = np.partition(scores[found], -MAX_NEIGHBOURS)[-MAX_NEIGHBOURS]
        found = np.flatnonzero(scores >= max(least, limit))
    return [(int(place), float(scores[place])) for place in found]


class _Nearest:
    """The nearest neighbours of one entity while they are being brought up to date."""

    def __init__(self, before: Sequence[Neighbour], gone: set[str]) -> None:
        stay = {each.entity_id: each.score for each in before if each.entity_id not in gone}
        self.lost_some = len(before) == MAX_NEIGHBOURS and len(stay) < len(before)
        self._scores = stay

    def add(self, entity_id: str, score: float) -> None:
        """Take up a neighbour."""
        self._scores[entity_id] = round(score, 5)

    def best(self) -> tuple[Neighbour, ...]:
        """Return the nearest, best first, equal ones in order of id."""
        ordered = sorted(self._scores.items(), key=lambda pair: (-pair[1], pair[0]))
        return tuple(Neighbour(entity_id=key, score=score) for key, score in ordered[:MAX_NEIGHBOURS])


def can_have_neighbours(entity_id: str) -> bool:
    """Whether a name means something beside others: not where it is a number or a date, or two Latin letters.

    The cosine of 1986 and 1987 says nothing, and a graph that links all years with each other leads everywhere.
    """
    name = entity_id.removeprefix(ENTITY_PREFIX)
    letters = [char for char in name if char.isalpha()]
    if sum(char.isdigit() for char in name) > len(letters):
        return False
    return len(letters) > 2 or any(ord(char) > 0x2E7F for char in letters)
