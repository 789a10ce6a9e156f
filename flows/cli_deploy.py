"""`ragbraid deploy` and `ragbraid undeploy`: flows for workers."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ragbraid.flows.cli_output import is_terminal, print_json
from ragbraid.flows.cli_params import (
    flows_argument,
    json_option,
    profile_option,
    project_option,
    task_runner_option,
    visible_option,
)
from ragbraid.registry.errors import SettingsError

if TYPE_CHECKING:
    from ragbraid.dsl.plan import Visible
    from ragbraid.flows.prefect_deploy import Step

_DONE = {"create": "deployed", "update": "updated", "nothing": "unchanged"}
_WOULD = {"create": "would be deployed", "update": "would be updated", "nothing": "is as it is deployed"}


@click.command()
@flows_argument
@click.option("--pool", help="The work pool whose workers run the flows, instead of the one that a flow names.")
@click.option("--cron", help='When to run, instead of the flow\'s own schedule: five fields such as "0 3 * * *".')
@click.option("--timezone", help="The time zone of --cron, such as Europe/Paris.  [default: UTC]")
@click.option("--tag", "tags", multiple=True, help="A tag beside those of the flow; may be repeated.")
@visible_option
@task_runner_option
@click.option("--diff", is_flag=True, help="Say what would change, and change nothing.")
@profile_option
@project_option
@json_option
def deploy(
    flows: tuple[Path, ...],
    pool: str | None,
    cron: str | None,
    timezone: str | None,
    tags: tuple[str, ...],
    visible: Visible | None,
    task_runner: str | None,
    diff: bool,
    profile: str | None,
    project: Path | None,
    as_json: bool,
) -> None:
    """Deploy flows to a Prefect work pool, or update what is deployed. All files are checked before any is.

    The files travel with the deployment: flows, the flows that they use, prompts, and what ragbraid.toml binds, secrets
    by reference only. A run executes what was deployed, whatever happens to the files. Local node modules do not travel.
    """
    from ragbraid.flows.deployments import Target, load_specs, notes_on, read_schedule

    target = Target(pool, read_schedule(cron, timezone), tags, visible, task_runner)
    specs = [spec for _, spec in load_specs(flows, target, profile=profile, project=project)]

    from ragbraid.flows import prefect_deploy
    from ragbraid.flows.loops import run_to_end

    steps = run_to_end(prefect_deploy.plan_deployments(specs) if diff else prefect_deploy.deploy(specs))
    if as_json:
        print_json([step_to_dict(step) for step in steps])
        return
    for step in steps:
        _print_step(step, _WOULD if diff else _DONE)
        for note in notes_on(step.spec):
            click.echo(f"note: {note}", err=True)


@click.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
def undeploy(name: str, yes: bool) -> None:
    """Remove a flow's deployment with its schedule and the runs that it has planned. Runs that were, stay."""
    from ragbraid.flows import prefect_deploy
    from ragbraid.flows.loops import run_to_end

    found = run_to_end(prefect_deploy.find_deployment(name))
    if found is None:
        raise SettingsError(
            f"there is no deployment of a flow named `{name}`", hint="`prefect deployment ls` lists what there is"
        )
    if not yes:
        if not is_terminal(sys.stdin):
            raise click.UsageError("nobody is there to ask; give --yes to remove it")
        click.confirm(f"Remove the deployment `{name}/{name}`?", abort=True)
    run_to_end(prefect_deploy.remove(found))
    click.echo(f"{name}: removed")


def step_to_dict(step: Step) -> dict[str, Any]:
    """Return what was done, or would be, for `--json`."""
    spec = step.spec
    return {
        "name": spec.name,
        "deployment": spec.full_name,
        "id": step.deployment_id,
        "action": step.action,
        "version": spec.version,
        "work_pool": spec.work_pool,
        "schedule": None if spec.schedule is None else asdict(spec.schedule),
        "schedule_is_off": step.schedule_is_off,
        "is_paused": step.is_paused,
        "changes": [asdict(change) for change in step.changes],
        "local_modules": list(spec.bundle.modules),
        "address": step.address,
    }


def _print_step(step: Step, words: dict[str, str]) -> None:
    spec = step.spec
    pool = f" to `{spec.work_pool}`" if step.action == "create" and spec.work_pool else ""
    click.echo(f"{spec.name}: {words[step.action]}{pool}, version {spec.version}")
    for change in step.changes:
        click.echo(f"  {change}")
    if spec.schedule is not None:
        off = "; it is switched off on the server and stays so" if step.schedule_is_off else ""
        click.echo(f"  runs at {spec.schedule.cron} ({spec.schedule.timezone}){off}")
    if step.is_paused:
        click.echo("  it is paused on the server and stays so")
    if step.address is not None:
        click.echo(f"  {step.address}")
