"""A `Where` of a flow as the filter of a store, with the fields that a knowledge base really has.

An engine finds nothing for a misspelled field and raises nothing, so every field is looked up first.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ragbraid.nodes.store import CHUNKS, EVERYTHING, Store, Test, Tests
from ragbraid.registry.errors import SettingsError
from ragbraid.registry.knowledge import Condition, KnowledgeBaseInfo, Where
from ragbraid.registry.suggest import did_you_mean

_PAYLOAD_KEYS = {
    "source": "source",
    "document_id": "document_id",
    "title": "title",
    "language": "language",
    "kind": "chunk_kind",
}
_METADATA = "metadata."


class FieldChecker:
    """Translates conditions and refuses fields that no chunk has; remembers the fields it has found."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._found: set[str] = set()
        self._lock = threading.Lock()

    def tests(self, where: Where, info: KnowledgeBaseInfo) -> Tests:
        """Return the filter that a `Where` stands for.

        Raises:
            SettingsError: a field does not exist, with the nearest that does; or a condition tests nothing.
        """
        for condition in (*where.all, *where.none):
            self._require_field(condition.field, info)
        return Tests(tuple(map(_to_test, where.all)), tuple(map(_to_test, where.none)))

    def _require_field(self, field: str, info: KnowledgeBaseInfo) -> None:
        if field in _PAYLOAD_KEYS or field in self._found:
            return
        if field.startswith(_METADATA):
            has_it = CHUNKS & Tests(must=(Test(field, exists=True),))
            if info.chunks == 0 or next(self._store.scroll(has_it, page=1), None) is not None:
                with self._lock:
                    self._found.add(field)
                return
        known = self._known_fields()
        raise SettingsError(
            f"knowledge base `{info.name}` has no field `{field}` to filter by; it has "
            + ", ".join(f"`{name}`" for name in known),
            hint=did_you_mean(field, known),
        )

    def _known_fields(self) -> list[str]:
        """Read every chunk for its metadata keys: slow, and only done to word a complaint."""
        keys = {key for point in self._store.scroll(CHUNKS) for key in point.payload["metadata"]}
        return [*_PAYLOAD_KEYS, *sorted(_METADATA + key for key in keys)]


def among(chunk_ids: Sequence[str] | None) -> Tests:
    """Return the filter for the chunks with these ids; None is no filter."""
    return EVERYTHING if chunk_ids is None else Tests(must=(Test("chunk_id", any_of=tuple(chunk_ids)),))


def _to_test(condition: Condition) -> Test:
    if condition.equals is None and condition.any_of is None and condition.gte is None and condition.lte is None:
        raise SettingsError(
            f"the condition on `{condition.field}` tests nothing; give it one of equals, any_of, gte, lte"
        )
    return Test(
        _PAYLOAD_KEYS.get(condition.field, condition.field),
        equals=condition.equals,
        any_of=condition.any_of,
        gte=condition.gte,
        lte=condition.lte,
    )
