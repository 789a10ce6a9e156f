"""The arithmetic of fusion: weights, normalisers, votes, and the order of the result.

Everything here is a pure function over rankings keyed by route. Sums are taken with `math.fsum`, so that they do not
depend on the order of the lists, and ties are broken by the best rank in any list, then by first appearance.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from ragbraid.registry.contracts import Hit, Ranking, RouteScore, ScoreKind
from ragbraid.registry.errors import NodeInputError
from ragbraid.registry.suggest import nearest

K = TypeVar("K", bound=Hashable)
Weights = dict[str, float] | list[float] | None
RankVariant = Literal["standard", "scaled", "qdrant"]
SingleList = Literal["renormalise", "passthrough"]
Normalizer = Literal["none", "minmax", "zscore", "dbsf", "dbsf_sample"]

_SCORE_WITHOUT_SPREAD: dict[str, float] = {"zscore": 0.0, "dbsf": 0.5, "dbsf_sample": 0.5}


@dataclass(frozen=True, slots=True)
class Route:
    """One list that takes part in a fusion: its name, its ranking and its weight (above 0)."""

    name: str
    ranking: Ranking
    weight: float = 1.0


@dataclass(slots=True)
class Candidate:
    """What all lists together know about one hit."""

    hit: Hit
    best_rank: int
    earlier: dict[str, RouteScore] = field(default_factory=dict)
    """Scores that the hit had collected before it came here."""
    routes: dict[str, RouteScore] = field(default_factory=dict)
    """Rank and score in the lists that are fused now."""


def fuse_by_rank(
    lists: Mapping[str, Ranking],
    *,
    route: str = "fuse.rrf",
    k: float = 60.0,
    weights: Weights = None,
    variant: RankVariant = "standard",
    single_list: SingleList = "renormalise",
    top_k: int | None = None,
) -> Ranking:
    """Fuse rankings by reciprocal rank; the function behind `fuse.rrf`, for nodes that retrieve by several routes.

    Args:
        lists: rankings by the name of their route; the result's hits carry rank and score of every route.
        route: the name that the result bears.
        k: added to every rank; at least 1.
        weights: see `weigh`.
        variant: `standard` is the sum of w / (k + rank); `scaled` the sum of k * w / (k + rank - 1) with weights that
            sum to 1, so that rank 1 everywhere gives 1.0; `qdrant` the sum of 1 / (rank / w + k - 1).
        single_list: what happens when only one list has hits: its ranks are voted on all the same, or the list
            passes through with its own scores.
        top_k: how many hits to keep; all of them when None.

    Raises:
        NodeInputError: the weights do not fit the lists.
    """
    routes = weigh(lists, weights)
    filled = [each for each in routes if each.ranking.hits]
    if single_list == "passthrough" and len(filled) == 1:
        only = filled[0].ranking
        own = {hit.id: hit.score for hit in only.hits}
        return arrange(routes, own, route=route, score_kind=only.score_kind, top_k=top_k)
    total = math.fsum(each.weight for each in routes)
    votes: dict[str, list[float]] = {}
    for each in filled:
        for hit in each.ranking.hits:
            votes.setdefault(hit.id, []).append(_vote(hit.rank, each.weight, total, k, variant))
    return arrange(routes, add_up(votes), route=route, score_kind="rrf", top_k=top_k)


def vote_by_rank(
    lists: Mapping[str, Sequence[Hashable]], *, k: float = 60.0, weights: Weights = None, top_k: int | None = None
) -> list[tuple[Hashable, float]]:
    """Fuse lists of ids as `fuse_by_rank` fuses rankings (variant `standard`): ids with their scores, best first.

    For a knowledge base, which makes hits only of what is left after the fusion.

    Args:
        lists: unique ids, best first, by the name of their route; ids of any kind.
        k: added to every rank; at least 1.
        weights: see `weigh`.
        top_k: how many ids to keep; all of them when None.

    Raises:
        NodeInputError: the weights do not fit the lists.
    """
    by_name = _checked(list(lists), weights)
    scores: dict[Hashable, float] = {}
    best: dict[Hashable, int] = {}
    repeated: dict[Hashable, list[float]] = {}
    for name, ids in lists.items():
        weight = by_name[name]
        if weight == 0:
            continue
        for rank, id_ in enumerate(ids, start=1):
            vote = weight / (k + rank)
            if id_ not in scores:
                scores[id_] = vote
                best[id_] = rank
                continue
            repeated.setdefault(id_, [scores[id_]]).append(vote)
            best[id_] = min(rank, best[id_])
    scores.update(add_up(repeated))
    # Sorting is stable: one score keeps the order of best ranks, and one best rank that of first appearance.
    ordered = sorted(scores, key=best.__getitem__)
    ordered.sort(key=scores.__getitem__, reverse=True)
    return [(id_, scores[id_]) for id_ in ordered[:top_k]]


def weigh(lists: Mapping[str, Ranking], weights: Weights) -> list[Route]:
    """Pair every list with its weight and leave out the lists whose weight is 0.

    Args:
        lists: rankings by the name of their route.
        weights: one number for every list, by name or in the order of the lists; None gives every list 1.

    Raises:
        NodeInputError: a weight is negative or not finite, is missing, or all of them are 0.
    """
    by_name = _checked(list(lists), weights)
    return [Route(name, ranking, by_name[name]) for name, ranking in lists.items() if by_name[name] > 0]


def arrange(
    routes: Sequence[Route],
    values: Mapping[str, float],
    *,
    route: str,
    score_kind: ScoreKind,
    top_k: int | None = None,
) -> Ranking:
    """Build the fused ranking from the new score of every id.

    Sorted by score (descending), then best rank in any of the lists, then first appearance. The first list that holds
    a hit gives its text and metadata. The result is degraded when one of the lists is.
    """
    candidates = collect(routes)
    ordered = sorted(candidates, key=lambda id_: (-values[id_], candidates[id_].best_rank))
    hits: list[Hit] = []
    for rank, id_ in enumerate(ordered[:top_k], start=1):
        found = candidates[id_]
        own = {route: RouteScore(rank=rank, score=values[id_], kind=score_kind)}
        changed = {
            "rank": rank,
            "score": values[id_],
            "score_kind": score_kind,
            "scores": {**found.earlier, **found.routes, **own},
        }
        hits.append(found.hit.model_copy(update=changed))
    errors = [f"{each.name}: {each.ranking.error}" for each in routes if each.ranking.error]
    return Ranking(
        hits=tuple(hits),
        route=route,
        score_kind=score_kind,
        degraded=any(each.ranking.degraded for each in routes),
        error="; ".join(errors) or None,
    )


def collect(routes: Iterable[Route]) -> dict[str, Candidate]:
    """Gather the hits of all lists by id, in order of first appearance, with every score that they have seen.

    Where two lists bring a score of the same earlier route, the better rank stays.
    """
    candidates: dict[str, Candidate] = {}
    for each in routes:
        for hit in each.ranking.hits:
            found = candidates.setdefault(hit.id, Candidate(hit, hit.rank))
            found.best_rank = min(found.best_rank, hit.rank)
            found.routes[each.name] = RouteScore(rank=hit.rank, score=hit.score, kind=each.ranking.score_kind)
            for name, score in hit.scores.items():
                known = found.earlier.get(name)
                if known is None or score.rank < known.rank:
                    found.earlier[name] = score
    return candidates


def add_up(contributions: Mapping[K, Iterable[float]]) -> dict[K, float]:
    """Sum the contributions to every id, exactly, so that the order of the lists does not matter."""
    return {id_: math.fsum(parts) for id_, parts in contributions.items()}


def shared_kind(routes: Iterable[Route]) -> ScoreKind | None:
    """Return the kind of score that all filled lists have in common, or None when they differ or none is filled."""
    kinds = {each.ranking.score_kind for each in routes if each.ranking.hits}
    return kinds.pop() if len(kinds) == 1 else None


def refuse_mixed_scales(routes: Sequence[Route]) -> None:
    """Refuse to add raw scores of different kinds.

    Raises:
        NodeInputError: two filled lists have different kinds of score.
    """
    filled = [each for each in routes if each.ranking.hits]
    if filled and shared_kind(filled) is None:
        kinds = ", ".join(f"`{each.name}` has {each.ranking.score_kind}" for each in filled)
        raise NodeInputError(
            f"The lists have scores of different kinds ({kinds}), which cannot be compared as they are.",
            hint="choose a normalizer such as `minmax`, or say `allow_mixed_scales: true`",
        )


def normalise(scores: Sequence[float], normalizer: Normalizer) -> list[float]:
    """Bring the scores of one list to a common scale.

    `minmax` maps to 0..1 (all equal: 1 when above 0, else 0). `zscore` counts population standard deviations from
    the mean (all equal: 0). `dbsf` maps mean - 3 sd .. mean + 3 sd to 0..1 with the population deviation (Haystack),
    `dbsf_sample` with the sample deviation (Qdrant); all equal, or a single hit, gives 0.5, the middle, since zeros
    would bury the only hit of a list.
    """
    if normalizer == "none" or not scores:
        return list(scores)
    low, high = min(scores), max(scores)
    if low == high:
        return [_SCORE_WITHOUT_SPREAD.get(normalizer, float(high > 0))] * len(scores)
    if normalizer == "minmax":
        return [(score - low) / (high - low) for score in scores]
    mean = math.fsum(scores) / len(scores)
    squares = math.fsum((score - mean) * (score - mean) for score in scores)
    deviation = math.sqrt(squares / (len(scores) - (normalizer == "dbsf_sample")))
    if deviation == 0:  # underflow: the scores differ by less than their squares can show
        return [_SCORE_WITHOUT_SPREAD[normalizer]] * len(scores)
    if normalizer == "zscore":
        return [(score - mean) / deviation for score in scores]
    return [(score - (mean - 3 * deviation)) / (6 * deviation) for score in scores]


def _checked(names: Sequence[str], weights: Weights) -> dict[str, float]:
    if weights is None:
        return dict.fromkeys(names, 1.0)
    by_name = _named(names, weights)
    for name, weight in by_name.items():
        if not (math.isfinite(weight) and weight >= 0):
            raise NodeInputError(f"The weight of `{name}` is {weight:g}; a weight must be a number of at least 0.")
    if by_name and not any(by_name.values()):
        raise NodeInputError("All weights are 0, so no list would be left; give at least one list a weight above 0.")
    return by_name


def _named(names: Sequence[str], weights: dict[str, float] | list[float]) -> dict[str, float]:
    if not isinstance(weights, dict):
        if len(weights) != len(names):
            listed = ", ".join(f"`{name}`" for name in names) or "none"
            raise NodeInputError(f"There are {len(weights)} weights for {len(names)} lists ({listed}).")
        return dict(zip(names, weights, strict=True))
    # A weight for a list that is not here is none of our business: its step may have been skipped, and a misspelt name
    # is found by the checker (RB904) and by the name that then has no weight.
    missing = [name for name in names if name not in weights]
    if missing:
        misspelt = nearest(missing[0], set(weights) - set(names))
        raise NodeInputError(
            f"`{missing[0]}` has no weight, although other lists have one; weights by name must name every list.",
            hint=f"is `{misspelt}` meant to be `{missing[0]}`?" if misspelt else f"add `{missing[0]}: 0` to ignore it",
        )
    return {name: weights[name] for name in names}


def _vote(rank: int, weight: float, total: float, k: float, variant: RankVariant) -> float:
    if variant == "qdrant":
        return 1.0 / (rank / weight + k - 1.0)
    if variant == "scaled":
        return k * (weight / total) / (k + rank - 1.0)
    return weight / (k + rank)
