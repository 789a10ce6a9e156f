"""Plans built by hand, so that tests of the scheduler do not depend on the compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from ragbraid.dsl.plan import (
    Binding,
    Body,
    Deploy,
    InputSpec,
    Limits,
    Literally,
    Mapped,
    Plan,
    Policy,
    SlotRef,
    Step,
    Value,
)
from ragbraid.dsl.walk import own_slots
from ragbraid.registry.errors import SourceSpan
from ragbraid.registry.node import contract_of

SPAN = SourceSpan("hand.yaml", 1, 1, 1, 1)


@dataclass(frozen=True)
class Use:
    """A node with what its ports get: `"$name.field"` is a reference, a planned value stands for itself."""

    function: Callable[..., Any]
    ports: Mapping[str, Any]
    policy: Policy
    resources: Mapping[str, str] = field(default_factory=dict)
    after: tuple[str, ...] = ()

    def to_step(self, name: str, slot: int, slots: Mapping[str, int]) -> Step:
        contract = contract_of(self.function)
        values = {port: read(value, slots) for port, value in self.ports.items()}
        replacement = self.policy.on_error
        policy_values = [value for value in (self.policy.when, self.policy.ensure) if value is not None]
        needs = {slot for value in [*values.values(), *policy_values] for slot in own_slots(value)}
        if isinstance(replacement, Step):
            needs |= replacement.needs
        return Step(
            name=name,
            path=name,
            slot=slot,
            node=contract,
            bindings=tuple(Binding(port, value, "written", "by hand") for port, value in values.items()),
            resources=tuple(self.resources.items()),
            output=contract.output,
            needs=frozenset(needs | {slots[other] for other in self.after}),
            policy=self.policy,
            span=SPAN,
        )


def read(value: Any, slots: Mapping[str, int]) -> Value:
    if isinstance(value, str) and value.startswith("$"):
        name, *path = value[1:].split(".")
        return SlotRef(0, slots[name], tuple(path), value)
    if isinstance(value, dict) and any(isinstance(item, str) and item.startswith("$") for item in value.values()):
        return Mapped(tuple((key, read(item, slots)) for key, item in value.items()))
    return value if isinstance(value, Value) else Literally(value)


class Plans:
    """Makes steps, bodies and plans."""

    def use(
        self,
        function: Callable[..., Any],
        ports: Mapping[str, Any] | None = None,
        *,
        resources: Mapping[str, str] | None = None,
        after: tuple[str, ...] = (),
        **policy: Any,
    ) -> Use:
        return Use(function, ports or {}, Policy(**policy), resources or {}, after)

    def body(self, uses: Mapping[str, Use], inputs: tuple[str, ...] = ()) -> Body:
        slots = self.slots(uses, inputs)
        return Body(inputs, tuple(use.to_step(name, slots[name], slots) for name, use in uses.items()))

    def plan(
        self,
        uses: Mapping[str, Use],
        *,
        inputs: Mapping[str, Any] | None = None,
        outputs: Any = None,
        limits: Limits | None = None,
        roles: Mapping[str, str] | None = None,
    ) -> Plan:
        """Make a plan; without `outputs` it gives what its last step gives."""
        inputs = inputs or {}
        slots = self.slots(uses, tuple(inputs))
        named = outputs if isinstance(outputs, dict) else {"": outputs or f"${list(uses)[-1]}"}
        return Plan(
            name="by_hand",
            file="hand.yaml",
            about="",
            inputs=tuple(InputSpec(name, type_, None, True, "", {}) for name, type_ in inputs.items()),
            body=self.body(uses, tuple(inputs)),
            outputs=tuple((name, read(value, slots)) for name, value in named.items()),
            output_types=dict.fromkeys(named, Any),
            resources={},
            roles=roles or {},
            limits=limits or Limits(),
            deploy=Deploy(),
            hash="0" * 64,
        )

    def slots(self, uses: Mapping[str, Use], inputs: tuple[str, ...]) -> dict[str, int]:
        return {name: slot for slot, name in enumerate([*inputs, *uses])}


class HeldResources:
    """A resource lookup over objects that are already there."""

    def __init__(self, held: Mapping[str, Any] | None = None) -> None:
        self.held = dict(held or {})

    def get(self, name: str, role: str) -> Any:
        return self.held.get(name)

    def fingerprint(self, name: str, role: str) -> str:
        return f"{role}:{self.held[name].identity}"


@pytest.fixture
def plans() -> Plans:
    return Plans()


@pytest.fixture
def held() -> type[HeldResources]:
    return HeldResources
