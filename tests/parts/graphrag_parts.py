"""What the tests of the GraphRAG flows share: two groups of things that have nothing to do with each other, and one thing alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from extracted_parts import reads
from graph_method_parts import project, write_texts
from method_parts import Method, says

from ragbraid.flows.api import load
from ragbraid.flows.runner import RunResult
from ragbraid.flows.scripted_rules import Responder
from ragbraid.registry.contracts import Ranking

TEXTS: Mapping[str, str] = {
    "mill": "Edda Lindqvist built the mill of Tarnby and lives there.",
    "river": "The mill of Tarnby grinds rye and stands on the river Osk.",
    "port": "The ferry leaves from Norrhaven, and the lighthouse guides it.",
    "light": "The lighthouse of Norrhaven is white.",
    "hermit": "Anselm keeps bees on the moor.",
}
STATED: Mapping[str, Sequence[str]] = {
    "mill": ["Edda Lindqvist > built > mill", "mill > stands in > Tarnby", "Edda Lindqvist > lives in > Tarnby"],
    "river": ["mill > stands on > Osk", "mill > grinds > rye", "Osk > flows through > Tarnby"],
    "port": ["ferry > leaves from > Norrhaven", "lighthouse > guides > ferry"],
    "light": ["lighthouse > stands in > Norrhaven"],
}
ALONE = says(
    "extract_graph",
    {"entities": [{"name": "Anselm", "description": "a beekeeper"}], "relationships": []},
    user="Anselm keeps bees",
)
"""A thing without any connection: it is in no community."""

ZH_TEXTS: Mapping[str, str] = {"磨坊": "埃达在塔恩比建造了磨坊。", "灯塔": "诺港的灯塔为渡船引航。"}
ZH_STATED: Mapping[str, Sequence[str]] = {
    "磨坊": ["埃达 > 建造 > 磨坊", "磨坊 > 位于 > 塔恩比"],
    "灯塔": ["灯塔 > 位于 > 诺港", "灯塔 > 引航 > 渡船"],
}


def report(title: str, rating: float = 5) -> dict[str, Any]:
    """What the model writes about a community: a finding that rests on its first statements and one that does not exist."""
    finding = {"summary": f"{title} matters.", "explanation": "Much.", "statements": [1, 3, 99]}
    return {"title": title, "summary": f"All about {title}.", "rating": rating, "findings": [finding]}


WRITERS: Sequence[Responder] = (
    says("write_report", report("the mill", 7), user="mill|Tarnby|磨坊"),
    says("write_report", report("the port", 4), user="ferry|lighthouse|灯塔"),
)


@contextmanager
def graphrag(
    folder: Path,
    name: str,
    *script: Responder,
    texts: Mapping[str, str] = TEXTS,
    stated: Mapping[str, Sequence[str]] = STATED,
    reports: bool = True,
) -> Iterator[Method]:
    """Index texts with `graphrag_index.yaml`, or without reports, and load an example flow that has asked nothing yet.

    Args:
        folder: becomes the project; empty, or used with the same texts before.
        name: the flow, without its ending.
        script: what the model says beside extraction and, where it says nothing else, reports.
        texts: by id; the source of one is its id with `.md`.
        stated: what each states, as "subject > predicate > object".
        reports: whether reports are written.
    """
    with project(folder, *script, *WRITERS, ALONE, reads(texts, stated)) as server:
        write_texts(folder / "docs", texts)
        load(folder / f"{'graphrag' if reports else 'lightrag'}_index.yaml").run(folder=str(folder / "docs"))
        server.requests.clear()
        yield Method(load(folder / f"{name}.yaml"), server)


def point(text: str, score: int, *numbers: int) -> dict[str, Any]:
    return {"text": text, "score": score, "statements": list(numbers)}


def points(*each: dict[str, Any]) -> dict[str, Any]:
    return {"points": list(each)}


def summary(text: str) -> Responder:
    return says("reduce_points", {"cannot_answer": False, "answer": text})


def kinds(ranking: Ranking) -> list[str]:
    """The kinds of hits in the order in which each comes first."""
    return list(dict.fromkeys(hit.kind for hit in ranking))


def sources(result: RunResult) -> set[str | None]:
    """Where the answer says that it comes from."""
    return {citation.source for citation in result.outputs["answer"].citations}
