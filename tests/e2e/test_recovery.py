from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from recovery_parts import Shop, cancel, deploy, make_pool, retry, served, until, until_ended, worker

pytestmark = [pytest.mark.prefect, pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]


@pytest.fixture
def shop(tmp_path: Path, prefect_api: Any) -> Shop:
    return Shop(tmp_path, prefect_api)


def by_worker(shop: Shop) -> AbstractContextManager[Any]:
    pool = make_pool(shop)
    deploy(shop, pool)
    return worker(shop, pool)


@pytest.mark.parametrize("way", [served, by_worker], ids=["serve", "process-worker"])
def test_a_retry_repeats_only_what_had_not_finished(
    shop: Shop, way: Callable[[Shop], AbstractContextManager[Any]]
) -> None:
    shop.write()
    shop.break_at("some a+++++y", "all a+++++z+")
    import time
    with way(shop):
        t=time.monotonic()
        run = shop.begin()
        failed = until_ended(run)
        print(failed.state, failed.run_count, time.monotonic()-t)
        print(shop.take_done())
        shop.break_at()
        shop.hold()
        t=time.monotonic()
        retry(run)
        shop.until_held()
        print(shop.take_done(), time.monotonic()-t)
        t=time.monotonic()
        cancel(run)
        cancelled = until_ended(run)
        print(cancelled.state, time.monotonic()-t)
        shop.release()
        retry(run)
        done = until_ended(run)
        print(done.state, done.run_count, done.tags)
        print(shop.take_done())
    print(shop.log_of(run))
