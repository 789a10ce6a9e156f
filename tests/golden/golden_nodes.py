"""Nodes and resources of the golden tests: stable, so that a change of a real node changes no expected text."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ragbraid.registry.contract import Contract
from ragbraid.registry.contracts import Answer, Document, FanIn, Query, Ranking
from ragbraid.registry.graph_parts import Triple
from ragbraid.registry.knowledge import KnowledgeBase
from ragbraid.registry.node import FilePath, PromptFile, node
from ragbraid.registry.providers import resource
from ragbraid.registry.resources import LLM, Embedder

TopK = Annotated[int, Field(ge=1, le=1000)]


@node("graph.exact", ambient={"query": ("question",)})
def graph_exact(query: Query, *, top_k: TopK = 10) -> list[Triple]:
    """Facts about the entities that a question names."""
    return []


@node("graph.to_chunks")
def graph_to_chunks(triples: list[Triple]) -> Ranking:
    """The chunks that state some facts."""
    return Ranking()


@node("retrieve.dense", ambient={"query": ("question",)})
def retrieve_dense(query: Query, *, kb: KnowledgeBase, embedder: Embedder, top_k: TopK = 50) -> Ranking:
    """Nearest chunks."""
    return Ranking()


@node("retrieve.sparse", ambient={"query": ("question",)})
def retrieve_sparse(query: Query, *, kb: KnowledgeBase, top_k: TopK = 50) -> Ranking:
    """Best chunks by terms."""
    return Ranking()


@node("fuse.rrf")
def fuse_rrf(
    lists: FanIn[Ranking],
    *,
    k: Annotated[int, Field(ge=1)] = 60,
    weights: dict[str, float] | None = None,
    variant: Literal["standard", "scaled"] = "standard",
) -> Ranking:
    """Fuse rankings."""
    return Ranking()


@node("fuse.rrf", version=2)
def fuse_rrf_2(
    lists: FanIn[Ranking], *, k: Annotated[int, Field(ge=1)] = 60, weights: dict[str, float] | None = None
) -> Ranking:
    """Fuse rankings."""
    return Ranking()


@node("rerank.cross", ambient={"query": ("question",)})
def rerank_cross(hits: Ranking, query: Query, *, top_k: TopK | None = None) -> Ranking:
    """Rerank with a model."""
    return hits


@node("compare.rankings")
def compare_rankings(left: Ranking, right: Ranking) -> float:
    """Share of hits that two rankings have in common."""
    return 0.0


@node("generate.answer")
async def generate_answer(
    hits: Ranking,
    question: str,
    *,
    llm: LLM,
    language: Literal["auto", "en", "zh"] = "auto",
    prompt: Annotated[str | None, PromptFile(("question", "passages"))] = None,
) -> Answer:
    """Answer with citations."""
    return Answer(text="")


@node("load.files", cacheable=False)
def load_files(*, path: Annotated[str, FilePath()]) -> list[Document]:
    """Read files."""
    return []


@node("text.rewrite", ambient={"sentence": ("question",)})
def text_rewrite(sentence: str, *, words: int = 10) -> str:
    """Say it in other words."""
    return sentence


class Idea(Contract):
    """What a model thinks next, and whether that is the answer."""

    text: str
    is_final: bool = False
    questions: tuple[str, ...] = ()


@node("reason.think")
def reason_think(question: str, hits: Ranking | None = None) -> Idea:
    """Think one step further."""
    return Idea(text=question)


@node("query.kind")
def query_kind(question: str) -> Literal["relation", "general"]:
    """Say what kind of question it is."""
    return "general"


@resource("qdrant.embedded")
def qdrant_embedded(*, path: Annotated[str, FilePath()], name: str = "default") -> KnowledgeBase:
    """A knowledge base on disk."""
    raise NotImplementedError


@resource("openai.chat", secrets=("api_key",))
def openai_chat(*, model: str, base_url: str | None = None, api_key: str | None = None) -> LLM:
    """A chat model."""
    raise NotImplementedError
