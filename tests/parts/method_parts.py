"""What the tests of the method flows share: a small real knowledge base, and a model that says what a test wants.

    with method(tmp_path, "ircot", says("next_thought", {"thought": "..."}, {"thought": "", "answer": "..."})) as flow:
        result = flow.run(question="...")
        assert flow.chats("next_thought")[0].user ...

The model and the vectors come from the scripted server over HTTP; store, search, nodes and runners are the real ones.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli_parts import EXAMPLES

from ragbraid.flows.api import Engine, Flow, load
from ragbraid.flows.resources import shared_pool
from ragbraid.flows.runner import RunResult
from ragbraid.flows.scripted_llm import ScriptedLLM
from ragbraid.flows.scripted_rules import ChatRequest, Fault, Reply, Responder
from ragbraid.nodes.prompts import load_template

PROJECT = """
[resources.embedder]
use = "openai.embedder"
base_url = "{url}"
model = "tiny"
dimension = 64
max_attempts = 1

[resources.llm]
use = "openai.chat"
base_url = "{url}"
model = "scripted"
max_attempts = 1
"""

PASSAGES: Mapping[str, str] = {
    "lighthouse": "The lighthouse of Norrhaven was designed by Edda Lindqvist.",
    "lindqvist": "Edda Lindqvist was born in Tarnby, a village on the river Osk.",
    "tarnby": "Tarnby lies in the province of Halmark and has 412 inhabitants.",
    "osk": "The river Osk rises in the hills of Veld and is 90 km long.",
    "ferry": "The ferry to Norrhaven leaves at 7:15 every morning.",
    "bakery": "The bakery opens at six and sells rye bread.",
}
"""Passages by id: a chain of three hops, and two passages that have nothing to do with it."""

Said = Mapping[str, Any] | str | Reply
"""What the model says: the fields of an object, a text as it is, or a reply with a fault."""


@dataclass(frozen=True)
class Method:
    """One flow of the examples over a filled knowledge base."""

    flow: Flow
    server: ScriptedLLM

    def run(self, engine: Engine = "inline", /, **inputs: Any) -> RunResult:
        return self.flow.run_traced(inputs, engine=engine)

    def chats(self, prompt: str | None = None) -> list[ChatRequest]:
        """What the model was asked, in order; of one of our prompts where it is named."""
        return [chat for chat in self.server.chats if prompt is None or is_asked(prompt, chat)]


@contextmanager
def method(
    folder: Path,
    name: str,
    *script: Responder,
    passages: Mapping[str, str] = PASSAGES,
    atoms: Mapping[str, Sequence[str]] | None = None,
    more: str = "",
) -> Iterator[Method]:
    """Fill a knowledge base in a folder that is empty or was used with the same passages, and load an example flow.

    Args:
        folder: becomes the project.
        name: the flow, without its ending.
        script: what the model says.
        passages: texts by id, which become their sources.
        atoms: the questions that passages answer; when given, the index flow of PIKE-RAG writes them.
        more: further lines of the project file.
    """
    if atoms is not None:
        script = (*(_tags(text, atoms.get(id_, [])) for id_, text in passages.items()), *script)
    with ScriptedLLM(script) as server:
        for path in EXAMPLES.glob("*.yaml"):
            shutil.copy(path, folder)
        (folder / "ragbraid.toml").write_text(PROJECT.format(url=server.base_url) + more)
        try:
            _fill(folder, passages, "ingest_passages" if atoms is None else "pike_rag_index")
            yield Method(load(folder / f"{name}.yaml"), server)
        finally:
            shared_pool().close()


def _tags(text: str, questions: Sequence[str]) -> Responder:
    return says("tag_atoms", {"questions": list(questions)}, user=re.escape(text.splitlines()[0]))


def _fill(folder: Path, passages: Mapping[str, str], index: str) -> None:
    if index == "ingest_passages":
        lines = [json.dumps({"id": id_, "text": text}) for id_, text in passages.items()]
        (folder / "passages.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        load(folder / "ingest_passages.yaml").run(passages=str(folder / "passages.jsonl"))
        return
    (folder / "docs").mkdir(exist_ok=True)
    for id_, text in passages.items():
        (folder / "docs" / f"{id_}.md").write_text(text + "\n", encoding="utf-8")
    load(folder / f"{index}.yaml").run(folder=str(folder / "docs"))


def is_asked(prompt: str, chat: ChatRequest) -> bool:
    """Whether a request was made from one of our prompts, in either language."""
    openings = (re.split(r"\s*\{[{%]", _system_of(prompt, language))[0] for language in ("en", "zh"))
    return chat.system.startswith(tuple(openings))


def _system_of(prompt: str, language: Any) -> str:
    return load_template(prompt, language).split("{% block system %}\n", 1)[1].splitlines()[0]


def says(prompt: str, *replies: Said, user: str = "") -> Responder:
    """Answer the n-th request of a prompt with the n-th reply; the last one is said again and again.

    Args:
        prompt: the name of one of our prompts, such as `next_thought`.
        replies: what the model says.
        user: only requests of which a user message holds this pattern; a request to repair an answer has two.
    """
    lock = threading.Lock()
    left = [_as_reply(said) for said in replies]

    def respond(chat: ChatRequest) -> Reply | None:
        asked = "\n".join(str(message["content"]) for message in chat.messages if message["role"] == "user")
        if not is_asked(prompt, chat) or not re.search(user, asked):
            return None
        with lock:
            return left.pop(0) if len(left) > 1 else left[0]

    return respond


def fails(prompt: str, fault: Fault) -> Responder:
    """Fail every request of a prompt in this way."""
    return says(prompt, Reply(text="{}", fault=fault))


def _as_reply(said: Said) -> Reply:
    if isinstance(said, Reply):
        return said
    return Reply(text=said if isinstance(said, str) else json.dumps(dict(said), ensure_ascii=False))


def cited(text: str, *numbers: int) -> dict[str, Any]:
    """Return what the model says for an answer with citations of these passages."""
    marks = "".join(f"[{number}]" for number in numbers)
    return {
        "cannot_answer": False,
        "answer": f"{text} {marks}".strip(),
        "citations": [{"n": number, "quote": "the"} for number in numbers],
    }


def notes(result: RunResult, path: str) -> list[str]:
    """What the trace says about a step."""
    return list(result.trace.step(path).notes)


def paths(result: RunResult) -> list[str]:
    """The steps that ran, in the order in which they started."""
    return [step.path for step in result.trace.steps]
