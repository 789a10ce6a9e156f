"""Plans made ready to run: successors, counters of open needs and argument builders, worked out once per plan."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from ragbraid.dsl.plan import Binding, Body, Plan, Policy, Step
from ragbraid.flows.checks import Check, output_check, port_check
from ragbraid.flows.frames import Frame, Getter, compile_condition, compile_value, own_slots
from ragbraid.flows.inputs import InputChecker

_KEPT_PLANS = 64
_PLAIN_POLICY = Policy()


class CompiledStep:
    """A step with everything that running it needs in reach of one attribute."""

    __slots__ = (
        "check_output",
        "ensure",
        "function",
        "is_async",
        "name",
        "needs",
        "node",
        "output_class",
        "path",
        "plain",
        "policy",
        "ports",
        "quick",
        "reference",
        "replacement",
        "resources",
        "slot",
        "step",
        "successors",
        "threaded",
        "when",
    )

    def __init__(self, step: Step, roles: Mapping[str, str]) -> None:
        node, policy = step.node, step.policy
        self.step, self.node, self.policy = step, node, policy
        self.slot, self.name, self.path = step.slot, step.name, step.path
        self.reference = node.reference
        self.function = node.function
        self.is_async = node.is_async
        # A function cannot be timed out on the loop that it holds up, only in a thread.
        self.threaded = not node.is_async and (node.blocking or policy.timeout_seconds is not None)
        self.resources = tuple((parameter, name, roles[name]) for parameter, name in step.resources)
        """Parameter, name and role of every resource."""
        self.ports = tuple(_compile_port(step, binding) for binding in step.bindings)
        self.output_class, self.check_output = output_check(node)
        self.when = None if policy.when is None else compile_value(policy.when)
        self.ensure = None if policy.ensure is None else compile_condition(policy.ensure)
        self.replacement = CompiledStep(policy.on_error, roles) if isinstance(policy.on_error, Step) else None
        self.plain = (
            not self.threaded
            and not self.resources
            and policy.retry == _PLAIN_POLICY.retry
            and policy.timeout_seconds is None
            and policy.cache_seconds is None
            and policy.ensure is None
        )
        """One call on the loop, with nothing around it."""
        self.quick = self.plain and not node.is_async and self.replacement is None
        """Plain, and over before the loop gets its turn."""
        self.needs = 0
        self.successors: tuple[int, ...] = ()

    def bind(self, frame: Frame, path: str) -> dict[str, Any]:
        """Return the checked values of the step's ports.

        Raises:
            NodeInputError: a value is not what its port takes.
        """
        inputs = {}
        for name, get, instance, check in self.ports:
            value = get(frame)
            inputs[name] = value if instance is not None and isinstance(value, instance) else check(value, path)
        return inputs


CompiledPort = tuple[str, Getter, "type[Any] | None", Check]


class CompiledBody:
    """A body whose steps are numbered, each knowing how many others it waits for and which ones wait for it."""

    __slots__ = ("needs", "roots", "size", "steps")

    def __init__(self, body: Body, roles: Mapping[str, str]) -> None:
        self.size = body.size
        self.steps = tuple(CompiledStep(step, roles) for step in body.steps)
        index_of = {step.slot: index for index, step in enumerate(body.steps)}
        successors: list[list[int]] = [[] for _ in body.steps]
        for index, compiled in enumerate(self.steps):
            waits_for = {index_of[slot] for slot in compiled.step.needs if slot in index_of} - {index}
            compiled.needs = len(waits_for)
            for other in sorted(waits_for):
                successors[other].append(index)
        for compiled, following in zip(self.steps, successors, strict=True):
            compiled.successors = tuple(following)
        self.needs = [compiled.needs for compiled in self.steps]
        self.roots = tuple(index for index, count in enumerate(self.needs) if count == 0)


class CompiledPlan:
    """A plan with its compiled body, the checker of its inputs and the getters of its outputs."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.body = CompiledBody(plan.body, plan.roles)
        self.inputs = InputChecker(plan.name, plan.inputs)
        self.outputs = tuple((name, compile_value(value), frozenset(own_slots(value))) for name, value in plan.outputs)


_compiled: OrderedDict[int, CompiledPlan] = OrderedDict()
_lock = threading.Lock()


def compile_plan(plan: Plan) -> CompiledPlan:
    """Return the plan's compiled form; the last 64 plans are kept, each by its identity."""
    found = _compiled.get(id(plan))
    if found is not None:
        return found
    made = CompiledPlan(plan)
    with _lock:
        # The entry holds the plan, so its id cannot come to mean another one.
        _compiled[id(plan)] = made
        if len(_compiled) > _KEPT_PLANS:
            _compiled.popitem(last=False)
    return made


def _compile_port(step: Step, binding: Binding) -> CompiledPort:
    port = step.node.port(binding.port)
    assert port is not None, f"`{step.path}` binds `{binding.port}`, which {step.node.reference} does not have"
    get = compile_value(binding.value)
    if binding.origin == "default":
        return binding.port, get, object, _unchecked  # what the node's own author wrote
    instance, check = port_check(step.node, port)
    return binding.port, get, instance, check


def _unchecked(value: Any, _: str) -> Any:
    return value
