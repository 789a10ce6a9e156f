"""The knowledge graph in a knowledge base, over every engine: the sum of what its chunks contribute, and no more."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from graph_parts import graph_content, with_graphs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from index_parts import Corpus, HashEmbedder, WordSparse, content_of, make_set

from ragbraid.nodes.graph_store import QdrantGraphStore
from ragbraid.nodes.index import upsert
from ragbraid.nodes.knowledge_base import QdrantKnowledgeBase
from ragbraid.nodes.store import CHUNKS, Store
from ragbraid.registry.contracts import ChunkSet, IndexReport
from ragbraid.registry.errors import ServiceError, SettingsError
from ragbraid.registry.graph import Report
from ragbraid.registry.graph_names import entity_id, fact_id
from ragbraid.registry.graph_parts import ChunkGraph, Mention, Triple
from ragbraid.registry.graph_store import GraphStore, RecordKind
from ragbraid.registry.knowledge import Condition, Where

OpenBench = Callable[..., "Bench"]

CORPUS = {
    "a.md": ["acme > based in > paris | acme makes tea", "acme > makes > tea"],
    "b.md": ["Acme > based in > Paris", "bob > drinks > tea"],
}


class Killed(BaseException):
    """Stands for the end of the process."""


class Bench:
    def __init__(self, store: Store, graph: GraphStore) -> None:
        self.store = store
        self.graph = graph
        self.kb = QdrantKnowledgeBase(store, graph, "kb")
        self.embedder = HashEmbedder()

    def ingest(self, corpus: Corpus | ChunkSet, **given: object) -> IndexReport:
        chunk_set = corpus if isinstance(corpus, ChunkSet) else with_graphs(make_set(corpus))
        given = {"embedder": self.embedder, "neighbour_min_score": None, "allow_mass_delete": True, **given}
        return upsert(chunk_set, kb=self.kb, sparse=WordSparse(), **given)  # type: ignore[arg-type]

    def content(self) -> Mapping[tuple[str, str], object]:
        return graph_content(self.graph, self.kb.info().generation)

    def facts(self, where: Where | None = None) -> list[str]:
        return sorted(fact.text for fact in self.kb.graph(where).facts.values())


@pytest.fixture
def open_bench(open_chunks: Callable[..., Store], open_graph: Callable[..., GraphStore]) -> OpenBench:
    return lambda name="kb": Bench(open_chunks(name), open_graph(name))


@pytest.fixture
def bench(open_bench: OpenBench) -> Iterator[Bench]:
    made = open_bench()
    yield made
    made.kb.close()


def source(name: str) -> Where:
    return Where(all=(Condition(field="source", equals=name),))


def test_entities_and_facts_are_sums_over_the_chunks_that_name_them(bench: Bench) -> None:
    bench.ingest(CORPUS)
    view = bench.kb.graph()
    assert bench.facts() == ["Acme based in Paris", "acme makes tea", "bob drinks tea"]
    acme = view.entities[entity_id("ACME")]
    assert (acme.name, acme.aliases, len(acme.chunk_ids), acme.description) == ("acme", ("Acme",), 3, "acme makes tea")
    based = view.facts[fact_id("acme", "based in", "paris")]
    assert (based.weight, len(based.chunk_ids)) == (2.0, 2)
    assert {entity.name for entity in view.named("acme")} == {"acme"}
    assert bench.kb.verify() == []
    info = bench.kb.info()
    assert (info.entities, info.facts, info.reports) == (4, 3, 0)


def test_a_second_run_embeds_nothing_and_nothing_grows(bench: Bench) -> None:
    first = bench.ingest(CORPUS)
    before, embedded = bench.content(), bench.embedder.embedded
    assert first.embedded == embedded
    again = bench.ingest(CORPUS)
    assert (again.embedded, bench.embedder.embedded, again.generation) == (0, embedded, first.generation)
    bench.ingest(CORPUS, force=True)
    assert bench.content() == before
    assert bench.kb.verify() == []


def test_a_source_that_goes_takes_its_part_and_leaves_that_of_the_others(bench: Bench) -> None:
    bench.ingest(CORPUS)
    bench.ingest({"b.md": CORPUS["b.md"]}, cleanup="full")
    assert bench.facts() == ["Acme based in Paris", "bob drinks tea"]
    acme = bench.kb.graph().entities[entity_id("acme")]
    assert (acme.name, acme.aliases, acme.description) == ("Acme", (), "")
    assert ("profile", entity_id("acme")) not in bench.content()
    bench.ingest({}, cleanup="full")
    assert bench.content() == {}
    with pytest.raises(SettingsError, match="holds no knowledge graph"):
        bench.kb.graph()


def test_a_reader_with_a_filter_sees_nothing_of_what_other_chunks_say(bench: Bench) -> None:
    bench.ingest(CORPUS)
    view = bench.kb.graph(source("b.md"))
    assert sorted(fact.text for fact in view.facts.values()) == ["Acme based in Paris", "bob drinks tea"]
    acme = view.entities[entity_id("acme")]
    assert (acme.name, acme.aliases, acme.description, view.facts[fact_id("acme", "based in", "paris")].weight) == (
        "Acme", (), "", 1.0,
    )  # fmt: skip
    assert view.named("acme") == (acme,)
    nobody = bench.kb.graph(source("nobody.md"))
    assert (dict(nobody.entities), dict(nobody.facts)) == ({}, {})
    with pytest.raises(SettingsError, match="has no field `sauce`"):
        bench.kb.graph(Where(all=(Condition(field="sauce", equals="x"),)))


def test_a_search_by_vector_finds_names_facts_and_profiles_and_obeys_filters(bench: Bench) -> None:
    bench.ingest(CORPUS)

    def nearest(kind: str, text: str, **given: object) -> list[tuple[str, float]]:
        vector = bench.embedder.embed_query(text)
        found = bench.kb.search_graph(kind, vector, embedder="hash-1", **{"top_k": 10, **given})  # type: ignore[arg-type]
        return [(key, round(score, 4)) for key, score in found]

    assert nearest("entity", "tea", top_k=1) == [(entity_id("tea"), 1.0)]
    assert nearest("fact", "bob drinks tea", top_k=1) == [(fact_id("bob", "drinks", "tea"), 1.0)]
    assert nearest("profile", "acme\nacme makes tea") == [(entity_id("acme"), 1.0)]
    assert {key for key, _ in nearest("fact", "x", where=source("b.md"))} == {
        fact_id("acme", "based in", "paris"),
        fact_id("bob", "drinks", "tea"),
    }
    assert len(nearest("fact", "x", where=source("b.md"), top_k=1)) == 1
    with pytest.raises(SettingsError, match="no reports"):
        nearest("report", "x")
    with pytest.raises(SettingsError, match="filled with the embedder"):
        bench.kb.search_graph("entity", bench.embedder.embed_query("x"), embedder="other", top_k=1)


def test_names_that_mean_nearly_the_same_are_neighbours_whatever_the_history(
    bench: Bench, open_bench: OpenBench
) -> None:
    corpus = {name: [f"{name} > is > thing number {name}"] for name in ("alpha", "beta", "gamma", "delta", "1990")}
    limit = {"neighbour_min_score": 0.2}
    bench.ingest(corpus, **limit)
    view = bench.kb.graph()
    near = {(entity.id, each.entity_id): each.score for entity in view.entities.values() for each in entity.neighbours}
    assert near, "the limit is low enough for some"
    names = {id_: view.entities[id_].name for pair in near for id_ in pair}
    for (one, other), score in near.items():
        cosine = float(bench.embedder.embed_query(names[one]) @ bench.embedder.embed_query(names[other]))
        assert score == pytest.approx(cosine, abs=1e-4)
        assert near[other, one] == score
        assert entity_id("1990") not in (one, other)
    bench.ingest({name: texts for name, texts in corpus.items() if name != "beta"}, cleanup="full", **limit)
    bench.ingest({**corpus, "epsilon": ["epsilon > is > new"]}, cleanup="full", **limit)
    bench.ingest(corpus, cleanup="full", **limit)
    clean = open_bench("clean")
    clean.ingest(corpus, **limit)
    assert bench.content() == clean.content()
    bench.ingest({**corpus, "zeta": ["no triple here"]}, neighbour_min_score=None)
    assert all(not entity.neighbours for entity in bench.kb.graph().entities.values())


def test_an_entity_has_sixteen_neighbours_at_most_and_those_crowded_out_come_back(
    bench: Bench, open_bench: OpenBench
) -> None:
    """HippoRAG issue 142: a hundred synonyms for each name fill tens of gigabytes."""
    corpus = {f"{n}.md": [f"name {chr(97 + n)} > is > name {chr(98 + n)}"] for n in range(20)}
    bench.ingest(corpus, neighbour_min_score=-0.999)
    counts = {len(entity.neighbours) for entity in bench.kb.graph().entities.values()}
    assert counts == {16}
    fewer = dict(list(corpus.items())[:12])
    bench.ingest(fewer, cleanup="full", neighbour_min_score=-0.999)
    clean = open_bench("clean")
    clean.ingest(fewer, neighbour_min_score=-0.999)
    assert bench.content() == clean.content()
    assert {len(entity.neighbours) for entity in bench.kb.graph().entities.values()} == {12}


def report_about(bench: Bench, chunk_ids: Sequence[str], text: str = "Tea") -> Report:
    return Report(id="r1", community_id="c1", level=0, title=text, summary="s", chunk_ids=tuple(chunk_ids))


def test_a_report_is_found_until_a_chunk_behind_it_changes(bench: Bench) -> None:
    bench.ingest(CORPUS)
    tea = bench.kb.graph().entities[entity_id("tea")].chunk_ids
    generation = bench.kb.info().generation
    new = bench.kb.replace_reports([report_about(bench, tea)], embedder=bench.embedder, generation=generation)
    assert new == generation + 1
    assert bench.kb.replace_reports([report_about(bench, tea)], embedder=bench.embedder, generation=new) == new
    assert [report.title for report in bench.kb.reports()] == ["Tea"]
    vector = bench.embedder.embed_query(bench.kb.reports()[0].text)
    assert bench.kb.search_graph("report", vector, embedder="hash-1", top_k=3)[0][0] == "r1"
    assert bench.kb.reports(source("b.md")) == (), "one of its chunks is in a.md"
    with pytest.raises(ServiceError, match="has changed"):
        bench.kb.replace_reports([], embedder=bench.embedder, generation=generation)
    with pytest.raises(SettingsError, match="filled with the embedder"):
        bench.kb.replace_reports([], embedder=HashEmbedder(identity="other"), generation=new)
    bench.ingest({**CORPUS, "c.md": ["nothing > new > here"]})
    assert [report.title for report in bench.kb.reports()] == ["Tea"], "what it is about has not changed"
    assert bench.kb.verify() == []
    bench.ingest({"b.md": ["bob > drinks > coffee"]})
    assert bench.kb.reports() == ()
    assert bench.kb.verify() == []


def test_reports_are_read_once_a_generation_and_a_new_one_is_seen_with_and_without_conditions(bench: Bench) -> None:
    for word in ("tea", "coffee"):
        corpus = with_graphs(make_set({"a.md": [f"acme > makes > {word}"]}))
        bench.ingest(corpus)
        report = report_about(bench, [chunk.id for chunk in corpus.chunks], word)
        bench.kb.replace_reports([report], embedder=bench.embedder, generation=bench.kb.info().generation)
        assert [each.title for each in bench.kb.reports()] == [word]
        assert bench.kb.reports() is bench.kb.reports()
        assert [each.title for each in bench.kb.reports(source("a.md"))] == [word]


def test_a_killed_update_is_invisible_and_the_next_embeds_only_the_rest(bench: Bench, open_bench: OpenBench) -> None:
    bench.ingest(CORPUS)
    before, generation = bench.content(), bench.kb.info().generation
    changed = {**CORPUS, "c.md": [f"thing {n} > part of > whole {n}" for n in range(6)]}

    def die(batch: int) -> None:
        if batch == 12:  # 6 chunks and 6 records of the graph have been embedded
            raise Killed

    with pytest.raises(Killed):
        bench.ingest(changed, embedder=HashEmbedder(before_batch=die), batch_size=1)
    assert bench.content() == before
    assert bench.kb.graph().generation == generation
    rest = bench.ingest(changed)
    assert rest.embedded == 12
    clean = open_bench("clean")
    assert clean.ingest(changed).embedded == 4 + 6 + 8 + 18
    assert (bench.content(), content_of(bench.store)) == (clean.content(), content_of(clean.store))


def test_vectors_that_are_not_finite_are_refused_for_the_graph_too(bench: Bench) -> None:
    class Broken(HashEmbedder):
        def embed_documents(self, texts: Sequence[str]) -> object:
            vectors = super().embed_documents(texts)
            return vectors * np.nan if "tea" in texts else vectors

    with pytest.raises(ServiceError, match="finite vectors"):
        bench.ingest(CORPUS, embedder=Broken())
    bench.ingest(CORPUS)
    assert bench.kb.verify() == []


def test_verify_names_what_does_not_come_from_chunks(bench: Bench) -> None:
    bench.ingest(CORPUS)
    generation = bench.kb.info().generation
    bench.graph.delete_written("entity", [entity_id("tea")], generation=generation)
    found = " ".join(bench.kb.verify())
    assert "1 entities that chunks give are not in the graph: entity:tea" in found
    assert "counts 4 entities, but its graph holds 3" in found


def test_fields_that_a_later_version_has_added_hide_no_record(bench: Bench) -> None:
    """RAG-Anything issue 73: rows with a field more than expected disappear."""
    bench.ingest(CORPUS, neighbour_min_score=0.0)
    report = report_about(bench, bench.kb.graph().entities[entity_id("tea")].chunk_ids)
    bench.kb.replace_reports([report], embedder=bench.embedder, generation=bench.kb.info().generation)
    before, generation = bench.kb.graph(), bench.kb.info().generation
    written: Mapping[RecordKind, int] = {"entity": 1, "fact": 1, "neighbours": 1, "report": generation}
    for kind, origin in written.items():
        for each in list(bench.graph.read(kind, generation=generation, with_vectors=True)):
            later = replace(each.record, body=with_later_field(each.record.body))
            vectors = None if each.vector is None else np.asarray([each.vector])
            bench.graph.put([later], vectors, generation=origin)
    for point in list(bench.store.scroll(CHUNKS)):
        bench.store.patch({"graph": with_later_field(str(point.payload["graph"]))}, ids=[point.id])
    again = QdrantKnowledgeBase(bench.store, bench.graph, "kb")
    view = again.graph()
    assert (view.entities, view.facts, again.reports()) == (before.entities, before.facts, (report,))
    assert any(entity.neighbours for entity in view.entities.values())
    chunks = again.fetch(list(view.chunk_ids))
    assert len(chunks) == 4
    assert all(chunk.graph for chunk in chunks)
    assert again.verify() == []


@pytest.mark.parametrize("kind", ["entity", "fact"])
def test_a_damaged_record_is_named_in_a_sentence(bench: Bench, kind: RecordKind) -> None:
    if not isinstance(bench.graph, QdrantGraphStore):
        pytest.skip("Neo4j's store reads a body when it writes it, so that one that is damaged cannot be put there")
    bench.ingest(CORPUS)
    first = next(iter(bench.graph.read(kind, generation=1, with_vectors=True)))
    vectors = np.asarray([first.vector])
    bench.graph.put([replace(first.record, body='[{"chunk_id": 1}]')], vectors, generation=1)
    again = QdrantKnowledgeBase(bench.store, bench.graph, "kb")
    with pytest.raises(ServiceError, match=f"The {kind} `{kind}:.*is damaged and cannot be read; run the ingestion"):
        again.graph()
    assert any("is damaged" in finding for finding in again.verify())


def with_later_field(body: str) -> str:
    changed = body.replace("{", '{"later": 1, ', 1)
    assert changed != body
    return changed


def test_a_knowledge_base_without_a_graph_makes_no_collection_for_one(bench: Bench) -> None:
    bench.ingest({"a.md": ["no triple here"]})
    assert not bench.graph.exists()
    with pytest.raises(SettingsError, match="holds no knowledge graph"):
        bench.kb.graph()
    bench.ingest(CORPUS)
    bench.kb.drop()
    assert not bench.graph.exists()


def test_a_graph_whose_folder_is_gone_is_named(bench: Bench) -> None:
    bench.ingest(CORPUS)
    bench.graph.drop()
    with pytest.raises(ServiceError, match="knowledge graph of `kb` is missing"):
        bench.kb.graph()


TRIPLES = [
    "a > r > b",
    "b > r > a",
    "A > r > B",
    "b > s > c; c > s > d",
    "a > t > d | about a",
    "plain text",
    "c > > d",
]
EDITS = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from("wxyz"), st.lists(st.sampled_from(TRIPLES), max_size=3, unique=True)),
        st.sampled_from(["incremental", "full"]),
        st.one_of(st.none(), st.integers(0, 6)),
    ),
    min_size=1,
    max_size=5,
)
Edits = list[tuple[dict[str, list[str]], str, int | None]]


@pytest.mark.parametrize("graph_engine", ["memory"], indirect=True)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=EDITS)
def test_any_sequence_of_runs_leaves_the_graph_that_indexing_from_nothing_gives(
    open_bench: OpenBench, edits: Edits
) -> None:
    check_sequence(open_bench, edits)


@pytest.mark.slow
@pytest.mark.parametrize("graph_engine", ["edge"], indirect=True)
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=EDITS)
def test_any_sequence_of_runs_leaves_the_same_graph_on_disk(open_bench: OpenBench, edits: Edits) -> None:
    check_sequence(open_bench, edits)


def check_sequence(open_bench: OpenBench, edits: Edits) -> None:
    bench, clean = (open_bench(name) for name in ("kb", "clean"))
    bench.kb.drop()
    clean.kb.drop()
    standing: dict[str, list[str]] = {}
    for corpus, cleanup, dies_at in edits:
        if dies_at is not None:

            def die(batch: int, at: int = dies_at) -> None:
                if batch == at:
                    raise Killed

            with contextlib.suppress(Killed):
                embedder = HashEmbedder(before_batch=die)
                bench.ingest(corpus, cleanup=cleanup, embedder=embedder, batch_size=1, neighbour_min_score=0.3)
        bench.ingest(corpus, cleanup=cleanup, neighbour_min_score=0.3)
        standing = {**({} if cleanup == "full" else standing), **corpus}
        assert bench.kb.verify() == []
    clean.ingest(standing, neighbour_min_score=0.3)
    assert bench.content() == clean.content()


def test_parts_of_one_chunk_count_once() -> None:
    from ragbraid.registry.graph_parts import parts_of

    graph = ChunkGraph(
        mentions=(
            Mention(name="Acme"),
            Mention(name="ACME", type="Company", description="long text"),
            Mention(name="?"),
        ),
        triples=(
            Triple(subject="Acme", object="tea", weight=2, keywords=("x",)),
            Triple(subject="tea", object="acme", weight=3, keywords=("y",)),
            Triple(subject="acme", predicate="is", object="Acme"),
        ),
    )
    entities, facts = parts_of("c1", graph)
    assert entities.keys() == {"entity:acme", "entity:tea"}
    assert (entities["entity:acme"].type, entities["entity:acme"].description) == ("Company", "long text")
    assert [(part.weight, part.keywords) for part in facts.values()] == [(3.0, ("x", "y"))]
