"""The `report.*` nodes: reports about the communities of the knowledge graph, written once and read by many questions."""

from __future__ import annotations

from ragbraid.nodes.report_rate import rate
from ragbraid.nodes.report_read import batches, of_entities, search, select
from ragbraid.nodes.report_write import write

__all__ = ["batches", "of_entities", "rate", "search", "select", "write"]
