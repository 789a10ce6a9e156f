"""Replacing the reports of a knowledge graph, in a commit of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ragbraid.nodes.batches import batches
from ragbraid.nodes.graph_records import report_record
from ragbraid.nodes.store import Store, read_info, write_info
from ragbraid.registry.errors import ServiceError, SettingsError
from ragbraid.registry.graph import Report
from ragbraid.registry.graph_store import GraphRecord, GraphStore
from ragbraid.registry.knowledge import KnowledgeBaseInfo
from ragbraid.registry.resources import Embedder

if TYPE_CHECKING:
    from ragbraid.registry.resources import Vector

_BATCH = 64


def replace_reports(
    store: Store, graph: GraphStore, reports: Sequence[Report], *, embedder: Embedder, generation: int
) -> int:
    """Put these reports in the place of all that there are; returns the new generation, or the old if nothing changes.

    The caller holds the knowledge base against other updates.

    Raises:
        SettingsError: `embedder` is not the model that filled it.
        ServiceError: it has moved on from `generation`, an update of it was cut off, or the embedder failed.
    """
    info = _require_standing(store, embedder, generation)
    wanted = {report.id: report_record(report, embedder.identity) for report in reports}
    before = {each.record.key: each for each in graph.read("report", generation=generation, with_vectors=True)}
    changed = [record for key, record in wanted.items() if key not in before or before[key].record != record]
    gone = [key for key in before if key not in wanted]
    if not changed and not gone:
        return generation
    write_info(store, info.model_copy(update={"updating": True}))
    known = {each.record.embed_hash: each.vector for each in before.values() if each.vector is not None}
    for batch in batches(changed, _BATCH):
        _put(graph, batch, known, embedder, generation + 1)
    graph.retire("report", [*gone, *(r.key for r in changed if r.key in before)], generation=generation + 1)
    graph.flush()
    committed = info.model_copy(update={"generation": generation + 1, "reports": len(wanted), "updating": True})
    write_info(store, committed)
    graph.delete_retired(generation + 1)
    write_info(store, committed.model_copy(update={"updating": False}))
    return generation + 1


def _require_standing(store: Store, embedder: Embedder, generation: int) -> KnowledgeBaseInfo:
    info = read_info(store)
    if info is None or info.generation != generation or info.updating:
        raise ServiceError(
            "The knowledge base has changed, or an update of it was cut off, while its reports were written; nothing "
            "was stored. Run the ingestion and then the reports again; those of unchanged communities are not asked "
            "for a second time where the model keeps its answers.",
            kind="failed",
        )
    if info.embedder != embedder.identity:
        raise SettingsError(
            f"The knowledge base `{info.name}` was filled with the embedder `{info.embedder}`, and the reports bring "
            f"`{embedder.identity}`.",
            hint=f"Use `{info.embedder}` for the reports too.",
        )
    return info


def _put(
    graph: GraphStore,
    records: Sequence[GraphRecord],
    known: dict[str, Vector],
    embedder: Embedder,
    generation: int,
) -> None:
    import numpy as np

    new = [record for record in records if record.embed_hash not in known]
    if new:
        for record, vector in zip(new, embedder.embed_documents([r.text for r in new]), strict=True):
            known[record.embed_hash] = vector
    graph.put(records, np.asarray([known[r.embed_hash] for r in records], dtype=np.float32), generation=generation)
