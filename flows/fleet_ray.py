"""Ray as a task runner, through prefect-ray. Imports prefect and ray: import it inside functions."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any

import ray
from prefect_ray import RayTaskRunner

from ragbraid.registry.errors import RagbraidError, ServiceError

_QUIET = {"include_dashboard": False, "log_to_driver": False, "configure_logging": False}


class RayFleet:
    """The workers of a Ray cluster: those of an address, or one process for each core of this machine.

    It is prefect-ray's `RayTaskRunner` that starts or finds the cluster; errands are plain remote functions, as in
    `ragbraid.flows.fleet_dask.DaskFleet`.
    """

    def __init__(self, address: str | None) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        self._runner: RayTaskRunner[Any] = RayTaskRunner(address=address, init_kwargs={} if address else dict(_QUIET))
        self._runner.__enter__()
        self._submitted: dict[Future[bytes], Any] = {}

    def is_alive(self) -> bool:
        """Whether Ray is connected."""
        return bool(ray.is_initialized())

    def slots(self) -> int:
        """Return the number of processors of the cluster."""
        try:
            return int(ray.cluster_resources().get("CPU", 0))
        except Exception as error:
            raise ServiceError(f"the Ray cluster does not answer: {type(error).__name__}: {error}") from error

    def share(self, content: bytes, *, with_all: bool) -> Any:
        """Put a content into the object store, from where each machine takes it once."""
        return ray.put(content)

    def submit(self, name: str, work: Callable[..., bytes], *arguments: Any) -> Future[bytes]:
        """Have a function called by a worker; one that dies meanwhile is replaced by another, at most three times."""
        reference = ray.remote(work).options(name=name, max_retries=3).remote(*arguments)
        outcome: Future[bytes] = Future()
        self._submitted[outcome] = reference
        reference.future().add_done_callback(lambda done: self._settle(outcome, done))
        return outcome

    def end(self, futures: list[Future[bytes]], run_id: str) -> None:
        """Take what was not begun from the workers, and interrupt on them what was."""
        for future in futures:
            if (reference := self._submitted.get(future)) is not None:
                ray.cancel(reference, force=False)

    def close(self) -> None:
        """Leave the cluster, and end it if it was started here."""
        self._runner.__exit__(None, None, None)

    def _settle(self, outcome: Future[bytes], done: Future[bytes]) -> None:
        self._submitted.pop(outcome, None)
        error = done.exception()
        with suppress(InvalidStateError):  # nobody waits for it any more
            if error is None:
                outcome.set_result(done.result())
            else:
                outcome.set_exception(_as_service_error(error))


def _as_service_error(error: BaseException) -> RagbraidError:
    if isinstance(error, ray.exceptions.RayTaskError) and isinstance(error.cause, RagbraidError):
        return error.cause
    if isinstance(error, ray.exceptions.WorkerCrashedError):
        return ServiceError(
            "the worker process died each of 4 times that it was tried: look at its log, it may have had too little "
            "memory"
        )
    if isinstance(error, ray.exceptions.TaskCancelledError):
        return ServiceError("it was cancelled on the Ray cluster")
    return ServiceError(f"the Ray cluster failed: {type(error).__name__}: {error}")
