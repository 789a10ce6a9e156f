"""`ragbraid deploy` and `undeploy` on a real Prefect server, and a worker that runs what was deployed."""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import pytest
from cli_parts import run_here
from click.testing import Result
from prefect_parts import Project

from ragbraid.flows.api import Flow

# Prefect's engine asks for the default result storage with a client that it does not close.
pytestmark = [pytest.mark.prefect, pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]

T = TypeVar("T")

GREET = """
    about: Put marks behind a text.
    inputs:
      text: {type: str, default: hello, about: what to mark}
      mark: {type: str, default: "!", choices: ["!", "?"]}
    nodes:
      a: {use: mine.tag, text: $text, mark: $mark}
    outputs: $a
    deploy:
      schedule: {cron: "30 2 * * *", timezone: Europe/Paris}
      concurrency: 2
      tags: [demo]
"""


@pytest.fixture
def project(tmp_path: Path, prefect_api: Any) -> Project:
    return Project(tmp_path)


@pytest.fixture(scope="module")
def pool(prefect_server: Any) -> str:
    name = f"pool-{uuid.uuid4().hex[:8]}"
    command = [sys.executable, "-m", "prefect", "work-pool", "create", name, "--type", "process"]
    subprocess.run(command, check=True, capture_output=True, env=environment(prefect_server))
    return name


def environment(server: Any) -> dict[str, str]:
    return {**os.environ, "PREFECT_API_URL": server.url, "PREFECT_HOME": str(server.home), "DO_NOT_TRACK": "1"}


def ask(question: Callable[[Any], Awaitable[T]]) -> T:
    """Ask the server something."""
    from prefect.client.orchestration import get_client

    async def work() -> T:
        async with get_client() as client:
            return await question(client)

    return asyncio.run(work())


def deployed(flow: Flow) -> Any:
    return ask(lambda client: client.read_deployment_by_name(f"{flow.name}/{flow.name}"))


def all_named(name: str) -> list[Any]:
    return [found for found in ask(lambda client: client.read_deployments(limit=200)) if found.name == name]


def succeeded(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(result: Result, *parts: str) -> None:
    """The command ended with a sentence that says this, and nothing of a traceback."""
    assert result.exit_code in (1, 2), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    for part in parts:
        assert part in result.stderr


def test_a_flow_is_registered_once_and_updated_in_place(project: Project, pool: str) -> None:
    flow = project.flow(GREET)
    file = Path(flow.plan.file)
    result = run_here("deploy", file, "--pool", pool, "--tag", "mine", "--json")
    (told,) = json.loads(succeeded(result))
    assert (told["action"], told["version"], told["local_modules"]) == ("create", flow.plan.hash[:12], ["my_nodes.py"])
    first = deployed(flow)
    assert (first.version, first.description) == (flow.plan.hash[:12], "Put marks behind a text.")
    assert (first.tags, first.work_pool_name, first.enforce_parameter_schema) == (["demo", "mine"], pool, True)
    assert first.global_concurrency_limit.limit == 2
    (schedule,) = first.schedules
    assert (schedule.schedule.cron, schedule.schedule.timezone) == ("30 2 * * *", "Europe/Paris")
    mark = first.parameter_openapi_schema["properties"]["mark"]
    assert (mark["enum"], mark["default"]) == (["!", "?"], "!")

    assert "unchanged" in succeeded(run_here("deploy", file, "--pool", pool, "--tag", "mine"))
    file.write_text(file.read_text().replace('"?"]', '"?", "."]').replace("30 2", "0 4"))
    diff = succeeded(run_here("deploy", file, "--pool", pool, "--tag", "mine", "--diff"))
    assert "would be updated" in diff
    assert "schedule: 30 2 * * * (Europe/Paris) -> 0 4 * * * (Europe/Paris)" in diff
    assert "input mark: as deployed -> changed" in diff
    assert "concurrency" not in diff
    assert deployed(flow) == first
    assert "updated" in succeeded(run_here("deploy", file, "--pool", pool, "--tag", "mine"))
    second = deployed(flow)
    assert second.id == first.id
    assert second.version != first.version
    assert len(all_named(flow.name)) == 1


def test_what_an_operator_set_on_the_server_stays(project: Project, pool: str) -> None:
    from prefect.client.schemas.actions import DeploymentUpdate

    flow = project.flow(GREET)
    file = Path(flow.plan.file)
    succeeded(run_here("deploy", file, "--pool", pool))
    first = deployed(flow)

    async def change(client: Any) -> None:
        await client.update_deployment_schedule(first.id, first.schedules[0].id, active=False)
        settings = DeploymentUpdate(
            job_variables={"env": {"WHERE": "here"}}, parameters={"text": "theirs"}, tags=first.tags,
            parameter_openapi_schema=first.parameter_openapi_schema,
        )  # fmt: skip
        await client.update_deployment(first.id, settings)

    ask(change)
    file.write_text(file.read_text().replace("30 2", "0 4"))
    assert "it is switched off on the server and stays so" in succeeded(run_here("deploy", file, "--pool", pool))
    second = deployed(flow)
    assert (second.schedules[0].schedule.cron, second.schedules[0].active) == ("0 4 * * *", False)
    assert second.job_variables == {"env": {"WHERE": "here"}}
    assert second.parameters == {"text": "theirs"}


def test_the_server_refuses_a_run_with_a_wrong_or_unknown_input(project: Project, pool: str) -> None:
    from prefect.exceptions import PrefectHTTPStatusError

    flow = project.flow(GREET)
    succeeded(run_here("deploy", flow.plan.file, "--pool", pool))
    found = deployed(flow)
    for parameters in ({"mark": "#"}, {"txt": "x"}):
        with pytest.raises(PrefectHTTPStatusError, match=r"4\d\d"):
            ask(lambda client, given=parameters: client.create_flow_run_from_deployment(found.id, parameters=given))


def test_a_worker_in_a_fresh_process_runs_what_was_deployed_and_the_run_names_it(
    project: Project, pool: str, prefect_api: Any, tmp_path: Path
) -> None:
    flow = project.flow(GREET)
    succeeded(run_here("deploy", flow.plan.file, "--pool", pool))
    Path(flow.plan.file).write_text("changed: [")
    found = deployed(flow)
    run = ask(lambda client: client.create_flow_run_from_deployment(found.id, parameters={"text": "hi", "mark": "?"}))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool, "--type", "process", "--run-once"]
    worker = subprocess.run(
        command, check=False, cwd=elsewhere, env=environment(prefect_api), capture_output=True, text=True
    )
    after = ask(lambda client: client.read_flow_run(run.id))
    assert after.state.is_completed(), worker.stderr
    assert f"version:{flow.plan.hash[:12]}" in after.tags
    assert after.flow_version == flow.plan.hash[:12]


def test_a_flow_that_cannot_be_made_where_it_runs_fails_with_the_sentence(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.flows import load_flow_from_entrypoint

    from ragbraid.flows.bundle import load_with_bundle
    from ragbraid.flows.deployed import BUNDLE_VARIABLE, ENTRYPOINT, receive

    _, bundle = load_with_bundle(project.flow(GREET).plan.file)
    monkeypatch.setenv(BUNDLE_VARIABLE, "")
    receive(bundle.pack(), bundle.version, ["text", "mark"])
    (project.folder / "my_nodes.py").rename(project.folder / "gone.py")
    flow: Any = load_flow_from_entrypoint(ENTRYPOINT)
    state = asyncio.run(flow(text="a", return_state=True))
    assert state.is_failed()
    assert "the flow needs the nodes of my_nodes.py, which did not travel with it" in state.message


def test_undeploy_asks_and_removes_and_says_when_there_is_nothing(project: Project, pool: str) -> None:
    flow = project.flow(GREET)
    succeeded(run_here("deploy", flow.plan.file, "--pool", pool))
    refused(run_here("undeploy", flow.name), "nobody is there to ask; give --yes")
    assert len(all_named(flow.name)) == 1
    assert "removed" in succeeded(run_here("undeploy", flow.name, "--yes"))
    assert all_named(flow.name) == []
    refused(run_here("undeploy", flow.name, "--yes"), f"there is no deployment of a flow named `{flow.name}`")


def test_nothing_is_registered_where_one_of_several_flows_is_wrong(project: Project, pool: str) -> None:
    good = project.flow(GREET)
    wrong = project.folder / "wrong.yaml"
    wrong.write_text(Path(good.plan.file).read_text().replace("mine.tag", "mine.tga").replace(good.name, "wrong"))
    refused(run_here("deploy", good.plan.file, wrong, "--pool", pool), "RB101", "wrong.yaml:")
    twin = project.folder / "twin.yaml"
    twin.write_text(Path(good.plan.file).read_text())
    refused(run_here("deploy", good.plan.file, twin, "--pool", pool), f"are both named `{good.name}`")
    refused(run_here("deploy", good.plan.file, "--pool", "no-such"), "there is no work pool `no-such`; there are: `")
    refused(run_here("deploy", good.plan.file), "has no work pool to run in")
    refused(run_here("deploy", good.plan.file, "--pool", pool, "--cron", "often"), "`often` is no cron expression")
    wrong_zone = ("--cron", "0 3 * * *", "--timezone", "Europe/Pariss")
    refused(run_here("deploy", good.plan.file, "--pool", pool, *wrong_zone), "Europe/Paris`?")
    assert all_named(good.name) == []


def test_a_schedule_on_the_command_line_needs_defaults_too(project: Project, pool: str) -> None:
    flow = project.flow("""
        inputs: {text: str}
        nodes: {a: {use: mine.tag, text: $text}}
        outputs: $a
    """)
    refused(
        run_here("deploy", flow.plan.file, "--pool", pool, "--cron", "0 3 * * *"),
        "a scheduled run has no value for `text`",
    )


def test_a_deployment_that_something_else_made_is_left_alone(project: Project, pool: str) -> None:
    flow = project.flow(GREET)

    async def make(client: Any) -> None:
        flow_id = await client.create_flow_from_name(flow.name)
        await client.create_deployment(flow_id, name=flow.name, entrypoint="theirs.py:flow")

    ask(make)
    for command in (("deploy", flow.plan.file, "--pool", pool), ("undeploy", flow.name, "--yes")):
        refused(run_here(*command), "that ragbraid did not make, and it is left as it is")
    assert deployed(flow).entrypoint == "theirs.py:flow"


@pytest.fixture
def refusing_api(prefect_api: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An API that lets nobody in."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    class Refuse(http.server.BaseHTTPRequestHandler):
        def refuse(self) -> None:
            self.send_response(401)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST = refuse

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refuse)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/api"
    monkeypatch.setenv("PREFECT_API_URL", url)
    with temporary_settings(updates={PREFECT_API_URL: url}):
        yield url
    server.shutdown()
    server.server_close()


def test_an_api_that_refuses_the_key_is_a_sentence(project: Project, refusing_api: str) -> None:
    flow = project.flow(GREET)
    result = run_here("deploy", flow.plan.file, "--pool", "any")
    refused(result, f"the Prefect API at {refusing_api} refuses the key (HTTP 401)", "PREFECT_API_KEY")


def test_an_api_that_is_not_there_or_not_configured_is_a_sentence(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    flow = project.flow(GREET)
    url = "http://127.0.0.1:9/api"
    monkeypatch.setenv("PREFECT_API_URL", url)
    with temporary_settings(updates={PREFECT_API_URL: url}):
        refused(run_here("deploy", flow.plan.file, "--pool", "any"), f"the Prefect API at {url} does not answer")
    monkeypatch.delenv("PREFECT_API_URL")
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    refused(run_here("deploy", flow.plan.file, "--pool", "any"), "no Prefect API is configured")


@pytest.mark.parametrize(
    ("cron", "zone", "start", "expected"),
    [
        # 02:30 does not exist in Paris on 29 March 2026, and exists twice on 25 October.
        ("30 2 * * *", "Europe/Paris", "2026-03-28T00:00", ["03-28 02:30", "03-29 03:30", "03-30 02:30"]),
        ("30 2 * * *", "Europe/Paris", "2026-10-24T00:00", ["10-24 02:30", "10-25 02:30", "10-26 02:30"]),
        ("0 3 * * *", "Europe/Paris", "2026-03-28T00:00", ["03-28 03:00", "03-29 03:00", "03-30 03:00"]),
        ("0 3 * * *", "Asia/Shanghai", "2026-03-28T00:00", ["03-28 03:00", "03-29 03:00", "03-30 03:00"]),
    ],
)
def test_a_schedule_keeps_its_local_time_across_a_change_of_the_clocks(
    cron: str, zone: str, start: str, expected: list[str]
) -> None:
    from prefect.server.schemas.schedules import CronSchedule

    local = ZoneInfo(zone)
    schedule = CronSchedule(cron=cron, timezone=zone)
    dates = asyncio.run(schedule.get_dates(3, start=datetime.fromisoformat(start).replace(tzinfo=local)))
    assert [date.astimezone(local).strftime("%m-%d %H:%M") for date in dates] == expected
