"""What the tests of method flows over a knowledge graph share: texts and the triples that they state, indexed for real."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cli_parts import EXAMPLES
from method_parts import PASSAGES, PROJECT, Method, is_asked

from ragbraid.flows.api import load
from ragbraid.flows.resources import shared_pool
from ragbraid.flows.runner import RunResult
from ragbraid.flows.scripted_llm import ScriptedLLM
from ragbraid.flows.scripted_rules import ChatRequest, Reply, Responder

TRIPLES: Mapping[str, Sequence[str]] = {
    "lighthouse": ["lighthouse of Norrhaven > designed by > Edda Lindqvist"],
    "lindqvist": ["Edda Lindqvist > born in > Tarnby", "Tarnby > lies on > Osk"],
    "tarnby": ["Tarnby > lies in > Halmark"],
    "osk": ["Osk > rises in > Veld"],
    "ferry": ["ferry > goes to > Norrhaven"],
    "bakery": ["bakery > sells > rye bread"],
}
"""What `PASSAGES` state, by the passage: a chain of three hops, a branch of it, and what has nothing to do with it."""

ZH_PASSAGES: Mapping[str, str] = {
    "灯塔": "诺港灯塔的设计者是林德。",
    "林德": "林德出生于塔恩比，是一位船长的女儿。",
    "塔恩比": "塔恩比位于哈尔马克省。",
    "面包": "面包房卖黑麦面包。",
}
ZH_TRIPLES: Mapping[str, Sequence[str]] = {
    "灯塔": ["诺港灯塔 > 设计者 > 林德"],
    "林德": ["林德 > 出生于 > 塔恩比"],
    "塔恩比": ["塔恩比 > 位于 > 哈尔马克省"],
    "面包": ["面包房 > 出售 > 黑麦面包"],
}


@contextmanager
def project(folder: Path, *script: Responder, more: str = "") -> Iterator[ScriptedLLM]:
    """Make a folder a project with the example flows, on a model and vectors from the scripted server."""
    with ScriptedLLM(script) as server:
        for path in EXAMPLES.glob("*.yaml"):
            shutil.copy(path, folder)
        (folder / "ragbraid.toml").write_text(PROJECT.format(url=server.base_url) + more)
        try:
            yield server
        finally:
            shared_pool().close()


@contextmanager
def graph_method(
    folder: Path,
    name: str,
    *script: Responder,
    passages: Mapping[str, str] = PASSAGES,
    triples: Mapping[str, Sequence[str]] = TRIPLES,
    more: str = "",
) -> Iterator[Method]:
    """Index passages and what they state with `triples_index.yaml`, and load an example flow.

    Args:
        folder: becomes the project; empty, or used with the same passages before.
        name: the flow, without its ending.
        script: what the model says.
        passages: texts by id; the source of one is its id with `.md`.
        triples: what each passage states, as "subject > predicate > object".
        more: further lines of the project file.
    """
    with project(folder, *script, more=more) as server:
        write_texts(folder / "docs", passages)
        lines = [
            json.dumps(
                dict(zip(("subject", "predicate", "object"), _parts(text), strict=True)) | {"source": f"{id_}.md"}
            )
            for id_, stated in triples.items()
            for text in stated
        ]
        (folder / "triples.jsonl").write_text("\n".join(lines) + "\n")
        load(folder / "triples_index.yaml").run(folder=str(folder / "docs"), triples=str(folder / "triples.jsonl"))
        yield Method(load(folder / f"{name}.yaml"), server)


def write_texts(folder: Path, passages: Mapping[str, str]) -> None:
    """Write each text as a document of its own."""
    folder.mkdir(exist_ok=True)
    for id_, text in passages.items():
        (folder / f"{id_}.md").write_text(text + "\n", encoding="utf-8")


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(">")]


def keeps(prompt: str, *wanted: str) -> Responder:
    """Keep, by their numbers, the lines that a prompt shows with one of these texts in them."""

    def respond(chat: ChatRequest) -> Reply | None:
        if not is_asked(prompt, chat):
            return None
        numbers = [number for number, line in lines_shown(chat) if any(each in line for each in wanted)]
        return Reply(text=json.dumps({"keep": numbers}))

    return respond


def lines_shown(chat: ChatRequest) -> list[tuple[int, str]]:
    """The numbered lines that a request shows."""
    return [(int(number), text) for number, text in re.findall(r"^(\d+)\. (.*)$", chat.user, re.MULTILINE)]


def names(result: RunResult, output: str = "evidence") -> list[str]:
    """The ids of the passages that a ranking comes from, in its order."""
    return [Path(hit.source or "").stem for hit in result.outputs[output]]


def texts(found: Any) -> list[str]:
    """The texts of a ranking or of a sub-graph's facts."""
    return [each.text for each in (found.facts if hasattr(found, "facts") else found)]


def given(result: RunResult, path: str) -> Any:
    """What a step gave."""
    return result.trace.step(path).output
