"""`ragbraid dev`: tools for authors of flows."""

from __future__ import annotations

from pathlib import Path

import click


@click.group()
def dev() -> None:
    """Tools for authors: test a flow against a model that says what you want it to say."""


@dev.command(short_help="Serve a scripted model that speaks OpenAI's API.")
@click.option("--rules", type=click.Path(path_type=Path), help="YAML or JSON file of rules, tried in order.")
@click.option("--replay", type=click.Path(path_type=Path), help="Answer from a recording where no rule does.")
@click.option("--record", type=click.Path(path_type=Path), help="Write every answered chat to a file, for --replay.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8089, show_default=True, help="Port on 127.0.0.1; 0 takes any."
)
def llm(rules: Path | None, replay: Path | None, record: Path | None, port: int) -> None:
    """Serve a scripted model that speaks the OpenAI chat API on this machine, faults on demand included.

    A file of rules is a list such as

    \b
      - {user: "annual leave", json: {answer: "28 days [1]."}}
      - {user: "hotel", fault: rate_limit, retry_after: 2}
      - {reply: "I do not know."}

    where `user` and `system` are regular expressions; `reply` is text as it stands, `json` fills the form that a node
    asks for. Bind it in ragbraid.toml with `use = "openai.chat"`,
    `base_url = "http://127.0.0.1:8089/v1"` and `model = "scripted"`.
    """
    from ragbraid.flows.scripted_llm import serve_forever

    if rules is None and replay is None:
        raise click.UsageError("a scripted model needs something to say: give --rules or --replay")
    serve_forever(rules, port, recording=replay, record_to=record, announce=click.echo)
