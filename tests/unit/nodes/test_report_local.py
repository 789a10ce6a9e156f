import pytest
from graph_kb_parts import chunk, contribution, entities, fill, source
from graph_kb_parts import facts as fact_hits
from reasoning_parts import failed_ranking
from report_parts import ids, stated, view_of

from ragbraid.nodes.graph import local_facts, text_units
from ragbraid.nodes.report_local import order_chunks, order_facts
from ragbraid.registry.context import StepContext, step_context
from ragbraid.registry.contracts import Ranking
from ragbraid.registry.errors import NodeInputError, ServiceError

VIEW = view_of(
    {
        "c1": stated(("A", "1", "B"), ("A", "2", "X"), ("B", "3", "X"), ("A", "4", "Y"), ("Y", "5", "Z")),
        "c2": stated(("A", "6", "Q"), ("Q", "7", "R")),
        "c3": stated(("A", "1", "B"), ("A", "8", "C")),
    }
)


def test_facts_among_the_entities_come_first_then_those_whose_outer_end_is_linked_most() -> None:
    ordered = [fact.predicate for fact in order_facts(VIEW, list(ids("a", "b")))]
    assert ordered[:3] == ["1", "2", "3"]  # X is linked with both; A is better connected than B
    assert set(ordered[3:5]) == {"4", "6"}  # Y and Q have two facts each
    assert ordered[5:] == ["8"]  # C has one
    assert order_facts(VIEW, []) == []


def test_chunks_come_in_the_order_of_entities_and_then_by_the_facts_that_they_state() -> None:
    assert list(order_chunks(VIEW, list(ids("c", "a")))) == ["c3", "c1", "c2"]
    assert list(order_chunks(VIEW, list(ids("a")))) == ["c1", "c3", "c2"]
    assert order_chunks(VIEW, list(ids("c"))) == {"c3": ["A 8 C"]}
    assert order_chunks(VIEW, []) == {}


CHUNKS = [
    chunk("c1", "One.", source="one.md", graph=contribution(["A > knows > B", "B > knows > C"], ["Lonely"])),
    chunk("c2", "Two.", source="two.md", graph=contribution(["A > likes > B", "A > owns > D"])),
]


def test_local_facts_say_what_they_are_and_where_they_stand() -> None:
    kb = fill(CHUNKS)
    found = local_facts(entities("A", "B", "Unknown"), kb=kb)
    kb.close()
    assert [hit.kind for hit in found] == ["fact"] * 4
    assert {hit.text for hit in found.hits[:2]} == {"A knows B", "A likes B"}
    assert found[0].metadata["chunk_ids"] in (["c1"], ["c2"])
    assert {hit.source for hit in found} == {"one.md", "two.md"}


def test_each_entity_brings_so_many_facts_at_most() -> None:
    kb = fill(CHUNKS)
    with step_context(StepContext()) as step:
        found = local_facts(entities("A", "B"), kb=kb, per_entity=1)
    kb.close()
    assert len(found) == 2
    assert step.notes == ["2 of 4 facts are behind `per_entity` and were left out"]


def test_text_units_are_chunks_that_say_why_they_came() -> None:
    kb = fill(CHUNKS)
    found = text_units(entities("A", "Lonely"), kb=kb)
    first = text_units(entities("Lonely", "A"), kb=kb, top_k=1)
    kb.close()
    assert [(hit.id, hit.kind, hit.text) for hit in found] == [("c2", "chunk", "Two."), ("c1", "chunk", "One.")]
    assert sorted(found[0].metadata["facts"]) == ["A likes B", "A owns D"]  # type: ignore[type-var, arg-type]
    assert [(hit.id, hit.metadata["facts"]) for hit in first] == [("c1", ["Lonely"])]


def test_nothing_that_a_reader_may_not_see_is_reached() -> None:
    kb = fill(CHUNKS)
    assert {hit.text for hit in local_facts(entities("A"), kb=kb, where=source("one.md"))} == {"A knows B"}
    assert [hit.id for hit in text_units(entities("A", "D"), kb=kb, where=source("one.md"))] == ["c1"]
    kb.close()


@pytest.mark.parametrize("node", [local_facts, text_units])
def test_no_entities_bring_nothing_and_failures_are_errors(node) -> None:  # type: ignore[no-untyped-def]
    kb = fill(CHUNKS)
    assert len(node(Ranking(), kb=kb)) == 0
    with pytest.raises(ServiceError, match="retrieval failed"):
        node(failed_ranking(), kb=kb)
    with pytest.raises(NodeInputError, match="kind entity"):
        node(fact_hits("a > knows > b"), kb=kb)
    incomplete = node(entities("A", degraded=True, error="a route failed"), kb=kb)
    assert (incomplete.degraded, incomplete.error) == (True, "a route failed")
    kb.close()
