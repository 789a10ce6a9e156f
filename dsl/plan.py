"""The checked, immutable form of a flow that runners execute.

A plan is nested bodies. A *body* numbers the values it can see: slots 0..n-1 hold its inputs, then one slot for each
step. A reference names a slot by depth (0 = this body, 1 = the body around it, ...), so that blocks nest to any depth
and a runner needs no look-up by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ragbraid.registry.conversions import Conversion
from ragbraid.registry.errors import FailureKind, SourceSpan
from ragbraid.registry.node import NodeContract

MAX_STEPS = "max_steps"
"""Why a loop ended that took all the steps it may take."""
DONE = "done"
"""Why a loop with `for` ended that had a step for every item."""

OriginKind = Literal["written", "arrow", "ambient", "default", "resource"]

# -- values: where a port's content comes from -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Literally:
    """A value that stands in the file, already validated and converted by the port's type."""

    value: Any


@dataclass(frozen=True, slots=True)
class SlotRef:
    """The value of a slot, or a part of it: `path` holds field names and list positions."""

    depth: int
    slot: int
    path: tuple[str | int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Computed:
    """An expression or a string template over other values.

    `evaluate` gets the values of `names` as keyword arguments and returns the result.
    """

    text: str
    names: tuple[tuple[str, SlotRef], ...]
    evaluate: Callable[..., Any] = field(compare=False)


@dataclass(frozen=True, slots=True)
class Sequenced:
    """A list whose items are values."""

    items: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Mapped:
    """A mapping whose values are values; a `FanIn` port gets one of these, keyed by upstream node."""

    items: tuple[tuple[str, Value], ...]


@dataclass(frozen=True, slots=True)
class Converted:
    """A value that passes through one of the registry's conversions."""

    value: Value
    conversion: Conversion


Value = Literally | SlotRef | Computed | Sequenced | Mapped | Converted


@dataclass(frozen=True, slots=True)
class Binding:
    """What fills one port of a step, and how `explain` names where it comes from."""

    port: str
    value: Value
    origin: OriginKind
    detail: str


# -- policies ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a failed step is tried again; `attempts` counts the first try too, delays are in seconds."""

    attempts: int = 1
    delay: float = 0.0
    backoff: float = 1.0
    on: frozenset[FailureKind] = frozenset({"rate_limit", "timeout", "invalid_output", "unavailable"})


@dataclass(frozen=True, slots=True)
class Policy:
    """The reserved keys of a step that govern how it runs.

    `cache_seconds` is None without a cache and infinite for `cache: true`; `on_error` is `fail`, `skip`, `empty` or a step
    (a node or a flow). For `empty`, `output` is the class of what stands in for a failed step.
    """

    retry: Retry = Retry()
    timeout_seconds: float | None = None
    cache_seconds: float | None = None
    on_error: Literal["fail", "skip", "empty"] | AnyStep = "fail"
    output: type[Any] | None = None
    when: Value | None = None
    ensure: Computed | None = None
    """A condition over `out` (the step's output) and what it names."""


# -- steps and bodies --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """One use of a node in a flow.

    `needs` are the slots of the same body that must be filled before the step can run (of its ports, its `when`,
    its `ensure` and its replacement); `path` is what traces and task runs are called.
    """

    name: str
    path: str
    slot: int
    node: NodeContract
    bindings: tuple[Binding, ...]
    resources: tuple[tuple[str, str], ...]
    """Resource parameter of the node -> name of the flow's resource."""
    output: Any
    """The type of the step's output, `None` included where the step may be skipped."""
    needs: frozenset[int]
    policy: Policy
    span: SourceSpan
    about: str = ""

    @property
    def label(self) -> str:
        """What a reader calls it beside its name: the node."""
        return self.node.name


@dataclass(frozen=True, slots=True)
class Body:
    """A scope with its steps, in an order in which every step comes after what it needs."""

    inputs: tuple[str, ...]
    steps: tuple[AnyStep, ...]

    @property
    def size(self) -> int:
        """How many slots a run of this body has."""
        return len(self.inputs) + len(self.steps)


# -- blocks ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Branch:
    """A body with the one value that leaves it."""

    body: Body
    output: Value


@dataclass(frozen=True, slots=True)
class Carried:
    """A state of a loop: it stands in the slot of its place among the body's inputs.

    `start` is a value of the scope around the loop, `next` one of the body; without it the state keeps its value.
    """

    name: str
    type: Any
    start: Value
    next: Value | None
    next_needs: frozenset[int]
    """Slots of the body that `next` reads."""


@dataclass(frozen=True, slots=True)
class StopCondition:
    """A reason to end a loop: looked at in every step as soon as the slots that it reads are filled."""

    reason: str
    condition: Value
    needs: frozenset[int]


@dataclass(frozen=True, slots=True)
class Loop:
    """Bounded iteration. With `items`, the body's last input takes one of them in each step."""

    body: Body
    carried: tuple[Carried, ...]
    stops: tuple[StopCondition, ...]
    max_steps: Value
    items: Value | None
    record: type[Any]
    """The model of its output: every carried state, `steps`, `stopped_by`."""


@dataclass(frozen=True, slots=True)
class Map:
    """The same branch for every item; its body's one input takes the item."""

    branch: Branch
    items: Value
    concurrency: int
    on_error: Literal["fail", "skip", "none"]


@dataclass(frozen=True, slots=True)
class Switch:
    """One of several branches: by the value of `on`, or by the first condition that holds where `on` is None.

    A case is its label, what it compares with (or its condition), and its branch.
    """

    on: Value | None
    cases: tuple[tuple[str, Any, Branch], ...]
    otherwise: Branch | None


@dataclass(frozen=True, slots=True)
class Gate:
    """The branches in order until one gives a result that is `enough`, a condition over `out`; else the last one's."""

    tries: tuple[Branch, ...]
    enough: Computed


@dataclass(frozen=True, slots=True)
class Group:
    """Steps under one name."""

    branch: Branch


@dataclass(frozen=True, slots=True)
class Call:
    """Another flow in the place of a node. Its body sees nothing around it; `inputs` fill its inputs in order."""

    flow: str
    file: str
    body: Body
    inputs: tuple[Binding, ...]
    checks: tuple[InputSpec, ...]
    outputs: tuple[tuple[str, Value], ...]
    record: type[Any] | None
    """The model of its output, None where the flow gives a single value."""


Block = Loop | Map | Switch | Gate | Group | Call


@dataclass(frozen=True, slots=True)
class BlockStep:
    """A block in the place of a node. `needs` are the slots of its own body that anything inside it reads."""

    name: str
    path: str
    slot: int
    block: Block
    output: Any
    needs: frozenset[int]
    policy: Policy
    span: SourceSpan
    about: str = ""

    @property
    def label(self) -> str:
        """What a reader calls it beside its name: the kind of block, or the flow that is called."""
        return self.block.flow if isinstance(self.block, Call) else type(self.block).__name__.lower()


AnyStep = Step | BlockStep


@dataclass(frozen=True, slots=True)
class InputSpec:
    """A declared input of a flow. `type` carries bounds and choices as `Annotated` and `Literal`."""

    name: str
    type: Any
    default: Any
    required: bool
    about: str
    declared: Mapping[str, Any]
    """The declaration as the file has it: `type`, `default`, bounds, for schemas and forms."""


@dataclass(frozen=True, slots=True)
class ResourceBinding:
    """A resource that a flow declares: provider and settings, secrets still by reference."""

    name: str
    provider: str
    settings: Mapping[str, Any]
    span: SourceSpan


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one run; None is no bound."""

    seconds: float | None = None
    llm_calls: int | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a deployment runs: a cron expression in a time zone."""

    cron: str
    timezone: str = "UTC"


Visible = Literal["steps", "blocks", "flow"]
"""What of a flow becomes a task run: every step that runs a node, every step and block of its own body, or nothing."""


TaskRunner = Literal["threads", "dask", "ray"]
"""Whose processes run the items of a map; `threads` is the process of the run itself."""


@dataclass(frozen=True, slots=True)
class Deploy:
    """The `deploy` section of a flow."""

    schedule: Schedule | None = None
    work_pool: str | None = None
    concurrency: int | None = None
    visible: Visible = "steps"
    tags: tuple[str, ...] = ()
    task_runner: TaskRunner = "threads"


@dataclass(frozen=True, slots=True)
class Plan:
    """A flow that has been checked and can run.

    `outputs` has one entry under the empty name where the flow gives a single value, else one per named output.
    `hash` identifies everything that decides what a run computes; it is part of cache keys and shown by Prefect.
    """

    name: str
    file: str
    about: str
    inputs: tuple[InputSpec, ...]
    body: Body
    outputs: tuple[tuple[str, Value], ...]
    output_types: Mapping[str, Any]
    resources: Mapping[str, ResourceBinding]
    roles: Mapping[str, str]
    """Name of every resource that a step asks for -> its role (`kb`, `llm`, ...)."""
    limits: Limits
    deploy: Deploy
    hash: str

    @property
    def single_output(self) -> bool:
        """Whether the flow gives one value rather than a mapping of named ones."""
        return len(self.outputs) == 1 and self.outputs[0][0] == ""
