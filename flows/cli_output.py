"""What every command prints the same way: findings, JSON, colours."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import click

from ragbraid.dsl.render import render_findings
from ragbraid.registry.errors import Finding


def use_colour(stream: Any = None) -> bool:
    """Whether to colour: only on a terminal, and never where NO_COLOR is set."""
    stream = sys.stdout if stream is None else stream
    return "NO_COLOR" not in os.environ and is_terminal(stream)


def is_terminal(stream: Any) -> bool:
    """Whether somebody looks at the stream."""
    return bool(getattr(stream, "isatty", lambda: False)())


def print_json(value: Any) -> None:
    """Print a value as JSON, Unicode as it is."""
    click.echo(to_json(value), nl=False)


def to_json(value: Any) -> str:
    """Return a value as indented JSON that ends with a line break, Unicode as it is."""
    return json.dumps(value, ensure_ascii=False, indent=2, default=_plain) + "\n"


def _plain(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return dump(mode="json")
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


def print_findings(findings: Sequence[Finding], texts: Mapping[str, str]) -> None:
    """Print findings with line and caret to standard error."""
    click.echo(render_findings(findings, texts, colour=use_colour(sys.stderr)), err=True)
