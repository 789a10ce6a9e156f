"""`ragbraid trace`: what a run did, as a table or as a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ragbraid.dsl.tables import format_table
from ragbraid.flows.cli_output import print_json, use_colour
from ragbraid.flows.cli_params import json_option
from ragbraid.flows.markdown_text import safe_line
from ragbraid.registry.errors import SettingsError

if TYPE_CHECKING:
    from ragbraid.flows.prefect_history import PastRun
    from ragbraid.flows.trace_record import Prices, RunRecord
    from ragbraid.flows.trace_tree import StepNode

MAX_ROWS = 200


def _read_prices(ctx: click.Context, param: click.Parameter, value: str | None) -> Prices | None:
    from ragbraid.flows.trace_record import Prices

    if value is None:
        return None
    try:
        prompt, completion = (float(part) for part in value.split(","))
        if not (0 <= prompt < float("inf") and 0 <= completion < float("inf")):
            raise ValueError
    except ValueError:
        raise click.BadParameter("write two amounts of US dollars, such as `0.15,0.60`", ctx, param) from None
    return Prices(prompt, completion)


page_option = click.option(
    "--page", type=click.Path(path_type=Path, dir_okay=False), help="Write the run as one HTML file for a browser."
)
prices_option = click.option(
    "--prices",
    metavar="PROMPT,COMPLETION",
    envvar="RAGBRAID_PRICES",
    callback=_read_prices,
    help="US dollars per million prompt and completion tokens, to show what the model calls cost.  "
    "[env: RAGBRAID_PRICES]",
)


@click.command()
@click.argument("run", metavar="RUN|FILE")
@page_option
@prices_option
@json_option
def trace(run: str, page: Path | None, prices: Prices | None, as_json: bool) -> None:
    """Show what a run did: its steps with their status, time, model calls and tokens.

    FILE is a trace that `ragbraid run FLOW --trace FILE` wrote. RUN is a run on the Prefect server (PREFECT_API_URL): its
    name, its id or the beginning of it, or `latest`. With --page nothing is printed, and the page has the drawing of
    the flow and the inputs and outputs of every step as well.

    Where a run on the server has left no trace, the states and times of its steps are printed instead, and the exit
    code is 1.
    """
    record = _find_run(run)
    if page is not None:
        write_page(page, record, prices)
    if as_json:
        print_json(record.model_dump(mode="json", by_alias=True))
    elif page is None:
        click.echo(summary_text(record, prices))


def _find_run(name: str) -> RunRecord:
    """Return the run that an argument names: in a file, or on the Prefect server."""
    from ragbraid.flows.prefect_runner import is_prefect_configured
    from ragbraid.flows.trace_record import read_trace

    path = Path(name)
    if path.is_file() or path.suffix == ".json" or not is_prefect_configured():
        return read_trace(path)
    return _read_from_server(name)


def _read_from_server(name: str) -> RunRecord:
    from ragbraid.flows.loops import run_to_end
    from ragbraid.flows.prefect_history import find_run, read_run_trace, read_steps

    run = run_to_end(find_run(name))
    record = run_to_end(read_run_trace(run.id))
    if record is not None:
        return record
    steps = run_to_end(read_steps(run.id))
    if steps:
        from ragbraid.flows.cli_runs import steps_text

        click.echo(steps_text(steps, colour=use_colour()))
    raise SettingsError(
        f"the run `{safe_line(run.name, 60)}` has no trace: {_why_no_trace(run)}",
        hint="what the server knows of its steps is above; `ragbraid logs` has what they said"
        if steps
        else "`ragbraid logs` has what it said",
    )


def _why_no_trace(run: PastRun) -> str:
    if run.started is None:
        return f"it has not begun ({run.state})"
    if not run.is_over:
        return f"a trace is written when a run ends, and this one is {run.state}"
    before = "" if run.state == "Completed" else "before its first step, "
    return (
        f"it ended as {run.state} {before}while the server was away, in a process that was killed, or under a version of "
        "ragbraid that kept none"
    )


def write_page(path: Path, run: RunRecord, prices: Prices | None) -> None:
    """Write the page of a run and say where it is."""
    from ragbraid.flows.trace_page import trace_page

    path.write_text(trace_page(run, prices), encoding="utf-8")
    click.echo(f"wrote {path}", err=True)


def summary_text(run: RunRecord, prices: Prices | None = None) -> str:
    """Return a run as one line about the whole and one row per step; a block's row counts what ran inside it too."""
    from ragbraid.flows.trace_text import seconds_text
    from ragbraid.flows.trace_tree import step_tree, walk_tree

    tree = step_tree(run.steps)
    whole = [
        f"{run.flow}: {run.status} after {seconds_text(run.seconds)}",
        f"{run.usage.llm_calls:,} model calls",
        f"{run.usage.prompt_tokens:,} prompt and {run.usage.completion_tokens:,} completion tokens",
        *([] if prices is None else [f"${sum(node.cost_usd(prices) for node in tree):.4f}"]),
        f"started {run.started_at:%Y-%m-%d %H:%M:%S %Z}",
    ]
    lines = ["; ".join(whole)]
    if run.error is not None:
        lines.append(f"{run.error.class_} ({run.error.kind}) at `{run.error.step or 'the flow'}`: {run.error.message}")
    nodes = list(walk_tree(tree))
    header = ("STEP", "NODE", "STATUS", "BEGAN", "TOOK", "CALLS", "TOKENS", *(("USD",) if prices else ()))
    if run.gaps:
        lines.append(run.gaps)
    lines.extend(["", format_table(header, [_row(node, prices) for node in nodes[:MAX_ROWS]])])
    if len(nodes) > MAX_ROWS:
        lines.append(f"... and {len(nodes) - MAX_ROWS:,} more steps (all of them with --json)")
    return "\n".join(lines)


def _row(node: StepNode, prices: Prices | None) -> tuple[str, ...]:
    from ragbraid.flows.trace_text import seconds_text

    step, usage = node.step, node.usage
    return (
        step.path,
        step.node,
        "cancelled" if step.error is not None and step.error.kind == "cancelled" else step.status,
        seconds_text(step.started),
        "-" if step.ended is None else seconds_text(max(step.ended - step.started, 0)),
        f"{usage.llm_calls:,}",
        f"{usage.prompt_tokens + usage.completion_tokens:,}",
        *(() if prices is None else (f"{node.cost_usd(prices):.4f}",)),
    )
