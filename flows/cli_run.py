"""`ragbraid run` and `ragbraid ingest`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

import click

from ragbraid.flows.cli_inputs import parse_inputs
from ragbraid.flows.cli_output import fail, print_json, use_colour
from ragbraid.flows.cli_progress import ProgressBars
from ragbraid.flows.cli_show import show_outputs
from ragbraid.registry.errors import RunError

Engine = Literal["auto", "inline", "prefect"]

_OPTIONS = (
    click.argument("flow", type=click.Path(path_type=Path)),
    click.option("-i", "--input", "inputs", multiple=True, metavar="NAME=VALUE", help="An input; may be repeated."),
    click.option("--inputs-file", type=click.Path(path_type=Path, exists=True), help="Inputs as a JSON or YAML file."),
    click.option(
        "--engine",
        type=click.Choice(["auto", "inline", "prefect"]),
        default="auto",
        show_default=True,
        help="auto: as a Prefect flow where PREFECT_API_URL is set, else in this process.",
    ),
    click.option("--profile", help="The profile of ragbraid.toml to use."),
    click.option("--project", type=click.Path(path_type=Path), help="The project file (ragbraid.toml)."),
    click.option("--trace", type=click.Path(path_type=Path, dir_okay=False), help="Write the run's trace as JSON."),
    click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
)


def _with_options(function: Any) -> Any:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@click.command()
@_with_options
def run(**options: Any) -> None:
    """Run a flow and print its result.

    Inputs are given as `-i question="..."`; a value is read by the input's declared type.
    """
    _run(**options)


@click.command()
@_with_options
def ingest(**options: Any) -> None:
    """Run an ingestion flow with a progress bar, and report what was added, updated, unchanged, deleted or failed.

    Exit code 1 when a source failed; what could be read has been indexed.
    """
    outputs = _run(**options)
    if getattr(outputs, "failed", 0):
        sys.exit(1)


def _run(
    flow: Path,
    inputs: tuple[str, ...],
    inputs_file: Path | None,
    engine: Engine,
    profile: str | None,
    project: Path | None,
    trace: Path | None,
    as_json: bool,
) -> Any:
    from ragbraid.flows.api import load

    loaded = load(flow, profile=profile, project=project)
    values = parse_inputs(loaded.plan, inputs, inputs_file)
    with ProgressBars(enabled=not as_json and use_colour(sys.stderr)) as bars:
        try:
            result = loaded.run_traced(values, engine=engine, listener=bars.listen)
        except RunError as error:
            if trace is not None and (run_trace := getattr(error, "trace", None)) is not None:
                run_trace.write(trace)
            bars.stop()
            fail(error)
        except KeyboardInterrupt:
            bars.stop()
            click.echo("stopped; what was committed before is unchanged, and a rerun goes on from there", err=True)
            sys.exit(130)
    if trace is not None:
        result.trace.write(trace)
    if as_json:
        print_json(result.outputs)
    else:
        show_outputs(result.outputs)
    return result.outputs
