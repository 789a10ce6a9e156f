"""Fusion: the hand-computed examples of the method specification, and what must hold for any rankings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragbraid.nodes.fuse import (
    append,
    combine,
    fuse_by_rank,
    fuse_linearly,
    reciprocal_rank_fusion,
    round_robin,
)
from ragbraid.nodes.fusion import normalise
from ragbraid.registry.contracts import FanIn, Hit, Ranking, RouteScore, ScoreKind
from ragbraid.registry.errors import NodeInputError


def ranking(scores: str | Mapping[str, float], kind: ScoreKind = "cosine", route: str = "r") -> Ranking:
    """A ranking from scores by id, or from letters in order."""
    if isinstance(scores, str):
        scores = {id_: 1.0 - position / 1000 for position, id_ in enumerate(scores)}
    hits = [Hit(id=id_, text=id_.upper(), score=score, rank=1, score_kind=kind) for id_, score in scores.items()]
    return Ranking.from_hits(hits, route=route, score_kind=kind)


def fan(*rankings: Ranking, **named: Ranking) -> FanIn[Ranking]:
    return FanIn({f"l{position}": each for position, each in enumerate(rankings)} | named)


def filler(count: int, tag: str) -> str | dict[str, float]:
    return {f"{tag}{position}": 1.0 - position / 10_000 for position in range(count)}


def at_rank(rank: int, id_: str, tag: str) -> Ranking:
    """A list in which `id_` stands at a rank, with hits before it that no other list has."""
    scores = dict(filler(rank - 1, tag)) | {id_: 0.0}
    return ranking(scores)


def scores_of(result: Ranking) -> dict[str, float]:
    return {hit.id: hit.score for hit in result}


def ids_of(result: Ranking) -> str:
    return "".join(hit.id for hit in result)


V = ranking({"a": 0.9, "b": 0.8, "c": 0.6})
K = ranking({"b": 12.0, "d": 8.0, "a": 4.0}, "bm25")


# -- reciprocal rank fusion: A01-A16, A105 -----------------------------------------------------------------------------


def test_an_exact_hit_of_the_weak_route_wins_when_both_routes_have_it() -> None:
    result = reciprocal_rank_fusion(fan(ranking("pxyzo"), ranking("o")), weights=[0.7, 0.3])
    assert result[0].id == "o"
    assert result[0].score == pytest.approx(0.0156873, abs=1e-7)
    assert scores_of(result)["p"] == pytest.approx(0.0114754, abs=1e-7)


def test_being_in_both_lists_beats_the_first_rank_of_the_weak_one() -> None:
    bm25 = ranking("Axyz" + "B")
    result = scores_of(
        reciprocal_rank_fusion(fan(dense=ranking("pqB"), bm25=bm25), weights={"dense": 0.7, "bm25": 0.3})
    )
    assert result["A"] == pytest.approx(0.0049180, abs=1e-7)
    assert result["B"] == pytest.approx(0.0157265, abs=1e-7)


def test_weights_do_not_change_the_order_that_all_lists_agree_on() -> None:
    result = scores_of(reciprocal_rank_fusion(fan(*[ranking("CD")] * 3), weights=[0.3, 0.7, 0.5]))
    assert result == pytest.approx({"C": 0.0245902, "D": 0.0241935}, abs=1e-7)


def test_an_extreme_weight_decides_between_swapped_ranks() -> None:
    bm25 = ranking({"E": 1.0} | dict(filler(18, "s")) | {"F": 0.0})
    dense = ranking({"F": 1.0} | dict(filler(18, "d")) | {"E": 0.0})
    result = scores_of(reciprocal_rank_fusion(fan(bm25=bm25, dense=dense), weights={"bm25": 0.01, "dense": 0.99}))
    assert result["E"] == pytest.approx(0.0125389, abs=1e-7)
    assert result["F"] == pytest.approx(0.0163545, abs=1e-7)


def test_votes_of_both_lists_add_up() -> None:
    result = reciprocal_rank_fusion(fan(ranking("abc"), ranking("bda")))
    assert ids_of(result) == "badc"
    assert scores_of(result) == pytest.approx(
        {"b": 0.0325225, "a": 0.0322665, "d": 0.0161290, "c": 0.0158730}, abs=1e-7
    )
    assert result.score_kind == "rrf"


def test_the_qdrant_variant_counts_ranks_from_zero() -> None:
    result = reciprocal_rank_fusion(fan(ranking("abc"), ranking("bda")), variant="qdrant", k=2)
    assert scores_of(result) == pytest.approx({"b": 0.8333333, "a": 0.75, "d": 0.3333333, "c": 0.25}, abs=1e-7)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (None, {"b": 0.991935, "a": 0.984127, "d": 0.491935, "c": 0.484127}),
        ([0.7, 0.3], {"a": 0.990476, "b": 0.988710, "c": 0.677778, "d": 0.295161}),
    ],
)
def test_the_scaled_variant_gives_one_for_the_first_rank_everywhere(
    weights: list[float] | None, expected: dict[str, float]
) -> None:
    result = reciprocal_rank_fusion(fan(V, K), variant="scaled", k=61, weights=weights)
    assert scores_of(result) == pytest.approx(expected, abs=1e-6)
    assert list(scores_of(result)) == list(expected)


def test_a_weight_stretches_ranks_in_the_qdrant_variant_and_multiplies_votes_in_the_standard_one() -> None:
    lists = fan(dense=ranking("xyT"), sparse=ranking("T"))
    qdrant = reciprocal_rank_fusion(lists, variant="qdrant", weights=[0.7, 0.3])
    standard = reciprocal_rank_fusion(lists, weights=[0.7, 0.3])
    assert scores_of(qdrant)["T"] == pytest.approx(0.031844, abs=1e-6)
    assert scores_of(standard)["T"] == pytest.approx(0.016029, abs=1e-6)


def test_a_list_with_weight_zero_is_ignored_with_all_its_hits() -> None:
    result = reciprocal_rank_fusion(fan(ranking("ab"), ranking("c")), weights=[1, 0])
    assert ids_of(result) == "ab"


def test_a_repeated_hit_counts_once_at_its_best_rank() -> None:
    hits = [Hit(id=id_, text="", score=1, rank=1, score_kind="rrf") for id_ in "aab"]
    once = Ranking.from_hits(hits, route="r", score_kind="rrf")
    assert scores_of(reciprocal_rank_fusion(fan(once))) == pytest.approx({"a": 0.0163934, "b": 0.0161290}, abs=1e-7)


def test_a_single_filled_list_is_voted_on_or_passes_through() -> None:
    lists = fan(ranking({"a": 0.9, "b": 0.5}), Ranking())
    renormalised = reciprocal_rank_fusion(lists)
    passed = reciprocal_rank_fusion(lists, single_list="passthrough")
    assert scores_of(renormalised) == pytest.approx({"a": 0.0163934, "b": 0.0161290}, abs=1e-7)
    assert scores_of(passed) == {"a": 0.9, "b": 0.5}
    assert (renormalised.score_kind, passed.score_kind) == ("rrf", "cosine")


def test_rank_61_in_both_lists_beats_rank_one_in_one_list_and_rank_62_ties_with_it() -> None:
    for rank, order in ((61, "win"), (62, "tie")):
        both = [at_rank(rank, "both", tag) for tag in ("s", "t")]
        result = scores_of(reciprocal_rank_fusion(fan(*both)))
        if order == "win":
            assert result["both"] > result["s0"]
        else:
            assert result["both"] == result["s0"] == pytest.approx(0.0163934, abs=1e-7)


def test_a_first_rank_of_weight_03_stands_between_ranks_82_and_83_of_weight_07() -> None:
    dense = ranking(filler(83, "d"))
    result = scores_of(reciprocal_rank_fusion(fan(dense=dense, bm25=ranking("z")), weights=[0.7, 0.3]))
    assert result["d81"] == pytest.approx(0.0049296, abs=1e-7)
    assert result["z"] == pytest.approx(0.0049180, abs=1e-7)
    assert result["d82"] == pytest.approx(0.0048951, abs=1e-7)


def test_equal_scores_keep_the_order_of_first_appearance_when_their_best_ranks_are_equal() -> None:
    result = reciprocal_rank_fusion(fan(text=ranking("badc"), rerank=ranking("dab")), weights=[0.5, 0.5])
    assert ids_of(result) == "bdac"
    assert scores_of(result) == pytest.approx(
        {"b": 0.0161332, "d": 0.0161332, "a": 0.0161290, "c": 0.0078125}, abs=1e-7
    )
    assert result[0].score == result[1].score


def test_ranks_are_counted_in_each_list_and_not_over_their_concatenation() -> None:
    result = reciprocal_rank_fusion(fan(dense=ranking("ab"), sparse=ranking("ca")))
    assert ids_of(result) == "acb"
    assert scores_of(result) == pytest.approx({"a": 0.0325225, "c": 0.0163934, "b": 0.0161290}, abs=1e-7)


@pytest.mark.parametrize(
    ("k", "expected"),
    [
        (2, {"0": 0.833333, "3": 0.75, "1": 0.333333, "2": 0.2}),
        (61, {"0": 0.032522, "3": 0.032266, "1": 0.016129, "2": 0.015625}),
    ],
)
def test_the_qdrant_variant_agrees_with_what_qdrant_itself_returned(k: int, expected: dict[str, float]) -> None:
    lists = fan(dense=ranking("0132"), sparse=ranking("30"))
    assert scores_of(reciprocal_rank_fusion(lists, variant="qdrant", k=k)) == pytest.approx(expected, abs=1e-6)


def test_sample_deviations_agree_with_the_dbsf_that_qdrant_returned() -> None:
    dense = ranking({"0": 1.0, "1": 0.993884, "3": 0.707107, "2": 0.0})
    sparse = ranking({"3": 1.386294, "0": 0.693147})
    result = scores_of(fuse_linearly(fan(dense, sparse), normalizer="dbsf_sample"))
    assert result == pytest.approx({"3": 1.129138, "0": 0.997199, "1": 0.612884, "2": 0.260779}, abs=1e-6)


# -- linear and Comb*: A17-A27 -----------------------------------------------------------------------------------------


def test_minmax_maps_every_list_to_zero_and_one() -> None:
    assert normalise([0.9, 0.8, 0.6], "minmax") == pytest.approx([1, 0.666667, 0], abs=1e-6)
    assert normalise([12, 8, 4], "minmax") == pytest.approx([1, 0.5, 0])


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("sum", {"b": 1.666667, "a": 1, "d": 0.5, "c": 0}),
        ("mnz", {"b": 3.333333, "a": 2, "d": 0.5, "c": 0}),
        ("max", {"a": 1, "b": 1, "d": 0.5, "c": 0}),
        ("min", {"b": 0.666667, "d": 0.5, "a": 0, "c": 0}),
        ("anz", {"b": 0.833333, "a": 0.5, "d": 0.5, "c": 0}),
        ("med", {"b": 0.833333, "a": 0.5, "d": 0.5, "c": 0}),
    ],
)
def test_each_combination_follows_its_definition(op: str, expected: dict[str, float]) -> None:
    result = combine(fan(V, K), op=op)  # type: ignore[arg-type]
    assert scores_of(result) == pytest.approx(expected, abs=1e-6)
    assert result.score_kind == "norm"


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([0.7, 0.3], {"b": 0.766667, "a": 0.7, "d": 0.15, "c": 0}),
        ([0.6, 0.4], {"b": 0.8, "a": 0.6, "d": 0.2, "c": 0}),
    ],
)
def test_weighted_minmax_sums(weights: list[float], expected: dict[str, float]) -> None:
    assert scores_of(fuse_linearly(fan(V, K), weights=weights)) == pytest.approx(expected, abs=1e-6)


def test_raw_scores_of_different_kinds_are_added_only_on_request() -> None:
    with pytest.raises(NodeInputError, match="`l0` has cosine, `l1` has bm25"):
        fuse_linearly(fan(V, K), normalizer="none", weights=[0.5, 0.5])
    with pytest.raises(NodeInputError, match="different kinds"):
        combine(fan(V, K), op="max", normalizer="none")
    result = fuse_linearly(fan(V, K), normalizer="none", weights=[0.5, 0.5], allow_mixed_scales=True)
    assert scores_of(result) == pytest.approx({"b": 6.4, "d": 4.0, "a": 2.45, "c": 0.3})


def test_an_empty_list_has_no_scale_to_mix() -> None:
    empty = Ranking(route="bm25", score_kind="bm25")
    assert scores_of(fuse_linearly(fan(V, empty), normalizer="none")) == {"a": 0.9, "b": 0.8, "c": 0.6}


def test_population_deviations_with_the_larger_of_two_scores() -> None:
    result = scores_of(fuse_linearly(fan(V, K), normalizer="dbsf", on_dup="max"))
    assert result == pytest.approx({"b": 0.704124, "a": 0.678174, "d": 0.5, "c": 0.277282}, abs=1e-6)


def test_sample_deviations_with_the_sum_of_two_scores() -> None:
    result = scores_of(fuse_linearly(fan(V, K), normalizer="dbsf_sample", on_dup="sum"))
    assert result == pytest.approx({"b": 1.203036, "a": 0.978812, "d": 0.5, "c": 0.318152}, abs=1e-6)


@pytest.mark.parametrize(
    ("normalizer", "expected"), [("minmax", 1.0), ("zscore", 0.0), ("dbsf", 0.5), ("dbsf_sample", 0.5)]
)
@pytest.mark.parametrize("scores", [[5.0, 5.0], [5.0], [0.1, 0.1, 0.1]])
def test_scores_without_spread_have_a_defined_value(normalizer: str, expected: float, scores: list[float]) -> None:
    assert normalise(scores, normalizer) == [expected] * len(scores)  # type: ignore[arg-type]


def test_minmax_of_equal_scores_that_are_not_above_zero_is_zero() -> None:
    assert normalise([0.0, 0.0], "minmax") == [0.0, 0.0]
    assert normalise([-2.0], "minmax") == [0.0]


def test_a_hit_that_a_list_lacks_gets_the_lowest_zscore_of_that_list_and_not_the_mean() -> None:
    result = scores_of(fuse_linearly(fan(V, K), normalizer="zscore"))
    low_k = -math.sqrt(1.5)
    (_, _, c) = normalise([0.9, 0.8, 0.6], "zscore")
    assert result["c"] == pytest.approx(c + low_k)


def test_weighted_raw_scores_of_one_kind_merge_as_in_haystack() -> None:
    first = ranking({"a": 0.9, "b": 0.5, "c": 0.1})
    second = ranking({"b": 10.0, "d": 4.0, "a": 1.0})
    merged = fuse_linearly(fan(first, second), normalizer="none", weights=[0.7, 0.3])
    joined = combine(fan(first, second), op="max", normalizer="none")
    assert scores_of(merged) == pytest.approx({"b": 3.35, "d": 1.2, "a": 0.93, "c": 0.07})
    assert scores_of(joined) == {"b": 10, "d": 4, "a": 1, "c": 0.1}
    assert (merged.score_kind, joined.score_kind) == ("composite", "cosine")


# -- order nodes -------------------------------------------------------------------------------------------------------


def test_append_keeps_the_order_of_the_lists_and_the_first_occurrence() -> None:
    result = append(fan(earlier=ranking("xy"), found=ranking("yza")), limit=3)
    assert ids_of(result) == "xyz"
    assert [hit.score for hit in result] == [1, 1 / 2, 1 / 3]
    assert result.score_kind == "rank"
    assert result[1].scores["earlier"].rank == 2
    assert result[1].scores["found"] == RouteScore(rank=1, score=1.0, kind="cosine")


def test_round_robin_takes_turns() -> None:
    assert ids_of(round_robin(fan(ranking("abc"), ranking("bxyz"), ranking("q")))) == "abqxcyz"
    assert ids_of(round_robin(fan(ranking("abc"), ranking("bxyz")), limit=3)) == "abx"


# -- three routes of a graph method, by hand ----------------------------------------------------------------------------

DENSE, GRAPH, SPARSE = ranking("1234"), ranking("35"), ranking("23")


@pytest.mark.parametrize(
    ("k", "weights", "order", "expected"),
    [
        (60, None, "32154", {"3": 0.048395, "2": 0.032522, "1": 0.016393, "4": 0.015625, "5": 0.016129}),
        (0, None, "32154", {"3": 1.833333, "2": 1.5, "1": 1.0, "4": 0.25, "5": 0.5}),
        (60, [0.5, 0.3, 0.2], "32145", {"3": 0.016080, "2": 0.011343, "1": 0.008197, "4": 0.007812, "5": 0.004839}),
    ],
)
def test_dense_graph_and_sparse_votes_add_up(
    k: float, weights: list[float] | None, order: str, expected: dict[str, float]
) -> None:
    result = reciprocal_rank_fusion(fan(DENSE, GRAPH, SPARSE), k=k, weights=weights)
    assert ids_of(result) == order
    assert scores_of(result) == pytest.approx(expected, abs=1e-6)


def test_the_order_in_which_routes_are_merged_by_scores_does_not_matter() -> None:
    """KAG merges pairwise and scales what is merged again, so that the first hit of the exact route loses."""
    lists = [
        ranking({"3": 0.9, "5": 0.5}),
        ranking({"1": 0.8, "2": 0.7, "3": 0.6, "4": 0.4}),
        ranking({"2": 12.0, "3": 7.0}, "bm25"),
    ]
    for turned in permutations(lists):
        result = combine(fan(*turned))
        assert scores_of(result) == pytest.approx({"2": 1.75, "3": 1.5, "1": 1.0, "4": 0.0, "5": 0.0})


def test_three_routes_take_turns() -> None:
    assert ids_of(round_robin(fan(DENSE, GRAPH, SPARSE))) == "13254"


# -- weights -----------------------------------------------------------------------------------------------------------


def test_weights_by_name_find_their_list_whatever_the_order_they_are_written_in() -> None:
    lists = fan(dense=ranking("ab"), sparse=ranking("ca"))
    by_name = reciprocal_rank_fusion(lists, weights={"sparse": 0.3, "dense": 0.7})
    assert by_name == reciprocal_rank_fusion(lists, weights=[0.7, 0.3])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"dense": 1.0, "sparse": -0.1}, "The weight of `sparse` is -0.1"),
        ({"dense": 1.0, "sparse": float("nan")}, "The weight of `sparse` is nan"),
        ({"dense": 1.0, "sparse": float("inf")}, "The weight of `sparse` is inf"),
        ({"dense": 1.0}, "`sparse` has no weight"),
        ([1.0], "1 weights for 2 lists"),
        ([1.0, 1.0, 1.0], "3 weights for 2 lists"),
        ([0.0, 0.0], "All weights are 0"),
    ],
)
def test_weights_that_do_not_fit_the_lists_are_refused(weights: list[float] | dict[str, float], message: str) -> None:
    lists = fan(dense=ranking("ab"), sparse=ranking("ca"))
    for fuse in (reciprocal_rank_fusion, fuse_linearly):
        with pytest.raises(NodeInputError, match=message):
            fuse(lists, weights=weights)


def test_a_misspelled_list_in_the_weights_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(NodeInputError) as caught:
        reciprocal_rank_fusion(fan(dense=ranking("a"), sparse=ranking("b")), weights={"dense": 1, "sparce": 1})
    assert caught.value.hint == "is `sparce` meant to be `sparse`?"


def test_a_weight_for_a_list_that_a_skipped_step_left_out_is_not_used() -> None:
    arrived = fan(dense=ranking("ab"), sparse=ranking("ca"))
    fused = reciprocal_rank_fusion(arrived, weights={"dense": 1.0, "sparse": 1.0, "graph": 1.0})
    assert fused == reciprocal_rank_fusion(arrived, weights={"dense": 1.0, "sparse": 1.0})


# -- what travels along ------------------------------------------------------------------------------------------------


def test_every_hit_keeps_the_rank_and_score_of_every_route_and_of_what_came_before() -> None:
    inner = reciprocal_rank_fusion(fan(dense=ranking("ab"), sparse=ranking("b")))
    result = reciprocal_rank_fusion(fan(hybrid=inner, graph=ranking({"b": 3.0}, "graph")))
    scores = result[0].scores
    assert result[0].id == "b"
    assert scores["dense"].rank == 2
    assert scores["sparse"].rank == 1
    assert scores["hybrid"] == RouteScore(rank=1, score=inner[0].score, kind="rrf")
    assert scores["graph"] == RouteScore(rank=1, score=3.0, kind="graph")
    assert scores["fuse.rrf"] == RouteScore(rank=1, score=result[0].score, kind="rrf")


def test_a_degraded_list_makes_the_result_degraded_unless_it_is_ignored() -> None:
    broken = Ranking(route="graph", degraded=True, error="the graph store is away")
    lists = fan(dense=ranking("a"), graph=broken)
    for fused in (
        reciprocal_rank_fusion(lists),
        fuse_linearly(lists),
        combine(lists),
        append(lists),
        round_robin(lists),
    ):
        assert fused.degraded
        assert fused.error == "graph: the graph store is away"
        assert ids_of(fused) == "a"
    assert not reciprocal_rank_fusion(lists, weights=[1, 0]).degraded


def test_nothing_in_gives_an_empty_ranking() -> None:
    for lists in (FanIn[Ranking](), fan(Ranking(), Ranking())):
        for fused in (
            reciprocal_rank_fusion(lists),
            fuse_linearly(lists),
            combine(lists),
            append(lists),
            round_robin(lists),
        ):
            assert len(fused) == 0
            assert not fused.degraded


def test_the_plain_function_fuses_routes_under_a_name_of_the_callers_choice() -> None:
    result = fuse_by_rank({"dense": ranking("ab"), "sparse": ranking("b")}, route="hybrid", top_k=1)
    assert result.route == "hybrid"
    assert set(result[0].scores) == {"r", "dense", "sparse", "hybrid"}
    assert len(result) == 1


# -- properties --------------------------------------------------------------------------------------------------------

SCORES = st.floats(-100, 100).map(lambda score: round(score, 3))
RANKINGS = st.dictionaries(st.sampled_from("abcdefghij"), SCORES, max_size=8).map(ranking)
LISTS = st.lists(RANKINGS, max_size=4)
NORMALIZERS = st.sampled_from(["none", "minmax", "zscore", "dbsf", "dbsf_sample"])


@given(LISTS, NORMALIZERS, st.sampled_from(["sum", "mnz", "max", "min", "anz", "med"]))
def test_every_fusion_gives_a_valid_ranking_of_exactly_the_incoming_ids(
    lists: list[Ranking], normalizer: str, op: str
) -> None:
    arriving = fan(*lists)
    known = {hit.id for each in lists for hit in each}
    for fused in (
        reciprocal_rank_fusion(arriving),
        reciprocal_rank_fusion(arriving, variant="scaled"),
        reciprocal_rank_fusion(arriving, variant="qdrant"),
        fuse_linearly(arriving, normalizer=normalizer),  # type: ignore[arg-type]
        combine(arriving, op=op, normalizer=normalizer),  # type: ignore[arg-type]
        append(arriving),
        round_robin(arriving),
    ):
        assert {hit.id for hit in fused} == known
        assert Ranking.model_validate(fused.model_dump()) == fused


@given(LISTS, st.randoms(use_true_random=False))
def test_the_order_of_the_lists_changes_no_vote(lists: list[Ranking], random: object) -> None:
    named = [(f"l{position}", each) for position, each in enumerate(lists)]
    shuffled = list(named)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    weights = {name: 0.1 + position for position, (name, _) in enumerate(named)}
    straight = reciprocal_rank_fusion(FanIn(named), weights=weights)
    mixed = reciprocal_rank_fusion(FanIn(shuffled), weights=weights)
    assert scores_of(straight) == scores_of(mixed)
    assert [hit.score for hit in straight] == [hit.score for hit in mixed]


@given(LISTS, st.integers(-8, 8))
def test_scaling_all_weights_alike_keeps_the_order(lists: list[Ranking], power: int) -> None:
    weights = [1.0 + position for position in range(len(lists))]
    scaled = [weight * 2.0**power for weight in weights]
    arriving = fan(*lists)
    for variant in ("standard", "scaled"):
        plain = reciprocal_rank_fusion(arriving, weights=weights, variant=variant)  # type: ignore[arg-type]
        other = reciprocal_rank_fusion(arriving, weights=scaled, variant=variant)  # type: ignore[arg-type]
        assert ids_of(plain) == ids_of(other)


@given(LISTS, st.integers(1, 12))
def test_cutting_never_changes_the_head(lists: list[Ranking], top_k: int) -> None:
    arriving = fan(*lists)
    assert ids_of(reciprocal_rank_fusion(arriving, limit=top_k)) == ids_of(reciprocal_rank_fusion(arriving))[:top_k]


@given(st.permutations("abcde"))
def test_hits_with_equal_scores_get_the_same_fused_score_however_they_arrive(order: list[str]) -> None:
    """Within one list of equal scores the normalised score is the same for every order of the hits."""
    equal = ranking(dict.fromkeys(order, 0.5))
    fused = fuse_linearly(fan(equal, ranking({"a": 2.0, "b": 1.0})), normalizer="minmax")
    assert scores_of(fused) == {"a": 2.0, "b": 1.0, "c": 1.0, "d": 1.0, "e": 1.0}
