"""What tests of flows that index by extraction share: a scripted model that reads given facts out of given texts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from graph_method_parts import TRIPLES, project, write_texts
from method_parts import PASSAGES, Method, is_asked

from ragbraid.flows.api import load
from ragbraid.flows.scripted_rules import ChatRequest, Reply, Responder
from ragbraid.registry.contracts import IndexReport

EXTRACTION = ("extract_entities", "extract_facts", "extract_graph")


@contextmanager
def extracted(
    folder: Path,
    name: str,
    *script: Responder,
    passages: Mapping[str, str] = PASSAGES,
    triples: Mapping[str, Sequence[str]] = TRIPLES,
    more: str = "",
) -> Iterator[Method]:
    """Index passages with the index flow of a method, whose model reads from each what it states, and load the method.

    Args:
        folder: becomes the project; empty, or used with the same passages before.
        name: the flow; its index flow is `NAME_index`.
        script: what the model says; what it does not answer about the passages, `triples` does.
        passages: texts by id; the source of one is its id with `.md`.
        triples: what each passage states, as "subject > predicate > object".
        more: further lines of the project file.
    """
    with project(folder, *script, reads(passages, triples), more=more) as server:
        write_texts(folder / "docs", passages)
        index(folder, name)
        yield Method(load(folder / f"{name}.yaml"), server)


def index(folder: Path, name: str) -> IndexReport:
    """Run the index flow of a method over the documents of a project."""
    report: IndexReport = load(folder / f"{name}_index.yaml").run(folder=str(folder / "docs"))
    return report


def reads(passages: Mapping[str, str], triples: Mapping[str, Sequence[str]]) -> Responder:
    """Answer each prompt of extraction with what the passage that it shows states; a second reading finds nothing."""

    def respond(chat: ChatRequest) -> Reply | None:
        if not any(is_asked(prompt, chat) for prompt in EXTRACTION):
            return None
        stated = [
            [part.strip() for part in triple.split(">")]
            for id_, text in passages.items()
            if text.splitlines()[0] in chat.user and "<<<known_entities" not in chat.user
            for triple in triples.get(id_, ())
        ]
        names = dict.fromkeys(name for subject, _, object_ in stated for name in (subject, object_))
        said = {
            "entities": [{"name": name, "type": "Place", "description": f"about {name}"} for name in names],
            "facts": [{"subject": s, "predicate": p, "object": o} for s, p, o in stated],
            "relationships": [
                {"source": s, "target": o, "keywords": [p], "description": f"{s} {p} {o}", "strength": 1}
                for s, p, o in stated
            ],
        }
        return Reply(text=json.dumps(said, ensure_ascii=False))

    return respond
