"""From a flow file to a checked plan: the passes, in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragbraid.dsl.ambient import Neighbours, fill_the_rest
from ragbraid.dsl.bind import bind_written, draft_nodes
from ragbraid.dsl.bindings import read_resources
from ragbraid.dsl.deploy import read_deploy, read_limits
from ragbraid.dsl.draft import Draft
from ragbraid.dsl.fingerprint import plan_hash
from ragbraid.dsl.graph import order_steps, report_unreached
from ragbraid.dsl.inputs import read_inputs
from ragbraid.dsl.lint import (
    report_name_clashes,
    report_texts_like_references,
    report_unknown_weights,
    report_unused_inputs,
    report_unused_resources,
)
from ragbraid.dsl.outputs import bind_output
from ragbraid.dsl.parse import parse_flow
from ragbraid.dsl.plan import Body, InputSpec, Plan, ResourceBinding, Step
from ragbraid.dsl.policy import Known, read_on_error, read_policy
from ragbraid.dsl.prompts import bind_prompts
from ragbraid.dsl.report import Report
from ragbraid.dsl.scope import POISON, Scope, Visible
from ragbraid.dsl.source import read_file, read_source
from ragbraid.dsl.source_nodes import Node
from ragbraid.dsl.syntax import FlowSyntax, ResourceDecl
from ragbraid.dsl.values import Context
from ragbraid.dsl.wire import Wiring
from ragbraid.registry.catalogue import Catalogue
from ragbraid.registry.errors import Finding, FlowError
from ragbraid.registry.providers import ROLES


@dataclass(frozen=True, slots=True)
class Checked:
    """What checking a flow file gave: the plan unless there were errors, every finding, and the file's text."""

    plan: Plan | None
    findings: tuple[Finding, ...]
    texts: Mapping[str, str]


def load_plan(path: str | Path, catalogue: Catalogue, resources: Mapping[str, str] | Iterable[str] = ()) -> Plan:
    """Return the plan of a flow file.

    Args:
        path: the flow file.
        catalogue: the nodes, types and providers that it may name.
        resources: names of the resources that a project file binds, with their roles where those are known.

    Raises:
        FlowError: the file has errors; it holds every finding.
    """
    checked = check_file(path, catalogue, resources)
    if checked.plan is None:
        raise FlowError(checked.findings)
    return checked.plan


def check_file(path: str | Path, catalogue: Catalogue, resources: Mapping[str, str] | Iterable[str] = ()) -> Checked:
    """Check a flow file; nothing is raised for a mistake in it."""
    text, root, findings = read_file(path)
    texts = {} if text is None else {str(path): text}
    return _check(root, findings, texts, str(path), catalogue, resources)


def check_text(
    text: str, file: str, catalogue: Catalogue, resources: Mapping[str, str] | Iterable[str] = ()
) -> Checked:
    """Check the text of a flow file; `file` is what findings call it and what paths in it are relative to."""
    root, findings = read_source(text, file)
    return _check(root, findings, {file: text}, file, catalogue, resources)


def _check(
    root: Node | None,
    findings: tuple[Finding, ...],
    texts: Mapping[str, str],
    file: str,
    catalogue: Catalogue,
    resources: Mapping[str, str] | Iterable[str],
) -> Checked:
    if root is None or findings:
        return Checked(None, findings, texts)
    report = Report()
    syntax = parse_flow(root, file, report)
    plan = None if syntax is None else _compile(syntax, catalogue, resources, report)
    return Checked(plan, report.in_file_order(), texts)


def _compile(
    syntax: FlowSyntax, catalogue: Catalogue, project: Mapping[str, str] | Iterable[str], report: Report
) -> Plan | None:
    resources = read_resources(syntax.resources, catalogue, report)
    inputs = read_inputs(syntax.inputs, catalogue, report)
    drafts = draft_nodes(syntax.nodes, len(inputs), catalogue, report)
    scope = _scope_of(syntax, inputs, drafts, report)
    context = Context(scope, report, catalogue.conversions())
    known = Known(catalogue, _known_resources(syntax.resources, project, resources))
    complete = _bind_drafts(syntax, drafts, context, known)
    ordered = order_steps(drafts, report if complete else Report())
    outputs = [(decl.name.text, bind_output(decl, context)) for decl in syntax.outputs]
    if not report.failed:
        # After a mistake much looks unused that is only misspelt.
        report_unreached(drafts, frozenset().union(*(bound.needs for _, bound in outputs)), report)
        report_unused_inputs(syntax.inputs, scope, report)
    limits = read_limits(syntax.limits, report)
    deploy = read_deploy(syntax.deploy, inputs, report)
    if report.failed:
        return None
    specs = tuple(spec for spec in inputs if spec is not None)
    body = Body(tuple(spec.name for spec in specs), tuple(draft.to_step(draft.name) for draft in ordered))
    bindings = {name: binding for name, (binding, _) in resources.items()}
    roles = _roles(body.steps, resources)
    report_unused_resources(syntax.resources, roles, report)
    return Plan(
        name=syntax.name,
        file=syntax.file,
        about=syntax.about,
        inputs=specs,
        body=body,
        outputs=tuple((name, bound.value) for name, bound in outputs),
        output_types={name: bound.type for name, bound in outputs},
        resources=bindings,
        roles=roles,
        limits=limits,
        deploy=deploy,
        hash=plan_hash(syntax.name, specs, body, [(name, bound.value) for name, bound in outputs], bindings),
    )


def _known_resources(
    decls: Sequence[ResourceDecl],
    project: Mapping[str, str] | Iterable[str],
    declared: Mapping[str, tuple[ResourceBinding, str]],
) -> dict[str, str | None]:
    """Return every resource that a node may name, with its role where that is known."""
    known: dict[str, str | None] = {role: role for role in ROLES}
    known.update(project.items() if isinstance(project, Mapping) else dict.fromkeys(project))
    # One whose declaration is wrong is known all the same: its mistake has been reported.
    known.update((decl.name.text, None) for decl in decls)
    known.update((name, role) for name, (_, role) in declared.items())
    return known


def _bind_drafts(syntax: FlowSyntax, drafts: Sequence[Draft], context: Context, known: Known) -> bool:
    """Fill every port, in the order of precedence; returns whether all arrows could be read."""
    for draft in drafts:
        bind_written(draft, context, known.resources)
        bind_prompts(draft, context.report)
        report_texts_like_references(draft, context)
    complete = _apply_arrows(syntax, drafts, context, known.catalogue)
    for draft in drafts:
        read_policy(draft, context)
    neighbours = Neighbours(drafts)
    for draft in drafts:
        fill_the_rest(draft, neighbours, context)
    for draft in drafts:
        read_on_error(draft, neighbours, context, known)
        report_unknown_weights(draft, context.report)
    return complete


def _scope_of(syntax: FlowSyntax, inputs: Sequence[InputSpec | None], drafts: Sequence[Draft], report: Report) -> Scope:
    names: dict[str, Visible] = {}
    for slot, (decl, spec) in enumerate(zip(syntax.inputs, inputs, strict=True)):
        type_ = POISON if spec is None else spec.type
        names[decl.name.text] = Visible(decl.name.text, slot, type_, "input", decl.name.span)
    report_name_clashes(drafts, names, report)
    for draft in drafts:
        names.setdefault(draft.name, Visible(draft.name, draft.slot, draft.output, "node", draft.span))
    return Scope(names, complete=syntax.inputs_complete)


def _apply_arrows(syntax: FlowSyntax, drafts: Sequence[Draft], context: Context, catalogue: Catalogue) -> bool:
    wiring = Wiring({draft.name: draft for draft in drafts}, context, catalogue)
    readable = [wiring.apply(scalar) for scalar in syntax.arrows]
    complete = syntax.arrows_complete and all(readable)
    if not complete:
        # An arrow that could not be read may be the one that fills a port that seems open.
        for draft in drafts:
            draft.suspect = True
    return complete


def _roles(steps: Iterable[Any], declared: Mapping[str, tuple[ResourceBinding, str]]) -> dict[str, str]:
    """Return the role of every resource that a step or its replacement asks for."""
    roles: dict[str, str] = {}
    for step in steps:
        if not isinstance(step, Step):
            continue
        needs = {need.name: need.role for need in step.node.resources}
        for parameter, name in step.resources:
            roles[name] = declared[name][1] if name in declared else needs[parameter]
        if isinstance(step.policy.on_error, Step):
            roles |= _roles([step.policy.on_error], declared)
    return roles
