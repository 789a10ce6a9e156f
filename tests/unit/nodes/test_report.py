"""The `report.*` nodes over a real knowledge base, in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from graph_kb_parts import chunk, contribution, entities, fill, source
from index_parts import HashEmbedder, WordSparse
from reasoning_parts import failed_ranking, ranking
from report_parts import SameModel, shown

from ragbraid.flows.scripted_llm import ScriptedLLM
from ragbraid.flows.scripted_rules import ChatRequest, Reply, Rule
from ragbraid.nodes.communities import check_communities, communities
from ragbraid.nodes.index import upsert
from ragbraid.nodes.knowledge_base import QdrantKnowledgeBase
from ragbraid.nodes.report import of_entities, search, select, write
from ragbraid.nodes.resource_openai import openai_chat
from ragbraid.registry.context import StepContext, step_context
from ragbraid.registry.contracts import Chunk, ChunkSet, Query, Ranking, SourceRecord, Usage
from ragbraid.registry.errors import LimitError, NodeInputError, ServiceError, SettingsError
from ragbraid.registry.graph_names import entity_id
from ragbraid.registry.reports import ReportRun

MILL = "Edda > built > Mill; Mill > stands in > Tarnby; Edda > lives in > Tarnby"
PORT = "Ferry > leaves from > Norrhaven; Norrhaven > has > Lighthouse; Lighthouse > guides > Ferry"
CHUNKS = [
    chunk("c-mill", source="mill.md", graph=contribution(MILL.split(";"))),
    chunk("c-port", source="port.md", graph=contribution(PORT.split(";"), ["Lonely"])),
]


def reported(request: ChatRequest) -> Reply:
    first = next(line for line in shown(request).splitlines() if line.startswith("1. "))
    title = "Mill" if "Mill" in shown(request) else "Port" if "Ferry" in shown(request) else first
    findings = [{"summary": f"{title} matters.", "explanation": "", "statements": [3]}]
    said = {"title": title, "summary": f"All of {title}.", "rating": 8 if title == "Port" else 3, "findings": findings}
    return Reply(text=json.dumps(said))


def stop_after(calls: int) -> Callable[[Usage], None]:
    """Report a limit of so many calls as used up with the next one."""
    counted: list[Usage] = []

    def count(usage: Usage) -> None:
        counted.append(usage)
        if len(counted) > calls:
            raise LimitError("limits.llm_calls is used up")

    return count


class Base:
    """A filled knowledge base with a scripted model, which counts what both are asked."""

    def __init__(self, server: ScriptedLLM, chunks: Sequence[Chunk]) -> None:
        self.server = server
        self.embedder = HashEmbedder()
        self.kb: QdrantKnowledgeBase = fill(chunks, embedder=self.embedder)
        self.step = StepContext()

    def write(self, step: StepContext | None = None, **settings: Any) -> ReportRun:
        self.step = step or StepContext()
        llm = SameModel(openai_chat(model="m", base_url=self.server.base_url, max_attempts=1))
        with step_context(self.step):
            return asyncio.run(write(kb=self.kb, llm=llm, embedder=self.embedder, **settings))

    def update(self, chunks: Sequence[Chunk]) -> None:
        sources = {each.source: "".join(c.text for c in chunks if c.source == each.source) for each in chunks}
        records = [SourceRecord(source=s, document_id=f"doc:{s}", content_hash=t) for s, t in sources.items()]
        given = ChunkSet(chunks=tuple(chunks), sources=tuple(records), complete=True)
        upsert(given, kb=self.kb, embedder=self.embedder, sparse=WordSparse(), neighbour_min_score=None,
               cleanup="full", allow_mass_delete=True)  # fmt: skip


@contextmanager
def base(*script: Any, chunks: Sequence[Chunk] = CHUNKS) -> Iterator[Base]:
    with ScriptedLLM(script or [reported]) as server:
        made = Base(server, chunks)
        try:
            yield made
        finally:
            made.kb.close()


def titles(found: Ranking) -> list[str]:
    return [str(hit.metadata["title"]) for hit in found]


# -- write -------------------------------------------------------------------------------------------------------------


def test_every_community_gets_a_report_and_a_rerun_asks_and_embeds_nothing() -> None:
    with base() as made:
        run = made.write()
        assert (run.communities, run.written, run.reused, run.missing) == (2, 2, 0, ())
        assert made.kb.info().generation == run.generation
        assert made.step.usage.llm_calls == 2
        embedded = made.embedder.embedded
        again = made.write()
        assert (again.written, again.reused, again.generation) == (0, 2, run.generation)
        assert (made.step.usage.llm_calls, made.embedder.embedded) == (0, embedded)
        assert made.kb.verify() == []


def test_reports_name_communities_entities_and_chunks_that_exist() -> None:
    """GraphRAG #2540: communities that name what an update has taken away."""
    with base() as made:
        made.write()
        made.update([CHUNKS[0], chunk("c-new", source="new.md", graph=contribution(["Bakery > sells > Bread"]))])
        run = made.write()
        assert (run.written, run.reused) == (1, 1)
        view, reports = made.kb.graph(), made.kb.reports()
        assert check_communities(view, communities(view)) == []
        assert {each.community_id for each in reports} == {each.id for each in communities(view)}
        assert {entity for each in reports for entity in each.entity_ids} <= set(view.entities)
        assert {id_ for each in reports for id_ in each.chunk_ids} == {"c-mill", "c-new"}


def test_what_a_deleted_source_said_is_in_no_report_any_more() -> None:
    with base() as made:
        made.write()
        made.update([CHUNKS[0]])
        made.write()
        assert "Port" not in titles(select(kb=made.kb))
        assert titles(select(kb=made.kb)) == ["Mill"]


def broken(request: ChatRequest) -> Reply | None:
    return Reply(text="no object") if "Ferry" in shown(request) else None


def test_a_community_without_a_report_is_named_and_marks_the_step() -> None:
    with base(broken, reported) as made:
        run = made.write(max_failed_share=0.5)
        assert (run.written, len(run.missing)) == (1, 1)
        assert set(run.missing[0].entities) == {"Ferry", "Norrhaven", "Lighthouse"}
        assert made.step.status == "degraded"
        assert made.step.notes[0].startswith("1 of 2 communities got no report, 0 of them keep their earlier one; ")
        assert titles(select(kb=made.kb)) == ["Mill"]


def test_too_many_without_a_report_fail_and_what_was_written_is_kept() -> None:
    with base(broken, reported) as made:
        with pytest.raises(ServiceError, match=r"1 of 2 communities got no report \(`max_failed_share` allows 20%\)"):
            made.write()
        assert titles(select(kb=made.kb)) == ["Mill"]
        made.server.script[:] = [reported]
        run = made.write()
        assert (run.written, run.reused) == (1, 1)


def test_a_failure_takes_no_report_away() -> None:
    with base() as made:
        made.write()
        made.update([CHUNKS[0], chunk("c-port", source="port.md", graph=contribution(PORT.split(";")[:2]))])
        before = made.kb.reports()
        made.server.script[:] = [Rule(fault="unauthorized")]
        with pytest.raises(ServiceError) as caught:
            made.write()
        assert caught.value.kind == "auth"
        assert made.kb.reports() == before


def test_a_run_that_used_up_its_limit_goes_on_where_it_was() -> None:
    with base() as made:
        with pytest.raises(LimitError):
            made.write(StepContext(on_usage=stop_after(1)), concurrency=1)
        assert made.kb.info().reports == 1
        run = made.write(concurrency=1)
        assert (run.written, run.reused) == (1, 1)


def test_an_ingestion_meanwhile_is_never_overwritten() -> None:
    with base() as made:

        def meanwhile(request: ChatRequest) -> Reply:
            if len(made.server.chats) == 1:
                made.update([CHUNKS[0]])
            return reported(request)

        made.server.script[:] = [meanwhile]
        with pytest.raises(ServiceError, match="The knowledge base has changed"):
            made.write(concurrency=1)
        assert made.kb.info().reports == 0
        made.server.script[:] = [reported]
        assert made.write().communities == 1


def test_a_knowledge_base_without_a_graph_says_what_to_do() -> None:
    with base(chunks=[chunk("plain")]) as made, pytest.raises(SettingsError, match="holds no knowledge graph"):
        made.write()


def test_a_graph_without_facts_gets_no_report_and_no_call() -> None:
    with base(chunks=[chunk("c", graph=contribution([], ["Lonely"]))]) as made:
        run = made.write()
        assert (run.communities, run.written, made.server.chats) == (0, 0, [])


# -- search, select ----------------------------------------------------------------------------------------------------


def test_reports_are_found_by_meaning_with_their_chunks() -> None:
    with base() as made:
        made.write()
        text = next(each for each in made.kb.reports() if each.title == "Port").text
        found = search(Query(text=text), kb=made.kb, embedder=made.embedder, top_k=1)
        assert (titles(found), found[0].kind) == (["Port"], "report")
        assert found[0].score == pytest.approx(1, abs=1e-4)
        assert found[0].metadata["chunk_ids"] == ["c-port"]
        everything = search(Query(text=text), kb=made.kb, embedder=made.embedder, max_level=0)
        assert len(everything) == 2


def test_what_a_reader_may_not_see_is_in_no_report_that_he_gets() -> None:
    with base() as made:
        made.write()
        where = source("mill.md")
        assert titles(select(kb=made.kb, where=where)) == ["Mill"]
        assert titles(search(Query(text="Port"), kb=made.kb, embedder=made.embedder, where=where)) == ["Mill"]
        found = of_entities(entities("Ferry", "Mill"), kb=made.kb, where=where)
        assert titles(found) == ["Mill"]


def test_the_threshold_is_a_cosine_and_the_best_rejected_is_told() -> None:
    """DB-GPT compares a score threshold with a distance, and its threshold for communities has no effect."""
    with base() as made:
        made.write()
        with step_context(StepContext()) as step:
            found = search(Query(text="x"), kb=made.kb, embedder=made.embedder, min_score=0.999)
        assert len(found) == 0
        assert step.notes[0].startswith("no report reached `min_score` 0.999; the best of 2 had ")


def test_a_search_without_reports_says_what_to_do() -> None:
    with base() as made:
        with pytest.raises(SettingsError, match="holds no reports"):
            search(Query(text="x"), kb=made.kb, embedder=made.embedder)
        assert select(kb=made.kb) == Ranking(route="reports", score_kind="model")


def test_an_empty_query_is_a_sentence() -> None:
    with base() as made, pytest.raises(NodeInputError, match="the question is empty"):
        search(Query(text=" "), kb=made.kb, embedder=made.embedder)


def test_the_most_important_report_comes_first() -> None:
    with base() as made:
        made.write()
        found = select(kb=made.kb, level=0)
        assert [(hit.metadata["title"], hit.score) for hit in found] == [("Port", 8.0), ("Mill", 3.0)]


# -- of_entities -------------------------------------------------------------------------------------------------------


def test_a_matched_entity_brings_the_report_of_its_community() -> None:
    """GraphRAG #1391: ids of two kinds never matched, and local search never had a report."""
    with base() as made:
        made.write()
        found = of_entities(entities("Mill"), kb=made.kb)
        assert titles(found) == ["Mill"]
        assert entity_id("Mill") in found[0].metadata["entity_ids"]


def test_communities_with_more_of_the_entities_come_first_and_then_higher_ratings() -> None:
    with base() as made:
        made.write()
        assert titles(of_entities(entities("Mill", "Edda", "Ferry"), kb=made.kb)) == ["Mill", "Port"]
        assert titles(of_entities(entities("Mill", "Ferry"), kb=made.kb)) == ["Port", "Mill"]
        assert titles(of_entities(entities("Mill", "Ferry"), kb=made.kb, top_k=1)) == ["Port"]


def test_no_entity_brings_no_report() -> None:
    """RAGFlow #15923: an empty list of entities returns the strongest report of all."""
    with base() as made:
        made.write()
        assert len(of_entities(Ranking(), kb=made.kb)) == 0
        assert len(of_entities(entities("Lonely", "Unknown"), kb=made.kb)) == 0


def test_failed_retrieval_and_hits_of_another_kind_are_errors() -> None:
    with base() as made:
        with pytest.raises(ServiceError, match="retrieval failed"):
            of_entities(failed_ranking(), kb=made.kb)
        with pytest.raises(NodeInputError, match="kind entity"):
            of_entities(ranking("A passage."), kb=made.kb)
