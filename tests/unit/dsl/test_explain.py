from __future__ import annotations

from collections.abc import Callable

import pytest

from ragbraid.dsl.explain import explain_plan, explain_ports, show_value
from ragbraid.dsl.plan import Computed, Literally, Mapped, Plan, Sequenced, SlotRef

Compile = Callable[..., Plan]


def test_every_port_and_resource_has_a_row_with_its_origin(compile_flow: Compile) -> None:
    nodes = "rc: {use: retrieve.dense, top_k: 3}\nr: rerank.cross"
    plan = compile_flow(nodes, flow="rc -> r", outputs="$r")
    assert [(row.step, row.port, row.origin) for row in explain_ports(plan)] == [
        ("rc", "query", "ambient"),
        ("rc", "top_k", "written"),
        ("rc", "kb", "resource"),
        ("rc", "embedder", "resource"),
        ("r", "hits", "arrow"),
        ("r", "query", "ambient"),
        ("r", "top_k", "default"),
    ]


def test_the_table_has_one_line_per_row_below_its_header(compile_flow: Compile) -> None:
    plan = compile_flow("rc: retrieve.dense", outputs="$rc")
    lines = explain_plan(plan).splitlines()
    assert lines[0].split() == ["STEP", "PORT", "TYPE", "FROM", "VALUE"]
    assert len(lines) == 1 + len(explain_ports(plan))
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Literally("a"), "'a'"),
        (Literally("x" * 100), "'" + "x" * 56 + "..."),
        (SlotRef(0, 1, ("text",), "answer.text"), "$answer.text"),
        (Computed("${ a\n  + b }", (), lambda: None), "${ a + b }"),
        (Sequenced((Literally(1), Literally(2))), "[1, 2]"),
        (Mapped((("a", Literally(1)),)), "{a: 1}"),
    ],
)
def test_a_value_is_shown_as_an_author_would_write_it(value: object, shown: str) -> None:
    assert show_value(value) == shown  # type: ignore[arg-type]
