"""Plans made ready to run: successors, counters of open needs and argument builders, worked out once per plan."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from ragbraid.dsl.plan import (
    AnyStep,
    Binding,
    BlockStep,
    Body,
    Branch,
    Call,
    Carried,
    Gate,
    Group,
    Loop,
    Map,
    Plan,
    Policy,
    Step,
    Switch,
)
from ragbraid.dsl.walk import own_slots
from ragbraid.flows.checks import Check, output_check, passes_by_instance, port_check, value_check
from ragbraid.flows.frames import Frame, Getter, compile_condition, compile_value
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
        self.replacement = None if isinstance(policy.on_error, str) else compile_step(policy.on_error, roles)
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


class CompiledBlock:
    """A block in the place of a node: what running it needs beside the block itself (`ragbraid.flows.blocks`)."""

    __slots__ = (
        "block",
        "ensure",
        "name",
        "needs",
        "path",
        "policy",
        "reference",
        "replacement",
        "slot",
        "step",
        "successors",
        "when",
    )

    plain = False
    quick = False
    output_class = None
    resources: tuple[tuple[str, str, str], ...] = ()

    def __init__(self, step: BlockStep, roles: Mapping[str, str]) -> None:
        policy = step.policy
        self.step, self.policy = step, policy
        self.slot, self.name, self.path = step.slot, step.name, step.path
        self.reference = step.label
        self.block = compile_block(step, roles)
        self.when = None if policy.when is None else compile_value(policy.when)
        self.ensure = None if policy.ensure is None else compile_condition(policy.ensure)
        self.replacement = None if isinstance(policy.on_error, str) else compile_step(policy.on_error, roles)
        self.needs = 0
        self.successors: tuple[int, ...] = ()

    def bind(self, frame: Frame, path: str) -> dict[str, Any]:
        """Return nothing: a block reads what it needs from the frame around it."""
        return {}


AnyCompiled = CompiledStep | CompiledBlock


def compile_step(step: AnyStep, roles: Mapping[str, str]) -> AnyCompiled:
    """Make a step ready to run."""
    return CompiledStep(step, roles) if isinstance(step, Step) else CompiledBlock(step, roles)


class CompiledBody:
    """A body whose steps are numbered, each knowing how many others it waits for and which ones wait for it."""

    __slots__ = ("needs", "roots", "size", "steps", "straight")

    def __init__(self, body: Body, roles: Mapping[str, str]) -> None:
        self.size = body.size
        self.steps: tuple[AnyCompiled, ...] = tuple(compile_step(step, roles) for step in body.steps)
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
        self.straight = all(index + 1 in compiled.successors for index, compiled in enumerate(self.steps[:-1]))
        """Whether every step waits for the one before it."""


class CompiledPlan:
    """A plan with its compiled body, the checker of its inputs and the getters of its outputs."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.body = CompiledBody(plan.body, plan.roles)
        self.inputs = InputChecker(plan.name, plan.inputs)
        self.outputs = tuple((name, compile_value(value), own_slots(value)) for name, value in plan.outputs)


# -- blocks ------------------------------------------------------------------------------------------------------------


class CompiledBranch:
    """A body with the getter of the one value that leaves it."""

    __slots__ = ("body", "output")

    def __init__(self, branch: Branch, roles: Mapping[str, str]) -> None:
        self.body = CompiledBody(branch.body, roles)
        self.output = compile_value(branch.output)


class CompiledState:
    """A carried state of a loop."""

    __slots__ = ("check", "instance", "name", "next", "next_needs", "start")

    def __init__(self, state: Carried) -> None:
        self.name = state.name
        self.start = compile_value(state.start)
        self.next = None if state.next is None else compile_value(state.next)
        self.next_needs = state.next_needs
        self.check = value_check(f"the state `{state.name}`", state.type)
        self.instance = passes_by_instance(state.type)


class CompiledLoop:
    """A loop with its getters. `settled[i]` are the steps that have ended whenever condition i can be looked at."""

    def __init__(self, loop: Loop, roles: Mapping[str, str]) -> None:
        self.body = CompiledBody(loop.body, roles)
        self.states = tuple(CompiledState(state) for state in loop.carried)
        # States and the item are there from the start of a step: nothing waits for them, and they are always settled.
        given = frozenset(range(len(loop.body.inputs)))
        self.stops = tuple((stop.reason, compile_value(stop.condition), stop.needs - given) for stop in loop.stops)
        self.settled = tuple(_ancestors(loop.body, stop.needs) | given for stop in loop.stops)
        self.max_steps = compile_value(loop.max_steps)
        self.items = None if loop.items is None else compile_value(loop.items)
        self.record = loop.record


class CompiledMap:
    """A map with its getters."""

    def __init__(self, block: Map, roles: Mapping[str, str]) -> None:
        self.planned = block
        self.branch = CompiledBranch(block.branch, roles)
        self.items = compile_value(block.items)
        self.concurrency = block.concurrency
        self.on_error = block.on_error


class CompiledSwitch:
    """A switch; without `on` the values of its cases are conditions."""

    def __init__(self, block: Switch, roles: Mapping[str, str]) -> None:
        self.on = None if block.on is None else compile_value(block.on)
        self.cases = tuple(
            (label, value if block.on is not None else compile_value(value), CompiledBranch(branch, roles))
            for label, value, branch in block.cases
        )
        self.otherwise = None if block.otherwise is None else CompiledBranch(block.otherwise, roles)


class CompiledGate:
    """A gate with its condition over a branch's output."""

    def __init__(self, block: Gate, roles: Mapping[str, str]) -> None:
        self.tries = tuple(CompiledBranch(branch, roles) for branch in block.tries)
        self.enough = compile_condition(block.enough)


class CompiledGroup:
    """Steps under one name."""

    def __init__(self, block: Group, roles: Mapping[str, str]) -> None:
        self.branch = CompiledBranch(block.branch, roles)


class CompiledCall:
    """Another flow, whose body stands in no scope around it."""

    def __init__(self, block: Call, roles: Mapping[str, str]) -> None:
        self.flow = block.flow
        self.body = CompiledBody(block.body, roles)
        self.arguments = tuple((binding.port, compile_value(binding.value)) for binding in block.inputs)
        self.inputs = InputChecker(block.flow, block.checks)
        self.outputs = tuple((name, compile_value(value)) for name, value in block.outputs)
        self.record = block.record


AnyBlock = CompiledLoop | CompiledMap | CompiledSwitch | CompiledGate | CompiledGroup | CompiledCall


def compile_block(step: BlockStep, roles: Mapping[str, str]) -> AnyBlock:
    """Make a block ready to run."""
    match step.block:
        case Loop():
            return CompiledLoop(step.block, roles)
        case Map():
            return CompiledMap(step.block, roles)
        case Switch():
            return CompiledSwitch(step.block, roles)
        case Gate():
            return CompiledGate(step.block, roles)
        case Group():
            return CompiledGroup(step.block, roles)
        case Call():
            return CompiledCall(step.block, roles)


def _ancestors(body: Body, slots: frozenset[int]) -> frozenset[int]:
    """Return the slots and those of all steps that must have ended before them."""
    needs = {step.slot: step.needs for step in body.steps}
    found: set[int] = set()
    waiting = list(slots)
    while waiting:
        slot = waiting.pop()
        if slot not in found:
            found.add(slot)
            waiting.extend(needs.get(slot, ()))
    return frozenset(found)


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
