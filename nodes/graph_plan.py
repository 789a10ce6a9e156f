"""`graph.plan_paths`: relation paths from the entities of a question to its answer, in relations that the graph has."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, PositiveInt

from ragbraid.nodes.graph_walking import INVERSE, by_weight, explore_from, make_path, relation_key, start_of
from ragbraid.nodes.reasoning import (
    Asking,
    Draft,
    Line,
    OnInvalid,
    PromptLanguage,
    Temperature,
    ask_or_none,
    bounded,
    gather,
    prompt_file,
    tidy,
)
from ragbraid.registry.context import report_note
from ragbraid.registry.graph import EntityLinks, Fact
from ragbraid.registry.graph_view import GraphView
from ragbraid.registry.knowledge import KnowledgeBase, Where
from ragbraid.registry.node import node
from ragbraid.registry.resources import LLM, Embedder

if TYPE_CHECKING:
    from ragbraid.registry.resources import Vector

_MAX_EXPLORED = 10_000
"""How many facts around the seeds are looked at for their relations."""

Paths = tuple[tuple[str, ...], ...]


class PathsDraft(Draft):
    """Relation paths that lead to the answer."""

    paths: list[Annotated[list[Line], Field(min_length=1, max_length=6)]] = Field(
        description="each a list of relations in the order in which they are walked, the most promising path first"
    )


@dataclass(frozen=True, slots=True)
class _Known:
    """A relation of the graph as it is most often spelled, and the first fact of it as an example."""

    spelling: str
    example: Fact


@node(
    "graph.plan_paths",
    example="""
    topics: {use: graph.link, mentions: [Inception]}
    planned: {use: graph.plan_paths, seeds: $topics, max_paths: 3, max_hops: 3}
    walked: {use: graph.walk_paths, seeds: $topics, paths: $planned}
    """,
)
async def plan_paths(
    question: str,
    seeds: EntityLinks | None = None,
    *,
    kb: KnowledgeBase,
    llm: LLM,
    embedder: Embedder | None = None,
    max_paths: Annotated[int, Field(ge=1, le=20)] = 3,
    max_hops: Annotated[int, Field(ge=1, le=6)] = 3,
    max_relations: Annotated[int, Field(ge=1, le=500)] = 100,
    min_score: Annotated[float, Field(ge=-1, le=1)] = 0.8,
    where: Where | None = None,
    prompt: Annotated[str | None, prompt_file("relations", "entities", "max_paths", "max_hops")] = None,
    max_tokens: PositiveInt = 500,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
    on_invalid: OnInvalid = "fail",
) -> Paths:
    """Lets a model plan along which relations of the graph the answer can be reached, for `graph.walk_paths`.

    The planning of RoG (Luo et al. 2024), with a prompt in place of a trained planner. The model sees the relations
    around the seeds, each with a fact as an example, and writes `~` before one that is walked from object to subject. A
    relation that the graph does not have becomes the nearest one that it has, else its path is rejected; the trace says
    how many were. Without seeds that were linked, and in a graph without predicates, the model is not asked.

    Args:
        question: the question.
        seeds: where the paths begin; left out, all relations of the graph are shown.
        kb: the knowledge base.
        llm: the model.
        embedder: compares relations by meaning; without it an unknown relation has no nearest one.
        max_paths: how many paths the model may plan; more go back to it as a mistake.
        max_hops: how many relations a path has at most; longer ones are rejected.
        max_relations: how many relations the model sees, the most frequent ones.
        min_score: the least cosine of an unknown relation with the one that takes its place.
        where: only relations that chunks give which fulfil these conditions.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_tokens: bounds what the model writes; reaching it is an error.
        temperature: 0 makes the paths as repeatable as the model allows.
        language: language of the prompt; `auto` takes the question's.
        on_invalid: after an answer of the wrong form or one that was cut off, `fail` fails the step and `keep` plans no
            path, marked degraded.

    Raises:
        NodeInputError: the question is empty or the template is wrong.
        SettingsError: the knowledge base does not exist, holds no knowledge graph, or lacks a field of `where`.
        ServiceError: the model, the store or the embedder failed.
    """
    if seeds is not None and not seeds.links:
        return ()
    view = await asyncio.to_thread(kb.graph, where)
    known = await asyncio.to_thread(_relations, view, seeds, max_hops, max_relations)
    if not known:
        return ()
    values = gather(
        question,
        lists={
            "relations": [f"{each.spelling}: {_shown(view, each.example)}" for each in known.values()],
            "entities": list(dict.fromkeys(link.entity.name for link in seeds.links)) if seeds else [],
        },
        facts={"max_paths": max_paths, "max_hops": max_hops},
    )
    how = Asking(prompt, max_tokens, temperature, language)
    form = bounded(PathsDraft, "paths", max_paths)
    draft = await ask_or_none(llm, "plan_paths", form, values, how, on_invalid, "no path was planned")
    if draft is None:
        return ()
    written = {_key(relation) for path in draft.paths for relation in path}
    nearest = await asyncio.to_thread(_nearest, written - known.keys(), known, embedder, view, min_score)
    return _known_paths(draft.paths, {**{key: each.spelling for key, each in known.items()}, **nearest}, max_hops)


def _relations(view: GraphView, seeds: EntityLinks | None, depth: int, most: int) -> dict[str, _Known]:
    """Return the most frequent relations by key, each with the first fact of it, near the seeds where there are any."""
    facts: Iterable[Fact] = sorted(view.facts.values(), key=by_weight)
    if seeds is not None:
        facts = explore_from(view, start_of(view, seeds), depth=depth, limit=_MAX_EXPLORED)[0].facts
    counts: Counter[str] = Counter()
    spellings: dict[str, Counter[str]] = {}
    first: dict[str, Fact] = {}
    for fact in facts:
        if key := relation_key(fact.predicate):
            counts[key] += 1
            spellings.setdefault(key, Counter())[fact.predicate] += 1
            first.setdefault(key, fact)
    listed = sorted(counts, key=lambda key: (-counts[key], key))
    if len(listed) > most:
        report_note(f"{len(listed) - most} of {len(listed)} relations were not shown to the model")
    return {
        key: _Known(min(spellings[key], key=lambda s: (-spellings[key][s], s)), first[key]) for key in listed[:most]
    }


def _shown(view: GraphView, fact: Fact) -> str:
    return make_path(view.entities, (fact.subject, fact.object), (fact,)).text


def _key(relation: str) -> str:
    return relation_key(tidy(relation).removeprefix(INVERSE))


def _nearest(
    unknown: set[str], known: Mapping[str, _Known], embedder: Embedder | None, view: GraphView, least: float
) -> dict[str, str]:
    """Return for relations that the graph does not have the spelling of the nearest that it has, where it is near."""
    wanted = sorted(filter(None, unknown))
    if embedder is None or not wanted:
        return {}
    vectors: dict[str, Vector] = view.remember(f"relation vectors of {embedder.identity}", lambda _: {})
    if missing := [key for key in (*known, *wanted) if key not in vectors]:
        vectors.update(zip(missing, embedder.embed_documents(missing), strict=True))
    found: dict[str, str] = {}
    for key in wanted:
        score, best = max((float(vectors[key] @ vectors[other]), other) for other in known)
        fate = f"stands for `{known[best].spelling}`" if score >= least else "is none of the graph's"
        report_note(f"the relation `{key}` {fate}: the nearest has {score:.3f}")
        if score >= least:
            found[key] = known[best].spelling
    return found


def _known_paths(written: Sequence[Sequence[str]], spelled: Mapping[str, str], max_hops: int) -> Paths:
    planned: dict[tuple[str, ...], None] = {}
    for path in written:
        if len(path) <= max_hops and all(_key(relation) in spelled for relation in path):
            marks = (INVERSE if tidy(relation).startswith(INVERSE) else "" for relation in path)
            planned[tuple(mark + spelled[_key(relation)] for mark, relation in zip(marks, path, strict=True))] = None
    if rejected := len(written) - len(planned):
        report_note(
            f"{rejected} of {len(written)} planned paths were rejected: unknown relations, too long, or repeated"
        )
    return tuple(planned)
