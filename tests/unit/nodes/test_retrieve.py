from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from graph_parts import open_kb

from ragbraid.nodes.bm25 import Bm25Encoder
from ragbraid.nodes.fusion import fuse_by_rank
from ragbraid.nodes.retrieve import dense, hybrid, sparse
from ragbraid.nodes.store import Point, chunk_payload, point_id, write_info
from ragbraid.nodes.store_edge import EdgeStore
from ragbraid.registry.context import StepContext, report_note, step_context
from ragbraid.registry.contracts import Chunk, Query, Ranking
from ragbraid.registry.errors import NodeInputError, ServiceError, SettingsError
from ragbraid.registry.knowledge import Condition, KnowledgeBase, KnowledgeBaseInfo, Where
from ragbraid.registry.node import contract_of

TEXTS = ["alpha beta", "alpha gamma", "gamma delta", "内存溢出处理指南 ERR_OOM_KILL_001", "omega"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class LetterEmbedder:
    """Counts letters: a small true embedding; it reads 200 characters and says so when there are more."""

    identity = "letters"
    dimension = len(LETTERS)

    def embed_documents(self, texts: Sequence[str]) -> np.ndarray:
        return np.stack([self.embed_query(text) for text in texts])

    def embed_query(self, text: str) -> np.ndarray:
        if len(text) > 200:
            report_note("cut to 200 characters")
        counts = np.asarray([1 + text[:200].lower().count(letter) for letter in LETTERS], dtype=np.float32)
        return counts / np.linalg.norm(counts)


class BrokenEmbedder(LetterEmbedder):
    def embed_query(self, text: str) -> np.ndarray:
        raise ServiceError("the model is gone", kind="unavailable")


EMBEDDER = LetterEmbedder()
BM25 = Bm25Encoder()


@pytest.fixture
def kb(tmp_path: Path) -> Iterator[KnowledgeBase]:
    store = EdgeStore(tmp_path, "kb")
    store.create(EMBEDDER.dimension)
    chunks = [
        Chunk(id=f"c{n}", document_id="d", source="s", index=n, text=text, metadata={"even": n % 2 == 0})
        for n, text in enumerate(TEXTS)
    ]
    average = sum(map(BM25.count_tokens, TEXTS)) / len(TEXTS)
    weights = BM25.encode_documents(TEXTS, average_length=average)
    vectors = EMBEDDER.embed_documents(TEXTS)
    store.upsert(
        [
            Point(point_id("chunk", each.id, 1), chunk_payload(each, gen_from=1), vector, terms)
            for each, vector, terms in zip(chunks, vectors, weights, strict=True)
        ]
    )
    info = KnowledgeBaseInfo(
        name="kb", embedder="letters", dimension=26, sparse=BM25.identity, generation=1, chunks=len(TEXTS)
    )
    write_info(store, info)
    opened = open_kb(store, "kb")
    yield opened
    opened.close()


def ids(ranking: Ranking) -> list[str]:
    return [hit.id for hit in ranking]


def test_dense_finds_by_meaning_and_records_its_route(kb: KnowledgeBase) -> None:
    ranking = dense(Query(text="alpha beta"), kb=kb, embedder=EMBEDDER, top_k=3)
    assert len(ranking) == 3
    assert ranking[0].id == "c0"
    assert ranking[0].score == pytest.approx(1.0)
    assert (ranking.route, ranking.score_kind) == ("dense", "cosine")
    assert ranking[0].scores["dense"].rank == 1


def test_sparse_finds_by_terms_and_records_its_route(kb: KnowledgeBase) -> None:
    assert set(ids(sparse(Query(text="gamma"), kb=kb, sparse=BM25))) == {"c1", "c2"}
    assert ids(sparse(Query(text="内存溢出"), kb=kb, sparse=BM25)) == ["c3"]
    ranking = sparse(Query(text="where is ERR_OOM_KILL_001?"), kb=kb, sparse=BM25)
    assert ids(ranking) == ["c3"]
    assert (ranking.route, ranking.score_kind) == ("sparse", "bm25")
    assert ranking[0].scores["sparse"].kind == "bm25"


def test_hybrid_is_the_sum_of_reciprocal_ranks_with_both_scores_on_every_hit(kb: KnowledgeBase) -> None:
    query = Query(text="alpha gamma")
    by_meaning = {hit.id: hit for hit in dense(query, kb=kb, embedder=EMBEDDER)}
    by_terms = {hit.id: hit for hit in sparse(query, kb=kb, sparse=BM25)}
    ranking = hybrid(query, kb=kb, embedder=EMBEDDER, sparse=BM25)
    assert set(ids(ranking)) == set(by_meaning) | set(by_terms)
    for hit in ranking:
        parts = [1 / (60 + route[hit.id].rank) for route in (by_meaning, by_terms) if hit.id in route]
        assert hit.score == pytest.approx(sum(parts))
        assert hit.scores["dense"].score == by_meaning[hit.id].score
        assert ("sparse" in hit.scores) == (hit.id in by_terms)
    assert (ranking.route, ranking.score_kind) == ("hybrid", "rrf")
    assert ranking[0].scores["hybrid"].rank == 1


@pytest.mark.parametrize("weights", [None, {"dense": 0.7, "sparse": 0.3}, {"dense": 0.0, "sparse": 1.0}])
def test_hybrid_is_what_the_fusion_node_makes_of_both_rankings(kb: KnowledgeBase, weights: dict[str, float]) -> None:
    for text in ("alpha gamma", "内存溢出 gamma", "omega delta beta"):
        query = Query(text=text)
        lists = {"dense": dense(query, kb=kb, embedder=EMBEDDER), "sparse": sparse(query, kb=kb, sparse=BM25)}
        fused = fuse_by_rank(lists, route="hybrid", weights=weights)
        ours = hybrid(query, kb=kb, embedder=EMBEDDER, sparse=BM25, weights=weights)
        assert [(hit.id, hit.rank, hit.score) for hit in ours] == [(hit.id, hit.rank, hit.score) for hit in fused]


def test_weights_of_hybrid_are_multiplied_as_in_example_a02(kb: KnowledgeBase) -> None:
    weights = {"dense": 0.7, "sparse": 0.3}
    ranking = hybrid(Query(text="delta"), kb=kb, embedder=EMBEDDER, sparse=BM25, weights=weights)
    found = {hit.id: hit for hit in ranking}
    expected = 0.7 / (60 + found["c2"].scores["dense"].rank) + 0.3 / 61
    assert found["c2"].score == pytest.approx(expected)
    with pytest.raises(NodeInputError, match="dens"):
        hybrid(Query(text="delta"), kb=kb, embedder=EMBEDDER, sparse=BM25, weights={"dens": 1.0, "sparse": 1.0})


def test_hybrid_cuts_to_top_k_and_wants_at_least_as_many_from_each_route(kb: KnowledgeBase) -> None:
    query = Query(text="alpha")
    assert len(hybrid(query, kb=kb, embedder=EMBEDDER, sparse=BM25, top_k=2, fetch_k=5)) == 2
    with pytest.raises(NodeInputError, match="`fetch_k` is 5, it must be at least `top_k` \\(6\\)"):
        hybrid(query, kb=kb, embedder=EMBEDDER, sparse=BM25, top_k=6, fetch_k=5)


def test_hybrid_gives_the_same_answer_every_time(kb: KnowledgeBase) -> None:
    query = Query(text="gamma alpha")
    answers = {hybrid(query, kb=kb, embedder=EMBEDDER, sparse=BM25).model_dump_json() for _ in range(20)}
    assert len(answers) == 1


def test_conditions_reach_every_route(kb: KnowledgeBase) -> None:
    where = Where(all=(Condition(field="metadata.even", equals=True),))
    query = Query(text="alpha gamma")
    assert set(ids(dense(query, kb=kb, embedder=EMBEDDER, where=where))) == {"c0", "c2", "c4"}
    assert set(ids(sparse(query, kb=kb, sparse=BM25, where=where))) == {"c0", "c2"}
    assert set(ids(hybrid(query, kb=kb, embedder=EMBEDDER, sparse=BM25, where=where))) == {"c0", "c2", "c4"}


@pytest.mark.parametrize("text", ["", "  ", "\n\t\u3000"])
def test_an_empty_question_is_refused(kb: KnowledgeBase, text: str) -> None:
    for search in (
        lambda query: dense(query, kb=kb, embedder=EMBEDDER),
        lambda query: sparse(query, kb=kb, sparse=BM25),
        lambda query: hybrid(query, kb=kb, embedder=EMBEDDER, sparse=BM25),
    ):
        with pytest.raises(NodeInputError, match="the question is empty"):
            search(Query(text=text))


def test_a_question_without_terms_still_has_its_meaning(kb: KnowledgeBase) -> None:
    query = Query(text="to be or not to be")
    assert ids(sparse(query, kb=kb, sparse=BM25)) == []
    assert len(hybrid(query, kb=kb, embedder=EMBEDDER, sparse=BM25)) == len(TEXTS)


def test_a_hundred_thousand_characters_are_cut_by_the_model_with_a_note(kb: KnowledgeBase) -> None:
    query = Query(text="alpha 内存溢出 " * 10_000)
    with step_context(StepContext()) as context:
        ranking = hybrid(query, kb=kb, embedder=EMBEDDER, sparse=BM25)
    assert len(ranking) == len(TEXTS)
    assert context.notes == ["cut to 200 characters"]


def test_a_route_that_fails_fails_the_node(kb: KnowledgeBase) -> None:
    with pytest.raises(ServiceError, match="the model is gone"):
        hybrid(Query(text="alpha"), kb=kb, embedder=BrokenEmbedder(), sparse=BM25)
    with pytest.raises(SettingsError, match="filled with the sparse encoder"):
        hybrid(Query(text="alpha"), kb=kb, embedder=EMBEDDER, sparse=Bm25Encoder(k1=1.2))


@pytest.mark.parametrize("function", [dense, sparse, hybrid])
def test_the_contracts_describe_every_port(function: object) -> None:
    contract = contract_of(function)  # type: ignore[arg-type]
    assert contract.blocking
    query = contract.port("query")
    assert query is not None
    assert query.ambient == ("question",)
    assert all(port.about for port in contract.ports)
    assert contract.example


def test_naming_the_nodes_loads_no_engine() -> None:
    code = (
        "import sys, ragbraid.nodes.retrieve, ragbraid.nodes.resource_qdrant, ragbraid.nodes.resource_bm25;"
        "heavy = {'qdrant_client', 'qdrant_edge', 'jieba', 'numpy', 'snowballstemmer', 'onnxruntime'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
