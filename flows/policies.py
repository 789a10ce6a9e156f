"""What surrounds the call of a step: cache, retry and timeout."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ragbraid.dsl.plan import Retry
from ragbraid.flows.cache import NoStableFormError, StepCache, result_key
from ragbraid.flows.threads import THREADS
from ragbraid.registry.errors import RunError, SettingsError

if TYPE_CHECKING:
    from ragbraid.flows.compiled import CompiledStep
    from ragbraid.flows.runner import ResourceLookup
    from ragbraid.flows.trace import StepTrace

Attempt = Callable[[], Awaitable[Any]]


async def with_retries(attempt: Attempt, retry: Retry, timeout_seconds: float | None, entry: StepTrace) -> Any:
    """Return what the first successful attempt gives; every attempt has the whole timeout.

    Raises:
        RunError: the last attempt's, or the first one whose kind is not among those that are tried again.
    """
    delay = retry.delay
    for number in range(1, retry.attempts):
        try:
            return await within(attempt, timeout_seconds, entry.path)
        except RunError as error:
            if error.kind not in retry.on:
                raise
            entry.notes.append(f"attempt {number} of {retry.attempts} failed ({error.kind}): {error}")
        await asyncio.sleep(delay)
        delay *= retry.backoff
    return await within(attempt, timeout_seconds, entry.path)


async def within(attempt: Attempt, timeout_seconds: float | None, path: str) -> Any:
    """Await an attempt for so long at most.

    Raises:
        RunError: of kind `timeout`.
    """
    if timeout_seconds is None:
        return await attempt()
    try:
        async with asyncio.timeout(timeout_seconds):
            return await attempt()
    except TimeoutError:  # an attempt turns a TimeoutError of its own into a RunError
        message = f"`{path}` did not finish within {timeout_seconds:g} s"
        raise RunError(message, kind="timeout", step=path) from None


class CachedResult:
    """The place of one step's result in a cache, once its key is known.

    Reading, writing and making keys happens in worker threads: it touches files and may open resources.
    """

    def __init__(self, cache: StepCache, step: CompiledStep, entry: StepTrace) -> None:
        self._cache = cache
        self._step = step
        self._entry = entry
        self._key: str | None = None

    async def load(self, resources: ResourceLookup) -> Any:
        """Return a `Stored` result or None. Where there can be no key, a note in the trace says why."""
        step, entry = self._step, self._entry
        lifetime = step.policy.cache_seconds
        lifetime = math.inf if lifetime is None else lifetime

        def look_up() -> Any:
            prints = [(parameter, resources.fingerprint(name, role)) for parameter, name, role in step.resources]
            self._key = result_key(step.node, entry.inputs, prints)
            return self._cache.load(self._key, step.node, lifetime)

        try:
            return await THREADS.call(look_up)
        except NoStableFormError as error:
            entry.notes.append(f"not cached: {error}")
            return None

    async def store(self, value: Any) -> None:
        """Keep a result. Where that cannot be done the result stands, and a note in the trace says why."""
        key = self._key
        if key is None:
            return
        try:
            await THREADS.call(lambda: self._cache.store(key, self._step.node, value))
        except (NoStableFormError, SettingsError) as error:
            self._entry.notes.append(f"not cached: {error}")
