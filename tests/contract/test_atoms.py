"""Atoms in a knowledge base, over every engine: found through their own search, unseen by any other, gone with chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from graph_parts import open_kb
from index_parts import AngleEmbedder, HashEmbedder, WordSparse, content_of, make_set, with_atoms

from ragbraid.nodes.index import upsert
from ragbraid.nodes.retrieve import atoms as retrieve_atoms
from ragbraid.nodes.store import ATOMS, Store
from ragbraid.nodes.store_client import open_local
from ragbraid.nodes.store_edge import EdgeStore
from ragbraid.registry.contracts import ChunkSet, Hit, IndexReport, Query
from ragbraid.registry.errors import NodeInputError, SettingsError
from ragbraid.registry.knowledge import Condition, Where
from ragbraid.registry.resources import Embedder

OpenStore = Callable[..., Store]
Questions = Mapping[str, Sequence[str]]
"""Text of a chunk -> its questions."""

CORPUS = {"a.md": ["acme was founded by peter", "the pool is long"], "b.md": ["peter was born in rome"]}
QUESTIONS = {
    "acme was founded by peter": ["who founded acme @0.9", "what did peter found @0.8"],
    "the pool is long": ["how long is the pool @0.1"],
    "peter was born in rome": ["where was peter born @0.85"],
}


class Killed(BaseException):
    """Stands for the end of the process."""


class Bench:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.kb = open_kb(store, "kb")
        self.embedder: Embedder = AngleEmbedder()

    def ingest(self, chunk_set: ChunkSet, **given: object) -> IndexReport:
        return upsert(chunk_set, kb=self.kb, embedder=self.embedder, sparse=WordSparse(), **given)  # type: ignore[arg-type]

    def nearest(self, text: str = "question", top_k: int = 10, **given: object) -> list[Hit]:
        vector = self.embedder.embed_query(text)
        return self.kb.search_atoms(vector, embedder=self.embedder.identity, top_k=top_k, **given)  # type: ignore[arg-type]

    def ordinary(self) -> list[object]:
        """Everything that searches among chunks give, and the counts; scores without the last bits of a float."""
        vector, terms = self.embedder.embed_query("question"), WordSparse().encode_query("peter founded acme rome")
        names = {"embedder": self.embedder.identity, "sparse": "words-1"}
        found = [
            *self.kb.search_dense(vector, embedder=names["embedder"], top_k=100),
            *self.kb.search_sparse(terms, sparse=names["sparse"], top_k=100),
            *self.kb.search_hybrid(
                vector, terms, **names, fetch_k=100, fuse=lambda ids: [(id_, 1.0) for id_ in ids["sparse"]]
            ),
        ]
        info = self.kb.info()
        hits = [hit.model_dump(exclude={"score", "scores"}) | {"score": round(hit.score, 5)} for hit in found]
        return [*hits, info.chunks, info.average_length]


@pytest.fixture
def bench(open_store: OpenStore) -> Iterator[Bench]:
    made = Bench(open_store())
    yield made
    made.kb.close()


def tagged(corpus: Mapping[str, Sequence[str]], questions: Questions = QUESTIONS, **given: object) -> ChunkSet:
    return with_atoms(make_set(corpus, **given), lambda chunk: questions.get(chunk.text, ()))  # type: ignore[arg-type]


def seen(hits: Sequence[Hit]) -> list[tuple[str, object, float]]:
    return [(hit.text, hit.metadata["atom"], round(hit.score, 5)) for hit in hits]


def test_the_atom_is_hit_and_its_chunk_is_returned_once(bench: Bench) -> None:
    bench.ingest(tagged(CORPUS, title="T", metadata={"team": "x"}))
    hits = bench.nearest()
    assert seen(hits) == [
        ("acme was founded by peter", "who founded acme @0.9", 0.9),
        ("peter was born in rome", "where was peter born @0.85", 0.85),
        ("the pool is long", "how long is the pool @0.1", 0.1),
    ]
    assert [hit.rank for hit in hits] == [1, 2, 3]
    assert (hits[0].kind, hits[0].score_kind, hits[0].source, hits[0].title) == ("chunk", "cosine", "a.md", "T")
    assert hits[0].metadata["team"] == "x"
    assert hits[0].scores["atoms"].rank == 1
    assert bench.kb.fetch([hit.id for hit in hits])[0].text == hits[0].text


def test_many_atoms_of_one_chunk_do_not_crowd_out_the_others(bench: Bench) -> None:
    questions = {"loud": [f"q{n} @0.9{n:02}" for n in range(60)], "quiet": ["q @0.2"], "silent": ["q @0.1"]}
    bench.ingest(tagged({"a.md": ["loud"], "b.md": ["quiet", "silent"]}, questions))
    assert [hit.text for hit in bench.nearest(top_k=2)] == ["loud", "quiet"]
    assert seen(bench.nearest(top_k=1)) == [("loud", "q59 @0.959", 0.959)]


def test_chunks_that_are_left_out_do_not_count(bench: Bench) -> None:
    bench.ingest(tagged(CORPUS))
    first = bench.nearest(top_k=1)
    assert [hit.text for hit in bench.nearest(top_k=1, exclude=[first[0].id])] == ["peter was born in rome"]
    assert bench.nearest(exclude=[hit.id for hit in bench.nearest()]) == []


def test_a_filter_holds_for_the_chunks_of_the_atoms(bench: Bench) -> None:
    bench.ingest(tagged(CORPUS, metadata={"team": "x"}))
    where = Where(all=(Condition(field="source", equals="b.md"), Condition(field="metadata.team", equals="x")))
    assert [hit.text for hit in bench.nearest(where=where)] == ["peter was born in rome"]
    with pytest.raises(SettingsError, match="atoms cannot be filtered by `kind`"):
        bench.nearest(where=Where(all=(Condition(field="kind", equals="table"),)))
    with pytest.raises(SettingsError, match="no field `metadata.tem`"):
        bench.nearest(where=Where(all=(Condition(field="metadata.tem", equals="x"),)))


@pytest.mark.parametrize("at_once", [True, False], ids=["from the start", "added later"])
def test_searches_among_chunks_give_the_same_with_atoms_and_without(
    bench: Bench, open_store: OpenStore, at_once: bool
) -> None:
    plain = Bench(open_store("plain"))
    plain.ingest(make_set(CORPUS))
    if not at_once:
        bench.ingest(make_set(CORPUS))
    report = bench.ingest(tagged(CORPUS))
    assert report.embedded == (7 if at_once else 4)
    assert bench.kb.info().atoms == 4
    assert bench.ordinary() == plain.ordinary()
    assert bench.kb.verify() == []


@pytest.mark.parametrize(
    ("open_on_disk", "file"),
    [(EdgeStore, "kb/edge_config.json"), (open_local, "meta.json")],
    ids=["edge", "local"],
)
def test_the_first_atoms_change_nothing_of_how_the_collection_is_set_up(
    open_on_disk: Callable[[Path, str], Store], file: str, tmp_path: Path
) -> None:
    bench = Bench(open_on_disk(tmp_path, "kb"))
    bench.ingest(make_set(CORPUS))
    before = (tmp_path / file).read_text()
    assert '"atom"' in before
    assert bench.ingest(tagged(CORPUS)).atoms_added == 4
    assert (tmp_path / file).read_text() == before
    bench.kb.close()


def test_the_report_counts_chunks_and_atoms_apart(bench: Bench) -> None:
    first = bench.ingest(tagged(CORPUS))
    assert (first.chunks_added, first.atoms_added) == (3, 4)
    again = bench.ingest(tagged(CORPUS))
    assert (again.unchanged, again.embedded, again.chunks_unchanged, again.atoms_unchanged) == (2, 0, 3, 4)
    questions = {**QUESTIONS, "acme was founded by peter": ["who founded acme @0.9", "which firm is peter's @0.7"]}
    changed = bench.ingest(tagged(CORPUS, questions))
    assert (changed.updated, changed.embedded) == (1, 1)
    assert (changed.chunks_added, changed.chunks_deleted, changed.chunks_unchanged) == (0, 0, 3)
    assert (changed.atoms_added, changed.atoms_deleted, changed.atoms_unchanged) == (1, 1, 3)
    gone = bench.ingest(tagged({"a.md": CORPUS["a.md"]}, questions), cleanup="full")
    assert (gone.deleted, gone.chunks_deleted, gone.atoms_deleted) == (1, 1, 1)


def test_atoms_change_and_go_with_their_source_in_one_commit(bench: Bench, open_store: OpenStore) -> None:
    bench.ingest(tagged(CORPUS))
    later = {"a.md": ["acme was sold to mary"], "c.md": ["the lake is deep"]}
    questions = {"acme was sold to mary": ["who bought acme @0.95"], "the lake is deep": ["how deep is the lake @0.2"]}
    bench.ingest(tagged(later, questions), cleanup="full")
    assert seen(bench.nearest()) == [
        ("acme was sold to mary", "who bought acme @0.95", 0.95),
        ("the lake is deep", "how deep is the lake @0.2", 0.2),
    ]
    assert bench.store.count(ATOMS) == 2
    fresh = Bench(open_store("fresh"))
    fresh.ingest(tagged(later, questions))
    assert content_of(bench.store) == content_of(fresh.store)
    assert bench.kb.verify() == []


def test_a_moved_source_takes_its_atoms_along_without_embedding(bench: Bench) -> None:
    bench.ingest(tagged({"old.md": ["peter was born in rome"]}))
    report = bench.ingest(tagged({"new.md": ["peter was born in rome"]}), cleanup="full")
    assert (report.embedded, report.atoms_added, report.atoms_deleted) == (0, 1, 1)
    assert [hit.source for hit in bench.nearest()] == ["new.md"]
    assert bench.kb.verify() == []


def test_a_source_at_two_places_is_found_at_one(bench: Bench) -> None:
    def at(source: str) -> ChunkSet:
        there = tagged({"x.md": ["peter was born in rome"]})
        chunks = tuple(chunk.model_copy(update={"source": source}) for chunk in there.chunks)
        return make_set({source: []}).model_copy(update={"chunks": chunks})

    bench.ingest(at("old/place"))
    bench.ingest(at("new/place"))
    assert len(bench.nearest()) == 1
    assert bench.kb.verify() == []


def test_the_mode_that_deletes_nothing_keeps_old_atoms_until_another_mode_runs(bench: Bench) -> None:
    bench.ingest(tagged(CORPUS))
    other = {**QUESTIONS, "the pool is long": ["what is long @0.3"]}
    assert bench.ingest(tagged(CORPUS, other), cleanup="none").atoms_deleted == 0
    assert (bench.store.count(ATOMS), bench.kb.info().atoms, bench.kb.verify()) == (5, 5, [])
    assert bench.ingest(tagged(CORPUS, other), cleanup="none").unchanged == 2
    assert bench.ingest(tagged(CORPUS, other)).atoms_deleted == 1
    assert (bench.store.count(ATOMS), bench.kb.info().atoms, bench.kb.verify()) == (4, 4, [])


@pytest.mark.parametrize("batch", [0, 1, 3, 5])
def test_a_run_that_died_leaves_the_old_atoms_and_what_the_model_said(bench: Bench, batch: int) -> None:
    def before_batch(number: int) -> None:
        if number == batch:
            raise Killed

    bench.embedder = HashEmbedder()
    bench.ingest(tagged(CORPUS))
    before = seen(bench.nearest())
    new = {"a.md": ["one", "four", "seven"], "b.md": ["peter was born in rome"]}
    asked = {"one": ["q1", "q2"], "four": ["q3"], "seven": ["q4"]}
    bench.embedder = HashEmbedder(before_batch=before_batch)
    with pytest.raises(Killed):
        bench.ingest(tagged(new, asked), batch_size=1)
    assert seen(bench.nearest()) == before
    stamps = [f"asked-{text}" for text in ("one", "four", "seven")]
    # Chunks are written before atoms, shortest first, and each brings what was said about it.
    remembered = {f"asked-{text}": asked[text] for text in ("one", "four", "seven")[:batch]}
    assert bench.kb.recall([*stamps, "asked-nothing"]) == remembered
    bench.embedder = HashEmbedder()
    assert bench.ingest(tagged(new, asked), batch_size=1).embedded == 7 - batch
    assert bench.kb.verify() == []
    assert sorted(hit.text for hit in bench.nearest()) == ["four", "one", "seven"]


def test_what_models_said_is_recalled_by_its_stamp_and_goes_with_the_chunk(bench: Bench) -> None:
    assert bench.kb.recall(["asked-x"]) == {}
    bench.ingest(tagged(CORPUS))
    assert bench.kb.recall(["asked-the pool is long"]) == {"asked-the pool is long": ["how long is the pool @0.1"]}
    pool = next(chunk for chunk in tagged(CORPUS).chunks if chunk.text == "the pool is long")
    assert bench.kb.fetch([pool.id]) == [pool]
    bench.ingest(tagged({"b.md": CORPUS["b.md"]}), cleanup="full")
    assert bench.kb.recall(["asked-the pool is long"]) == {}


def test_a_knowledge_base_without_atoms_says_how_to_get_them(bench: Bench) -> None:
    bench.ingest(make_set(CORPUS))
    with pytest.raises(SettingsError, match="knowledge base `kb` holds no atoms") as refusal:
        retrieve_atoms(Query(text="who?"), kb=bench.kb, embedder=bench.embedder)
    assert refusal.value.hint == "run an ingestion flow with `enrich.tag_atoms` before `index.upsert` first"


def test_an_atom_without_its_chunk_is_refused(bench: Bench) -> None:
    whole = tagged(CORPUS)
    alone = whole.model_copy(update={"chunks": tuple(chunk for chunk in whole.chunks if chunk.kind == "atom")})
    with pytest.raises(NodeInputError, match=r"The atom `who founded acme @0.9` of the source `a.md` belongs to"):
        bench.ingest(alone)


def test_verify_names_atoms_that_do_not_add_up(bench: Bench) -> None:
    bench.ingest(tagged(CORPUS))
    stored = {point.payload["text"]: point for point in bench.store.scroll(ATOMS, with_vectors=True)}
    bench.store.delete(ids=[stored["who founded acme @0.9"].id])
    bench.store.patch({"parent_id": "nobody"}, ids=[stored["where was peter born @0.85"].id])
    findings = "\n".join(bench.kb.verify())
    assert "Source `a.md` records 3 atoms but has 2." in findings
    assert "1 atoms have no vector or no chunk" in findings
