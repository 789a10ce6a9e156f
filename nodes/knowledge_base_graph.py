"""Reading the knowledge graph of a knowledge base: graph and reports, kept in memory for a generation, and by vector."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Container
from typing import TYPE_CHECKING

from ragbraid.nodes.graph_records import read_entities, read_facts, read_report
from ragbraid.registry.errors import ServiceError, SettingsError
from ragbraid.registry.graph import Report
from ragbraid.registry.graph_store import GraphStore
from ragbraid.registry.graph_view import GraphView
from ragbraid.registry.knowledge import GraphKind, KnowledgeBaseInfo, Where

if TYPE_CHECKING:
    from ragbraid.registry.resources import Vector

_KEPT_VIEWS = 4
"""How many restricted graphs stay in memory, beside the whole one."""
_FIRST_FACTOR = 4
"""How many times as many as wanted are fetched first where a filter may reject some."""

FindChunks = Callable[[Where], frozenset[str]]
"""Finds the ids of the chunks that fulfil conditions."""


class GraphReader:
    """Reads the graph of one committed generation at a time; safe to share between threads."""

    def __init__(self, graph: GraphStore) -> None:
        self._graph = graph
        self._lock = threading.Lock()
        self._generation = -1
        self._whole: GraphView | None = None
        self._reports: tuple[Report, ...] | None = None
        self._restricted: OrderedDict[str, GraphView] = OrderedDict()
        self._allowed: dict[str, frozenset[str]] = {}

    def view(self, info: KnowledgeBaseInfo, where: Where | None, find_chunks: FindChunks) -> GraphView:
        """Return the graph, or what chunks that fulfil the conditions contribute to it.

        Raises:
            SettingsError: the knowledge base holds no graph.
        """
        require_graph(info, self._graph)
        with self._lock:
            self._move_to(info.generation)
            if self._whole is None:
                self._whole = self._read(info.generation)
            if where is None:
                return self._whole
            key = where.model_dump_json()
            if key not in self._restricted:
                self._restricted[key] = self._whole.restricted(self._find(key, where, find_chunks))
            self._restricted.move_to_end(key)
            if len(self._restricted) > _KEPT_VIEWS:
                self._restricted.popitem(last=False)
            return self._restricted[key]

    def nearest(
        self,
        kind: GraphKind,
        vector: Vector,
        top_k: int,
        info: KnowledgeBaseInfo,
        where: Where | None,
        find_chunks: FindChunks,
    ) -> list[tuple[str, float]]:
        """Return the ids of the nearest records with their cosines, best first.

        Raises:
            SettingsError: the knowledge base holds no graph, or no reports where those are wanted.
        """
        require_graph(info, self._graph, reports=kind == "report")
        if where is None:
            return self._graph.nearest(kind, vector, top_k, generation=info.generation)
        visible: Container[str]
        if kind == "report":
            visible = {report.id for report in self.reports(info, where, find_chunks)}
        else:
            view = self.view(info, where, find_chunks)
            visible = view.facts if kind == "fact" else view.entities
        limit = top_k * _FIRST_FACTOR
        while True:
            found = self._graph.nearest(kind, vector, limit, generation=info.generation)
            allowed = [(key, score) for key, score in found if key in visible]
            if len(allowed) >= top_k or len(found) < limit:
                return allowed[:top_k]
            limit *= _FIRST_FACTOR

    def reports(self, info: KnowledgeBaseInfo, where: Where | None, find_chunks: FindChunks) -> tuple[Report, ...]:
        """Return the reports in order of id, under conditions only those all of whose chunks fulfil them."""
        with self._lock:
            self._move_to(info.generation)
            if self._reports is None:
                stored = self._graph.read("report", generation=info.generation)
                self._reports = tuple(sorted((read_report(each.record) for each in stored), key=lambda each: each.id))
            reports = self._reports
            if where is None or not reports:
                return reports
            allowed = self._find(where.model_dump_json(), where, find_chunks)
        return tuple(report for report in reports if allowed.issuperset(report.chunk_ids))

    def _move_to(self, generation: int) -> None:
        """Forget what was read of another generation; the caller holds the lock."""
        if self._generation != generation:
            self._generation = generation
            self._whole = None
            self._reports = None
            self._restricted.clear()
            self._allowed.clear()

    def _find(self, key: str, where: Where, find_chunks: FindChunks) -> frozenset[str]:
        if key not in self._allowed:
            if len(self._allowed) >= _KEPT_VIEWS:
                self._allowed.clear()
            self._allowed[key] = find_chunks(where)
        return self._allowed[key]

    def _read(self, generation: int) -> GraphView:
        entities = read_entities(
            self._graph.read("entity", generation=generation), self._graph.read("neighbours", generation=generation)
        )
        return GraphView(entities, read_facts(self._graph.read("fact", generation=generation)), generation=generation)


def require_graph(info: KnowledgeBaseInfo, graph: GraphStore, *, reports: bool = False) -> None:
    """Refuse a search that could find nothing.

    Raises:
        SettingsError: there is no graph, or no report where those are wanted.
        ServiceError: there should be a graph and its store is empty.
    """
    if not info.entities:
        raise SettingsError(
            f"knowledge base `{info.name}` holds no knowledge graph",
            hint="run an ingestion flow that extracts one (such as `enrich.extract_graph`) before `index.upsert`",
        )
    if not graph.exists():
        raise ServiceError(
            f"the knowledge graph of `{info.name}` is missing at {graph.location}; run its ingestion again with "
            "`force: true`",
            kind="failed",
        )
    if reports and not info.reports:
        raise SettingsError(
            f"knowledge base `{info.name}` holds no reports about the communities of its knowledge graph",
            hint="run an ingestion flow with `report.write` behind `index.upsert` first",
        )
