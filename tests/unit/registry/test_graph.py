"""Entities and facts as sums of parts, the names that tell them apart, and views of a graph."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragbraid.registry.graph import MAX_DESCRIPTION, make_entity, make_fact
from ragbraid.registry.graph_names import entity_id, fact_id, normalize_name, tidy_name
from ragbraid.registry.graph_parts import ChunkGraph, EntityPart, FactPart, Mention, Triple, parts_of
from ragbraid.registry.graph_view import GraphView


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Electrons", "electrons"),
        ("“Acme Corp.”", "acme corp"),
        ("ＡＣＭＥ", "acme"),
        ("New   York", "new\u00a0york"),
        ("《红 楼梦》", "红楼梦"),
        ("Straße", "STRASSE"),
        ("Gert Fröbe", "Gert Fro\u0308be"),
    ],
)
def test_spellings_of_one_name_are_one_entity(one: str, other: str) -> None:
    assert entity_id(one) == entity_id(other)


@pytest.mark.parametrize(("one", "other"), [("C", "C++"), ("Paris (Texas)", "Paris"), ("红", "红楼"), ("$", "$$")])
def test_other_names_are_other_entities(one: str, other: str) -> None:
    assert entity_id(one) != entity_id(other)


@pytest.mark.parametrize("name", ["", "  ", "...", "?!", "，。", "()"])
def test_punctuation_alone_is_no_name(name: str) -> None:
    assert normalize_name(name) == ""


def test_a_name_is_shown_as_it_is_written_without_quotes() -> None:
    assert tidy_name(' "Paris   (Texas)" ') == "Paris (Texas)"
    assert tidy_name("《红 楼梦》") == "红楼梦"


def test_long_names_are_told_apart_by_all_of_their_letters() -> None:
    long = "x" * 500
    assert entity_id(long) != entity_id(long + "y")
    assert len(entity_id(long)) < 150


@given(st.text(max_size=40))
def test_normalising_a_name_again_changes_nothing(name: str) -> None:
    assert normalize_name(normalize_name(name)) == normalize_name(name)


def test_a_relation_without_a_predicate_has_no_direction() -> None:
    assert fact_id("a", "", "b") == fact_id("B", " ", "a")
    assert fact_id("a", "likes", "b") != fact_id("b", "likes", "a")


PARTS = st.lists(
    st.builds(
        EntityPart,
        chunk_id=st.sampled_from("pqrst"),
        name=st.sampled_from(["Acme", "ACME", "acme"]),
        type=st.sampled_from(["Other", "Company", "Shop"]),
        aliases=st.lists(st.sampled_from(["A", "B"]), max_size=2).map(tuple),
        description=st.sampled_from([None, "makes tea", "makes green tea"]),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda part: part.chunk_id,
)


@given(PARTS, st.randoms())
def test_an_entity_is_the_same_whatever_the_order_of_its_parts(parts: list[EntityPart], order: random.Random) -> None:
    mixed = list(parts)
    order.shuffle(mixed)
    entity = make_entity("entity:acme", parts)
    assert make_entity("entity:acme", mixed) == entity
    assert entity.name in {part.name for part in parts}
    assert entity.name not in entity.aliases
    assert set(entity.chunk_ids) == {part.chunk_id for part in parts}
    assert entity.type == "Other" or entity.type in entity.types


def test_types_are_a_set_and_the_most_frequent_stands_for_it() -> None:
    parts = [
        EntityPart(chunk_id=id_, name="Acme", type=t) for id_, t in zip("abc", ("Shop", "Firm", "Firm"), strict=True)
    ]
    entity = make_entity("entity:acme", parts)
    assert (entity.type, entity.types) == ("Firm", ("Firm", "Shop"))


def test_descriptions_of_many_chunks_stay_short_and_say_nothing_twice() -> None:
    parts = [EntityPart(chunk_id=f"c{n}", name="Acme", description=f"{'x' * 300} {n}") for n in range(50)]
    parts.append(EntityPart(chunk_id="d", name="Acme", description="x"))
    entity = make_entity("entity:acme", parts)
    assert len(entity.description) <= MAX_DESCRIPTION
    assert entity.description.count("xx ") == MAX_DESCRIPTION // 303
    assert len(entity.descriptions) == 51, "nothing of it is lost"
    assert (
        make_entity("e", [EntityPart(chunk_id="c", name="A", description="y" * 9000)]).description
        == "y" * MAX_DESCRIPTION
    )


def test_the_line_of_a_fact_says_how_its_ends_are_related() -> None:
    part = FactPart(chunk_id="c", subject="Acme", predicate="based in", object="Paris")
    fact = make_fact("fact:1", [part])
    assert (fact.text, fact.subject, fact.other_end("entity:acme")) == (
        "Acme based in Paris",
        "entity:acme",
        "entity:paris",
    )
    loose = make_fact("fact:2", [FactPart(chunk_id="c", subject="a", predicate="", object="b", keywords=("k",))])
    assert loose.text == "a – b: k"


def view_of(*contributions: tuple[str, ChunkGraph]) -> GraphView:
    entities: dict[str, list[EntityPart]] = {}
    facts: dict[str, list[FactPart]] = {}
    for chunk_id, graph in contributions:
        named, stated = parts_of(chunk_id, graph)
        for id_, part in named.items():
            entities.setdefault(id_, []).append(part)
        for id_, fact in stated.items():
            facts.setdefault(id_, []).append(fact)
    made = (make_entity(id_, parts) for id_, parts in entities.items())
    return GraphView(made, (make_fact(id_, parts) for id_, parts in facts.items()))


def test_two_persons_of_one_name_that_are_qualified_stay_two_and_both_are_found_by_it() -> None:
    def person(name: str) -> ChunkGraph:
        return ChunkGraph(mentions=(Mention(name=name, aliases=("John Smith",)),))

    view = view_of(("c1", person("John Smith (footballer)")), ("c2", person("John Smith (poet)")))
    assert [entity.name for entity in view.named("john smith")] == ["John Smith (footballer)", "John Smith (poet)"]


GRAPHS = st.lists(
    st.lists(st.tuples(*[st.sampled_from(["a", "A", "b", "c"])] * 2, st.sampled_from(["", "r"])), max_size=4).map(
        lambda triples: ChunkGraph(triples=tuple(Triple(subject=s, object=o, predicate=p) for s, o, p in triples))
    ),
    max_size=5,
)


@given(GRAPHS, st.sets(st.integers(0, 4)))
def test_a_restricted_view_is_the_graph_of_the_other_chunks_alone(graphs: list[ChunkGraph], allowed: set[int]) -> None:
    named = [(f"c{place}", graph) for place, graph in enumerate(graphs)]
    whole, part = view_of(*named), view_of(*(pair for place, pair in enumerate(named) if place in allowed))
    seen = whole.restricted(frozenset(f"c{place}" for place in allowed))
    assert (dict(seen.entities), dict(seen.facts)) == (dict(part.entities), dict(part.facts))
    assert list(seen.entities) == sorted(part.entities)
    for id_ in seen.entities:
        assert seen.facts_of(id_) == part.facts_of(id_)


def test_what_is_derived_from_a_view_is_made_once() -> None:
    view = view_of()
    made = [view.remember("x", lambda graph: object()) for _ in range(3)]
    assert made[0] is made[1] is made[2]
    assert view.remember("y", lambda graph: graph) is view
