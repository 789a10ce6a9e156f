"""The `fuse.*` nodes: several rankings become one.

Every hit of the result carries, under `scores`, the rank and score that each incoming list gave it (under the name of
the step the list came from) and whatever that hit had collected before. A list that is degraded makes the result
degraded. No list, or only empty lists, gives an empty ranking.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, zip_longest
from statistics import median
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from ragbraid.nodes.fusion import (
    Normalizer,
    RankVariant,
    Route,
    SingleList,
    add_up,
    arrange,
    fuse_by_rank,
    normalise,
    refuse_mixed_scales,
    shared_kind,
    weigh,
)
from ragbraid.registry.contracts import FanIn, Hit, Ranking, ScoreKind
from ragbraid.registry.node import node

CombOperation = Literal["sum", "mnz", "max", "min", "anz", "med"]

__all__ = [
    "append",
    "combine",
    "fuse_by_rank",
    "fuse_linearly",
    "reciprocal_rank_fusion",
    "round_robin",
]


@node(
    "fuse.rrf",
    example="""
    merger:
      use: fuse.rrf
      lists: {dense: $dense, sparse: $sparse}
      k: 60
      weights: {dense: 0.7, sparse: 0.3}
    """,
)
def reciprocal_rank_fusion(
    lists: FanIn[Ranking],
    *,
    k: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 60.0,
    weights: dict[str, float] | list[float] | None = None,
    variant: RankVariant = "standard",
    single_list: SingleList = "renormalise",
    limit: PositiveInt | None = None,
) -> Ranking:
    """Fuse rankings by reciprocal rank: each list gives a hit w / (k + rank), and the votes add up.

    Scores play no part, so lists of any kind of score may be fused. A small k lets the heads of all lists weigh more;
    it does not favour one list. Source: Cormack, Clarke and Büttcher 2009; the variants are those of Haystack
    (`scaled`, written with k = 61 there) and of Qdrant (`qdrant`, k = 2 there).

    Args:
        lists: the rankings, by the step they come from.
        k: added to every rank, at least 1.
        weights: one number of at least 0 for every list, by the name of its step (then every list must be named) or
            in the order of the lists. A weight for a list that a skipped step left out is not used. A list with weight 0 is ignored, and hits that only it has do not appear.
        variant: `standard` adds w / (k + rank); `scaled` adds k * w / (k + rank - 1) with weights that sum to 1, so
            that rank 1 in every list gives 1.0; `qdrant` adds 1 / (rank / w + k - 1), where a weight stretches ranks
            instead of multiplying votes.
        single_list: when only one list has hits, `renormalise` still gives scores by rank, `passthrough` keeps the
            scores of that list.
        limit: how many hits to keep; all when left out.

    Raises:
        NodeInputError: a weight is negative or missing.
    """
    return fuse_by_rank(lists, k=k, weights=weights, variant=variant, single_list=single_list, top_k=limit)


@node(
    "fuse.linear",
    example="""
    merger:
      use: fuse.linear
      lists: {dense: $dense, sparse: $sparse}
      normalizer: minmax
      weights: {dense: 0.7, sparse: 0.3}
    """,
)
def fuse_linearly(
    lists: FanIn[Ranking],
    *,
    normalizer: Normalizer = "minmax",
    weights: dict[str, float] | list[float] | None = None,
    on_dup: Literal["sum", "max"] = "sum",
    allow_mixed_scales: bool = False,
    limit: PositiveInt | None = None,
) -> Ranking:
    """Fuse rankings by a weighted sum of their scores, each list brought to a common scale first.

    A hit that a list does not have gets 0 from it; with `zscore`, where 0 is the mean, it gets the lowest score of
    that list. Source: linear combination as in Haystack (`merge`, `dbsf`: Mazzeschi 2023) and Qdrant (`dbsf_sample`).

    Args:
        lists: the rankings, by the step they come from.
        normalizer: `none` takes the scores as they are; `minmax` maps each list to 0..1; `zscore` to standard
            deviations from its mean; `dbsf` maps mean - 3 sd .. mean + 3 sd to 0..1 (population deviation),
            `dbsf_sample` the same with the sample deviation.
        weights: one number of at least 0 for every list, by the name of its step (then every list must be named) or
            in the order of the lists. A weight for a list that a skipped step left out is not used. A list with weight 0 is ignored.
        on_dup: what a hit found by several lists gets: the `sum` of its weighted scores, or the largest (`max`).
        allow_mixed_scales: let `none` add scores of different kinds, such as a cosine and a BM25 score.
        limit: how many hits to keep; all when left out.

    Raises:
        NodeInputError: a weight is negative or missing; or the lists have scores of
            different kinds and neither a normaliser nor `allow_mixed_scales` is given.
    """
    routes = weigh(lists, weights)
    if normalizer == "none" and not allow_mixed_scales:
        refuse_mixed_scales(routes)
    if on_dup == "max":
        values = {id_: max(parts) for id_, parts in _present(routes, normalizer).items()}
    else:
        values = add_up(_with_missing(routes, normalizer))
    kind: ScoreKind = "composite" if normalizer == "none" else "norm"
    return arrange(routes, values, route="fuse.linear", score_kind=kind, top_k=limit)


@node(
    "fuse.comb",
    example="""
    merger: {use: fuse.comb, lists: {dense: $dense, sparse: $sparse}, op: mnz}
    """,
)
def combine(
    lists: FanIn[Ranking],
    *,
    op: CombOperation = "sum",
    normalizer: Normalizer = "minmax",
    allow_mixed_scales: bool = False,
    limit: PositiveInt | None = None,
) -> Ranking:
    """Fuse rankings by the classic combinations of scores (CombSUM, CombMNZ and their kin).

    Source: Fox and Shaw 1994.

    Args:
        lists: the rankings, by the step they come from.
        op: `sum` adds the scores; `mnz` multiplies that sum by the number of lists that have the hit (also where it
            scores 0); `max`, `min`, `anz` (mean) and `med` (median) look only at the lists that have it.
        normalizer: brings each list to a common scale first, as in `fuse.linear`.
        allow_mixed_scales: let `none` combine scores of different kinds.
        limit: how many hits to keep; all when left out.

    Raises:
        NodeInputError: the lists have scores of different kinds and neither a normaliser nor `allow_mixed_scales` is
            given.
    """
    routes = weigh(lists, None)
    if normalizer == "none" and not allow_mixed_scales:
        refuse_mixed_scales(routes)
    present = _present(routes, normalizer)
    if op in ("sum", "mnz"):
        values = add_up(_with_missing(routes, normalizer))
        if op == "mnz":
            values = {id_: value * len(present[id_]) for id_, value in values.items()}
    else:
        operation = _OVER_PRESENT[op]
        values = {id_: operation(parts) for id_, parts in present.items()}
    kind: ScoreKind = "norm"
    if normalizer == "none":
        # The largest, smallest, mean or median of several cosines is a cosine again; a sum of them is not.
        kind = (None if op in ("sum", "mnz") else shared_kind(routes)) or "composite"
    return arrange(routes, values, route="fuse.comb", score_kind=kind, top_k=limit)


@node(
    "fuse.round_robin",
    example="""
    merger: {use: fuse.round_robin, lists: {dense: $dense, sparse: $sparse}, limit: 10}
    """,
)
def round_robin(lists: FanIn[Ranking], *, limit: PositiveInt | None = None) -> Ranking:
    """Take hits in turn: the first of every list, then the second of every list, and so on, each hit once.

    The score is 1 / rank in the new order; the original scores stay under `scores`.

    Args:
        lists: the rankings, by the step they come from.
        limit: how many hits to keep; all when left out.
    """
    rounds = zip_longest(*(ranking.hits for ranking in lists.values()))
    turns = (hit for turn in rounds for hit in turn if hit is not None)
    return _in_order(lists, turns, route="fuse.round_robin", limit=limit)


@node(
    "fuse.append",
    example="""
    pool: {use: fuse.append, lists: {earlier: $earlier, found: $found}, limit: 15}
    """,
)
def append(lists: FanIn[Ranking], *, limit: PositiveInt | None = None) -> Ranking:
    """Put rankings one after the other in the order of the arrows; of a repeated hit the first occurrence stays.

    The score is 1 / rank in the new order; the original scores stay under `scores`.

    Args:
        lists: the rankings, by the step they come from.
        limit: how many hits to keep; all when left out.
    """
    hits = chain.from_iterable(ranking.hits for ranking in lists.values())
    return _in_order(lists, hits, route="fuse.append", limit=limit)


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


_OVER_PRESENT: dict[str, Callable[[list[float]], float]] = {"max": max, "min": min, "anz": _mean, "med": median}


def _in_order(lists: Mapping[str, Ranking], hits: Iterable[Hit], *, route: str, limit: int | None) -> Ranking:
    order = dict.fromkeys(hit.id for hit in hits)
    values = {id_: 1.0 / rank for rank, id_ in enumerate(order, start=1)}
    return arrange(weigh(lists, None), values, route=route, score_kind="rank", top_k=limit)


def _present(routes: list[Route], normalizer: Normalizer) -> dict[str, list[float]]:
    """The weighted, normalised scores of every id, from the lists that have it."""
    found: dict[str, list[float]] = {}
    for each in routes:
        scores = normalise([hit.score for hit in each.ranking.hits], normalizer)
        for hit, score in zip(each.ranking.hits, scores, strict=True):
            found.setdefault(hit.id, []).append(each.weight * score)
    return found


def _with_missing(routes: list[Route], normalizer: Normalizer) -> dict[str, list[float]]:
    """The same, with what a list gives to hits that it does not have; that is 0 except for z-scores."""
    found = _present(routes, normalizer)
    if normalizer != "zscore":
        return found
    for each in routes:
        scores = normalise([hit.score for hit in each.ranking.hits], normalizer)
        own = {hit.id for hit in each.ranking.hits}
        for id_, parts in found.items():
            if scores and id_ not in own:
                parts.append(each.weight * min(scores))
    return found
