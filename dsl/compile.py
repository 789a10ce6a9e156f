"""From a flow file to a checked plan: the passes, in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragbraid.dsl.ambient import fill_the_rest
from ragbraid.dsl.bind import bind_written, draft_nodes
from ragbraid.dsl.bindings import read_resources
from ragbraid.dsl.deploy import read_deploy, read_limits
from ragbraid.dsl.draft import Draft
from ragbraid.dsl.fingerprint import plan_hash
from ragbraid.dsl.graph import order_steps, report_unreached
from ragbraid.dsl.inputs import read_inputs
from ragbraid.dsl.lint import report_name_clashes, report_unknown_weights, report_unused_inputs
from ragbraid.dsl.parse import parse_flow
from ragbraid.dsl.plan import Body, InputSpec, Plan, ResourceBinding
from ragbraid.dsl.policy import read_policy
from ragbraid.dsl.prompts import bind_prompts
from ragbraid.dsl.report import Report
from ragbraid.dsl.scope import POISON, Scope, Visible
from ragbraid.dsl.source import read_file, read_source
from ragbraid.dsl.syntax import FlowSyntax, OutputDecl
from ragbraid.dsl.values import Bound, Context, bind_value
from ragbraid.dsl.wire import Wiring
from ragbraid.registry.catalogue import Catalogue
from ragbraid.registry.errors import Finding, FlowError
from ragbraid.registry.resources import ROLES


@dataclass(frozen=True, slots=True)
class Checked:
    """What checking a flow file gave: the plan unless there were errors, every finding, and the file's text."""

    plan: Plan | None
    findings: tuple[Finding, ...]
    texts: Mapping[str, str]


def load_plan(path: str | Path, catalogue: Catalogue, resources: Iterable[str] = ()) -> Plan:
    """Return the plan of a flow file.

    Args:
        path: the flow file.
        catalogue: the nodes, types and providers that it may name.
        resources: names of the resources that a project file binds.

    Raises:
        FlowError: the file has errors; it holds every finding.
    """
    checked = check_file(path, catalogue, resources)
    if checked.plan is None:
        raise FlowError(checked.findings)
    return checked.plan


def check_file(path: str | Path, catalogue: Catalogue, resources: Iterable[str] = ()) -> Checked:
    """Check a flow file; nothing is raised for a mistake in it."""
    text, root, findings = read_file(path)
    texts = {} if text is None else {str(path): text}
    if root is None or findings:
        return Checked(None, findings, texts)
    report = Report()
    syntax = parse_flow(root, str(path), report)
    plan = None if syntax is None else _compile(syntax, catalogue, resources, report)
    return Checked(plan, report.in_file_order(), texts)


def check_text(text: str, file: str, catalogue: Catalogue, resources: Iterable[str] = ()) -> Checked:
    """Check the text of a flow file; `file` is what findings call it and what paths in it are relative to."""
    root, findings = read_source(text, file)
    if root is None or findings:
        return Checked(None, findings, {file: text})
    report = Report()
    syntax = parse_flow(root, file, report)
    plan = None if syntax is None else _compile(syntax, catalogue, resources, report)
    return Checked(plan, report.in_file_order(), {file: text})


def _compile(syntax: FlowSyntax, catalogue: Catalogue, project: Iterable[str], report: Report) -> Plan | None:
    resources = read_resources(syntax.resources, catalogue, report)
    inputs = read_inputs(syntax.inputs, catalogue, report)
    drafts = draft_nodes(syntax.nodes, len(inputs), catalogue, report)
    scope = _scope_of(syntax, inputs, drafts, report)
    context = Context(scope, report, catalogue.conversions())
    names = {**dict.fromkeys(ROLES), **dict.fromkeys(project), **dict.fromkeys(resources)}
    for draft in drafts:
        bind_written(draft, context, names)
        bind_prompts(draft, report)
    _apply_arrows(syntax, drafts, context, catalogue)
    for draft in drafts:
        fill_the_rest(draft, drafts, context)
        read_policy(draft, drafts, context, catalogue)
        report_unknown_weights(draft, report)
    ordered = order_steps(drafts, report)
    outputs = _bind_outputs(syntax.outputs, context)
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
    return Plan(
        name=syntax.name,
        file=syntax.file,
        about=syntax.about,
        inputs=specs,
        body=body,
        outputs=tuple((name, bound.value) for name, bound in outputs),
        output_types={name: bound.type for name, bound in outputs},
        resources={name: binding for name, (binding, _) in resources.items()},
        roles=_roles(drafts, resources),
        limits=limits,
        deploy=deploy,
        hash=plan_hash(syntax.name, specs, body, [(name, bound.value) for name, bound in outputs]),
    )


def _scope_of(syntax: FlowSyntax, inputs: Sequence[InputSpec | None], drafts: Sequence[Draft], report: Report) -> Scope:
    names: dict[str, Visible] = {}
    for slot, (decl, spec) in enumerate(zip(syntax.inputs, inputs, strict=True)):
        type_ = POISON if spec is None else spec.type
        names[decl.name.text] = Visible(decl.name.text, slot, type_, "input", decl.name.span)
    report_name_clashes(drafts, names, report)
    for draft in drafts:
        names.setdefault(draft.name, Visible(draft.name, draft.slot, draft.output, "node", draft.span))
    return Scope(names)


def _apply_arrows(syntax: FlowSyntax, drafts: Sequence[Draft], context: Context, catalogue: Catalogue) -> None:
    wiring = Wiring({draft.name: draft for draft in drafts}, context, catalogue)
    complete = [wiring.apply(scalar) for scalar in syntax.arrows]
    if not syntax.arrows_complete or not all(complete):
        # An arrow that could not be read may be the one that fills a port that seems open.
        for draft in drafts:
            draft.suspect = True


def _bind_outputs(decls: Sequence[OutputDecl], context: Context) -> list[tuple[str, Bound]]:
    return [
        (decl.name.text, bind_value(decl.value, Any, f"the output `{decl.name.text}`".replace(" ``", ""), context))
        for decl in decls
    ]


def _roles(drafts: Sequence[Draft], declared: Mapping[str, tuple[ResourceBinding, str]]) -> dict[str, str]:
    """Return the role of every resource that a step asks for."""
    roles: dict[str, str] = {}
    for draft in drafts:
        if draft.contract is None:
            continue
        for need in draft.contract.resources:
            name = draft.resources[need.name]
            roles[name] = declared[name][1] if name in declared else need.role
    return roles
