"""`index.upsert`: what the clean-up modes do, what is refused, and what is reported. Numbers as A78 to A81."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from graph_parts import open_kb
from index_parts import Corpus, HashEmbedder, WordSparse, make_set

from ragbraid.nodes.index import group_by_source, upsert
from ragbraid.nodes.index_records import average_at, average_step
from ragbraid.nodes.knowledge_base import QdrantKnowledgeBase
from ragbraid.nodes.store_client import MEMORY, open_local
from ragbraid.registry.context import StepContext, step_context
from ragbraid.registry.contracts import ChunkSet, IndexReport
from ragbraid.registry.errors import NodeInputError, RunError
from ragbraid.registry.node import contract_of


@pytest.fixture
def kb() -> Iterator[QdrantKnowledgeBase]:
    opened = open_kb(open_local(MEMORY, "kb"), "kb")
    yield opened
    opened.close()


def ingest(kb: QdrantKnowledgeBase, chunks: ChunkSet | Corpus, **given: object) -> IndexReport:
    chunk_set = chunks if isinstance(chunks, ChunkSet) else make_set(chunks)
    return upsert(chunk_set, kb=kb, embedder=HashEmbedder(), sparse=WordSparse(), **given)  # type: ignore[arg-type]


def texts(kb: QdrantKnowledgeBase) -> list[str]:
    vector = HashEmbedder().embed_query("anything")
    return sorted(hit.text for hit in kb.search_dense(vector, embedder="hash-1", top_k=100))


def counts(report: IndexReport) -> tuple[int, int, int]:
    return report.chunks_added, report.chunks_unchanged, report.chunks_deleted


def repeating(chunk_set: ChunkSet, position: int) -> ChunkSet:
    return chunk_set.model_copy(update={"chunks": (*chunk_set.chunks, chunk_set.chunks[position])})


def test_a78_incremental_replaces_the_chunks_of_a_changed_source(kb: QdrantKnowledgeBase) -> None:
    first = ingest(kb, repeating(make_set({"A": ["x", "y"], "B": ["z"]}), 0))
    assert counts(first) == (3, 1, 0)
    assert counts(ingest(kb, {"A": ["x", "y2"]})) == (1, 1, 1)
    assert texts(kb) == ["x", "y2", "z"]


def test_a79_scoped_full_stays_in_its_scope_and_full_does_not(kb: QdrantKnowledgeBase) -> None:
    ingest(kb, make_set({"A": ["x", "y2"]}, scope="here"))
    ingest(kb, make_set({"B": ["z"]}, scope="there"))
    scoped = ingest(kb, make_set({"A": ["x"]}, scope="here"), cleanup="scoped_full")
    assert counts(scoped) == (0, 1, 1)
    assert texts(kb) == ["x", "z"]
    full = ingest(kb, make_set({"C": ["w"]}, scope="third"), cleanup="full", allow_mass_delete=True)
    assert counts(full) == (1, 0, 2)
    assert texts(kb) == ["w"]


@pytest.mark.parametrize("complete", [False, True])
def test_a80_full_refuses_an_empty_input(kb: QdrantKnowledgeBase, complete: bool) -> None:
    ingest(kb, {"C": ["w"]})
    with pytest.raises(RunError) as refusal:
        ingest(kb, make_set({}, complete=complete), cleanup="full")
    assert refusal.value.kind == "refused"
    assert texts(kb) == ["w"]


def test_a80_full_may_empty_the_index_when_told_to(kb: QdrantKnowledgeBase) -> None:
    ingest(kb, {"C": ["w"]})
    assert ingest(kb, {}, cleanup="full", allow_mass_delete=True).deleted == 1
    assert texts(kb) == []


def test_a81_batches_smaller_than_a_source_delete_nothing_of_it(kb: QdrantKnowledgeBase) -> None:
    ingest(kb, {"A": ["p", "q", "r", "s"]}, batch_size=2)
    assert counts(ingest(kb, {"A": ["p", "q", "r", "s"]}, batch_size=2)) == (0, 4, 0)


def test_none_deletes_nothing_ever(kb: QdrantKnowledgeBase) -> None:
    ingest(kb, {"A": ["x", "y"], "B": ["z"]})
    assert counts(ingest(kb, {"A": ["x", "y2"]}, cleanup="none")) == (1, 1, 0)
    assert texts(kb) == ["x", "y", "y2", "z"]
    assert ingest(kb, {"A": ["x", "y2"]}, cleanup="none").unchanged == 1
    assert counts(ingest(kb, {"A": ["x", "y2"]}, cleanup="incremental")) == (0, 2, 1)
    assert texts(kb) == ["x", "y2", "z"]


def test_scoped_full_removes_what_is_missing_from_its_scope(kb: QdrantKnowledgeBase) -> None:
    ingest(kb, make_set({"A": ["x"], "B": ["y"], "C": ["z"]}, scope="here"))
    report = ingest(kb, make_set({"A": ["x"], "C": ["z"]}, scope="here"), cleanup="scoped_full")
    assert [(source.source, source.status) for source in report.sources][-1] == ("B", "deleted")
    assert texts(kb) == ["x", "z"]


def test_scoped_full_over_an_incomplete_scope_deletes_nothing_and_says_so(kb: QdrantKnowledgeBase) -> None:
    ingest(kb, make_set({"A": ["x"], "B": ["y"]}, scope="here"))
    context = StepContext()
    with step_context(context):
        report = ingest(kb, make_set({"A": ["x2"]}, scope="here", complete=False), cleanup="scoped_full")
    assert (report.updated, report.deleted, context.status) == (1, 0, "degraded")
    assert context.notes == [
        "1 sources of `here` were not found but stay indexed, because the loader could not see its whole scope."
    ]
    assert list(report.notes) == context.notes
    assert texts(kb) == ["x2", "y"]


def test_a_source_that_failed_is_reported_and_never_taken_for_deleted(kb: QdrantKnowledgeBase) -> None:
    ingest(kb, {"A": ["x"], "B": ["y"]})
    report = ingest(kb, make_set({"A": ["x"]}, failed=["B", "never seen"]), cleanup="full")
    assert (report.failed, report.deleted, report.unchanged) == (2, 0, 1)
    assert report.sources[-1].reason == "cannot be read"
    assert texts(kb) == ["x", "y"]


@pytest.mark.parametrize("cleanup", ["full", "scoped_full"])
def test_more_deletions_than_allowed_are_refused_and_change_nothing(kb: QdrantKnowledgeBase, cleanup: str) -> None:
    ingest(kb, {"A": ["x"], "B": ["y"], "C": ["z"]})
    with pytest.raises(RunError, match=r"2 of 3 indexed sources are missing .*`B`.* share of 0.5") as refusal:
        ingest(kb, {"A": ["changed"]}, cleanup=cleanup)
    assert refusal.value.kind == "refused"
    assert refusal.value.hint is not None
    assert texts(kb) == ["x", "y", "z"]
    assert kb.info().updating is False
    assert ingest(kb, {"A": ["changed"]}, cleanup=cleanup, max_delete_share=0.7).deleted == 2


@pytest.mark.parametrize("cleanup", ["full", "scoped_full"])
def test_sources_under_new_names_have_moved_and_are_not_a_mass_deletion(kb: QdrantKnowledgeBase, cleanup: str) -> None:
    ingest(kb, {"a": ["x"], "b": ["y"], "c": ["z"]})
    report = ingest(kb, {"en/a": ["x"], "en/b": ["y"], "en/c": ["z"]}, cleanup=cleanup)
    assert (report.added, report.deleted, report.embedded) == (3, 3, 0)
    assert {each.source: each.reason for each in report.sources if each.status == "deleted"} == {
        "a": "its content is now in en/a",
        "b": "its content is now in en/b",
        "c": "its content is now in en/c",
    }
    assert texts(kb) == ["x", "y", "z"]


def test_a_new_source_stands_for_one_missing_source_only(kb: QdrantKnowledgeBase) -> None:
    ingest(kb, {"a": ["same"], "b": ["same"], "c": ["same"], "d": ["same"]})
    with pytest.raises(RunError, match=r"3 of 4 indexed sources are missing from this run \(for example `b`\)"):
        ingest(kb, {"new": ["same"]}, cleanup="full")
    # `a` is known already, so it is no new name for the others.
    with pytest.raises(RunError, match="3 of 4 indexed sources are missing"):
        ingest(kb, {"a": ["same"]}, cleanup="full")


def test_a_moved_folder_takes_its_sources_over_and_says_what_it_left_behind(kb: QdrantKnowledgeBase) -> None:
    ingest(kb, make_set({"A": ["x"], "B": ["y"], "C": ["z"]}, scope="/old/*"), cleanup="scoped_full")
    moved = make_set({"A": ["x"], "B": ["new"]}, scope="/new/*")
    report = ingest(kb, moved, cleanup="scoped_full")
    assert [(each.source, each.status, each.reason) for each in report.sources] == [
        ("A", "updated", "until now of `/old/*`"),
        ("B", "updated", "replaces the source of this name of `/old/*`"),
    ]
    assert (report.embedded, report.deleted, counts(report)) == (1, 0, (1, 1, 1))
    [note] = report.notes
    assert note == (
        "Sources of `/old/*` stay indexed that are not in `/new/*`, where others of them are now: 1. "
        'If this is the same folder at a new place, load it with `scope: "/old/*"`.'
    )
    named = ingest(kb, moved.model_copy(update={"scope": "/old/*"}), cleanup="scoped_full")
    assert (named.deleted, named.embedded, named.notes) == (1, 0, ())
    assert texts(kb) == ["new", "x"]


def test_a_source_that_would_replace_a_namesake_of_another_folder_is_left_out(kb: QdrantKnowledgeBase) -> None:
    one = make_set({"readme": ["x"], "same": ["s"]}, scope="one/*").model_copy(update={"root": "one/"})
    two = make_set({"readme": ["y"], "same": ["s"], "new": ["z"]}, scope="two/*").model_copy(update={"root": "two/"})
    ingest(kb, one, cleanup="scoped_full")
    report = ingest(kb, two, cleanup="scoped_full")
    assert counts(report) == (1, 1, 0)
    [failed] = [each for each in report.sources if each.status == "failed"]
    assert failed.source == "readme"
    assert failed.reason is not None
    assert "from `one/`. Load one of the folders with a `prefix`" in failed.reason
    assert 'at a new place, with `scope: "one/*"`' in failed.reason
    assert texts(kb) == ["s", "x", "z"]
    # The author says that it is the same folder, or that this run brings everything there is.
    assert ingest(kb, two.model_copy(update={"scope": "one/*"})).embedded == 1
    assert texts(kb) == ["s", "y", "z"]
    assert ingest(kb, one, cleanup="full").updated >= 1
    assert texts(kb) == ["s", "x"]


def test_one_file_of_a_folder_is_the_same_source_as_when_the_folder_is_loaded(kb: QdrantKnowledgeBase) -> None:
    folder = make_set({"a": ["x"], "b": ["y"]}, scope="docs/**/*").model_copy(update={"root": "docs/"})
    ingest(kb, folder)
    alone = make_set({"a": ["changed"]}, scope="docs/a").model_copy(update={"root": "docs/"})
    assert ingest(kb, alone).updated == 1
    assert texts(kb) == ["changed", "y"]


def test_a_folder_of_other_files_leaves_those_of_another_folder_alone(kb: QdrantKnowledgeBase) -> None:
    ingest(kb, make_set({"A": ["x"]}, scope="one"), cleanup="scoped_full")
    report = ingest(kb, make_set({"B": ["x"]}, scope="two"), cleanup="scoped_full")
    assert (report.added, report.deleted, report.embedded, report.notes) == (1, 0, 0, ())
    assert texts(kb) == ["x", "x"]


def test_a_source_without_text_is_named_in_every_report(kb: QdrantKnowledgeBase) -> None:
    for status in ("added", "unchanged"):
        report = ingest(kb, {"A": ["x"], "blank": []})
        reasons = [(each.status, each.reason) for each in report.sources if each.source == "blank"]
        assert reasons == [(status, "it holds no text, so there is nothing to find in it")]
        assert report.empty == 1


def test_progress_counts_embedded_texts(kb: QdrantKnowledgeBase) -> None:
    seen: list[tuple[str, int, int | None]] = []
    with step_context(StepContext(on_progress=lambda label, done, total: seen.append((label, done, total)))):
        ingest(kb, {"A": ["p", "q", "r"], "B": ["s", "t"]}, batch_size=2)
    assert seen == [("embedding", 2, 5), ("embedding", 4, 5), ("embedding", 5, 5)]


def test_a_chunk_of_an_unlisted_source_is_an_input_error(kb: QdrantKnowledgeBase) -> None:
    lost = make_set({"A": ["x"]}).model_copy(update={"sources": ()})
    with pytest.raises(NodeInputError, match="belongs to `A`, which the chunk set does not list"):
        ingest(kb, lost)


def test_two_different_chunks_with_one_id_are_an_input_error(kb: QdrantKnowledgeBase) -> None:
    good = make_set({"A": ["x"], "B": ["y"]})
    clash = good.model_copy(update={"chunks": (good.chunks[0], good.chunks[1].model_copy(update={"id": "x"}))})
    clash = clash.model_copy(update={"chunks": (clash.chunks[0].model_copy(update={"id": "x"}), clash.chunks[1])})
    with pytest.raises(NodeInputError, match="id `x`: one of `A`, one of `B`"):
        ingest(kb, clash)


def test_a_source_listed_twice_with_different_content_is_an_input_error(kb: QdrantKnowledgeBase) -> None:
    good = make_set({"A": ["x"]})
    twice = (good.sources[0], good.sources[0].model_copy(update={"content_hash": "other"}))
    with pytest.raises(NodeInputError, match="lists the source `A` twice"):
        ingest(kb, good.model_copy(update={"sources": twice}))


def test_failed_sources_are_left_out_even_when_the_set_lists_them() -> None:
    given, repeated = group_by_source(make_set({"A": ["x"], "B": ["y"]}, failed=["B"]), skip=frozenset({"B"}))
    assert [source.record.source for source in given] == ["A"]
    assert repeated == {}


@pytest.mark.parametrize(
    ("tokens", "chunks", "average"),
    [
        (0, 0, 1.0),
        (0, 5, 1.0),
        (10, 10, 1.0),
        (11, 10, 1.1),
        (104, 100, 1.0),
        (1000, 10, 97.017234),
        (1000, 9, 106.718957),
    ],
)
def test_average_lengths_lie_on_a_grid_of_ten_percent(tokens: int, chunks: int, average: float) -> None:
    assert average_at(average_step(tokens, chunks)) == average


def test_the_node_blocks_is_never_cached_and_explains_every_setting() -> None:
    contract = contract_of(upsert)
    assert (contract.name, contract.blocking, contract.cacheable) == ("index.upsert", True, False)
    assert [need.role for need in contract.resources] == ["kb", "embedder", "sparse"]
    assert all(port.about for port in contract.ports)
