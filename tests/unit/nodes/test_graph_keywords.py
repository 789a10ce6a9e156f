"""`query.keywords`: themes and names of a question, and the question itself where there are none."""

from __future__ import annotations

from typing import Any

import pytest
from reasoning_parts import ask, reply

from ragbraid.flows.scripted_rules import Rule
from ragbraid.nodes.graph_keywords import keywords
from ragbraid.registry.errors import NodeInputError, ServiceError
from ragbraid.registry.graph import Keywords

QUESTION = "How does Acme treat its suppliers?"
LONG = "How does Acme, the company that Ann founded, treat the suppliers that it has in Rome and Oslo?"


def test_a_question_has_themes_and_names() -> None:
    asked = ask(keywords, QUESTION, rules=reply(high=["supplier relations"], low=["Acme", "suppliers", "acme"]))
    assert asked.value == Keywords(high=("supplier relations",), low=("Acme", "suppliers"))
    assert asked.sent.user == f"Question: {QUESTION}"
    assert "at most 10 in a list" in asked.sent.system
    assert asked.step.status is None


def test_the_prompt_follows_the_language_of_the_question() -> None:
    asked = ask(keywords, "图书馆几点关门？", rules=reply(high=["开放时间"], low=["图书馆"]), max_keywords=3)
    assert asked.value == Keywords(high=("开放时间",), low=("图书馆",))
    assert asked.sent.user == "问题：图书馆几点关门？"
    assert "最多 3 个" in asked.sent.system


def test_keywords_that_are_known_are_taken_and_no_model_is_asked() -> None:
    asked = ask(keywords, QUESTION, ("trade", "Trade"), rules=[])
    assert (asked.value, asked.chats) == (Keywords(high=("trade",)), [])
    assert ask(keywords, " ", None, ("Acme",), rules=[]).value == Keywords(low=("Acme",))
    assert ask(keywords, QUESTION, (), (), rules=[]).value == Keywords()


@pytest.mark.parametrize(("question", "status"), [(QUESTION, None), (LONG, "degraded")])
def test_where_there_are_none_the_question_stands_for_them(question: str, status: str | None) -> None:
    asked = ask(keywords, question, rules=reply(high=[], low=[" "]))
    assert asked.value == Keywords(low=(question,))
    assert asked.step.status == status
    assert asked.step.notes == ["the model found no keywords; the question itself is searched for"]


def test_one_level_can_be_asked_for_alone() -> None:
    rule = reply(high=["trade"], low=["Acme"])
    low = ask(keywords, QUESTION, rules=rule, levels="low")
    assert low.value == Keywords(low=("Acme",))
    assert "`high`: an empty list" in low.sent.system
    assert ask(keywords, QUESTION, rules=rule, levels="high").value == Keywords(high=("trade",))
    assert ask(keywords, QUESTION, rules=reply(high=[], low=["x"]), levels="high").value == Keywords(high=(QUESTION,))


def test_a_level_that_was_not_asked_for_may_be_missing_from_the_answer() -> None:
    assert ask(keywords, QUESTION, rules=reply(low=["Acme"]), levels="low").value == Keywords(low=("Acme",))
    assert ask(keywords, QUESTION, rules=reply(high=["trade"]), levels="high").value == Keywords(high=("trade",))
    with pytest.raises(ServiceError, match="`high`: Field required"):
        ask(keywords, QUESTION, rules=reply(low=["Acme"]), on_invalid="fail")


@pytest.mark.parametrize("rule", [Rule.model_validate({"json": {"low": 1}}), Rule(reply="{", fault="cut_off")])
def test_an_answer_of_no_use_leaves_the_question_and_is_told_or_fails(rule: Rule) -> None:
    asked = ask(keywords, QUESTION, rules=rule)
    assert (asked.value, asked.step.status) == (Keywords(low=(QUESTION,)), "degraded")
    assert asked.step.notes[0].startswith("the question itself is searched for: ")
    with pytest.raises(ServiceError):
        ask(keywords, QUESTION, rules=rule, on_invalid="fail")


@pytest.mark.parametrize("fault", ["server_error", "unauthorized", "bad_request"])
def test_a_provider_that_fails_is_an_error_and_never_no_keywords(fault: Any) -> None:
    with pytest.raises(ServiceError):
        ask(keywords, QUESTION, rules=Rule(fault=fault))


def test_a_model_that_lists_without_end_is_cut_with_a_note() -> None:
    asked = ask(keywords, QUESTION, rules=reply(high=[f"t{n}" for n in range(30)], low=["Acme"]), max_keywords=4)
    assert asked.value.high == ("t0", "t1", "t2", "t3")
    assert asked.step.notes == ["26 keywords behind the first 4 were left out"]


def test_an_empty_question_is_a_sentence() -> None:
    with pytest.raises(NodeInputError, match="The question is empty"):
        ask(keywords, " \n", rules=[])
