"""Runs whose process was killed: nobody can report their end any more, and a slot of their deployment stays taken.

Whoever takes a run leaves a mark of its process in the run's state. Where `ragbraid serve` or `ragbraid worker` finds
the mark of a process of the same machine that lives no more, it ends the run as crashed; *Retry* then starts it again.
A mark of another machine, or of another container, says nothing: there an automation must tell (docs/operation.md).

Imports prefect: import it inside functions.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Container
from contextlib import suppress
from pathlib import Path
from socket import gethostname
from time import monotonic
from typing import Any
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Crashed

SECONDS_BETWEEN_LOOKS = 15.0
"""How long a run may be without its process before another one that lives looks for it."""

_MARK = re.compile(r"\bon (?P<host>\S+), process (?P<pid>\d+) of (?P<space>\S+) since (?P<began>\S+)")


def under_way() -> FlowRunFilterState:
    """Return the filter of the states in which a run has a process."""
    states: list[Any] = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
    return FlowRunFilterState(type=FlowRunFilterStateType(any_=states))


def process_mark() -> str:
    """Return words that name this process among all that ever run on this machine and in its containers."""
    pid = os.getpid()
    return f"on {gethostname()}, process {pid} of {_space()} since {_began(pid)}"


def has_ended(mark: str) -> bool:
    """Whether a text holds the mark of a process of this machine that lives no more."""
    found = _MARK.search(mark)
    if found is None or (found["host"], found["space"]) != (gethostname(), _space()):
        return False
    return _began(int(found["pid"])) != found["began"]


class Orphans:
    """Finds runs without a process, now and then, and ends them.

    Args:
        find: asks the server for the runs under way that are this process's concern.
        tell: called with one sentence for each run that was ended.
    """

    def __init__(self, find: Callable[[PrefectClient], Any], tell: Callable[[str], None]) -> None:
        self._find = find
        self._tell = tell
        self._next = 0.0

    async def end(self, client: PrefectClient, ours: Container[UUID]) -> None:
        """End the runs whose process was killed; does nothing where it has looked for them a moment ago."""
        if monotonic() < self._next:
            return
        for run in await self._find(client):
            if run.id not in ours:
                with suppress(ObjectNotFound):  # it was deleted meanwhile
                    await self._end_orphan(client, run)
        self._next = monotonic() + SECONDS_BETWEEN_LOOKS

    async def _end_orphan(self, client: PrefectClient, run: FlowRun) -> None:
        states = await client.read_flow_run_states(run.id)
        claims = [state.message or "" for state in states if state.type == StateType.PENDING]
        if not claims or not has_ended(claims[-1]) or _has_process_of_its_own(run):
            return
        if states[-1].type == StateType.CANCELLING:
            reason = "the run was cancelled, and the process that ran it was killed"
            await client.set_flow_run_state(run.id, Cancelled(message=reason), force=True)
        else:
            reason = "the process that ran it was killed; Retry starts it again, and repeats only what had not finished"
            await client.set_flow_run_state(run.id, Crashed(message=reason), force=True)
        self._tell(f"run {run.name}: {reason}")


def _has_process_of_its_own(run: FlowRun) -> bool:
    """Whether the run was given a process that still lives; its worker may have been killed alone."""
    host, _, pid = (run.infrastructure_pid or "").partition(":")
    return host == gethostname() and pid.isdigit() and _began(int(pid)) != ""


def _space() -> str:
    """Name what numbers of processes count in: a container has its own."""
    try:
        return os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        return "-"


def _began(pid: int) -> str:
    """Return when a process began, in ticks since the machine did, or nothing where there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    except OSError:
        pass
    if Path("/proc/self/stat").exists():
        return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        return "-"
    return "-"
