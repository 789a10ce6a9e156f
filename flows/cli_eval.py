"""`ragbraid eval`: several flows, the same questions, one table."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ragbraid.dsl.tables import format_table
from ragbraid.flows.cli_inputs import parse_inputs, refuse_missing
from ragbraid.flows.cli_output import is_terminal, print_json
from ragbraid.flows.cli_params import (
    flows_argument,
    input_option,
    inputs_file_option,
    json_option,
    profile_option,
    project_option,
)

if TYPE_CHECKING:
    from ragbraid.flows.api import Flow
    from ragbraid.flows.evaluate import FlowResult
    from ragbraid.flows.questions import Question

_TABLE = {
    "recall@5": "R@5",
    "recall@10": "R@10",
    "all_gold@5": "ALL@5",
    "all_gold@10": "ALL@10",
    "mrr@10": "MRR@10",
    "ndcg@10": "nDCG@10",
    "em": "EM",
    "f1": "F1",
    "contains": "CONTAINS",
    "refused": "REFUSED",
    "refused_unanswerable": "REFUSED*",
}
"""The columns of the table; `--json` has everything."""


@click.command("eval")
@flows_argument
@click.option("--questions", "-q", required=True, type=click.Path(path_type=Path), help="JSONL file of questions.")
@click.option("--limit", type=click.IntRange(min=1), help="Use only the first N questions.")
@click.option("--concurrency", type=click.IntRange(min=1), default=1, show_default=True, help="Questions at a time.")
@input_option
@inputs_file_option
@profile_option
@project_option
@json_option
def evaluate(
    flows: tuple[Path, ...],
    questions: Path,
    limit: int | None,
    concurrency: int,
    inputs: tuple[str, ...],
    inputs_file: Path | None,
    profile: str | None,
    project: Path | None,
    as_json: bool,
) -> None:
    """Compare flows on the same questions: one table of what they find, what they answer, and how long it takes.

    A line of the questions file is

    \b
      {"id": "1", "question": "...", "answers": ["..."], "gold_passage_ids": ["..."]}

    Gold passages are named by chunk id, source or document id. R@k is recall, ALL@k the share of questions with every
    gold passage among the first k, CONTAINS the share of answers in which a gold answer occurs, REFUSED the share that
    was refused (REFUSED* of the questions whose "type" is "unanswerable"). A metric is averaged over the questions for
    which it is defined; --json says how many those were. Exit code 1 when a run failed.
    """
    from ragbraid.flows.api import load
    from ragbraid.flows.questions import read_questions

    asked = read_questions(questions, limit)
    # Every flow is loaded before the first one runs: the mistake in the last is not found after an hour.
    loaded = [load(path, profile=profile, project=project) for path in flows]
    values = [parse_inputs(flow.plan, inputs, inputs_file) for flow in loaded]
    for flow, given in zip(loaded, values, strict=True):
        refuse_missing(flow.plan, {"question": "", **given})
    results = [_evaluate(flow, asked, given, concurrency) for flow, given in zip(loaded, values, strict=True)]
    names = _row_names(flows, results)
    if as_json:
        print_json([_to_dict(path, result) for path, result in zip(flows, results, strict=True)])
    else:
        click.echo(results_table(names, results))
        for name, result in zip(names, results, strict=True):
            _print_failures(name, result)
    if any(entry.error is not None for result in results for entry in result.results):
        sys.exit(1)


def _evaluate(flow: Flow, asked: list[Question], inputs: dict[str, Any], concurrency: int) -> FlowResult:
    from ragbraid.flows.evaluate import evaluate_flow

    hidden = not is_terminal(sys.stderr)
    with click.progressbar(length=len(asked), label=flow.name, file=sys.stderr, hidden=hidden) as bar:
        return asyncio.run(
            evaluate_flow(flow, asked, inputs=inputs, concurrency=concurrency, on_done=lambda: bar.update(1))
        )


def results_table(names: list[str], results: list[FlowResult]) -> str:
    """Return one row per flow and one column per metric that any of them has; `-` is a metric that is undefined."""
    summaries = [result.summary() for result in results]
    shown = [name for name in _TABLE if any(name in summary["metrics"] for summary in summaries)]
    header = ("FLOW", "N", "FAILED", *(_TABLE[name] for name in shown), "P50 s", "P95 s", "LLM CALLS", "TOKENS")
    rows = [
        (
            name,
            str(summary["questions"]),
            str(summary["failed"]),
            *(_number(summary["metrics"].get(metric, {}).get("value")) for metric in shown),
            _number(summary["latency_seconds"]["p50"]),
            _number(summary["latency_seconds"]["p95"]),
            f"{summary['usage']['llm_calls']:,}",
            f"{summary['usage']['prompt_tokens'] + summary['usage']['completion_tokens']:,}",
        )
        for name, summary in zip(names, summaries, strict=True)
    ]
    return format_table(header, rows)


def _row_names(paths: tuple[Path, ...], results: list[FlowResult]) -> list[str]:
    """Return the flows' names, and the files' where two flows bear one name."""
    counts = Counter(result.flow for result in results)
    return [result.flow if counts[result.flow] == 1 else str(path) for path, result in zip(paths, results, strict=True)]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _to_dict(path: Path, result: FlowResult) -> dict[str, Any]:
    questions = [
        {
            "id": r.id,
            "metrics": dict(r.metrics),
            "seconds": r.seconds,
            "usage": r.usage,
            "answer": r.answer,
            "error": r.error,
        }
        for r in result.results
    ]
    return {"file": str(path)} | result.summary() | {"results": questions}


def _print_failures(name: str, result: FlowResult, limit: int = 5) -> None:
    failed = [entry for entry in result.results if entry.error is not None]
    for entry in failed[:limit]:
        click.echo(f"{name}: question {entry.id} failed: {entry.error}", err=True)
    if len(failed) > limit:
        click.echo(f"{name}: ... and {len(failed) - limit} more", err=True)
