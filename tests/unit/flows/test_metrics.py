"""Values are A88, A89, A90 and A96 of the methods document, or worked out by hand in the comments."""

from __future__ import annotations

import math

import pytest

from ragbraid.flows.metrics import aggregate, answer_metrics, answer_tokens, gold_order, retrieval_metrics
from ragbraid.registry.contracts import Hit, Ranking


def hit(name: str, rank: int, **fields: str) -> Hit:
    return Hit(id=name, text=name, score=1 / rank, rank=rank, score_kind="rank", **fields)


def ranking(*hits: Hit) -> Ranking:
    return Ranking(hits=hits, route="test", score_kind="rank")


@pytest.mark.parametrize(
    ("order", "gold", "recall", "reciprocal", "precision", "ndcg"),
    [
        pytest.param("x r1 y r2", "r1 r2", 1.0, 0.5, 0.5, 0.650921, id="A88"),
        pytest.param("r1 r1 y", "r1 r2", 0.5, 1.0, 0.5, 0.613147, id="A89"),
        pytest.param("x r1 y r2", "r1 r2 r3", 0.666667, 0.5, 0.333333, 0.498189, id="A90"),
    ],
)
def test_retrieval_is_measured_as_the_methods_document_has_it(
    order: str, gold: str, recall: float, reciprocal: float, precision: float, ndcg: float
) -> None:
    # Two chunks of one gold document are two hits with one source.
    hits = [hit(f"{name}#{rank}", rank, source=name) for rank, name in enumerate(order.split(), start=1)]
    wanted = gold.split()
    found = retrieval_metrics(gold_order(ranking(*hits), wanted), wanted)
    assert found["recall@5"] == pytest.approx(recall, abs=1e-6)
    assert found["mrr@10"] == pytest.approx(reciprocal, abs=1e-6)
    assert found["ap"] == pytest.approx(precision, abs=1e-6)
    assert found["ndcg@10"] == pytest.approx(ndcg, abs=1e-6)


def test_full_support_wants_every_gold_passage_above_the_cutoff() -> None:
    order = ["r1", "a", "b", "c", "d", "r2", "e", "f", "g", "h", "i"]
    found = retrieval_metrics(order, ["r1", "r2"])
    assert (found["all_gold@5"], found["all_gold@10"]) == (0.0, 1.0)
    assert (found["recall@5"], found["recall@10"]) == (0.5, 1.0)


def test_what_stands_below_the_cutoff_counts_for_the_average_precision_alone() -> None:
    found = retrieval_metrics([*"abcdefghij", "r1"], ["r1"])
    assert found == {
        "recall@5": 0, "recall@10": 0, "mrr@10": 0, "ndcg@10": 0, "all_gold@5": 0, "all_gold@10": 0,
        "ap": pytest.approx(1 / 11),
    }  # fmt: skip


def test_a_ranking_without_hits_scores_zero_where_there_is_gold() -> None:
    assert set(retrieval_metrics([], ["r1"]).values()) == {0.0}


def test_a_hit_is_known_by_its_id_its_source_or_its_document() -> None:
    hits = ranking(
        hit("c1", 1, source="a.md", document_id="d1"),
        hit("c2", 2, source="a.md", document_id="d1"),
        hit("c3", 3, source="b.md", document_id="d2"),
        hit("c4", 4),
    )
    assert gold_order(hits, ["a.md"]) == ["a.md", "c3", "c4"]
    assert gold_order(hits, ["d2", "c2"]) == ["c1", "c2", "d2", "c4"]


def test_undefined_is_never_zero() -> None:
    metric = aggregate("f1", [0.5, None, 1.0], n_error=1)
    assert (metric.value, metric.n, metric.n_undefined, metric.n_error) == (0.75, 2, 1, 1)


def test_a_metric_that_no_question_has_is_undefined() -> None:
    assert aggregate("f1", [None, None]).value is None
    assert aggregate("f1", []).value is None


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("The Well-Known U.S. answer, an apple!", ["wellknown", "us", "answer", "apple"]),
        ("批量参数：batch_rows 调低到2000。", [*"批量参数", "batchrows", "调", "低", "到", "2000"]),
        ("Ａ，Ｂ（ｃ）", ["b", "c"]),
        ("“quoted” – text…", ["quoted", "text"]),
        ("", []),
    ],
)
def test_answers_are_compared_by_words_and_chinese_characters(text: str, tokens: list[str]) -> None:
    assert answer_tokens(text) == tokens


def test_english_answers_are_scored_as_by_hand() -> None:
    # given: every, 18, months, in, spring; wanted: every, 18, months. P = 3/5, R = 3/3, F1 = 2 * 0.6 / 1.6
    found = answer_metrics("Every 18 months, in the spring. [1]", ["every 18 months"])
    assert found == {"em": 0.0, "f1": pytest.approx(0.75), "contains": 1.0}


def test_chinese_answers_are_scored_as_by_hand() -> None:
    # given: 重 启 服 务; wanted: 重 启 网 关 服 务. P = 4/4, R = 4/6, F1 = 2 * (2/3) / (5/3)
    found = answer_metrics("重启服务。[2]", ["重启网关服务"])
    assert found == {"em": 0.0, "f1": pytest.approx(0.8), "contains": 0.0}


def test_repeated_words_count_as_often_as_both_have_them() -> None:
    # given: no, no, no; wanted: no, no, yes. common 2, P = 2/3, R = 2/3
    assert answer_metrics("no no no", ["no no yes"])["f1"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(("text", "gold"), [("The 30 days.", "30 DAYS"), ("“四月三十日”", "四月三十日")])
def test_an_answer_that_differs_in_form_alone_is_an_exact_match(text: str, gold: str) -> None:
    assert answer_metrics(text, ["something else", gold]) == {"em": 1.0, "f1": 1.0, "contains": 1.0}


def test_containment_is_by_whole_words() -> None:
    assert answer_metrics("It takes 130 days.", ["30 days"])["contains"] == 0.0


def test_an_answer_of_articles_alone_matches_nothing_but_its_like() -> None:
    found = answer_metrics("the", ["answer"])
    assert found == {"em": 0.0, "f1": 0.0, "contains": 0.0}
    assert not any(math.isnan(value) for value in found.values())
