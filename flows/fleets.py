"""Processes beside this one that run the items of maps: what a task runner must be able to do, and those that are open.

A fleet is opened once in a process and serves all its runs, so that its workers keep flows compiled and resources open.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from ragbraid.flows.task_runners import RunnerPlace
from ragbraid.registry.errors import RagbraidError, ServiceError, SettingsError

_logger = logging.getLogger(__name__)

START_SECONDS = 60.0
"""How long the first worker of a cluster may take to be there."""


class ContentLostError(ServiceError):
    """An errand could not begin or end because what it needs went with a worker that died: it can be sent again."""


class Fleet(Protocol):
    """The processes of one task runner. Every method may block and is called from worker threads."""

    def is_alive(self) -> bool:
        """Whether the connection to it stands."""
        ...

    def slots(self) -> int:
        """Return how many errands its workers carry out at the same time; 0 while it has no worker.

        Raises:
            ServiceError: it does not answer.
        """
        ...

    def share(self, content: bytes, *, with_all: bool) -> Any:
        """Send a large content once, and return what stands for it among the arguments of `submit`.

        Args:
            content: what is sent.
            with_all: whether every worker is going to need it.
        """
        ...

    def submit(self, name: str, work: Callable[..., bytes], *arguments: Any) -> Future[bytes]:
        """Have a function called by a worker. What the returned future raises is a RagbraidError.

        Args:
            name: what the cluster's own pages call it.
            work: a function that workers can import.
            arguments: what it is called with; what `share` returned arrives as the content.
        """
        ...

    def end(self, futures: list[Future[bytes]], run_id: str) -> None:
        """End what was submitted, begun or not.

        Args:
            futures: those that `submit` returned.
            run_id: under which the workers know it, see `ragbraid.flows.remote_worker.end_errands`.
        """
        ...

    def close(self) -> None:
        """Let the processes go: end those that were started here, leave those of an address alone."""
        ...


_fleets: dict[RunnerPlace, Fleet] = {}
_lock = threading.Lock()


def open_fleet(place: RunnerPlace) -> Fleet:
    """Return the fleet of a task runner, started or connected to where it is not open yet. Blocks.

    Raises:
        SettingsError: the runner's package is not installed.
        ServiceError: it cannot be reached.
    """
    with _lock:
        found = _fleets.get(place)
        if found is not None and found.is_alive():
            return found
        if found is not None:
            _close(found)
            del _fleets[place]
        fleet = _fleets[place] = _start(place)
        return fleet


def close_fleets() -> None:
    """Close every fleet that is open in this process; called when the interpreter ends."""
    with _lock:
        for fleet in _fleets.values():
            _close(fleet)
        _fleets.clear()


def _start(place: RunnerPlace) -> Fleet:
    try:
        if place.name == "dask":
            from ragbraid.flows.fleet_dask import DaskFleet

            fleet: Fleet = DaskFleet(place.address)
        else:
            from ragbraid.flows.fleet_ray import RayFleet

            fleet = RayFleet(place.address)
    except ImportError as error:
        raise SettingsError(
            f"the task runner {place.name} cannot be loaded: {error}", hint=f"pip install 'ragbraid[{place.name}]'"
        ) from error
    except RagbraidError:
        raise
    except Exception as error:  # a cluster may fail in any way
        where = place.address or "this machine"
        raise ServiceError(
            f"the task runner {place.name} cannot be started on {where}: {type(error).__name__}: {error}"
        ) from error
    # Ours must be called before those that the runner's package has registered when it was imported.
    atexit.unregister(close_fleets)
    atexit.register(close_fleets)
    return fleet


def _close(fleet: Fleet) -> None:
    try:
        fleet.close()
    except Exception as error:  # noqa: BLE001 - nobody waits for it any more
        _logger.warning("a task runner could not be closed: %s", error)
