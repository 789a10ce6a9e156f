"""Asking a model about many things at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


async def for_each(items: Sequence[T], work: Callable[[T], Awaitable[None]], *, concurrency: int) -> None:
    """Do some work for every item, several at once, beginning them in order.

    The first exception ends everything that is under way and is raised.
    """
    waiting = deque(items)

    async def go_on() -> None:
        while waiting:
            await work(waiting.popleft())

    workers = [asyncio.create_task(go_on()) for _ in range(min(concurrency, len(waiting)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
