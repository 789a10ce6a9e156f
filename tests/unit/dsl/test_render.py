from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragbraid.dsl.render import MAX_WIDTH, display_width, render_findings
from ragbraid.registry.errors import Finding, Label, SourceSpan

FLOW = "\n" * 18 + "flow: kg_cs, kg_fr, rc -> rerank -> generator\n"


def span(line: int, column: int, end: int, *, end_line: int | None = None, file: str = "qa.yaml") -> SourceSpan:
    return SourceSpan(file, line, column, end_line or line, end)


def body(finding: Finding, text: str) -> list[str]:
    """Return the rows between the place and the summary."""
    rows = render_findings([finding], {"qa.yaml": text}, colour=False).splitlines()
    return rows[3:-2]


def test_a_finding_has_the_form_of_the_language_contract() -> None:
    finding = Finding(
        "RB203",
        "`rerank` needs Ranking, but `kg_cs` gives list[Triple]",
        span(19, 7, 12),
        "put a node between them that turns list[Triple] into Ranking, for example `graph.to_chunks`",
        labels=(Label(span(19, 27, 33), "expects Ranking"),),
    )
    assert render_findings([finding], {"qa.yaml": FLOW}, colour=False) == (
        "error[RB203]: `rerank` needs Ranking, but `kg_cs` gives list[Triple]\n"
        "  --> qa.yaml:19:7\n"
        "   |\n"
        "19 | flow: kg_cs, kg_fr, rc -> rerank -> generator\n"
        "   |       ^^^^^               ------ expects Ranking\n"
        "   = hint: put a node between them that turns list[Triple] into Ranking, for example `graph.to_chunks`\n"
        "\n"
        "1 error\n"
    )


def test_carets_count_display_width() -> None:
    text = "标题: 图谱检索 -> 排序\n"
    assert body(Finding("RB1", "m", span(1, 5, 9)), text) == [
        "1 | 标题: 图谱检索 -> 排序",
        "  |       ^^^^^^^^",
    ]


def test_combining_characters_take_no_column() -> None:
    assert body(Finding("RB1", "m", span(1, 5, 6)), "e\u0301a b\n")[1] == "  |    ^"


def test_a_tab_is_four_columns() -> None:
    assert body(Finding("RB1", "m", span(1, 2, 3)), "\tx: y\n") == ["1 |     x: y", "  |     ^"]


def test_a_place_without_width_gets_one_caret() -> None:
    assert body(Finding("RB1", "m", span(1, 3, 3)), "a:\n") == ["1 | a:", "  |   ^"]


def test_a_finding_over_several_lines_is_underlined_to_the_end_of_its_first() -> None:
    assert body(Finding("RB1", "m", span(1, 4, 2, end_line=2)), "a: [1,\n2]\n") == ["1 | a: [1,", "  |    ^^^"]


def test_labels_stand_on_their_own_lines() -> None:
    finding = Finding("RB002", "twice", span(10, 1, 2), labels=(Label(span(2, 1, 2), "first written here"),))
    assert body(finding, "\na: 1\n" + "\n" * 7 + "a: 2\n") == [
        " 2 | a: 1",
        "   | - first written here",
        "10 | a: 2",
        "   | ^",
    ]


def test_several_labels_on_one_line_do_not_run_into_each_other() -> None:
    labels = (Label(span(1, 3, 4), "two"), Label(span(1, 5, 6), "three"))
    assert body(Finding("RB1", "m", span(1, 1, 2), labels=labels), "a b c\n") == [
        "1 | a b c",
        "  | ^ - - three",
        "  |   two",
    ]


def test_a_label_in_another_file_names_it() -> None:
    finding = Finding("RB1", "m", span(1, 1, 2), labels=(Label(span(3, 1, 2, file="b.yaml"), "declared here"),))
    out = render_findings([finding], {"qa.yaml": "a: 1\n", "b.yaml": "\n\nx: 1\n"}, colour=False)
    assert " --> b.yaml:3\n3 | x: 1\n  | - declared here\n" in out


def test_a_finding_without_its_text_still_names_its_place() -> None:
    out = render_findings(
        [Finding("RB005", "there is no file `x.yaml`", span(1, 1, 1, file="x.yaml"))], {}, colour=False
    )
    assert out == "error[RB005]: there is no file `x.yaml`\n --> x.yaml:1:1\n\n1 error\n"


@pytest.mark.parametrize("at", [0, 40, 90, 300])
def test_a_long_line_is_cut_around_the_mistake(at: int) -> None:
    text = "w" * at + " TARGET " + "v" * 300
    line, carets = body(Finding("RB1", "m", span(1, at + 2, at + 8)), text)
    shown, underline = line[4:], carets[4:]
    assert display_width(shown) <= MAX_WIDTH
    assert shown[underline.index("^") : underline.rindex("^") + 1] == "TARGET"
    assert shown.endswith("...")


def test_a_label_outside_of_a_cut_line_is_left_out() -> None:
    text = "key" + " x" * 200 + " TARGET"
    rows = body(Finding("RB1", "m", span(1, 405, 411), labels=(Label(span(1, 1, 4), "key"),)), text)
    assert rows[0][rows[1].index("^") : rows[1].rindex("^") + 1] == "TARGET"
    assert len(rows) == 2


def test_the_last_line_counts() -> None:
    error = Finding("RB1", "m", span(1, 1, 2))
    warning = Finding("RB9", "m", span(1, 1, 2), severity="warning")
    texts = {"qa.yaml": "a: 1\n"}
    assert render_findings([error, warning, warning], texts, colour=False).endswith("\n\n1 error, 2 warnings\n")
    assert render_findings([error, error], texts, colour=False).endswith("\n\n2 errors\n")
    assert "warning[RB9]: m\n" in render_findings([warning], texts, colour=False)


def test_colours_change_nothing_but_colours() -> None:
    finding = Finding("RB1", "m", span(19, 7, 12), "h", labels=(Label(span(19, 27, 33), "l"),))
    plain = render_findings([finding], {"qa.yaml": FLOW}, colour=False)
    coloured = render_findings([finding], {"qa.yaml": FLOW}, colour=True)
    assert "\x1b[1;31m^^^^^\x1b[0m" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def test_messages_cannot_paint_the_terminal() -> None:
    out = render_findings([Finding("RB1", "a\x1b[31mb\nc", span(1, 1, 2))], {"qa.yaml": "x\x1b[31my\n"}, colour=False)
    assert "\x1b" not in out
    assert "error[RB1]: a [31mb c\n" in out


@given(st.text(max_size=150), st.integers(1, 160), st.integers(0, 20), st.integers(1, 160))
def test_every_place_in_every_text_can_be_shown(text: str, column: int, width: int, other: int) -> None:
    finding = Finding("RB1", "m", span(1, column, column + width), labels=(Label(span(1, other, other + 3), "l"),))
    out = render_findings([finding], {"qa.yaml": text}, colour=False)
    assert "^" in out
    assert out.endswith("\n1 error\n")
