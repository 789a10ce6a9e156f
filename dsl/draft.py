"""Steps in the making: every node of a flow with what fills its ports so far."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ragbraid.dsl.plan import Binding, Mapped, OriginKind, Policy, Step
from ragbraid.dsl.scope import POISON
from ragbraid.dsl.syntax import NodeDecl
from ragbraid.dsl.values import Bound
from ragbraid.registry.errors import SourceSpan
from ragbraid.registry.node import NodeContract, Port


@dataclass(frozen=True, slots=True)
class Fill:
    """What fills a port, and how that came about."""

    bound: Bound
    origin: OriginKind
    detail: str
    span: SourceSpan


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
    policy_needs: frozenset[int] = frozenset()
    suspect: bool = False
    touched_by_arrow: bool = False
    arrow_refused: bool = False
    """Whether an arrow into the node was reported; the next one may well be right after that is mended."""
    replacement: bool = False
    """Whether this node stands in for the one of its name when that fails."""

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
        direct = [fill.bound.needs for fill in self.fills.values()]
        fanned = [fill.bound.needs for fan in self.fans.values() for fill in fan.values()]
        return frozenset().union(self.policy_needs, *direct, *fanned)

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

    def to_step(self, path: str) -> Step:
        """Freeze the draft; every port must have been filled."""
        assert self.contract is not None
        return Step(
            name=self.name,
            path=path,
            slot=self.slot,
            node=self.contract,
            bindings=tuple(self._binding(port) for port in self.contract.ports),
            resources=tuple(self.resources.items()),
            output=self.output,
            needs=self.needs,
            policy=self.policy,
            span=self.span,
            about=self.decl.about,
        )

    def _binding(self, port: Port) -> Binding:
        fan = self.fans.get(port.name)
        if fan is not None:
            value = Mapped(tuple((key, fill.bound.value) for key, fill in fan.items()))
            return Binding(port.name, value, "arrow", ", ".join(fan))
        fill = self.fills[port.name]
        return Binding(port.name, fill.bound.value, fill.origin, fill.detail)
