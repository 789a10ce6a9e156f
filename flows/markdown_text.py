"""Text from documents and models inside Markdown: it stays the text that it is, and cannot grow beyond bounds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ragbraid.flows.secrets import redact

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_MARKS = re.compile(r"([\\`*_\[\]|~$!@^])")
_ADDRESS = re.compile(r"(:)(?=//)|(?<=www)(\.)", re.IGNORECASE)
"""What renderers turn into links without being asked."""
_CELL_MARKS = re.compile(r"([`*\[<~]|(?<![^\W_])_|_(?![^\W_])|\\(?=[!-/:-@\[-`{-~])|&(?=#?\w+;))")
"""What is markup in a single line; an underscore within a word, say, is not."""
_LINE_START = re.compile(r"^([-+#=:>])|^(\d+)([.)])(?=\s|$)")


def safe_text(text: str, limit: int) -> str:
    """Return a text that can be stored and shown: no secret of this process, no control character, of bounded length.

    Args:
        text: any text.
        limit: characters that stay; what is cut is counted at the end.
    """
    clean = _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", redact(text).replace("\r\n", "\n").replace("\r", "\n"))
    return clean if len(clean) <= limit else f"{clean[:limit]}… ({len(clean) - limit:,} more characters)"


def safe_line(text: str, limit: int) -> str:
    """Return a text as `safe_text` does, in one line."""
    return safe_text(" ".join(text.split()), limit)


def escape_markdown(text: str, limit: int) -> str:
    """Return Markdown that shows the text: its lines stay lines, and nothing in it is markup, HTML or a link."""
    paragraphs = re.split(r"\n\s*\n", safe_text(text, limit).strip())
    return "\n\n".join("\\\n".join(_escape_line(line) for line in part.split("\n")) for part in paragraphs)


def escape_line(text: str, limit: int) -> str:
    """Return Markdown that shows the text in one line, also in the cell of a table."""
    return _escape_line(safe_line(text, limit))


def escape_cell(text: str, limit: int) -> str:
    """Return the text in one line for a reader who may take it for Markdown or show it as it is.

    Prefect's older UI renders the cells of a table, its newer one does not: so there are backslashes only before what
    would be markup, and none in ordinary prose. An address may become a link, to nothing but what it says.
    """
    return _escape_start(_CELL_MARKS.sub(r"\\\1", safe_line(text, limit)))


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lay out a table of cells that are Markdown already."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def fenced(text: str, language: str) -> str:
    """Return a text as a block of code, fenced by more backticks than the text has in a row."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _escape_line(line: str) -> str:
    # Spaces at the start of a line would make it code, and at its end a break.
    line = _MARKS.sub(r"\\\1", line.strip().translate(_ENTITIES))
    line = _ADDRESS.sub(lambda found: "\\" + found[0], line)
    return _escape_start(line)


def _escape_start(line: str) -> str:
    return _LINE_START.sub(lambda found: f"{found[2] or ''}\\{found[1] or found[3]}", line)
