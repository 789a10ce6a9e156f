"""`ragbraid serve`: flows in the Prefect UI, run by this process."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import click

from ragbraid.flows.cli_errors import INTERRUPTED
from ragbraid.flows.cli_params import flows_argument, profile_option, project_option, task_runner_option, visible_option

if TYPE_CHECKING:
    from ragbraid.dsl.plan import Visible
    from ragbraid.flows.api import Flow
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

    steps = run_to_end(prefect_deploy.deploy([spec for _, spec in loaded]))
    served = {step.deployment_id: flow for step, (flow, _) in zip(steps, loaded, strict=True) if step.deployment_id}
    for step in steps:
        click.echo(_announcement(step), err=True)
    interrupted = _serve(served, limit)
    click.echo("stopped; the schedules are paused until the next start", err=True)
    raise SystemExit(INTERRUPTED if interrupted else 0)


def _announcement(step: Step) -> str:
    schedule = step.spec.schedule
    when = f", at {schedule.cron} ({schedule.timezone})" if schedule is not None else ""
    where = f"\n  {step.address}" if step.address else ""
    return f"serving {step.spec.name}, version {step.spec.version}{when}{where}"


def _serve(served: Mapping[UUID, Flow], limit: int) -> bool:
    """Serve until a signal comes; return whether it was Ctrl-C. A second one ends the process at once.

    The loop has a thread of its own: Prefect's engine takes over SIGTERM wherever it runs in the main thread, and would
    raise it into whatever step happens to be running.
    """
    from ragbraid.flows.prefect_serve import Server

    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    received: list[int] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            server = Server(served, limit=limit, tell=lambda sentence: click.echo(sentence, err=True))
            loop.run_until_complete(server.run(stop))
        except BaseException as error:  # noqa: BLE001 - raised again below, in the main thread
            failure.append(error)
        finally:
            loop.close()

    def on_signal(number: int, _: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)
        click.echo("stopping", err=True)
        loop.call_soon_threadsafe(stop.set)

    thread = threading.Thread(target=work, name="ragbraid-serve", daemon=True)
    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        thread.start()
        while thread.is_alive():
            thread.join(0.5)  # a wait without an end would not let a signal in
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if failure:
        raise failure[0]
    return signal.SIGINT in received
