"""What is stored of a knowledge graph: entities, facts and reports as records and back, and the texts to embed.

Reading passes over fields that it does not know, so that a later version can add some without hiding a record from
this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from ragbraid.nodes.index_records import embed_hash
from ragbraid.registry.errors import ServiceError
from ragbraid.registry.graph import Entity, Fact, Neighbour, Report, make_entity, make_fact
from ragbraid.registry.graph_parts import EntityPart, FactPart
from ragbraid.registry.graph_store import GraphRecord, RecordKind, StoredRecord

MAX_TEXT = 2000
"""Longest text that is embedded of an entity, a fact or a report, in characters."""

_ENTITY_PARTS = TypeAdapter(tuple[EntityPart, ...])
_FACT_PARTS = TypeAdapter(tuple[FactPart, ...])
_NEIGHBOURS = TypeAdapter(tuple[Neighbour, ...])
_REPORT = TypeAdapter(Report)

V = TypeVar("V")


def entity_records(id_: str, parts: Iterable[EntityPart], embedder: str) -> list[GraphRecord]:
    """Return the records of an entity: itself, found by its name, and where it is described its profile."""
    entity = make_entity(id_, parts)
    records = [_record("entity", id_, _ENTITY_PARTS.dump_json(entity.parts).decode(), entity.name, embedder)]
    if entity.description:
        records.append(_record("profile", id_, "", f"{entity.name}\n{entity.description}", embedder))
    return records


def fact_record(id_: str, parts: Iterable[FactPart], embedder: str) -> GraphRecord:
    """Return the record of a fact, found by its line, its keywords and what is said about it."""
    fact = make_fact(id_, parts)
    return _record("fact", id_, _FACT_PARTS.dump_json(fact.parts).decode(), text_of_fact(fact), embedder)


def neighbours_record(id_: str, neighbours: Iterable[Neighbour]) -> GraphRecord:
    """Return the record of the entities whose names mean nearly the same as that of one."""
    return GraphRecord("neighbours", id_, _NEIGHBOURS.dump_json(tuple(neighbours)).decode())


def report_record(report: Report, embedder: str) -> GraphRecord:
    """Return the record of a report."""
    return _record("report", report.id, report.model_dump_json(), report.text, embedder)


def text_of_fact(fact: Fact) -> str:
    """Return what is embedded of a fact.

    A triple is its line. A relation without a predicate is its keywords, its ends and its description, as in LightRAG,
    so that themes find it.
    """
    if fact.predicate:
        return f"{fact.text} {fact.description}".strip()
    lines = (", ".join(fact.keywords), f"{fact.subject_name} – {fact.object_name}", fact.description)
    return "\n".join(line for line in lines if line)


def entity_parts(record: GraphRecord) -> tuple[EntityPart, ...]:
    """Read the parts of an entity."""
    return _parse(_ENTITY_PARTS, record)


def fact_parts(record: GraphRecord) -> tuple[FactPart, ...]:
    """Read the parts of a fact."""
    return _parse(_FACT_PARTS, record)


def neighbours_of(record: GraphRecord) -> tuple[Neighbour, ...]:
    """Read the neighbours of an entity."""
    return _parse(_NEIGHBOURS, record)


def read_entities(entities: Iterable[StoredRecord], neighbours: Iterable[StoredRecord]) -> Iterator[Entity]:
    """Yield the entities of stored records."""
    near = {each.record.key: neighbours_of(each.record) for each in neighbours}
    for each in entities:
        yield make_entity(each.record.key, entity_parts(each.record), near.get(each.record.key, ()))


def read_facts(facts: Iterable[StoredRecord]) -> Iterator[Fact]:
    """Yield the facts of stored records."""
    for each in facts:
        yield make_fact(each.record.key, fact_parts(each.record))


def read_report(record: GraphRecord) -> Report:
    """Read a report."""
    return _parse(_REPORT, record)


def _parse(adapter: TypeAdapter[V], record: GraphRecord) -> V:
    """Read what is stored of a record; fields that a later version has added are passed over.

    Raises:
        ServiceError: it is damaged.
    """
    try:
        return adapter.validate_json(record.body, extra="ignore")
    except ValidationError as error:
        raise ServiceError(
            f"The {record.kind} `{record.key}` of the knowledge graph is damaged and cannot be read; run the ingestion "
            "again with `force: true`, or drop the knowledge base and fill it anew.",
            kind="failed",
        ) from error


def _record(kind: RecordKind, key: str, body: str, text: str, embedder: str) -> GraphRecord:
    cut = text[:MAX_TEXT]
    return GraphRecord(kind, key, body, cut, embed_hash(embedder, cut))
