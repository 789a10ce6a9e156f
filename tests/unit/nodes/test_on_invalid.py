"""What reasoning nodes do with an answer of no use: fail, or go on with what there is and say so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from reasoning_parts import ask, ranking, reply

from ragbraid.flows.scripted_rules import Rule
from ragbraid.nodes.context import compress
from ragbraid.nodes.judge import grade_documents
from ragbraid.nodes.query import hyde, multi, rewrite, route
from ragbraid.nodes.reason import (
    decide_retrieval,
    draft_thoughts,
    follow_up,
    next_thought,
    propose_subquestions,
    select_atom,
    write_segment,
)
from ragbraid.registry.contracts import Query
from ragbraid.registry.errors import ServiceError
from ragbraid.registry.reasoning import (
    Choice,
    FollowUp,
    Grade,
    Graded,
    Need,
    Route,
    Segment,
    SubQuestions,
    Thought,
    Thoughts,
)

QUESTION = "Where was the founder of Acme born?"
EVIDENCE = ranking("Acme was founded by Peter.")

CASES: list[tuple[Callable[..., Any], tuple[Any, ...], Any, str]] = [
    (next_thought, (EVIDENCE, QUESTION), Thought(text=""), "no thought was added: "),
    (follow_up, (QUESTION,), FollowUp(), "nothing was asked: "),
    (draft_thoughts, (QUESTION,), Thoughts(), "nothing was drafted: "),
    (propose_subquestions, (QUESTION,), SubQuestions(), "nothing was proposed: "),
    (select_atom, (EVIDENCE, QUESTION), Choice(), "nothing was chosen: "),
    (decide_retrieval, (QUESTION,), Need(retrieve=True, query=QUESTION), "the question is searched for: "),
    (write_segment, (QUESTION, EVIDENCE[0]), Segment(hit=EVIDENCE[0]), "the passage was left out: "),
    (multi, (QUESTION,), [Query(text=QUESTION)], "only the question is searched for: "),
    (rewrite, (QUESTION,), Query(text=QUESTION), "the question was kept: "),
    (route, (QUESTION,), Route(strategy="multi", proposed="multi", confidence=0), "the costliest was taken: "),
    (
        grade_documents,
        (EVIDENCE, QUESTION),
        Graded(
            ranking=EVIDENCE,
            verdict="ambiguous",
            grades=(Grade(hit_id=EVIDENCE[0].id, label="ambiguous"),),
            ungraded=1,
        ),
        "no hit was graded: ",
    ),
    (compress, (EVIDENCE, QUESTION), EVIDENCE, "nothing was left out: "),
    (hyde, (QUESTION,), Query(text=QUESTION), "only the question is searched for: "),
]
each_node = pytest.mark.parametrize(("node", "given", "left", "note"), CASES)
each_mistake = pytest.mark.parametrize(
    ("rule", "kind"),
    [(reply(thought=7, kind="", queries=[], passage=""), "invalid_output"), (Rule(reply="{", fault="cut_off"), "truncated")],
)  # fmt: skip


@each_node
@each_mistake
def test_an_answer_of_no_use_fails_the_step_unless_the_flow_says_otherwise(
    node: Any, given: Any, left: Any, note: str, rule: Rule, kind: str
) -> None:
    with pytest.raises(ServiceError) as caught:
        ask(node, *given, rules=rule)
    assert caught.value.kind == kind


@each_node
@each_mistake
def test_an_answer_of_no_use_can_leave_things_as_they_are(
    node: Any, given: Any, left: Any, note: str, rule: Rule, kind: str
) -> None:
    kept = ask(node, *given, rules=rule, on_invalid="keep")
    assert (kept.value, kept.step.status) == (left, "degraded")
    assert kept.step.notes[0].startswith(note)


@each_node
@pytest.mark.parametrize(
    ("fault", "kind"), [("rate_limit", "rate_limit"), ("unauthorized", "auth"), ("reset", "unavailable")]
)
def test_a_model_that_cannot_be_asked_is_no_answer_of_no_use(
    node: Any, given: Any, left: Any, note: str, fault: Any, kind: str
) -> None:
    with pytest.raises(ServiceError) as caught:
        ask(node, *given, rules=Rule(fault=fault), on_invalid="keep")
    assert caught.value.kind == kind
