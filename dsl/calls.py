"""Flows as nodes: a contract made from a flow's inputs and outputs, and the step that calls it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ragbraid.dsl.plan import (
    AnyStep,
    Binding,
    Block,
    BlockStep,
    Body,
    Branch,
    Call,
    Gate,
    Group,
    InputSpec,
    Loop,
    Map,
    Plan,
    Policy,
    Step,
    Switch,
)
from ragbraid.dsl.records import make_record
from ragbraid.dsl.scope import POISON
from ragbraid.registry.node import NodeContract, Port, ResourceNeed


def record_type(name: str, fields: Mapping[str, Any]) -> type[Any]:
    """Return the model of several outputs; the type of what is wrong itself becomes `any`."""
    return make_record(name, {key: Any if type_ is POISON else type_ for key, type_ in fields.items()})


def contract_of_flow(plan: Plan) -> NodeContract:
    """Return the contract that a flow has where it stands for a node: its inputs are data ports.

    What the flow asks of resources that it does not declare itself, it asks of the flow around it.
    """
    ports = tuple(_port(spec) for spec in plan.inputs)
    needs = tuple(ResourceNeed(name, role) for name, role in plan.roles.items() if name not in plan.resources)
    output = plan.output_types[""] if plan.single_output else record_type(f"{plan.name}_output", plan.output_types)
    return NodeContract(
        name=plan.name,
        version=1,
        function=_never_called,
        ports=ports,
        resources=needs,
        output=output,
        is_async=True,
        blocking=False,
        cacheable=False,
        about=plan.about,
        docstring=plan.about,
        example="",
        place=plan.file,
        _by_name={port.name: port for port in ports},
    )


def _port(spec: InputSpec) -> Port:
    if spec.required:
        return Port(spec.name, spec.type, "data", about=spec.about)
    return Port(spec.name, spec.type, "data", spec.default, about=spec.about)


def _never_called(**_: Any) -> Any:
    raise AssertionError("a flow is run by the scheduler, not called as a function")


def make_call(plan: Plan, contract: NodeContract, inputs: tuple[Binding, ...], resources: Mapping[str, str]) -> Call:
    """Return the block that runs a flow; `resources` maps its names of resources to those of the flow around it."""
    return Call(
        flow=plan.name,
        file=plan.file,
        body=_rename_body(plan.body, resources),
        inputs=inputs,
        checks=plan.inputs,
        outputs=plan.outputs,
        record=None if plan.single_output else contract.output,
    )


def _rename_body(body: Body, names: Mapping[str, str]) -> Body:
    return Body(body.inputs, tuple(_rename_step(step, names) for step in body.steps))


def _rename_step(step: AnyStep, names: Mapping[str, str]) -> AnyStep:
    policy = _rename_policy(step.policy, names)
    if isinstance(step, BlockStep):
        return replace(step, block=_rename_block(step.block, names), policy=policy)
    resources = tuple((parameter, names.get(name, name)) for parameter, name in step.resources)
    return replace(step, resources=resources, policy=policy)


def _rename_policy(policy: Policy, names: Mapping[str, str]) -> Policy:
    if isinstance(policy.on_error, Step | BlockStep):
        return replace(policy, on_error=_rename_step(policy.on_error, names))
    return policy


def _rename_branch(branch: Branch, names: Mapping[str, str]) -> Branch:
    return Branch(_rename_body(branch.body, names), branch.output)


def _rename_block(block: Block, names: Mapping[str, str]) -> Block:
    match block:
        case Loop() | Call():
            return replace(block, body=_rename_body(block.body, names))
        case Map() | Group():
            return replace(block, branch=_rename_branch(block.branch, names))
        case Switch():
            cases = tuple((label, case, _rename_branch(branch, names)) for label, case, branch in block.cases)
            last = None if block.otherwise is None else _rename_branch(block.otherwise, names)
            return replace(block, cases=cases, otherwise=last)
        case Gate():
            return replace(block, tries=tuple(_rename_branch(branch, names) for branch in block.tries))
