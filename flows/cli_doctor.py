"""`ragbraid doctor`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import click

from ragbraid.dsl.tables import format_table
from ragbraid.flows.cli_output import print_json
from ragbraid.flows.cli_params import json_option, profile_option, project_option


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
        signs = {"ok": "ok", "missing": "-", "wrong": "WRONG"}
        rows = [(signs[c.status], c.area, c.name, c.detail, c.advice) for c in checks]
        click.echo(format_table(("", "AREA", "WHAT", "FOUND", "WHAT TO DO"), rows))
    sys.exit(1 if any(check.status == "wrong" for check in checks) else 0)
