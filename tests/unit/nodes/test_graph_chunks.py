"""`graph.to_chunks`: each chunk belongs to the first object that has it, and is picked as the flow says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from graph_kb_parts import chunk, contribution, entities, fact, facts, fill, ranked, source
from index_parts import AngleEmbedder
from reasoning_parts import failed_ranking

from ragbraid.nodes.graph_chunks import Source, attribute, poll, to_chunks
from ragbraid.nodes.knowledge_base import QdrantKnowledgeBase
from ragbraid.registry.context import StepContext, step_context
from ragbraid.registry.contracts import Hit, Query, Ranking
from ragbraid.registry.errors import NodeInputError
from ragbraid.registry.graph import SubGraph
from ragbraid.registry.graph_names import entity_id
from ragbraid.registry.knowledge import KnowledgeBase

QUESTION = Query(text="question")


@pytest.fixture(scope="module")
def kb() -> Iterator[QdrantKnowledgeBase]:
    """The ending of each text is its cosine with the question."""
    made = fill(
        [
            chunk("c1", "one @0.1", graph=contribution(["acme > makes > tea"])),
            chunk("c2", "two @0.9", graph=contribution(["acme > based in > paris"])),
            chunk("c3", "three @0.5", graph=contribution([], ["acme"])),
            chunk("c4", "four @0.7", source="b.md", graph=contribution(["bob > drinks > tea"])),
            chunk("c5", "five @0.8", source="b.md"),
        ]
    )
    yield made
    made.close()


class Closed:
    """A knowledge base that must not be touched."""

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"{name} was asked for")


CLOSED: KnowledgeBase = Closed()  # type: ignore[assignment]


def find(kb: KnowledgeBase, objects: Ranking = Ranking(), **given: object) -> list[str]:  # noqa: B008
    given.setdefault("embedder", AngleEmbedder())
    return [hit.id for hit in to_chunks(QUESTION, objects, kb=kb, **given)]  # type: ignore[arg-type]


def sources(*chunk_ids: str) -> list[Source]:
    return [Source(text=str(n), score=1.0, chunk_ids=tuple(each.split())) for n, each in enumerate(chunk_ids)]


# -- attribution and polling -------------------------------------------------------------------------------------------


def test_a_chunk_belongs_to_the_first_object_that_has_it_and_shared_ones_come_first() -> None:
    assert attribute(sources("a b c", "b d", "c b e")) == [["b", "c", "a"], ["d"], ["e"]]
    assert attribute(sources("a b c", "b d"), exclude={"b", "d"}) == [["a", "c"], []]
    assert attribute(sources("a b", "b c", "c b"), min_mentions=2) == [["b"], ["c"], []]


def lists(*lengths: int) -> list[list[str]]:
    return [[f"{name}{n}" for n in range(1, length + 1)] for name, length in zip("abcdefgh", lengths, strict=False)]


def test_polling_asks_fewer_and_fewer_and_gives_what_is_unused_to_the_best() -> None:
    assert poll(lists(10, 10, 10), 5) == ["a1", "a2", "a3", "a4", "a5", "b1", "b2", "b3", "c1"]
    assert poll(lists(2, 10, 10), 5) == ["a1", "a2", "b1", "b2", "b3", "c1", "b4", "b5", "b6"]
    assert poll(lists(2, 4, 10), 5) == ["a1", "a2", "b1", "b2", "b3", "c1", "b4", "c2", "c3"]
    assert poll(lists(2, 1, 1), 5) == ["a1", "a2", "b1", "c1"]


def test_polling_one_list_takes_the_most_and_lists_without_chunks_do_not_count() -> None:
    assert poll(lists(10), 3) == ["a1", "a2", "a3"]
    assert poll(lists(0, 10, 0), 3) == ["b1", "b2", "b3"]
    assert poll([], 3) == []
    assert poll(lists(10, 10, 10, 10), 1) == ["a1", "b1", "c1", "d1"]


# -- picking -----------------------------------------------------------------------------------------------------------


def test_by_meaning_the_nearest_chunks_come_first_and_no_other_chunk_at_all(kb: QdrantKnowledgeBase) -> None:
    found = to_chunks(QUESTION, entities("acme", "tea"), kb=kb, embedder=AngleEmbedder())
    assert [(hit.id, round(hit.score, 5)) for hit in found] == [("c2", 0.9), ("c4", 0.7), ("c3", 0.5), ("c1", 0.1)]
    assert (found.route, found.score_kind) == ("linked", "cosine")
    assert find(kb, entities("acme", "tea"), top_k=2) == ["c2", "c4"]
    assert find(kb, entities("acme", "tea"), per_object=1) == ["c2"]


def test_by_order_and_by_weight_chunks_come_object_by_object(kb: QdrantKnowledgeBase) -> None:
    assert find(kb, entities("tea", "acme"), pick="order") == ["c1", "c4", "c2", "c3"]
    assert find(kb, entities("tea", "acme"), pick="order", per_object=1) == ["c1", "c2"]
    assert find(kb, entities("tea", "acme"), pick="weight", per_object=2) == ["c1", "c4", "c2"]
    found = to_chunks(QUESTION, entities("tea", "acme"), kb=kb, pick="order")
    assert ([hit.score for hit in found][:2], found.score_kind) == ([1.0, 0.5], "rank")


def test_chunks_take_the_best_score_of_their_objects_or_all_together(kb: QdrantKnowledgeBase) -> None:
    given = ranked("entity", {entity_id("tea"): 0.6, entity_id("acme"): 0.5, entity_id("paris"): 0.3})
    best = to_chunks(QUESTION, given, kb=kb, pick="max")
    assert [(hit.id, hit.score) for hit in best] == [("c1", 0.6), ("c4", 0.6), ("c2", 0.5), ("c3", 0.5)]
    together = to_chunks(QUESTION, given, kb=kb, pick="sum")
    assert {hit.id: hit.score for hit in together} == pytest.approx({"c1": 1.1, "c2": 0.8, "c4": 0.6, "c3": 0.5})
    assert find(kb, given, pick="sum", min_mentions=2) == ["c1", "c2"]


def test_without_an_embedder_chunks_are_picked_by_weight_and_the_step_says_so(kb: QdrantKnowledgeBase) -> None:
    step = StepContext()
    with step_context(step):
        found = find(kb, entities("tea", "acme"), embedder=None, per_object=2)
    assert found == ["c1", "c4", "c2"]
    assert step.status == "degraded"
    assert step.notes == ["there is no embedder to compare chunks with the question; they were picked by weight"]


def test_facts_and_parts_of_the_graph_lead_to_chunks_and_each_says_through_what(kb: QdrantKnowledgeBase) -> None:
    view = kb.graph()
    part = SubGraph(entities=(view.entities[entity_id("bob")],), facts=(view.facts[fact("acme > based in > paris")],))
    found = to_chunks(QUESTION, facts("acme > makes > tea"), part, kb=kb, pick="order")
    assert [(hit.id, hit.metadata["facts"]) for hit in found] == [
        ("c1", ["acme makes tea"]),  # as the graph has it, whatever the hit that was given says
        ("c4", ["bob"]),
        ("c2", ["acme based in paris"]),
    ]
    assert {hit.kind for hit in found} == {"chunk"}


def test_reports_lead_to_the_chunks_behind_them_that_a_reader_may_see(kb: QdrantKnowledgeBase) -> None:
    report = Hit(
        id="r1", text="R", score=1, rank=1, score_kind="cosine", kind="report", metadata={"chunk_ids": ["c4", "c1", "x"]}
    )  # fmt: skip
    given = Ranking(hits=(report,), score_kind="cosine")
    assert find(kb, given, pick="order") == ["c4", "c1"]
    assert find(kb, given, pick="order", where=source("a.md")) == ["c1"]


@pytest.mark.parametrize("pick", ["vector", "weight", "order", "max", "sum"])
def test_no_way_of_picking_leaves_what_a_reader_may_see(kb: QdrantKnowledgeBase, pick: str) -> None:
    assert set(find(kb, entities("tea", "acme", "bob"), pick=pick, where=source("b.md"))) == {"c4"}


def test_chunks_that_are_not_wanted_again_are_left_out(kb: QdrantKnowledgeBase) -> None:
    known = ranked("chunk", {"c2": 1.0})
    assert find(kb, entities("acme"), pick="order", exclude=known) == ["c1", "c3"]
    assert find(kb, entities("acme"), exclude=known) == ["c3", "c1"]


@pytest.mark.parametrize("pick", ["vector", "weight", "order", "max", "sum"])
def test_without_objects_nothing_is_asked(pick: str) -> None:
    assert find(CLOSED, pick=pick) == []


def test_objects_that_the_graph_does_not_have_bring_nothing_and_are_told_of(kb: QdrantKnowledgeBase) -> None:
    step = StepContext()
    with step_context(step):
        assert find(kb, entities("nobody", "acme"), pick="order") == ["c1", "c2", "c3"]
        assert find(kb, entities("nobody")) == []
    assert step.notes[0] == "1 of 2 objects have no chunk in the graph (any more, or for this reader)"


def test_objects_of_failed_retrieval_give_a_degraded_ranking(kb: QdrantKnowledgeBase) -> None:
    nothing = to_chunks(QUESTION, failed_ranking(), kb=CLOSED)
    assert (len(nothing), nothing.degraded, nothing.error) == (0, True, "the store did not answer")
    some = to_chunks(QUESTION, entities("acme", degraded=True, error="half failed"), kb=kb, pick="order")
    assert (len(some), some.degraded, some.error) == (3, True, "half failed")


def test_chunks_are_no_objects_and_meaning_needs_a_question(kb: QdrantKnowledgeBase) -> None:
    with pytest.raises(NodeInputError, match="takes hits of kind entity or fact or report"):
        find(kb, ranked("chunk", {"c1": 1.0}))
    with pytest.raises(NodeInputError, match="the question is empty"):
        to_chunks(Query(text=" "), entities("acme"), kb=kb, embedder=AngleEmbedder())
