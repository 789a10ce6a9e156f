import asyncio
import threading
from contextlib import aclosing
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import prefect
import pytest
from answering_parts import ANSWER, DRAFT, GOOD, answering
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowFilter, FlowFilterName, FlowRunFilter, FlowRunFilterParentTaskRunId
from prefect.client.schemas.objects import FlowRun
from prefect_parts import records_of

import ragbraid
from ragbraid.flows.scripted_rules import Reply, Rule
from ragbraid.registry.errors import RunError, ServiceError

# Prefect's engine asks for the default result storage with a client that it does not close.
pytestmark = [pytest.mark.prefect, pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]


@pytest.fixture
def name() -> str:
    return f"answering_{uuid4().hex[:8]}"


async def flow_run_of(state: Any) -> FlowRun:
    async with get_client() as client:
        return await client.read_flow_run(state.state_details.flow_run_id)


async def children_of(parent: UUID) -> list[FlowRun]:
    """Read the flow runs that a flow run started as sub-flows: each stands behind a task run of it."""
    tasks = await records_of(parent, 1)
    ids = FlowRunFilterParentTaskRunId(any_=[task.id for task in tasks])
    async with get_client() as client:
        return await client.read_flow_runs(flow_run_filter=FlowRunFilter(parent_task_run_id=ids))


# -- streaming ---------------------------------------------------------------------------------------------------------


def test_a_run_on_prefect_streams_the_same_events(prefect_api: Any, tmp_path: Path, name: str) -> None:
    async def both(flow: ragbraid.Flow) -> list[list[ragbraid.RunEvent]]:
        inputs = {"question": "How often?"}
        return [[event async for event in flow.astream(inputs, engine=engine)] for engine in ("prefect", "inline")]

    with answering(tmp_path, GOOD, name=name):
        flow = ragbraid.load(tmp_path / f"{name}.yaml")
        on_prefect, inline = asyncio.run(both(flow))
        in_a_thread = list(flow.stream(question="How often?", engine="prefect"))
    for events in (on_prefect, inline, in_a_thread):
        assert [event.kind for event in events if event.kind != "text"] == ["started", "finished", "result"]
        assert "".join(event.text for event in events if event.kind == "text") == ANSWER
    assert on_prefect[-1].result is not None
    assert on_prefect[-1].result.outputs.text == ANSWER


def test_leaving_a_stream_ends_the_flow_run_and_the_call_of_the_model(
    prefect_api: Any, tmp_path: Path, name: str
) -> None:
    left = threading.Event()

    def hold(number: int) -> None:
        assert number < 7 or left.wait(60)

    async def leave(flow: ragbraid.Flow) -> None:
        async with aclosing(flow.astream(question="How often?", engine="prefect")) as events:
            async for event in events:
                if event.kind == "text":
                    break
        left.set()
        async with get_client() as client:
            (run,) = await client.read_flow_runs(flow_filter=FlowFilter(name=FlowFilterName(any_=[name])))
        assert run.state is not None
        assert run.state.is_cancelled()  # Prefect's word for a run whose process was told to stop

    with answering(tmp_path, lambda _: Reply(DRAFT, before_piece=hold), name=name) as server:
        asyncio.run(leave(ragbraid.load(tmp_path / f"{name}.yaml")))
    assert server.requests[0].given_up


# -- in another flow ---------------------------------------------------------------------------------------------------


def test_as_a_sub_flow_it_is_a_run_of_its_own_below_the_other_one(prefect_api: Any, tmp_path: Path, name: str) -> None:
    async def run(flow: ragbraid.Flow) -> None:
        @prefect.flow(name=f"outer-{name}")
        async def outer(question: str) -> str:
            answer = await flow.prefect(question=question)
            return str(answer.text)

        state: Any = await outer("How often?", return_state=True)
        assert await state.result() == ANSWER
        (child,) = await children_of(state.state_details.flow_run_id)
        assert child.state is not None
        assert child.state.is_completed()
        assert [run.name for run in await records_of(child.id, 1)] == ["answer"]

    with answering(tmp_path, GOOD, name=name):
        asyncio.run(run(ragbraid.load(tmp_path / f"{name}.yaml")))


def test_the_failure_of_a_sub_flow_is_the_sentence_of_the_outer_one(
    prefect_api: Any, tmp_path: Path, name: str
) -> None:
    async def run(flow: ragbraid.Flow) -> None:
        @prefect.flow(name=f"outer-{name}")
        async def outer(question: str) -> Any:
            return await flow.prefect(question=question)

        state: Any = await outer("How often?", return_state=True)
        assert state.is_failed()
        assert "The key was not accepted (401)" in state.message
        with pytest.raises(ServiceError, match="The key was not accepted") as caught:
            await state.result()
        assert caught.value.step == "answer"

    with answering(tmp_path, Rule(fault="unauthorized"), name=name):
        asyncio.run(run(ragbraid.load(tmp_path / f"{name}.yaml")))


def test_inline_in_a_flow_or_a_task_it_makes_no_run_of_its_own(prefect_api: Any, tmp_path: Path, name: str) -> None:
    async def run(flow: ragbraid.Flow) -> None:
        @prefect.task
        async def ask(question: str) -> str:
            return str((await flow.arun(question=question)).text)

        @prefect.flow(name=f"outer-{name}")
        async def outer(question: str) -> tuple[str, str]:
            return str((await flow.arun(question=question)).text), await ask(question)

        state: Any = await outer("How often?", return_state=True)
        assert await state.result() == (ANSWER, ANSWER)
        runs = await records_of(state.state_details.flow_run_id, 1)
        assert [run.name.partition("-")[0] for run in runs] == ["ask"]

    with answering(tmp_path, GOOD, name=name):
        asyncio.run(run(ragbraid.load(tmp_path / f"{name}.yaml")))


def test_sync_flows_and_tasks_run_it_too_and_fail_with_its_sentence(
    prefect_api: Any, tmp_path: Path, name: str
) -> None:
    with answering(
        tmp_path, Rule.model_validate({"reply": DRAFT, "call": [1, 2, 3]}), Rule(fault="not_found"), name=name
    ):
        flow = ragbraid.load(tmp_path / f"{name}.yaml")

        @prefect.task
        def ask(question: str) -> str:
            return str(flow.run(question=question).text)

        @prefect.flow(name=f"outer-{name}")
        def outer(question: str) -> list[str]:
            return [str(flow.run(question=question).text), ask(question)]

        @prefect.flow(name=f"around-{name}")
        def around(question: str) -> str:
            return str(asyncio.run(flow.prefect(question=question)).text)

        assert outer("How often?") == [ANSWER, ANSWER]
        state: Any = around("How often?", return_state=True)
        assert state.result() == ANSWER
        assert len(asyncio.run(children_of(state.state_details.flow_run_id))) == 1
        with pytest.raises(RunError, match=r"was refused \(404\)"):
            outer("How often?")
