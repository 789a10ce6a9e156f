"""Checking and deleting knowledge bases."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from ragbraid.nodes.graph_verify import verify_graph
from ragbraid.nodes.index_records import average_at
from ragbraid.nodes.index_update import exclusive
from ragbraid.nodes.samples import sample
from ragbraid.nodes.store import ATOMS, CHUNKS, DOCUMENTS, Store, read_info, visible_at
from ragbraid.registry.graph_store import GraphStore
from ragbraid.registry.knowledge import DocumentRecord, KnowledgeBaseInfo


@dataclass
class _Stored:
    """What a pass over the chunks and atoms of the committed generation found."""

    ids_by_source: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    without_vector: list[str] = field(default_factory=list)
    without_terms: list[str] = field(default_factory=list)
    off_grid: list[str] = field(default_factory=list)
    atoms_by_source: Counter[str] = field(default_factory=Counter)
    lost_atoms: list[str] = field(default_factory=list)
    graphs: dict[str, str] = field(default_factory=dict)
    """What chunks contribute to the knowledge graph, as JSON, by chunk id."""


def verify_knowledge_base(store: Store, graph: GraphStore) -> list[str]:
    """Return what is inconsistent in a knowledge base, one sentence each; empty when all is well.

    Reads every point once: seconds at 100,000 chunks.
    """
    info = read_info(store)
    if info is None:
        return ["There is no knowledge base here." if not store.exists() else "The knowledge base has no info record."]
    records = [
        DocumentRecord.model_validate(point.payload["record"])
        for point in store.scroll(DOCUMENTS & visible_at(info.generation))
    ]
    stored = _read_chunks(store, info)
    _read_atoms(store, info, stored)
    findings = [*_unfinished(store, info), *_compare_sources(records, stored), *_compare_totals(info, records)]
    findings += verify_graph(graph, info, stored.graphs)
    for ids, what in (
        (stored.without_vector, "have no vector"),
        (stored.without_terms, "have tokens but no term weights"),
        (stored.off_grid, "carry term weights for another average length than the knowledge base records"),
    ):
        if ids:
            findings.append(f"{len(ids)} chunks {what}: {sample(ids)}.")
    if stored.lost_atoms:
        findings.append(f"{len(stored.lost_atoms)} atoms have no vector or no chunk: {sample(stored.lost_atoms)}.")
    return findings


def drop_knowledge_base(store: Store, graph: GraphStore, name: str) -> None:
    """Delete a knowledge base with everything in it; does nothing where there is none.

    Raises:
        ServiceError: an update of it is under way.
    """
    with exclusive(store, name):
        graph.drop()
        store.drop()


def _read_chunks(store: Store, info: KnowledgeBaseInfo) -> _Stored:
    stored = _Stored()
    for point in store.scroll(CHUNKS & visible_at(info.generation), with_vectors=True):
        payload, id_ = point.payload, point.payload["chunk_id"]
        stored.ids_by_source[payload["source"]].append(id_)
        if payload.get("graph") is not None:
            stored.graphs.setdefault(id_, payload["graph"])
        if point.dense is None:
            stored.without_vector.append(id_)
        if point.sparse is None and payload["tokens"]:
            stored.without_terms.append(id_)
        if average_at(payload["average_step"]) != info.average_length:
            stored.off_grid.append(id_)
    return stored


def _read_atoms(store: Store, info: KnowledgeBaseInfo, stored: _Stored) -> None:
    chunks = {(source, id_) for source, ids in stored.ids_by_source.items() for id_ in ids}
    for point in store.scroll(ATOMS & visible_at(info.generation), with_vectors=True):
        payload = point.payload
        stored.atoms_by_source[payload["source"]] += 1
        if point.dense is None or (payload["source"], payload["parent_id"]) not in chunks:
            stored.lost_atoms.append(payload["chunk_id"])


def _unfinished(store: Store, info: KnowledgeBaseInfo) -> Iterator[str]:
    kinds = (CHUNKS, ATOMS, DOCUMENTS)
    total = sum(store.count(kind) for kind in kinds)
    visible = sum(store.count(kind & visible_at(info.generation)) for kind in kinds)
    if info.updating:
        yield "An update is under way or was cut off; run the ingestion again to finish it."
    elif total != visible:
        yield f"{total - visible} points belong to no committed generation; run the ingestion again to remove them."


def _compare_sources(records: list[DocumentRecord], stored: _Stored) -> Iterator[str]:
    known = {record.source: record for record in records}
    if len(known) != len(records):
        yield f"{len(records) - len(known)} sources have more than one record."
    for source, record in sorted(known.items()):
        found, wanted = sorted(stored.ids_by_source.get(source, [])), sorted(record.chunk_ids)
        if found != wanted:
            missing = sorted(set(wanted) - set(found))
            surplus = sorted(set(found) - set(wanted))
            details = [f"{len(missing)} missing ({sample(missing)})"] * bool(missing)
            details += [f"{len(surplus)} not recorded ({sample(surplus)})"] * bool(surplus)
            details = details or ["some stored twice"]
            yield f"Source `{source}` records {len(wanted)} chunks but has {len(found)}: {', '.join(details)}."
        if stored.atoms_by_source[source] != record.atoms:
            yield f"Source `{source}` records {record.atoms} atoms but has {stored.atoms_by_source[source]}."
    for source in sorted(stored.ids_by_source.keys() - known.keys()):
        ids = stored.ids_by_source[source]
        yield f"Source `{source}` has {len(ids)} chunks but no record: {sample(ids)}."


def _compare_totals(info: KnowledgeBaseInfo, records: list[DocumentRecord]) -> Iterator[str]:
    for what, recorded, found in (
        ("documents", info.documents, len(records)),
        ("chunks", info.chunks, sum(len(record.chunk_ids) for record in records)),
        ("atoms", info.atoms, sum(record.atoms for record in records)),
    ):
        if recorded != found:
            yield f"The knowledge base counts {recorded} {what}, but its records hold {found}."
