"""What the tests of KAG share: a company and its founders as passages and facts, steps of plans, and what a run came to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from method_parts import Method, cited, method, says

from ragbraid.flows.api import load
from ragbraid.flows.runner import RunResult
from ragbraid.flows.scripted_rules import Responder
from ragbraid.registry.logic import Bindings, Solution

QUESTION = "Which of the two founders of Acme was born earlier?"
PASSAGES = {
    "acme": "Acme was founded in 1999 by Ann Holm and Bo Lind.",
    "ann": "Ann Holm was born on 1 March 1950.",
    "bo": "Bo Lind was born on 4 July 1960.",
    "seat": "The offices of Acme are in Halmark.",
    "ferry": "The ferry to Norrhaven leaves at 7:15 every morning.",
}
TRIPLES = [
    ("acme", "Acme", "founder", "Ann Holm"),
    ("acme", "Acme", "founder", "Bo Lind"),
    ("ann", "Ann Holm", "born on", "1 March 1950"),
    ("bo", "Bo Lind", "born on", "4 July 1960"),
    ("seat", "Acme", "has its offices in", "Halmark"),
]
INDEX = """
ragbraid: 1
name: kag_index
inputs: {passages: path, triples: path}
nodes:
  load: {use: load.jsonl, path: $passages}
  chunk: chunk.whole
  graph: {use: load.triples, path: $triples}
  index: {use: index.upsert, cleanup: scoped_full}
flow: load -> chunk -> graph -> index
outputs: $index
"""
FOUND = {
    "question": "Who founded Acme?",
    "op": "retrieve",
    "s": {"alias": "s1", "types": ["Company"], "mention": "Acme"},
    "p": {"alias": "p1", "types": ["founder"]},
    "o": {"alias": "o1", "types": ["Person"]},
}
BORN = {
    "question": "When was each born?",
    "op": "retrieve",
    "s": {"alias": "o1"},
    "p": {"alias": "p2", "types": ["born on"]},
    "o": {"alias": "o2"},
}
EARLIER = {
    "question": "Who was born earlier?",
    "op": "math",
    "inputs": ["o2"],
    "target": "the person with the earliest date",
    "out_alias": "m1",
}
SEAT = {
    "question": "In which town are the offices of Acme?",
    "op": "retrieve",
    "s": {"alias": "s3", "mention": "Acme"},
    "p": {"alias": "p3", "types": ["offices in"]},
    "o": {"alias": "o3"},
}


def out(*aliases: str) -> dict[str, Any]:
    """A step that outputs variables."""
    return {"question": "The answer", "op": "output", "inputs": list(aliases)}


def plans(*steps: dict[str, Any]) -> dict[str, Any]:
    """What the model says for a plan."""
    return {"steps": list(steps)}


def said(text: str, *values: str, answered: bool = True) -> dict[str, Any]:
    """What the model says for the answer to a step."""
    pairs = [{"value": value, "of": None} for value in values]
    return {"answered": answered, "answer": text, "values": pairs, "passages_used": [1]}


FINE = says("judge_answer", {"acceptable": True, "missing": [], "thinking": ""})
NOTHING_PICKED = says("pick_relations", {"keep": []})
ANSWERED = says("answer", cited("Ann Holm", 1))


@contextmanager
def kag(
    folder: Path, *script: Responder, triples: Any = TRIPLES, passages: Any = PASSAGES, more: str = ""
) -> Iterator[Method]:
    """The flow over passages and their graph."""
    with method(folder, "kag", *script, FINE, NOTHING_PICKED, ANSWERED, passages=passages, more=more) as flow:
        lines = [json.dumps(dict(zip(("source", "s", "p", "o"), each, strict=True))) for each in triples]
        (folder / "triples.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (folder / "kag_index.yaml").write_text(INDEX, encoding="utf-8")
        load(folder / "kag_index.yaml").run(
            passages=str(folder / "passages.jsonl"), triples=str(folder / "triples.jsonl")
        )
        yield flow


def values(result: RunResult) -> dict[str, tuple[str, ...]]:
    """What every variable stands for, sorted."""
    known: Bindings = result.outputs["bindings"]
    return {each.alias: tuple(sorted(each.values)) for found in known.results for each in found.bindings}


def solution(result: RunResult) -> Solution:
    """What the plan came to."""
    found: Solution = result.outputs["result"]
    return found
