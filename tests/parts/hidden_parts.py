"""What the tests of readers' rights share: documents of several groups, each with a word of its own in all that it contributes.

The word of document `a` is `canarya`: it stands in the text, title, source and metadata of the document, and in names, types,
descriptions, keywords, predicates and reports that come from it. The names and predicates that hold `guessa` are those that a
reader can ask for without having read the document.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from graph_method_parts import project
from method_parts import is_asked

from ragbraid.flows.api import load
from ragbraid.flows.runner import RunResult
from ragbraid.flows.scripted_llm import ScriptedLLM
from ragbraid.flows.scripted_rules import ChatRequest, Reply, Responder

GROUPS: Mapping[str, Sequence[str]] = {
    "a": ["public", "staff"],
    "b": ["public"],
    "c": ["staff"],
    "d": ["board"],
    "e": ["public"],
    "f": [],
}
"""Who may see each document."""
READERS: Mapping[str, tuple[dict[str, Any], str]] = {
    "public": ({"all": [{"field": "metadata.acl", "equals": "public"}]}, "abe"),
    "staff": ({"all": [{"field": "metadata.acl", "any_of": ["staff", "janitors"]}]}, "ac"),
    "not the board": ({"none": [{"field": "metadata.acl", "equals": "board"}]}, "abcef"),
    "nobody": ({"all": [{"field": "metadata.acl", "equals": "nobody"}]}, ""),
}
"""What a reader's documents have to fulfil, and which ones do."""
KEY, KEY_VARIABLE = "sk-of-the-tests-4711", "RAGBRAID_KEY_OF_THE_TESTS"
"""What the project gives to its model and its embedder as a key, and where it stands in the environment."""
GUESSES = [f"guess{each}" for each in GROUPS]
QUESTION = "What has Acme, owner of Borealis, to do with " + ", ".join(f"{guess} made" for guess in GUESSES) + "?"

INDEX = """
ragbraid: 1
name: index
inputs: {passages: path}
nodes:
  load:    {use: load.jsonl, path: $passages}
  chunk:   chunk.whole
  related: {use: enrich.extract_graph, types: [], gleanings: 0}
  stated:  {use: enrich.extract_triples, names: official}
  tagged:  enrich.tag_atoms
  index:   {use: index.upsert, cleanup: scoped_full, neighbour_min_score: 0.3}
  reports: {use: report.write, after: $index}
flow: load -> chunk -> related -> stated -> tagged -> index
outputs: {index: $index, reports: $reports}
"""


@contextmanager
def indexed(folder: Path, *script: Responder) -> Iterator[ScriptedLLM]:
    """A project whose knowledge base holds the documents of all groups, their graph, their atoms and reports.

    Its model and its embedder get `KEY`, which has to stand in the environment.
    """
    with project(folder, *script, _reads) as server:
        file = folder / "ragbraid.toml"
        keyed = f'max_attempts = 1\napi_key = "${{env.{KEY_VARIABLE}}}"'
        file.write_text(file.read_text().replace("max_attempts = 1", keyed))
        lines = [
            {"id": f"canary{each}-doc", "text": f"Acme of canary{each} owns Borealis.", "title": f"canary{each} title",
             "acl": groups, "owner": f"canary{each} owner"}
            for each, groups in GROUPS.items()
        ]  # fmt: skip
        (folder / "passages.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
        (folder / "index.yaml").write_text(INDEX)
        done = load(folder / "index.yaml").run(passages=str(folder / "passages.jsonl"))
        assert (done["index"].failed, done["reports"].missing) == (0, ())
        server.requests.clear()
        yield server


def _reads(chat: ChatRequest) -> Reply | None:
    words = sorted(set(re.findall(r"canary[a-z]\b", chat.user)))
    for prompt, said in _SAID.items():
        if is_asked(prompt, chat):
            return Reply(text=json.dumps(said(words, words[0], f"guess{words[0][-1]}")))
    return None


def _graph(_: Sequence[str], word: str, __: str) -> dict[str, Any]:
    entities = [
        {"name": name, "type": f"{word} type", "description": f"{word} says so"}
        for name in ("Acme", "Borealis", f"{word} thing", f"{word} isle")
    ]
    pairs = [("Acme", "Borealis"), ("Acme", f"{word} thing"), (f"{word} isle", f"{word} rock")]
    related = [
        {"source": s, "target": t, "keywords": [f"{word} key"], "description": f"{word} ties them"} for s, t in pairs
    ]
    return {"entities": entities, "relationships": related}


def _facts(_: Sequence[str], word: str, guess: str) -> dict[str, Any]:
    stated = [
        ("Acme", f"{guess} made", f"{word} thing"),
        ("Acme", f"{word} wants", "Borealis"),
        ("Acme", "owns", "Borealis"),
        (f"{word} isle", "has", f"{word} rock"),
    ]
    return {"facts": [{"subject": s, "predicate": p, "object": o} for s, p, o in stated]}


def _report(words: Sequence[str], _: str, __: str) -> dict[str, Any]:
    said = " and ".join(words)
    finding = {"summary": f"About {said}.", "explanation": said, "statements": [1, 2, 3]}
    return {"title": f"Of {said}", "summary": said, "rating": 5, "findings": [finding]}


_SAID = {
    "extract_graph": _graph,
    "extract_entities": lambda _, word, guess: {
        "entities": [
            {"name": guess, "type": f"{word} type", "description": f"{word} told"},
            {"name": "Acme", "type": f"{word} firm", "description": f"{word} firm"},
        ]
    },
    "official_names": lambda _, word, __: {"names": [{"number": 1, "official_name": f"{word} thing"}]},
    "extract_facts": _facts,
    "tag_atoms": lambda _, word, __: {"questions": [f"What has Acme to do with {word}?"]},
    "write_report": _report,
}


def words_of(documents: Iterable[str], *stems: str) -> list[str]:
    return [f"{stem}{each}" for each in documents for stem in stems]


def found_in(text: str, words: Iterable[str]) -> set[str]:
    """Which of these words stand in a text, in whatever case."""
    lowered = text.lower()
    return {word for word in words if word in lowered}


def told(result: RunResult) -> str:
    """Everything that a run gave, its traces too, without what was asked for."""
    steps = [(step.path, step.output, step.notes, step.error) for step in result.trace.steps]
    return repr((dict(result.outputs), steps))


def asked(server: ScriptedLLM) -> str:
    """Everything that models were sent."""
    return "\n".join(json.dumps(request.body, ensure_ascii=False) for request in server.requests)
