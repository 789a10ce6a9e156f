"""What the scheduler and its surroundings agree on: where resources come from, who executes a step, what a run gives.

The scheduler (`ragbraid.flows.scheduler.run_plan`) decides *when* a step runs. A `StepExecutor` decides *how*: without
one, steps run inline on the event loop; the Prefect runner brings one that wraps every call in a task run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ragbraid.dsl.plan import AnyStep
from ragbraid.registry.context import StepStatus

if TYPE_CHECKING:
    from ragbraid.flows.compiled import CompiledMap
    from ragbraid.flows.frames import Frame
    from ragbraid.flows.steps import Run
    from ragbraid.flows.trace import StepTrace, Trace

EventKind = Literal["started", "progress", "text", "finished", "result"]


class ResourceLookup(Protocol):
    """Hands out what stands behind the resource names of a plan."""

    def get(self, name: str, role: str) -> Any:
        """Return the resource that a flow knows as `name` and that serves `role` (`kb`, `llm`, ...).

        Called from worker threads, also from several at once, since opening a resource may load a model: an
        implementation opens each resource once and makes the others wait. None where nothing stands behind a name that
        every step using it can do without.

        Raises:
            SettingsError: the resource cannot be opened as it is configured.
        """
        ...

    def fingerprint(self, name: str, role: str) -> str:
        """Identify the resource's content and behaviour for cache keys; never holds a secret. Called as `get`."""
        ...


class StepExecutor(Protocol):
    """Executes the steps that the scheduler found ready."""

    @property
    def handles_policies(self) -> bool:
        """Whether retry, timeout and cache are its own business; `when`, `ensure` and `on_error` never are."""
        ...

    @property
    def takes_blocks(self) -> bool:
        """Whether a block is one execution, its own policy included, with everything inside it; else its steps are."""
        ...

    async def execute(
        self, step: AnyStep, path: str, call: Callable[[], Awaitable[Any]], inputs: Mapping[str, Any]
    ) -> Any:
        """Return the step's output, by awaiting `call()` or from a cache of its own.

        Args:
            step: the step as planned; `step.policy` says what retry, timeout and cache its author asked for.
            path: the step's name in this run, such as `interleave[2].think`.
            call: makes one attempt: looks the resources up, runs the node, checks its output. It may be awaited
                again for a retry. What it raises is always a RagbraidError whose `kind` decides about retries.
            inputs: the checked values of the step's ports, without resources; of a block, what it reads of its
                surroundings, by slot. Read only.
        """
        ...


class MapRunner(Protocol):
    """Runs the items of a map somewhere else than on the run's own event loop."""

    async def run_items(
        self, block: CompiledMap, items: Sequence[Any], frame: Frame, run: Run, entry: StepTrace
    ) -> list[Any]:
        """Return what the items gave, in their order; those that failed and are to be left out are not in it.

        Args:
            block: the map.
            items: at least one.
            frame: the frame of the body around the map.
            run: the run; its trace and limits learn what the items did.
            entry: the trace of the map itself.

        Raises:
            RagbraidError: as running the map's body here would; a ServiceError where the runner itself fails.
        """
        ...


@dataclass(frozen=True, slots=True)
class RunEvent:
    """Something that happened to a step, as it happens: for progress bars and streaming.

    Events arrive on the thread of the event loop. `finished` comes once for every `started`, also for a step that was
    skipped, failed or was cancelled, and after everything else of its step. `text` comes only where it was asked for;
    `result` is the last event of `Flow.stream` and `Flow.astream`, and listeners are not told it.
    """

    kind: EventKind
    path: str
    """The step's name in this run; empty for `result`, which is the whole run's."""
    node: str
    """Its node with version: `fuse.rrf@1`."""
    status: StepStatus | None = None
    """How it ended (`finished` only)."""
    seconds: float = 0.0
    """How long it took (`finished` only)."""
    output: Any = None
    """What it gave (`finished` only)."""
    error: Exception | None = None
    """Why it failed (`finished` only)."""
    label: str = ""
    """What is being counted (`progress` only)."""
    done: int = 0
    """How much of it is done (`progress` only)."""
    total: int | None = None
    """How much there is, None when unknown (`progress` only)."""
    text: str = ""
    """The next piece of what the step writes (`text` only)."""
    restart: bool = False
    """Whether the step begins its text anew, so that what came before is void (`text` only)."""
    result: RunResult | None = None
    """What the run gave (`result` only)."""


Listener = Callable[[RunEvent], None]


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run gave: the value of a flow with one output, a dict by name otherwise, and its trace."""

    outputs: Any
    trace: Trace
