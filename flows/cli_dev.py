"""`ragbraid dev`: tools for authors of flows."""

from __future__ import annotations

from pathlib import Path

import click


@click.group()
def dev() -> None:
    """Tools for authors: test a flow against a model that says what you want it to say."""


@dev.command()
@click.option(
    "--rules",
    type=click.Path(path_type=Path),
    help="YAML or JSON file of rules; without it every call is answered alike.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=8089, show_default=True, help="Port on 127.0.0.1.")
def llm(rules: Path | None, port: int) -> None:
    """Serve a scripted model that speaks the OpenAI chat API on this machine, faults on demand included."""
    from ragbraid.flows.scripted_llm import serve_forever

    serve_forever(rules, port)
