"""RoG: paths of relations are planned and walked over a knowledge base on disk, and the answer cites where facts stand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from graph_kb_parts import chunk, contribution
from index_parts import WordSparse
from method_parts import EXAMPLES, PROJECT, Method, cited, notes, says

from ragbraid.flows.api import load
from ragbraid.flows.resources import shared_pool
from ragbraid.flows.scripted_llm import ScriptedLLM
from ragbraid.flows.scripted_rules import Responder
from ragbraid.nodes.index import upsert
from ragbraid.nodes.resource_openai import openai_embedder
from ragbraid.nodes.resource_qdrant import local
from ragbraid.registry.contracts import ChunkSet, SourceRecord

FLOW = (EXAMPLES / "rog.yaml").read_text(encoding="utf-8")

CHUNKS = [
    chunk("c1", "The lighthouse of Norrhaven was designed by Edda Lindqvist.", source="lighthouse.md", title="Lighthouse",
          graph=contribution(["lighthouse of Norrhaven > designed by > Edda Lindqvist", "lighthouse of Norrhaven > has > lamp"])),
    chunk("c2", "Edda Lindqvist was born in Tarnby.", source="lindqvist.md",
          graph=contribution(["Edda Lindqvist > born in > Tarnby", "Edda Lindqvist > wrote > memoirs", "Edda Lindqvist > liked > rye"])),
    chunk("c3", "Tarnby lies in Halmark.", source="tarnby.md",
          graph=contribution(["Tarnby > lies in > Halmark", "Tarnby > has > church", "Tarnby > near > Osk"])),
]  # fmt: skip
QUESTION = "In which province was the designer of the lighthouse of Norrhaven born?"
HALMARK = "(lighthouse of Norrhaven)-[designed by]->(Edda Lindqvist)-[born in]->(Tarnby)-[lies in]->(Halmark)"


@contextmanager
def flow_over_graph(folder: Path, *script: Responder) -> Iterator[Method]:
    """Fill a knowledge base on disk with three passages and their facts, and load a flow beside it."""
    with ScriptedLLM(script) as server:
        kb = local(str(folder / "kb"))
        sources = [SourceRecord(source=c.source, document_id=c.document_id, content_hash=c.source) for c in CHUNKS]
        embedder = openai_embedder(base_url=server.base_url, model="tiny", dimension=64)
        upsert(ChunkSet(chunks=tuple(CHUNKS), sources=tuple(sources)), kb=kb, embedder=embedder, sparse=WordSparse())
        kb.close()
        (folder / "ragbraid.toml").write_text(
            PROJECT.format(url=server.base_url) + '\n[resources.kb]\nuse = "qdrant.local"\npath = "./kb"\n'
        )
        (folder / "flow.yaml").write_text(FLOW)
        try:
            yield Method(load(folder / "flow.yaml"), server)
        finally:
            shared_pool().close()


@pytest.mark.parametrize(
    ("paths", "end"),
    [
        ([["designed_by", "born in", "lies in"]], "Halmark"),
        ([["designed_by", "~born in"], ["mayor of"]], "Tarnby"),
    ],
)
def test_paths_are_planned_in_relations_of_the_graph_and_walked(
    tmp_path: Path, paths: list[list[str]], end: str
) -> None:
    with flow_over_graph(tmp_path, says("plan_paths", {"paths": paths}), says("answer", cited(end, 1))) as flow:
        result = flow.run(question=QUESTION)
        (sent,) = flow.chats("plan_paths")
    assert "designed by: (lighthouse of Norrhaven)-[designed by]->(Edda Lindqvist)" in sent.user
    assert result.outputs["facts"][-1].metadata["object"] == end
    assert result.outputs["answer"].citations[0].source == "lighthouse.md"
    assert result.outputs["facts"][0].text == "lighthouse of Norrhaven designed by Edda Lindqvist"


def test_it_explores_where_no_path_can_be_walked(tmp_path: Path) -> None:
    lost = says("plan_paths", {"paths": [["born in"], ["lies in", "has"]]}), says("answer", cited("Halmark", 1))
    with flow_over_graph(tmp_path, *lost) as flow:
        result = flow.run(question=QUESTION)
    assert len(result.outputs["facts"]) == 5
    (walked,) = [step for step in result.trace.steps if step.path.startswith("walked") and "walk_paths" in step.node]
    assert notes(result, walked.path) == [
        "born in: nothing leads on at hop 1, `born in`",
        "lies in / has: nothing leads on at hop 1, `lies in`",
    ]


def test_without_a_known_name_nothing_is_planned_and_the_answer_is_a_refusal(tmp_path: Path) -> None:
    with flow_over_graph(tmp_path, says("plan_paths", {"paths": []})) as flow:
        result = flow.run(question="Who built the bridge of Oslo?")
    assert result.outputs["answer"].refused
    assert result.trace.step("topics").outcome == "empty"


def test_what_a_reader_may_not_see_is_not_walked(tmp_path: Path) -> None:
    script = says("plan_paths", {"paths": [["designed by", "born in", "lies in"]]}), says("answer", cited("Halmark", 1))
    where = {"none": [{"field": "source", "equals": "tarnby.md"}]}
    with flow_over_graph(tmp_path, *script) as flow:
        result = flow.run(question=QUESTION, where=where)
    assert "Halmark" not in str(result.outputs["facts"])


@pytest.mark.prefect
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.usefixtures("prefect_api")
def test_prefect_walks_as_inline_does(tmp_path: Path) -> None:
    script = says("plan_paths", {"paths": [["designed by", "born in"]]}), says("answer", cited("Tarnby", 2))
    with flow_over_graph(tmp_path, *script) as flow:
        inline, on_prefect = flow.run(question=QUESTION), flow.run("prefect", question=QUESTION)
    assert on_prefect.outputs == inline.outputs
