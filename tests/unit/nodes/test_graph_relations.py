"""Which relations a question names: words in any form, Chinese, common words, and what a reader may not see."""

from __future__ import annotations

import pytest
from graph_kb_parts import contribution, filled, source
from graph_walk_parts import CLOSED, graph, kb_of, noting, view_of

from ragbraid.nodes.graph_relations import spot_relations

FACTS = (
    "lighthouse > designed by > Edda",
    "Edda > born_in > Tarnby",
    "Edda > is > architect",
    "Edda > has > boat",
    "lighthouse > paint coat renewed in > spring",
    "灯塔 > 设计者 > 林德",
    "灯塔 > 位于 > 诺港",
    "林德 > 出生于 > 诺港",
    "林德 > 是 > 船长",
    "林德 > 写 > 书",
)
KB = kb_of(graph(*FACTS))


@pytest.mark.parametrize(
    ("question", "named"),
    [
        ("Who designed the lighthouse?", ("designed by",)),
        ("Who was the DESIGNER of the lighthouse?", ("designed by",)),
        ("Where was the designer born?", ("born_in", "designed by")),
        ("When is the coat of paint renewed?", ("paint coat renewed in",)),
        ("When is the coat renewed?", ()),
        ("What is it and what has it?", ()),
        ("灯塔的设计者是谁？", ("设计者",)),
        ("灯塔位于哪里？", ("位于",)),
        ("谁设计了灯塔？", ()),
        ("林德出生于哪里？", ("出生于",)),
        ("林德出生在哪里？", ("出生于",)),
        ("林德是写什么的？", ()),
        (" ", ()),
    ],
)
def test_a_relation_is_named_where_the_question_has_all_its_words_in_any_form(
    question: str, named: tuple[str, ...]
) -> None:
    assert spot_relations(question, kb=KB) == named


def test_relations_of_more_words_come_first_then_the_frequent_ones_and_the_rest_is_told_of() -> None:
    kb = kb_of(graph("a > owns > b", "c > sold > d", "e > sold > f", "g > sold house > h"))
    question = "Who owns or sold which house?"
    assert spot_relations(question, kb=kb) == ("sold house", "sold", "owns")
    found = noting(spot_relations, question, kb=kb, max_relations=1)
    assert found == (("sold house",), ["2 relations behind the first 1 were left out"])


def test_a_relation_comes_once_as_it_is_mostly_spelled_and_undirected_ones_have_no_name() -> None:
    view = view_of({"c1": contribution(["a > born_in > b", "c > Born in > d", "e > Born in > f", "g >  > h"])})
    assert spot_relations("Where was a born?", kb=kb_of(view)) == ("Born in",)


def test_without_a_question_the_graph_is_not_read() -> None:
    assert spot_relations("", kb=CLOSED) == spot_relations("Who is it?", kb=CLOSED) == ()


def test_relations_that_only_hidden_chunks_state_are_not_found() -> None:
    kb = filled({"c1": contribution(["a > designed by > b"])})
    assert spot_relations("Who designed a?", kb=kb, where=source("a.md")) == ("designed by",)
    assert spot_relations("Who designed a?", kb=kb, where=source("other.md")) == ()
