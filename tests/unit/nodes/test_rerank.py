"""Reranking by a cross-encoder and by late interaction."""

from collections.abc import Sequence

import numpy as np
import pytest
from lexical_cross_encoder import write_lexical_cross_encoder

from ragbraid.nodes.rerank import max_similarity, rerank_with_cross_encoder, rerank_with_late_interaction
from ragbraid.nodes.resource_fastembed import fastembed_cross_encoder
from ragbraid.nodes.resource_packaged import packaged_token_embedder
from ragbraid.registry.contracts import Hit, Query, Ranking
from ragbraid.registry.errors import ServiceError
from ragbraid.registry.node import contract_of


class FixedReranker:
    """Gives the scores that it was made with and keeps what it was asked."""

    identity = "fixed"

    def __init__(self, *scores: float) -> None:
        self.scores = list(scores)
        self.asked: list[tuple[str, list[str]]] = []

    def score(self, query: str, texts: Sequence[str]) -> list[float]:
        self.asked.append((query, list(texts)))
        return self.scores


class FixedTokens:
    """Gives the matrix that stands for each text."""

    identity = "fixed tokens"

    def __init__(self, **matrices: list[list[float]]) -> None:
        self.matrices = matrices

    def embed_tokens(self, texts, *, role):
        return [np.array(self.matrices[text], np.float32).reshape(-1, 2) for text in texts if text in self.matrices]


def ranking(*texts: str, **fields) -> Ranking:
    hits = [
        Hit(id=text, text=text, score=1 / place, rank=place, score_kind="rrf", **fields)
        for place, text in enumerate(texts, start=1)
    ]
    return Ranking.from_hits(hits, route="rrf", score_kind="rrf")


def test_hits_are_ordered_by_the_models_score_and_keep_those_of_earlier_routes():
    found = rerank_with_cross_encoder(ranking("a", "b", "c"), Query(text="q"), reranker=FixedReranker(0.1, -3, 0.7))
    assert [hit.id for hit in found] == ["c", "a", "b"]
    assert [hit.score for hit in found] == [0.7, 0.1, -3]
    assert found.score_kind == found[0].score_kind == "model"
    assert found[0].scores["rrf"].rank == 3
    assert found[0].scores["cross_encoder"].rank == 1
    assert found[0].scores["cross_encoder"].kind == "model"


def test_top_k_keeps_the_best_and_a_score_of_zero_is_a_score():
    found = rerank_with_cross_encoder(
        ranking("a", "b", "c"), Query(text="q"), reranker=FixedReranker(0, -1, 2), top_k=2
    )
    assert [(hit.id, hit.score, hit.rank) for hit in found] == [("c", 2, 1), ("a", 0, 2)]


def test_the_model_sees_the_embedded_text_with_its_headings():
    reranker = FixedReranker(1)
    rerank_with_cross_encoder(ranking("30 days", embed_text="Returns\n\n30 days"), Query(text="q"), reranker=reranker)
    assert reranker.asked == [("q", ["Returns\n\n30 days"])]


def test_equal_scores_keep_the_earlier_order():
    found = rerank_with_cross_encoder(ranking("a", "b", "c"), Query(text="q"), reranker=FixedReranker(1, 1, 1))
    assert [hit.id for hit in found] == ["a", "b", "c"]


def test_an_empty_ranking_comes_back_without_a_call():
    reranker = FixedReranker()
    empty = Ranking(route="dense", score_kind="cosine")
    assert rerank_with_cross_encoder(empty, Query(text="q"), reranker=reranker) == empty
    assert rerank_with_late_interaction(empty, Query(text="q"), token_embedder=FixedTokens()) == empty
    assert reranker.asked == []


def test_a_degraded_ranking_stays_degraded():
    hits = ranking("a").model_copy(update={"degraded": True, "error": "the graph route failed"})
    found = rerank_with_cross_encoder(hits, Query(text="q"), reranker=FixedReranker(1))
    assert (found.degraded, found.error) == (True, "the graph route failed")


@pytest.mark.parametrize(
    ("scores", "words"),
    [([1.0], "returned 1 scores for 2 passages"), ([1.0, float("nan")], "a score that is not a number")],
)
def test_a_model_that_does_not_give_one_finite_score_per_passage_has_failed(scores, words):
    with pytest.raises(ServiceError, match=words) as caught:
        rerank_with_cross_encoder(ranking("a", "b"), Query(text="q"), reranker=FixedReranker(*scores))
    assert caught.value.kind == "invalid_output"


def test_a_cross_encoder_of_fastembed_orders_by_the_words_that_question_and_passage_share(tmp_path):
    folder = write_lexical_cross_encoder(tmp_path)
    reranker = fastembed_cross_encoder("our/lexical", path=str(folder), threads=1)
    hits = ranking("travel fusion", "limit of days", "days limit laptop")
    found = rerank_with_cross_encoder(hits, Query(text="laptop days limit"), reranker=reranker, top_k=2)
    assert [(hit.id, hit.score) for hit in found] == [("days limit laptop", 3), ("limit of days", 2)]


def test_max_similarity_is_the_mean_over_the_questions_tokens_of_the_best_cosine():
    query = np.array([[1, 0], [0, 1]], np.float32)
    passage = np.array([[0.6, 0.8], [1, 0]], np.float32)
    assert max_similarity(query, passage) == pytest.approx((1 + 0.8) / 2)
    assert max_similarity(query, passage[:0]) == -1
    assert max_similarity(query[:0], passage) == -1


def test_late_interaction_orders_by_max_similarity():
    tokens = FixedTokens(q=[[1, 0], [0, 1]], a=[[1, 0]], b=[[1, 0], [0, 1]], c=[])
    found = rerank_with_late_interaction(ranking("a", "b", "c"), Query(text="q"), token_embedder=tokens, top_k=3)
    assert [(hit.id, hit.score) for hit in found] == [("b", 1.0), ("a", 0.5), ("c", -1.0)]
    assert found[0].scores["late_interaction"].kind == "model"


def test_a_token_embedder_that_loses_a_passage_has_failed():
    with pytest.raises(ServiceError, match="returned 1 matrices for 2 passages"):
        rerank_with_late_interaction(
            ranking("a", "z"), Query(text="q"), token_embedder=FixedTokens(q=[[1, 0]], a=[[1, 0]])
        )


@pytest.mark.model
@pytest.mark.parametrize(
    ("question", "best"),
    [("How many days until a borrowed laptop is due?", "laptop"), ("火警响起时要走哪里？", "消防")],
)
def test_late_interaction_with_the_packaged_model_puts_the_answer_first(question, best):
    texts = {
        "travel": "Trips are approved by the head of the department.",
        "laptop": "Loaned computers go back to the desk after ninety days.",
        "消防": "听到警报后请立即从最近的楼梯离开大楼。",
        "午餐": "星期五的中餐由公司承担。",
    }
    hits = Ranking.from_hits(
        [Hit(id=name, text=text, score=0, rank=1, score_kind="rrf") for name, text in texts.items()],
        route="rrf",
        score_kind="rrf",
    )
    found = rerank_with_late_interaction(hits, Query(text=question), token_embedder=packaged_token_embedder())
    assert found[0].id == best
    assert all(-1 <= hit.score <= 1 for hit in found)


def test_an_arrow_fills_the_ranking_and_the_question_in_scope_fills_the_query():
    for function in (rerank_with_cross_encoder, rerank_with_late_interaction):
        contract = contract_of(function)
        assert [port.name for port in contract.data_ports] == ["hits", "query"]
        assert contract.port("query").ambient == ("question",)
        assert [port.name for port in contract.settings] == ["top_k"]
        assert all(port.about for port in contract.ports)
        assert contract.example
