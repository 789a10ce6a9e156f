"""Ingestions as deployments on a real Prefect server: turns at one knowledge base, missed schedules, what a run says."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import subprocess
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cli_parts import EXAMPLES, bind, embedding_server, start
from remote_parts import web_server

from ragbraid.flows.api import Flow, load
from ragbraid.flows.prefect_turns import knowledge_bases_written
from ragbraid.flows.resources import shared_pool

# Prefect's engine asks for the default result storage with a client that it does not close.
pytestmark = [pytest.mark.prefect, pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]

DOCS = Path(__file__).parents[2] / "docs"
NODES = '''
import threading

from ragbraid import DocumentSet, node

STARTED = threading.Event()
RELEASE = threading.Event()


@node("hold.documents", blocking=True)
def hold(documents: DocumentSet) -> DocumentSet:
    """Keep the documents until they are released."""
    STARTED.set()
    RELEASE.wait(120)
    return documents
'''
INGEST = """
    inputs: {folder: {type: path, default: docs}}
    nodes:
      load: {use: load.files, path: $folder, pattern: "*.md"}
      chunk: {use: chunk.headings, size: 900}
      index: {use: index.upsert, cleanup: scoped_full}
    flow: load -> chunk -> index
    outputs: $index
"""
HELD = INGEST.replace("nodes:\n", "nodes:\n      hold: {use: hold.documents}\n").replace("load ->", "load -> hold ->")
QUERY = """
    inputs: {question: str = oil}
    nodes: {find: {use: retrieve.dense, top_k: 3}}
    outputs: $find
"""
SCHEDULED = "deploy: {schedule: {cron: '0 * * * *'}}"

Scenario = Callable[[Any, Sequence[Any]], Awaitable[None]]


@pytest.fixture
def folder(tmp_path: Path, prefect_api: Any) -> Iterator[Path]:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/pump.md").write_text("# Pump\n\nThe pump needs oil.\n")
    (tmp_path / "my_nodes.py").write_text(NODES)
    with embedding_server() as server:
        bind(tmp_path, server.base_url)
        project = tmp_path / "ragbraid.toml"
        project.write_text('nodes = ["my_nodes.py"]\n' + project.read_text())
        yield tmp_path
        shared_pool().close()


def flow_in(folder: Path, text: str, more: str = "") -> Flow:
    name = f"turns_{uuid.uuid4().hex[:8]}"
    path = folder / f"{name}.yaml"
    path.write_text(f"ragbraid: 1\nname: {name}\n{more}\n{inspect.cleandoc(text)}\n")
    return load(path)


def module_of(flow: Flow) -> Any:
    contract = flow.catalogue.find_node("hold.documents")
    assert contract is not None
    return inspect.getmodule(contract.function)


async def until(client: Any, run_id: Any, *names: str) -> Any:
    for _ in range(900):
        found = await client.read_flow_run(run_id)
        if found.state.name in names:
            return found
        assert not found.state.is_final(), found.state
        await asyncio.sleep(0.1)
    raise AssertionError(f"{found.state} is none of {names}")


async def plan_runs(client: Any, deployment_id: Any, since: datetime, count: int) -> list[Any]:
    """Have the server plan scheduled runs in the past, as it leaves them when nobody takes any; returns their ids."""
    span = {"start_time": since.isoformat(), "end_time": (since + timedelta(days=1)).isoformat()}
    before = {run.id for run in await client.read_flow_runs(limit=200)}
    answer = await client._client.post(
        f"/deployments/{deployment_id}/schedule", json={**span, "min_runs": count, "max_runs": count}
    )
    answer.raise_for_status()
    planned = [run for run in await client.read_flow_runs(limit=200) if run.deployment_id == deployment_id]
    return [run.id for run in planned if run.auto_scheduled and run.id not in before]


def while_served(flows: Sequence[Flow], scenario: Scenario, before: Scenario | None = None) -> None:
    """Deploy flows, let `before` play, and then a scenario while they are served in this process."""
    from prefect.client.orchestration import get_client

    from ragbraid.flows.deployments import Target, load_specs
    from ragbraid.flows.prefect_deploy import deploy
    from ragbraid.flows.prefect_serve import Server

    async def work() -> None:
        loaded = load_specs([Path(flow.plan.file) for flow in flows], Target(served=True))
        ids = [step.deployment_id for step in await deploy([spec for _, spec in loaded])]
        served = {id_: flow for id_, (flow, _) in zip(ids, loaded, strict=True) if id_ is not None}
        stop = asyncio.Event()
        async with get_client() as client:
            if before is not None:
                await before(client, ids)
            serving = asyncio.create_task(Server(served, limit=8, poll_seconds=0.25).run(stop))
            try:
                await scenario(client, ids)
            finally:
                stop.set()
                await serving

    asyncio.run(work())


def test_ingestions_into_one_knowledge_base_take_turns_and_queries_do_not_wait(folder: Path) -> None:
    held, quick, query = flow_in(folder, HELD), flow_in(folder, INGEST, SCHEDULED), flow_in(folder, QUERY)
    nodes = module_of(held)
    now = datetime.now(UTC)

    async def scenario(client: Any, ids: Sequence[Any]) -> None:
        first = await client.create_flow_run_from_deployment(ids[1])
        assert (await until(client, first.id, "Completed")).state.message == "1 added"
        (folder / "docs/gate.md").write_text("# Gate\n\nThe gate closes at nine.\n")
        holder = await client.create_flow_run_from_deployment(ids[0])
        while not nodes.STARTED.is_set():
            await asyncio.sleep(0.05)
        waiting = await client.create_flow_run_from_deployment(ids[1])
        found = await until(client, waiting.id, "AwaitingKnowledgeBase")
        name = (await client.read_flow_run(holder.id)).name
        assert found.state.message == f"waits for the run `{name}` to finish, which writes the same knowledge base"
        asked = await client.create_flow_run_from_deployment(ids[2])
        await until(client, asked.id, "Completed")
        [earlier] = await plan_runs(client, ids[1], now - timedelta(hours=4), 1)
        await until(client, earlier, "AwaitingKnowledgeBase")
        [later] = await plan_runs(client, ids[1], now - timedelta(hours=2), 1)
        await until(client, later, "AwaitingKnowledgeBase")
        assert (await until(client, earlier, "Cancelled")).state.message.startswith("missed: the run of ")
        nodes.RELEASE.set()
        assert (await until(client, holder.id, "Completed")).state.message == "1 added, 1 unchanged"
        assert (await until(client, waiting.id, "Completed")).state.message == "2 unchanged"
        assert (await until(client, later, "Completed")).state.message == "2 unchanged"

    while_served([held, quick, query], scenario)


def test_a_run_of_another_process_waits_too_and_begins_when_the_holder_is_cancelled(folder: Path) -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags

    from ragbraid.flows.prefect_history import RunQuery, list_runs

    held, quick = flow_in(folder, HELD), flow_in(folder, INGEST)
    [limit] = knowledge_bases_written(quick)
    nodes = module_of(held)

    async def work() -> None:
        async with get_client() as client:
            holder = asyncio.create_task(held.prefect(return_state=True))
            while not nodes.STARTED.is_set():
                await asyncio.sleep(0.05)
            process = start("ingest", quick.plan.file, "--engine", "prefect", folder=folder)
            run = await first_run_of(client, quick)
            await until(client, run.id, "AwaitingKnowledgeBase")
            [listed] = await list_runs(RunQuery(flows=(quick.name,), states=("awaiting-knowledge-base",)))
            assert (listed.id, listed.name.endswith("/docs")) == (run.id, True)
            holder.cancel()
            await asyncio.gather(holder, return_exceptions=True)
            assert (await until(client, run.id, "Completed")).state.message == "1 added"
            stdout, stderr = await asyncio.to_thread(process.communicate)
            assert process.returncode == 0, stdout + stderr
            assert (await client.read_global_concurrency_limit_by_name(limit)).active_slots == 0
            tagged = await client.read_flow_runs(flow_run_filter=FlowRunFilter(tags=FlowRunFilterTags(all_=[limit])))
            assert {each.id for each in tagged} >= {run.id}
        nodes.RELEASE.set()

    asyncio.run(work())


async def first_run_of(client: Any, flow: Flow) -> Any:
    from prefect.client.schemas.filters import FlowFilter, FlowFilterName

    for _ in range(600):
        if found := await client.read_flow_runs(flow_filter=FlowFilter(name=FlowFilterName(any_=[flow.name]))):
            return found[0]
        await asyncio.sleep(0.1)
    raise AssertionError(f"no run of {flow.name} began")


def test_of_missed_schedules_the_newest_run_stands_for_all_and_runs_of_people_are_kept(folder: Path) -> None:
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId
    from prefect.states import Scheduled

    flow = flow_in(folder, INGEST, SCHEDULED)
    now = datetime.now(UTC)

    async def before(client: Any, ids: Sequence[Any]) -> None:
        await plan_runs(client, ids[0], now - timedelta(hours=5), 5)
        await client.create_flow_run_from_deployment(
            ids[0], state=Scheduled(scheduled_time=now - timedelta(hours=4, minutes=30))
        )

    async def scenario(client: Any, ids: Sequence[Any]) -> None:
        only = FlowRunFilter(deployment_id=FlowRunFilterDeploymentId(any_=[ids[0]]))
        due = []
        for _ in range(600):
            found = await client.read_flow_runs(flow_run_filter=only)
            due = [run for run in found if run.expected_start_time <= now]
            if all(run.state.is_final() for run in due):
                break
            await asyncio.sleep(0.1)
        planned = sorted((run for run in due if run.auto_scheduled), key=lambda run: run.expected_start_time)
        assert len(planned) >= 4
        *missed, newest = planned
        assert newest.state.is_completed(), newest.state
        assert {run.state.type.value for run in missed} == {"CANCELLED"}
        hour = newest.expected_start_time.strftime("%Y-%m-%d %H:%M UTC")
        before_it = planned[-2].expected_start_time.strftime("%Y-%m-%d %H:%M UTC")
        assert planned[-2].state.message == f"missed: the run of {hour} stands for that of {before_it}"
        assert [run.state.type.value for run in due if not run.auto_scheduled] == ["COMPLETED"]
        again = await client.set_flow_run_state(missed[0].id, Scheduled(name="AwaitingRetry"), force=True)
        assert again.status.value == "ACCEPT"
        await until(client, missed[0].id, "Completed")

    while_served([flow], scenario, before)


def test_the_example_reports_each_source_and_fails_only_where_it_shall(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey, LogFilter, LogFilterFlowRunId

    name = f"sync_{uuid.uuid4().hex[:8]}"
    text = (EXAMPLES / "sync.yaml").read_text().replace("name: sync", f"name: {name}")
    (folder / f"{name}.yaml").write_text(text.replace("data/handbook", "docs"))
    flow = load(folder / f"{name}.yaml")
    (folder / "docs/gate.md").write_text("# Gate\n\nThe gate closes at nine.\n")

    async def scenario(client: Any, ids: Sequence[Any]) -> None:
        async def run(**inputs: Any) -> Any:
            made = await client.create_flow_run_from_deployment(ids[0], parameters=inputs)
            made_ids.append(made.id)
            return (await until(client, made.id, "Completed", "Failed")).state

        made_ids: list[Any] = []
        assert (await run()).message == "2 added"
        (folder / "docs/pump.md").unlink()
        (folder / "docs/gate.md").write_text("# Gate\n\nThe gate closes at ten.\n")
        (folder / "docs/new.md").write_text("# New\n\nA new page.\n")
        (folder / "docs/bad.md").write_bytes(b"\0")
        assert (await run()).message == "1 added, 1 updated, 1 deleted, 1 failed"
        failed = await run(allowed_failures=0)
        refused = (
            "does not keep `ensure: ${ out.failed <= allowed_failures }`: 2 unchanged, 1 failed; bad.md: It is a binary"
        )
        assert (failed.name, refused in failed.message) == ("Failed", True), failed.message
        warned: list[str] = []
        for _ in range(300):  # logs are sent in batches
            logged = await client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=made_ids)))
            warned = [line.message for line in logged if line.level == logging.WARNING]
            if warned:
                break
            await asyncio.sleep(0.1)
        assert warned == ["failed: bad.md: It is a binary file (it holds NUL bytes)."]
        key = ArtifactFilter(key=ArtifactFilterKey(any_=[f"{name.replace('_', '-')}-ingestion"]))
        history = sorted(await client.read_artifacts(artifact_filter=key), key=lambda each: each.created)
        assert len(history) == 3
        assert "| bad.md | failed |" in history[2].data
        for line in ("| gate.md | updated |", "| pump.md | deleted |", "| new.md | added |", "| bad.md | failed |"):
            assert line in history[1].data

    while_served([flow], scenario)
    # Not at all where an earlier test has set logging up, whose console this one cannot see.
    assert capfd.readouterr().err.count("- failed: bad.md") <= 1


def test_an_ingestion_that_fails_or_is_late_calls_a_webhook(folder: Path, prefect_api: Any, tmp_path: Path) -> None:
    import prefect
    from prefect.blocks.webhook import Webhook
    from prefect.client.orchestration import get_client
    from prefect.states import Late

    flow = flow_in(folder, INGEST)
    mark = uuid.uuid4().hex[:8]
    got: list[dict[str, Any]] = []

    def receive(handler: Any) -> None:
        got.append(json.loads(handler.rfile.read(int(handler.headers["Content-Length"]))))
        handler.send_response(204)
        handler.end_headers()

    def calls() -> dict[str, dict[str, Any]]:
        return {"late" if "is late" in call["text"] else "failed": call for call in got}

    async def work() -> None:
        hook = Webhook(url=f"{web.url}/hook", headers={"Content-Type": "application/json"})
        block = await hook.save(f"alert-{mark}")
        text = (DOCS / "deploy/alert.yaml").read_text()
        text = text.replace("00000000-0000-0000-0000-000000000000", str(block))
        file = tmp_path / "alert.yaml"
        file.write_text(text.replace("ingestion", f"ingestion-{mark}"))
        command = [sys.executable, "-m", "prefect", "automation", "create", "--from-file", str(file)]
        made = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
        assert made.returncode == 0, made.stdout + made.stderr
        async with get_client() as client:
            try:
                for _ in range(20):  # the server takes note of a new automation a little later
                    with prefect.tags(f"ingestion-{mark}"):
                        state: Any = await flow.prefect(folder=str(folder / 'no "such" folder'), return_state=True)
                    assert state.is_failed()
                    await client.create_flow_run(flow.prefect, tags=[f"ingestion-{mark}"], state=Late())
                    for _ in range(30):
                        if len(calls()) == 2:
                            return
                        await asyncio.sleep(0.1)
            finally:
                for each in await client.read_automations():
                    if mark in each.name:
                        await client.delete_automation(each.id)
                await client.delete_block_document(block)

    with web_server(tmp_path) as web:
        web.rules["/hook"] = receive
        asyncio.run(work())
    assert {call["text"].startswith(f"{flow.name}, run ") for call in got} == {True}
    assert 'no "such" folder` does not exist' in calls()["failed"]["text"]
    assert all("/runs/flow-run/" in call["run"] for call in calls().values())
    assert calls().keys() == {"failed", "late"}
