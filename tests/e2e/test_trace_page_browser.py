"""The page of a real run in a real browser: mouse, keyboard, phone, dark, and what a screen reader needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_parts import Watched, chromium
from cli_parts import run_here

pytestmark = pytest.mark.xdist_group("trace_page")  # one browser for all

ATTACK = "<script>document.title = 'owned'</script><img src=http://127.0.0.1:9/x onerror=alert(1)> & \"quoted\""
NODES = f'''
from ragbraid import Hit, Ranking, node


@node("demo.find")
def find(question: str) -> Ranking:
    """Find passages.

    Args:
        question: what is asked.
    """
    hits = [
        Hit(id=f"passage-{{rank}}", text=text, score=1.0 / rank, rank=rank, score_kind="rank", source=f"{{rank}}.md")
        for rank, text in enumerate([{ATTACK!r}, "a plain passage about " + question], start=1)
    ]
    return Ranking.from_hits(hits, route="found", score_kind="rank")


@node("demo.grow")
def grow(text: str) -> str:
    """Add a word.

    Args:
        text: what there is.
    """
    return text + " more"


@node("demo.break")
def fall(text: str) -> str:
    """Fail.

    Args:
        text: what there is.
    """
    raise ValueError("it broke on " + text)
'''
FLOW = """ragbraid: 1
name: everything
inputs: {question: str}
nodes:
  found: {use: demo.find, question: $question}
  deeper:
    loop:
      carry: {text: str = $question}
      nodes: {longer: {use: demo.grow, text: $text}}
      next: {text: $longer}
      max_steps: 3
  each:
    map:
      over: {part: '${ [question, "second"] }'}
      nodes: {grown: {use: demo.grow, text: $part}}
      output: $grown
  route:
    switch:
      on: $question
      cases:
        short: {use: demo.grow, text: $question}
      else: {use: LAST, text: $deeper.text}
outputs: {hits: $found, parts: $each, last: $route}
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page of a run that went well, `ok.html`, and of one that failed, `failed.html`."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "ragbraid.toml").write_text('nodes = ["demo_nodes.py"]\n')
    (folder / "demo_nodes.py").write_text(NODES)
    for name, last, code in (("ok", "demo.grow", 0), ("failed", "demo.break", 1)):
        flow = folder / f"{name}.yaml"
        flow.write_text(FLOW.replace("LAST", last))
        result = run_here("run", flow, "-i", f"question={ATTACK}", "--page", folder / f"{name}.html", "--prices", "1,2")
        assert result.exit_code == code, result.output
    return folder


@pytest.fixture(scope="module")
def browser(pages: Path) -> Iterator[Any]:  # flows have run before: playwright keeps an event loop in this thread
    with chromium() as started:
        yield started


def opened(page: Any) -> list[str]:
    """The paths of the steps that lie open."""
    return [
        each.split(" began")[0] for each in page.locator("details.step[open] .inside > p:first-child").all_inner_texts()
    ]


def test_a_click_on_a_step_shows_its_inputs_and_its_output(browser: Any, pages: Path) -> None:
    page = Watched(browser).open(pages / "ok.html")
    step = page.locator("details.step", has_text="found").first
    assert not step.get_by_text("a plain passage about").first.is_visible()
    step.locator("summary").first.click()
    assert step.get_by_role("heading", name="Inputs").is_visible()
    assert step.get_by_role("term").first.inner_text() == "question"
    assert step.get_by_role("cell", name="2.md").is_visible()
    assert opened(page) == ["found"]


def test_the_drawing_leads_to_the_steps(browser: Any, pages: Path) -> None:
    page = Watched(browser).open(pages / "ok.html")
    page.get_by_role("link", name="found, demo.find: ok").click()
    assert opened(page) == ["found"]
    page.get_by_role("link", name="longer, demo.grow: ran 3 times, ok").click()
    assert sorted(opened(page)) == ["deeper[1].longer", "found"]


def test_rounds_of_a_loop_and_items_of_a_map_stand_side_by_side(browser: Any, pages: Path) -> None:
    page = Watched(browser).open(pages / "ok.html")
    loop = page.get_by_role("table", name="deeper, side by side")
    assert loop.get_by_role("columnheader").all_inner_texts() == ["step", "round 1", "round 2", "round 3"]
    assert loop.get_by_role("rowheader").all_inner_texts() == ["longer"]
    items = page.get_by_role("table", name="each, side by side")
    assert items.get_by_role("columnheader").all_inner_texts() == ["step", "item 1", "item 2"]
    assert items.get_by_role("cell").last.inner_text().endswith("second more")
    items.get_by_role("link").last.click()
    assert opened(page) == ["each[2].grown"]


def test_nothing_is_loaded_and_a_passage_with_markup_stays_text(browser: Any, pages: Path) -> None:
    watched = Watched(browser)
    page = watched.open(pages / "ok.html")
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert page.get_by_text(ATTACK).first.is_visible()
    assert page.title() == "everything: ok"
    assert page.locator("script, img, iframe, object, form").count() == 0
    assert watched.requests == [(pages / "ok.html").as_uri()]
    assert watched.said == []


@pytest.mark.parametrize("name", ["ok", "failed"])
def test_a_phone_shows_it_without_scrolling_sideways(browser: Any, pages: Path, name: str) -> None:
    page = Watched(browser, width=360).open(pages / f"{name}.html")
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.get_by_role("region", name="Drawing of the flow").evaluate(
        "each => each.scrollWidth > each.clientWidth"
    )


def test_the_keyboard_reaches_and_opens_every_step(browser: Any, pages: Path) -> None:
    page = Watched(browser).open(pages / "ok.html")
    wanted = page.locator("details.step").count()
    reached: set[str] = set()
    for _ in range(200):
        page.keyboard.press("Tab")
        tag = page.evaluate(
            "document.activeElement.parentElement.matches('details.step') ? 'step' : document.activeElement.tagName"
        )
        if tag == "BODY":
            break
        if tag == "step":
            page.keyboard.press("Enter")
            reached.add(page.evaluate("document.activeElement.parentElement.querySelector('.inside').id"))
    assert len(reached) == wanted == 10
    assert len(opened(page)) == wanted


def test_a_failed_run_says_what_went_wrong_and_leads_there(browser: Any, pages: Path) -> None:
    page = Watched(browser).open(pages / "failed.html")
    assert page.get_by_role("heading", level=1).inner_text().split() == ["Run", "of", "everything", "✗", "failed"]
    assert page.get_by_text("it broke on").first.is_visible()
    page.get_by_role("link", name="To the step route").click()
    [path] = opened(page)
    assert path.startswith("route[else].")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["ok", "failed"])
def test_axe_finds_nothing_in_the_way_of_a_screen_reader(browser: Any, pages: Path, name: str, dark: bool) -> None:
    watched = Watched(browser, dark=dark)
    page = watched.open(pages / f"{name}.html")
    assert watched.violations() == []
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert watched.violations() == []
