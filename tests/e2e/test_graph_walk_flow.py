"""Think-on-Graph and RoG as flows over a knowledge base on disk: linked, walked hop by hop, judged, cited."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from graph_kb_parts import chunk, contribution
from index_parts import WordSparse
from method_parts import PROJECT, Method, cited, is_asked, notes, says

from ragbraid.flows.api import load
from ragbraid.flows.resources import shared_pool
from ragbraid.flows.scripted_llm import ScriptedLLM
from ragbraid.flows.scripted_rules import ChatRequest, Reply, Responder
from ragbraid.nodes.index import upsert
from ragbraid.nodes.resource_openai import openai_embedder
from ragbraid.nodes.resource_qdrant import local
from ragbraid.registry.contracts import ChunkSet, SourceRecord

TOG = """
ragbraid: 1
name: tog
inputs:
  question: str
  max_depth: {type: int, default: 3, ge: 1, le: 5}
nodes:
  names: graph.spot
  topics: {use: graph.link, mentions: $names}
  think:
    loop:
      carry:
        walked: {type: SubGraph, default: {}}
        ends: EntityLinks = $topics
      nodes:
        step: {use: graph.explore, seeds: $ends, known: $walked, depth: 1, fan: 50}
        relations: {use: graph.prune_relations, subgraph: $step, keep: 1}
        entities: {use: graph.prune_entities, subgraph: $relations, keep: 1}
        longer: {use: graph.extend, walked: $walked, step: $entities}
        further: {use: graph.frontier, subgraph: $entities}
        read: {use: graph.facts_of, subgraph: $longer}
        enough: {use: reason.next_thought, evidence: $read}
      next: {walked: $longer, ends: $further}
      stop_when:
        nothing_found: ${ entities | length == 0 }
        answered: $enough.is_final
      max_steps: $max_depth
  facts: {use: graph.facts_of, subgraph: $think.walked}
  answer: {use: generate.answer, hits: $facts}
outputs: {answer: $answer, facts: $facts, stopped_by: $think.stopped_by, steps: $think.steps}
"""

ROG = """
ragbraid: 1
name: rog
inputs: {question: str}
nodes:
  names: graph.spot
  topics: {use: graph.link, mentions: $names}
  planned: {use: graph.plan_paths, seeds: $topics}
  walked:
    gate:
      try:
        - {use: graph.walk_paths, seeds: $topics, paths: $planned, either_way: true}
        - {use: graph.explore, seeds: $topics, depth: 2}
      enough: ${ out.facts | length > 0 }
  ends: {use: graph.frontier, subgraph: $walked}
  facts: {use: graph.facts_of, subgraph: $walked}
outputs: {facts: $facts, ends: $ends}
"""

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
def flow_over_graph(folder: Path, flow: str, *script: Responder) -> Iterator[Method]:
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
        (folder / "flow.yaml").write_text(flow)
        try:
            yield Method(load(folder / "flow.yaml"), server)
        finally:
            shared_pool().close()


def picks(prompt: str, *wanted: str) -> Responder:
    """Keep what is shown with one of these texts in it."""

    def respond(chat: ChatRequest) -> Reply | None:
        if not is_asked(prompt, chat):
            return None
        shown = (line.partition(". ") for line in chat.user.splitlines())
        numbers = [int(number) for number, _, text in shown if number.isdigit() and any(w in text for w in wanted)]
        return Reply(text=json.dumps({"keep": numbers}))

    return respond


RELATIONS = picks("prune_relations", "designed by", "born in", "lies in")
ENTITIES = picks("prune_entities", "Edda", "Tarnby", "Halmark")


def test_think_on_graph_walks_hop_by_hop_to_an_answer_that_cites_where_its_facts_stand(tmp_path: Path) -> None:
    think = says(
        "next_thought",
        {"thought": "Edda Lindqvist designed it.", "answer": None},
        {"thought": "She was born in Tarnby.", "answer": None},
        {"thought": "Tarnby lies in Halmark.", "answer": "Halmark"},
    )
    with flow_over_graph(tmp_path, TOG, RELATIONS, ENTITIES, think, says("answer", cited("Halmark", 3))) as flow:
        result = flow.run(question=QUESTION)
    outputs = result.outputs
    assert (outputs["stopped_by"], outputs["steps"]) == ("answered", 3)
    assert [hit.text for hit in outputs["facts"]] == [
        "lighthouse of Norrhaven designed by Edda Lindqvist",
        "Edda Lindqvist born in Tarnby",
        "Tarnby lies in Halmark",
    ]
    assert outputs["facts"][2].metadata["path"] == HALMARK
    (citation,) = outputs["answer"].citations
    assert (citation.source, citation.chunk_id) == ("tarnby.md", "c3")


def test_think_on_graph_ends_at_its_depth_and_where_nothing_leads_on(tmp_path: Path) -> None:
    undecided = says("next_thought", {"thought": "", "answer": None})
    answer = says("answer", cited("Halmark", 1))
    with flow_over_graph(tmp_path, TOG, RELATIONS, ENTITIES, undecided, answer) as flow:
        shallow = flow.run(question=QUESTION, max_depth=1).outputs
        deep = flow.run(question=QUESTION, max_depth=5).outputs
        lost = flow.run(question="Who built the bridge of Oslo?", max_depth=5)
    assert (shallow["stopped_by"], len(shallow["facts"])) == ("max_steps", 1)
    assert (deep["stopped_by"], deep["steps"], len(deep["facts"])) == ("nothing_found", 4, 3)
    assert (lost.outputs["stopped_by"], lost.outputs["answer"].refused) == ("nothing_found", True)
    assert lost.trace.step("names").outcome == lost.trace.step("topics").outcome == "empty"
    assert lost.trace.step("think[1].step").outcome == "empty"


@pytest.mark.prefect
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.usefixtures("prefect_api")
def test_prefect_walks_as_inline_does(tmp_path: Path) -> None:
    said = says("next_thought", {"thought": "", "answer": None}), says("answer", cited("Halmark", 3))
    with flow_over_graph(tmp_path, TOG, RELATIONS, ENTITIES, *said) as flow:
        inline, on_prefect = flow.run(question=QUESTION), flow.run("prefect", question=QUESTION)
    assert on_prefect.outputs == inline.outputs
    assert on_prefect.outputs["facts"][2].metadata["path"] == HALMARK


@pytest.mark.parametrize(
    ("paths", "end"),
    [
        ([["designed_by", "born in", "lies in"]], "Halmark"),
        ([["designed_by", "~born in"], ["mayor of"]], "Tarnby"),
    ],
)
def test_rog_plans_in_relations_of_the_graph_and_walks_them(tmp_path: Path, paths: list[list[str]], end: str) -> None:
    with flow_over_graph(tmp_path, ROG, says("plan_paths", {"paths": paths})) as flow:
        result = flow.run(question=QUESTION)
        (sent,) = flow.chats("plan_paths")
    assert "designed by: (lighthouse of Norrhaven)-[designed by]->(Edda Lindqvist)" in sent.user
    assert [link.entity.name for link in result.outputs["ends"].links] == [end]
    assert result.outputs["facts"][0].text == "lighthouse of Norrhaven designed by Edda Lindqvist"


def test_rog_explores_where_no_path_can_be_walked(tmp_path: Path) -> None:
    with flow_over_graph(tmp_path, ROG, says("plan_paths", {"paths": [["born in"], ["lies in", "has"]]})) as flow:
        result = flow.run(question=QUESTION)
    assert len(result.outputs["facts"]) == 5
    (walked,) = [step for step in result.trace.steps if step.path.startswith("walked") and "walk_paths" in step.node]
    assert notes(result, walked.path) == [
        "born in: nothing leads on at hop 1, `born in`",
        "lies in / has: nothing leads on at hop 1, `lies in`",
    ]
