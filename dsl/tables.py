"""Plain tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ragbraid.dsl.render import display_width


def format_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lay out a plain table, columns padded by display width (a Chinese character is two columns wide)."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(display_width(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell + " " * (width - display_width(cell)) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
