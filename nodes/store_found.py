"""What a search of a store found, column by column, and how equal scores are settled.

Columns, because a hybrid query finds two hundred points and makes hits of a quarter of them: what is never looked at is
never made. A list of ids and a list of scores cost a tenth of a list of points that hold one each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import gt
from typing import Any, NamedTuple, overload

from ragbraid.nodes.store import Payload

_FIRST_SURPLUS = 8
_LAST_SURPLUS = 4096
_GENERATION_BITS = 0xFFFFFFFF


class ScoredPoint(NamedTuple):
    """One result of a search, with its full payload unless the search was told to leave it out."""

    id: str
    score: float
    payload: Payload


@dataclass(frozen=True, slots=True)
class Found(Sequence[ScoredPoint]):
    """The results of a search, best first; reads as a list of points. The columns are never changed."""

    ids: Sequence[Any]
    """As the engine takes them, a `UUID` or its text."""
    keys: Sequence[int]
    """The ids as numbers: they hash and compare ten times as fast as a `UUID`, and stand in the order of its text."""
    scores: Sequence[float]
    payloads: Sequence[Payload] = ()
    """Empty when the search was told to leave them out."""

    @overload
    def __getitem__(self, place: int) -> ScoredPoint: ...
    @overload
    def __getitem__(self, place: slice) -> list[ScoredPoint]: ...
    def __getitem__(self, place: int | slice) -> ScoredPoint | list[ScoredPoint]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        return ScoredPoint(str(self.ids[place]), self.scores[place], self.payloads[place] if self.payloads else {})

    def __len__(self) -> int:
        return len(self.keys)

    def newest_generation(self) -> int:
        """Return the latest generation that wrote one of the points; 0 where there are none."""
        return max([key & _GENERATION_BITS for key in self.keys], default=0)


NOTHING_FOUND = Found((), (), ())


def settle_ties(fetch: Callable[[int], Found], limit: int) -> Found:
    """Return the best `limit` points, equal scores in order of id, also where equal scores straddle the cut.

    Which of several equal scores an engine keeps depends on the order in which it happened to store them, so two
    ingestions of one corpus would answer differently. Asking for a few more settles nearly every cut at once.

    Args:
        fetch: asks the engine for so many points.
        limit: how many are wanted.
    """
    surplus = _FIRST_SURPLUS
    while True:
        found = fetch(limit + surplus)
        order = _order(found)
        settled = len(order) < limit + surplus or found.scores[order[-1]] < found.scores[order[limit - 1]]
        if settled or surplus >= _LAST_SURPLUS:
            return _rearranged(found, order[:limit])
        surplus *= 8


def _order(found: Found) -> Sequence[int]:
    """Return the places of the points by score, then by id.

    Where every score is below the one before it, as is usual by cosine, the engine's order is the only one.
    """
    scores, keys = found.scores, found.keys
    if all(map(gt, scores, scores[1:])):
        return range(len(keys))
    order = sorted(range(len(keys)), key=keys.__getitem__)
    order.sort(key=scores.__getitem__, reverse=True)  # keeps the order of ids within one score
    return order


def _rearranged(found: Found, order: Sequence[int]) -> Found:
    columns: tuple[Sequence[Any], ...] = (found.ids, found.keys, found.scores, found.payloads)
    if isinstance(order, range):
        return Found(*(column[: len(order)] for column in columns))
    return Found(*(list(map(column.__getitem__, order)) if column else () for column in columns))
