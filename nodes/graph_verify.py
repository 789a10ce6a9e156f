"""Checking a stored knowledge graph against what the chunks contribute to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from ragbraid.nodes.graph_records import entity_parts, fact_parts, neighbours_of, read_report
from ragbraid.nodes.samples import sample
from ragbraid.registry.errors import ServiceError
from ragbraid.registry.graph_parts import ChunkGraph, EntityPart, FactPart, parts_of
from ragbraid.registry.graph_store import GraphRecord, GraphStore
from ragbraid.registry.knowledge import KnowledgeBaseInfo

P = TypeVar("P", EntityPart, FactPart)


def verify_graph(graph: GraphStore, info: KnowledgeBaseInfo, contributions: Mapping[str, str]) -> Iterator[str]:
    """Yield what is inconsistent in the graph of the committed generation, one sentence each.

    What cannot be read ends the comparison with its sentence.

    Args:
        graph: the graph.
        info: what the knowledge base records about itself.
        contributions: what each chunk contributes, as JSON, by chunk id.
    """
    try:
        yield from _compare_all(graph, info, contributions)
    except ServiceError as error:
        yield str(error)


def _compare_all(graph: GraphStore, info: KnowledgeBaseInfo, contributions: Mapping[str, str]) -> Iterator[str]:
    entities: dict[str, dict[str, EntityPart]] = {}
    facts: dict[str, dict[str, FactPart]] = {}
    for chunk_id, text in contributions.items():
        named, stated = parts_of(chunk_id, ChunkGraph.from_stored(text))
        for key, part in named.items():
            entities.setdefault(key, {})[chunk_id] = part
        for key, fact in stated.items():
            facts.setdefault(key, {})[chunk_id] = fact
    records = {kind: list(_records(graph, info, kind)) for kind in ("entity", "fact", "neighbours", "report")}
    yield from _compare("entities", entities, {r.key: entity_parts(r) for r in records["entity"]})
    yield from _compare("facts", facts, {r.key: fact_parts(r) for r in records["fact"]})
    loose = [
        record.key
        for record in records["neighbours"]
        if record.key not in entities or any(near.entity_id not in entities for near in neighbours_of(record))
    ]
    if loose:
        yield f"{len(loose)} entities are linked with names that no chunk gives: {sample(loose)}."
    reports = [read_report(record) for record in records["report"]]
    stale = [report.id for report in reports if not contributions.keys() >= set(report.chunk_ids)]
    if stale:
        yield f"{len(stale)} reports were written about chunks that are gone: {sample(stale)}."
    for what, recorded, found in (
        ("entities", info.entities, len(records["entity"])),
        ("facts", info.facts, len(records["fact"])),
        ("reports", info.reports, len(records["report"])),
    ):
        if recorded != found:
            yield f"The knowledge base counts {recorded} {what}, but its graph holds {found}."


def _records(graph: GraphStore, info: KnowledgeBaseInfo, kind: str) -> Iterator[GraphRecord]:
    for each in graph.read(kind, generation=info.generation):  # type: ignore[arg-type]
        yield each.record


def _compare(what: str, wanted: Mapping[str, Mapping[str, P]], found: Mapping[str, tuple[P, ...]]) -> Iterator[str]:
    missing = sorted(wanted.keys() - found.keys())
    surplus = sorted(found.keys() - wanted.keys())
    other = sorted(
        key
        for key in wanted.keys() & found.keys()
        if sorted(wanted[key].values(), key=lambda part: part.chunk_id) != list(found[key])
    )
    for keys, how in (
        (missing, "that chunks give are not in the graph"),
        (surplus, "of the graph come from no chunk"),
        (other, "say something else than their chunks"),
    ):
        if keys:
            yield f"{len(keys)} {what} {how}: {sample(keys)}."
