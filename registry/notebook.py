"""What notebooks show of answers, rankings and errors. Everything shown is data: it is escaped, never interpreted."""

from __future__ import annotations

import traceback
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ragbraid.registry.contracts import Answer, Citation, Ranking
    from ragbraid.registry.errors import RagbraidError

_MOST_HITS = 20
_LONGEST_TEXT = 300


def answer_html(answer: Answer) -> str:
    """Return an answer as HTML: its text, and below it what its numbers stand for."""
    paragraphs = [f"<p>{escape(line)}</p>" for line in answer.text.splitlines() if line.strip()]
    if answer.refused:
        paragraphs.append(f"<p><em>refused: {escape(answer.refusal_reason or 'no reason given')}</em></p>")
    items = [f'<li value="{citation.marker}">{_cited(citation)}</li>' for citation in answer.citations]
    return "\n".join([*paragraphs, *(["<ol>", *items, "</ol>"] if items else [])])


def _cited(citation: Citation) -> str:
    place = [citation.source or citation.chunk_id, *citation.section_path]
    doubt = "" if citation.verified or not citation.quote else " <em>(not found in these words)</em>"
    quote = f": “{escape(citation.quote)}”{doubt}" if citation.quote else ""
    return f"{escape(' › '.join(place))}{quote}"


def ranking_html(ranking: Ranking) -> str:
    """Return a ranking as an HTML table of its first 20 hits."""
    rows = [
        f"<tr><td>{hit.rank}</td><td>{hit.score:.4g}</td><td>{escape(hit.source or hit.id)}</td>"
        f'<td style="text-align: left">{escape(_short(hit.text))}</td></tr>'
        for hit in ranking.hits[:_MOST_HITS]
    ]
    count = f"{len(ranking.hits)} hits" + (f", the first {_MOST_HITS}" if len(ranking.hits) > _MOST_HITS else "")
    said = [f"{ranking.route}: {count}" if ranking.route else count, *([ranking.error] if ranking.error else [])]
    head = "<tr><th>rank</th><th>score</th><th>source</th><th>text</th></tr>"
    return "\n".join([f"<table><caption>{escape('; '.join(said))}</caption>", head, *rows, "</table>"])


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_TEXT else line[: _LONGEST_TEXT - 1] + "…"


def error_lines(error: RagbraidError) -> list[str]:
    """Return an error as sentences, every finding of a file among them.

    The traceback of an exception that is not ours, such as a mistake in somebody's own node, stands above them.
    """
    findings = getattr(error, "findings", ())
    sentences = [f"{each.span}: {each.code} {each.message}" + _hint(each.hint) for each in findings]
    lines = sentences or [f"{error}{_hint(getattr(error, 'hint', None))}"]
    cause = error.__cause__
    is_foreign = cause is not None and not hasattr(cause, "_render_traceback_")
    above = ["".join(traceback.format_exception(cause))] if is_foreign else []
    return [*above, *(f"{type(error).__name__}: {line}" for line in lines)]


def _hint(hint: str | None) -> str:
    return f"\n  hint: {hint}" if hint else ""
