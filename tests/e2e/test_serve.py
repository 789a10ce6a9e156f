"""`ragbraid serve` on a real Prefect server: runs in one process, cancelled runs, Ctrl-C."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from cli_parts import run_here, start
from prefect_parts import Project
from relay import Relay

from ragbraid.flows.api import Flow

# Prefect's engine asks for the default result storage with a client that it does not close.
pytestmark = [pytest.mark.prefect, pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]

QUICK = """
    inputs: {text: str = hello}
    nodes: {a: {use: mine.tag, text: $text}}
    outputs: $a
"""
STUCK = """
    inputs: {text: str = hello}
    nodes: {a: {use: mine.stuck, text: $text}}
    outputs: $a
"""
MEET = """
    inputs: {text: str = hello}
    nodes: {a: {use: mine.meet, text: $text}}
    outputs: $a
"""

Scenario = Callable[[Any, Sequence[Any]], Awaitable[None]]
"""What a test does while flows are served: it gets a client and the ids of the deployments."""


@pytest.fixture
def project(tmp_path: Path, prefect_api: Any) -> Project:
    return Project(tmp_path)


async def until(client: Any, run: Any, *names: str) -> Any:
    """Return the run when its state has one of these names."""
    for _ in range(600):
        found = await client.read_flow_run(run.id)
        if found.state.name in names:
            return found
        await asyncio.sleep(0.1)
    raise AssertionError(f"{found.state} is none of {names}")


def while_served(
    flows: Sequence[Flow], scenario: Scenario, *, limit: int = 4, servers: int = 1, told: list[str] | None = None
) -> list[str]:
    """Serve flows in this process while a scenario plays; return what the server told, which `told` has meanwhile."""
    from prefect.client.orchestration import get_client

    from ragbraid.flows.deployments import Target, load_specs
    from ragbraid.flows.prefect_deploy import deploy
    from ragbraid.flows.prefect_serve import Server

    told = [] if told is None else told

    async def work() -> None:
        loaded = load_specs([Path(flow.plan.file) for flow in flows], Target(served=True))
        ids = [step.deployment_id for step in await deploy([spec for _, spec in loaded])]
        served = {id_: flow for id_, (flow, _) in zip(ids, loaded, strict=True) if id_ is not None}
        stop = asyncio.Event()
        serving = [
            asyncio.create_task(Server(served, limit=limit, poll_seconds=0.25, tell=told.append).run(stop))
            for _ in range(servers)
        ]
        try:
            async with get_client() as client:
                await scenario(client, ids)
        finally:
            stop.set()
            await asyncio.gather(*serving)

    asyncio.run(work())
    return told


def test_runs_are_run_at_the_same_time_in_one_process_and_name_their_version(project: Project) -> None:
    flow = project.flow(MEET)

    async def scenario(client: Any, ids: Sequence[Any]) -> None:
        # Two that wait for each other, which neither two processes nor one after the other could do.
        runs = [await client.create_flow_run_from_deployment(ids[0], parameters={"text": text}) for text in "ab"]
        for run in runs:
            found = await until(client, run, "Completed", "Failed", "Crashed")
            assert found.state.is_completed(), found.state.message
            assert f"version:{flow.plan.hash[:12]}" in found.tags

    told = while_served([flow], scenario)
    assert sum("begins" in sentence for sentence in told) == 2


def test_a_run_is_taken_by_one_of_several_that_serve_its_flow(project: Project) -> None:
    flow = project.flow(QUICK)

    async def scenario(client: Any, ids: Sequence[Any]) -> None:
        for run in [await client.create_flow_run_from_deployment(ids[0]) for _ in range(4)]:
            assert (await until(client, run, "Completed", "Failed", "Crashed")).state.is_completed()

    told = while_served([flow], scenario, servers=2)
    assert sum("begins" in sentence for sentence in told) == 4
    assert project.module(flow).COUNTS == {"tag": 4}


def test_a_flow_is_served_as_it_was_when_serving_began(project: Project) -> None:
    flow = project.flow(QUICK)

    async def scenario(client: Any, ids: Sequence[Any]) -> None:
        Path(flow.plan.file).write_text("changed: [")
        run = await client.create_flow_run_from_deployment(ids[0])
        assert (await until(client, run, "Completed", "Failed", "Crashed")).state.is_completed()
        await client.delete_deployment(ids[0])  # serving ends well all the same

    while_served([flow], scenario)


def test_no_more_runs_are_taken_than_the_limit_allows(project: Project) -> None:
    stuck, quick = project.flow(STUCK), project.flow(QUICK)
    release = project.module(stuck).RELEASE

    async def scenario(client: Any, ids: Sequence[Any]) -> None:
        first = await client.create_flow_run_from_deployment(ids[0])
        await until(client, first, "Running")
        second = await client.create_flow_run_from_deployment(ids[1])
        await asyncio.sleep(0.5)
        assert (await client.read_flow_run(second.id)).state.name == "Scheduled"
        release.set()
        assert (await until(client, second, "Completed", "Failed", "Crashed")).state.is_completed()

    while_served([stuck, quick], scenario, limit=1)


def test_a_run_that_is_cancelled_in_the_ui_ends_as_cancelled(project: Project) -> None:
    from prefect.states import Cancelling

    flow = project.flow(STUCK)

    async def scenario(client: Any, ids: Sequence[Any]) -> None:
        run = await client.create_flow_run_from_deployment(ids[0])
        await until(client, run, "Running")
        await client.set_flow_run_state(run.id, Cancelling())
        found = await until(client, run, "Cancelled", "Crashed", "Failed", "Completed")
        await asyncio.sleep(0.3)
        found = await client.read_flow_run(run.id)
        assert (found.state.name, found.state.message) == ("Cancelled", "the run was cancelled")

    try:
        while_served([flow], scenario)
    finally:
        project.module(flow).RELEASE.set()


def test_a_server_that_was_away_is_served_again_when_it_is_back(
    project: Project, prefect_api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    flow = project.flow(QUICK)
    told: list[str] = []
    direct = prefect_api.url
    relay = Relay(int(re.search(r":(\d+)/", direct)[1]))  # type: ignore[index]  # the fixture's own address
    url = f"http://127.0.0.1:{relay.port}/api"
    monkeypatch.setenv("PREFECT_API_URL", url)

    async def scenario(_: Any, ids: Sequence[Any]) -> None:
        from prefect.client.orchestration import get_client

        # A client of our own, with retries: the server's SQLite file answers 503 while another test writes to it.
        with temporary_settings(updates={PREFECT_API_URL: direct, PREFECT_CLIENT_MAX_RETRIES: 5}):
            async with get_client() as client:
                before = await client.create_flow_run_from_deployment(ids[0])
                await until(client, before, "Completed")
                await asyncio.to_thread(relay.cut)
                while not any("trying again" in sentence for sentence in told):
                    await asyncio.sleep(0.1)
                run = await client.create_flow_run_from_deployment(ids[0])
                relay.restore()
                assert (await until(client, run, "Completed", "Failed", "Crashed")).state.is_completed()

    with temporary_settings(updates={PREFECT_API_URL: url, PREFECT_CLIENT_MAX_RETRIES: 3}):
        while_served([flow], scenario, told=told)
    relay.cut()
    assert any(f"the Prefect API at {url} does not answer" in sentence for sentence in told)


def test_a_run_that_fails_leaves_the_others_alone(project: Project) -> None:
    crash = project.flow(QUICK.replace("mine.tag", "mine.crash"))
    quick = project.flow(QUICK)

    async def scenario(client: Any, ids: Sequence[Any]) -> None:
        failed, fine = [await client.create_flow_run_from_deployment(id_) for id_ in ids]
        found = await until(client, failed, "Completed", "Failed", "Crashed")
        assert "cannot do hello" in found.state.message
        assert (await until(client, fine, "Completed", "Failed", "Crashed")).state.is_completed()

    told = while_served([crash, quick], scenario)
    assert any(re.search(r"has ended after .*cannot do hello", sentence) for sentence in told)


def test_ctrl_c_ends_what_is_under_way_and_pauses_the_schedules(project: Project, prefect_api: Any) -> None:
    from prefect.client.orchestration import get_client

    flow = project.flow(STUCK + "    deploy: {schedule: {cron: '0 3 * * *'}}\n")
    env = {"PREFECT_API_URL": prefect_api.url, "PREFECT_HOME": str(prefect_api.home), "DO_NOT_TRACK": "1"}
    process = start("serve", flow.plan.file, folder=project.folder, env=env)
    assert process.stderr is not None
    assert process.stderr.readline().startswith(f"serving {flow.name}, version {flow.plan.hash[:12]}, at 0 3 * * *")

    async def begin() -> Any:
        async with get_client() as client:
            found = await client.read_deployment_by_name(f"{flow.name}/{flow.name}")
            run = await client.create_flow_run_from_deployment(found.id)
            return await until(client, run, "Running")

    async def end(run: Any) -> tuple[Any, Any]:
        async with get_client() as client:
            return await client.read_flow_run(run.id), await client.read_deployment(run.deployment_id)

    try:
        run = asyncio.run(begin())
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    after, deployment = asyncio.run(end(run))
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "stopped; the schedules are paused until the next start" in errors
    assert (after.state.name, after.state.message) == ("Cancelled", "`ragbraid serve` was stopped")
    assert deployment.paused


def test_what_workers_run_is_not_taken_from_them(project: Project) -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate

    flow = project.flow(QUICK)
    pool = f"pool-of-{flow.name}"

    async def make() -> None:
        async with get_client() as client:
            await client.create_work_pool(WorkPoolCreate(name=pool, type="process"))

    asyncio.run(make())
    assert run_here("deploy", flow.plan.file, "--pool", pool).exit_code == 0
    result = run_here("serve", flow.plan.file)
    assert result.exit_code == 1
    assert f"`{flow.name}` is deployed to the work pool `{pool}`" in result.stderr
