"""From a flow file to a checked plan: the passes, in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ragbraid.dsl.bindings import read_resources
from ragbraid.dsl.blocks import make_block
from ragbraid.dsl.bodies import BodyDraft, bind_body, bind_values, build_body, close_body, draft_body
from ragbraid.dsl.deploy import read_deploy, read_limits, report_idle_task_runner
from ragbraid.dsl.fingerprint import plan_hash
from ragbraid.dsl.flow_files import FlowFiles, Session
from ragbraid.dsl.inputs import read_inputs
from ragbraid.dsl.known import Known
from ragbraid.dsl.lint import report_unused_inputs, report_unused_resources
from ragbraid.dsl.outputs import bind_output
from ragbraid.dsl.parse import parse_flow
from ragbraid.dsl.plan import InputSpec, Plan, ResourceBinding, Step
from ragbraid.dsl.report import Report
from ragbraid.dsl.scope import POISON, Visible
from ragbraid.dsl.source import read_file, read_source
from ragbraid.dsl.source_nodes import Node
from ragbraid.dsl.syntax import BodyDecl, FlowSyntax, ResourceDecl
from ragbraid.dsl.walk import node_steps
from ragbraid.registry.catalogue import Catalogue
from ragbraid.registry.errors import Finding, FlowError
from ragbraid.registry.providers import ROLES


@dataclass(frozen=True, slots=True)
class Checked:
    """What checking a flow file gave: the plan unless there were errors, every finding, and the texts of all files."""

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
        raise FlowError(checked.findings, checked.texts)
    return checked.plan


def check_file(path: str | Path, catalogue: Catalogue, resources: Mapping[str, str] | Iterable[str] = ()) -> Checked:
    """Check a flow file and the flows that it uses; nothing is raised for a mistake in them."""
    text, root, findings = read_file(path)
    return _check(text, root, findings, str(path), Session(catalogue, resources))


def check_text(
    text: str, file: str, catalogue: Catalogue, resources: Mapping[str, str] | Iterable[str] = ()
) -> Checked:
    """Check the text of a flow file; `file` is what findings call it and what paths in it are relative to."""
    root, findings = read_source(text, file)
    return _check(text, root, findings, file, Session(catalogue, resources))


def _check(text: str | None, root: Node | None, findings: tuple[Finding, ...], file: str, session: Session) -> Checked:
    if text is not None:
        session.texts[file] = text
    if root is None or findings:
        return Checked(None, findings, session.texts)
    report = Report()
    plan = _compile_file(root, file, session, (), report)
    return Checked(plan, report.in_file_order(), session.texts)


def _compile_file(root: Node, file: str, session: Session, stack: tuple[Path, ...], report: Report) -> Plan | None:
    """Return the plan of one file. `stack` holds the files that are being compiled because each uses the next."""
    syntax = parse_flow(root, file, report)
    return None if syntax is None else _compile(syntax, session, stack, report)


def _compile(syntax: FlowSyntax, session: Session, stack: tuple[Path, ...], report: Report) -> Plan | None:
    catalogue = session.catalogue
    resources = read_resources(syntax.resources, catalogue, report)
    inputs = read_inputs(syntax.inputs, catalogue, report)
    flows = FlowFiles(syntax.file, resources, session, stack, _compile_file)
    known = Known(catalogue, _known_resources(syntax.resources, session.project, resources), flows)
    draft = _bind(syntax, inputs, known, report)
    outputs = [(decl.name.text, bind_output(decl, draft.context)) for decl in syntax.outputs]
    for _, bound in outputs:
        draft.take(bound.value)
    close_body(draft)
    if not report.failed:
        report_unused_inputs(syntax.inputs, draft.context.scope, report)
    limits = read_limits(syntax.limits, report)
    deploy = read_deploy(syntax.deploy, inputs, report)
    if report.failed:
        return None
    specs = tuple(spec for spec in inputs if spec is not None)
    body = build_body(draft, flows)
    bindings = {name: binding for name, (binding, _) in resources.items()}
    roles = _roles(node_steps(body), resources)
    report_unused_resources(syntax.resources, roles, report)
    report_idle_task_runner(syntax.deploy, deploy, body, report)
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


def _bind(syntax: FlowSyntax, inputs: Sequence[InputSpec | None], known: Known, report: Report) -> BodyDraft:
    given: dict[str, Visible] = {}
    for slot, (decl, spec) in enumerate(zip(syntax.inputs, inputs, strict=True)):
        type_ = POISON if spec is None else spec.type
        given[decl.name.text] = Visible(decl.name.text, slot, type_, "input", decl.name.span)
    written = BodyDecl(syntax.nodes, syntax.arrows, syntax.arrows_complete, syntax.span)
    body = draft_body(written, given, None, known, report, make_block, complete=syntax.inputs_complete)
    bind_values(body, known)
    bind_body(body, known)
    return body


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


def _roles(steps: Iterable[Step], declared: Mapping[str, tuple[ResourceBinding, str]]) -> dict[str, str]:
    """Return the role of every resource that a node asks for, at any depth."""
    roles: dict[str, str] = {}
    for step in steps:
        needs = {need.name: need.role for need in step.node.resources}
        for parameter, name in step.resources:
            roles[name] = declared[name][1] if name in declared else needs[parameter]
    return roles
