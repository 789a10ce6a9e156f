"""What an operator sees and does in Prefect's UI, in a real browser: form, run page, artifacts, retry, cancel."""

from __future__ import annotations

import base64
import json
import re
import signal
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from browser_parts import Watched, chromium
from cli_parts import start

pytestmark = [pytest.mark.prefect, pytest.mark.xdist_group("ui_browser")]  # one browser and one served project for all

ATTACK = (
    "<script>document.title = 'owned'</script><img src=http://127.0.0.1:9/x onerror=alert(1)> "
    "[click](javascript:alert(1)) a | b | **bold**"
)
NODES = f'''
import logging
import time
from pathlib import Path
from typing import Literal

from ragbraid import Answer, Citation, Hit, IndexReport, Ranking, ServiceError, SourceReport, node
from ragbraid.registry.context import report_progress

HERE = Path(__file__).parent
LOGGER = logging.getLogger(__name__)


def wait_for(name):
    deadline = time.monotonic() + 60
    while not (HERE / name).exists() and time.monotonic() < deadline:
        time.sleep(0.05)


@node("ui.find")
def find(question: str, *, top_k: int = 5) -> Ranking:
    """Find passages."""
    LOGGER.info("looking for %s", question)
    texts = [{ATTACK!r}, "The ferry leaves at seven."]
    hits = [
        Hit(id=f"p{{n}}", text=text, score=1 / n, rank=n, score_kind="rank", source=f"{{n}}.md")
        for n, text in enumerate(texts, 1)
    ]
    return Ranking.from_hits(hits, route="found", score_kind="rank")


@node("ui.answer")
def answer(question: str, ranking: Ranking, *, style: Literal["short", "long"] = "short") -> Answer:
    """Answer from passages."""
    citations = [
        Citation(marker=n, chunk_id=hit.id, source=hit.source, quote=hit.text, verified=True)
        for n, hit in enumerate(ranking.hits, 1)
    ]
    return Answer(text="At seven [2]. " + {ATTACK!r}, citations=citations)


@node("ui.flaky")
def flaky(question: str) -> str:
    """Fail until the service is there."""
    if not (HERE / "service").exists():
        raise ServiceError("the service at port 4321 does not answer", hint="start the service")
    return question


@node("ui.index", blocking=True)
def index(folder: str) -> IndexReport:
    """Index a folder, and stop on the way until it may go on."""
    for done in range(5):
        report_progress("chunks embedded", done, 4)
        if done == 2:
            wait_for("go_on")
    sources = [SourceReport(source="<b>|a.md", status="added", chunks_added=3)]
    return IndexReport(knowledge_base="kb", generation=7, added=1, chunks_added=3, sources=sources)


@node("ui.stuck", blocking=True)
def stuck(question: str) -> str:
    """Wait for a long time."""
    wait_for("never")
    return question
'''
FLOWS = {
    "ask": """
about: Answers a question from passages.
inputs:
  question: {type: str, min_length: 3, about: what to ask}
  top_k: {type: int, default: 5, ge: 1, le: 50, about: how many passages reach the answer}
  style: {type: 'literal["short", "long"]', default: short, about: how much to write}
  strict: {type: bool, default: true, about: refuse when unsure}
  day: {type: date, default: 2026-03-29, about: a day}
  tags: {type: "list[str]", default: [], about: labels}
  where: {type: "Where | none", default: none, about: what passages have to fulfil}
nodes:
  find: {use: ui.find, top_k: $top_k}
  answer: {use: ui.answer, style: $style}
flow: find -> answer
outputs: {answer: $answer, evidence: $find}
""",
    "flaky": "inputs: {question: str}\nnodes: {flaky: {use: ui.flaky}}\noutputs: $flaky\n",
    "stuck": "inputs: {question: str}\nnodes: {stuck: {use: ui.stuck}}\noutputs: $stuck\n",
    "index": "inputs: {folder: str = docs/manuals}\nnodes: {index: {use: ui.index}}\noutputs: $index\n",
}


@dataclass(frozen=True)
class Served:
    """A project that is served, and where its deployments are in the UI."""

    folder: Path
    api: str
    addresses: dict[str, str]
    prefix: str

    def state(self, run_id: str) -> dict[str, Any]:
        found: dict[str, Any] = ask(f"{self.api}/flow_runs/{run_id}")["state"]
        return found

    def artifacts(self, run_id: str) -> dict[str, str]:
        """Return the ids of a run's artifacts by their keys."""
        body = {"artifacts": {"flow_run_id": {"any_": [run_id]}, "type": {"not_any_": ["result"]}}}
        return {each["key"]: each["id"] for each in ask(as_json(f"{self.api}/artifacts/filter", body))}

    def run_now(self, name: str, **parameters: Any) -> str:
        """Start a run past the UI and wait until it is done; return its id."""
        deployment = self.addresses[name].rsplit("/", 1)[1]
        request = as_json(f"{self.api}/deployments/{deployment}/create_flow_run", {"parameters": parameters})
        run_id = str(ask(request)["id"])
        wait_until(lambda: self.state(run_id)["type"] == "COMPLETED")
        return run_id


def as_json(url: str, body: Any) -> urllib.request.Request:
    return urllib.request.Request(url, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"})


def ask(request: Any) -> Any:
    """Ask the server; its SQLite file answers 503 while another test writes to it."""
    for _ in range(20):
        try:
            with urllib.request.urlopen(request) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise
            time.sleep(0.5)
    raise AssertionError("the server stays busy")


def is_drawn(page: Any) -> bool:
    """Whether the graph is on the page; of a run that is over the page asks once, and task runs may come later."""
    for _ in range(20):
        if coloured_pixels(page, page.locator("canvas").first.screenshot()) > 100:
            return True
        time.sleep(0.25)
    page.reload()
    page.locator("canvas").first.wait_for()
    return False


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, prefect_server: Any) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("ui")
    prefix = f"ui-{uuid.uuid4().hex[:8]}"
    (folder / "my_nodes.py").write_text(NODES)
    (folder / "ragbraid.toml").write_text('nodes = ["my_nodes.py"]\n')
    for name, text in FLOWS.items():
        (folder / f"{name}.yaml").write_text(f"ragbraid: 1\nname: {prefix}-{name}\n{text}")
    env = {"PREFECT_API_URL": prefect_server.url, "PREFECT_HOME": str(prefect_server.home), "DO_NOT_TRACK": "1"}
    files = [f"{name}.yaml" for name in FLOWS]
    process = start("serve", *files, folder=folder, env=env)
    try:
        assert process.stderr is not None
        addresses = {}
        for name in FLOWS:
            line = process.stderr.readline()
            assert line.startswith(f"serving {prefix}-{name}, version "), line + process.stderr.read()
            addresses[name] = process.stderr.readline().strip()
        yield Served(folder, prefect_server.url, addresses, prefix)
    finally:
        (folder / "never").touch()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


@pytest.fixture(scope="module")
def browser(served: Served) -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture
def page(browser: Any, served: Served) -> Iterator[Any]:
    watched = Watched(browser, width=1300)
    watched.page.set_default_timeout(30_000)
    here = urllib.parse.urlsplit(served.api).netloc
    # The UI itself calls an analytics service, which is no business of a test.
    watched.page.route(lambda url: urllib.parse.urlsplit(url).netloc != here, lambda route: route.abort())
    yield watched.page
    watched.page.close()


def open_form(page: Any, served: Served, name: str) -> None:
    page.goto(f"{served.addresses[name]}")
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Custom run").click()
    page.get_by_text("Enforce Parameter Schema").wait_for()
    page.get_by_role("button", name="Open menu").first.wait_for()  # every input has one, and is drawn a little later


def begin(page: Any, served: Served, name: str, **fields: str) -> str:
    """Fill in the form, submit it, follow to the run's page and return the run's id."""
    open_form(page, served, name)
    for label, value in fields.items():
        page.get_by_label(label).fill(value)
    submit_and_follow(page)
    found = re.search(r"flow-run/([0-9a-f-]+)", page.url)
    assert found is not None
    return found[1]


def submit_and_follow(page: Any) -> None:
    follow = page.get_by_text("View run")
    for _ in range(10):  # the form misses a click while it is still settling
        page.get_by_role("button", name="Submit").click()
        try:
            follow.first.wait_for(timeout=3_000)
        except Exception as error:
            if type(error).__name__ != "TimeoutError":
                raise
            continue
        break
    follow.first.click()
    page.wait_for_url("**/flow-run/**")


def of_main(page: Any, text: str) -> Any:
    return page.locator("main").get_by_text(text, exact=True).first


def choose_from_menu(page: Any, item: str, confirm: str) -> None:
    page.get_by_role("button", name="Open menu").first.click()
    page.get_by_role("menuitem", name=item, exact=True).click()
    page.get_by_role("button", name=confirm, exact=True).click()


def test_the_form_shows_what_every_input_is_and_refuses_a_wrong_value(page: Any, served: Served) -> None:
    open_form(page, served, "ask")
    assert "/v2/" in page.url  # the address that `serve` prints leads to the UI that the server offers first
    page.get_by_text("where (Optional)").wait_for()
    form = page.locator("main").inner_text()
    shown = ["question", "top_k (Optional)", "style (Optional)", "strict (Optional)", "day (Optional)"]
    shown += ["tags (Optional)", "where (Optional)"]
    assert sorted(shown, key=form.index) == shown
    assert "what to ask (3 or more characters)" in form
    assert "how many passages reach the answer (1 to 50)" in form
    assert page.get_by_label("top_k").input_value() == "5"
    assert page.get_by_text("March 29th, 2026").is_visible()
    page.get_by_label("style").click()
    assert page.get_by_role("option").all_inner_texts() == ["short", "long"]
    page.get_by_role("option", name="long").click()
    page.get_by_role("tab", name="Where").click()
    assert page.get_by_text("A payload filter: every condition of").is_visible()
    page.get_by_role("tab", name="None").click()

    top_k = page.get_by_label("top_k")
    top_k.fill("99")
    assert top_k.evaluate("each => each.validationMessage") == "Value must be less than or equal to 50."
    top_k.fill("7")
    page.get_by_label("question").fill("ab")
    page.get_by_role("button", name="Submit").click()
    page.get_by_text("'ab' is too short").first.wait_for()
    assert page.url.split("?")[0].endswith("/run")


def test_a_run_is_called_after_its_question_and_shows_steps_logs_answer_and_evidence(page: Any, served: Served) -> None:
    run_id = begin(page, served, "ask", question="When does the ferry leave?")
    of_main(page, "Completed").wait_for()
    assert page.get_by_text("When does the ferry leave?").first.is_visible()
    wait_until(lambda: is_drawn(page))

    page.reload()
    page.get_by_text("looking for When does the ferry leave?").wait_for()
    page.get_by_role("tab", name="Task Runs").click()
    for name in ("find", "answer"):
        page.get_by_role("link", name=name, exact=True).wait_for()

    page.get_by_role("tab", name="Artifacts").click()
    found = served.artifacts(run_id)
    assert set(found) == {f"{served.prefix}-ask-{name}" for name in ("answer", "evidence-ranking", "drawing")}
    for key in found:
        page.get_by_text(key, exact=True).wait_for()

    ui = page.url.split("/runs/")[0]
    main = page.locator("main")
    page.goto(f"{ui}/artifacts/artifact/{found[f'{served.prefix}-ask-answer']}")
    main.get_by_text("Sources", exact=True).wait_for()
    assert "At seven [2]. " + ATTACK in main.inner_text()
    assert "[2] 2.md (passage read)" in main.inner_text()
    nothing_came_of_the_attack(page)
    page.goto(f"{ui}/artifacts/artifact/{found[f'{served.prefix}-ask-drawing']}")
    main.locator("svg[id^=mermaid]").get_by_text("ui.find").wait_for()
    ranking = f"artifacts/artifact/{found[f'{served.prefix}-ask-evidence-ranking']}"
    for each in (ui, ui.removesuffix("/v2")):  # the older UI renders the cells of tables
        page.goto(f"{each}/{ranking}")
        page.get_by_text("2.md", exact=True).first.wait_for()
        assert page.get_by_role("row").count() == 3
        nothing_came_of_the_attack(page)


def nothing_came_of_the_attack(page: Any) -> None:
    assert "owned" not in page.title()
    assert page.locator("main img[src^=http], main script, a[href^=javascript]").count() == 0


def coloured_pixels(page: Any, picture: bytes) -> int:
    """How many pixels of a picture have the green of a completed step: the graph is drawn by WebGL, not of elements."""
    count = page.evaluate(
        """async source => {
            const image = new Image(); image.src = source; await image.decode();
            const canvas = document.createElement('canvas'); canvas.width = image.width; canvas.height = image.height;
            const context = canvas.getContext('2d'); context.drawImage(image, 0, 0);
            const data = context.getImageData(0, 0, image.width, image.height - 20).data;
            let count = 0;
            for (let at = 0; at < data.length; at += 4)
                if (data[at] < 80 && data[at + 1] > 120 && data[at + 2] < 120) count++;
            return count;
        }""",
        "data:image/png;base64," + base64.b64encode(picture).decode(),
    )
    return int(count)


def test_a_failed_run_says_why_and_what_to_do_and_its_retry_button_works(page: Any, served: Served) -> None:
    run_id = begin(page, served, "flaky", question="Will it work?")
    of_main(page, "Failed").wait_for()
    page.reload()
    page.get_by_text("hint: start the service").first.wait_for()
    page.get_by_role("tab", name="Details").click()
    assert page.get_by_text("the service at port 4321 does not answer").first.is_visible()
    (served.folder / "service").touch()
    choose_from_menu(page, "Retry", "Retry")
    wait_until(lambda: served.state(run_id)["type"] == "COMPLETED")
    of_main(page, "Completed").wait_for()


def test_the_cancel_button_ends_a_run_within_seconds(page: Any, served: Served) -> None:
    run_id = begin(page, served, "stuck", question="Will it end?")
    of_main(page, "Running").wait_for()
    choose_from_menu(page, "Cancel", "Cancel Flow Run")
    wait_until(lambda: served.state(run_id)["name"] == "Cancelled")
    of_main(page, "Cancelled").wait_for()
    page.get_by_role("tab", name="Details").click()
    page.get_by_text("the run was cancelled").wait_for()


def test_an_ingestion_shows_how_far_it_is_then_its_report_and_keeps_a_history(page: Any, served: Served) -> None:
    begin(page, served, "index")
    page.get_by_role("tab", name="Artifacts").click()
    run_page = page.url
    progress = page.get_by_text(f"{served.prefix}-index-index-progress")
    wait_until(lambda: page.reload() is not None and appears(progress))
    progress.click()
    page.get_by_text("chunks embedded").first.wait_for()
    wait_until(lambda: page.reload() is not None and appears(page.get_by_text("Progress: 50%")))
    (served.folder / "go_on").touch()

    served.run_now("index", folder="/srv/wiki")
    page.goto(run_page)
    of_main(page, "Completed").wait_for()
    page.get_by_text(f"{served.prefix}-index-ingestion").click()
    page.get_by_role("cell", name="<b>|a.md").wait_for()
    page.goto(f"{page.url.split('/artifacts/')[0]}/artifacts/key/{served.prefix}-index-ingestion")
    page.get_by_text("Flow run: /srv/wiki").wait_for()
    assert page.get_by_text("Flow run: docs/manuals").is_visible()


def appears(locator: Any) -> bool:
    try:
        locator.wait_for(timeout=2_000)
    except Exception as error:
        if type(error).__name__ != "TimeoutError":
            raise
        return False
    return True
