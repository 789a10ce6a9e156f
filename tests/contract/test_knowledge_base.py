"""Reading and searching a knowledge base, over every engine: same results, one committed generation, plain refusals."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from graph_parts import open_kb

from ragbraid.nodes.bm25 import Bm25Encoder
from ragbraid.nodes.knowledge_base import QdrantKnowledgeBase
from ragbraid.nodes.store import (
    FOREVER,
    Point,
    Store,
    chunk_payload,
    point_id,
    read_info,
    write_info,
)
from ragbraid.registry.contracts import Chunk, Span
from ragbraid.registry.errors import SettingsError
from ragbraid.registry.knowledge import Condition, DocumentRecord, KnowledgeBase, KnowledgeBaseInfo, Where
from ragbraid.registry.resources import SparseVector

OpenStore = Callable[..., Store]

BM25 = Bm25Encoder()
EMBEDDER = "three dimensions of the test"


def chunk(number: int, text: str, **given: object) -> Chunk:
    return Chunk(id=f"c{number}", document_id="d1", source="a.md", index=number, text=text, **given)  # type: ignore[arg-type]


CHUNK_LIST = [
    chunk(
        0, "alpha beta", title="One", span=Span(start=0, end=10), language="en", metadata={"year": 2020, "tags": ["x"]}
    ),
    chunk(1, "alpha gamma ERR_OOM_KILL_001", section_path=("A", "B"), embed_text="A > B\nalpha gamma ERR_OOM_KILL_001"),
    chunk(2, "内存溢出处理指南", language="zh", kind="table", metadata={"year": 2024, "部门": "运维"}),
    chunk(3, "delta", parent_id="c0", made_by="chunker", kind="summary"),
]
VECTORS = [[1, 0, 0], [0.8, 0.6, 0], [0, 1, 0], [0, 0, 1]]


def points(chunks: list[Chunk], vectors: list[list[float]], gen_from: int) -> list[Point]:
    weights = BM25.encode_documents([each.text_to_embed for each in chunks], average_length=3.0)
    return [
        Point(
            point_id("chunk", f"{each.source}\x1f{each.id}", gen_from),
            chunk_payload(each, gen_from=gen_from),
            np.asarray(vector, dtype=np.float32),
            terms,
        )
        for each, vector, terms in zip(chunks, vectors, weights, strict=True)
    ]


def info(**given: object) -> KnowledgeBaseInfo:
    fields = {"name": "kb", "embedder": EMBEDDER, "dimension": 3, "sparse": BM25.identity, "generation": 1, "chunks": 4}
    return KnowledgeBaseInfo.model_validate({**fields, **given})


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    made = open_store()
    made.create(3)
    made.upsert(points(CHUNK_LIST, VECTORS, 1))
    record = DocumentRecord(source="a.md", document_id="d1", content_hash="0", state="committed", generation=1)
    payload = {"kind": "document", "source": "a.md", "document_id": "d1", "record": record.model_dump(mode="json")}
    made.upsert([Point(point_id("document", "a.md", 1), {**payload, "gen_from": 1, "gen_to": FOREVER})])
    write_info(made, info())
    return made


@pytest.fixture
def kb(store: Store) -> QdrantKnowledgeBase:
    return open_kb(store, "kb")


def dense(kb: KnowledgeBase, vector: list[float], top_k: int = 10, where: Where | None = None) -> list[str]:
    hits = kb.search_dense(np.asarray(vector, dtype=np.float32), embedder=EMBEDDER, top_k=top_k, where=where)
    return [hit.id for hit in hits]


def sparse(kb: KnowledgeBase, text: str, top_k: int = 10, where: Where | None = None) -> list[str]:
    hits = kb.search_sparse(BM25.encode_query(text), sparse=BM25.identity, top_k=top_k, where=where)
    return [hit.id for hit in hits]


def only(field: str, **test: object) -> Where:
    return Where(all=(Condition.model_validate({"field": field, **test}),))


def test_a_search_by_meaning_can_be_held_within_given_chunks(kb: QdrantKnowledgeBase) -> None:
    vector = np.asarray([1, 0, 0], dtype=np.float32)

    def within(*ids: str, top_k: int = 10, where: Where | None = None) -> list[str]:
        hits = kb.search_dense(vector, embedder=EMBEDDER, top_k=top_k, where=where, within=ids)
        return [hit.id for hit in hits]

    assert within("c1", "c0", "nowhere") == ["c0", "c1"]
    assert within("c1", "c0", top_k=1) == ["c0"]
    assert within("c1", "c2", where=only("language", equals="zh")) == ["c2"]
    assert within() == []


def test_it_fulfils_the_protocol(kb: QdrantKnowledgeBase) -> None:
    assert isinstance(kb, KnowledgeBase)
    assert kb.name == "kb"


def test_hits_carry_everything_that_the_chunk_holds(kb: QdrantKnowledgeBase) -> None:
    vector = np.asarray([1, 0, 0], dtype=np.float32)
    first, second = kb.search_dense(vector, embedder=EMBEDDER, top_k=2)
    assert (first.rank, first.score_kind, first.kind) == (1, "cosine", "chunk")
    assert first.score == pytest.approx(1.0)
    assert second.score == pytest.approx(0.8)
    assert type(first).model_validate(first.model_dump()) == first
    assert first.model_dump(
        include={"id", "text", "title", "span", "language", "metadata", "document_id", "source"}
    ) == {
        "id": "c0",
        "text": "alpha beta",
        "title": "One",
        "span": {"start": 0, "end": 10},
        "language": "en",
        "metadata": {"year": 2020, "tags": ["x"]},
        "document_id": "d1",
        "source": "a.md",
    }
    assert second.section_path == ("A", "B")
    assert second.text_to_rank == "A > B\nalpha gamma ERR_OOM_KILL_001"
    assert kb.search_dense(np.asarray([0, 0, 1], dtype=np.float32), embedder=EMBEDDER, top_k=1)[0].kind == "summary"


def test_sparse_search_finds_words_identifiers_and_chinese(kb: QdrantKnowledgeBase) -> None:
    assert sparse(kb, "gamma") == ["c1"]
    assert sparse(kb, "alpha beta") == ["c0", "c1"]
    assert sparse(kb, "err_oom_kill_001") == ["c1"]
    assert sparse(kb, "oom") == ["c1"]
    assert sparse(kb, "内存溢出") == ["c2"]
    assert kb.search_sparse(BM25.encode_query("delta"), sparse=BM25.identity, top_k=1)[0].score_kind == "bm25"


def test_a_query_without_terms_finds_nothing(kb: QdrantKnowledgeBase) -> None:
    assert sparse(kb, "the of and") == []
    assert kb.search_sparse(SparseVector((), ()), sparse=BM25.identity, top_k=5) == []


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (only("source", equals="a.md"), ["c0", "c1", "c2", "c3"]),
        (only("source", any_of=("b.md", "c.md")), []),
        (only("title", equals="One"), ["c0"]),
        (only("language", any_of=("zh", "fr")), ["c2"]),
        (only("kind", equals="table"), ["c2"]),
        (only("document_id", equals="d1"), ["c0", "c1", "c2", "c3"]),
        (only("metadata.year", gte=2021), ["c2"]),
        (only("metadata.year", gte=2000, lte=2020), ["c0"]),
        (only("metadata.tags", equals="x"), ["c0"]),
        (only("metadata.部门", equals="运维"), ["c2"]),
        (Where(none=(Condition(field="language", equals="en"),)), ["c1", "c2", "c3"]),
        (Where(all=(Condition(field="metadata.year", gte=0),), none=(Condition(field="title", equals="One"),)), ["c2"]),
    ],
)
def test_conditions_limit_both_searches(kb: QdrantKnowledgeBase, where: Where, expected: list[str]) -> None:
    assert sorted(dense(kb, [1, 1, 1], where=where)) == expected
    found = sparse(kb, "alpha beta gamma delta 内存", where=where)
    assert sorted(found) == expected


def test_an_unknown_field_names_the_nearest(kb: QdrantKnowledgeBase) -> None:
    with pytest.raises(SettingsError, match="no field `metadata.yaer`.*`metadata.year`") as caught:
        dense(kb, [1, 0, 0], where=only("metadata.yaer", equals=2020))
    assert caught.value.hint == "did you mean `metadata.year`?"
    with pytest.raises(SettingsError, match="no field `sorce`") as caught:
        sparse(kb, "alpha", where=only("sorce", equals="a.md"))
    assert caught.value.hint == "did you mean `source`?"
    with pytest.raises(SettingsError, match="no field `gen_from`"):
        dense(kb, [1, 0, 0], where=only("gen_from", equals=1))


def test_a_condition_that_tests_nothing_is_refused(kb: QdrantKnowledgeBase) -> None:
    with pytest.raises(SettingsError, match="`title` tests nothing"):
        dense(kb, [1, 0, 0], where=only("title"))


def test_another_model_is_refused(kb: QdrantKnowledgeBase) -> None:
    with pytest.raises(SettingsError, match="filled with the embedder `three dimensions of the test`.*from `other`"):
        kb.search_dense(np.asarray([1, 0, 0], dtype=np.float32), embedder="other", top_k=1)
    with pytest.raises(SettingsError, match="filled with the sparse encoder"):
        kb.search_sparse(SparseVector((1,), (1.0,)), sparse="other", top_k=1)
    with pytest.raises(SettingsError, match="2 dimensions, knowledge base `kb` has 3"):
        kb.search_dense(np.asarray([1, 0], dtype=np.float32), embedder=EMBEDDER, top_k=1)


def test_a_missing_knowledge_base_names_those_beside_it(open_store: OpenStore) -> None:
    other = open_store("manuals")
    other.create(3)
    missing = open_kb(open_store("manual"), "manual")
    with pytest.raises(SettingsError, match="there is no knowledge base `manual`") as caught:
        missing.info()
    if any(name.endswith("manuals") for name in missing._store.siblings()):  # every `:memory:` is a place of its own
        assert "manuals`" in str(caught.value)
    for read in (lambda: dense(missing, [1, 0, 0]), lambda: missing.fetch(["c"]), missing.fingerprint):
        with pytest.raises(SettingsError, match="there is no knowledge base `manual`"):
            read()


def test_a_first_ingestion_that_is_under_way_shows_nothing(store: Store, kb: QdrantKnowledgeBase) -> None:
    write_info(store, info(generation=0, updating=True, chunks=0))
    with pytest.raises(SettingsError, match="holds nothing yet"):
        dense(kb, [1, 0, 0])


def test_fetch_answers_in_the_order_asked_for(kb: QdrantKnowledgeBase) -> None:
    assert kb.fetch(["c3", "nothing", "c0", "c3"]) == [CHUNK_LIST[3], CHUNK_LIST[0]]
    assert kb.fetch([f"c{number}" for number in range(4)]) == CHUNK_LIST
    assert kb.fetch([]) == []


def test_documents_are_those_of_the_committed_generation(store: Store, kb: QdrantKnowledgeBase) -> None:
    record = DocumentRecord(source="b.md", document_id="d2", content_hash="1", generation=2)
    payload = {"kind": "document", "source": "b.md", "document_id": "d2", "record": record.model_dump(mode="json")}
    write_info(store, info(updating=True))
    store.upsert([Point(point_id("document", "b.md", 2), {**payload, "gen_from": 2, "gen_to": FOREVER})])
    assert [each.source for each in kb.documents()] == ["a.md"]
    write_info(store, info(generation=2))
    assert [each.source for each in kb.documents()] == ["a.md", "b.md"]


def test_the_fingerprint_changes_with_every_committed_generation(store: Store, kb: QdrantKnowledgeBase) -> None:
    before = kb.fingerprint()
    assert before == kb.fingerprint()
    write_info(store, info(updating=True))
    assert kb.fingerprint() == before
    write_info(store, info(generation=2))
    assert kb.fingerprint() != before


def test_an_update_under_way_changes_no_answer_and_no_score(store: Store, kb: QdrantKnowledgeBase) -> None:
    query, vector = BM25.encode_query("alpha gamma"), np.asarray([1, 0.2, 0], dtype=np.float32)

    def answers() -> tuple[object, ...]:
        by_terms = kb.search_sparse(query, sparse=BM25.identity, top_k=9)
        by_meaning = kb.search_dense(vector, embedder=EMBEDDER, top_k=9)
        return [(h.id, h.score) for h in by_terms], [(h.id, h.score) for h in by_meaning], kb.fetch(["c0", "c9"])

    before = answers()
    write_info(store, info(updating=True))
    new = [chunk(0, "alpha alpha alpha"), chunk(9, "alpha gamma")]
    store.upsert(points(new, [[1, 0.2, 0], [1, 0.1, 0]], 2))
    store.patch({"gen_to": 2}, ids=[point_id("chunk", "a.md\x1fc0", 1)])
    assert answers() == before
    write_info(store, info(generation=2, updating=True))
    committed = answers()
    store.delete(ids=[point_id("chunk", "a.md\x1fc0", 1)])
    write_info(store, info(generation=2))
    assert committed != before
    assert answers() == committed
    assert kb.fetch(["c0", "c9"]) == new


def test_readers_see_whole_generations_while_another_thread_commits(store: Store, kb: QdrantKnowledgeBase) -> None:
    rounds, stop = 12, threading.Event()

    def write() -> None:
        try:
            for generation in range(2, rounds + 2):
                write_info(store, info(generation=generation - 1, updating=True))
                new = [chunk(n, f"alpha generation{generation} part{n}") for n in range(4)]
                store.upsert(points(new, VECTORS, generation))
                old = [point_id("chunk", f"a.md\x1fc{n}", generation - 1) for n in range(4)]
                store.patch({"gen_to": generation}, ids=old)
                write_info(store, info(generation=generation, updating=True))
                store.delete(ids=old)
                write_info(store, info(generation=generation))
        finally:
            stop.set()

    def read(search: Callable[[], list[str]]) -> Iterator[list[str]]:
        while not stop.is_set():
            yield search()

    def texts_by_meaning() -> list[str]:
        hits = kb.search_dense(np.asarray([1, 1, 1], dtype=np.float32), embedder=EMBEDDER, top_k=50)
        return [hit.text for hit in hits]

    def texts_by_terms() -> list[str]:
        return [hit.text for hit in kb.search_sparse(BM25.encode_query("alpha"), sparse=BM25.identity, top_k=50)]

    def texts_by_id() -> list[str]:
        return [each.text for each in kb.fetch(["c0", "c1", "c2", "c3"])]

    searches = (texts_by_meaning, texts_by_terms, texts_by_id)
    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(lambda search=search: list(read(search))) for search in searches]  # type: ignore[misc]
        pool.submit(write).result()
        for reader, whole in zip(readers, (4, 2, 4), strict=True):
            for texts in reader.result():
                generations = {word for text in texts for word in text.split() if word.startswith("generation")}
                assert len(generations) <= 1
                assert len(texts) == (4 if generations else whole)
    assert read_info(store) == info(generation=rounds + 1)


def test_eight_threads_get_the_answers_of_one(kb: QdrantKnowledgeBase) -> None:
    vectors = [[float(a), float(b), 1.0] for a in range(5) for b in range(5)]
    alone = [dense(kb, vector) for vector in vectors]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda vector: dense(kb, vector), vectors)) == alone
