"""`ragbraid serve`: flows in the Prefect UI, run by this process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ragbraid.flows.cli_errors import INTERRUPTED
from ragbraid.flows.cli_params import flows_argument, profile_option, project_option, task_runner_option, visible_option
from ragbraid.flows.until_signal import run_until_signal

if TYPE_CHECKING:
    from ragbraid.dsl.plan import Visible
    from ragbraid.flows.prefect_deploy import Step


@click.command()
@flows_argument
@click.option(
    "--limit", type=click.IntRange(1), default=8, show_default=True, help="How many runs may be under way at once."
)
@click.option("--tag", "tags", multiple=True, help="A tag beside those of the flow; may be repeated.")
@visible_option
@task_runner_option
@profile_option
@project_option
def serve(
    flows: tuple[Path, ...],
    limit: int,
    tags: tuple[str, ...],
    visible: Visible | None,
    task_runner: str | None,
    profile: str | None,
    project: Path | None,
) -> None:
    """Offer flows in the Prefect UI and run in this process what is started there or comes due.

    Needs a Prefect server and no worker. Models and stores stay open between runs. A changed file is served after a
    restart. Ctrl-C ends what is under way, marks it as cancelled, and pauses the schedules until the next start.
    """
    from ragbraid.flows.deployments import Target, load_specs

    loaded = load_specs(
        flows,
        Target(tags=tags, visible=visible, task_runner=task_runner, served=True),
        profile=profile,
        project=project,
    )

    from ragbraid.flows import prefect_deploy
    from ragbraid.flows.loops import run_to_end
    from ragbraid.flows.prefect_serve import Server

    steps = run_to_end(prefect_deploy.deploy([spec for _, spec in loaded]))
    served = {step.deployment_id: flow for step, (flow, _) in zip(steps, loaded, strict=True) if step.deployment_id}
    for step in steps:
        click.echo(_announcement(step), err=True)

    def tell(sentence: str) -> None:
        click.echo(sentence, err=True)

    interrupted = run_until_signal(Server(served, limit=limit, tell=tell).run)
    click.echo("stopped; the schedules are paused until the next start", err=True)
    raise SystemExit(INTERRUPTED if interrupted else 0)


def _announcement(step: Step) -> str:
    schedule = step.spec.schedule
    when = f", at {schedule.cron} ({schedule.timezone})" if schedule is not None else ""
    where = f"\n  {step.address}" if step.address else ""
    return f"serving {step.spec.name}, version {step.spec.version}{when}{where}"
