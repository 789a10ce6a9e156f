from __future__ import annotations

from collections.abc import Callable

import pytest

from ragbraid.dsl.plan import Mapped, Plan

Compile = Callable[..., Plan]
Codes = Callable[..., list[str]]

TWO = "rc: retrieve.dense\nsp: retrieve.sparse\nm: fuse.rrf\nanswer: generate.answer"


def origins(plan: Plan, step: str) -> dict[str, tuple[str, str]]:
    found = next(s for s in plan.body.steps if s.name == step)
    return {b.port: (b.origin, b.detail) for b in found.bindings}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "flow",
    [
        "rc, sp -> m -> answer",
        "rc,sp->m->answer;",
        "rc -> m; sp -> m; m -> answer",
        "[rc -> m, sp -> m -> answer]",
        ">\n  rc, sp\n  -> m\n  -> answer",
        '"rc, sp -> m -> answer"',
    ],
)
def test_the_same_arrows_in_any_layout_give_the_same_plan(compile_flow: Compile, flow: str) -> None:
    assert compile_flow(TWO, flow=flow).hash == compile_flow(TWO, flow="rc, sp -> m -> answer").hash


def test_an_arrow_fills_the_first_data_port_that_takes_the_value(compile_flow: Compile) -> None:
    plan = compile_flow("w: text.rewrite\nrc: retrieve.dense\nr: rerank.cross\nanswer: generate.answer",
                        flow="w -> rc -> r -> answer")  # fmt: skip
    assert origins(plan, "rc")["query"] == ("arrow", "w")
    assert origins(plan, "r") == {
        "hits": ("arrow", "rc"),
        "query": ("ambient", "question"),
        "top_k": ("default", "None"),
    }


def test_arrows_of_different_types_into_one_node_find_their_ports(compile_flow: Compile) -> None:
    plan = compile_flow("w: text.rewrite\nrc: retrieve.dense\nr: rerank.cross", flow="w, rc -> r", outputs="$r")
    assert origins(plan, "r")["hits"] == ("arrow", "rc")
    assert origins(plan, "r")["query"] == ("arrow", "w")


def test_an_input_can_stand_before_an_arrow(compile_flow: Compile) -> None:
    plan = compile_flow("rc: retrieve.dense", flow="question -> rc", outputs="$rc")
    assert origins(plan, "rc")["query"] == ("arrow", "question")


def test_an_arrow_can_send_a_field(compile_flow: Compile) -> None:
    plan = compile_flow("rc: retrieve.dense\nanswer: generate.answer\nw: text.rewrite",
                        flow="rc -> answer; answer.text -> w", outputs="$w")  # fmt: skip
    assert origins(plan, "w")["sentence"] == ("arrow", "answer.text")


def test_a_step_that_may_be_skipped_goes_into_a_fan_in(compile_flow: Compile) -> None:
    plan = compile_flow("rc: retrieve.dense\nsp: {use: retrieve.sparse, on_error: skip}\nm: fuse.rrf",
                        flow="rc, sp -> m", outputs="$m")  # fmt: skip
    lists = next(b.value for s in plan.body.steps if s.name == "m" for b in s.bindings if b.port == "lists")  # type: ignore[union-attr]
    assert isinstance(lists, Mapped)
    assert [key for key, _ in lists.items] == ["rc", "sp"]


def test_one_ambiguous_port_written_leaves_the_other_to_the_arrow(compile_flow: Compile) -> None:
    plan = compile_flow("rc: retrieve.dense\nsp: retrieve.sparse\nsame: {use: compare.rankings, left: $rc}",
                        flow="sp -> same", outputs="$same")  # fmt: skip
    assert origins(plan, "same")["right"] == ("arrow", "sp")


@pytest.mark.parametrize(
    ("flow", "codes"),
    [
        ("rc, sp -> m -> answer; m -> rc", ["RB203"]),
        ("rc, sp -> m -> answer -> m", ["RB203"]),
        ("rc, sp -> m -> answer; nobody -> answer", ["RB103"]),
        ("rc, sp -> m -> nobody -> answer", ["RB103"]),
        ("rc, sp -> m -> answr", ["RB103"]),
        ("rc sp -> m -> answer", ["RB016"]),
        ("rc, sp -> m - > answer", ["RB016"]),
        ("rc, sp --> m -> answer", ["RB016"]),
        ("rc, sp > m -> answer", ["RB016"]),
        ("rc, , sp -> m -> answer", ["RB016"]),
        ("question.text -> rc; rc, sp -> m -> answer", ["RB104"]),
        ("rc.hit, sp -> m -> answer", ["RB104"]),
    ],
)
def test_a_mistake_in_the_arrows_is_one_finding(codes_of: Codes, flow: str, codes: list[str]) -> None:
    assert codes_of(TWO, flow=flow) == codes


def test_a_cycle_of_arrows_is_found_once(codes_of: Codes) -> None:
    nodes = "a: rerank.cross\nb: rerank.cross\nc: rerank.cross"
    assert codes_of(nodes, flow="a -> b -> c -> a", outputs="$c") == ["RB207"]


def test_two_cycles_are_two_findings(codes_of: Codes) -> None:
    nodes = "a: rerank.cross\nb: rerank.cross\nc: rerank.cross\nd: rerank.cross"
    assert codes_of(nodes, flow="a -> b -> a; c -> d -> c", outputs="{b: $b, d: $d}") == ["RB207", "RB207"]
