import pytest
from report_parts import ids, stated, view_of

from ragbraid.nodes.communities import community_id
from ragbraid.nodes.report_context import (
    LONGEST_STATEMENT,
    count_tokens,
    describe_community,
    interleave,
    pick_statements,
)
from ragbraid.registry.graph import Community, Insight, Report
from ragbraid.registry.graph_parts import ChunkGraph, Mention, Triple


def community(*names: str, level: int = 0) -> Community:
    return Community(id=community_id(ids(*names)), level=level, entity_ids=tuple(sorted(ids(*names))))


def report(about: Community, text: str, *chunk_ids: str) -> Report:
    return Report(
        id=f"report:{about.id}", community_id=about.id, level=about.level, title=text, summary=text, chunk_ids=chunk_ids,
        findings=(Insight(summary="Found."),),
    )  # fmt: skip


TOWN = view_of(
    {
        "c1": stated(
            ("Mill", "stands in", "Tarnby"), ("Mill", "feeds", "Tarnby"), Mill="A water mill.", Tarnby="A village."
        ),
        "c2": stated(("Mill", "belongs to", "Edda"), ("Edda", "lives in", "Tarnby"), ("Edda", "knows", "Peer")),
        "c3": stated(("Far", "away from", "Tarnby")),
    }
)
INSIDE = community("Mill", "Tarnby", "Edda", "Peer")


def test_facts_with_the_most_connected_ends_come_first_each_behind_its_entities() -> None:
    material = describe_community(TOWN, INSIDE, [], {}, max_tokens=1000)
    texts = [each.text for each in material.statements]
    assert texts[-2:] == ["Peer", "Edda knows Peer"]
    assert {"Mill: A water mill.", "Tarnby: A village.", "Edda"} < set(texts)
    assert len(texts) == len(set(texts)) == 9
    for fact in ("Mill stands in Tarnby", "Mill belongs to Edda", "Edda lives in Tarnby"):
        first = fact.split()[0]
        assert next(n for n, text in enumerate(texts) if text.startswith(first)) < texts.index(fact)
    assert "Far" not in " ".join(texts)


def test_statements_say_what_they_are_in_the_language_of_the_prompt() -> None:
    material = describe_community(TOWN, community("Mill", "Edda"), [], {}, max_tokens=1000)
    assert material.lines("en")[-1] == "Fact: Mill belongs to Edda"
    assert material.lines("zh")[-1] == "事实：Mill belongs to Edda"
    assert sorted(line[:6] for line in material.lines("en")) == ["Entity", "Entity", "Fact: "]


def test_the_chunks_behind_everything_shown_are_named() -> None:
    assert describe_community(TOWN, INSIDE, [], {}, max_tokens=1000).chunk_ids == ("c1", "c2", "c3")
    assert describe_community(TOWN, community("Edda", "Peer"), [], {}, max_tokens=1000).chunk_ids == ("c2",)


def test_connections_outside_change_nothing_of_what_is_shown() -> None:
    more = {
        "c1": stated(("A", "is", "B"), ("B", "is", "C"), ("C", "is", "D")),
        "c2": stated(*((f"other {n}", "is", "D") for n in range(9))),
    }
    alone = describe_community(view_of({"c1": more["c1"]}), community(*"ABCD"), [], {}, max_tokens=1000)
    together = describe_community(view_of(more), community(*"ABCD"), [], {}, max_tokens=1000)
    assert alone.lines("en") == together.lines("en")


LARGE = [f"large {n}" for n in range(12)]
SMALL = ["small 0", "small 1"]
REGION = view_of(
    {
        "c-large": stated(*((LARGE[0], "touches", other) for other in LARGE[1:])),
        "c-small": stated((SMALL[0], "touches", SMALL[1])),
        "c-between": stated((LARGE[1], "borders on", SMALL[0])),
    }
)
WHOLE = community(*LARGE, *SMALL)
PARTS = [community(*LARGE, level=1), community(*SMALL, level=1)]


def test_where_it_is_too_much_the_largest_part_is_replaced_by_its_report() -> None:
    everything = describe_community(REGION, WHOLE, PARTS, {}, max_tokens=1000)
    assert everything.left_out == 0
    size = sum(each.tokens for each in everything.statements)
    reports = {part.id: report(part, "About it.", f"c-{n}") for n, part in enumerate(PARTS)}
    material = describe_community(REGION, WHOLE, PARTS, reports, max_tokens=size - 1)
    assert [each.id for each in material.statements if each.kind == 2] == [reports[PARTS[0].id].id]
    assert material.statements[0].text == "About it. About it. - Found."
    assert [each.text for each in material.statements if each.kind == 1] == [
        "large 1 borders on small 0",
        "small 0 touches small 1",
    ]
    assert material.left_out == 0
    assert "c-0" in material.chunk_ids


def test_a_part_whose_report_is_missing_stays_as_facts() -> None:
    reports = {PARTS[1].id: report(PARTS[1], "About it.")}
    material = describe_community(REGION, WHOLE, PARTS, reports, max_tokens=90)
    assert [each.id for each in material.statements if each.kind == 2] == [reports[PARTS[1].id].id]
    assert "large 0 touches" in " ".join(each.text for each in material.statements)
    assert material.left_out > 0


def test_reports_that_find_no_room_are_counted() -> None:
    reports = {part.id: report(part, "Long. " * 60) for part in PARTS}
    material = describe_community(REGION, WHOLE, PARTS, reports, max_tokens=80)
    assert [each.kind for each in material.statements] == [0, 0, 1]
    assert material.left_out == 2


@pytest.mark.parametrize("max_tokens", [15, 45, 75, 110])
def test_the_budget_is_kept_and_what_is_left_out_is_counted(max_tokens: int) -> None:
    material = describe_community(REGION, WHOLE, [], {}, max_tokens=max_tokens)
    assert sum(each.tokens for each in material.statements) <= max_tokens
    assert sum(each.kind == 1 for each in material.statements) + material.left_out == 13


def test_what_a_thousand_chunks_say_about_one_thing_leaves_room_for_the_rest() -> None:
    hub = ChunkGraph(
        mentions=(Mention(name="Hub", description="word " * 5000),), triples=(Triple(subject="Hub", object="Rim"),)
    )
    material = describe_community(view_of({"c": hub}), community("Hub", "Rim"), [], {}, max_tokens=1000)
    assert [each.id for each in material.statements[:2]] == list(ids("Hub", "Rim"))
    assert material.statements[0].text.endswith("word …")
    assert material.statements[0].tokens <= LONGEST_STATEMENT + 1
    assert material.left_out == 0


def test_numbers_that_no_statement_bears_are_counted() -> None:
    material = describe_community(TOWN, community("Edda", "Peer"), [], {}, max_tokens=1000)
    known, unknown = pick_statements([3, 1, 3, 0, 99, -1], material)
    assert [each.text for each in known] == ["Edda knows Peer", "Edda"]
    assert unknown == 3


def test_tokens_are_counted_in_words_and_characters() -> None:
    assert count_tokens("") == 0
    assert count_tokens("one two three four five six seven eight nine ten.") == 11
    assert count_tokens("灯塔由林奎斯特设计。") == 10


def test_lists_are_read_in_turns() -> None:
    assert list(interleave([["a", "b", "c"], [], ["b", "d"]])) == ["a", "b", "d", "c"]
    assert list(interleave([])) == []
