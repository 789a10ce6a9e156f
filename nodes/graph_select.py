"""`graph.exact`, `graph.fuzzy` and `graph.pick_facts`: the facts about linked entities that answer a question."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, PositiveInt

from ragbraid.nodes.graph_prune import Picked, shown_and_rest
from ragbraid.nodes.graph_walking import (
    by_weight,
    has_facts,
    keep_facts,
    make_path,
    make_sub_graph,
    relation_key,
    start_of,
)
from ragbraid.nodes.reasoning import (
    Asking,
    OnInvalid,
    PromptLanguage,
    Temperature,
    ask_or_none,
    bounded,
    gather,
    pick,
    prompt_file,
)
from ragbraid.registry.context import report_note
from ragbraid.registry.errors import NodeInputError
from ragbraid.registry.graph import EntityLinks, Fact, SubGraph
from ragbraid.registry.graph_view import GraphView
from ragbraid.registry.knowledge import KnowledgeBase, Where
from ragbraid.registry.node import node
from ragbraid.registry.resources import LLM, Embedder

if TYPE_CHECKING:
    from ragbraid.registry.resources import Vector

Side = EntityLinks | None
HowManyFacts = Annotated[int, Field(ge=1, le=1000)]

_FIRST_SEARCH = 64
_WIDER = 8


@node(
    "graph.exact",
    blocking=True,
    example="""
    films: {use: graph.link, mentions: [Inception]}
    facts: {use: graph.exact, subject: $films, predicates: [directed_by, director]}
    """,
)
def exact(
    subject: Side = None,
    predicates: tuple[str, ...] = (),
    object: Side = None,
    *,
    kb: KnowledgeBase,
    limit: HowManyFacts = 100,
    where: Where | None = None,
) -> SubGraph:
    """Find the facts with one of these predicates and linked entities in their places, one hop.

    The exact retrieval of KAG (`kg_cs`). Predicates are compared as names are, with `_` for a blank. An attribute is a
    fact like any other. A side that is left out may be anything; a side whose mention was linked to nothing matches
    nothing, and neither do two sides that are left out. Facts come in the order of the links, the heaviest first.

    Args:
        subject: what the subject was linked to; none (null) where it is asked for.
        predicates: the predicates that will do; without any nothing is found.
        object: what the object was linked to; none (null) where it is asked for.
        kb: the knowledge base.
        limit: how many facts are taken at most; a note in the trace says when there are more.
        where: only what chunks contribute that fulfil these conditions.

    Raises:
        SettingsError: the knowledge base does not exist, holds no knowledge graph, or lacks a field of `where`.
        ServiceError: the store failed.
    """
    keys = {key for predicate in predicates if (key := relation_key(predicate))}
    if not keys or not (_is_linked(subject) or _is_linked(object)) or _is_lost(subject) or _is_lost(object):
        return SubGraph()
    view = kb.graph(where)
    heads, tails = _ids(view, subject), _ids(view, object)
    begins = (tails or ()) if heads is None else heads
    found = [
        (begin, fact)
        for begin, fact in _facts_around(view, begins)
        if relation_key(fact.predicate) in keys
        and begin == (fact.object if heads is None else fact.subject)
        and (heads is None or tails is None or fact.object in tails)
    ]
    if len(found) > limit:
        report_note(f"{len(found) - limit} facts beyond `limit` {limit} were left out")
    return _one_hop(view, (*(heads or ()), *(tails or ())), found[:limit])


@node(
    "graph.fuzzy",
    blocking=True,
    example="""
    films: {use: graph.link, mentions: [Inception]}
    facts: {use: graph.fuzzy, subject: $films, top_k: 15, min_score: 0.3}
    """,
)
def fuzzy(
    question: str,
    subject: Side = None,
    object: Side = None,
    *,
    kb: KnowledgeBase,
    embedder: Embedder,
    top_k: HowManyFacts = 15,
    min_score: Annotated[float, Field(ge=-1, le=1)] | None = 0.3,
    where: Where | None = None,
) -> SubGraph:
    """Find the facts about linked entities that mean most nearly what is asked, one hop.

    The fuzzy retrieval of KAG (`kg_fr`): all facts of the linked subjects and objects, in whatever role, by the cosine
    of the whole fact with the question, so that it does not matter in which language or words a predicate is named.
    `graph.pick_facts` lets a model choose among them. Without a linked entity nothing is found.

    Args:
        question: the question, or one step of it.
        subject: what the subject was linked to.
        object: what the object was linked to.
        kb: the knowledge base.
        embedder: the model that filled it.
        top_k: how many facts are taken at most.
        min_score: facts below this cosine are left out; what fits depends on the embedder, and a note in the trace
            names the best that was rejected when nothing is left. None (null) keeps all.
        where: only what chunks contribute that fulfil these conditions.

    Raises:
        NodeInputError: the question is empty.
        SettingsError: the knowledge base does not exist, holds no knowledge graph, was filled with another model, or
            lacks a field of `where`.
        ServiceError: the store or the embedder failed.
    """
    if not question.strip():
        raise NodeInputError("graph.fuzzy: the question is empty; give it a text", kind="input")
    linked = [side for side in (subject, object) if side is not None and side.links]
    if not linked:
        return SubGraph()
    view = kb.graph(where)
    seeds = tuple(dict.fromkeys(id_ for side in linked for id_ in start_of(view, side)))
    around: dict[str, tuple[str, Fact]] = {}
    for begin, fact in _facts_around(view, seeds):
        around.setdefault(fact.id, (begin, fact))
    if not around:
        return make_sub_graph(view.entities, seeds, (), ())
    ranked = _nearest(
        kb, embedder.embed_query(question), embedder.identity, list(around), top_k, len(view.facts), where
    )
    kept = [id_ for id_, score in ranked if min_score is None or score >= min_score]
    if ranked and not kept:
        best = around[ranked[0][0]][1]
        report_note(
            f"no fact reached `min_score` {min_score:g}; the best of {len(around)}, {best.text!r}, had {ranked[0][1]:.3f}"
        )
    return _one_hop(view, seeds, [around[id_] for id_ in kept])


def _nearest(
    kb: KnowledgeBase,
    vector: Vector,
    embedder: str,
    wanted: Sequence[str],
    top_k: int,
    total: int,
    where: Where | None,
) -> list[tuple[str, float]]:
    """Return the nearest of some facts, by a search among all that widens until it holds enough of them.

    The search gives facts in order, so the first of ours that it holds are the nearest; no fact has to be embedded.
    """
    ours, ask = frozenset(wanted), min(_FIRST_SEARCH, total)
    while True:
        found = kb.search_graph("fact", vector, embedder=embedder, top_k=ask, where=where)
        held = [(id_, score) for id_, score in found if id_ in ours]
        if len(held) >= min(top_k, len(ours)) or len(found) < ask or ask >= total:
            return sorted(held, key=lambda each: (-each[1], each[0]))[:top_k]
        ask = min(ask * _WIDER, total)


def _is_linked(side: Side) -> bool:
    return side is not None and bool(side.links)


def _ids(view: GraphView, side: Side) -> tuple[str, ...] | None:
    """Return what a side may be; None where it may be anything."""
    return start_of(view, side) if side is not None and side.links else None


def _is_lost(side: Side) -> bool:
    """Whether something was named there and linked to nothing."""
    if side is None or side.links or not side.unlinked:
        return False
    report_note(f"no fact can match, since {', '.join(map(repr, side.unlinked))} is linked to nothing")
    return True


def _facts_around(view: GraphView, begin: Sequence[str]) -> Iterator[tuple[str, Fact]]:
    for id_ in begin:
        for fact in sorted(view.facts_of(id_), key=by_weight):
            yield id_, fact


def _one_hop(view: GraphView, seeds: Sequence[str], found: Sequence[tuple[str, Fact]]) -> SubGraph:
    walked: dict[str, tuple[str, Fact]] = {}
    for begin, fact in found:
        walked.setdefault(fact.id, (begin, fact))
    paths = [make_path(view.entities, (begin, fact.other_end(begin)), (fact,)) for begin, fact in walked.values()]
    return make_sub_graph(view.entities, tuple(dict.fromkeys(seeds)), [fact for _, fact in walked.values()], paths)


@node(
    "graph.pick_facts",
    example="""
    near: {use: graph.fuzzy, subject: $topics}
    facts: {use: graph.pick_facts, subgraph: $near}
    """,
)
async def pick_facts(
    subgraph: SubGraph,
    question: str,
    *,
    llm: LLM,
    prompt: Annotated[str | None, prompt_file("facts")] = None,
    max_facts: Annotated[int, Field(ge=1, le=200)] = 15,
    max_tokens: PositiveInt = 300,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
    on_invalid: OnInvalid = "fail",
) -> SubGraph:
    """Lets a model choose the facts that help to answer the question, by their numbers; it may choose none.

    The selection of KAG's fuzzy retrieval (`pick_relations`). Without facts the model is not asked.

    Args:
        subgraph: where the facts stand, best first.
        question: the question, or one step of it.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_facts: how many facts the model sees, the first ones; those behind them are left out, with a note in the
            trace.
        max_tokens: bounds what the model writes; reaching it is an error.
        temperature: 0 makes the choice as repeatable as the model allows.
        language: language of the prompt; `auto` takes the question's.
        on_invalid: after an answer of the wrong form or one that was cut off, `fail` fails the step and `keep` takes
            the first 3 facts, marked degraded.

    Raises:
        NodeInputError: the question is empty or the template is wrong.
        ServiceError: the model failed, or there are no facts because the search failed.
    """
    if not has_facts(subgraph):
        return subgraph
    shown = shown_and_rest(subgraph.facts, max_facts, "facts")
    values = gather(question, lists={"facts": [fact.text for fact in shown]})
    how = Asking(prompt, max_tokens, temperature, language)
    form = bounded(Picked, "keep", max_facts)
    draft = await ask_or_none(llm, "pick_relations", form, values, how, on_invalid, "the first facts were kept")
    chosen = range(min(3, len(shown))) if draft is None else sorted(pick(draft.keep, len(shown))[0])
    return keep_facts(subgraph, {shown[position].id for position in chosen})
