"""What a person who opens Neo4j Browser reads of the records of a knowledge graph."""

from __future__ import annotations

from typing import Any

from ragbraid.nodes.graph_records import entity_parts, fact_parts, read_report
from ragbraid.registry.graph import make_entity, make_fact
from ragbraid.registry.graph_store import GraphRecord


def readable(record: GraphRecord) -> dict[str, Any]:
    """Return what a record says as properties; `name` is what the browser writes on a node.

    A profile and a list of neighbours only serve searches and say nothing of their own.
    """
    if record.kind == "entity":
        entity = make_entity(record.key, entity_parts(record))
        return {
            "name": entity.name,
            "type": entity.type,
            "aliases": list(entity.aliases),
            "description": entity.description,
            "chunk_ids": list(entity.chunk_ids),
        }
    if record.kind == "fact":
        fact = make_fact(record.key, fact_parts(record))
        return {
            "name": fact.text,
            "subject": fact.subject,
            "predicate": fact.predicate,
            "object": fact.object,
            "keywords": list(fact.keywords),
            "weight": fact.weight,
            "description": fact.description,
            "chunk_ids": list(fact.chunk_ids),
        }
    if record.kind == "report":
        report = read_report(record)
        return {
            "name": report.title,
            "summary": report.summary,
            "level": report.level,
            "rating": report.rating,
            "chunk_ids": list(report.chunk_ids),
        }
    return {}
