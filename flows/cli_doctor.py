"""`ragbraid doctor`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ragbraid.dsl.tables import format_table
from ragbraid.flows.cli_output import print_json
from ragbraid.flows.cli_params import json_option, profile_option, project_option

if TYPE_CHECKING:
    from ragbraid.flows.doctor import Check


@click.command()
@profile_option
@project_option
@json_option
def doctor(profile: str | None, project: Path | None, as_json: bool) -> None:
    """Say what is installed, configured and reachable, and what to do about what is not.

    Exit code 1 when something needs doing; an optional part that is absent does not count.
    """
    from ragbraid.flows.doctor import examine

    checks = examine(Path.cwd(), project=project, profile=profile)
    if as_json:
        print_json([asdict(check) for check in checks])
    else:
        click.echo(_report(checks))
    sys.exit(1 if any(check.status == "wrong" for check in checks) else 0)


def _report(checks: list[Check]) -> str:
    """Return a table, and below each line that is not well what to do about it."""
    signs = {"ok": "ok", "missing": "-", "wrong": "WRONG"}
    rows = [(signs[check.status], check.area, check.name, check.detail) for check in checks]
    header, *lines = format_table(("", "AREA", "WHAT", "FOUND"), rows).splitlines()
    advised = [f"{line}\n         -> {c.advice}" if c.advice else line for line, c in zip(lines, checks, strict=True)]
    return "\n".join([header, *advised])
