"""Cutting rankings."""

from __future__ import annotations

import pytest

from ragbraid.nodes.rank import add_hit, keep_above_threshold, keep_top_k, leave_out
from ragbraid.registry.contracts import Hit, Ranking
from ragbraid.registry.errors import NodeInputError


def ranking(*scores: float) -> Ranking:
    hits = [Hit(id=f"h{n}", text="", score=score, rank=1, score_kind="model") for n, score in enumerate(scores)]
    made = Ranking.from_hits(hits, route="rerank", score_kind="model")
    return made.model_copy(update={"degraded": True, "error": "half"})


@pytest.mark.parametrize(("value", "kept"), [(None, 3), (0.0, 2), (0.5, 1), (0.6, 0)])
def test_a_threshold_keeps_what_reaches_it_and_zero_is_a_threshold(value: float | None, kept: int) -> None:
    result = keep_above_threshold(ranking(0.5, 0.0, -0.1), value=value, kind="model")
    assert len(result) == kept
    assert Ranking.model_validate(result.model_dump()) == result


def test_a_threshold_for_another_kind_of_score_is_refused() -> None:
    with pytest.raises(NodeInputError) as caught:
        keep_above_threshold(ranking(0.5), value=0.3, kind="cosine")
    assert str(caught.value) == (
        "The threshold 0.3 is meant for `cosine` scores, but the ranking from `rerank` holds `model` scores."
    )
    assert caught.value.hint is not None


def test_an_empty_ranking_passes_any_threshold() -> None:
    assert len(keep_above_threshold(Ranking(), value=0.3, kind="cosine")) == 0


def test_the_head_of_a_ranking_keeps_scores_and_state() -> None:
    full = ranking(0.9, 0.5, 0.1)
    head = keep_top_k(full, k=2)
    assert head.hits == full.hits[:2]
    assert head[0].scores == full[0].scores
    assert (head.degraded, head.error, head.route, head.score_kind) == (True, "half", "rerank", "model")
    assert keep_top_k(full, k=10) == full


def test_an_added_hit_stands_last_and_once() -> None:
    first, second = ranking(0.9), ranking(0.9, 0.5)[1]
    both = add_hit(first, second)
    assert [(hit.id, hit.rank, hit.score, hit.score_kind) for hit in both] == [
        ("h0", 1, 1, "rank"),
        ("h1", 2, 0.5, "rank"),
    ]
    assert both[1].scores == second.scores
    assert (both.degraded, both.error, both.route, both.score_kind) == (True, "half", "rank.add", "rank")
    assert Ranking.model_validate(both.model_dump()) == both
    assert add_hit(both, second) is both
    assert add_hit(both, None) is both
    assert [hit.id for hit in add_hit(Ranking(), second)] == ["h1"]


def test_hits_of_another_ranking_are_left_out_and_the_rest_ranked_anew() -> None:
    full = ranking(0.9, 0.5, 0.1)
    rest = leave_out(full, ranking(0.3))
    assert [(hit.id, hit.rank, hit.score) for hit in rest] == [("h1", 1, 0.5), ("h2", 2, 0.1)]
    assert (rest.degraded, rest.route, rest.score_kind) == (True, "rerank", "model")
    assert Ranking.model_validate(rest.model_dump()) == rest
    assert leave_out(full, Ranking()) == full
    assert len(leave_out(full, full)) == 0
