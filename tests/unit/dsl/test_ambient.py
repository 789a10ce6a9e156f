from __future__ import annotations

from collections.abc import Callable

import pytest

from ragbraid.dsl.ambient import Neighbours
from ragbraid.dsl.plan import Binding, Converted, Literally, Plan, SlotRef

Compile = Callable[..., Plan]
Codes = Callable[..., list[str]]


def binding_of(plan: Plan, step: str, port: str) -> Binding:
    found = next(s for s in plan.body.steps if s.name == step)
    return next(binding for binding in found.bindings if binding.port == port)  # type: ignore[union-attr]


def test_an_input_with_the_name_of_a_port_fills_it(compile_flow: Compile) -> None:
    plan = compile_flow("rc: retrieve.dense", outputs="$rc", inputs="query: Query")
    assert binding_of(plan, "rc", "query") == Binding("query", SlotRef(0, 0, (), "query"), "ambient", "query")


def test_an_input_with_a_name_that_the_node_declares_fills_the_port_with_its_conversion(compile_flow: Compile) -> None:
    plan = compile_flow("rc: retrieve.dense", outputs="$rc")
    found = binding_of(plan, "rc", "query")
    assert (found.origin, found.detail) == ("ambient", "question")
    assert isinstance(found.value, Converted)


def test_the_ports_own_name_comes_before_a_declared_one(compile_flow: Compile) -> None:
    inputs = "question: str\nquery: Query"
    plan = compile_flow("rc: retrieve.dense\nsp: {use: retrieve.sparse, query: $question}\nm: fuse.rrf",
                        flow="rc, sp -> m", outputs="$m", inputs=inputs)  # fmt: skip
    assert binding_of(plan, "rc", "query").detail == "query"


def test_a_declared_name_serves_where_the_ports_own_has_another_type(compile_flow: Compile) -> None:
    plan = compile_flow("rc: retrieve.dense", outputs="{rc: $rc, n: $query}", inputs="question: str\nquery: int")
    assert binding_of(plan, "rc", "query").detail == "question"


def test_a_setting_is_filled_by_an_input_of_its_name(compile_flow: Compile) -> None:
    plan = compile_flow("rc: retrieve.dense", outputs="$rc", inputs="question: str\ntop_k: int = 5")
    assert binding_of(plan, "rc", "top_k").origin == "ambient"


def test_a_fan_in_is_never_filled_by_a_name_in_scope(codes_of: Codes) -> None:
    assert codes_of("m: fuse.rrf", outputs="$m", inputs='lists: "dict[str, Ranking]"') == ["RB202"]


@pytest.mark.parametrize(
    ("nodes", "parts"),
    [
        ("rc: {use: retrieve.dense, query: other words}", {}),
        ("w: text.rewrite\nrc: retrieve.dense", {"flow": "w -> rc"}),
    ],
)
def test_what_is_written_or_sent_by_an_arrow_comes_first(
    compile_flow: Compile, nodes: str, parts: dict[str, str]
) -> None:
    plan = compile_flow(nodes, outputs="{rc: $rc, q: $question}", **parts)
    assert binding_of(plan, "rc", "query").origin in ("written", "arrow")


def test_a_default_is_the_last_resort(compile_flow: Compile) -> None:
    plan = compile_flow("rc: retrieve.dense", outputs="$rc")
    assert binding_of(plan, "rc", "top_k") == Binding("top_k", Literally(50), "default", "50")


def test_a_node_of_the_ports_name_refuses_the_input(codes_of: Codes) -> None:
    nodes = "query: text.rewrite\nrc: retrieve.dense"
    assert codes_of(nodes, outputs="{rc: $rc, words: $query}") == ["RB209"]


def test_a_field_of_an_output_refuses_the_input(codes_of: Codes) -> None:
    nodes = "a: retrieve.dense\nlast: generate.answer\nsay: text.rewrite"
    # `text` of Answer is no name of the port, so the input is taken.
    assert codes_of(nodes, flow="a -> last", outputs="{last: $last, say: $say}") == []


def test_a_node_that_waits_for_the_step_is_no_rival(codes_of: Codes) -> None:
    nodes = 'rc: retrieve.dense\nquery: {use: text.rewrite, sentence: "${ rc[0].text }"}'
    assert codes_of(nodes, outputs="$query") == []


def test_a_node_whose_condition_waits_for_the_step_is_no_rival(codes_of: Codes) -> None:
    nodes = 'rc: retrieve.dense\nquery: {use: text.rewrite, when: "${ rc | length == 0 }"}'
    assert codes_of(nodes, outputs="$query") == []


def test_a_node_of_another_type_is_no_rival(codes_of: Codes) -> None:
    nodes = "question_of: text.rewrite\nquery: graph.exact\nrc: retrieve.dense"
    assert codes_of(nodes, outputs="{a: $question_of, b: $query, c: $rc}") == []


def test_everything_that_reads_a_slot_is_downstream_of_it() -> None:
    class Drafted:
        def __init__(self, slot: int, *needs: int) -> None:
            self.slot, self.needs, self.name, self.output = slot, frozenset(needs), f"n{slot}", str

    neighbours = Neighbours([Drafted(0), Drafted(1, 0), Drafted(2, 1), Drafted(3), Drafted(4, 3, 2)])  # type: ignore[list-item]
    assert neighbours.downstream(0) == {0, 1, 2, 4}
    assert neighbours.downstream(3) == {3, 4}
    assert [shown for shown, _ in neighbours.bearing("n2", 3)] == ["n2"]
    assert list(neighbours.bearing("n2", 1)) == []
