"""Processes that are killed with -9 in the middle of a run: the run can be retried and holds no slot.

That marks of processes are told apart: below, without a server. Containers and other machines: `docs/operation.md`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cli_parts import run_here, start
from recovery_parts import STEPS, Shop, deploy, make_pool, retry, served, state_of, until_ended, wait_for, worker

# Prefect's engine asks for the default result storage with a client that it does not close.
pytestmark = [pytest.mark.prefect, pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]

ONE_AT_A_TIME = STEPS + "deploy: {concurrency: 1}\n"


@pytest.fixture
def shop(tmp_path: Path, prefect_api: Any) -> Shop:
    return Shop(tmp_path, prefect_api)


@contextmanager
def own_worker(shop: Shop) -> Iterator[subprocess.Popen[str]]:
    """Start a worker of ours; its pool is made by the first one."""
    process = start("worker", "--pool", f"own-{shop.name}", "--create-pool", folder=shop.folder, env=shop.environment)
    try:
        wait_for(
            lambda: run_here("deploy", shop.folder / f"{shop.name}.yaml", "--pool", f"own-{shop.name}").exit_code == 0
        )
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.mark.parametrize("way", [served, own_worker], ids=["serve", "worker"])
def test_a_run_whose_process_was_killed_is_found_by_the_next_one_and_retried(
    shop: Shop, way: Callable[[Shop], Any]
) -> None:
    shop.write(ONE_AT_A_TIME)
    shop.hold()
    with way(shop) as process:
        run = shop.begin()
        shop.until_held()
        shop.take_done()
        process.kill()
        process.wait()
    assert (state_of(run).name, shop.slots_taken()) == ("Running", 1)
    shop.release()
    with way(shop):
        crashed = until_ended(run)
        assert (crashed.state.name, shop.slots_taken()) == ("Crashed", 0)
        assert crashed.state.message.startswith("the process that ran it was killed; Retry starts it again")
        retry(run)
        assert until_ended(run).state.is_completed()
    assert shop.take_done() == ["end a+++++x++ a+++++y++ a+++++z++"]
    assert shop.slots_taken() == 0


def test_a_run_whose_child_of_a_process_worker_was_killed_ends_as_crashed_and_is_retried(shop: Shop) -> None:
    shop.write(ONE_AT_A_TIME)
    shop.hold()
    pool = make_pool(shop)
    deploy(shop, pool)
    with worker(shop, pool) as process:
        run = shop.begin()
        shop.until_held()
        shop.take_done()
        for child in children_of(process.pid):
            os.kill(child, signal.SIGKILL)
        assert until_ended(run).state.name == "Crashed"
        assert (state_of(run).name, shop.slots_taken()) == ("Crashed", 0)
        shop.release()
        retry(run)
        if until_ended(run).state.name == "Crashed":  # Prefect's worker tells it once more, and took the retry back
            retry(run)
        assert until_ended(run).state.is_completed()
    assert "end a+++++x++ a+++++y++ a+++++z++" in (done := shop.take_done())
    assert len(set(done)) == 1


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in listed.stdout.split()]


def test_the_mark_of_a_process_tells_whether_that_process_has_ended() -> None:
    from ragbraid.flows.prefect_orphans import has_ended, process_mark

    code = "from ragbraid.flows.prefect_orphans import process_mark; print(process_mark(), flush=True); input()"
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    mark = f"taken by `ragbraid serve` {other.stdout.readline().strip()} (0a1b2c3d)"
    assert not has_ended(mark)
    other.communicate("\n")
    assert has_ended(mark)
    assert not has_ended(process_mark())
    assert has_ended(process_mark() + "0"), "another process has got the number"
    for elsewhere in (
        "on elsewhere, process 1 of 2 since 3",
        process_mark().replace(" of ", " of 9"),
        "",
        "Submitting",
    ):
        assert not has_ended(f"taken by `ragbraid serve` {elsewhere}")
