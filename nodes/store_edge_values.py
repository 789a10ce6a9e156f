"""Values of ours as `qdrant-edge-py` takes them, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ragbraid.nodes.store import ATOM, SPARSE, Point, Test, Tests, is_exact_number, payload_path, point_of
from ragbraid.registry.knowledge import Scalar

if TYPE_CHECKING:
    import qdrant_edge

_NO_GRAPH_INDEX_KB = 2**40


def configuration(dimension: int, names: Sequence[str]) -> qdrant_edge.EdgeConfig:
    """Return how a collection of ours is set up: exact search, so an update is searchable at once.

    The vector of atoms is there from the start: when the engine adds one later, it changes each segment and then its
    own configuration, and a process killed in between leaves a collection that it does not open any more.
    """
    import qdrant_edge as edge

    return edge.EdgeConfig(
        vectors={
            name: edge.EdgeVectorParams(size=dimension, distance=edge.Distance.Cosine, on_disk=name == ATOM)
            for name in names
            if name != SPARSE
        },
        sparse_vectors={SPARSE: edge.EdgeSparseVectorParams(modifier=edge.Modifier.Idf)} if SPARSE in names else {},
        optimizers=edge.EdgeOptimizersConfig(indexing_threshold=_NO_GRAPH_INDEX_KB),
    )


def to_engine(point: Point) -> qdrant_edge.Point:
    """Return a point as the engine takes it."""
    import qdrant_edge as edge

    vectors: dict[str, Any] = {}
    if point.dense is not None:
        vectors[point.dense_name] = point.dense.tolist()
    if point.sparse is not None:
        vectors[SPARSE] = edge.SparseVector(list(point.sparse.indices), list(point.sparse.values))
    return edge.Point(point.id, vectors, point.payload)


def from_engine(record: qdrant_edge.Record) -> Point:
    """Read a point back from the engine."""
    vectors: dict[str, Any] = record.vector if isinstance(record.vector, dict) else {}
    return point_of(str(record.id), record.payload, vectors)


def to_filter(tests: Tests) -> qdrant_edge.Filter:
    """Return a filter as the engine takes it."""
    import qdrant_edge as edge

    return edge.Filter(
        must=[_condition(test) for test in tests.must], must_not=[_condition(test) for test in tests.must_not]
    )


def _condition(test: Test) -> qdrant_edge.Filter:
    """Every part of one test must pass, as a filter of its own."""
    import qdrant_edge as edge

    path = payload_path(test.key)
    must: list[Any] = []
    must_not: list[Any] = []
    if test.equals is not None:
        must.append(_equals(path, test.equals))
    if test.any_of is not None:
        # An empty `should` would match everything, an empty list of ids matches nothing.
        accepted: list[Any] = [_equals(path, value) for value in test.any_of]
        must.append(edge.Filter(should=accepted) if accepted else edge.HasIdCondition(set()))
    if any(bound is not None for bound in (test.gte, test.lte, test.lt, test.gt)):
        bounds = edge.RangeFloat(gte=test.gte, gt=test.gt, lte=test.lte, lt=test.lt)
        must.append(edge.FieldCondition(path, range=bounds))
    if test.exists is not None:
        (must_not if test.exists else must).append(edge.IsEmptyCondition(path))
    return edge.Filter(must=must, must_not=must_not)


def _equals(path: str, value: Scalar) -> qdrant_edge.FieldCondition:
    import numpy as np
    import qdrant_edge as edge

    if is_exact_number(value):
        number = float(value)
        return edge.FieldCondition(path, range=edge.RangeFloat(gte=number, lte=number))
    # The engine takes a Python bool for the integers 0 and 1, and NumPy's for a boolean.
    exact: Any = np.bool_(value) if isinstance(value, bool) else value
    return edge.FieldCondition(path, match=edge.MatchValue(exact))
