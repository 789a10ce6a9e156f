"""What a task runner's worker does: some items of one map, with the flow compiled and its resources opened once.

The driver's side is `ragbraid.flows.remote_maps`. Everything that goes between them is bytes to the task runner.
"""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from ragbraid.dsl.plan import BlockStep, Limits, Map
from ragbraid.dsl.walk import map_steps
from ragbraid.flows.api import Flow
from ragbraid.flows.blocks import LEFT_OUT, all_or_none, run_item
from ragbraid.flows.bundle import Bundle, differences_here, open_bundle
from ragbraid.flows.compiled import CompiledMap
from ragbraid.flows.frames import Frame
from ragbraid.flows.inline import as_failure
from ragbraid.flows.limits import RunLimits
from ragbraid.flows.parcels import Parcels, outside_frame
from ragbraid.flows.scheduler import run_body
from ragbraid.flows.secrets import redacted
from ragbraid.flows.steps import Run
from ragbraid.flows.trace import Bounded, StepTrace, Trace, bounded
from ragbraid.registry.context import StepContext, enter_step, leave_step, project_folder
from ragbraid.registry.errors import RagbraidError, RunError, SettingsError

_KEPT_FLOWS = 16
_KEPT_SURROUNDINGS = 4
_TICK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all items of one map share. It travels once to each worker."""

    key: str
    """Names these surroundings among all others."""
    bundle: str
    """The packed bundle of the flow."""
    map_number: int
    """Which of the plan's maps it is, in the order of `map_steps`."""
    path: str
    """The map's path in this run."""
    outside: bytes
    """Packed: what the map's body reads of the bodies around it."""


@dataclass(frozen=True, slots=True)
class Errand:
    """Some items that follow each other. It travels with the items, packed as a list."""

    run_id: str
    first: int
    """Place of the first item, counted from 0."""
    at_once: int
    """How many of them may be under way at the same time."""
    limits: Limits
    """What was left of the run's calls and tokens when the errand was sent."""


@dataclass(slots=True)
class ItemReport:
    """What became of one item."""

    steps: list[StepTrace] = field(default_factory=list)
    """What the item's steps did, their times counted from the start of the errand."""
    notes: list[str] = field(default_factory=list)
    degraded: bool = False
    abandoned_calls: int = 0


@dataclass(slots=True)
class ErrandReport:
    """What came of an errand."""

    seconds: float = 0.0
    items: list[ItemReport] = field(default_factory=list)
    results: bytes = b""
    """Packed: what each item gave, `(value,)`, or `()` for an item that is left out."""
    error: RagbraidError | None = None
    notes: tuple[str, ...] = ()
    """Sentences about this worker."""


@dataclass(frozen=True, slots=True)
class _Opened:
    flow: Flow
    parcels: Parcels
    maps: tuple[BlockStep, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Ready:
    """Surroundings that have been unpacked."""

    opened: _Opened
    block: CompiledMap
    frame: Frame


_lock = threading.Lock()
_flows: OrderedDict[str, _Opened] = OrderedDict()
_surroundings: OrderedDict[str, _Ready] = OrderedDict()
_under_way: dict[str, set[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]]] = {}


def run_errand(surroundings: bytes, errand: Errand, items: bytes) -> bytes:
    """Run some items of a map and return a pickled `ErrandReport`; failures of the flow are part of it.

    Args:
        surroundings: pickled `Surroundings`.
        errand: which items, and how.
        items: packed list of them.
    """
    began = perf_counter()
    try:
        around: Surroundings = pickle.loads(surroundings)
        ready = _prepared(around)
        report = asyncio.run(_carry_out(ready, around.path, errand, ready.opened.parcels.unpack(items), began))
        report.notes = ready.opened.notes
    except RagbraidError as error:
        report = ErrandReport(error=_travelling(error))
    except Exception as error:  # noqa: BLE001 - a value may fail in any way to be unpacked
        message = f"the items cannot be unpacked on the worker: {type(error).__name__}: {error}"
        report = ErrandReport(error=RunError(message))
    report.seconds = perf_counter() - began
    return pickle.dumps(report)


def end_errands(run_id: str) -> None:
    """Cancel what this process does for a run, from any thread. Returns at once."""
    for loop, task in tuple(_under_way.get(run_id, ())):
        loop.call_soon_threadsafe(task.cancel)


def _prepared(around: Surroundings) -> _Ready:
    try:
        return _ready(around)
    except RagbraidError as error:
        hint = getattr(error, "hint", None)
        raise SettingsError(f"a worker cannot run the items of `{around.path}`: {error}", hint=hint) from None


def _ready(around: Surroundings) -> _Ready:
    with _lock:  # what takes long is done once, however many threads a worker has
        found = _surroundings.get(around.key)
        if found is None:
            opened = _open(around.bundle)
            step = opened.maps[around.map_number]
            assert isinstance(step.block, Map)
            block = CompiledMap(step.block, opened.flow.plan.roles)
            found = _Ready(opened, block, outside_frame(opened.parcels.unpack(around.outside)))
            _keep(_surroundings, around.key, found, _KEPT_SURROUNDINGS)
        return found


def _open(packed: str) -> _Opened:
    found = _flows.get(packed)
    if found is None:
        bundle = Bundle.unpack(packed)
        flow = open_bundle(bundle)
        flow.check_resources()
        maps = tuple(map_steps(flow.plan.body))
        found = _Opened(flow, Parcels(flow.plan), maps, tuple(differences_here(bundle)))
        _keep(_flows, packed, found, _KEPT_FLOWS)
    return found


def _keep(kept: OrderedDict[str, Any], key: str, value: Any, most: int) -> None:
    kept[key] = value
    if len(kept) > most:
        kept.popitem(last=False)


async def _carry_out(ready: _Ready, path: str, errand: Errand, items: Sequence[Any], began: float) -> ErrandReport:
    """Run the items, up to `errand.at_once` of them at the same time."""
    report = ErrandReport(items=[ItemReport() for _ in items])
    results: list[tuple[Any, ...]] = [()] * len(items)
    limits = RunLimits(errand.limits)
    numbers = iter(range(len(items)))

    async def work() -> None:
        for number in numbers:
            results[number] = await _run_one(ready, path, errand.first + number, items[number], report.items[number])

    async def _run_one(ready: _Ready, path: str, position: int, item: Any, told: ItemReport) -> tuple[Any, ...]:
        flow = ready.opened.flow
        trace = Trace()
        trace.origin = began
        run = Run(trace, flow.resources, None, None, flow.cache, limits, run_body)
        entry = StepTrace(path, "map", 0.0)
        try:
            value = await run_item(ready.block, ready.frame, run, entry, position, item)
        finally:
            told.steps = [_sealed(step) for step in trace.steps]
            told.notes = entry.notes
            told.degraded = entry.status == "degraded"
            told.abandoned_calls = trace.abandoned_calls
        return () if value is LEFT_OUT else (value,)

    task = asyncio.current_task()
    assert task is not None
    mine = (asyncio.get_running_loop(), task)
    _under_way.setdefault(errand.run_id, set()).add(mine)
    token = enter_step(StepContext())
    ticking = asyncio.create_task(_tick()) if threading.current_thread() is threading.main_thread() else None
    try:
        with project_folder(ready.opened.flow.project.folder):
            await all_or_none([work() for _ in range(min(errand.at_once, len(items)))])
        report.results = _packed_results(ready, path, errand.first, results)
    except asyncio.CancelledError:
        report.error = RunError(f"the items of `{path}` were cancelled", kind="cancelled", step=path)
    except RagbraidError as error:
        report.error = _travelling(error)
    except Exception as error:  # noqa: BLE001 - told to the run
        report.error = _travelling(as_failure(error, path))
    finally:
        leave_step(token)
        if ticking is not None:
            ticking.cancel()
        _under_way[errand.run_id].discard(mine)
        if not _under_way[errand.run_id]:
            del _under_way[errand.run_id]
    return report


async def _tick() -> None:
    """Wake the loop now and then: Ray interrupts the main thread without a signal, which a loop at rest never notices."""
    while True:
        await asyncio.sleep(_TICK_SECONDS)


def _packed_results(ready: _Ready, path: str, first: int, results: Sequence[tuple[Any, ...]]) -> bytes:
    pack = ready.opened.parcels.pack
    try:
        return pack(list(results))
    except Exception:
        for number, result in enumerate(results, start=first + 1):
            try:
                pack(result)
            except Exception as error:
                step = f"{path}[{number}]"
                raise RunError(
                    f"what `{step}` gave cannot leave its worker: {type(error).__name__}: {error}",
                    kind="contract",
                    step=step,
                    hint="have the map give values that can be pickled, or run with the task runner `threads`",
                ) from error
        raise


def _sealed(step: StepTrace) -> StepTrace:
    """Return a step's trace as it travels: bounded, without secrets, and without what belongs to this process."""
    status = step.outcome
    sealed = StepTrace(step.path, step.node, step.started)
    sealed.ended, sealed.attempts, sealed.cached, sealed.state = step.ended, step.attempts, step.cached, step.state
    sealed.status, sealed.usage, sealed.notes = status, step.usage, list(step.notes)
    sealed.inputs = {name: Bounded(bounded(value)) for name, value in step.inputs.items()}
    sealed.output = Bounded(bounded(step.output))
    if step.error is not None:
        error = step.error if isinstance(step.error, RagbraidError) else as_failure(step.error, step.path)
        sealed.error = _travelling(error)
    return sealed


def _travelling(error: RagbraidError) -> RagbraidError:
    """Return an error as it travels: without secrets, and as a plain one of its kind where it cannot be pickled."""
    redacted(error)
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - a plugin's error may hold anything
        kind, step = getattr(error, "kind", None), getattr(error, "step", None)
        return RunError(str(error), kind=kind, step=step, hint=getattr(error, "hint", None))
    return error
