"""The sentences with which a knowledge base refuses what does not fit it."""

from __future__ import annotations

from ragbraid.nodes.graph_store import SUFFIX
from ragbraid.nodes.store import Store
from ragbraid.registry.contracts import ScoreKind
from ragbraid.registry.errors import SettingsError
from ragbraid.registry.knowledge import KnowledgeBaseInfo


def missing(store: Store, name: str, *, being_filled: bool) -> SettingsError:
    """Return the error that says that there is no knowledge base, or that it is still empty, naming the others."""
    if being_filled:
        return SettingsError(
            f"knowledge base `{name}` at {store.location} holds nothing yet: its first ingestion has "
            "not been completed",
            hint="run the ingestion again; it continues where it stopped",
        )
    siblings = [other for other in store.siblings() if not other.endswith(SUFFIX)]
    others = [f"`{other}`" for other in siblings if other != name]
    beside = f"beside it are {', '.join(others)}" if others else "there is no other beside it"
    return SettingsError(
        f"there is no knowledge base `{name}` at {store.location}; {beside}",
        hint="run an ingestion flow (with `index.upsert`) first, or correct its path and name",
    )


def require_same(what: str, info: KnowledgeBaseInfo, filled_by: str, given: str) -> None:
    """Refuse a query by another model than the one that filled the knowledge base.

    Raises:
        SettingsError: with both names.
    """
    if given != filled_by:
        raise SettingsError(
            f"knowledge base `{info.name}` was filled with the {what} `{filled_by}`, the query comes from `{given}`",
            hint=f"use `{filled_by}` for queries, or ingest the documents again with `{given}`",
        )


def sparse_kind(sparse: str) -> ScoreKind:
    """Return the kind of score that a sparse encoder gives."""
    return "bm25" if sparse.startswith("bm25") else "sparse"
