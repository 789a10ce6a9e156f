"""GraphRAG as flows over a knowledge base on disk: reports written behind the index, then local, global and DRIFT search."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from graph_kb_parts import chunk, contribution
from method_parts import PROJECT, Method, cited, notes, says

from ragbraid.flows.api import load
from ragbraid.flows.resources import shared_pool
from ragbraid.flows.scripted_llm import ScriptedLLM
from ragbraid.flows.scripted_rules import Fault, Reply, Responder
from ragbraid.nodes.index import upsert
from ragbraid.nodes.resource_bm25 import multilingual
from ragbraid.nodes.resource_openai import openai_embedder
from ragbraid.nodes.resource_qdrant import local
from ragbraid.registry.contracts import ChunkSet, SourceRecord
from ragbraid.registry.errors import ServiceError
from ragbraid.registry.reports import ReportRun

WRITE = """
ragbraid: 1
name: write_reports
inputs: {chunks: ChunkSet}
nodes:
  index: {use: index.upsert}
  reports: {use: report.write, max_level: 2}
flow: chunks -> index -> reports
outputs: $reports
"""

LOCAL = """
ragbraid: 1
name: graphrag_local
inputs: {question: str}
nodes:
  things:  {use: graph.entities, top_k: 10}
  reports: {use: report.of_entities, entities: $things, top_k: 5}
  facts:   {use: graph.local_facts, entities: $things}
  texts:   {use: graph.text_units, entities: $things}
  overview: {use: context.budget, hits: $reports, max_tokens: 1800}
  table:    {use: context.budget, hits: $facts, max_tokens: 4200}
  passages: {use: context.budget, hits: $texts, max_tokens: 6000}
  context: {use: fuse.append, limit: 100}
  answer:  {use: generate.answer, hits: $context, max_passages: 100}
flow: overview, table, passages -> context
outputs: {answer: $answer, context: $context}
"""

GLOBAL = """
ragbraid: 1
name: graphrag_global
inputs:
  question: str
  level: {type: int, default: 2, ge: 0, le: 5}
nodes:
  reports: {use: report.select, level: $level}
  batches: {use: report.batches, reports: $reports, max_reports: 1}
  points:
    map:
      over: {batch: $batches}
      nodes:
        read: {use: reason.map_points, reports: $batch}
      output: $read
      concurrency: 8
  answer: {use: reason.reduce_points, points: $points}
outputs: {answer: $answer, points: $points}
"""

DRIFT = """
ragbraid: 1
name: drift
inputs:
  question: str
  max_rounds: {type: int, default: 3, ge: 1, le: 5}
nodes:
  forms:    {use: report.select, level: 1}
  imagined: {use: query.hyde_report, reports: $forms}
  found:    {use: report.search, query: $imagined, top_k: 20}
  folds:    {use: report.batches, reports: $found, max_reports: 4}
  primers:
    map:
      over: {fold: $folds}
      nodes:
        primer: {use: reason.primer, reports: $fold}
      output: $primer
  first: {use: reason.gather_leads, answers: $primers}
  rounds:
    loop:
      carry: {leads: Leads = $first}
      nodes:
        answers:
          map:
            over: {lead: $leads.questions}
            nodes:
              things: {use: graph.entities, query: $lead, top_k: 10}
              texts:  {use: graph.text_units, entities: $things, top_k: 10}
              partial: {use: reason.follow_lead, lead: $lead, evidence: $texts, asked: $leads.asked}
            output: $partial
        next_leads: {use: reason.gather_leads, answers: $answers, asked: $leads.asked, points: $leads.points}
      next: {leads: $next_leads}
      stop_when:
        nothing_to_follow: ${ next_leads.questions | length == 0 }
      max_steps: $max_rounds
  answer: {use: reason.reduce_points, points: $rounds.leads.points}
outputs: {answer: $answer, stopped_by: $rounds.stopped_by, rounds: $rounds.steps, asked: $rounds.leads.asked}
"""

TEXTS = {
    "mill": ("Edda built the mill of Tarnby.", ["Edda > built > Mill", "Mill > stands in > Tarnby", "Edda > lives in > Tarnby"]),
    "port": ("The ferry leaves from Norrhaven.", ["Ferry > leaves from > Norrhaven", "Lighthouse > guides > Ferry", "Norrhaven > has > Lighthouse"]),
}  # fmt: skip
CHUNKS = tuple(
    chunk(f"c-{name}", text, source=f"{name}.md", title=name.title(), graph=contribution(facts))
    for name, (text, facts) in TEXTS.items()
)
SET = ChunkSet(
    chunks=CHUNKS,
    sources=tuple(SourceRecord(source=c.source, document_id=c.document_id, content_hash=c.source) for c in CHUNKS),
)
QUESTION = "What is the region about?"


def report(title: str) -> dict[str, Any]:
    finding = {"summary": f"{title} matters.", "explanation": "It does.", "statements": [1, 3]}
    return {"title": title, "summary": f"All about {title}.", "rating": 5, "findings": [finding]}


WRITERS = (
    says("write_report", report("The mill"), user="Tarnby"), says("write_report", report("The port"), user="Ferry")
)  # fmt: skip


@contextmanager
def flow_over_reports(folder: Path, flow: str, *script: Responder, write: bool = True) -> Iterator[Method]:
    """Index two passages with their facts, have their reports written, and load a flow beside them."""
    with ScriptedLLM([*WRITERS, *script]) as server:
        embedder = openai_embedder(base_url=server.base_url, model="tiny", dimension=64)
        kb = local(str(folder / "kb"))
        upsert(SET, kb=kb, embedder=embedder, sparse=multilingual())
        kb.close()
        (folder / "ragbraid.toml").write_text(
            PROJECT.format(url=server.base_url) + '\n[resources.kb]\nuse = "qdrant.local"\npath = "./kb"\n'
        )
        (folder / "flow.yaml").write_text(flow)
        try:
            if write:
                (folder / "write.yaml").write_text(
                    "ragbraid: 1\nname: write\nnodes: {reports: {use: report.write}}\noutputs: $reports\n"
                )
                assert load(folder / "write.yaml").run().written == 2
            server.chats.clear()
            yield Method(load(folder / "flow.yaml"), server)
        finally:
            shared_pool().close()


def points(text: str, score: int, *numbers: int) -> dict[str, Any]:
    return {"points": [{"text": text, "score": score, "statements": list(numbers)}]}


def summary(text: str) -> Responder:
    return says("reduce_points", {"cannot_answer": False, "answer": text})


# -- local -------------------------------------------------------------------------------------------------------------


def test_local_search_reads_reports_facts_and_texts_around_the_entities(tmp_path: Path) -> None:
    """GraphRAG #1391: local search never had a report."""
    with flow_over_reports(tmp_path, LOCAL, says("answer", cited("Edda", 1))) as flow:
        outputs = flow.run(question="Who built the mill of Tarnby?").outputs
    kinds = [hit.kind for hit in outputs["context"]]
    assert kinds == ["report"] * 2 + ["fact"] * 6 + ["chunk"] * 2
    (citation,) = outputs["answer"].citations
    assert citation.chunk_id in {"c-mill", "c-port"}
    assert citation.source in {"mill.md", "port.md"}


# -- global ------------------------------------------------------------------------------------------------------------


def test_global_search_reads_all_reports_and_cites_the_chunks_behind_them(tmp_path: Path) -> None:
    read = (
        says("map_points", points("Edda built a mill.", 80, 2), user="The mill"),
        says("map_points", points("A ferry leaves.", 40, 1), user="The port"),
    )
    with flow_over_reports(tmp_path, GLOBAL, *read, summary("A mill [1] and a port [2].")) as flow:
        answer = flow.run(question=QUESTION).outputs["answer"]
        assert len(flow.chats("map_points")) == 2
        (sent,) = flow.chats("reduce_points")
    assert "1. Edda built a mill.\n2. A ferry leaves." in sent.user
    assert answer.text == "A mill [1] and a port [2]."
    assert [(c.chunk_id, c.source, c.title) for c in answer.citations] == [
        ("c-mill", "mill.md", "Mill"),
        ("c-port", "port.md", "Port"),
    ]


def test_global_search_without_help_refuses_and_asks_no_more(tmp_path: Path) -> None:
    with flow_over_reports(tmp_path, GLOBAL, says("map_points", {"points": []})) as flow:
        answer = flow.run(question=QUESTION).outputs["answer"]
        assert flow.chats("reduce_points") == []
    assert (answer.refused, answer.refusal_reason) == (True, "not_in_passages")


def test_global_search_without_reports_refuses_without_a_call(tmp_path: Path) -> None:
    with flow_over_reports(tmp_path, GLOBAL, write=False) as flow:
        answer = flow.run(question=QUESTION).outputs["answer"]
        assert flow.chats() == []
    assert (answer.refused, answer.refusal_reason) == (True, "no_passages")


@pytest.mark.parametrize(("prompt", "fault"), [("map_points", "server_error"), ("reduce_points", "server_error")])
def test_global_search_never_turns_a_failure_into_an_answer(tmp_path: Path, prompt: str, fault: Fault) -> None:
    script = [says(prompt, Reply(text="{}", fault=fault)), says("map_points", points("A.", 50, 1)), summary("A [1].")]
    with flow_over_reports(tmp_path, GLOBAL, *script) as flow, pytest.raises(ServiceError):
        flow.run(question=QUESTION)


# -- drift -------------------------------------------------------------------------------------------------------------

IMAGINED = says("hyde_report", {"passage": "A report about a mill."})


def partial(answer: str, score: int, *follow_ups: str) -> dict[str, Any]:
    return {"answer": answer, "score": score, "statements": [1], "follow_ups": list(follow_ups)}


def test_drift_follows_what_the_reports_leave_open_until_nothing_is(tmp_path: Path) -> None:
    script = [
        IMAGINED,
        says("primer", partial("A mill and a port.", 30, "Who built the mill?", "Who guides the ferry?")),
        says("follow_lead", partial("Edda built it.", 90, "Where does Edda live?"), user="question:\n.*\n1. Who built"),
        says("follow_lead", partial("The lighthouse.", 60, "who built the mill"), user="question:\n.*\n1. Who guides"),
        says("follow_lead", partial("In Tarnby.", 70), user="question:\n.*\n1. Where does"),
        summary("Edda [1] of Tarnby [2] [7]."),
    ]
    with flow_over_reports(tmp_path, DRIFT, *script) as flow:
        result = flow.run(question=QUESTION)
        (sent,) = flow.chats("reduce_points")
    outputs = result.outputs
    assert (outputs["stopped_by"], outputs["rounds"]) == ("nothing_to_follow", 2)
    assert list(outputs["asked"]) == ["Who built the mill?", "Who guides the ferry?", "Where does Edda live?"]
    assert "1. Edda built it.\n2. In Tarnby.\n3. The lighthouse.\n4. A mill and a port." in sent.user
    assert {c.chunk_id for c in outputs["answer"].citations} <= {"c-mill", "c-port"}
    assert outputs["answer"].unknown_citations == 1


def test_drift_ends_within_its_rounds_when_the_model_never_stops_asking(tmp_path: Path) -> None:
    """GraphRAG #1998: DRIFT hangs."""
    asked: list[int] = []

    def endless(chat: Any) -> Reply | None:
        found = says("follow_lead", "")(chat)
        if found is None:
            return None
        asked.append(1)
        more = [f"Question {len(asked)} {n}?" for n in range(3)]
        return Reply(text=json.dumps(partial("More.", 50, *more)))

    script = [IMAGINED, says("primer", partial("A mill.", 30, "Why?")), endless, summary("So [1].")]
    with flow_over_reports(tmp_path, DRIFT, *script) as flow:
        outputs = flow.run(question=QUESTION, max_rounds=3).outputs
    assert (outputs["stopped_by"], outputs["rounds"]) == ("max_steps", 3)
    assert len(asked) == 1 + 3 + 9
    assert not outputs["answer"].refused


def test_drift_without_follow_ups_answers_from_the_reports(tmp_path: Path) -> None:
    """DRIFT raises an exception."""
    script = [IMAGINED, says("primer", partial("A mill and a port.", 80)), summary("A mill and a port [1].")]
    with flow_over_reports(tmp_path, DRIFT, *script) as flow:
        result = flow.run(question=QUESTION)
        assert flow.chats("follow_lead") == []
    assert (result.outputs["stopped_by"], result.outputs["asked"]) == ("nothing_to_follow", ())
    assert result.outputs["answer"].citations[0].chunk_id in {"c-mill", "c-port"}


def test_drift_that_finds_nothing_says_so(tmp_path: Path) -> None:
    script = [IMAGINED, says("primer", {"answer": "", "score": 0, "statements": [], "follow_ups": []})]
    with flow_over_reports(tmp_path, DRIFT, *script) as flow:
        answer = flow.run(question=QUESTION).outputs["answer"]
    assert (answer.refused, answer.refusal_reason) == (True, "not_in_passages")


# -- writing -----------------------------------------------------------------------------------------------------------


def test_reports_are_written_behind_the_index_and_a_rerun_costs_nothing(tmp_path: Path) -> None:
    with flow_over_reports(tmp_path, WRITE, write=False) as flow:
        first = flow.run(chunks=SET).outputs
        assert isinstance(first, ReportRun)
        assert (first.written, first.reused, len(flow.chats("write_report"))) == (2, 0, 2)
        again = flow.run(chunks=SET)
        assert (again.outputs.written, again.outputs.reused, len(flow.chats())) == (0, 2, 2)
        assert notes(again, "reports") == []


@pytest.mark.prefect
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.usefixtures("prefect_api")
def test_prefect_searches_as_inline_does(tmp_path: Path) -> None:
    script = [
        IMAGINED,
        says("primer", partial("A mill and a port.", 30, "Who built the mill?")),
        says("follow_lead", partial("Edda built it.", 90)),
        summary("Edda [1]."),
    ]
    with flow_over_reports(tmp_path, DRIFT, *script) as flow:
        inline, on_prefect = flow.run(question=QUESTION), flow.run("prefect", question=QUESTION)
    assert on_prefect.outputs == inline.outputs
    assert on_prefect.outputs["rounds"] == 1
