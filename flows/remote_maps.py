"""The items of a map in the processes of a task runner: the driver's side; `ragbraid.flows.remote_worker` is the other.

Items go in errands of several that follow each other; each worker runs some of an errand's items at the same time. What
they gave, their steps, their usage and their notes come back and are put together in the order of the items.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from hashlib import sha256
from time import perf_counter
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ragbraid.dsl.plan import BlockStep, Map, Policy
from ragbraid.dsl.walk import branch_reads, map_steps
from ragbraid.flows.blocks import all_or_none
from ragbraid.flows.bundle import bundle_of
from ragbraid.flows.cache import NoStableFormError, canonical
from ragbraid.flows.fleets import START_SECONDS, ContentLostError, Fleet, open_fleet
from ragbraid.flows.parcels import Outside, Parcels, outside_values
from ragbraid.flows.remote_worker import Errand, ErrandReport, ItemReport, Surroundings, run_errand
from ragbraid.flows.runner import RunEvent
from ragbraid.flows.task_runners import RunnerPlace
from ragbraid.flows.threads import THREADS
from ragbraid.flows.trace import Bounded
from ragbraid.registry.errors import LimitError, RagbraidError, RunError, ServiceError

if TYPE_CHECKING:
    from ragbraid.flows.api import Flow
    from ragbraid.flows.compiled import CompiledMap
    from ragbraid.flows.frames import Frame
    from ragbraid.flows.steps import Run
    from ragbraid.flows.trace import StepTrace

SHARED_BYTES = 64 * 1024
"""From this size on, contents go to workers by reference and not among the arguments of every errand."""

MOST_ITEMS = 32
"""How many items an errand holds at most: it is also what is done again when a worker dies."""

ERRANDS_PER_SLOT = 4
"""Into how many errands the items of one slot are split, so that slots which are done early take over from others."""

MOST_RESENDS = 3
"""How often an errand is sent again because what it needs went with a worker that died."""

WATCH_SECONDS = 5.0
"""How long nothing may come back before it is looked whether anybody is working."""

END_SECONDS = 5.0
"""How long a run that ends waits until the workers have been told."""


@dataclass(frozen=True, slots=True)
class Shares:
    """How the items of a map are shared out."""

    size: int
    """How many items an errand has."""
    at_once: int
    """How many of them run at the same time."""
    errands: int
    """How many errands are under way at the same time."""


def share_out(items: int, concurrency: int, slots: int, most: int = MOST_ITEMS) -> Shares:
    """Say how many items go into an errand, so that no more than `concurrency` items are ever under way.

    Bodies that wait (for a model, a store) keep their concurrency: each slot runs its part of it. Bodies that compute
    get errands that are long enough to be worth sending. An errand holds `most` items at most.
    """
    slots = max(1, min(slots, concurrency, items))
    for_each = max(1, concurrency // slots)
    even = -(-items // slots)
    size = min(max(min(-(-even // ERRANDS_PER_SLOT), MOST_ITEMS), min(for_each, even)), most)
    at_once = min(for_each, size)
    return Shares(size, at_once, max(1, min(concurrency // at_once, -(-items // size))))


class RemoteMaps:
    """Runs the items of one flow's maps by a task runner; a `MapRunner` of every run of the flow."""

    def __init__(self, flow: Flow, place: RunnerPlace) -> None:
        self.place = place
        self._flow = flow
        self._parcels = Parcels(flow.plan)
        steps = tuple(map_steps(flow.plan.body))
        self._numbers = {id(step.block): number for number, step in enumerate(steps)}
        # The map itself is tried again as its policy says; an item is not.
        self._item_steps = tuple(replace(step, policy=Policy()) for step in steps)

    @cached_property
    def _bundle(self) -> str:
        # It goes by the runner's own connections, where nothing bounds it as on the Prefect server.
        return bundle_of(self._flow, goes_to="go to the workers").pack(sys.maxsize)

    async def run_items(
        self, block: CompiledMap, items: Sequence[Any], frame: Frame, run: Run, entry: StepTrace
    ) -> list[Any]:
        """Run the items of a map: see `ragbraid.flows.runner.MapRunner`."""
        fleet = await THREADS.call(partial(open_fleet, self.place))
        slots = await self._slots(fleet, entry.path)
        # A task run is an item: what Prefect shows, retries and keeps. Otherwise errands are as long as they may be.
        shares = share_out(len(items), block.concurrency, slots, most=MOST_ITEMS if run.executor is None else 1)
        outside = outside_values(branch_reads(block.planned.branch), frame)
        around = self._surroundings(block.planned, outside, entry.path)
        everywhere = len(items) > shares.size * slots
        surroundings = pickle.dumps(around)
        shared = await THREADS.call(partial(_by_reference, fleet, surroundings, with_all=everywhere))
        step = self._item_steps[around.map_number]
        prints = "" if run.executor is None else await THREADS.call(partial(_fingerprint, outside))
        sent = _MapRun(fleet, self._parcels, self.place, items, run, entry, surroundings, shared, step, prints)
        starts = iter(range(0, len(items), shares.size))

        async def work() -> None:
            for start in starts:
                await sent.send(start, items[start : start + shares.size], shares.at_once)

        try:
            await all_or_none([work() for _ in range(shares.errands)])
        except BaseException:
            await sent.end()
            raise
        finally:
            sent.record()
        return sent.results()

    async def _slots(self, fleet: Fleet, path: str) -> int:
        deadline = perf_counter() + START_SECONDS
        while not (slots := await THREADS.call(fleet.slots)):
            if perf_counter() > deadline:
                raise ServiceError(
                    f"`{path}` waits for a worker of {_shown(self.place)}, and there has been none for "
                    f"{START_SECONDS:.0f} s",
                    step=path,
                    hint="start workers there, or run with the task runner `threads`",
                )
            await asyncio.sleep(0.5)
        return slots

    def _surroundings(self, planned: Map, outside: Outside, path: str) -> Surroundings:
        try:
            packed = self._parcels.pack(outside)
        except Exception as error:
            raise _cannot_travel("what the items read from around them", path, error) from error
        return Surroundings(uuid4().hex, self._bundle, self._numbers[id(planned)], path, packed)


@dataclass
class _MapRun:
    """One run of one map: its errands, and what they brought back."""

    fleet: Fleet
    parcels: Parcels
    place: RunnerPlace
    items: Sequence[Any]
    run: Run
    entry: StepTrace
    surroundings: bytes
    """Pickled, see `ragbraid.flows.remote_worker.Surroundings`."""
    shared: Any
    """The surroundings, or what stands for them."""
    step: BlockStep
    """The map as an executor knows it when it executes an item."""
    prints: str
    """Stands for the surroundings in the key of an item's result; empty where they have no stable form."""
    run_id: str = field(default_factory=lambda: uuid4().hex)
    reports: dict[int, ErrandReport] = field(default_factory=dict)
    """By the place of their first item."""
    futures: list[Future[bytes]] = field(default_factory=list)
    """What is under way, and what was when the run was ended."""
    gave: dict[int, Sequence[tuple[Any, ...]]] = field(default_factory=dict)
    """What the items gave, by the place of the errand's first one: `(value,)`, or `()` for one that is left out."""
    done: int = 0

    async def send(self, start: int, items: Sequence[Any], at_once: int) -> None:
        """Have some items run, and keep what comes back.

        Raises:
            RagbraidError: an item failed, a limit was passed, or the task runner failed.
        """
        executor = self.run.executor
        if executor is None:
            self.gave[start] = await self._send(start, items, at_once)
        else:
            path = f"{self.entry.path}[{start + 1}]"
            # Without a stable form there is no key, and nothing is taken from an earlier attempt of the run.
            inputs = {"item": items[0], "around": self.prints or object()}
            self.gave[start] = await executor.execute(
                self.step, path, partial(self._send, start, items, at_once), inputs
            )
            if start not in self.reports:
                self.entry.notes.append(f"item {start + 1} was done by an earlier attempt of the run")
        self.done += len(items)
        if self.entry.on_progress is not None:
            self.entry.on_progress("items", self.done, len(self.items))

    async def _send(self, start: int, items: Sequence[Any], at_once: int) -> Sequence[tuple[Any, ...]]:
        path, trace = self.entry.path, self.run.trace
        try:
            packed = self.parcels.pack(list(items))
        except Exception as error:
            raise _cannot_travel(f"items {start + 1} to {start + len(items)}", path, error) from error
        errand = Errand(self.run_id, start, at_once, self.run.limits.remaining())
        try:
            sent, content = await self._submitted(errand, packed)
        except RagbraidError as error:
            raise self._failure(start, len(items), error) from error
        report: ErrandReport = pickle.loads(content)
        began = max(sent, perf_counter() - trace.origin - report.seconds)
        self._take(start, report, began)
        if report.error is not None:
            raise report.error
        gave: Sequence[tuple[Any, ...]] = self.parcels.unpack(report.results)
        return gave

    async def _submitted(self, errand: Errand, packed: bytes) -> tuple[float, bytes]:
        """Have an errand carried out; return when it was sent and what came back.

        What went with a worker that died is sent again, unless it is the connection that was lost.
        """
        for resends in range(MOST_RESENDS + 1):
            shared = self.shared
            items = await THREADS.call(partial(_by_reference, self.fleet, packed, with_all=False))
            sent = perf_counter() - self.run.trace.origin
            submit = partial(self.fleet.submit, self.entry.path, run_errand, shared, errand, items)
            future = await THREADS.call(submit)
            self.futures.append(future)
            try:
                content = await self._wait(future)
            except ContentLostError:
                self.futures.remove(future)
                if resends == MOST_RESENDS or not await THREADS.call(self.fleet.is_alive):
                    raise
                if self.shared is shared:  # else another errand has seen to it
                    self.shared = await THREADS.call(
                        partial(_by_reference, self.fleet, self.surroundings, with_all=False)
                    )
            except RagbraidError:
                self.futures.remove(future)
                raise
            else:
                self.futures.remove(future)
                return sent, content
        raise AssertionError("the last attempt returns or raises")

    async def end(self) -> None:
        """Have the workers end what is under way; those that do not answer in time are left behind."""
        if not self.futures:
            return
        told = THREADS.submit(partial(self.fleet.end, list(self.futures), self.run_id))
        try:
            await asyncio.wait_for(asyncio.wrap_future(told), END_SECONDS)
        except Exception as error:  # noqa: BLE001 - the run ends for a reason of its own
            self.entry.notes.append(f"the workers may go on for a while: {type(error).__name__} {error}".rstrip())

    def record(self) -> None:
        """Put what the items did into the trace, in their order."""
        seen: dict[str, None] = {}
        for _, report in sorted(self.reports.items()):
            seen.update(dict.fromkeys(report.notes))
            for item in report.items:
                self.run.trace.steps.extend(item.steps)
                self.entry.notes.extend(item.notes)
                self.run.trace.abandoned_calls += item.abandoned_calls
                if item.degraded:
                    self.entry.status = "degraded"
        self.entry.notes.extend(seen)

    def results(self) -> list[Any]:
        """Return what the items gave, in their order."""
        return [value for _, results in sorted(self.gave.items()) for result in results for value in result]

    async def _wait(self, future: Future[bytes]) -> bytes:
        """Wait for an errand, and see now and then whether there is anybody to carry it out."""
        waited = asyncio.ensure_future(asyncio.wrap_future(future))
        alone_since: float | None = None
        try:
            while not (await asyncio.wait({waited}, timeout=WATCH_SECONDS))[0]:
                if await THREADS.call(self.fleet.slots):
                    alone_since = None
                    continue
                alone_since = perf_counter() if alone_since is None else alone_since
                if perf_counter() - alone_since > START_SECONDS:
                    raise ServiceError("its workers are gone, and none has come back")
            return waited.result()
        finally:
            waited.cancel()

    def _take(self, start: int, report: ErrandReport, began: float) -> None:
        """Keep a report with its times turned into those of this run, and count what it used.

        Raises:
            LimitError: with this the run has used more than it may.
        """
        self.reports[start] = report
        passed: LimitError | None = None
        for item in report.items:
            for step in item.steps:
                step.started += began
                step.ended = None if step.ended is None else step.ended + began
                self._tell(step)
            try:
                self._charge(item)
            except LimitError as error:
                passed = error
        if passed is not None:
            raise passed

    def _charge(self, item: ItemReport) -> None:
        for step in item.steps:
            if self.run.limits.counted:
                self.run.limits.charge(step.path, step.usage)

    def _tell(self, step: StepTrace) -> None:
        listener = self.run.listener
        if listener is not None:
            listener(RunEvent("started", step.path, step.node))
            output = step.output.json if isinstance(step.output, Bounded) else step.output
            seconds = (step.ended or step.started) - step.started
            listener(RunEvent("finished", step.path, step.node, step.outcome, seconds, output, step.error))

    def _failure(self, start: int, count: int, error: RagbraidError) -> RagbraidError:
        path = self.entry.path
        which = f"item {start + 1}" if count == 1 else f"items {start + 1} to {start + count}"
        kind = error.kind if isinstance(error, RunError) else None
        return ServiceError(f"{which} of `{path}` failed on {_shown(self.place)}: {error}", kind=kind, step=path)


def _by_reference(fleet: Fleet, content: bytes, *, with_all: bool) -> Any:
    return content if len(content) < SHARED_BYTES else fleet.share(content, with_all=with_all)


def _fingerprint(outside: Outside) -> str:
    try:
        named = {f"{depth} {slot}": value for (depth, slot), value in outside.items()}
        return sha256(json.dumps(canonical(named)).encode()).hexdigest()
    except NoStableFormError:
        return ""


def _cannot_travel(what: str, path: str, error: Exception) -> RunError:
    return RunError(
        f"{what} cannot go from `{path}` to another process: {type(error).__name__}: {error}",
        kind="contract",
        step=path,
        hint="have the map read values that can be pickled, or run with the task runner `threads`",
    )


def _shown(place: RunnerPlace) -> str:
    return f"the {place.name.capitalize()} cluster" + (f" at {place.address}" if place.address else "")
