"""What goes wrong in KAG, as reported against it, and does not here: plans, parallel steps, lost facts, maths, notation."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kag_parts import BORN, EARLIER, FOUND, QUESTION, SEAT, kag, out, plans, said, solution, values
from method_parts import Method, fails, is_asked, notes, paths, says

from ragbraid.flows.api import load
from ragbraid.flows.cli import app
from ragbraid.flows.scripted_rules import ChatRequest, Reply

GONE = '\n[resources.gone]\nuse = "qdrant.embedded"\npath = "./gone"\n'
AUDITOR = {**FOUND, "question": "Who audits Acme?", "p": {"alias": "p1", "types": ["auditor"]}}
HIDDEN = {"none": [{"field": "source", "equals": "acme"}]}


@contextmanager
def broken(folder: Path, step: str, *script: Any) -> Iterator[Method]:
    """The flow with one retriever of its steps whose knowledge base is gone."""
    with kag(folder, *script, more=GONE) as flow:
        text = (folder / "kag_step.yaml").read_text()
        assert text.count(f" {step}: {{use:") == 1
        (folder / "kag_step.yaml").write_text(text.replace(f" {step}: {{use:", f" {step}: {{kb: gone, use:"))
        yield Method(load(folder / "kag.yaml"), flow.server)


# -- plans ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (plans(FOUND, out("o9")), "Step 2 uses `o9`, which no step introduces."),
        (plans(BORN, FOUND, out("o2")), "Step 1 uses `o1`, which only step 2 introduces."),
        (
            plans({**EARLIER, "inputs": ["m2"]}, {**EARLIER, "inputs": ["m1"], "out_alias": "m2"}, out("m2")),
            "Steps 1 and 2 wait for each other in a circle.",
        ),
        (plans({**FOUND, "o": None}, out("s1")), "Step 1 has no object; a retrieve step has all three."),
        (plans(out("o1"), FOUND), "Step 1 is the output step, but it is not the last one."),
        (plans(FOUND), "The plan has no output step"),
    ],
)
def test_a_plan_that_cannot_run_is_repaired_before_anything_runs(
    tmp_path: Path, wrong: dict[str, Any], sentence: str
) -> None:
    with kag(tmp_path, says("logical_form", wrong, plans(FOUND, out("o1")))) as flow:
        result = flow.run(question=QUESTION)
        first, second = flow.chats("logical_form")
        assert sentence in second.user
        assert sentence not in first.user
    assert result.trace.step("plan").outcome == "ok"
    assert sorted(solution(result).values) == ["Ann Holm", "Bo Lind"]


@pytest.mark.parametrize("text", ["Step1: Who founded Acme?\nAction1: get_spo(s=s1", "", "<html>busy</html>", "[1, 2]"])
def test_a_plan_that_is_no_object_ends_in_one_retrieval_and_an_answer(tmp_path: Path, text: str) -> None:
    """A logical form that does not parse is an error in KAG (#281)."""
    with kag(tmp_path, says("logical_form", text), says("answer_step", said("Ann Holm.", "Ann Holm"))) as flow:
        result = flow.run(question=QUESTION)
    assert result.trace.step("plan").outcome == "degraded"
    assert result.outputs["answer"].text == "Ann Holm [1]"


# -- steps side by side --------------------------------------------------------------------------------------------------


def test_steps_that_do_not_need_each_other_run_at_the_same_time(tmp_path: Path) -> None:
    """KAG chains its steps one behind the other; here each of two models answers only when both have been asked."""
    both_asked = threading.Barrier(2, timeout=60)

    def answer_together(chat: ChatRequest) -> Reply | None:
        if not is_asked("answer_step", chat):
            return None
        both_asked.wait()
        return Reply(text=json.dumps(said("In Halmark.", "Halmark")))

    plan = plans(SEAT, {**SEAT, "s": {"alias": "s4", "mention": "Bo Lind"}, "o": {"alias": "o4"}}, out("o3", "o4"))
    plan["steps"][1]["p"] = {"alias": "p4", "types": ["offices in"]}
    with kag(tmp_path, says("logical_form", plan), answer_together) as flow:
        result = flow.run(question=QUESTION)
    one, other = (
        result.trace.step(f"first.solve[1].results[{n}].solved[else].kag_step.result[2].said") for n in (1, 2)
    )
    assert one.ended is not None
    assert other.ended is not None
    assert one.started < other.ended
    assert other.started < one.ended
    assert solution(result).values == ("Halmark", "Halmark")


# -- retrieval -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("types", [["Entity"], ["Thing", "Other"], ["实体"], ["Company"]])
def test_a_general_type_filters_nothing(tmp_path: Path, types: list[str]) -> None:
    """An object of type Entity makes KAG's graph step return nothing (#363)."""
    typed = {
        **FOUND,
        "s": {"alias": "s1", "types": types, "mention": "Acme"},
        "o": {"alias": "o1", "types": ["Entity"]},
    }
    with kag(tmp_path, says("logical_form", plans(typed, out("o1")))) as flow:
        assert sorted(solution(flow.run(question=QUESTION)).values) == ["Ann Holm", "Bo Lind"]


def test_a_name_that_is_linked_to_nothing_says_which_filter_removed_the_best_candidate(tmp_path: Path) -> None:
    """Users of KAG cannot see why no triple is retrieved (#425, #438, #150)."""
    unknown = {**FOUND, "s": {"alias": "s1", "mention": "Zorblax Industries"}}
    script = [says("logical_form", plans(unknown, out("o1"))), says("answer_step", said("Not named.", answered=False))]
    with kag(tmp_path, *script) as flow:
        result = flow.run(question=QUESTION)
    step = "first.solve[1].results[1].solved[else].kag_step"
    (note,) = notes(result, f"{step}.subject")
    assert "Zorblax Industries" in note
    assert "`min_score`" in note
    assert solution(result).status == "empty"


def test_many_facts_and_passages_reach_the_model_together(tmp_path: Path) -> None:
    """KAG shows the model facts only where there is no passage: of five right ones it reports one (#574)."""
    triples = [("acme", "Acme", "founder", f"founder {n}") for n in range(1, 6)]
    script = [says("logical_form", plans(FOUND, out("o1"))), says("answer_step", said("All.", "founder 1"))]
    with kag(tmp_path, *script, triples=triples) as flow:
        flow.run(question=QUESTION, facts_suffice=False)
        asked = flow.chats("answer_step")[0].user
        told = flow.chats("answer")[0].user
    for n in range(1, 6):
        assert f"Acme founder founder {n}" in asked
        assert f"Acme founder founder {n}" in told
    assert "Acme was founded in 1999" in asked


def test_attributes_are_facts_by_subject_and_by_value(tmp_path: Path) -> None:
    """An attribute cannot be retrieved by its value in KAG (#692)."""
    by_value = {
        "question": "Who was born on 1 March 1950?",
        "op": "retrieve",
        "s": {"alias": "s1", "types": ["Person"]},
        "p": {"alias": "p1", "types": ["born on"]},
        "o": {"alias": "o1", "mention": "1 March 1950"},
    }
    with kag(tmp_path, says("logical_form", plans(by_value, out("s1")))) as flow:
        assert solution(flow.run(question="Who was born on 1 March 1950?")).values == ("Ann Holm",)


def test_a_question_in_another_language_than_the_relations_is_answered_by_meaning(tmp_path: Path) -> None:
    """Relations in English and a question in Chinese never match in KAG (#37)."""
    plan = plans({**FOUND, "question": "Acme founder Ann Holm 是谁创立的？", "p": {"types": ["创始人"]}}, out("o1"))
    script = [
        says("logical_form", plan),
        says("pick_relations", {"keep": [1]}),
        says("answer_step", said("安。", "Ann Holm")),
    ]
    with kag(tmp_path, *script) as flow:
        result = flow.run(question="Acme的创始人是谁？")
        assert "Acme founder" in flow.chats("pick_relations")[0].user
    assert values(result)["o1"] == ("Ann Holm",)


@pytest.mark.parametrize("step", ["exact", "fuzzy", "kg_fr", "rc"])
def test_a_retriever_that_fails_degrades_its_step_and_the_next_one_is_tried(tmp_path: Path, step: str) -> None:
    """The exact and the fuzzy query of KAG fail together, and nothing tells failed from empty (#404)."""
    plan = says("logical_form", plans(AUDITOR, out("o1")))
    with broken(tmp_path, step, plan, says("answer_step", said("Ann Holm.", "Ann Holm"))) as flow:
        result = flow.run(question="Who audits Acme?")
    failed = [entry.path.split(".")[-1] for entry in result.trace.steps if entry.outcome == "failed"]
    assert step in failed
    assert set(failed) <= {step, "picked"}
    assert solution(result).values == ("Ann Holm",)
    assert solution(result).status == "degraded"
    assert "no knowledge base" in (solution(result).reason or "")


def test_what_a_reader_may_not_see_is_neither_fact_nor_passage_of_any_step(tmp_path: Path) -> None:
    script = [says("logical_form", plans(FOUND, out("o1"))), says("answer_step", said("Not said.", answered=False))]
    with kag(tmp_path, *script) as flow:
        result = flow.run(question=QUESTION, where=HIDDEN)
        shown = "\n".join(chat.user for chat in flow.chats() if not is_asked("logical_form", chat))
    assert "Acme founder" not in shown
    assert "founded in 1999" not in shown
    assert solution(result).status == "empty"


# -- maths, ends, notation -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "__import__('pathlib').Path({trap!r}).touch()",
        "open({trap!r}, 'w').write('x') or 1",
        "(lambda: exec('import os'))()",
        "9**9**9**9",
    ],
)
def test_maths_never_runs_what_a_model_writes(tmp_path: Path, code: str) -> None:
    """KAG runs the model's program in a process of its own without a sandbox."""
    trap = tmp_path / "executed"
    odd = {**EARLIER, "target": "something that has no plain words"}
    script = [
        says("logical_form", plans(FOUND, BORN, odd, out("m1"))),
        says("math_request", {"expression": code.format(trap=str(trap)), "problem": ""}),
    ]
    with kag(tmp_path, *script) as flow:
        result = flow.run(question=QUESTION)
    assert not trap.exists()
    assert "no expression that can be evaluated" in (solution(result).reason or "")
    assert result.outputs["answer"].text == "Ann Holm [1]"


def test_where_every_step_fails_there_is_still_an_answer_that_says_why(tmp_path: Path) -> None:
    """KAG's iterative pipeline raises at its limit and gives no answer."""
    plan = plans(AUDITOR, {**EARLIER, "inputs": ["o1"]}, out("m1"))
    script = [
        says("logical_form", plan),
        fails("answer_step", "server_error"),
        says("judge_answer", {"acceptable": False, "missing": ["the auditor"], "thinking": ""}),
    ]
    with kag(tmp_path, *script) as flow:
        result = flow.run(question="Who audits Acme?", max_replans=2)
    assert result.outputs["answer"].text == "No passage was found that could answer this question."
    assert (result.outputs["stopped_by"], result.outputs["rounds"]) == ("max_steps", 2)
    assert "step 1: the step failed" in (solution(result).reason or "")


def test_the_evidence_of_the_first_plan_is_read_after_the_second(tmp_path: Path) -> None:
    """Planning anew throws away what was found in KAG."""
    script = [
        says(
            "logical_form", plans(FOUND, out("o1")), plans({**SEAT, "s": {"alias": "s9", "mention": "Acme"}}, out("o3"))
        ),
        says("answer_step", said("In Halmark.", "Halmark")),
        says("judge_answer", {"acceptable": False, "missing": ["the town"], "thinking": ""}),
    ]
    with kag(tmp_path, *script) as flow:
        result = flow.run(question=QUESTION)
        last = flow.chats("answer")[-1].user
    assert "Acme was founded in 1999 by Ann Holm and Bo Lind." in last
    assert "The offices of Acme are in Halmark." in last
    assert len([path for path in paths(result) if path.endswith("kag_step.exact")]) == 2


@pytest.mark.parametrize(
    "string",
    [
        "kg_cs,kg_fr,rc -> merger",
        "kg_cs,kg_fr,rc -> merger;",
        "kg_cs->merger; kg_fr->merger;rc->merger",
        "kg_cs , kg_fr->merger;\\n rc->merger ;",
    ],
)
def test_the_parallel_strings_of_kag_are_accepted_as_they_are(tmp_path: Path, string: str) -> None:
    checked = check(tmp_path, string)
    assert (checked.exit_code, checked.output) == (0, f"{tmp_path / 'flow.yaml'}: ok, 7 steps\n")


def test_the_chain_of_kag_with_its_hidden_break_leads_to_a_gate(tmp_path: Path) -> None:
    checked = check(tmp_path, "kg_cs->kg_fr->rc", "$rc")
    assert checked.exit_code == 1
    assert "to run `rc` only where `kg_fr` finds nothing, write a gate" in " ".join(checked.output.split())
    assert "query.hyde_report" not in checked.output


def check(folder: Path, string: str, outputs: str = "$merger") -> Any:
    merger = "  merger: fuse.rrf\n" if outputs == "$merger" else ""
    (folder / "flow.yaml").write_text(
        "ragbraid: 1\nname: strings\ninputs: {question: str}\nnodes:\n"
        "  names: graph.spot\n  topics: {use: graph.link, mentions: $names}\n"
        "  kg_cs: {use: graph.to_chunks, subgraph: $facts}\n"
        "  facts: {use: graph.fuzzy, subject: $topics}\n"
        "  kg_fr: retrieve.sparse\n  rc: retrieve.dense\n"
        f'{merger}flow: "{string}"\noutputs: {outputs}\n'
    )
    return CliRunner().invoke(app, ["check", str(folder / "flow.yaml")])
