"""The `rank.*` nodes: a ranking becomes a shorter one. What stays keeps its score, its kind and its history."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveInt

from ragbraid.registry.contracts import Hit, Ranking, ScoreKind
from ragbraid.registry.errors import NodeInputError
from ragbraid.registry.node import node


@node(
    "rank.top_k",
    example="""
    best: {use: rank.top_k, ranking: $search, k: 5}
    """,
)
def keep_top_k(ranking: Ranking, *, k: PositiveInt) -> Ranking:
    """Keep the first k hits of a ranking.

    Args:
        ranking: the ranking to shorten.
        k: how many hits to keep; a shorter ranking stays as it is.
    """
    return _shortened(ranking, ranking.hits[:k])


@node(
    "rank.threshold",
    example="""
    good: {use: rank.threshold, ranking: $rerank, value: 0.5, kind: model}
    """,
)
def keep_above_threshold(
    ranking: Ranking, *, value: Annotated[float, Field(allow_inf_nan=False)] | None, kind: ScoreKind
) -> Ranking:
    """Keep the hits whose score is at least a value.

    Args:
        ranking: the ranking to shorten.
        value: the lowest score that stays; 0.0 is a threshold like any other, none (null) keeps everything.
        kind: the kind of score that the value is meant for, such as `model` after a reranker.

    Raises:
        NodeInputError: the ranking holds scores of another kind, for which the value would mean nothing.
    """
    if value is None or not ranking.hits:
        return ranking
    if ranking.score_kind != kind:
        where = f" from `{ranking.route}`" if ranking.route else ""
        raise NodeInputError(
            f"The threshold {value:g} is meant for `{kind}` scores, but the ranking{where} holds "
            f"`{ranking.score_kind}` scores.",
            hint=f"write `kind: {ranking.score_kind}` with a value that suits those scores",
        )
    return _shortened(ranking, tuple(hit for hit in ranking.hits if hit.score >= value))


@node(
    "rank.add",
    example="""
    pick: {use: reason.select_atom, candidates: $found, evidence: $chosen}
    pool: {use: rank.add, ranking: $chosen, hit: $pick.hit}
    """,
)
def add_hit(ranking: Ranking, hit: Hit | None) -> Ranking:
    """Put one hit behind a ranking, such as the one that a model chose; a hit that is there already changes nothing.

    The score is 1 / rank, since the hits of such a ranking stand in the order in which they came; what each route said
    of a hit stays under `scores`.

    Args:
        ranking: the ranking so far.
        hit: the hit to add; none (null) leaves the ranking as it is.
    """
    if hit is None or any(hit.id == each.id for each in ranking):
        return ranking
    hits = tuple(
        each.model_copy(update={"rank": rank, "score": 1.0 / rank, "score_kind": "rank"})
        for rank, each in enumerate((*ranking.hits, hit), start=1)
    )
    return ranking.model_copy(update={"hits": hits, "route": "rank.add", "score_kind": "rank"})


@node(
    "rank.without",
    example="""
    fresh: {use: rank.without, ranking: $found, exclude: $chosen}
    """,
)
def leave_out(ranking: Ranking, exclude: Ranking) -> Ranking:
    """Leave out the hits that another ranking holds, such as what was read already.

    Args:
        ranking: the ranking to shorten.
        exclude: the hits that are not wanted, known by their ids.
    """
    unwanted = {hit.id for hit in exclude}
    kept = (hit for hit in ranking.hits if hit.id not in unwanted)
    hits = tuple(hit.model_copy(update={"rank": rank}) for rank, hit in enumerate(kept, start=1))
    return ranking.model_copy(update={"hits": hits})


def _shortened(ranking: Ranking, hits: tuple[Hit, ...]) -> Ranking:
    # A head of a valid ranking is a valid ranking: scores never increase, so both cuts keep ranks 1..n.
    return ranking.model_copy(update={"hits": hits})
