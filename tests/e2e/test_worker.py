"""`ragbraid worker` on a real Prefect server: a work pool whose runs share one process, or have one each."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from cli_parts import run_here, start
from prefect_parts import Project
from relay import Relay

from ragbraid.flows.api import Flow

# Prefect's engine asks for the default result storage with a client that it does not close.
pytestmark = [pytest.mark.prefect, pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]

ENDED = ("Completed", "Failed", "Crashed", "Cancelled")
SMALL = """
    inputs: {{text: str = hello}}
    nodes: {{a: {{use: {use}, text: $text}}}}
    outputs: $a
"""
NODES = '''
import os

OPENED = []


GATHERED = threading.Barrier(8)


class Opened:
    identity = "opened"

    def score(self, query, texts):
        return [float(len(OPENED)) for _ in texts]


@resource("mine.opened")
def opened() -> Reranker:
    """Count how often it is opened."""
    OPENED.append(os.getpid())
    return Opened()


@node("mine.where")
def where(text: str) -> str:
    """Name the process."""
    LOGGER.info("%s in %s", text, os.getpid())
    return text


@node("mine.gather", blocking=True)
def gather(text: str) -> str:
    """Wait for seven others."""
    GATHERED.wait(60)
    return text


@node("mine.exit")
def leave(text: str) -> str:
    """End the whole process."""
    os._exit(3)
'''

Scenario = Callable[[Any], Awaitable[None]]


@pytest.fixture
def project(tmp_path: Path, prefect_api: Any) -> Project:
    project = Project(tmp_path)
    with (tmp_path / "my_nodes.py").open("a") as file:
        file.write(NODES)
    return project


@pytest.fixture
def pool(project: Project) -> str:
    """A work pool of our type, made as `ragbraid worker --create-pool` makes it."""
    from ragbraid.flows.prefect_worker import prepare_pool

    name = f"pool-{uuid.uuid4().hex[:8]}"
    asyncio.run(prepare_pool(name, create=True))
    return name


def environment(server: Any) -> dict[str, str]:
    return {
        "PREFECT_API_URL": server.url,
        "PREFECT_HOME": str(server.home),
        "DO_NOT_TRACK": "1",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }


def small(project: Project, use: str, name: str = "") -> Flow:
    return project.flow(SMALL.format(use=use), name)


def deploy(flow: Flow, pool: str) -> None:
    result = run_here("deploy", flow.plan.file, "--pool", pool)
    assert result.exit_code == 0, result.output


def while_worked(
    pool: str, scenario: Scenario, *, limit: int = 8, told: list[str] | None = None, **options: Any
) -> list[str]:
    """Serve a pool in this process while a scenario plays; return what the worker told."""
    from prefect.client.orchestration import get_client

    from ragbraid.flows.prefect_worker import RagbraidWorker, run_worker

    told = [] if told is None else told

    async def work() -> None:
        worker = RagbraidWorker(
            pool, limit=limit, prefetch_seconds=0, create_pool_if_not_found=False, tell=told.append, **options
        )
        stop = asyncio.Event()
        working = asyncio.create_task(run_worker(worker, stop))
        try:
            async with get_client() as client:
                await scenario(client)
        finally:
            stop.set()
            await working

    async def apart() -> None:
        # As the command has it: a worker that finds itself in the main thread moves to another one.
        await asyncio.to_thread(asyncio.run, work())

    asyncio.run(apart())
    return told


async def request(client: Any, flow: Flow, **parameters: Any) -> Any:
    deployment = await client.read_deployment_by_name(f"{flow.name}/{flow.name}")
    return await client.create_flow_run_from_deployment(deployment.id, parameters=parameters)


async def ended(client: Any, run: Any, *names: str) -> Any:
    """Return the run when its state has one of these names."""
    for _ in range(600):
        found = await client.read_flow_run(run.id)
        if found.state.name in (names or ENDED):
            return found
        await asyncio.sleep(0.1)
    raise AssertionError(f"{found.state} is none of {names or ENDED}")


async def completed(client: Any, flow: Flow, **parameters: Any) -> Any:
    found = await ended(client, await request(client, flow, **parameters))
    assert found.state.is_completed(), found.state.message
    return found


def test_two_runs_of_a_deployment_share_what_the_first_one_opened(project: Project, pool: str) -> None:
    project.configure('[resources.reranker]\nuse = "mine.opened"\n')
    flow = small(project, "mine.rate")
    deploy(flow, pool)

    async def scenario(client: Any) -> None:
        await completed(client, flow, text="a")
        await completed(client, flow, text="b")

    while_worked(pool, scenario)
    module = project.module(flow)
    assert module.COUNTS == {"rate": 2}
    assert len(module.OPENED) == 1


def test_a_new_version_is_taken_by_the_next_run_of_a_worker_that_lives_on(project: Project, pool: str) -> None:
    old = small(project, "mine.twice")
    deploy(old, pool)

    async def scenario(client: Any) -> None:
        assert f"version:{old.plan.hash[:12]}" in (await completed(client, old)).tags
        new = await asyncio.to_thread(small, project, "mine.thrice", old.name)
        await asyncio.to_thread(deploy, new, pool)
        assert f"version:{new.plan.hash[:12]}" in (await completed(client, new)).tags

    while_worked(pool, scenario)
    assert project.module(old).COUNTS == {"twice": 1, "thrice": 1}


def test_as_many_runs_as_the_limit_allows_go_on_at_once(project: Project, pool: str) -> None:
    flow = small(project, "mine.gather")
    deploy(flow, pool)

    async def scenario(client: Any) -> None:
        # Each waits for the other seven.
        for run in [await request(client, flow, text=str(number)) for number in range(8)]:
            found = await ended(client, run)
            assert found.state.is_completed(), found.state.message

    told = while_worked(pool, scenario, limit=8)
    assert sum("begins" in sentence for sentence in told) == 8


def test_a_run_beyond_the_limit_waits_and_one_that_is_cancelled_makes_room(project: Project, pool: str) -> None:
    from prefect.states import Cancelling

    stuck, quick = small(project, "mine.stuck"), small(project, "mine.tag")
    deploy(stuck, pool)
    deploy(quick, pool)

    async def scenario(client: Any) -> None:
        first = await request(client, stuck)
        await ended(client, first, "Running")
        second = await request(client, quick)
        await asyncio.sleep(1)
        assert (await client.read_flow_run(second.id)).state.name == "Scheduled"
        await client.set_flow_run_state(first.id, Cancelling())
        found = await ended(client, first, "Cancelled")  # for a moment the engine takes it for a crash
        assert found.state.message == "the run was cancelled"
        assert (await ended(client, second)).state.is_completed()

    try:
        while_worked(pool, scenario, limit=1)
    finally:
        project.module(stuck).RELEASE.set()


def test_what_is_wrong_with_one_run_is_a_sentence_in_its_state_and_leaves_the_worker_alone(
    project: Project, pool: str
) -> None:
    crash, broken, quick = small(project, "mine.crash"), small(project, "mine.tag"), small(project, "mine.tag")
    for flow in (crash, broken, quick):
        deploy(flow, pool)
    module = project.folder / "my_nodes.py"
    text = module.read_text()

    async def scenario(client: Any) -> None:
        found = await ended(client, await request(client, crash))
        assert found.state.name == "Failed"
        assert "cannot do hello" in found.state.message
        module.write_text(text + "import nothing_of_this_name\n")
        found = await ended(client, await request(client, broken))
        assert found.state.name == "Failed"
        assert f"{module}:{text.count(chr(10)) + 1} cannot be loaded: ModuleNotFoundError" in found.state.message
        module.write_text(text)
        await completed(client, quick)

    while_worked(pool, scenario)


def test_a_deployment_that_is_not_ours_is_refused_with_what_to_do(pool: str) -> None:
    async def scenario(client: Any) -> None:
        name = f"foreign-{uuid.uuid4().hex[:8]}"
        flow_id = await client.create_flow_from_name(name)
        deployment = await client.create_deployment(flow_id, name, work_pool_name=pool, entrypoint="foreign.py:flow")
        found = await ended(client, await client.create_flow_run_from_deployment(deployment))
        assert found.state.name == "Failed"
        assert f"`{name}` was not deployed by ragbraid" in found.state.message
        assert "set the job variable `isolation` to `process`" in found.state.message

    while_worked(pool, scenario)


def test_a_worker_is_shown_as_online_with_its_name_and_pool(pool: str) -> None:
    async def scenario(client: Any) -> None:
        for _ in range(100):
            workers = await client.read_workers_for_work_pool(pool)
            if workers:
                break
            await asyncio.sleep(0.1)
        assert [(worker.name, worker.status.value) for worker in workers] == [("mine", "ONLINE")]
        assert (await client.read_work_pool(pool)).type == "ragbraid"

    while_worked(pool, scenario, name="mine")


@pytest.mark.slow
def test_a_run_in_a_process_of_its_own_can_end_that_process_and_nothing_else(project: Project, pool: str) -> None:
    where, leave = small(project, "mine.where"), small(project, "mine.exit")
    for flow in (where, leave):
        deploy(flow, pool)

    async def scenario(client: Any) -> None:
        from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId

        apart = await client.read_deployment_by_name(f"{leave.name}/{leave.name}")
        run = await client.create_flow_run_from_deployment(apart.id, job_variables={"isolation": "process"})
        found = await ended(client, run)
        assert found.state.name == "Crashed"
        assert "status code: 3" in found.state.message
        here = await completed(client, where)
        for _ in range(100):
            logs = await client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[here.id])))
            if any(log.message == f"hello in {os.getpid()}" for log in logs):
                break
            await asyncio.sleep(0.1)
        else:
            raise AssertionError([log.message for log in logs])

    while_worked(pool, scenario)


def test_missing_pools_and_pools_of_other_types_are_refused_with_what_to_do(prefect_api: Any) -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate

    name = f"pool-{uuid.uuid4().hex[:8]}"
    result = run_here("worker", "--pool", name)
    assert result.exit_code == 1
    assert f"there is no work pool `{name}`" in result.stderr
    assert f"prefect work-pool create {name} --type ragbraid" in result.stderr

    async def make() -> None:
        async with get_client() as client:
            await client.create_work_pool(WorkPoolCreate(name=name, type="process"))

    asyncio.run(make())
    result = run_here("worker", "--pool", name)
    assert result.exit_code == 1
    assert f"the work pool `{name}` is of the type `process`" in result.stderr
    assert f"prefect worker start --pool {name}" in result.stderr


def test_sigterm_ends_what_is_under_way_and_marks_it(project: Project, prefect_api: Any) -> None:
    from prefect.client.orchestration import get_client

    pool = f"pool-{uuid.uuid4().hex[:8]}"
    flow = small(project, "mine.stuck")
    env = environment(prefect_api)
    process = start("worker", "--pool", pool, "--create-pool", "--name", "mine", folder=project.folder, env=env)

    async def begin() -> Any:
        async with get_client() as client:
            return await ended(client, await request(client, flow), "Running")

    async def after(run: Any) -> Any:
        async with get_client() as client:
            return await client.read_flow_run(run.id)

    try:
        assert process.stderr is not None
        assert process.stderr.readline() == f"worker `mine` serves the work pool `{pool}`, up to 8 runs at once\n"
        deploy(flow, pool)
        run = asyncio.run(begin())
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    found = asyncio.run(after(run))
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert "stopped; what comes due waits for another worker of the pool" in errors
    assert (found.state.name, found.state.message) == ("Cancelled", "the worker `mine` was stopped")


@pytest.mark.slow
def test_prefects_own_commands_make_such_pools_and_start_their_workers(project: Project, prefect_api: Any) -> None:
    from prefect.client.orchestration import get_client

    pool = f"pool-{uuid.uuid4().hex[:8]}"
    flow = small(project, "mine.tag")

    def prefect(*words: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "prefect", *words],
            check=False,
            env={**os.environ, **environment(prefect_api)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    async def make() -> Any:
        async with get_client() as client:
            return await request(client, flow)

    async def state(run: Any) -> Any:
        async with get_client() as client:
            return (await client.read_flow_run(run.id)).state

    prefect("work-pool", "create", pool, "--type", "ragbraid")
    deploy(flow, pool)
    run = asyncio.run(make())
    prefect("worker", "start", "--pool", pool, "--run-once")  # it waits for what it has begun
    found = asyncio.run(state(run))
    assert found.is_completed(), found.message


@pytest.mark.slow
def test_an_api_that_is_away_is_waited_for(
    project: Project, pool: str, prefect_api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    flow = small(project, "mine.tag")
    deploy(flow, pool)
    told: list[str] = []
    direct = prefect_api.url
    relay = Relay(int(re.search(r":(\d+)/", direct)[1]))  # type: ignore[index]  # the fixture's own address
    url = f"http://127.0.0.1:{relay.port}/api"
    monkeypatch.setenv("PREFECT_API_URL", url)

    async def scenario(_: Any) -> None:
        from prefect.client.orchestration import get_client

        # A client of our own, with retries: the server's SQLite file answers 503 while another test writes to it.
        with temporary_settings(updates={PREFECT_API_URL: direct, PREFECT_CLIENT_MAX_RETRIES: 5}):
            async with get_client() as client:
                await completed(client, flow)
                await asyncio.to_thread(relay.cut)
                while not any("trying again" in sentence for sentence in told):
                    await asyncio.sleep(0.1)
                run = await request(client, flow)
                relay.restore()
                found = await ended(client, run)
                assert found.state.is_completed(), found.state.message

    with temporary_settings(updates={PREFECT_API_URL: url, PREFECT_CLIENT_MAX_RETRIES: 1}):
        while_worked(pool, scenario, told=told)
    relay.cut()
    assert any(f"the Prefect API at {url} does not answer" in sentence for sentence in told)
