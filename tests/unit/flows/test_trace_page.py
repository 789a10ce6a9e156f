"""The pure part of showing a run: the tree of its steps, values as text, the page and its bounds, reading a trace."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ragbraid.flows.cli import app
from ragbraid.flows.trace_page import MAX_ROUNDS, MAX_STEPS, MAX_VALUE, MAX_VALUES, trace_page
from ragbraid.flows.trace_record import Prices, RunRecord, read_trace
from ragbraid.flows.trace_text import glimpse, hit_table, seconds_text, value_text
from ragbraid.flows.trace_tree import step_tree
from ragbraid.registry.contracts import Usage
from ragbraid.registry.errors import SettingsError

ATTACK = "<script>alert(1)</script>\" onload='x' &amp; </pre></style>"


def step(path: str, node: str = "demo.give@1", **fields: Any) -> dict[str, Any]:
    return {
        "path": path, "node": node, "status": "ok", "started": 0.0, "ended": 0.5, "attempts": 1, "cached": False,
        "usage": {}, "notes": [], "error": None, "inputs": {}, "output": None, **fields,
    }  # fmt: skip


def record(*steps: dict[str, Any], **fields: Any) -> RunRecord:
    return RunRecord.model_validate(
        {
            "flow": "qa", "plan": "abc", "status": "ok", "seconds": 1.0, "abandoned_calls": 0, "usage": {},
            "started_at": datetime(2026, 1, 2, tzinfo=UTC), "error": None, "inputs": {}, "outputs": {},
            "steps": list(steps), **fields,
        }
    )  # fmt: skip


class Reader(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_steps_stand_under_the_block_they_ran_in() -> None:
    steps = [
        step("first"), step("again", "loop"), step("again[1].each", "map"), step("again[1].each[2].x"),
        step("again[1].each[1].x"), step("again[2].each", "map"), step("route", "switch"), step("route[a.b[0]].y"),
        step("group", "group"), step("group.inner"), step("lost[1].z"),
    ]  # fmt: skip
    first, again, route, group, lost = step_tree(record(*steps).steps)
    assert [(label, [node.name for node in nodes]) for label, nodes in again.rounds] == [
        ("1", ["each"]),
        ("2", ["each"]),
    ]
    assert [label for label, _ in again.children[0].rounds] == ["1", "2"]
    assert again.children[0].children[0].box == "again.each.x"
    assert (route.children[0].round, route.children[0].box) == ("a.b[0]", "route[a.b[0]].y")
    assert (group.children[0].round, group.children[0].box) == ("", "group.inner")
    assert (first.name, lost.name) == ("first", "lost[1].z")


def test_a_block_that_was_tried_again_has_the_steps_of_both_attempts() -> None:
    [block] = step_tree(record(step("a", "loop"), step("a[1].x"), step("a[1].x")).steps)
    assert [node.number for node in block.rounds[0][1]] == [2, 3]


def test_a_block_counts_what_ran_inside_it_and_only_calls_of_a_model_cost() -> None:
    asked = {"llm_calls": 1, "prompt_tokens": 1_000_000, "completion_tokens": 500_000}
    steps = [
        step("a", "loop"),
        step("a[1].x", usage=asked),
        step("a[2].x", usage=asked),
        step("e", usage={"prompt_tokens": 9}),
    ]
    block, embedded = step_tree(record(*steps).steps)
    assert block.usage == Usage(llm_calls=2, prompt_tokens=2_000_000, completion_tokens=1_000_000)
    prices = Prices(prompt_usd=0.5, completion_usd=2)
    assert (block.cost_usd(prices), embedded.cost_usd(prices)) == (3.0, 0.0)
    assert "$3.00" in trace_page(record(*steps), prices)
    assert "$" not in trace_page(record(*steps))


def test_every_text_of_a_run_is_escaped() -> None:
    error = {"class": ATTACK, "kind": ATTACK, "step": ATTACK, "message": ATTACK, "hint": ATTACK}
    hits = {
        "hits": [
            {"text": ATTACK, "source": ATTACK, "rank": ATTACK, "score": ATTACK, "scores": {ATTACK: {"rank": ATTACK}}}
        ]
    }
    answer = {"text": ATTACK, "citations": [{"marker": ATTACK, "source": ATTACK, "quote": ATTACK}]}
    box = {"id": ATTACK, "title": ATTACK, "small": ATTACK, "x": 0, "y": 0, "width": 9, "height": 9, "frame": False}
    arrow = {"x1": 0, "y1": 0, "x2": 0, "y2": 0, "type": ATTACK}
    run = record(
        step(ATTACK, ATTACK, inputs={ATTACK: ATTACK}, output=hits, notes=[ATTACK], error=error),
        step("loop", "loop"), step("loop[1].x", output=ATTACK), step("loop[2].x", error=error),
        flow=ATTACK, plan=ATTACK, error=error, inputs={ATTACK: ATTACK}, outputs={ATTACK: answer},
        drawing={"width": 9, "height": 9, "boxes": [box], "arrows": [arrow]},
    )  # fmt: skip
    page = Reader(trace_page(run))
    assert not {"script", "img", "iframe", "object", "form", "base"} & set(page.tags)
    assert "onload" not in page.attributes
    assert page.text.count("<script>alert(1)</script>") > 20


def test_the_page_forbids_itself_scripts_and_loading() -> None:
    page = trace_page(record(step("a")))
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "script-src" not in policy
    assert not re.search(r"https?://", page)
    assert page.startswith("<!doctype html>")


def test_a_page_has_a_bound_and_says_what_is_left_out() -> None:
    items = [step(f"m[{number}].x", output="y" * 50_000) for number in range(1, 3_001)]
    items[2_000] |= {"status": "failed"}
    page = trace_page(record(step("m", "map"), *items))
    assert page.count('class="step"') == 1 + MAX_ROUNDS + 1
    assert f"{3_000 - MAX_ROUNDS - 1:,} steps of further items not shown" in page
    assert f"{50_000 - MAX_VALUE:,} more characters in the trace" in page
    flat = trace_page(record(*(step(f"s{number}", output="y" * 5_000) for number in range(1_500))))
    assert flat.count('class="step"') == MAX_STEPS
    assert "500 steps not shown" in flat
    assert len(flat) < MAX_VALUES + 2_000 * MAX_STEPS


def test_a_run_that_was_stopped_or_did_nothing_has_a_page() -> None:
    cut = record(step("a", ended=None), status="cancelled", seconds=0.0)
    assert "not ended" in trace_page(cut)
    assert "Run of qa" in trace_page(record(seconds=0.0))


def test_values_read_as_an_outline_without_what_is_empty() -> None:
    value = {"text": "one\ntwo", "none": None, "list": [], "hits": [{"id": "a", "n": 1}, "… (3 more)"], "flag": False}
    assert value_text(value).splitlines() == [
        "text: one", "  two", "hits:", "  - id: a", "    n: 1", "  - … (3 more)", "flag: false",
    ]  # fmt: skip
    assert [value_text(empty) for empty in (None, "", [], {})] == ["(nothing)", "(empty)", "(empty)", "(empty)"]
    assert value_text({"a": None}) == "(every field is empty)"
    assert value_text([[1, 2], []]) == "- - 1\n  - 2\n- (empty)"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"text": "a\n b", "x": 1}, "a b"),
        ({"hits": [{"source": "s"}, {"id": "i"}]}, "2 hits: s, i"),
        ({"hits": [{"source": "s"}, "… (1,300 more)"]}, "1,301 hits: s, … (1,300 more)"),
        ({"hits": []}, "no hits"),
        ({"a": 1, "b": True, "c": [1]}, "a: 1, b: true"),
        ([1], "1 item"),
        (7, "7"),
        ("x" * 200, "x" * 139 + "…"),
    ],
)
def test_a_glimpse_says_what_a_value_is_about(value: Any, text: str) -> None:
    assert glimpse(value) == text


def test_a_ranking_becomes_a_table_with_the_rank_in_every_route() -> None:
    hits = [
        {"rank": 1, "score": 0.51239, "source": "a.md", "text": "A", "scores": {"dense": {"rank": 3}}},
        {"rank": 2, "score": 0.5, "id": "b", "text": "B", "scores": {"sparse": {"rank": 1}}},
        "… (2 more)",
    ]
    table = hit_table({"hits": hits})
    assert table is not None
    assert table.header == ("#", "score", "dense", "sparse", "source", "text")
    assert table.rows == (("1", "0.5124", "3", "", "a.md", "A"), ("2", "0.5000", "", "1", "b", "B"))
    assert table.more == "… (2 more)"
    assert [hit_table(other) for other in (None, "x", {"hits": []}, {"hits": "x"})] == [None] * 4


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 ms"),
        (0.00002, "<0.1 ms"),
        (0.0031, "3.1 ms"),
        (0.4124, "412 ms"),
        (4.118, "4.12 s"),
        (125.2, "2 min 5 s"),
    ],
)
def test_a_duration_has_the_digits_that_matter(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot be read: No such file"),
        ("{", "is no JSON, so no trace of a run"),
        ("[]", "is no trace of a run"),
        ('{"flow": "qa"}', "is no trace of a run (plan: Field required)"),
    ],
)
def test_what_is_no_trace_is_refused_with_a_sentence(tmp_path: Path, content: str | None, sentence: str) -> None:
    file = tmp_path / "t.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SettingsError) as caught:
        read_trace(file)
    assert sentence in str(caught.value)


def test_the_command_prints_a_table_writes_a_page_and_gives_json(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    asked = {"llm_calls": 1, "prompt_tokens": 1_000, "completion_tokens": 10}
    run = record(step("a", "loop"), step("a[1].x", usage=asked, ended=0.25), usage=asked)
    file.write_text(json.dumps(run.model_dump(mode="json", by_alias=True)))
    shown = CliRunner().invoke(app, ["trace", str(file), "--prices", "1,2"])
    lines = shown.stdout.splitlines()
    assert lines[0].startswith("qa: ok after 1.00 s; 1 model calls; 1,000 prompt and 10 completion tokens; $0.0010; ")
    assert lines[2].split() == ["STEP", "NODE", "STATUS", "BEGAN", "TOOK", "CALLS", "TOKENS", "USD"]
    assert lines[3].split() == ["a", "loop", "ok", "0.0", "ms", "500", "ms", "1", "1,010", "0.0010"]
    paged = CliRunner().invoke(app, ["trace", str(file), "--page", str(tmp_path / "p.html")])
    assert (paged.exit_code, paged.stdout) == (0, "")
    assert (tmp_path / "p.html").read_text(encoding="utf-8") == trace_page(run)
    told = CliRunner().invoke(app, ["trace", str(file), "--json"])
    assert json.loads(told.stdout) == json.loads(file.read_text())


@pytest.mark.parametrize("prices", ["1", "a,b", "1,-2", "1,inf", "1,nan", "1,2,3"])
def test_prices_that_are_none_are_refused(tmp_path: Path, prices: str) -> None:
    result = CliRunner().invoke(app, ["trace", "t.json", "--prices", prices])
    assert result.exit_code == 2
    assert "write two amounts of US dollars" in result.stderr
