"""What every command prints the same way: findings, errors, tables, JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import click
from ragbraid.dsl.render import render_findings

from ragbraid.registry.errors import Finding, FlowError, RagbraidError, RunError


def use_colour(stream: Any = None) -> bool:
    """Whether to colour: only on a terminal, and never where NO_COLOR is set."""
    stream = sys.stdout if stream is None else stream
    return "NO_COLOR" not in os.environ and bool(getattr(stream, "isatty", lambda: False)())


def print_json(value: Any) -> None:
    """Print a value as JSON, Unicode as it is."""
    click.echo(json.dumps(value, ensure_ascii=False, indent=2, default=_plain))


def _plain(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if dump is not None else str(value)


def print_findings(findings: Sequence[Finding], texts: Mapping[str, str]) -> None:
    """Print findings with line and caret to standard error."""
    click.echo(render_findings(findings, texts, colour=use_colour(sys.stderr)), err=True)


def fail(error: RagbraidError) -> NoReturn:
    """Print an error as sentences and leave with exit code 1."""
    if isinstance(error, FlowError):
        print_findings(error.findings, _read_texts(error.findings))
    else:
        step = f"step `{error.step}` failed: " if isinstance(error, RunError) and error.step else ""
        click.echo(f"error: {step}{error}", err=True)
        if hint := getattr(error, "hint", None):
            click.echo(f"  hint: {hint}", err=True)
    sys.exit(1)


def _read_texts(findings: Iterable[Finding]) -> dict[str, str]:
    texts = {}
    for file in {finding.span.file for finding in findings}:
        try:
            with open(file, encoding="utf-8") as stream:
                texts[file] = stream.read()
        except (OSError, UnicodeDecodeError):
            # The finding itself says that the file cannot be read; it is printed without its line.
            continue
    return texts
