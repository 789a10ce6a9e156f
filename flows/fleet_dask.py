"""Dask as a task runner, through prefect-dask. Imports prefect and distributed: import it inside functions."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from typing import Any
from uuid import uuid4

import distributed
from prefect_dask import DaskTaskRunner

from ragbraid.flows.fleets import ContentLostError
from ragbraid.flows.remote_worker import end_errands
from ragbraid.registry.errors import RagbraidError, ServiceError

_END_SECONDS = 5.0


class DaskFleet:
    """The workers of a Dask cluster: those of an address, or one process for each core of this machine.

    It is prefect-dask's `DaskTaskRunner` that starts or finds the cluster. Errands go through its client as plain
    functions: as Prefect tasks each would cost the server a task run, and every worker would have to reach the API.
    """

    def __init__(self, address: str | None) -> None:
        if address is None:
            cluster = {"n_workers": os.cpu_count() or 1, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
            self._runner = DaskTaskRunner(cluster_kwargs=cluster)
        else:
            self._runner = DaskTaskRunner(address=address)
        self._runner.__enter__()
        try:
            self._client = self._runner.client
        except BaseException:
            self._runner.__exit__(None, None, None)
            raise
        self._submitted: dict[Future[bytes], distributed.Future] = {}

    def is_alive(self) -> bool:
        """Whether the scheduler is connected."""
        return bool(self._client.status == "running")

    def slots(self) -> int:
        """Return the number of threads of all workers."""
        try:
            return sum(self._client.nthreads().values())
        except (OSError, TimeoutError, distributed.comm.CommClosedError) as error:
            raise ServiceError(f"the Dask scheduler does not answer: {error}") from error

    def share(self, content: bytes, *, with_all: bool) -> Any:
        """Put a content into the memory of the workers."""
        return self._client.scatter(content, broadcast=with_all, hash=False)

    def submit(self, name: str, work: Callable[..., bytes], *arguments: Any) -> Future[bytes]:
        """Have a function called by a worker; one that dies meanwhile is replaced by another, at most three times."""
        future = self._client.submit(work, *arguments, key=f"{name}-{uuid4().hex}", pure=False)
        outcome: Future[bytes] = Future()
        self._submitted[outcome] = future
        future.add_done_callback(lambda done: self._settle(outcome, done))
        return outcome

    def end(self, futures: list[Future[bytes]], run_id: str) -> None:
        """Take what was not begun from the workers, and cancel on them what was."""
        begun = [self._submitted[future] for future in futures if future in self._submitted]
        self._client.cancel(begun, force=True)
        self._client.run(end_errands, run_id, on_error="ignore")

    def close(self) -> None:
        """Leave the cluster, and end it if it was started here."""
        self._runner.__exit__(None, None, None)

    def _settle(self, outcome: Future[bytes], future: distributed.Future) -> None:
        self._submitted.pop(outcome, None)
        try:
            result = future.result(timeout=_END_SECONDS) if future.status == "finished" else None
            failure = None if result is not None else _failure(future)
        except Exception as error:  # noqa: BLE001 - handed to whoever waits
            result, failure = None, _as_service_error(error)
        with suppress(InvalidStateError):  # nobody waits for it any more
            if failure is not None:
                outcome.set_exception(failure)
            elif result is not None:
                outcome.set_result(result)


def _failure(future: distributed.Future) -> RagbraidError:
    if future.status == "cancelled":
        return ContentLostError("it was cancelled on the Dask cluster, or what it needs was lost there")
    error = future.exception(timeout=_END_SECONDS)
    return _as_service_error(error)


def _as_service_error(error: BaseException | None) -> RagbraidError:
    if isinstance(error, RagbraidError):
        return error
    if isinstance(error, distributed.KilledWorker):
        return ServiceError(
            f"the worker process died each of {error.allowed_failures + 1} times that it was tried: look at its log, "
            "it may have had too little memory"
        )
    if isinstance(error, CancelledError | asyncio.CancelledError):
        return ServiceError("the Dask cluster was lost")
    return ServiceError(f"the Dask cluster failed: {type(error).__name__}: {error}")
