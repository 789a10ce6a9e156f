"""What a run leaves for its reader: contents, escaping, bounds, keys. No server is needed for any of it."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from ragbraid.dsl.plan import Plan
from ragbraid.flows.api import load
from ragbraid.flows.artifacts import (
    MAX_ANSWER,
    MAX_CITATIONS,
    MAX_HITS,
    MAX_OUTPUTS,
    MAX_SOURCES,
    RunArtifact,
    artifact_key,
    artifacts_of,
    drawing_of,
)
from ragbraid.flows.markdown_text import escape_cell, escape_line, escape_markdown, fenced, safe_text
from ragbraid.flows.secrets import hide
from ragbraid.registry.contracts import Answer, Citation, Hit, IndexReport, Ranking, SourceReport

HOSTILE = "<script>alert(1)</script> a|b `code` [click](http://evil.example) ![x](http://evil.example/?q=1) **bold**"


def plan_of(folder: Path, outputs: str = "$cut", name: str = "My_flow") -> Plan:
    path = folder / f"{name}.yaml"
    path.write_text(
        f"ragbraid: 1\nname: {name}\ninputs: {{found: Ranking}}\n"
        f"nodes: {{cut: {{use: rank.top_k, ranking: $found, k: 3}}}}\noutputs: {outputs}\n"
    )
    return load(path).plan


def only(plan: Plan, output: Any) -> RunArtifact:
    (artifact,) = artifacts_of(plan, {"": output})
    return artifact


def hits(count: int) -> list[Hit]:
    return [Hit(id=f"c{n}", text=f"text {n}", score=1.0 / n, rank=n, score_kind="cosine") for n in range(1, count + 1)]


def test_an_answer_has_its_sources_below_it_and_says_what_was_read(tmp_path: Path) -> None:
    citations = (
        Citation(marker=1, chunk_id="c1", source="a.md", section_path=("A", "B"), quote="28\ndays", verified=True),
        Citation(marker=3, chunk_id="c2", kind="fact", quote="never said"),
        Citation(marker=4, chunk_id="c4", kind="report"),
    )
    plan = plan_of(tmp_path)
    artifact = only(plan, Answer(text="28 days [1].\nNever [3].", citations=citations, unknown_citations=2))
    assert (artifact.key, artifact.kind) == ("my-flow-answer", "markdown")
    assert artifact.description == f"Answer of `My_flow`, version {plan.hash[:12]}"
    assert str(artifact.content).split("\n\n") == [
        "28 days \\[1\\].\\\nNever \\[3\\].",
        "### Sources",
        "**\\[1\\]** a.md &gt; A &gt; B (passage read)",
        "> 28 days",
        "**\\[3\\]** c2 (fact read) *(the quote is not in the fact)*",
        "> never said",
        "**\\[4\\]** c4 (report read)",
        "*2 citations of the model pointed at no passage and were removed*",
    ]


def test_a_refusal_says_so_first(tmp_path: Path) -> None:
    artifact = only(plan_of(tmp_path), Answer(text="I do not know.", refused=True, refusal_reason="no *evidence*"))
    assert artifact.content == "**No answer was given**: no \\*evidence\\*\n\nI do not know."


def test_a_ranking_is_a_table_with_rank_and_score_of_every_route(tmp_path: Path) -> None:
    dense = Ranking.from_hits(
        [Hit(id="c1", source="a.md", text="one\ntwo", score=0.5, rank=1, score_kind="cosine")],
        route="dense",
        score_kind="cosine",
    )
    fused = Ranking.from_hits(
        [*dense.hits, Hit(id="f1", kind="fact", text="three", score=0.25, rank=1, score_kind="graph")],
        route="rrf",
        score_kind="rrf",
    )
    artifact = only(plan_of(tmp_path), fused)
    assert (artifact.key, artifact.kind) == ("my-flow-ranking", "table")
    assert artifact.content == [
        {
            "rank": "1",
            "score": "0.5000",
            "kind": "passage",
            "source": "a.md",
            "text": "one two",
            "dense: rank": "1",
            "dense: score": "0.5000",
            "rrf: rank": "1",
            "rrf: score": "0.5000",
        },
        {
            "rank": "2",
            "score": "0.2500",
            "kind": "fact",
            "source": "f1",
            "text": "three",
            "dense: rank": "",
            "dense: score": "",
            "rrf: rank": "2",
            "rrf: score": "0.2500",
        },
    ]


def test_a_ranking_that_is_not_complete_says_why(tmp_path: Path) -> None:
    artifact = only(plan_of(tmp_path), Ranking(degraded=True, error="the store is *away*"))
    assert artifact.content == []
    assert artifact.description.endswith("; it is not complete: the store is \\*away\\*")


def test_an_ingestion_has_totals_and_a_line_per_source_with_the_failures_first(tmp_path: Path) -> None:
    report = IndexReport(
        knowledge_base="kb",
        generation=7,
        sources=(
            SourceReport(source="same.md", status="unchanged", chunks_unchanged=3),
            SourceReport(source="new.md", status="added", chunks_added=1200),
            SourceReport(source="a|b.md", status="failed", reason="not <utf-8>\ntext"),
        ),
        added=1,
        unchanged=1,
        failed=1,
        chunks_added=1200,
        chunks_unchanged=3,
        embedded=1200,
        entities=5,
        facts=4,
        atoms_added=2,
        notes=("one_note",),
    )
    artifact = only(plan_of(tmp_path), report)
    assert (artifact.key, artifact.kind) == ("my-flow-ingestion", "markdown")
    assert str(artifact.content).splitlines() == [
        "Knowledge base kb, generation 7",
        "",
        "|  | added | updated | unchanged | deleted | failed | empty |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| sources | 1 | 0 | 1 | 0 | 1 | 0 |",
        "",
        "Chunks: 1,200 added, 0 deleted, 3 unchanged; 1,200 embedded",
        "",
        "Atoms: 2 added, 0 deleted, 0 unchanged",
        "",
        "Knowledge graph: 5 entities, 4 facts",
        "",
        "| source | what was done | chunks added | deleted | unchanged | reason |",
        "| --- | --- | --- | --- | --- | --- |",
        "| a\\|b.md | failed | 0 | 0 | 0 | not &lt;utf-8&gt; text |",
        "| new.md | added | 1,200 | 0 | 0 |  |",
        "| same.md | unchanged | 0 | 0 | 3 |  |",
        "",
        "Note: one\\_note",
    ]


def test_the_drawing_is_a_mermaid_block(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    assert artifacts_of(plan, {"": "a text is no artifact"}) == []
    drawing = drawing_of(plan)
    assert drawing.description == f"Drawing of `My_flow`, version {plan.hash[:12]}"
    lines = str(drawing.content).splitlines()
    assert (lines[0], lines[1], lines[-1]) == ("```mermaid", "flowchart LR", "```")
    assert '  step_cut["cut<br/><small>rank.top_k</small>"]' in lines


def test_what_is_inside_a_block_cannot_close_it() -> None:
    assert fenced("a\n```\n````\n", "mermaid") == "`````mermaid\na\n```\n````\n`````"


def rendered(markdown: str) -> str:
    from markdown_it import MarkdownIt

    return str(MarkdownIt("commonmark", {"html": True}).enable("table").enable("strikethrough").render(markdown))


@pytest.mark.parametrize(
    "text",
    [
        HOSTILE,
        "# no heading",
        "- no list",
        "+ no list",
        "12. no list",
        "12) no list",
        "> no quote",
        "    no code",
        "~~~\nno fence\n~~~",
        "title\n===",
        "title\n---",
        "a | b\n--|--\n1 | 2",
        "a\n:-",
        "<http://evil.example>",
        "&lt;b&gt; &amp; &copy;",
        "[ref]: http://evil.example 'x'",
        "back\\slash \\* end\\",
        "_under_ __score__ ~~gone~~ $x$",
        "***",
        "two  \nlines",
    ],
)
def test_text_of_documents_stays_text_in_markdown(text: str) -> None:
    import html
    import re

    page = rendered(escape_markdown(text, 1000))
    assert set(re.findall(r"<(/?\w+)", page)) <= {"p", "/p", "br"}
    shown = html.unescape(re.sub(r"</?(?:p|br)\s*/?>", "", page))
    assert shown.split() == text.split()
    cell = rendered(f"| h |\n| --- |\n| {escape_line(text, 1000)} |")
    assert cell.count("<td>") == 1
    assert set(re.findall(r"<(\w+)", cell)) == {"table", "thead", "tbody", "tr", "th", "td"}
    assert html.unescape(re.sub(r"<[^>]*>", "", cell)).split()[1:] == text.split()


@pytest.mark.parametrize(
    "text",
    [
        HOSTILE.replace("\n", " "),
        "# no heading",
        "- no list",
        "12. no list",
        "> no quote",
        "~~~ no fence",
        "_under_ snake_case __score__ ~~gone~~",
        "<http://evil.example>",
        "&lt;b&gt; AT&T &copy; &#65;",
        "[ref]: http://evil.example 'x'",
        "back\\slash \\* end\\",
        "***",
        "=",
    ],
)
def test_text_in_a_table_stays_text_also_where_cells_are_rendered(text: str) -> None:
    import html
    import re

    page = rendered(escape_cell(text, 1000))
    assert set(re.findall(r"<(/?\w+)", page)) <= {"p", "/p"}
    assert html.unescape(re.sub(r"</?p>", "", page)).strip() == text


def test_ordinary_prose_in_a_table_has_no_backslash() -> None:
    text = r"At 7:15, C:\temp\x (see log_file.txt, AT&T, a|b) costs 5% - ok? $3! a@b.example http://a.example #1"
    assert escape_cell(text, 1000) == text


def test_addresses_are_not_made_links_by_renderers_that_link_on_their_own() -> None:
    assert escape_line("http://a.example www.a.example me@a.example", 100) == (
        "http\\://a.example www\\.a.example me\\@a.example"
    )


def test_every_place_of_an_answer_is_escaped(tmp_path: Path) -> None:
    citation = Citation(marker=1, chunk_id="c", source=HOSTILE, section_path=(HOSTILE,), quote=HOSTILE)
    answer = Answer(text=HOSTILE, citations=(citation,), refused=True, refusal_reason=HOSTILE)
    page = rendered(str(only(plan_of(tmp_path), answer).content))
    for tag in ("<script", "<a ", "<img", "<code"):
        assert tag not in page
    assert page.count("&lt;script&gt;") == 5


def test_characters_that_cannot_be_stored_are_replaced() -> None:
    assert safe_text("a\x00b\ud800c\r\nd\te", 100) == "a\ufffdb\ufffdc\nd\te"


def test_secrets_are_taken_out_before_anything_is_cut(tmp_path: Path) -> None:
    secret = uuid.uuid4().hex
    hide(secret)
    assert safe_text(f"key {secret}", 8) == "key ***"
    ranking = Ranking.from_hits(
        [Hit(id="c", source=secret, text=secret, score=1, rank=1, score_kind="rank")], route="r", score_kind="rank"
    )
    citation = Citation(marker=1, chunk_id="c", source=secret, quote=secret)
    report = IndexReport(
        knowledge_base="kb",
        generation=1,
        sources=(SourceReport(source=secret, status="failed", reason=secret),),
        notes=(secret,),
    )
    plan = plan_of(tmp_path)
    for output in (Answer(text=secret, citations=(citation,)), ranking, report):
        assert secret not in str(only(plan, output))


def test_sizes_are_bounded_and_what_is_cut_is_said(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    citations = tuple(Citation(marker=n, chunk_id="c" * 9_000, quote="q" * 9_000) for n in range(1, MAX_CITATIONS + 8))
    answer = only(plan, Answer(text="x" * (MAX_ANSWER + 1234), citations=citations))
    assert "(1,234 more characters)" in answer.content
    assert "*7 more citations are left out*" in answer.content
    assert answer.description.endswith("; 7 more citations are left out")
    assert len(answer.content) < 100_000

    ranking = only(plan, Ranking.from_hits(hits(MAX_HITS + 5), route="dense", score_kind="cosine"))
    assert len(ranking.content) == MAX_HITS
    assert ranking.description.endswith("; 5 more hits are left out")

    sources = tuple(SourceReport(source=f"{n}.md", status="added") for n in range(MAX_SOURCES + 1))
    report = only(plan, IndexReport(knowledge_base="kb", generation=1, sources=sources, notes=("n",) * 30))
    assert "*1 more sources are left out*" in report.content
    assert "Note: 10 more notes are left out" in report.content


def test_a_drawing_that_is_too_large_says_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ragbraid.flows.artifacts.MAX_DRAWING", 10)
    drawing = drawing_of(plan_of(tmp_path))
    assert drawing.key == "my-flow-drawing"
    assert "`ragbraid graph` draws it" in drawing.content


def test_named_outputs_are_artifacts_of_their_own(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "{top_hits: $cut, Top_Hits: $cut, count: $found}")
    ranking = Ranking()
    found = artifacts_of(plan, {"top_hits": ranking, "Top_Hits": ranking, "count": 3})
    assert [each.key for each in found] == [
        "my-flow-top-hits-ranking",
        "my-flow-top-hits-ranking-2",
    ]
    assert found[1].description == f"Ranking `Top_Hits` of `My_flow`, version {plan.hash[:12]}"
    many = {f"o{n}": ranking for n in range(MAX_OUTPUTS + 9)}
    assert len(artifacts_of(plan, many)) == MAX_OUTPUTS


def test_keys_are_lower_case_letters_digits_and_dashes() -> None:
    assert artifact_key("My_Flow", "", "out__1_", "answer") == "my-flow-out-1-answer"
    assert artifact_key("loop[2].think", "progress") == "loop-2-think-progress"
    assert artifact_key("问答") == "flow"
    assert len(artifact_key("x" * 900, "answer")) <= 200
