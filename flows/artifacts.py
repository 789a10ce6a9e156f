"""What a run leaves for its reader in the Prefect UI, worked out from its plan and its outputs.

Answers, rankings and index reports become artifacts, and so does the drawing of the flow. Whatever comes from documents
or models is shown as text, without secrets, and cut with a word about how much is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from ragbraid.dsl.draw import draw_mermaid
from ragbraid.dsl.plan import Plan
from ragbraid.flows.deployed import VERSION_LENGTH
from ragbraid.flows.markdown_text import escape_cell, escape_line, escape_markdown, fenced, markdown_table
from ragbraid.registry.contracts import Answer, Citation, Hit, IndexReport, Ranking, SourceReport

MAX_ANSWER = 20_000
MAX_QUOTE = 500
MAX_CELL = 300
"""Characters that are shown of an answer, of a quote, and of a name, reason or passage in a table."""

MAX_CITATIONS = 50
MAX_HITS = 100
MAX_ROUTES = 8
MAX_SOURCES = 300
MAX_NOTES = 20
MAX_OUTPUTS = 20
"""How many of each are shown."""

MAX_DRAWING = 40_000
"""Characters of a drawing; Mermaid itself draws no more than 50,000."""

MAX_KEY = 200
"""Characters of a key."""


@dataclass(frozen=True, slots=True)
class RunArtifact:
    """One artifact: Markdown, or the rows of a table, each a mapping from column to cell."""

    key: str
    kind: Literal["markdown", "table"]
    content: str | list[dict[str, str]]
    description: str


def artifacts_of(plan: Plan, outputs: Mapping[str, Any]) -> list[RunArtifact]:
    """Return the artifacts of a run that has ended: one for every output that a reader can use.

    Args:
        plan: the flow that ran.
        outputs: what it gave, by name; the one value of a flow without named outputs stands under the empty name.
    """
    found: list[RunArtifact] = []
    for name, value in outputs.items():
        render = next((render for kind, render in _RENDERERS.items() if isinstance(value, kind)), None)
        if render is not None and len(found) < MAX_OUTPUTS:
            found.append(render(plan, name, value))
    return list(_with_distinct_keys(found))


def drawing_of(plan: Plan) -> RunArtifact:
    """Return the drawing of the flow as an artifact."""
    drawing = draw_mermaid(plan)
    content = fenced(drawing, "mermaid")
    if len(drawing) > MAX_DRAWING:
        content = (
            f"The flow has too many steps to be drawn here: `ragbraid graph` draws it ({len(drawing):,} characters)."
        )
    return RunArtifact(artifact_key(plan.name, "drawing"), "markdown", content, _description(plan, "Drawing"))


def artifact_key(*parts: str) -> str:
    """Return a key that Prefect takes, which are lower-case letters, digits and dashes, from names."""
    key = re.sub(r"[^a-z0-9]+", "-", "-".join(part for part in parts if part).lower())
    return key[:MAX_KEY].strip("-") or "flow"


def _with_distinct_keys(artifacts: list[RunArtifact]) -> Iterator[RunArtifact]:
    # Names that differ in case or underscores alone would share a key, and one would hide the other.
    taken: set[str] = set()
    for artifact in artifacts:
        key, number = artifact.key, 1
        while key in taken:
            number += 1
            key = f"{artifact.key}-{number}"
        taken.add(key)
        yield artifact if key == artifact.key else replace(artifact, key=key)


def _key(plan: Plan, output: str, kind: str) -> str:
    """Return the key of an output's artifact; an output that is called as what it is, is not called so twice."""
    return artifact_key(plan.name, "" if output == kind else output, kind)


def _description(plan: Plan, what: str, output: str = "", *cuts: str) -> str:
    output = f" `{output}`" if output and output != what.lower() else ""
    return f"{what}{output} of `{plan.name}`, version {plan.hash[:VERSION_LENGTH]}" + "".join(
        f"; {cut}" for cut in cuts
    )


def _left_out(count: int, limit: int, what: str) -> list[str]:
    return [f"{count - limit:,} more {what} are left out"] if count > limit else []


def _answer(plan: Plan, output: str, answer: Answer) -> RunArtifact:
    parts = [escape_markdown(answer.text, MAX_ANSWER)]
    if answer.refused:
        reason = f": {escape_line(answer.refusal_reason, MAX_CELL)}" if answer.refusal_reason else ""
        parts.insert(0, f"**No answer was given**{reason}")
    if answer.citations:
        parts.append("### Sources")
        parts.extend(_citation(citation) for citation in answer.citations[:MAX_CITATIONS])
    cut = _left_out(len(answer.citations), MAX_CITATIONS, "citations")
    parts.extend(f"*{sentence}*" for sentence in cut)
    if answer.unknown_citations:
        parts.append(f"*{answer.unknown_citations} citations of the model pointed at no passage and were removed*")
    key = _key(plan, output, "answer")
    return RunArtifact(key, "markdown", "\n\n".join(parts), _description(plan, "Answer", output, *cut))


def _citation(citation: Citation) -> str:
    names = (citation.source or citation.chunk_id, *citation.section_path)
    place = " &gt; ".join(escape_line(name, MAX_CELL) for name in names if name)
    read = "passage" if citation.kind == "chunk" else citation.kind
    head = f"**\\[{citation.marker}\\]** {place} ({read} read)"
    if not citation.quote:
        return head
    doubt = "" if citation.verified else f" *(the quote is not in the {read})*"
    return f"{head}{doubt}\n\n> {escape_line(citation.quote, MAX_QUOTE)}"


def _ranking(plan: Plan, output: str, ranking: Ranking) -> RunArtifact:
    hits = ranking.hits[:MAX_HITS]
    routes = list(dict.fromkeys(route for hit in hits for route in hit.scores))
    cuts = [
        *_left_out(len(ranking), MAX_HITS, "hits"),
        *_left_out(len(routes), MAX_ROUTES, "routes"),
    ]
    if ranking.error:
        cuts.append(f"it is not complete: {escape_line(ranking.error, MAX_CELL)}")
    rows = [_hit_row(hit, routes[:MAX_ROUTES]) for hit in hits]
    key = _key(plan, output, "ranking")
    return RunArtifact(key, "table", rows, _description(plan, "Ranking", output, *cuts))


def _hit_row(hit: Hit, routes: list[str]) -> dict[str, str]:
    row = {
        "rank": str(hit.rank),
        "score": f"{hit.score:.4f}",
        "kind": "passage" if hit.kind == "chunk" else hit.kind,
        "source": escape_cell(hit.source or hit.id, MAX_CELL),
        "text": escape_cell(hit.text, MAX_CELL),
    }
    for route in routes:
        given = hit.scores.get(route)
        name = escape_cell(route, MAX_CELL)
        row[f"{name}: rank"] = "" if given is None else str(given.rank)
        row[f"{name}: score"] = "" if given is None else f"{given.score:.4f}"
    return row


def _index_report(plan: Plan, output: str, report: IndexReport) -> RunArtifact:
    parts = [
        f"Knowledge base {escape_line(report.knowledge_base, MAX_CELL)}, generation {report.generation}",
        _totals(report),
    ]
    # What needs a reader's attention comes first, what was not touched last.
    sources = sorted(report.sources, key=lambda each: (each.status != "failed", not each.reason, _is_quiet(each)))
    cut = _left_out(len(sources), MAX_SOURCES, "sources")
    if sources:
        header = ("source", "what was done", "chunks added", "deleted", "unchanged", "reason")
        parts.append(markdown_table(header, [_source_row(source) for source in sources[:MAX_SOURCES]]))
    notes = [*report.notes[:MAX_NOTES], *_left_out(len(report.notes), MAX_NOTES, "notes")]
    parts.extend(f"*{sentence}*" for sentence in cut)
    parts.extend(f"Note: {escape_line(note, MAX_CELL)}" for note in notes)
    key = _key(plan, output, "ingestion")
    return RunArtifact(key, "markdown", "\n\n".join(parts), _description(plan, "Ingestion report", output, *cut))


def _is_quiet(source: SourceReport) -> bool:
    return source.status == "unchanged"


def _totals(report: IndexReport) -> str:
    names = ("added", "updated", "unchanged", "deleted", "failed", "empty")
    lines = [markdown_table(["", *names], [["sources", *(f"{getattr(report, name):,}" for name in names)]])]
    chunks = (report.chunks_added, report.chunks_deleted, report.chunks_unchanged)
    lines.append("Chunks: {:,} added, {:,} deleted, {:,} unchanged".format(*chunks) + f"; {report.embedded:,} embedded")
    atoms = (report.atoms_added, report.atoms_deleted, report.atoms_unchanged)
    if any(atoms):
        lines.append("Atoms: {:,} added, {:,} deleted, {:,} unchanged".format(*atoms))
    if report.entities:
        lines.append(f"Knowledge graph: {report.entities:,} entities, {report.facts:,} facts")
    return "\n\n".join(lines)


def _source_row(source: SourceReport) -> tuple[str, ...]:
    return (
        escape_line(source.source, MAX_CELL),
        source.status,
        *(f"{count:,}" for count in (source.chunks_added, source.chunks_deleted, source.chunks_unchanged)),
        escape_line(source.reason or "", MAX_CELL),
    )


_RENDERERS: dict[type[Any], Callable[[Plan, str, Any], RunArtifact]] = {
    Answer: _answer,
    Ranking: _ranking,
    IndexReport: _index_report,
}
