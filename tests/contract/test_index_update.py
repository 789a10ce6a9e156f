"""Updating a knowledge base, over every engine: what is stored, what readers see meanwhile, and what a dead run leaves."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from graph_parts import open_kb
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from index_parts import Corpus, HashEmbedder, WordSparse, content_of, make_chunks, make_set

from ragbraid.nodes.index import upsert
from ragbraid.nodes.store import CHUNKS, INFO_ID, Point, Store, Test, Tests, read_info, write_info
from ragbraid.registry.contracts import Chunk, ChunkSet, IndexReport
from ragbraid.registry.errors import NodeInputError, RunError, ServiceError, SettingsError
from ragbraid.registry.knowledge import SourceChunks

OpenStore = Callable[..., Store]

OLD: Corpus = {"a": ["apple red", "banana yellow"], "b": ["cherry"], "c": ["date palm"]}
NEW: Corpus = {"a": ["apple red", "banana green"], "b": ["cherry"], "d": ["elder berry"]}


class Killed(BaseException):
    """Stands for the end of the process: nothing of ours may catch it."""


class Bench:
    """A knowledge base on one engine with everything that an ingestion needs."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.kb = open_kb(store, "kb")
        self.sparse = WordSparse()

    def ingest(
        self, chunks: ChunkSet | Corpus, *, embedder: HashEmbedder | None = None, **given: object
    ) -> IndexReport:
        chunk_set = chunks if isinstance(chunks, ChunkSet) else make_set(chunks)
        return upsert(chunk_set, kb=self.kb, embedder=embedder or HashEmbedder(), sparse=self.sparse, **given)  # type: ignore[arg-type]

    def kill_at_batch(self, chunks: ChunkSet | Corpus, number: int, **given: object) -> None:
        def before_batch(batch: int) -> None:
            if batch == number:
                raise Killed

        with pytest.raises(Killed):
            self.ingest(chunks, embedder=HashEmbedder(before_batch=before_batch), batch_size=1, **given)

    def texts(self) -> list[str]:
        vector = HashEmbedder().embed_query("anything")
        return sorted(hit.text for hit in self.kb.search_dense(vector, embedder="hash-1", top_k=1000))


@pytest.fixture
def bench(open_store: OpenStore) -> Bench:
    return Bench(open_store())


@pytest.fixture
def clean(open_store: OpenStore) -> Callable[..., dict[object, object]]:
    """A function that gives the content of a new index of a corpus."""

    def ingest_anew(chunks: ChunkSet | Corpus) -> dict[object, object]:
        fresh = Bench(open_store("clean"))
        fresh.kb.drop()
        fresh.ingest(chunks)
        return content_of(fresh.store)

    return ingest_anew


def every_text(corpus: Corpus) -> list[str]:
    return sorted(text for texts in corpus.values() for text in texts)


def test_a_second_run_over_the_same_corpus_embeds_and_writes_nothing(bench: Bench) -> None:
    bench.ingest(OLD)
    before = content_of(bench.store)
    embedder = HashEmbedder()
    report = bench.ingest(OLD, embedder=embedder)
    assert (report.generation, report.unchanged, report.embedded, embedder.embedded) == (1, 3, 0, 0)
    assert report.chunks_unchanged == 4
    assert content_of(bench.store) == before


def test_a_changed_source_replaces_its_own_chunks_and_embeds_only_new_texts(
    bench: Bench, clean: Callable[..., object]
) -> None:
    bench.ingest(OLD)
    embedder = HashEmbedder()
    report = bench.ingest(NEW, embedder=embedder, cleanup="full")
    assert sorted(text for batch in embedder.batches for text in batch) == ["banana green", "elder berry"]
    assert {source.source: source.status for source in report.sources} == {
        "a": "updated",
        "b": "unchanged",
        "c": "deleted",
        "d": "added",
    }
    assert (report.chunks_added, report.chunks_deleted, report.chunks_unchanged) == (2, 2, 2)
    assert bench.texts() == every_text(NEW)
    assert content_of(bench.store) == clean(NEW)
    assert bench.kb.verify() == []


def test_a_text_that_is_stored_under_another_source_or_id_is_not_embedded_again(
    bench: Bench, clean: Callable[..., object]
) -> None:
    bench.ingest(OLD)
    moved: Corpus = {"x/a": ["apple red", "banana yellow"], "b": ["date palm", "cherry"], "y": ["cherry", "fig"]}
    embedder = HashEmbedder()
    report = bench.ingest(moved, embedder=embedder, cleanup="full", allow_mass_delete=True)
    assert embedder.batches == [["fig"]]
    assert (report.added, report.updated, report.deleted, report.embedded) == (2, 1, 2, 1)
    assert content_of(bench.store) == clean(moved)
    assert bench.kb.verify() == []


def test_a_text_is_embedded_again_for_another_source_when_forced(bench: Bench) -> None:
    bench.ingest({"a": ["one"]})
    assert bench.ingest({"b": ["one"]}, force=True).embedded == 1


def test_vectors_of_a_run_that_died_are_not_lent_to_other_sources(bench: Bench, clean: Callable[..., object]) -> None:
    bench.ingest(OLD)
    bench.kill_at_batch({"n": ["fig"], "o": ["grape"]}, 1)
    embedder = HashEmbedder()
    # What was written for `n` is written over while `m` wants the text that stood there.
    bench.ingest({**OLD, "n": ["grape"], "m": ["fig"]}, embedder=embedder, cleanup="full")
    assert embedder.embedded == 2
    assert content_of(bench.store) == clean({**OLD, "n": ["grape"], "m": ["fig"]})


def test_changed_metadata_are_rewritten_without_embedding(bench: Bench, clean: Callable[..., object]) -> None:
    bench.ingest(OLD)
    tagged = make_set(OLD, metadata={"team": "x"}, title="T")
    report = bench.ingest(tagged)
    assert (report.updated, report.embedded, report.chunks_unchanged) == (3, 0, 4)
    assert content_of(bench.store) == clean(tagged)


def test_a_reworded_heading_embeds_the_chunk_again_under_the_same_id(
    bench: Bench, clean: Callable[..., object]
) -> None:
    bench.ingest({"a": ["one", "two"]})
    reworded = make_set({"a": ["one", "two"]})
    first = reworded.chunks[0].model_copy(update={"embed_text": "heading one"})
    reworded = reworded.model_copy(update={"chunks": (first, reworded.chunks[1])})
    report = bench.ingest(reworded)
    assert (report.embedded, report.chunks_added, report.chunks_deleted, report.chunks_unchanged) == (1, 1, 1, 1)
    assert content_of(bench.store) == clean(reworded)


def test_a_source_without_text_is_recorded_with_no_chunks(bench: Bench) -> None:
    bench.ingest({"empty": [], "a": ["one"]})
    assert {record.source: record.chunk_ids for record in bench.kb.documents()}["empty"] == ()
    assert bench.ingest({"empty": [], "a": ["one"]}).unchanged == 2
    assert bench.kb.info().documents == 2


def test_an_empty_corpus_makes_an_empty_knowledge_base(bench: Bench) -> None:
    report = bench.ingest({})
    assert (report.generation, bench.kb.info().chunks, bench.kb.info().updating) == (1, 0, False)
    assert bench.texts() == []
    assert bench.kb.verify() == []


def test_term_weights_follow_the_average_length_of_the_corpus(bench: Bench, clean: Callable[..., object]) -> None:
    bench.ingest(OLD)
    longer = {**OLD, "long": ["word " * 40 + str(number) for number in range(5)]}
    embedder = HashEmbedder()
    bench.ingest(longer, embedder=embedder)
    assert embedder.embedded == 5
    assert bench.kb.info().average_length > 20
    assert content_of(bench.store) == clean(longer)
    assert bench.kb.verify() == []


def test_force_embeds_everything_again(bench: Bench) -> None:
    bench.ingest(OLD)
    before = content_of(bench.store)
    report = bench.ingest(OLD, force=True)
    assert (report.embedded, report.generation) == (4, 2)
    assert content_of(bench.store) == before


def test_texts_of_like_length_share_a_batch(bench: Bench) -> None:
    embedder = HashEmbedder()
    bench.ingest({"a": ["aaaa", "b", "cc"], "b": ["d", "eee"]}, embedder=embedder, batch_size=2)
    assert [[len(text) for text in batch] for batch in embedder.batches] == [[1, 1], [2, 3], [4]]


@pytest.mark.parametrize("batch", [0, 2, 3])
def test_a_run_that_died_is_invisible_and_the_next_one_embeds_only_the_rest(
    bench: Bench, clean: Callable[..., object], batch: int
) -> None:
    bench.ingest(OLD)
    changed = {"a": ["apple red", "fig"], "c": ["date palm", "grape", "honey melon"], "e": ["iced tea"]}
    bench.kill_at_batch(make_set(changed), batch, cleanup="full")
    assert bench.texts() == every_text(OLD)
    assert bench.kb.info().updating
    assert bench.kb.verify() == ["An update is under way or was cut off; run the ingestion again to finish it."]
    embedder = HashEmbedder()
    bench.ingest(changed, embedder=embedder, cleanup="full")
    assert embedder.embedded == 4 - batch
    assert bench.texts() == every_text(changed)
    assert content_of(bench.store) == clean(changed)


def test_after_a_run_that_died_another_corpus_leaves_nothing_of_it(bench: Bench, clean: Callable[..., object]) -> None:
    bench.ingest(OLD)
    bench.kill_at_batch({"a": ["x " * 30, "y " * 30, "z " * 30], "new": ["n"]}, 3)
    bench.ingest(NEW, cleanup="full")
    assert content_of(bench.store) == clean(NEW)


def test_after_a_run_that_died_the_old_corpus_rolls_it_back(bench: Bench) -> None:
    bench.ingest(OLD)
    before = content_of(bench.store)
    bench.kill_at_batch({"a": ["apple red", "new one", "new two"]}, 1)
    report = bench.ingest(OLD)
    assert (report.generation, report.embedded, report.unchanged) == (1, 0, 3)
    assert content_of(bench.store) == before


@pytest.mark.parametrize("corpus", [OLD, {"a": ["apple red"], "c": ["date palm"]}], ids=["the old", "another"])
def test_marks_of_a_run_that_died_just_before_its_commit_are_taken_back(
    bench: Bench, clean: Callable[..., object], monkeypatch: pytest.MonkeyPatch, corpus: Corpus
) -> None:
    def die() -> None:
        raise Killed

    bench.ingest(OLD)
    with monkeypatch.context() as patched:
        patched.setattr(bench.store, "flush", die)
        with pytest.raises(Killed):
            bench.ingest(NEW, cleanup="full")
    assert bench.texts() == every_text(OLD)
    bench.ingest(corpus, cleanup="full")
    assert bench.kb.verify() == []
    assert content_of(bench.store) == clean(corpus)


def test_a_first_run_that_died_may_be_repeated_with_another_model(bench: Bench) -> None:
    bench.kill_at_batch(OLD, 2)
    bench.ingest(OLD, embedder=HashEmbedder(identity="hash-2", dimension=4))
    assert (bench.kb.info().embedder, bench.kb.info().dimension, bench.kb.verify()) == ("hash-2", 4, [])


def test_another_model_is_refused_with_both_names(bench: Bench) -> None:
    bench.ingest(OLD)
    with pytest.raises(SettingsError, match=r"filled with the embedder `hash-1`.*brings `hash-2`") as refusal:
        bench.ingest(OLD, embedder=HashEmbedder(identity="hash-2"))
    assert refusal.value.hint is not None
    with pytest.raises(SettingsError, match="dimension `8`.*`4`"):
        bench.ingest(OLD, embedder=HashEmbedder(dimension=4))
    bench.sparse = WordSparse("words-2")
    with pytest.raises(SettingsError, match="sparse encoder `words-1`.*`words-2`"):
        bench.ingest(OLD)


def test_a_second_update_at_the_same_time_is_refused(bench: Bench) -> None:
    bench.ingest(OLD)
    with bench.kb.update(embedder=HashEmbedder(), sparse=bench.sparse, scope=""):
        with pytest.raises(ServiceError, match="is being updated by another run"):
            bench.ingest(NEW)
        with pytest.raises(ServiceError, match="is being updated by another run"):
            bench.kb.drop()
    assert bench.ingest(NEW).updated == 1


def test_an_update_that_was_taken_over_stops_and_commits_nothing(bench: Bench, clean: Callable[..., object]) -> None:
    bench.ingest(OLD)

    def take_over(batch: int) -> None:
        if batch == 1:
            info = read_info(bench.store)
            assert info is not None
            write_info(bench.store, info.model_copy(update={"update_id": "of another process"}))

    with pytest.raises(ServiceError, match="taken over"):
        bench.ingest(NEW, embedder=HashEmbedder(before_batch=take_over), batch_size=1)
    assert bench.texts() == every_text(OLD)
    bench.ingest(NEW, cleanup="full")
    assert content_of(bench.store) == clean(NEW)


@pytest.mark.parametrize("vectors", [np.zeros((1, 3), np.float32), np.full((1, 8), np.nan, np.float32)])
def test_vectors_of_another_shape_or_not_finite_are_refused(bench: Bench, vectors: np.ndarray) -> None:  # type: ignore[type-arg]
    chunk_set = make_set({"a": ["one"]})
    with bench.kb.update(embedder=HashEmbedder(), sparse=bench.sparse, scope="") as update:
        update.plan([SourceChunks(chunk_set.sources[0], chunk_set.chunks)])
        with pytest.raises(ServiceError, match="finite vectors of dimension 8") as refusal:
            update.write(chunk_set.chunks, vectors)
    assert refusal.value.kind == "invalid_output"


def test_committing_before_everything_is_written_is_refused(bench: Bench) -> None:
    chunk_set = make_set({"a": ["one", "two"]})
    with bench.kb.update(embedder=HashEmbedder(), sparse=bench.sparse, scope="") as update:
        plan = update.plan([SourceChunks(chunk_set.sources[0], chunk_set.chunks)])
        update.write(plan.to_embed[:1], HashEmbedder().embed_documents(["one"]))
        with pytest.raises(RunError, match="1 chunks of `kb` have not been written"):
            update.commit()


def test_two_chunks_of_a_source_with_one_id_are_refused(bench: Bench) -> None:
    chunk_set = make_set({"a": ["one"]})
    with (
        bench.kb.update(embedder=HashEmbedder(), sparse=bench.sparse, scope="") as update,
        pytest.raises(NodeInputError, match="source `a` have one id"),
    ):
        update.plan([SourceChunks(chunk_set.sources[0], chunk_set.chunks * 2)])


def test_an_update_that_another_process_disturbed_is_not_committed(bench: Bench, clean: Callable[..., object]) -> None:
    bench.ingest(OLD)

    def disturb(_: int) -> None:
        bench.store.patch({"gen_to": 2}, where=Tests(must=(Test("source", equals="b"),)))

    with pytest.raises(ServiceError, match="does not hold what was written to it"):
        bench.ingest(NEW, embedder=HashEmbedder(before_batch=disturb))
    assert bench.texts() == every_text(OLD)
    bench.ingest(NEW, cleanup="full")
    assert content_of(bench.store) == clean(NEW)


def test_a_moved_source_with_its_chunk_ids_may_stand_beside_the_old_one(bench: Bench) -> None:
    def at(source: str) -> ChunkSet:
        chunks = tuple(chunk.model_copy(update={"source": source}) for chunk in make_chunks("old", ["one", "two"]))
        return make_set({source: []}).model_copy(update={"chunks": chunks})

    bench.ingest(at("old/place"))
    bench.ingest(at("new/place"))
    assert bench.kb.verify() == []
    bench.ingest(at("new/place"), cleanup="full")
    assert [record.source for record in bench.kb.documents()] == ["new/place"]
    assert bench.texts() == ["one", "two"]


def test_verify_names_what_is_inconsistent(bench: Bench) -> None:
    bench.ingest({"a": ["one", "two words"], "b": ["three"], "c": ["four"]})
    stored = {point.payload["text"]: point for point in bench.store.scroll(CHUNKS, with_vectors=True)}
    bench.store.delete(ids=[stored["two words"].id])
    bench.store.upsert([Point(stored["three"].id, stored["three"].payload)])
    bench.store.delete(where=Tests(must=(Test("kind", equals="document"), Test("source", equals="c"))))
    bench.store.patch({"gen_from": 7}, ids=[stored["four"].id])
    findings = "\n".join(bench.kb.verify())
    assert "Source `a` records 2 chunks but has 1: 1 missing" in findings
    assert "1 chunks have no vector" in findings
    assert "1 chunks have tokens but no term weights" in findings
    assert "1 points belong to no committed generation" in findings
    assert "counts 3 documents, but its records hold 2" in findings
    bench.store.patch({"gen_from": 1}, ids=[stored["four"].id])
    assert "Source `c` has 1 chunks but no record" in "\n".join(bench.kb.verify())


def test_verify_says_when_there_is_no_knowledge_base(bench: Bench) -> None:
    assert bench.kb.verify() == ["There is no knowledge base here."]
    bench.store.create(8)
    assert bench.kb.verify() == ["The knowledge base has no info record."]
    bench.ingest(OLD)
    assert bench.kb.verify() == []


def test_drop_removes_everything_and_an_ingestion_begins_anew(bench: Bench) -> None:
    bench.ingest(OLD)
    bench.kb.drop()
    assert not bench.store.exists()
    assert bench.ingest(NEW).generation == 1
    assert bench.store.get([INFO_ID])


def test_queries_in_eight_threads_see_the_old_or_the_new_generation_and_never_a_mix(bench: Bench) -> None:
    old = {f"s{number}": [f"old {number} {part}" for part in range(3)] for number in range(20)}
    new = {f"s{number}": [f"new {number} {part}" for part in range(3)] for number in range(20)}
    bench.ingest(old)
    both = (every_text(old), every_text(new))
    stop = threading.Event()
    seen: list[set[int]] = []
    mixed: list[list[str]] = []

    def ask() -> None:
        kinds: set[int] = set()
        while True:
            last = stop.is_set()
            texts = bench.texts()
            kinds.add(both.index(texts)) if texts in both else mixed.append(texts)
            if last:
                break
        seen.append(kinds)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        bench.ingest(new, batch_size=8)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert mixed == []
    assert all(1 in kinds for kinds in seen)


State = dict[str, tuple[str, tuple[Chunk, ...], ChunkSet]]
"""Source -> its scope, its chunks, and the set that brought it."""
Edits = list[tuple[dict[str, list[str]], str, str, int | None]]
"""Runs: a corpus, a clean-up mode, a scope, and the batch at which a first attempt dies."""

EDITS = st.lists(
    st.tuples(
        st.dictionaries(
            st.sampled_from("abcd"), st.lists(st.sampled_from(["one", "two two", "three " * 9]), max_size=3)
        ),
        st.sampled_from(["none", "incremental", "scoped_full", "full"]),
        st.sampled_from(["here", "there"]),
        st.one_of(st.none(), st.integers(0, 2)),
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("open_store", ["memory"], indirect=True)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=EDITS)
def test_any_sequence_of_runs_equals_a_clean_index_of_what_it_leaves(open_store: OpenStore, edits: Edits) -> None:
    check_sequence(open_store, edits)


@pytest.mark.slow
@pytest.mark.parametrize("open_store", ["edge"], indirect=True)
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=EDITS)
def test_any_sequence_of_runs_equals_a_clean_index_on_disk(open_store: OpenStore, edits: Edits) -> None:
    check_sequence(open_store, edits)


def check_sequence(open_store: OpenStore, edits: Edits) -> None:
    bench = Bench(open_store())
    bench.kb.drop()
    expected: State = {}
    for corpus, cleanup, scope, dies_at in edits:
        chunk_set = make_set(corpus, scope=scope)
        if dies_at is not None:
            die_somewhere(bench, chunk_set, cleanup, dies_at)
        bench.ingest(chunk_set, cleanup=cleanup, allow_mass_delete=True)
        expected = state_after(expected, chunk_set, cleanup)
        assert bench.kb.verify() == []
        assert bench.texts() == sorted(chunk.text for _, chunks, _ in expected.values() for chunk in chunks)
    found = content_of(bench.store)
    if "none" in {cleanup for _, cleanup, _, _ in edits}:
        return  # chunks of two states of one source have no clean run that would leave them
    fresh = Bench(open_store("clean"))
    fresh.kb.drop()
    for scope, chunks, chunk_set in expected.values():
        fresh.ingest(chunk_set.model_copy(update={"chunks": chunks, "scope": scope}))
    if not expected:
        fresh.ingest({})
    assert found == content_of(fresh.store)


def die_somewhere(bench: Bench, chunk_set: ChunkSet, cleanup: str, batch: int) -> None:
    def before_batch(number: int) -> None:
        if number == batch:
            raise Killed

    try:
        bench.ingest(
            chunk_set,
            embedder=HashEmbedder(before_batch=before_batch),
            batch_size=1,
            cleanup=cleanup,
            allow_mass_delete=True,
        )
    except Killed:
        return


def state_after(before: State, chunk_set: ChunkSet, cleanup: str) -> State:
    """What the table of clean-up modes says that an index holds after a run."""
    given = {record.source for record in chunk_set.sources}
    after = {
        source: entry
        for source, entry in before.items()
        if source in given
        or cleanup in ("none", "incremental")
        or (cleanup == "scoped_full" and entry[0] != chunk_set.scope)
    }
    for record in chunk_set.sources:
        chunks = tuple(chunk for chunk in chunk_set.chunks if chunk.source == record.source)
        own = chunk_set.model_copy(update={"sources": (record,)})
        if cleanup == "none" and record.source in before:
            ids = {chunk.id for chunk in chunks}
            chunks += tuple(chunk for chunk in before[record.source][1] if chunk.id not in ids)
        after[record.source] = (chunk_set.scope, chunks, own)
    return after
