"""What graph methods do wrong elsewhere, shown not to happen in flows: graphs that drift from their documents, keys that travel."""

from __future__ import annotations

import contextlib
import json
import random
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from graph_method_parts import graph_method, project
from graph_parts import graph_content
from index_parts import content_of
from method_parts import cited, fails, is_asked, says

from ragbraid.flows.api import load
from ragbraid.flows.scripted_rules import ChatRequest, Fault, Reply
from ragbraid.nodes.graph_store import QdrantGraphStore
from ragbraid.nodes.knowledge_base import QdrantKnowledgeBase
from ragbraid.nodes.store_edge import EdgeStore
from ragbraid.registry.contracts import IndexReport
from ragbraid.registry.errors import RunError, ServiceError

# -- an index that follows its documents -------------------------------------------------------------------------------

THINGS = ("Acme", "ACME", "Borealis", "Ann Holm", "the mill", "诺港", "Osk")
VERBS = ("owns", "built", "flows through", "位于")


def sentence(chance: random.Random) -> str:
    subject, object_ = chance.sample(THINGS, 2)
    return f"{subject} :: {chance.choice(VERBS)} :: {object_}."


def document(chance: random.Random) -> str:
    sections = (f"# Part {n}\n\n" + "\n".join(sentence(chance) for _ in range(chance.randint(0, 3))) for n in range(3))
    return "\n\n".join(sections) + "\n"


def edit(chance: random.Random, docs: Path) -> None:
    """Write, reword, rename or remove one document; some always stay, since a mass deletion is refused."""
    there = sorted(docs.glob("*.md"))
    kind = chance.choice(("write", "write", "reword", "rename", "remove")) if len(there) > 4 else "write"
    free = next(docs / f"{n}.md" for n in range(100) if not (docs / f"{n}.md").exists())
    chosen = chance.choice(there) if there else free
    if kind == "write":
        free.write_text(document(chance))
    elif kind == "reword":
        chosen.write_text(chosen.read_text() + sentence(chance) + "\n")
    elif kind == "rename":
        chosen.rename(free)
    else:
        chosen.unlink()


class Reader:
    """A model that reads the sentences of a chunk in two passes, and fails when told to."""

    def __init__(self) -> None:
        self.fails = False

    def __call__(self, chat: ChatRequest) -> Reply | None:
        if not is_asked("extract_graph", chat):
            return None
        stated = [each.groups() for each in re.finditer(r"^(.+) :: (.+) :: (.+)\.$", chat.user, re.MULTILINE)]
        if self.fails and len(stated) % 2:
            return Reply(text="{}", fault="server_error")
        again = "<<<known_entities" in chat.user
        said: Mapping[str, Any] = {
            "entities": [
                {"name": f"{s} again" if again else s, "type": "Place", "description": f"{v} {o}"} for s, v, o in stated
            ],
            "relationships": [
                {"source": s, "target": o, "keywords": [v], "description": f"{s} {v} {o}"}
                for s, v, o in stated
                if not again
            ],
        }
        return Reply(text=json.dumps(said, ensure_ascii=False))


def content(folder: Path) -> tuple[Any, Any]:
    """Everything that the knowledge base of a project holds; it adds up."""
    path = str(folder / ".ragbraid/kb")
    store, graph = EdgeStore(path, "kb"), QdrantGraphStore(EdgeStore(path, "kb.graph"))
    with contextlib.closing(QdrantKnowledgeBase(store, graph, "kb")) as kb:
        assert kb.verify() == []
        return content_of(store), graph_content(graph, kb.info().generation)


def index(folder: Path) -> IndexReport:
    report: IndexReport = load(folder / "lightrag_index.yaml").run(folder=str(folder / "docs"))
    return report


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_after_any_edits_the_index_is_what_indexing_from_nothing_gives_and_a_rerun_asks_nothing(
    tmp_path: Path, seed: int
) -> None:
    """LightRAG #3367, #1544, #3835, GraphRAG #2540, HippoRAG (weights after a deletion): what was, or failed, stays."""
    chance, reader = random.Random(seed), Reader()
    edited, clean = tmp_path / "edited", tmp_path / "clean"
    (edited / "docs").mkdir(parents=True)
    with project(edited, reader) as server:
        for _ in range(5):
            edit(chance, edited / "docs")
        for _ in range(5):
            edit(chance, edited / "docs")
            reader.fails = chance.random() < 0.5
            with contextlib.suppress(RunError):
                index(edited)
            reader.fails = False
            healed = index(edited)
            asked = len(server.requests)
            again = index(edited)
            assert (healed.failed, again.failed, again.embedded) == (0, 0, 0)
            assert again.unchanged == len(list((edited / "docs").glob("*.md")))
            assert len(server.requests) == asked
        shutil.copytree(edited, clean, ignore=shutil.ignore_patterns(".ragbraid"))
        index(clean)
    assert content(edited) == content(clean)


# -- planning anew -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["server_error", "not_json"])
def test_a_judge_that_fails_is_no_judge_that_is_content(tmp_path: Path, fault: Fault) -> None:
    """KAG's judge of logical forms says "finished" whatever goes wrong."""
    step = {
        "question": "Where was Edda Lindqvist born?",
        "op": "retrieve",
        "s": {"alias": "s1", "mention": "Edda Lindqvist"},
        "p": {"alias": "p1", "types": ["born in"]},
        "o": {"alias": "o1"},
    }
    plan = {"steps": [step, {"question": "The answer", "op": "output", "inputs": ["o1"]}]}
    script = (says("logical_form", plan), says("answer", cited("Tarnby", 1)), fails("judge_answer", fault))
    with graph_method(tmp_path, "kag", *script) as flow:
        with pytest.raises(ServiceError) as caught:
            flow.run(question="Where was Edda Lindqvist born?")
        assert flow.run(question="Where was Edda Lindqvist born?", max_replans=0).outputs["answer"].text == "Tarnby [1]"
    assert "verdict" in caught.value.step
