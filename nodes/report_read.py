"""`report.search`, `report.select`, `report.of_entities` and `report.batches`: which reports a question is answered from."""

from __future__ import annotations

import random
from collections import Counter
from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveInt

from ragbraid.nodes.graph_hits import in_order, only, with_places
from ragbraid.nodes.reasoning import has_evidence
from ragbraid.nodes.report_context import count_tokens
from ragbraid.nodes.report_hits import antichain, deepest_reports, report_hit
from ragbraid.registry.context import report_note
from ragbraid.registry.contracts import Hit, Query, Ranking
from ragbraid.registry.errors import NodeInputError
from ragbraid.registry.knowledge import KnowledgeBase, Where
from ragbraid.registry.node import node
from ragbraid.registry.resources import Embedder

REPORTS = "reports"

HowMany = Annotated[int, Field(ge=1, le=10_000)]


@node(
    "report.search",
    ambient={"query": ("question",)},
    blocking=True,
    example="""
    reports: {use: report.search, top_k: 20}
    """,
)
def search(
    query: Query,
    *,
    kb: KnowledgeBase,
    embedder: Embedder,
    top_k: HowMany = 20,
    min_score: Annotated[float, Field(ge=-1, le=1)] | None = None,
    max_level: NonNegativeInt | None = None,
    where: Where | None = None,
) -> Ranking:
    """Find the reports whose meaning is nearest to the query's, by cosine.

    Reports of several levels can say the same: `max_level`, or `report.select` in place of a search, avoids that. The
    threshold is a cosine, of the reports alone; DB-GPT compares its threshold with a distance, and the one for
    communities has no effect there.

    Args:
        query: the question or search text.
        kb: the knowledge base, with the reports of `report.write`.
        embedder: the model that filled it.
        top_k: how many reports to return at most.
        min_score: reports below this cosine are left out; what fits depends on the embedder, and a note in the trace
            names the best that was rejected when nothing is left. None (null) keeps all.
        max_level: leave out reports about communities finer than this.
        where: only reports all of whose chunks fulfil these conditions.

    Raises:
        NodeInputError: the query is empty.
        SettingsError: the knowledge base holds no reports, was filled with another model, or lacks a field of `where`.
        ServiceError: the store or the embedder failed.
    """
    if not query.text.strip():
        raise NodeInputError("report.search: the question is empty; give it a text to search for")
    seen = kb.reports(where)
    reports = {each.id: each for each in seen if max_level is None or each.level <= max_level}
    # The store knows nothing of levels: the reports of finer ones must not take the places of the others.
    wanted = top_k + len(seen) - len(reports)
    vector = embedder.embed_query(query.text)
    near = kb.search_graph("report", vector, embedder=embedder.identity, top_k=wanted, where=where)
    found = [(reports[id_], score) for id_, score in near if id_ in reports][:top_k]
    kept = [report_hit(report, score, "cosine") for report, score in found if min_score is None or score >= min_score]
    if found and not kept:
        report_note(f"no report reached `min_score` {min_score:g}; the best of {len(found)} had {found[0][1]:.3f}")
    return with_report_places(Ranking.from_hits(kept, route=REPORTS, score_kind="cosine"), kb)


@node(
    "report.select",
    blocking=True,
    example="""
    reports: {use: report.select, level: 2}
    """,
)
def select(*, kb: KnowledgeBase, level: NonNegativeInt = 2, where: Where | None = None) -> Ranking:
    """Takes the reports that cover everything once: those of one level, and coarser ones that have no parts.

    For questions about a whole collection, as GraphRAG's global search answers them. No two of these reports are about
    a community and a part of it. Where a part has no report that can be seen, the community above it is taken instead.
    Where a community is covered by its parts, an entity of it that is in none of them is not covered. The most important
    come first: by rating, then coarser before finer, then by id.

    Args:
        kb: the knowledge base, with the reports of `report.write`.
        level: the finest level to take; 0 are the coarsest communities.
        where: only reports all of whose chunks fulfil these conditions.

    Raises:
        SettingsError: the knowledge base does not exist, or lacks a field of `where`.
        ServiceError: the store failed.
    """
    chosen = antichain(kb.reports(where), level)
    hits = (report_hit(each, each.rating, "model") for each in chosen)
    return with_report_places(Ranking.from_hits(hits, route=REPORTS, score_kind="model"), kb)


def with_report_places(ranking: Ranking, kb: KnowledgeBase) -> Ranking:
    """Give reports the place of their first chunk, for citations, but not its title: they are about more than that."""
    placed = with_places(ranking, kb)
    return placed.model_copy(update={"hits": tuple(hit.model_copy(update={"title": None}) for hit in placed)})


@node(
    "report.of_entities",
    blocking=True,
    example="""
    things: {use: graph.entities, top_k: 10}
    reports: {use: report.of_entities, entities: $things, top_k: 5}
    """,
)
def of_entities(
    entities: Ranking, *, kb: KnowledgeBase, top_k: HowMany = 10, level: NonNegativeInt = 2, where: Where | None = None
) -> Ranking:
    """Goes from entities to the reports about their communities, those that hold most of them first.

    The community table of GraphRAG's local search: by number of these entities, then by rating. Each entity brings the
    report of its finest community up to `level`. Entities without a community bring none, and no entities bring no
    report.

    Args:
        entities: what was found, such as by `graph.entities`.
        kb: the knowledge base, with the reports of `report.write`.
        top_k: how many reports to return at most.
        level: the finest level to take; 0 are the coarsest communities.
        where: only reports all of whose chunks fulfil these conditions.

    Raises:
        NodeInputError: a hit is no entity.
        SettingsError: the knowledge base does not exist, or lacks a field of `where`.
        ServiceError: the store failed, or there are no entities because retrieval failed.
    """
    wanted = [hit.id for hit in only(("entity",), entities, "report.of_entities")]
    if not has_evidence(entities):
        return Ranking(route=REPORTS)
    home = deepest_reports(kb.reports(where), level)
    matched = Counter(home[id_].id for id_ in wanted if id_ in home)
    reports = {each.id: each for each in home.values() if each.id in matched}
    ordered = sorted(reports.values(), key=lambda each: (-matched[each.id], -each.rating, each.id))
    ranking = in_order((report_hit(each, 1.0, "rank") for each in ordered[:top_k]), route=REPORTS)
    return with_report_places(ranking, kb).model_copy(update={"degraded": entities.degraded, "error": entities.error})


@node(
    "report.batches",
    example="""
    reports: {use: report.select, level: 2}
    batches: {use: report.batches, reports: $reports, max_tokens: 12000}
    """,
)
def batches(
    reports: Ranking,
    *,
    max_tokens: PositiveInt = 12_000,
    max_reports: PositiveInt | None = None,
    max_batches: PositiveInt = 200,
    seed: NonNegativeInt = 86,
) -> list[Ranking]:
    """Shuffles reports and packs them into batches, for a model that reads one batch at a time.

    Shuffled as in GraphRAG's global search, so that no batch holds all that matters, but the same seed gives the same
    batches. A report longer than `max_tokens` is a batch by itself.

    Args:
        reports: the reports.
        max_tokens: how many tokens a batch may have, in words, CJK characters and signs; an English word is about 1.3
            tokens of a model.
        max_reports: how many reports a batch may have; none (null) sets no limit.
        max_batches: how many batches there may be; the reports that come last in the ranking give way first, with a
            note in the trace.
        seed: of the shuffle.

    Raises:
        ServiceError: there are no reports because retrieval failed.
    """
    if not has_evidence(reports):
        return []
    kept = list(reports)
    packed = _pack(kept, max_tokens, max_reports, seed)
    while len(packed) > max_batches:
        # Each batch too many takes at least one report with it, the least important one first.
        del kept[-(len(packed) - max_batches) :]
        packed = _pack(kept, max_tokens, max_reports, seed)
    if len(kept) < len(reports):
        report_note(f"{len(reports) - len(kept)} reports did not fit into {max_batches} batches and were left out")
    state = {"degraded": reports.degraded, "error": reports.error}
    ranked = (Ranking.from_hits(batch, route=REPORTS, score_kind=reports.score_kind) for batch in packed)
    return [batch.model_copy(update=state) for batch in ranked]


def _pack(hits: list[Hit], max_tokens: int, max_reports: int | None, seed: int) -> list[list[Hit]]:
    shuffled = hits[:]
    random.Random(seed).shuffle(shuffled)
    packed: list[list[Hit]] = []
    room = 0
    for hit in shuffled:
        size = count_tokens(hit.text)
        if not packed or size > room or len(packed[-1]) == max_reports:
            packed.append([])
            room = max_tokens
        packed[-1].append(hit)
        room -= size
    return packed
