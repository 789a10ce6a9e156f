"""ragbraid: typed YAML flows for retrieval and question answering, checked before they run.

The public names load when they are first used, so that `import ragbraid` stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ragbraid.flows.api import Flow, close_resources, load
    from ragbraid.flows.runner import RunEvent, RunResult
    from ragbraid.registry.contract import Contract
    from ragbraid.registry.contracts import (
        Answer,
        Chunk,
        ChunkSet,
        Citation,
        Document,
        DocumentSet,
        FanIn,
        Hit,
        IndexReport,
        Query,
        Ranking,
        RouteScore,
        SourceFailure,
        SourceRecord,
        SourceReport,
        Span,
        Usage,
    )
    from ragbraid.registry.errors import (
        ContractError,
        Finding,
        FlowError,
        LimitError,
        NodeInputError,
        NodeOutputError,
        RagbraidError,
        RunError,
        ServiceError,
        SettingsError,
    )
    from ragbraid.registry.graph import (
        Community,
        Entity,
        EntityLink,
        EntityLinks,
        Fact,
        GraphPath,
        Insight,
        Keywords,
        Neighbour,
        Report,
        SeedWeights,
        SubGraph,
    )
    from ragbraid.registry.graph_parts import ChunkGraph, EntityPart, FactPart, Mention, Triple
    from ragbraid.registry.graph_view import GraphView
    from ragbraid.registry.knowledge import Condition, KnowledgeBase, Where
    from ragbraid.registry.logic import (
        Binding,
        Bindings,
        GraphSchema,
        LogicPlan,
        LogicStep,
        Slot,
        Solution,
        StepAnswer,
        StepResult,
        StepSlots,
    )
    from ragbraid.registry.node import node
    from ragbraid.registry.providers import resource
    from ragbraid.registry.reasoning import (
        Choice,
        ExitCheck,
        FollowUp,
        Grade,
        Graded,
        Judgement,
        Need,
        Route,
        Segment,
        SubQuestions,
        Thought,
        Thoughts,
    )
    from ragbraid.registry.reports import Leads, MissingReport, PartialAnswer, Point, Points, ReportRun
    from ragbraid.registry.resources import LLM, Embedder, Reranker, SparseEncoder, TokenEmbedder

_ROOMS = {
    "ragbraid.flows.api": ("Flow", "close_resources", "load"),
    "ragbraid.flows.runner": ("RunEvent", "RunResult"),
    "ragbraid.registry.contract": ("Contract",),
    "ragbraid.registry.contracts": (
        "Answer", "Chunk", "ChunkSet", "Citation", "Document", "DocumentSet", "FanIn", "Hit",
        "IndexReport", "Query", "Ranking", "RouteScore", "SourceFailure", "SourceRecord", "SourceReport", "Span",
        "Usage",
    ),
    "ragbraid.registry.errors": (
        "ContractError", "Finding", "FlowError", "LimitError", "NodeInputError", "NodeOutputError", "RagbraidError",
        "RunError", "ServiceError", "SettingsError",
    ),
    "ragbraid.registry.graph": (
        "Community", "Entity", "EntityLink", "EntityLinks", "Fact", "GraphPath", "Insight", "Keywords", "Neighbour",
        "Report", "SeedWeights", "SubGraph",
    ),
    "ragbraid.registry.graph_parts": ("ChunkGraph", "EntityPart", "FactPart", "Mention", "Triple"),
    "ragbraid.registry.graph_view": ("GraphView",),
    "ragbraid.registry.node": ("node",),
    "ragbraid.registry.knowledge": ("Condition", "KnowledgeBase", "Where"),
    "ragbraid.registry.providers": ("resource",),
    "ragbraid.registry.reasoning": (
        "Choice", "ExitCheck", "FollowUp", "Grade", "Graded", "Judgement", "Need", "Route", "Segment",
        "SubQuestions", "Thought", "Thoughts",
    ),
    "ragbraid.registry.logic": (
        "Binding", "Bindings", "GraphSchema", "LogicPlan", "LogicStep", "Slot", "Solution", "StepAnswer", "StepResult",
        "StepSlots",
    ),
    "ragbraid.registry.reports": ("Leads", "MissingReport", "PartialAnswer", "Point", "Points", "ReportRun"),
    "ragbraid.registry.resources": ("LLM", "Embedder", "Reranker", "SparseEncoder", "TokenEmbedder"),
}  # fmt: skip
_HOME = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "LLM",
    "Answer",
    "Binding",
    "Bindings",
    "Choice",
    "Chunk",
    "ChunkGraph",
    "ChunkSet",
    "Citation",
    "Community",
    "Condition",
    "Contract",
    "ContractError",
    "Document",
    "DocumentSet",
    "Embedder",
    "Entity",
    "EntityLink",
    "EntityLinks",
    "EntityPart",
    "ExitCheck",
    "Fact",
    "FactPart",
    "FanIn",
    "Finding",
    "Flow",
    "FlowError",
    "FollowUp",
    "Grade",
    "Graded",
    "GraphPath",
    "GraphSchema",
    "GraphView",
    "Hit",
    "IndexReport",
    "Insight",
    "Judgement",
    "Keywords",
    "KnowledgeBase",
    "Leads",
    "LimitError",
    "LogicPlan",
    "LogicStep",
    "Mention",
    "MissingReport",
    "Need",
    "Neighbour",
    "NodeInputError",
    "NodeOutputError",
    "PartialAnswer",
    "Point",
    "Points",
    "Query",
    "RagbraidError",
    "Ranking",
    "Report",
    "ReportRun",
    "Reranker",
    "Route",
    "RouteScore",
    "RunError",
    "RunEvent",
    "RunResult",
    "SeedWeights",
    "Segment",
    "ServiceError",
    "SettingsError",
    "Slot",
    "Solution",
    "SourceFailure",
    "SourceRecord",
    "SourceReport",
    "Span",
    "SparseEncoder",
    "StepAnswer",
    "StepResult",
    "StepSlots",
    "SubGraph",
    "SubQuestions",
    "Thought",
    "Thoughts",
    "TokenEmbedder",
    "Triple",
    "Usage",
    "Where",
    "close_resources",
    "load",
    "node",
    "resource",
]


def __getattr__(name: str) -> Any:
    room = _HOME.get(name)
    if room is None:
        raise AttributeError(f"module 'ragbraid' has no attribute {name!r}")
    value = getattr(import_module(room), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
