"""Values of ours as qdrant-client takes them, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ragbraid.nodes.store import SPARSE, Point, Test, Tests, is_exact_number, payload_path, point_of
from ragbraid.registry.knowledge import Scalar
from ragbraid.registry.resources import SparseVector

if TYPE_CHECKING:
    from qdrant_client import models


def to_terms(vector: SparseVector) -> models.SparseVector:
    """Return term weights as the client takes them."""
    from qdrant_client import models

    return models.SparseVector(indices=list(vector.indices), values=list(vector.values))


def to_client(point: Point) -> models.PointStruct:
    """Return a point as the client takes it."""
    from qdrant_client import models

    vectors: dict[str, Any] = {}
    if point.dense is not None:
        vectors[point.dense_name] = point.dense.tolist()
    if point.sparse is not None:
        vectors[SPARSE] = to_terms(point.sparse)
    return models.PointStruct(id=point.id, vector=vectors, payload=point.payload)


def from_client(record: models.Record) -> Point:
    """Read a point back from the client."""
    vectors: dict[str, Any] = record.vector if isinstance(record.vector, dict) else {}
    return point_of(str(record.id), record.payload, vectors)


def to_filter(tests: Tests) -> models.Filter:
    """Return a filter as the client takes it."""
    from qdrant_client import models

    return models.Filter(
        must=[_condition(test) for test in tests.must], must_not=[_condition(test) for test in tests.must_not]
    )


def _condition(test: Test) -> models.Filter:
    """Every part of one test must pass, as a filter of its own."""
    from qdrant_client import models

    path = payload_path(test.key)
    must: list[Any] = []
    must_not: list[Any] = []
    if test.equals is not None:
        must.append(_equals(path, test.equals))
    if test.any_of is not None:
        must.append(_any_of(path, test.any_of))
    if any(bound is not None for bound in (test.gte, test.lte, test.lt, test.gt)):
        bounds = models.Range(gte=test.gte, gt=test.gt, lte=test.lte, lt=test.lt)
        must.append(models.FieldCondition(key=path, range=bounds))
    if test.exists is not None:
        empty = models.IsEmptyCondition(is_empty=models.PayloadField(key=path))
        (must_not if test.exists else must).append(empty)
    return models.Filter(must=must, must_not=must_not)


def _any_of(path: str, values: tuple[Scalar, ...]) -> Any:
    from qdrant_client import models

    texts = [value for value in values if isinstance(value, str)]
    if not values:
        return models.HasIdCondition(has_id=[])  # an empty `should` would match everything
    if len(texts) == len(values):  # one lookup, where `should` would make one comparison for each
        return models.FieldCondition(key=path, match=models.MatchAny(any=texts))
    return models.Filter(should=[_equals(path, value) for value in values])


def _equals(path: str, value: Scalar) -> models.FieldCondition:
    from qdrant_client import models

    if is_exact_number(value):
        number = float(value)
        return models.FieldCondition(key=path, range=models.Range(gte=number, lte=number))
    return models.FieldCondition(key=path, match=models.MatchValue(value=cast(bool | int | str, value)))
