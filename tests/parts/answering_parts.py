"""A project whose one flow asks a scripted model, without a knowledge base."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ragbraid.flows.scripted_llm import ScriptedLLM
from ragbraid.flows.scripted_rules import Responder, Rule

ANSWER = "The alpha pump needs oil every twelve days, and never on Sundays."
DRAFT = json.dumps({"cannot_answer": False, "answer": ANSWER})
GOOD = Rule(reply=DRAFT)

FLOW = """
ragbraid: 1
name: {name}
inputs:
  question: str
  length: {{type: int, default: 100, ge: 1, le: 500}}
nodes:
  answer: {{use: generate.closed_book, max_tokens: $length}}
outputs: $answer
"""


@contextmanager
def answering(folder: Path, *script: Responder, text: str = FLOW, name: str = "answering") -> Iterator[ScriptedLLM]:
    """Serve the script, and write a project that is bound to it; its flow is `<name>.yaml`."""
    with ScriptedLLM(script) as server:
        (folder / "ragbraid.toml").write_text(
            f'[resources.llm]\nuse = "openai.chat"\nmodel = "m"\nbase_url = "{server.base_url}"\nmax_attempts = 1\n'
            "timeout_seconds = 60\n"
        )
        (folder / f"{name}.yaml").write_text(text.format(name=name))
        yield server
