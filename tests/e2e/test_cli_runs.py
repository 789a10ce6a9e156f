"""`ragbraid runs`, `logs` and `trace RUN` on a real Prefect server."""

from __future__ import annotations

import asyncio
import contextvars
import json
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from cli_parts import run_here, start
from prefect_parts import NODES, Project, records_of, run_state

from ragbraid.flows.api import Flow
from ragbraid.flows.prefect_engine import PlanFlow
from ragbraid.registry.errors import RunError

# Prefect's engine asks for the default result storage with a client that it does not close.
pytestmark = [pytest.mark.prefect, pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]

CHATTY = '''

@node("mine.chatty")
def chatty(text: str, *, lines: int = 450) -> str:
    """Log a lot."""
    for number in range(lines):
        LOGGER.info("line %d", number)
    LOGGER.warning("%s", text)
    return text
'''

CHAIN = """
    inputs: {question: str}
    deploy: {visible: VISIBLE}
    nodes:
      first: {use: mine.tag, text: $question}
      second: {use: mine.LAST, text: $first}
    outputs: $second
"""


@pytest.fixture
def project(tmp_path: Path, prefect_api: Any) -> Project:
    made = Project(tmp_path)
    (tmp_path / "my_nodes.py").write_text(NODES + CHATTY)
    return made


def chain(project: Project, last: str = "tag", visible: str = "steps") -> Flow:
    return project.flow(CHAIN.replace("LAST", last).replace("VISIBLE", visible))


def run_id(state: Any) -> str:
    return str(state.state_details.flow_run_id)


def listed(flow: Flow, *more: str) -> list[dict[str, Any]]:
    found = run_here("runs", flow.name, "--json", *more)
    assert found.exit_code == 0, found.output
    return list(json.loads(found.stdout))


def test_runs_are_listed_with_their_state_and_why_they_failed(project: Project) -> None:
    good, bad = chain(project), chain(project, "crash")
    first, second = run_id(run_state(good, question="Why is it so?")), run_id(run_state(bad, question="And now?"))
    (one,) = listed(good)
    assert (one["id"], one["flow"], one["state"], one["name"]) == (first, good.name, "Completed", "Why is it so?")
    assert (one["version"], one["deployment"]) == (good.plan.hash[:12], "")
    assert one["seconds"] > 0

    table = run_here("runs", good.name, bad.name, "--since", "1h")
    header, newest, oldest = table.stdout.splitlines()
    assert header.split() == ["STATE", "NAME", "ID", "FLOW", "VERSION", "STARTED", "TOOK", "DEPLOYMENT"]
    assert newest.split()[0] == "Failed"
    assert f"And now?       {second[:8]}  {bad.name}" in newest
    assert newest.endswith("  -           `second` failed with ValueError: cannot do And now?!")
    assert oldest.startswith("Completed  Why is it so?")
    assert "\x1b" not in table.stdout

    assert [each["id"] for each in listed(bad, "--state", "failed")] == [second]
    assert listed(good, "--state", "failed") == []
    assert listed(good, "--deployment") == []
    empty = run_here("runs", good.name, "--state", "crashed")
    assert (empty.exit_code, empty.stdout, empty.stderr) == (0, "", "there are no such runs on this server\n")
    unknown = run_here("runs", good.name[:-1])
    assert unknown.exit_code == 1
    assert f"the server knows no flow `{good.name[:-1]}`" in unknown.stderr
    assert "write a duration" in run_here("runs", "--since", "soon").stderr


@pytest.mark.parametrize("visible", ["steps", "flow"])
def test_a_run_leaves_its_whole_trace_also_when_it_failed(project: Project, visible: str) -> None:
    flow = chain(project, "crash", visible)
    run = run_id(run_state(flow, question="Why?"))
    table = run_here("trace", run[:13])
    assert table.exit_code == 0
    assert table.stdout.startswith(f"{flow.name}: failed after ")
    assert "RunError (failed) at `second`: `second` failed with ValueError: cannot do Why?!" in table.stdout
    assert [line.split()[:3] for line in table.stdout.splitlines()[-2:]] == [
        ["first", "mine.tag@1", "ok"],
        ["second", "mine.crash@1", "failed"],
    ]
    record = json.loads(run_here("trace", run, "--json").stdout)
    assert [(step["inputs"], step["output"]) for step in record["steps"]] == [
        ({"text": "Why?", "mark": "!"}, "Why?!"),
        ({"text": "Why?!"}, None),
    ]
    page = project.folder / "page.html"
    assert run_here("trace", run, "--page", page).exit_code == 0
    assert "cannot do Why?!" in page.read_text()


def test_the_trace_is_not_among_the_artifacts_that_prefects_pages_show(project: Project) -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, ArtifactFilterType

    async def shown() -> list[str | None]:
        state: Any = await chain(project).prefect(question="Why?", return_state=True)
        only = ArtifactFilter(
            flow_run_id=ArtifactFilterFlowRunId(any_=[state.state_details.flow_run_id]),
            type=ArtifactFilterType(not_any_=["result"]),  # what both of Prefect's UIs ask for
        )
        async with get_client() as client:
            return [each.type for each in await client.read_artifacts(artifact_filter=only)]

    assert asyncio.run(shown()) == ["markdown"]


def test_a_cancelled_run_leaves_its_trace_even_when_it_is_cancelled_twice(project: Project) -> None:
    flow = chain(project, "stuck")
    module = project.module(flow)

    async def cancel() -> None:
        run = asyncio.create_task(flow.arun_traced({"question": "Why?"}, engine="prefect"))
        while not module.STARTED.is_set():
            await asyncio.sleep(0.05)
        run.cancel()
        await asyncio.sleep(0.02)  # its trace is being written by now
        run.cancel()
        await asyncio.wait([run])
        assert run.cancelled()

    try:
        asyncio.run(cancel())
    finally:
        module.RELEASE.set()
    (run,) = listed(flow)
    record = json.loads(run_here("trace", run["id"], "--json").stdout)
    assert record["status"] == "cancelled"
    assert [step["path"] for step in record["steps"]] == ["first", "second"]
    assert record["steps"][0]["output"] == "Why?!"


def test_a_run_without_a_trace_has_its_steps_and_says_why(project: Project) -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

    flow = chain(project)
    run = run_id(run_state(flow, question="Why?"))

    async def forget() -> str:
        await records_of(run, 2)  # task runs arrive a little later
        only = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run]))
        async with get_client() as client:
            for artifact in await client.read_artifacts(artifact_filter=only):
                await client.delete_artifact(artifact.id)
            assert isinstance(flow.prefect, PlanFlow)
            planned = await client.create_flow_run(flow.prefect, parameters={"question": "?"}, tags=["ragbraid"])
            return str(planned.id)

    planned = asyncio.run(forget())
    gone = run_here("trace", run)
    assert gone.exit_code == 1
    assert "the run `Why?` has no trace" in gone.stderr
    assert "`ragbraid logs` has what they said" in gone.stderr
    assert [line.split()[:2] for line in gone.stdout.splitlines()[1:]] == [
        ["Completed", "first"],
        ["Completed", "second"],
    ]
    early = run_here("trace", planned)
    assert (early.exit_code, early.stdout) == (1, "")
    assert "it has not begun (Pending)" in early.stderr


def test_a_log_has_every_line_with_its_step_and_no_control_character(project: Project) -> None:
    flow = chain(project, "chatty")
    run = run_id(run_state(flow, question="one\x1b[31m\n2026-01-01 forged"))
    followed = run_here("logs", run[:13], "--follow")  # which waits for what is still on its way
    assert followed.exit_code == 0
    assert followed.stderr.startswith("one")
    found = run_here("logs", run)
    assert found.stdout == followed.stdout
    lines = found.stdout.splitlines()
    said = [line for line in lines if "second: line " in line]
    assert [int(line.rsplit(" ", 1)[1]) for line in said] == list(range(450))
    assert any("INFO     first: tagging one" in line for line in lines)
    warning = next(place for place, line in enumerate(lines) if " WARNING  second: one" in line)
    assert lines[warning].endswith("one\N{REPLACEMENT CHARACTER}[31m")
    assert lines[warning + 1] == "    2026-01-01 forged!"
    assert "\x1b" not in found.stdout
    only = json.loads(run_here("logs", run, "--level", "warning", "--json").stdout)
    assert [(line["level"], line["step"]) for line in only] == [("WARNING", "second")]


def test_a_name_that_several_runs_have_or_none_is_refused_with_candidates(project: Project) -> None:
    flow = chain(project)
    name = f"Which of {flow.name}?"
    ids = [run_id(run_state(flow, question=name)) for _ in range(2)]
    several = run_here("logs", name)
    assert several.exit_code == 1
    assert f"several runs are meant by `{name}`" in several.stderr
    assert all(f"{each}  {flow.name}  Completed" in several.stderr for each in ids)
    none = run_here("trace", f"{flow.name} and no other")
    assert none.exit_code == 1
    assert f"there is no run `{flow.name} and no other` of a flow of ragbraid; the newest are:" in none.stderr


def test_following_shows_what_is_logged_meanwhile_and_ends_as_the_run_does(project: Project) -> None:
    flow = chain(project, "stuck")
    module = project.module(flow)
    failure: list[RunError] = []

    def run() -> None:
        try:
            flow.run_traced(question="Will it end?", engine="prefect")
        except RunError as error:
            failure.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,))
    thread.start()
    try:
        assert module.STARTED.wait(60)
        (found,) = listed(flow)
        follower, left = (start("logs", found["id"], "-f", folder=project.folder) for _ in range(2))
        assert follower.stdout is not None
        assert left.stdout is not None
        assert "Beginning flow run" in follower.stdout.readline()
        assert "Beginning flow run" in left.stdout.readline()
        left.send_signal(signal.SIGINT)
        assert left.communicate()[1] == ""
        assert left.returncode == 130
    finally:
        module.RELEASE.set()
        thread.join()
    stdout, stderr = follower.communicate()
    assert follower.returncode == 0
    assert "Finished in state Completed()" in stdout.splitlines()[-1]
    assert stderr.startswith("Will it end?: Completed after ")
    assert failure == []


def test_a_server_that_does_not_answer_or_is_not_named_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, project: Project
) -> None:
    from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    monkeypatch.chdir(project.folder)
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api", PREFECT_CLIENT_MAX_RETRIES: 0}):
        for command in (("runs",), ("logs", "latest"), ("trace", "latest")):
            away = run_here(*command)
            assert away.exit_code == 1
            assert "the Prefect API at http://127.0.0.1:9/api does not answer" in away.stderr
    monkeypatch.delenv("PREFECT_API_URL")
    monkeypatch.setenv("PREFECT_HOME", str(project.folder))
    assert "no Prefect API is configured" in run_here("runs").stderr
    assert "the trace latest cannot be read" in run_here("trace", "latest").stderr
