"""How results look on a terminal: answers with their sources, rankings, index reports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from ragbraid.dsl.tables import format_table
from ragbraid.flows.cli_logic import logic_text
from ragbraid.flows.cli_output import to_json
from ragbraid.flows.trace_text import one_line
from ragbraid.registry.contracts import Answer, Citation, IndexReport, Ranking
from ragbraid.registry.reports import ReportRun

_MAX_QUOTE = 200
"""Characters of a quote that are shown."""

_MAX_ROWS = 30
_MAX_ROUTES = 6
"""What a reader takes in at once: hits of a ranking, and routes beside one another."""


def show_outputs(outputs: Any) -> None:
    """Print what a flow gave, in the form that suits its type; anything unknown as JSON."""
    click.echo(outputs_text(outputs))


def outputs_text(outputs: Any) -> str:
    """Return what a flow gave as `show_outputs` prints it."""
    if isinstance(outputs, Answer):
        return answer_text(outputs)
    if isinstance(outputs, IndexReport):
        return report_text(outputs)
    if isinstance(outputs, ReportRun):
        return report_run_text(outputs)
    if isinstance(outputs, Ranking):
        return ranking_text(outputs)
    if isinstance(outputs, dict):
        return "\n".join(f"{name}:\n{outputs_text(value)}" for name, value in outputs.items())
    if isinstance(outputs, str):
        return outputs
    text = logic_text(outputs)
    return to_json(outputs).removesuffix("\n") if text is None else text


def answer_text(answer: Answer) -> str:
    """Return the answer and, below it, one line per citation with its place and quote."""
    lines = [answer.text]
    if answer.citations:
        lines.extend(["", "Sources:"])
        lines.extend(_citation_line(citation) for citation in answer.citations)
    if answer.unknown_citations:
        lines.append(f"(citations of the model that point at no passage and were removed: {answer.unknown_citations})")
    return "\n".join(lines)


def _citation_line(citation: Citation) -> str:
    place = " > ".join(part for part in (citation.source or citation.chunk_id, *citation.section_path) if part)
    read = "" if citation.kind == "chunk" else f"{citation.kind} "
    quote = f"\n      {read}“{one_line(citation.quote, _MAX_QUOTE)}”" if citation.quote else ""
    unverified = "  (the quote is not in the passage)" if citation.quote and not citation.verified else ""
    return f"  [{citation.marker}] {place}{unverified}{quote}"


def ranking_text(ranking: Ranking) -> str:
    """Return a table of the first hits: the rank in every route where these are few, the kind where there are several."""
    routes = list(dict.fromkeys(route for hit in ranking for route in hit.scores))
    shown = routes if len(routes) <= _MAX_ROUTES else []
    several_kinds = len({hit.kind for hit in ranking}) > 1
    header = (
        "#",
        "SCORE",
        *(route.upper() for route in shown),
        *(("KIND",) if several_kinds else ()),
        "SOURCE",
        "TEXT",
    )
    rows = [
        (
            str(hit.rank),
            f"{hit.score:.4f}",
            *(str(hit.scores[route].rank) if route in hit.scores else "-" for route in shown),
            *((hit.kind,) if several_kinds else ()),
            hit.source or hit.id,
            one_line(hit.text, 60),
        )
        for hit in ranking.hits[:_MAX_ROWS]
    ]
    more = f"\n... and {len(ranking) - _MAX_ROWS} more (all of them with --json)" if len(ranking) > _MAX_ROWS else ""
    return format_table(header, rows) + more if rows else "no hits"


def report_text(report: IndexReport) -> str:
    """Return the totals of an index run, a line for every source that changed, failed or is empty, and the notes."""
    sources = (
        f"knowledge base `{report.knowledge_base}`, generation {report.generation}: "
        f"{report.added} added, {report.updated} updated, {report.unchanged} unchanged, "
        f"{report.deleted} deleted, {report.failed} failed" + (f", {report.empty} empty" if report.empty else "")
    )
    chunks = (
        f"chunks: {report.chunks_added} added, {report.chunks_deleted} deleted, {report.chunks_unchanged} unchanged; "
        f"{report.embedded} embedded"
    )
    atoms = (report.atoms_added, report.atoms_deleted, report.atoms_unchanged)
    if any(atoms):
        chunks += "\natoms: {} added, {} deleted, {} unchanged".format(*atoms)
    if report.entities:
        chunks += f"\nknowledge graph: {report.entities} entities, {report.facts} facts"
    told = [source for source in report.sources if source.status != "unchanged" or source.reason]
    return "\n".join([sources, chunks, *_source_lines(told), *(f"note: {note}" for note in report.notes)])


def report_run_text(run: ReportRun) -> str:
    """Return what a run that writes reports did, a line for every community without one, and the notes."""
    total = (
        f"knowledge base `{run.knowledge_base}`, generation {run.generation}: {run.communities} communities; reports: "
        f"{run.written} written, {run.reused} unchanged, {run.outdated} outdated, {run.removed} deleted"
    )
    missing = [f"  no report about {', '.join(each.entities)}: {each.reason}" for each in run.missing]
    return "\n".join([total, *_first_lines(missing), *(f"note: {note}" for note in run.notes)])


def _source_lines(sources: Iterable[Any]) -> list[str]:
    failed_first = sorted(sources, key=lambda source: (source.status != "failed", source.reason is None))
    return _first_lines(
        [
            f"  {source.status:<9} {source.source}" + (f": {source.reason}" if source.reason else "")
            for source in failed_first
        ]
    )


def _first_lines(lines: list[str], limit: int = 20) -> list[str]:
    more = len(lines) - limit
    return lines if more <= 0 else [*lines[:limit], f"  ... and {more} more (all of them with --json)"]
