"""Facts and entities as hits: searching for them, choosing among them with a model, and going from one to the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from ragbraid.nodes.graph_hits import entity_hit, fact_hit, in_order, only, with_places
from ragbraid.nodes.reasoning import (
    Asking,
    Draft,
    OnInvalid,
    PromptLanguage,
    Temperature,
    Texts,
    ask_or_none,
    bounded,
    gather,
    has_evidence,
    keep_hits,
    pick,
    prompt_file,
)
from ragbraid.registry.context import report_note
from ragbraid.registry.contracts import Hit, Query, Ranking
from ragbraid.registry.errors import NodeInputError
from ragbraid.registry.graph_view import GraphView
from ragbraid.registry.knowledge import GraphKind, KnowledgeBase, Where
from ragbraid.registry.node import node
from ragbraid.registry.resources import LLM, Embedder

HowMany = Annotated[int, Field(ge=1, le=10_000)]
Cosine = Annotated[float, Field(ge=-1, le=1)]

Found = list[tuple[str, float]]
Search = Callable[[GraphKind, int], Found]

_MORE = 4
"""How many times as many are fetched again where too few of those found are wanted."""

_ambient = {"query": ("question",)}


@node(
    "graph.facts",
    ambient=_ambient,
    blocking=True,
    example="""
    facts: {use: graph.facts, top_k: 5}
    """,
)
def facts(
    query: Query,
    keywords: Texts | None = None,
    *,
    kb: KnowledgeBase,
    embedder: Embedder,
    top_k: HowMany = 5,
    min_score: Cosine | None = None,
    scale_over: Annotated[int, Field(ge=2, le=10_000)] | None = None,
    where: Where | None = None,
) -> Ranking:
    """Find the facts of the knowledge graph whose meaning is nearest to the query's, by cosine.

    With `top_k: 5` this is how HippoRAG 2 links a question to facts; with the themes of `query.keywords`, `top_k: 40`
    and `min_score: 0.2` it is the relation search of LightRAG. A hit says which chunks state the fact (`chunk_ids`),
    and document, source and title are those of the first.

    Args:
        query: the question or search text.
        keywords: what to search for in its place, taken together; an empty list finds nothing.
        kb: the knowledge base.
        embedder: the model that filled it.
        top_k: how many facts to return at most.
        min_score: facts below this cosine are left out; what fits depends on the embedder, and a note in the trace
            names the best that was rejected when nothing is left.
        scale_over: map the scores to 0..1 over so many of the nearest facts (HippoRAG 2: over all), for `graph.seed`:
            cosines of some models lie so close together that as weights they would all be the same. None (null) leaves
            the cosines.
        where: only what chunks that fulfil these conditions state.

    Raises:
        NodeInputError: the query is empty.
        SettingsError: there is no knowledge graph, it was filled with another model, or lacks a field of `where`.
        ServiceError: the store or the embedder failed.
    """
    text = _search_text(query, keywords, "graph.facts")
    if text is None:
        return Ranking(route="facts", score_kind="cosine")
    asked = max(top_k, scale_over or 0)
    found = kb.search_graph("fact", embedder.embed_query(text), embedder=embedder.identity, top_k=asked, where=where)
    view = kb.graph(where)
    hits = [fact_hit(view.facts[id_], score, "cosine") for id_, score in found[:top_k] if id_ in view.facts]
    ranked = _ranked(hits, "facts", min_score)
    if scale_over is not None and found:
        ranked = _scaled(ranked, least=found[:scale_over][-1][1], greatest=found[0][1])
    return with_places(ranked, kb)


@node(
    "graph.entities",
    ambient=_ambient,
    blocking=True,
    example="""
    things: {use: graph.entities, by: profile, top_k: 40, min_score: 0.2}
    """,
)
def entities(
    query: Query,
    keywords: Texts | None = None,
    *,
    kb: KnowledgeBase,
    embedder: Embedder,
    by: Literal["name", "profile"] = "profile",
    top_k: HowMany = 10,
    min_score: Cosine | None = None,
    where: Where | None = None,
) -> Ranking:
    """Find the entities of the knowledge graph whose name, or name and description, is nearest to the query's meaning.

    The entity search of LightRAG with the names of `query.keywords`, `top_k: 40` and `min_score: 0.2`. A hit says which
    chunks name the entity (`chunk_ids`), and document, source and title are those of the first.

    Args:
        query: the question or search text.
        keywords: what to search for in its place, taken together; an empty list finds nothing.
        kb: the knowledge base.
        embedder: the model that filled it.
        by: `name` compares with names, for mentions of things; `profile` with names and descriptions, for questions.
            An entity of which there is no description has no profile and takes part with its name.
        top_k: how many entities to return at most.
        min_score: entities below this cosine are left out; what fits depends on the embedder, and a note in the trace
            names the best that was rejected when nothing is left.
        where: only what chunks that fulfil these conditions name.

    Raises:
        NodeInputError: the query is empty.
        SettingsError: there is no knowledge graph, it was filled with another model, or lacks a field of `where`.
        ServiceError: the store or the embedder failed.
    """
    text = _search_text(query, keywords, "graph.entities")
    if text is None:
        return Ranking(route="entities", score_kind="cosine")
    view = kb.graph(where)
    vector = embedder.embed_query(text)

    def search(kind: GraphKind, limit: int) -> Found:
        return kb.search_graph(kind, vector, embedder=embedder.identity, top_k=limit, where=where)

    found = search("entity", top_k) if by == "name" else _by_profile(search, view, top_k)
    hits = [entity_hit(view.entities[id_], score, "cosine") for id_, score in found if id_ in view.entities]
    return with_places(_ranked(hits, "entities", min_score), kb)


class FactChoice(Draft):
    """The facts that help."""

    keep: list[int] = Field(description="numbers of the facts that help to answer, best first; empty when none does")


@node(
    "graph.filter_facts",
    example="""
    facts: {use: graph.facts, top_k: 5}
    useful: {use: graph.filter_facts, facts: $facts, keep: 5}
    """,
)
async def filter_facts(
    facts: Ranking,
    question: str,
    *,
    llm: LLM,
    keep: Annotated[int, Field(ge=1, le=50)] = 5,
    prompt: Annotated[str | None, prompt_file("facts", "keep")] = None,
    max_facts: Annotated[int, Field(ge=1, le=200)] = 50,
    max_tokens: PositiveInt = 200,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
    on_invalid: OnInvalid = "keep",
) -> Ranking:
    """Keeps the facts that help to answer a question, in their order; none is an answer too.

    The recognition step of HippoRAG 2 (Gutiérrez et al. 2025). The model sees the facts numbered and returns numbers,
    where the original takes whatever fact resembles the text that the model wrote. Without facts it is not asked.

    Args:
        facts: the facts, best first.
        question: the question.
        keep: how many facts the model may keep; more go back to it as a mistake.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_facts: how many of the facts the model sees; those behind them are dropped, with a note in the trace.
        max_tokens: bounds what the model writes; reaching it is an error.
        temperature: 0 makes the choice as repeatable as the model allows.
        language: language of the prompt; `auto` takes the question's.
        on_invalid: after an answer of the wrong form or one that was cut off, `fail` fails the step and `keep` goes on
            with no facts, marked degraded, so that a flow falls back to its passages.

    Raises:
        NodeInputError: the question is empty, or the template is wrong.
        ServiceError: the model failed, or there are no facts because retrieval failed.
    """
    if not has_evidence(facts):
        return facts
    shown = facts.hits[:max_facts]
    if len(shown) < len(facts):
        report_note(f"{len(facts) - len(shown)} facts behind the first {max_facts} were not read and dropped")
    values = gather(question, lists={"facts": [hit.text for hit in shown]}, facts={"keep": keep})
    form = bounded(FactChoice, "keep", keep)
    how = Asking(prompt, max_tokens, temperature, language)
    draft = await ask_or_none(llm, "filter_facts", form, values, how, on_invalid, "no fact was kept")
    if draft is None:
        error = "the model did not say which facts help"
        return keep_hits(facts, []).model_copy(update={"degraded": True, "error": error})
    positions, _ = pick(draft.keep, len(shown))
    return keep_hits(facts, [shown[position] for position in sorted(positions)])


@node(
    "graph.endpoints",
    blocking=True,
    example="""
    facts: {use: graph.facts, top_k: 40, min_score: 0.2}
    things: {use: graph.endpoints, facts: $facts}
    """,
)
def endpoints(facts: Ranking, *, kb: KnowledgeBase, where: Where | None = None) -> Ranking:
    """Goes from facts to the entities at their ends, each once, in the order of the facts, subject first (LightRAG).

    Args:
        facts: the facts, best first.
        kb: the knowledge base.
        where: only what chunks that fulfil these conditions contribute.

    Raises:
        NodeInputError: one of the hits is no fact.
        SettingsError: there is no knowledge graph, or it lacks a field of `where`.
    """
    if not facts:
        return _nothing("endpoints", facts)
    view = kb.graph(where)
    known = (view.facts[hit.id] for hit in only(("fact",), facts, "graph.endpoints") if hit.id in view.facts)
    ends = dict.fromkeys(end for fact in known for end in (fact.subject, fact.object))
    hits = [entity_hit(view.entities[id_], 0.0, "rank") for id_ in ends]
    return _as_incomplete_as(facts, with_places(in_order(hits, route="endpoints"), kb))


@node(
    "graph.relations_of",
    blocking=True,
    example="""
    things: {use: graph.entities, top_k: 40, min_score: 0.2}
    around: {use: graph.relations_of, entities: $things, limit: 100}
    """,
)
def relations_of(entities: Ranking, *, kb: KnowledgeBase, limit: HowMany = 200, where: Where | None = None) -> Ranking:
    """Goes from entities to the facts that they take part in, those between the best connected entities first.

    One hop, as LightRAG's local search: a fact that two of the entities share comes once; sorted by the degrees of its
    two ends together, then by weight, then by id. What one pair is said to have to do with each other in several
    facts stays several facts, where LightRAG has room for one.

    Args:
        entities: the entities; their order does not matter.
        kb: the knowledge base.
        limit: how many facts to return at most.
        where: only what chunks that fulfil these conditions contribute.

    Raises:
        NodeInputError: one of the hits is no entity.
        SettingsError: there is no knowledge graph, or it lacks a field of `where`.
    """
    if not entities:
        return _nothing("relations", entities)
    view = kb.graph(where)
    found = {
        fact.id: fact for hit in only(("entity",), entities, "graph.relations_of") for fact in view.facts_of(hit.id)
    }
    ordered = sorted(
        found.values(),
        key=lambda fact: (-view.degree(fact.subject) - view.degree(fact.object), -fact.weight, fact.id),
    )
    if len(ordered) > limit:
        report_note(f"{len(ordered) - limit} of {len(ordered)} facts are behind `limit` and were left out")
    hits = [fact_hit(fact, 0.0, "rank") for fact in ordered[:limit]]
    return _as_incomplete_as(entities, with_places(in_order(hits, route="relations"), kb))


def _scaled(ranking: Ranking, *, least: float, greatest: float) -> Ranking:
    """Map scores to 0..1; where all are the same they are 1."""
    span = greatest - least
    hits = [
        hit.model_copy(update={"score": min(max((hit.score - least) / span, 0.0), 1.0) if span > 0 else 1.0})
        for hit in ranking
    ]
    return Ranking.from_hits(hits, route=ranking.route, score_kind="norm")


def _search_text(query: Query, keywords: Texts | None, node_name: str) -> str | None:
    if keywords is not None:
        said = [each.strip() for each in keywords if each.strip()]
        return ", ".join(said) or None
    if not query.text.strip():
        raise NodeInputError(f"{node_name}: the question is empty; give it a text to search for", kind="input")
    return query.text


def _by_profile(search: Search, view: GraphView, top_k: int) -> Found:
    """Search profiles, and by name what has none. A description that only hidden chunks give is none either."""
    bare = view.remember("entities without a description", _without_description)
    found = _first(search, "profile", top_k, lambda id_: id_ not in bare)
    if bare:
        found += _first(search, "entity", top_k, lambda id_: id_ in bare)
    return sorted(found, key=lambda item: (-item[1], item[0]))[:top_k]


def _first(search: Search, kind: GraphKind, top_k: int, is_wanted: Callable[[str], bool]) -> Found:
    limit = top_k
    while True:
        found = search(kind, limit)
        wanted = [each for each in found if is_wanted(each[0])]
        if len(wanted) >= top_k or len(found) < limit:
            return wanted[:top_k]
        limit *= _MORE


def _without_description(view: GraphView) -> frozenset[str]:
    return frozenset(id_ for id_, entity in view.entities.items() if not any(p.description for p in entity.parts))


def _ranked(hits: Sequence[Hit], route: str, min_score: float | None) -> Ranking:
    kept = [hit for hit in hits if min_score is None or hit.score >= min_score]
    if hits and not kept:
        best = max(hit.score for hit in hits)
        report_note(f"nothing reached `min_score` {min_score:g}; the best of {len(hits)} had {best:.3f}")
    in_id_order = sorted(kept, key=lambda hit: hit.id)
    return Ranking.from_hits(in_id_order, route=route, score_kind="cosine")


def _nothing(route: str, origin: Ranking) -> Ranking:
    return _as_incomplete_as(origin, Ranking(route=route))


def _as_incomplete_as(origin: Ranking, found: Ranking) -> Ranking:
    return found.model_copy(update={"degraded": origin.degraded, "error": origin.error})
