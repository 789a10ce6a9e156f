"""`ragbraid eval`: several flows, the same questions, one table."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import click

from ragbraid.dsl.tables import format_table
from ragbraid.flows.cli_output import print_json, use_colour
from ragbraid.flows.evaluate import METRICS, FlowResult


@click.command("eval")
@click.argument("flows", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--questions", "-q", required=True, type=click.Path(path_type=Path), help="JSONL file of questions.")
@click.option("--limit", type=click.IntRange(min=1), help="Use only the first N questions.")
@click.option("--concurrency", type=click.IntRange(min=1), default=1, show_default=True, help="Questions at a time.")
@click.option("-i", "--input", "inputs", multiple=True, metavar="NAME=VALUE", help="An input for every run.")
@click.option("--profile", help="The profile of ragbraid.toml to use.")
@click.option("--project", type=click.Path(path_type=Path), help="The project file (ragbraid.toml).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the result of every question.")
def evaluate(
    flows: tuple[Path, ...],
    questions: Path,
    limit: int | None,
    concurrency: int,
    inputs: tuple[str, ...],
    profile: str | None,
    project: Path | None,
    as_json: bool,
) -> None:
    """Compare flows on the same questions: recall, full-support recall, MRR, nDCG, EM, F1, latency.

    A line of the questions file: {"id": "1", "question": "...", "answers": ["..."], "gold_passage_ids": ["..."]}.
    Gold passages are named by chunk id, source or document id. Exit code 1 when a run failed.
    """
    from ragbraid.flows.api import load
    from ragbraid.flows.cli_inputs import parse_inputs
    from ragbraid.flows.evaluate import evaluate_flow
    from ragbraid.flows.questions import read_questions

    asked = read_questions(questions, limit)
    results = []
    for path in flows:
        flow = load(path, profile=profile, project=project)
        values = parse_inputs(flow.plan, inputs, None)
        hidden = not use_colour(sys.stderr)
        with click.progressbar(length=len(asked), label=flow.name, file=sys.stderr, hidden=hidden) as bar:
            run = evaluate_flow(
                flow, asked, inputs=values, concurrency=concurrency, on_done=lambda bar=bar: bar.update(1)
            )
            results.append(asyncio.run(run))
    if as_json:
        print_json([_to_dict(result) for result in results])
    else:
        click.echo(results_table(results))
        for result in results:
            _print_failures(result)
    if any(entry.error is not None for result in results for entry in result.results):
        sys.exit(1)


def results_table(results: list[FlowResult]) -> str:
    """Return one row per flow and one column per metric that any of them has."""
    summaries = [result.summary() for result in results]
    shown = [name for name in METRICS if any(name in summary["metrics"] for summary in summaries)]
    header = ("FLOW", "N", "FAILED", *(name.upper() for name in shown), "P50 s", "P95 s", "LLM CALLS")
    rows = [
        (
            summary["flow"],
            str(summary["questions"]),
            str(summary["failed"]),
            *(_number(summary["metrics"].get(name, {}).get("value")) for name in shown),
            _number(summary["latency_seconds"]["p50"]),
            _number(summary["latency_seconds"]["p95"]),
            str(summary["llm_calls"]),
        )
        for summary in summaries
    ]
    return format_table(header, rows)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _to_dict(result: FlowResult) -> dict[str, Any]:
    questions = [
        {"id": r.id, "metrics": dict(r.metrics), "seconds": r.seconds, "answer": r.answer, "error": r.error}
        for r in result.results
    ]
    return result.summary() | {"results": questions}


def _print_failures(result: FlowResult, limit: int = 5) -> None:
    failed = [entry for entry in result.results if entry.error is not None]
    for entry in failed[:limit]:
        click.echo(f"{result.flow}: question {entry.id} failed: {entry.error}", err=True)
    if len(failed) > limit:
        click.echo(f"{result.flow}: ... and {len(failed) - limit} more", err=True)
