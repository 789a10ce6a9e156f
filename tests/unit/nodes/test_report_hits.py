import pytest
from hypothesis import given
from hypothesis import strategies as st
from reasoning_parts import failed_ranking
from reasoning_parts import ranking as chunks

from ragbraid.nodes.report_hits import antichain, deepest_reports, report_hit, statements_of
from ragbraid.nodes.report_read import batches
from ragbraid.registry.context import StepContext, step_context
from ragbraid.registry.contracts import Ranking
from ragbraid.registry.errors import ServiceError
from ragbraid.registry.graph import Insight, Report


def report(
    id_: str, level: int, parent: str | None = None, children: tuple[str, ...] = (), rating: float = 5, **more: object
) -> Report:
    fields = {"title": f"About {id_}", "summary": f"What {id_} is.", "entity_ids": (f"entity:{id_}",), **more}
    return Report.model_validate(
        {"id": id_, "community_id": f"c-{id_}", "level": level, "parent_id": parent, "children": children,
         "rating": rating, **fields}
    )  # fmt: skip


TREE = [
    report("a", 0, children=("a1", "a2"), entity_ids=("x", "y", "z", "left over")),
    report("a1", 1, "a", ("a11", "a12"), entity_ids=("x", "y")),
    report("a2", 1, "a", entity_ids=("z",), rating=9),
    report("a11", 2, "a1", entity_ids=("x",)),
    report("a12", 2, "a1", entity_ids=("y",)),
    report("b", 0, rating=7),
]


@pytest.mark.parametrize(
    ("level", "chosen"), [(0, ["b", "a"]), (1, ["a2", "b", "a1"]), (2, ["a2", "b", "a11", "a12"]), (9, ["a2", "b", "a11", "a12"])]
)  # fmt: skip
def test_the_reports_of_a_level_and_coarser_ones_without_parts(level: int, chosen: list[str]) -> None:
    assert [each.id for each in antichain(TREE, level)] == chosen


def test_a_part_without_a_report_is_covered_by_the_community_above_it() -> None:
    assert [each.id for each in antichain([e for e in TREE if e.id != "a12"], 2)] == ["a2", "b", "a1"]
    assert [each.id for each in antichain([e for e in TREE if e.id != "a"], 2)] == ["a2", "b", "a11", "a12"]
    assert antichain([], 2) == []


@given(st.sets(st.sampled_from(range(len(TREE)))), st.integers(0, 3))
def test_no_two_chosen_reports_are_about_a_community_and_its_part(seen: set[int], level: int) -> None:
    reports = [TREE[n] for n in sorted(seen)]
    chosen = {each.id for each in antichain(reports, level)}
    above = {each.id: each.parent_id for each in TREE}
    for each in chosen:
        parent = above[each]
        while parent is not None:
            assert parent not in chosen
            parent = above[parent]


def test_an_entity_belongs_to_the_finest_community_that_holds_it() -> None:
    home = deepest_reports(TREE, 2)
    assert {entity: each.id for entity, each in home.items()} == {
        "x": "a11", "y": "a12", "z": "a2", "left over": "a", "entity:b": "b",
    }  # fmt: skip
    assert deepest_reports(TREE, 1)["x"].id == "a1"


FOUND = report(
    "f", 0, chunk_ids=("c1", "c2", "c3"),
    findings=(Insight(summary="One.", explanation="More.", chunk_ids=("c3",)), Insight(summary="Two.")),
)  # fmt: skip


def test_a_report_is_a_hit_that_says_where_it_comes_from() -> None:
    hit = report_hit(FOUND, 5.0, "model")
    assert (hit.kind, hit.text) == ("report", "About f\nWhat f is.\n- One.: More.\n- Two.")
    assert hit.metadata["chunk_ids"] == ["c3", "c1", "c2"]
    assert (hit.metadata["level"], hit.metadata["rating"], hit.metadata["entity_ids"]) == (0, 5, ["entity:f"])


def test_statements_of_a_report_name_the_chunks_that_each_rests_on() -> None:
    said = statements_of([report_hit(FOUND, 5.0, "model"), *chunks("A passage.")])
    assert [(each.text, each.hit_id, each.chunk_ids) for each in said] == [
        ("About f: What f is.", "f", ("c3", "c1", "c2")),
        ("– One.: More.", "f", ("c3",)),
        ("– Two.", "f", ("c3", "c1", "c2")),
        ("A passage.", "c1", ("c1",)),
    ]


def many(count: int, words: int = 10) -> Ranking:
    hits = (
        report_hit(report(f"r{n:02}", 0, rating=n / 10, summary="word " * words), n / 10, "model") for n in range(count)
    )
    return Ranking.from_hits(hits, route="reports", score_kind="model")


def test_batches_hold_every_report_once_within_the_limit() -> None:
    found = batches(many(40), max_tokens=60)
    assert sorted(hit.id for batch in found for hit in batch) == [f"r{n:02}" for n in range(40)]
    assert [len(batch) for batch in found] == [5] * 8
    assert [hit.rank for hit in found[0]] == [1, 2, 3, 4, 5]


def test_the_same_seed_gives_the_same_batches_and_they_are_mixed() -> None:
    assert batches(many(40), max_tokens=60) == batches(many(40), max_tokens=60)
    assert batches(many(40), max_tokens=60, seed=1) != batches(many(40), max_tokens=60)
    assert {hit.id for hit in batches(many(40), max_tokens=60)[0]} != {f"r{n}" for n in range(35, 40)}


def test_a_report_that_is_too_long_is_a_batch_by_itself() -> None:
    assert [len(batch) for batch in batches(many(3, words=50), max_tokens=20)] == [1, 1, 1]


def test_folds_have_a_number_of_reports() -> None:
    assert [len(batch) for batch in batches(many(20), max_reports=4)] == [4] * 5


def test_what_is_too_much_gives_way_and_is_told() -> None:
    step = StepContext()
    with step_context(step):
        found = batches(many(20), max_reports=1, max_batches=3)
    assert {hit.id for batch in found for hit in batch} == {"r19", "r18", "r17"}
    assert step.notes == ["17 reports did not fit into 3 batches and were left out"]


def test_no_reports_are_no_batches_and_failed_retrieval_is_an_error() -> None:
    assert batches(Ranking()) == []
    with pytest.raises(ServiceError, match="retrieval failed"):
        batches(failed_ranking())
    incomplete = many(2).model_copy(update={"degraded": True, "error": "a route failed"})
    assert [(batch.degraded, batch.error) for batch in batches(incomplete)] == [(True, "a route failed")]
