"""`ragbraid runs` and `ragbraid logs`: what the Prefect server knows of the runs of flows."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from ragbraid.dsl.durations import parse_duration
from ragbraid.dsl.tables import format_table
from ragbraid.flows.cli_errors import INTERRUPTED
from ragbraid.flows.cli_output import print_json, use_colour
from ragbraid.flows.cli_params import json_option
from ragbraid.flows.markdown_text import safe_line, safe_text
from ragbraid.flows.run_states import STATES
from ragbraid.flows.trace_text import seconds_text

if TYPE_CHECKING:
    from ragbraid.flows.prefect_history import PastRun, PastStep
    from ragbraid.flows.prefect_read_logs import LogLine

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_MAX_NAME = 60
_MAX_SENTENCE = 400
_MAX_MESSAGE = 100_000
_SHORTEST_ID = 8
_PREFECTS_WORDS = re.compile(r"^(Flow|Task) run encountered an exception:? (\w+: )?")
_COLOURS = {"Completed": "green", "Failed": "red", "Crashed": "red", "TimedOut": "red", "Late": "yellow"}


def _read_since(ctx: click.Context, param: click.Parameter, value: str | None) -> datetime | None:
    if value is None:
        return None
    seconds = parse_duration(value)
    try:
        if seconds is not None:
            return datetime.now(UTC) - timedelta(seconds=seconds)
        return datetime.fromisoformat(value).astimezone()
    except (ValueError, OverflowError):
        raise click.BadParameter("write a duration such as `2h` or `7d`, or a date such as `2026-03-29`") from None


@click.command()
@click.argument("flows", metavar="[FLOW-NAME]...", nargs=-1)
@click.option(
    "--state",
    "states",
    type=click.Choice(list(STATES), case_sensitive=False),
    multiple=True,
    help="Only runs in this state; may be repeated. `scheduled` also lists what a schedule has planned.",
)
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="How many runs to list.")
@click.option(
    "--since",
    metavar="DURATION|DATE",
    callback=_read_since,
    help="Only runs that were to start since then: `90m`, `1d`, or a date and time in the local time zone.",
)
@click.option("--deployment", "deployed", is_flag=True, help="Only runs of deployments.")
@json_option
def runs(
    flows: tuple[str, ...],
    states: tuple[str, ...],
    limit: int,
    since: datetime | None,
    deployed: bool,
    as_json: bool,
) -> None:
    """List the runs of flows on the Prefect server, the newest first.

    Needs a Prefect API (PREFECT_API_URL). Runs of a schedule that are only planned are left out. Times are local, in
    JSON they are UTC.
    """
    from ragbraid.flows.loops import run_to_end
    from ragbraid.flows.prefect_history import RunQuery, list_runs

    found = run_to_end(list_runs(RunQuery(flows, states, since, deployed, limit)))
    if as_json:
        print_json([run_to_dict(run) for run in found])
    elif found:
        click.echo(runs_text(found, colour=use_colour()))
    else:
        asked = "such " if flows or states or since or deployed else ""
        click.echo(f"there are no {asked}runs on this server", err=True)


@click.command()
@click.argument("run", metavar="RUN")
@click.option(
    "--level",
    type=click.Choice(list(_LEVELS), case_sensitive=False),
    default="info",
    show_default=True,
    help="The lowest level that is shown.",
)
@click.option("--follow", "-f", is_flag=True, help="Go on until the run is over.")
@json_option
def logs(run: str, level: str, follow: bool, as_json: bool) -> None:
    """Print what a run and its steps have logged, in order, with the step's name.

    RUN is the run's name, its id or the beginning of it, or `latest`. With --follow the exit code is that of the run:
    0 when it completed, 1 when it failed, crashed or was cancelled; --json then prints one object a line.
    """
    from ragbraid.flows.loops import run_to_end

    try:
        code = run_to_end(_print_log(run, _LEVELS[level.lower()], follow=follow, as_json=as_json))
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)


async def _print_log(wanted: str, level: int, *, follow: bool, as_json: bool) -> int:
    from ragbraid.flows.prefect_history import find_run, read_run
    from ragbraid.flows.prefect_read_logs import follow_log, read_log

    found = await find_run(wanted)
    if not follow:
        await _print_lines(read_log(found.id, level), found, as_json=as_json)
        return 0
    if found.started is None and not found.is_over:
        click.echo(f"{safe_line(found.name, _MAX_NAME)}: {found.state}; waiting until it begins", err=True)
    async for line in follow_log(found.id, level):
        click.echo(_json_line(line) if as_json else line_text(line, colour=use_colour()))
    ended = await read_run(found.id)
    click.echo(outcome_text(ended), err=True)
    return 0 if ended.state == "Completed" else 1


async def _print_lines(lines: AsyncIterator[LogLine], run: PastRun, *, as_json: bool) -> None:
    if as_json:
        print_json([line_to_dict(line) async for line in lines])
        return
    count = 0
    async for line in lines:
        click.echo(line_text(line, colour=use_colour()))
        count += 1
    if not count:
        click.echo(f"{safe_line(run.name, _MAX_NAME)}: {run.state}; it has logged nothing of that level", err=True)


def runs_text(runs: Sequence[PastRun], *, colour: bool = False) -> str:
    """Return a table of runs, in which their ids are as long as they must be to differ."""
    length = _id_length([str(run.id) for run in runs])
    header = ("STATE", "NAME", "ID", "FLOW", "VERSION", "STARTED", "TOOK", "DEPLOYMENT", "")
    rows = [
        (
            run.state,
            safe_line(run.name, _MAX_NAME),
            str(run.id)[:length],
            safe_line(run.flow, _MAX_NAME),
            safe_line(run.version, 12),
            _moment(run.when),
            _took(run.seconds),
            safe_line(run.deployment, _MAX_NAME) or "-",
            plain_sentence(run.sentence),
        )
        for run in runs
    ]
    return _coloured(format_table(header, rows), [run.state for run in runs] if colour else [])


def steps_text(steps: Sequence[PastStep], *, colour: bool = False) -> str:
    """Return a table of what the server knows of a run's steps."""
    header = ("STATE", "STEP", "STARTED", "TOOK", "ATTEMPTS", "")
    rows = [
        (
            step.state,
            safe_line(step.name, _MAX_NAME),
            _moment(step.started),
            _took(step.seconds),
            str(step.attempts),
            plain_sentence(step.sentence),
        )
        for step in steps
    ]
    return _coloured(format_table(header, rows), [step.state for step in steps] if colour else [])


def outcome_text(run: PastRun) -> str:
    """Return how a run ended, as one sentence."""
    took = "" if run.seconds is None else f" after {seconds_text(run.seconds)}"
    why = plain_sentence(run.sentence)
    return f"{safe_line(run.name, _MAX_NAME)}: {run.state}{took}{': ' + why if why else ''}"


def line_text(line: LogLine, *, colour: bool = False) -> str:
    """Return a line of a log; further lines of its message are indented, so that none can pass for another entry."""
    first, *rest = safe_text(line.message, _MAX_MESSAGE).split("\n")
    level = f"{line.level_name:8}"
    if colour and line.level >= _LEVELS["warning"]:
        level = click.style(level, fg="red" if line.level >= _LEVELS["error"] else "yellow")
    moment = line.timestamp.astimezone().isoformat(" ", "milliseconds")[:23]
    where = f"{safe_line(line.step, _MAX_NAME)}: " if line.step else ""
    return "\n".join([f"{moment}  {level} {where}{first}", *(f"    {more}" for more in rest)])


def plain_sentence(message: str) -> str:
    """Return what a state says in one line, without the words that Prefect puts before every failure."""
    return safe_line(_PREFECTS_WORDS.sub("", message), _MAX_SENTENCE)


def run_to_dict(run: PastRun) -> dict[str, Any]:
    """Return a run for `--json`."""
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in asdict(run).items()}


def line_to_dict(line: LogLine) -> dict[str, Any]:
    """Return a line of a log for `--json`."""
    return {
        "timestamp": line.timestamp.isoformat(),
        "level": line.level_name,
        "step": line.step or None,
        "message": line.message,
    }


def _json_line(line: LogLine) -> str:
    return json.dumps(line_to_dict(line), ensure_ascii=False)


def _id_length(ids: Sequence[str]) -> int:
    lengths = range(_SHORTEST_ID, 37)
    return next(length for length in lengths if len({each[:length] for each in ids}) == len(set(ids)))


def _moment(moment: datetime | None) -> str:
    return "-" if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def _took(seconds: float | None) -> str:
    return seconds_text(seconds) if seconds else "-"


def _coloured(table: str, states: Sequence[str]) -> str:
    """Colour the first cell of every row; none where there are no states to go by."""
    header, *rows = table.split("\n")
    styled = (
        [
            click.style(state, fg=_COLOURS.get(state)) + row.removeprefix(state)
            for state, row in zip(states, rows, strict=True)
        ]
        if states
        else rows
    )
    return "\n".join([header, *styled])
