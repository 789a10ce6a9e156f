"""`ragbraid check`, and what other commands do with a flow file that has to be checked first."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import click

from ragbraid.dsl.compile import Checked, check_file
from ragbraid.dsl.plan import Plan
from ragbraid.flows.cli_output import print_findings, print_json
from ragbraid.flows.cli_params import flows_argument, json_option, project_option
from ragbraid.flows.project import load_project, project_catalogue


def check_flow(path: Path, project_path: Path | None) -> Checked:
    """Check one flow file with the nodes and resources of its project."""
    project = load_project(path, project=project_path)
    return check_file(path, project_catalogue(project), project.resources)


def plan_or_exit(path: Path, project_path: Path | None) -> Plan:
    """Return the plan, or print the findings and leave with exit code 1."""
    checked = check_flow(path, project_path)
    if checked.plan is None:
        print_findings(checked.findings, checked.texts)
        sys.exit(1)
    return checked.plan


@click.command()
@flows_argument
@click.option("--strict", is_flag=True, help="Treat warnings as errors.")
@project_option
@json_option
def check(flows: tuple[Path, ...], strict: bool, project: Path | None, as_json: bool) -> None:
    """Check flow files completely: types, wiring, expressions, prompts. Nothing is run or opened.

    Exit code 1 when there is an error (with --strict also a warning).
    """
    gc.disable()  # a check is short and keeps most of what it makes
    results = [check_flow(path, project) for path in flows]
    findings = [finding for result in results for finding in result.findings]
    if as_json:
        print_json([finding.to_dict() for finding in findings])
    else:
        texts = {file: text for result in results for file, text in result.texts.items()}
        if findings:
            print_findings(findings, texts)
        for path, result in zip(flows, results, strict=True):
            if result.plan is not None:
                steps = len(result.plan.body.steps)
                click.echo(f"{path}: ok, {steps} {'step' if steps == 1 else 'steps'}")
    failed = any(finding.severity == "error" or strict for finding in findings)
    sys.exit(1 if failed else 0)
