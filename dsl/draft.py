"""Steps in the making: every node of a flow with what fills its ports so far."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ragbraid.dsl.calls import make_call
from ragbraid.dsl.known import FlowSource, Known
from ragbraid.dsl.plan import AnyStep, Binding, Block, BlockStep, Mapped, OriginKind, Plan, Policy, Step
from ragbraid.dsl.scope import POISON
from ragbraid.dsl.syntax import NodeDecl
from ragbraid.dsl.values import Bound
from ragbraid.dsl.walk import policy_reads, read_slots
from ragbraid.registry.errors import SourceSpan
from ragbraid.registry.node import NodeContract, Port


@dataclass(frozen=True, slots=True)
class Fill:
    """What fills a port, and how that came about."""

    bound: Bound
    origin: OriginKind
    detail: str
    span: SourceSpan


class BlockDraft(Protocol):
    """A block in the making. Its methods are called in the order in which they stand here."""

    reads: frozenset[tuple[int, int]]
    """What it reads from around it: how many bodies outwards (0 = the body it stands in), and the slot there."""

    def declare(self, known: Known) -> Any:
        """Return the type of the output where what the block declares tells it; None where its inside must."""

    def begin(self, known: Known) -> Any:
        """Look up what is inside and return the type of the block's output, POISON where that is not known."""

    def bind_values(self, known: Known) -> None:
        """Bind what is written on the block itself, in the scope around it, and under the nodes inside."""

    def arrow_targets(self) -> Sequence[tuple[Draft, int]]:
        """Return the nodes that an arrow into the block reaches, each with how many bodies inwards it stands."""

    def finish(self, known: Known) -> None:
        """Bind the rest of what is inside, and check it."""

    def close(self) -> None:
        """Put what is inside into order and report what nothing reaches."""

    def build(self, flows: FlowSource) -> Block:
        """Return the block; everything must have been checked."""


@dataclass
class Draft:
    """One node while it is bound. `suspect` is set once something about it was reported."""

    decl: NodeDecl
    slot: int
    contract: NodeContract | None
    output: Any = POISON
    fills: dict[str, Fill] = field(default_factory=dict)
    fans: dict[str, dict[str, Fill]] = field(default_factory=dict)
    resources: dict[str, str] = field(default_factory=dict)
    policy: Policy = field(default_factory=Policy)
    suspect: bool = False
    touched_by_arrow: bool = False
    arrow_refused: bool = False
    """Whether an arrow into the node was reported; the next one may well be right after that is mended."""
    replacement: bool = False
    """Whether this node stands in for the one of its name when that fails."""
    flow: Plan | None = None
    """The flow behind the contract, where the node is one."""
    block: BlockDraft | None = None
    """The block in the making, where the node is one."""

    @property
    def name(self) -> str:
        """The node's name in the flow."""
        return self.decl.name.text

    @property
    def shown(self) -> str:
        """How findings call the node."""
        return f"the replacement of `{self.name}`" if self.replacement else f"`{self.name}`"

    @property
    def span(self) -> SourceSpan:
        """Where the node's name stands."""
        return self.decl.name.span

    @property
    def needs(self) -> frozenset[int]:
        """The slots of this body that the step reads."""
        return frozenset(slot for depth, slot in self.reads() if depth == 0)

    def reads(self) -> Iterator[tuple[int, int]]:
        """Yield everything that the step reads: how many bodies outwards (0 = its own), and the slot there."""
        fills = [*self.fills.values(), *(fill for fan in self.fans.values() for fill in fan.values())]
        for fill in fills:
            yield from read_slots(fill.bound.value)
        yield from policy_reads(self.policy)
        if self.block is not None:
            yield from self.block.reads

    def is_open(self, port: Port) -> bool:
        """Whether an arrow may still fill the port."""
        return port.name not in self.fills

    def open_data_ports(self) -> Iterator[Port]:
        """Yield the data ports that an arrow may still fill."""
        if self.contract is not None:
            yield from (port for port in self.contract.data_ports if self.is_open(port))

    def has_value(self, port: Port) -> bool:
        """Whether anything fills the port so far."""
        return port.name in self.fills or port.name in self.fans

    def to_step(self, path: str, flows: FlowSource) -> AnyStep:
        """Freeze the draft; every port must have been filled, and everything inside a block checked."""
        if self.block is not None:
            return self._block_step(path, self.block.build(flows))
        assert self.contract is not None
        if self.flow is not None:
            resources = {**self.resources, **flows.adopt(self.flow)}
            return self._block_step(path, make_call(self.flow, self.contract, self._bindings(), resources))
        return Step(
            name=self.name,
            path=path,
            slot=self.slot,
            node=self.contract,
            bindings=self._bindings(),
            resources=tuple(self.resources.items()),
            output=self.output,
            needs=self.needs,
            policy=self.policy,
            span=self.span,
            about=self.decl.about,
        )

    def _block_step(self, path: str, block: Block) -> BlockStep:
        return BlockStep(
            name=self.name,
            path=path,
            slot=self.slot,
            block=block,
            output=self.output,
            needs=self.needs,
            policy=self.policy,
            span=self.span,
            about=self.decl.about,
        )

    def _bindings(self) -> tuple[Binding, ...]:
        """Return what fills every port, in order."""
        assert self.contract is not None
        return tuple(self._binding(port) for port in self.contract.ports)

    def _binding(self, port: Port) -> Binding:
        fan = self.fans.get(port.name)
        if fan is not None:
            value = Mapped(tuple((key, fill.bound.value) for key, fill in fan.items()))
            return Binding(port.name, value, "arrow", ", ".join(fan))
        fill = self.fills[port.name]
        return Binding(port.name, fill.bound.value, fill.origin, fill.detail)
