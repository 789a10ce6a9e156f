"""One suite over every engine: what a knowledge base needs of a store gives the same results everywhere."""

from __future__ import annotations

import math
import random
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ragbraid.nodes.store import CHUNKS, EVERYTHING, FOREVER, Point, Store, Test, Tests, visible_at
from ragbraid.registry.errors import ServiceError
from ragbraid.registry.resources import SparseVector

OpenStore = Callable[..., Store]


def uid(number: int) -> str:
    return str(uuid.UUID(int=number))


def where(key: str, **test: object) -> Tests:
    return Tests(must=(Test(key, **test),))  # type: ignore[arg-type]


def make_chunk(number: int, dense: list[float], terms: dict[int, float], **payload: object) -> Point:
    return Point(
        uid(number),
        {"kind": "chunk", "gen_from": 1, "gen_to": FOREVER, "number": number, "metadata": {}, **payload},
        np.asarray(dense, dtype=np.float32),
        SparseVector(tuple(sorted(terms)), tuple(terms[term] for term in sorted(terms))),
    )


FOUR = [
    make_chunk(1, [1, 0, 0], {7: 1.0, 4_000_000_000: 1.0}, title="a", metadata={"year": 2020, "open": True}),
    make_chunk(2, [0.9, 0.1, 0], {7: 2.0}, title="b", metadata={"year": 2021.5, "open": False}),
    make_chunk(3, [0, 1, 0], {8: 1.0}, title=None, metadata={"tags": ["x", "y"], "open": 1}),
    make_chunk(4, [0, 0, 1], {9: 1.0}, title="d", metadata={"a.b c": "dotted", "year": 2020.0, "big": 2**60 + 1}),
]


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    made = open_store()
    made.create(3)
    made.upsert(FOUR)
    return made


def numbers(points: object) -> list[int]:
    return [point.payload["number"] for point in points]  # type: ignore[attr-defined]


def found(store: Store, tests: Tests) -> list[int]:
    return sorted(numbers(store.scroll(tests)))


def test_a_store_exists_only_once_it_is_created(open_store: OpenStore) -> None:
    store = open_store()
    assert not store.exists()
    store.create(3)
    store.create(3)
    assert store.exists()
    store.drop()
    assert not store.exists()
    store.drop()


def test_a_dropped_store_can_be_created_anew_with_another_dimension(store: Store) -> None:
    store.drop()
    store.create(2)
    assert store.count(EVERYTHING) == 0
    store.upsert([make_chunk(1, [1, 0], {1: 1.0})])
    assert numbers(store.search_dense(np.asarray([1, 0], dtype=np.float32), 5, EVERYTHING)) == [1]


def test_siblings_are_the_collections_at_the_same_place(open_store: OpenStore) -> None:
    store = open_store("first")
    assert not [name for name in store.siblings() if name.endswith("first")]
    store.create(3)
    assert len([name for name in store.siblings() if name.endswith("first")]) == 1


def test_dense_search_gives_cosines_best_first(store: Store) -> None:
    hits = store.search_dense(np.asarray([2, 0, 0], dtype=np.float32), 3, CHUNKS)
    assert numbers(hits) == [1, 2, 3]
    assert [hit.score for hit in hits] == pytest.approx([1.0, 0.9 / math.hypot(0.9, 0.1), 0.0], abs=1e-6)


def test_sparse_search_multiplies_by_the_inverse_document_frequency(store: Store) -> None:
    hits = store.search_sparse(SparseVector((7, 4_000_000_000), (1.0, 1.0)), 10, CHUNKS)
    twice, once = math.log((4 - 2 + 0.5) / (2 + 0.5) + 1), math.log((4 - 1 + 0.5) / (1 + 0.5) + 1)
    assert numbers(hits) == [2, 1] if 2 * twice > twice + once else [1, 2]
    assert {hit.payload["number"]: hit.score for hit in hits} == pytest.approx({1: twice + once, 2: 2 * twice})


def test_the_inverse_document_frequency_is_that_of_the_examples(open_store: OpenStore) -> None:
    store = open_store()
    store.create(1)
    store.upsert([make_chunk(number, [1], {1: 1.0, 100 + number: 1.0}) for number in range(1, 101)])
    rare = store.search_sparse(SparseVector((101,), (1.0,)), 1, CHUNKS)
    common = store.search_sparse(SparseVector((1,), (1.0,)), 1, CHUNKS)
    assert rare[0].score == pytest.approx(4.209655, abs=1e-5)
    assert common[0].score == pytest.approx(0.004963, abs=1e-5)


def test_equal_scores_come_in_order_of_id(open_store: OpenStore) -> None:
    store = open_store()
    store.create(1)
    store.upsert([make_chunk(number, [1], {1: 1.0}) for number in (5, 3, 9, 1)])
    assert numbers(store.search_sparse(SparseVector((1,), (1.0,)), 10, CHUNKS)) == [1, 3, 5, 9]
    assert numbers(store.search_dense(np.asarray([1], dtype=np.float32), 10, CHUNKS)) == [1, 3, 5, 9]


def test_equal_scores_at_the_cut_are_settled_by_id(open_store: OpenStore) -> None:
    store = open_store()
    store.create(1)
    store.upsert([make_chunk(number, [1], {1: 1.0}) for number in range(200, 0, -1)])
    assert numbers(store.search_sparse(SparseVector((1,), (1.0,)), 3, CHUNKS)) == [1, 2, 3]
    assert numbers(store.search_dense(np.asarray([1], dtype=np.float32), 3, CHUNKS)) == [1, 2, 3]


def test_points_without_vectors_change_no_search_and_no_frequency(store: Store) -> None:
    dense, sparse = np.asarray([1, 0, 0], dtype=np.float32), SparseVector((7,), (1.0,))
    before = [(hit.id, hit.score) for hit in store.search_dense(dense, 50, EVERYTHING)]
    before_sparse = [(hit.id, hit.score) for hit in store.search_sparse(sparse, 50, EVERYTHING)]
    store.upsert([Point(uid(100 + number), {"kind": "document"}) for number in range(50)])
    assert [(hit.id, hit.score) for hit in store.search_dense(dense, 50, EVERYTHING)] == before
    assert [(hit.id, hit.score) for hit in store.search_sparse(sparse, 50, EVERYTHING)] == before_sparse


def test_an_empty_sparse_vector_finds_nothing(store: Store) -> None:
    assert list(store.search_sparse(SparseVector((), ()), 10, CHUNKS)) == []


def test_a_filter_limits_both_searches_before_the_cut(store: Store) -> None:
    only = Tests(must=(Test("title", equals="b"),))
    assert numbers(store.search_dense(np.asarray([1, 0, 0], dtype=np.float32), 1, only)) == [2]
    assert numbers(store.search_sparse(SparseVector((7,), (1.0,)), 1, only)) == [2]


@pytest.mark.parametrize(
    ("tests", "expected"),
    [
        (where("title", equals="a"), [1]),
        (where("title", any_of=("a", "d", "z")), [1, 4]),
        (where("title", any_of=()), []),
        (where("title", exists=True), [1, 2, 4]),
        (where("title", exists=False), [3]),
        (where("metadata.tags", equals="y"), [3]),
        (where("metadata.tags", any_of=("y", "z")), [3]),
        (where("metadata.year", equals=2020), [1, 4]),
        (where("metadata.year", equals=2021.5), [2]),
        (where("metadata.year", any_of=(2020, 2021.5)), [1, 2, 4]),
        (where("metadata.year", gt=2020, lte=2021.5), [2]),
        (where("metadata.year", gte=2020, lt=2021), [1, 4]),
        (where("metadata.open", equals=True), [1]),
        (where("metadata.open", equals=False), [2]),
        (where("metadata.open", any_of=(True, False)), [1, 2]),
        (where("metadata.open", equals=1), [3]),
        (where("metadata.big", equals=2**60 + 1), [4]),
        (where("metadata.big", equals=1e300), []),
        (where("metadata.a.b c", equals="dotted"), [4]),
        (where("metadata.nothing", equals="x"), []),
        (Tests(must_not=(Test("title", equals="a"),)), [2, 3, 4]),
        (Tests(must=(Test("metadata.year", gte=0),), must_not=(Test("title", any_of=("a", "b")),)), [4]),
        (CHUNKS & where("title", equals="a"), [1]),
        (EVERYTHING, [1, 2, 3, 4]),
    ],
)
def test_filters_mean_the_same_everywhere(store: Store, tests: Tests, expected: list[int]) -> None:
    assert found(store, tests) == expected
    assert store.count(tests) == len(expected)


def test_the_visible_generation_is_a_filter(store: Store) -> None:
    store.upsert([make_chunk(5, [1, 1, 1], {7: 1.0}, gen_from=2)])
    store.patch({"gen_to": 2}, ids=[uid(1)])
    assert found(store, visible_at(1)) == [1, 2, 3, 4]
    assert found(store, visible_at(2)) == [2, 3, 4, 5]


def test_frequencies_can_be_counted_over_one_generation(store: Store) -> None:
    vector = SparseVector((7,), (1.0,))
    before = [(hit.id, hit.score) for hit in store.search_sparse(vector, 9, visible_at(1))]
    store.upsert([make_chunk(10 + number, [1, 1, 1], {7: 1.0}, gen_from=2) for number in range(5)])
    seen = CHUNKS & visible_at(1)
    assert [(hit.id, hit.score) for hit in store.search_sparse(vector, 9, seen, corpus=seen)] == before


def test_frequencies_follow_deletions_at_once(store: Store) -> None:
    store.delete(ids=[uid(3), uid(4)])
    store.delete(where=Tests(must=(Test("title", equals="b"),)))
    store.upsert([make_chunk(6, [0, 1, 1], {8: 1.0})])
    hits = store.search_sparse(SparseVector((7,), (1.0,)), 9, CHUNKS)
    assert numbers(hits) == [1]
    assert hits[0].score == pytest.approx(math.log((2 - 1 + 0.5) / 1.5 + 1), abs=1e-5)


def test_patch_sets_keys_and_leaves_the_rest(store: Store) -> None:
    store.patch({"title": "new", "extra": {"n": 1}}, ids=[uid(1)])
    store.patch({"seen": True}, where=Tests(must=(Test("metadata.year", gte=0),)))
    store.patch({"never": True}, where=Tests(must=(Test("title", equals="no such"),)))
    point = store.get([uid(1)], with_vectors=True)[0]
    assert point.payload["title"] == "new"
    assert point.payload["extra"] == {"n": 1}
    assert point.payload["metadata"] == {"year": 2020, "open": True}
    assert point.dense is not None
    assert point.sparse == FOUR[0].sparse
    assert found(store, where("seen", equals=True)) == [1, 2, 4]
    assert found(store, where("never", exists=True)) == []


def test_patch_and_delete_of_no_ids_do_nothing(store: Store) -> None:
    store.patch({"title": "new"}, ids=[])
    store.delete(ids=[])
    assert store.count(CHUNKS) == 4
    assert found(store, where("title", equals="new")) == []


def test_set_sparse_replaces_term_weights_and_nothing_else(store: Store) -> None:
    store.set_sparse({uid(1): SparseVector((8, 9), (1.5, 2.5))})
    point = store.get([uid(1)], with_vectors=True)[0]
    assert point.sparse == SparseVector((8, 9), (1.5, 2.5))
    assert point.dense is not None
    assert point.dense.tolist() == pytest.approx([1, 0, 0])
    assert point.payload == FOUR[0].payload
    assert numbers(store.search_sparse(SparseVector((7,), (1.0,)), 9, CHUNKS)) == [2]


def test_upsert_replaces_the_whole_point(store: Store) -> None:
    store.upsert([Point(uid(1), {"kind": "document", "number": 1})])
    assert store.get([uid(1)], with_vectors=True) == [Point(uid(1), {"kind": "document", "number": 1})]
    assert 1 not in numbers(store.search_dense(np.asarray([1, 0, 0], dtype=np.float32), 9, EVERYTHING))


def test_get_answers_in_the_order_asked_for(store: Store) -> None:
    assert numbers(store.get([uid(3), uid(99), uid(1)])) == [3, 1]
    assert store.get([]) == []


def test_payloads_belong_to_their_points_in_whatever_order_they_are_asked_for(open_store: OpenStore) -> None:
    store = open_store()
    store.create(1)
    points = [make_chunk(number, [number], {1: float(number)}) for number in range(1, 601)]
    store.upsert(points)
    store.flush()
    store.upsert(points[::3])  # which the engine may then keep elsewhere than the others
    hits = store.search_sparse(SparseVector((1,), (1.0,)), 600, EVERYTHING, with_payload=False)
    numbers_of = dict(zip(hits.keys, range(600, 0, -1), strict=True))
    keys = dict(zip(hits.keys, hits.ids, strict=True))
    for seed in range(20):
        some = random.Random(seed).sample(list(keys), 50)
        found = store.payloads([keys[key] for key in some])
        assert {key: payload["number"] for key, payload in found.items()} == {key: numbers_of[key] for key in some}
    gone, *left = some
    store.delete(ids=[str(keys[gone])])
    assert store.payloads([keys[key] for key in some]).keys() == set(left)
    assert store.payloads([keys[left[0]], keys[left[1]], keys[left[0]]]).keys() == {left[0], left[1]}
    assert store.payloads([]) == {}


def test_scroll_pages_through_everything_once(open_store: OpenStore) -> None:
    store = open_store()
    store.create(1)
    store.upsert([make_chunk(number, [1], {1: 1.0}) for number in range(1, 601)])
    assert numbers(store.scroll(CHUNKS, page=7)) == list(range(1, 601))
    assert store.count(CHUNKS) == 600


def test_odd_texts_come_back_as_they_were(store: Store) -> None:
    text = '中文 \U0001f600 \u202e "quoted" \\ \n tab\t ÄÖ'
    store.upsert([make_chunk(9, [1, 1, 1], {1: 1.0}, text=text, metadata={"键": text})])
    point = store.get([uid(9)])[0]
    assert point.payload["text"] == text
    assert found(store, Tests(must=(Test("metadata.键", equals=text),))) == [9]


def test_a_vector_of_another_dimension_is_a_sentence(store: Store) -> None:
    with pytest.raises(ServiceError):
        store.upsert([make_chunk(9, [1, 2], {1: 1.0})])


def test_eight_threads_write_and_read_exactly(open_store: OpenStore) -> None:
    store = open_store()
    store.create(2)

    def write(thread: int) -> None:
        for start in range(0, 100, 20):
            first = thread * 100 + start + 1
            store.upsert([make_chunk(number, [1, number], {1: 1.0}) for number in range(first, first + 20)])
            store.search_dense(np.asarray([1, 1], dtype=np.float32), 5, CHUNKS)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert store.count(CHUNKS) == 800
    assert numbers(store.scroll(CHUNKS)) == list(range(1, 801))
