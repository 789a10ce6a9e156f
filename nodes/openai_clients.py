"""OpenAI clients per event loop: connections made on one loop cannot be used on another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openai import AsyncOpenAI

OPENAI_URL = "https://api.openai.com/v1"
_NO_KEY = "none"


@dataclass(frozen=True)
class ClientSettings:
    """What a client is made from; key and headers stay out of its repr."""

    base_url: str
    api_key: str | None = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    timeout_seconds: float
    max_concurrency: int


@dataclass(frozen=True)
class _LoopClient:
    client: AsyncOpenAI
    slots: asyncio.Semaphore
    lifetime: AsyncGenerator[None, None]


class LoopClients:
    """One client, with its connections and its limit of concurrent requests, for each event loop that asks."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._clients: dict[asyncio.AbstractEventLoop, _LoopClient] = {}
        self._lock = threading.Lock()

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[AsyncOpenAI]:
        """Wait for one of the running loop's `max_concurrency` slots and lend its client."""
        loop = asyncio.get_running_loop()
        entry = self._clients.get(loop)
        if entry is None:
            entry = await self._open(loop)
        async with entry.slots:
            yield entry.client

    def open_loops(self) -> int:
        """Return for how many event loops a client is open."""
        return len(self._clients)

    async def _open(self, loop: asyncio.AbstractEventLoop) -> _LoopClient:
        client = _make_client(self._settings)
        entry = _LoopClient(client, asyncio.Semaphore(self._settings.max_concurrency), self._lifetime(loop, client))
        with self._lock:
            # A loop that ended without `shutdown_asyncgens` leaves its entry behind.
            for ended in [other for other in self._clients if other.is_closed()]:
                del self._clients[ended]
            self._clients[loop] = entry
        await anext(entry.lifetime)
        return entry

    async def _lifetime(self, loop: asyncio.AbstractEventLoop, client: AsyncOpenAI) -> AsyncGenerator[None, None]:
        """Stay suspended while the loop lives.

        `asyncio.run` and `asyncio.Runner` close suspended asynchronous generators before they close the loop, which is
        the one moment at which the connections can still be closed in order. Nobody else would: a resource outlives
        the loops of the runs that use it.
        """
        try:
            yield
        finally:
            with self._lock:
                self._clients.pop(loop, None)
            await client.close()


def _make_client(settings: ClientSettings) -> AsyncOpenAI:
    from openai import AsyncOpenAI

    client = AsyncOpenAI(
        base_url=settings.base_url,
        api_key=settings.api_key or _NO_KEY,
        default_headers=dict(settings.headers),
        timeout=settings.timeout_seconds,
        max_retries=0,
    )
    if settings.base_url != OPENAI_URL:
        # The client takes these from the environment; they are nobody else's business.
        client.organization = client.project = None
    return client
