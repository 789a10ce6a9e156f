"""`ragbraid trace`: what a run did, as a table or as a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ragbraid.dsl.tables import format_table
from ragbraid.flows.cli_output import print_json
from ragbraid.flows.cli_params import json_option

if TYPE_CHECKING:
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
@click.argument("run", metavar="FILE")
@page_option
@prices_option
@json_option
def trace(run: str, page: Path | None, prices: Prices | None, as_json: bool) -> None:
    """Show what a run did: its steps with their status, time, model calls and tokens.

    FILE is a trace that `ragbraid run FLOW --trace FILE` wrote. With --page nothing is printed, and the page has the
    drawing of the flow and the inputs and outputs of every step as well.
    """
    record = _find_run(run)
    if page is not None:
        write_page(page, record, prices)
    if as_json:
        print_json(record.model_dump(mode="json", by_alias=True))
    elif page is None:
        click.echo(summary_text(record, prices))


def _find_run(name: str) -> RunRecord:
    """Return the run that an argument names. Whatever else can name a run is read here."""
    from ragbraid.flows.trace_record import read_trace

    return read_trace(Path(name))


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
        step.status,
        seconds_text(step.started),
        "-" if step.ended is None else seconds_text(max(step.ended - step.started, 0)),
        f"{usage.llm_calls:,}",
        f"{usage.prompt_tokens + usage.completion_tokens:,}",
        *(() if prices is None else (f"{node.cost_usd(prices):.4f}",)),
    )
