"""`ragbraid run` and `ragbraid ingest`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ragbraid.flows.cli_errors import stop
from ragbraid.flows.cli_inputs import parse_inputs, refuse_missing
from ragbraid.flows.cli_output import is_terminal, print_json
from ragbraid.flows.cli_params import (
    flow_argument,
    input_option,
    inputs_file_option,
    json_option,
    profile_option,
    project_option,
    task_runner_option,
    visible_option,
    with_options,
)
from ragbraid.flows.cli_progress import ProgressBars
from ragbraid.flows.cli_show import show_outputs
from ragbraid.flows.cli_trace import page_option, prices_option, write_page
from ragbraid.registry.errors import RunError

if TYPE_CHECKING:
    from ragbraid.dsl.plan import Visible
    from ragbraid.flows.api import Engine, Flow
    from ragbraid.flows.trace import Trace
    from ragbraid.flows.trace_record import Prices

_options = with_options(
    flow_argument,
    input_option,
    inputs_file_option,
    click.option(
        "--engine",
        type=click.Choice(["auto", "inline", "prefect"]),
        default="auto",
        show_default=True,
        help="auto: as a Prefect flow run where a Prefect API is configured (PREFECT_API_URL or a Prefect profile), "
        "else in this process.",
    ),
    visible_option,
    task_runner_option,
    profile_option,
    project_option,
    click.option(
        "--trace",
        "trace_file",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Write what every step took, gave and cost as JSON, also when the run fails or is stopped.",
    ),
    page_option,
    prices_option,
    json_option,
)


@click.command()
@_options
def run(**options: Any) -> None:
    """Run a flow and print its result.

    Inputs are given as `-i question="..."`; a value is read by the input's declared type. `ragbraid explain FLOW`
    lists the inputs that a flow has. The result goes to standard output, everything else to standard error.
    """
    _run(**options)


@click.command()
@_options
def ingest(**options: Any) -> None:
    """Run an ingestion flow with a progress bar, and report what was added, updated, unchanged, deleted or failed.

    Exit code 1 when a source failed; what could be read has been indexed.
    """
    outputs = _run(**options)
    values = outputs.values() if isinstance(outputs, dict) else [outputs]
    if any(getattr(value, "failed", 0) for value in values):
        sys.exit(1)


def _run(
    flow: Path,
    inputs: tuple[str, ...],
    inputs_file: Path | None,
    engine: Engine,
    visible: Visible | None,
    task_runner: str | None,
    profile: str | None,
    project: Path | None,
    trace_file: Path | None,
    page: Path | None,
    prices: Prices | None,
    as_json: bool,
) -> Any:
    from ragbraid.flows.api import load
    from ragbraid.flows.trace import Trace

    loaded = load(flow, profile=profile, project=project)
    if visible is not None:
        loaded = loaded.with_visible(visible)
    if task_runner is not None:
        loaded = loaded.with_task_runner(task_runner)
    values = _checked_inputs(loaded, parse_inputs(loaded.plan, inputs, inputs_file))
    trace = Trace()
    try:
        outputs = _run_watched(loaded, values, engine, trace, bars=not as_json and is_terminal(sys.stderr))
    finally:
        if trace.flow:  # a run that was refused before it began has left no trace
            _write(trace, trace_file, page, prices)
    if as_json:
        print_json(outputs)
    else:
        show_outputs(outputs)
    return outputs


def _write(trace: Trace, trace_file: Path | None, page: Path | None, prices: Prices | None) -> None:
    if trace_file is not None:
        trace.write(trace_file)
    if page is not None:
        from ragbraid.flows.trace_record import record_of

        write_page(page, record_of(trace), prices)


def _checked_inputs(flow: Flow, values: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs as they were given; one that is missing or wrong is wrong use of the command."""
    refuse_missing(flow.plan, values)
    try:
        flow.check_inputs(values)
    except RunError as error:
        raise click.UsageError(str(error)) from None
    return values


def _run_watched(flow: Flow, values: dict[str, Any], engine: Engine, trace: Trace, *, bars: bool) -> Any:
    with ProgressBars(enabled=bars) as progress:
        try:
            return flow.run_traced(values, engine=engine, listener=progress.listen, trace=trace).outputs
        except KeyboardInterrupt:
            progress.stop()
            stop("stopped; what was committed before is unchanged, and a rerun goes on from there")
