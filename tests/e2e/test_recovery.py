"""Runs that failed, were cancelled or lost their process, on a real Prefect server, and what *Retry* then does.

Where else recovery is shown:

- a retry by the flow's own policy, and the keys of results: `test_prefect_runner.py`, `test_prefect_blocks.py`;
- an API that is lost: `test_recovery_lost.py`, `test_prefect_lost.py`, `test_serve.py`;
- cancelled model calls and ingestions: `test_recovery_cancel.py`;
- processes that were killed: `test_recovery_killed.py`; the knowledge base under `kill -9`: `test_crash_safety.py`;
- what states say: `test_recovery_states.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from prefect_parts import Project
from recovery_parts import STEPS, Shop, cancel, deploy, make_pool, retry, served, until_ended, worker

from ragbraid.flows.api import Flow

# Prefect's engine asks for the default result storage with a client that it does not close.
pytestmark = [pytest.mark.prefect, pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]


@pytest.fixture
def shop(tmp_path: Path, prefect_api: Any) -> Shop:
    return Shop(tmp_path, prefect_api)


def worked(shop: Shop) -> AbstractContextManager[Any]:
    """Deploy the flow to a pool of processes and start a worker, which gives every run a fresh process."""
    pool = make_pool(shop)
    deploy(shop, pool)
    return worker(shop, pool)


@pytest.mark.parametrize("way", [served, worked], ids=["serve", "process worker"])
def test_a_run_that_is_retried_repeats_only_what_had_not_finished(
    shop: Shop, way: Callable[[Shop], AbstractContextManager[Any]]
) -> None:
    shop.write()
    shop.break_at("some a+++++y", "all a+++++z+")  # an item that may be missing, and one that may not
    with way(shop):
        run = shop.begin()
        assert until_ended(run).state.is_failed()
        before = ["begin a", "more a+", "more a++", "more a+++", "sub a++++", "some a+++++x", "some a+++++z"]
        assert shop.take_done() == sorted([*before, "some a+++++y", "all a+++++x+", "all a+++++z+"])

        shop.break_at()
        shop.hold()
        retry(run)
        shop.until_held()
        assert shop.take_done() == ["all a+++++y+", "all a+++++z+", "some a+++++y"]
        cancel(run)
        assert until_ended(run).state.name == "Cancelled"

        shop.release()
        retry(run)
        done = until_ended(run)
    assert (done.state.name, done.run_count) == ("Completed", 3)
    assert shop.take_done() == ["end a+++++x++ a+++++y++ a+++++z++"]


def test_a_retry_after_a_new_deployment_runs_the_new_version_and_takes_over_only_what_is_the_same(shop: Shop) -> None:
    shop.write()
    shop.break_at("all a+++++x+")
    with served(shop):
        run = shop.begin()
        assert until_ended(run).state.is_failed()
    shop.take_done()

    shop.write(STEPS.replace("max_steps: 3", "max_steps: 2").replace("name: all, text", "name: every, text"))
    with served(shop):
        retry(run)
        done = until_ended(run)
    assert done.state.is_completed(), done.state.message
    said = "a++++"  # one round less
    some = [f"some {said}{letter}" for letter in "xyz"]
    every = [f"every {said}{letter}+" for letter in "xyz"]
    assert shop.take_done() == sorted(["sub a+++", *some, *every, "end a++++x++ a++++y++ a++++z++"])
    assert "goes on as version:" in shop.log_of(run)


async def keys_of(flow: Flow) -> dict[str, str | None]:
    """Return the keys under which a run keeps what its steps gave."""
    from ragbraid.flows.prefect_tasks import StepTasks

    tasks = StepTasks(flow.plan, flow.resources)
    return {step.name: await tasks.key_of(step, step.name, {"text": "x"}, "run") for step in flow.plan.body.steps}


def test_what_a_step_gave_is_not_taken_where_another_model_is_bound_or_its_code_was_changed(tmp_path: Path) -> None:
    project = Project(tmp_path)

    def keys(model: str) -> dict[str, str | None]:
        project.configure(f'[resources.reranker]\nuse = "mine.locked"\nmodel = "{model}"\n')
        flow = project.flow(
            """
            inputs: {text: str}
            nodes: {tagged: {use: mine.tag}, rated: {use: mine.rate}}
            outputs: {tagged: $tagged, rated: $rated}
            """,
            "keyed",
        )
        return asyncio.run(keys_of(flow))

    first, again, other = keys("a"), keys("a"), keys("b")
    assert None not in first.values()
    assert again == first
    assert (other["tagged"] == first["tagged"], other["rated"] == first["rated"]) == (True, False)
    nodes = tmp_path / "my_nodes.py"
    nodes.write_text(nodes.read_text().replace("return text + mark", "return mark + text"))
    assert keys("a")["tagged"] != first["tagged"]
