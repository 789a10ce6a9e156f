"""`ragbraid worker`: runs what is deployed to a work pool of our type."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from ragbraid.flows.cli_errors import INTERRUPTED
from ragbraid.flows.until_signal import run_until_signal

if TYPE_CHECKING:
    from ragbraid.flows.prefect_worker import Isolation


@click.command()
@click.option("--pool", required=True, help="The work pool, of the type `ragbraid`.")
@click.option(
    "--limit", type=click.IntRange(1), default=8, show_default=True, help="How many runs may be under way at once."
)
@click.option("--name", help="What the worker is called in the UI.  [default: the machine and the process]")
@click.option("--work-queue", "queues", multiple=True, help="Take runs of this queue only; may be repeated.")
@click.option(
    "--isolation",
    type=click.Choice(["none", "process"]),
    help="Run everything in this process, or each run in one of its own, whatever pool and deployments say.",
)
@click.option("--create-pool", is_flag=True, help="Create the work pool where it does not exist.")
@click.option("--with-healthcheck", is_flag=True, help="Answer at /health, on PREFECT_WORKER_WEBSERVER_PORT (8080).")
def worker(
    pool: str,
    limit: int,
    name: str | None,
    queues: tuple[str, ...],
    isolation: Isolation | None,
    create_pool: bool,
    with_healthcheck: bool,
) -> None:
    """Run what is deployed to a work pool, in this process: models and stores stay open between runs.

    A new version of a flow is taken by its next run. A pool or a deployment can ask for a process for each run instead
    (its job variable `isolation`). Ctrl-C ends what is under way and marks it as cancelled.
    """
    if name is not None and ("/" in name or "%" in name):
        raise click.BadParameter("it cannot contain `/` or `%`", param_hint="'--name'")

    from ragbraid.flows.loops import run_to_end
    from ragbraid.flows.prefect_worker import RagbraidWorker, heartbeat_seconds, prepare_pool, run_worker

    run_to_end(prepare_pool(pool, create=create_pool))
    served = RagbraidWorker(
        pool,
        list(queues) or None,
        name=name,
        limit=limit,
        prefetch_seconds=0,
        create_pool_if_not_found=False,
        heartbeat_interval_seconds=heartbeat_seconds(),
        isolation=isolation,
        tell=lambda sentence: click.echo(sentence, err=True),
    )
    click.echo(f"worker `{served.name}` serves the work pool `{pool}`, up to {limit} runs at once", err=True)
    interrupted = run_until_signal(partial(run_worker, served, with_healthcheck=with_healthcheck))
    click.echo("stopped; what comes due waits for another worker of the pool", err=True)
    raise SystemExit(INTERRUPTED if interrupted else 0)
