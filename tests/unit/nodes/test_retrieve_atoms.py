"""`retrieve.atoms`: sub-questions find chunks through their atoms, each chunk once, and the ranking fits fusion."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from graph_parts import open_kb
from index_parts import AngleEmbedder, WordSparse, make_set, with_atoms
from reasoning_parts import ask, reply

from ragbraid.nodes.fuse import reciprocal_rank_fusion
from ragbraid.nodes.index import upsert
from ragbraid.nodes.knowledge_base import QdrantKnowledgeBase
from ragbraid.nodes.reason import select_atom
from ragbraid.nodes.retrieve import atoms, dense
from ragbraid.nodes.store_client import MEMORY, open_local
from ragbraid.registry.context import StepContext, step_context
from ragbraid.registry.contracts import FanIn, Query, Ranking
from ragbraid.registry.errors import NodeInputError
from ragbraid.registry.node import contract_of

QUESTIONS = {
    "acme text @0.3": ["who founded acme @0.9", "what is acme @0.8"],
    "pool text @0.6": ["how long is the pool @0.7"],
    "rome text @0": ["where was peter born @0.1"],
}
"""The ending of each text is its cosine with a question that has no such ending; that of `q @0` is its sine."""

ACROSS = "across @0"
"""A sub-question at a right angle: cos 0.9 becomes sin = 0.43589, 0.8 gives 0.6, 0.7 gives 0.71414, 0.1 gives 0.99499."""


@pytest.fixture(scope="module")
def kb() -> Iterator[QdrantKnowledgeBase]:
    opened = open_kb(open_local(MEMORY, "kb"), "kb")
    chunks = with_atoms(make_set({"a.md": list(QUESTIONS)}), lambda chunk: QUESTIONS[chunk.text])
    upsert(chunks, kb=opened, embedder=AngleEmbedder(), sparse=WordSparse())
    yield opened
    opened.close()


def find(kb: QdrantKnowledgeBase, *queries: str, **given: object) -> Ranking:
    given.setdefault("min_score", None)
    return atoms(Query(text="question"), queries or None, kb=kb, embedder=AngleEmbedder(), **given)  # type: ignore[arg-type]


def seen(ranking: Ranking) -> list[tuple[str, object, object, float]]:
    return [
        (hit.text.split()[0], hit.metadata["atom"], hit.metadata["atom_query"], round(hit.score, 5)) for hit in ranking
    ]


def test_the_question_alone_is_searched_for(kb: QdrantKnowledgeBase) -> None:
    found = find(kb)
    assert seen(found) == [
        ("acme", "who founded acme @0.9", "question", 0.9),
        ("pool", "how long is the pool @0.7", "question", 0.7),
        ("rome", "where was peter born @0.1", "question", 0.1),
    ]
    assert (found.route, found.score_kind) == ("atoms", "cosine")


def test_sub_questions_are_searched_for_each_by_itself_and_a_chunk_stays_at_its_best(kb: QdrantKnowledgeBase) -> None:
    assert seen(find(kb, "straight", ACROSS)) == [
        ("rome", "where was peter born @0.1", ACROSS, 0.99499),
        ("acme", "who founded acme @0.9", "straight", 0.9),
        ("pool", "how long is the pool @0.7", ACROSS, 0.71414),
    ]


def test_the_limit_for_several_holds_for_each_of_them_and_the_other_for_the_question(kb: QdrantKnowledgeBase) -> None:
    assert [hit.text.split()[0] for hit in find(kb, "straight", ACROSS, top_k_each=1)] == ["rome", "acme"]
    assert [hit.text.split()[0] for hit in find(kb, top_k=1, top_k_each=3)] == ["acme"]
    assert len(find(kb, "straight", top_k=1, top_k_each=3)) == 3


def test_the_defaults_are_those_of_the_method() -> None:
    contract = contract_of(atoms)
    defaults = {port.name: port.default for port in contract.settings}
    assert (defaults["top_k"], defaults["top_k_each"], defaults["min_score"]) == (8, 4, 0.5)


def test_what_scores_below_the_limit_is_left_out_and_the_best_of_it_told(kb: QdrantKnowledgeBase) -> None:
    context = StepContext()
    with step_context(context):
        assert [hit.text.split()[0] for hit in find(kb, min_score=0.5)] == ["acme", "pool"]
        assert context.notes == []
        assert find(kb, min_score=0.95) == Ranking(route="atoms", score_kind="cosine")
    assert context.notes == ["no atom reached `min_score` 0.95; the best of 3 had 0.900"]


def test_chosen_chunks_are_not_found_again_and_others_take_their_place(kb: QdrantKnowledgeBase) -> None:
    first = find(kb, top_k=1)
    second = find(kb, top_k=1, exclude=first)
    assert [hit.text.split()[0] for hit in second] == ["pool"]
    assert len(find(kb, exclude=find(kb))) == 0


def test_no_sub_question_finds_nothing_and_an_empty_one_is_an_error(kb: QdrantKnowledgeBase) -> None:
    assert len(atoms(Query(text="question"), (), kb=kb, embedder=AngleEmbedder())) == 0
    with pytest.raises(NodeInputError, match="a question to search for is empty"):
        find(kb, "straight", " ")
    with pytest.raises(NodeInputError, match="a question to search for is empty"):
        atoms(Query(text=" "), kb=kb, embedder=AngleEmbedder())


def test_the_ranking_can_be_fused_with_one_of_chunks(kb: QdrantKnowledgeBase) -> None:
    by_text = dense(Query(text="question"), kb=kb, embedder=AngleEmbedder())
    assert [hit.text.split()[0] for hit in by_text] == ["pool", "acme", "rome"]
    fused = reciprocal_rank_fusion(FanIn(text=by_text, atoms=find(kb)), k=60)
    scores = {hit.text.split()[0]: hit.score for hit in fused}
    assert scores == pytest.approx({"acme": 1 / 61 + 1 / 62, "pool": 1 / 61 + 1 / 62, "rome": 2 / 63})
    assert {route: score.rank for route, score in fused[2].scores.items()}["atoms"] == 3


def shown(sent: str, labels: Sequence[str]) -> bool:
    return all(f"{number}. {label}" in sent for number, label in enumerate(labels, start=1))


def test_a_model_selects_among_the_questions_and_gets_the_chunk(kb: QdrantKnowledgeBase) -> None:
    found = ask(select_atom, find(kb), "question", rules=reply(thinking="", number=2))
    assert shown(found.sent.user, ["who founded acme @0.9", "how long is the pool @0.7", "where was peter born @0.1"])
    assert found.value.hit is not None
    assert found.value.hit.text == "pool text @0.6"
