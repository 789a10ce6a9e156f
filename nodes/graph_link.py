"""`graph.mentions`, `graph.spot` and `graph.link`: from a question to the entities that it names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, PositiveInt

from ragbraid.nodes.graph_linking import (
    Candidate,
    Stage,
    by_name,
    by_spelling,
    is_of_type,
    link_mention,
    spot_names,
    useful_types,
)
from ragbraid.nodes.reasoning import (
    Asking,
    Draft,
    Line,
    OnInvalid,
    PromptLanguage,
    Temperature,
    Texts,
    ask_or_none,
    bounded,
    gather,
    prompt_file,
    without_repeats,
)
from ragbraid.registry.context import report_note
from ragbraid.registry.graph import Entity, EntityLinks
from ragbraid.registry.graph_names import normalize_name
from ragbraid.registry.graph_parts import OTHER
from ragbraid.registry.graph_view import GraphView
from ragbraid.registry.knowledge import GraphKind, KnowledgeBase, Where
from ragbraid.registry.node import node
from ragbraid.registry.resources import LLM, Embedder

if TYPE_CHECKING:
    from ragbraid.registry.resources import Vector

HowMany = Annotated[int, Field(ge=1, le=100)]
HowManyMentions = Annotated[int, Field(ge=1, le=50)]
Alike = Annotated[float, Field(ge=0, le=1)]


class Named(Draft):
    """What the question names."""

    mentions: list[Line] = Field(description="the names, as the question writes them; empty when it names nothing")


@node(
    "graph.mentions",
    example="""
    names: {use: graph.mentions, types: [Film, Person]}
    topics: {use: graph.link, mentions: $names}
    """,
)
async def mentions(
    question: str,
    *,
    llm: LLM,
    types: Texts = (),
    prompt: Annotated[str | None, prompt_file("types", "max_mentions")] = None,
    max_mentions: HowManyMentions = 10,
    max_tokens: PositiveInt = 300,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
    on_invalid: OnInvalid = "fail",
) -> Texts:
    """Lets a model name the things that a question is about: persons, places, works and so on, as it writes them.

    The entity recognition that graph methods begin with (HippoRAG, KAG). `graph.spot` does without a model where names
    stand in the question as in the graph.

    Args:
        question: the question.
        types: only things of these types; without any, things of all types.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_mentions: how many names the model may give; more go back to it as a mistake.
        max_tokens: bounds what the model writes; reaching it is an error.
        temperature: 0 makes the names as repeatable as the model allows.
        language: language of the prompt; `auto` takes the question's.
        on_invalid: after an answer of the wrong form or one that was cut off, `fail` fails the step and `keep` takes
            the whole question for one name, marked degraded.

    Raises:
        NodeInputError: the question is empty or the template is wrong.
        ServiceError: the model failed.
    """
    values = gather(question, lists={"types": types}, facts={"max_mentions": max_mentions})
    how = Asking(prompt, max_tokens, temperature, language)
    form = bounded(Named, "mentions", max_mentions)
    draft = await ask_or_none(llm, "query_entities", form, values, how, on_invalid, "the question stands for one name")
    return (question.strip(),) if draft is None else without_repeats(draft.mentions)


@node(
    "graph.spot",
    blocking=True,
    example="""
    names: graph.spot
    topics: {use: graph.link, mentions: $names}
    """,
)
def spot(question: str, *, kb: KnowledgeBase, max_mentions: HowManyMentions = 10, where: Where | None = None) -> Texts:
    """Find the names and aliases of the knowledge graph that stand in a question, without a model.

    Case, width and white space do not matter. Of names that overlap the longest counts; names are made of whole words,
    except in scripts without blanks between words, where they have at least two letters. A name that is a word of any
    question, such as the film "It", counts only where the question spells it as the graph does. Names come as the graph
    spells them, in the order of the question.

    Args:
        question: the question; nothing is found in an empty one.
        kb: the knowledge base.
        max_mentions: how many names are taken, the first ones; a note in the trace says when there are more.
        where: only names that chunks give which fulfil these conditions.

    Raises:
        SettingsError: the knowledge base does not exist, holds no knowledge graph, or lacks a field of `where`.
        ServiceError: the store failed.
    """
    if not question.strip():
        return ()
    found = spot_names(kb.graph(where), question)
    if len(found) > max_mentions:
        report_note(f"{len(found) - max_mentions} names behind the first {max_mentions} were left out")
    return tuple(found[:max_mentions])


@node(
    "graph.link",
    blocking=True,
    example="""
    names: graph.mentions
    topics: {use: graph.link, mentions: $names, types: [Film], top_k: 5}
    """,
)
def link(
    mentions: Texts,
    question: str = "",
    *,
    kb: KnowledgeBase,
    embedder: Embedder | None = None,
    types: Texts = (),
    top_k: HowMany = 5,
    min_score: Alike | None = 0.8,
    fuzzy_min: Alike | None = 0.9,
    where: Where | None = None,
) -> EntityLinks:
    """Find the entities that names stand for: by name, by alias, by nearly the same spelling, then by meaning.

    The entity linking of KAG with its numbers. Each way is tried only where those before it brought nothing that the
    filters leave. By meaning, a name is compared with the names of entities and, where `types` are given, the question
    with what the knowledge base says about entities of these types. For a name that is linked to nothing the trace says
    which filter removed how many candidates and which was the best of them.

    Args:
        mentions: the names, such as `graph.mentions` or `graph.spot` give them; without any nothing is found.
        question: the question that they stand in; only used where `types` are given.
        kb: the knowledge base.
        embedder: the model that filled it; without it nothing is compared by meaning.
        types: only entities of these types, or of no known type; `Entity`, `Other` and `Thing` stand for any.
        top_k: how many entities a name is linked to at most.
        min_score: the least cosine, by meaning; what fits depends on the embedder. None (null) does without meaning.
        fuzzy_min: the least likeness of two spellings, 1 being the same. None (null) does without it.
        where: only what chunks contribute that fulfil these conditions.

    Raises:
        SettingsError: the knowledge base does not exist, holds no knowledge graph, was filled with another model, or
            lacks a field of `where`.
        ServiceError: the store or the embedder failed.
    """
    unique: dict[str, str] = {}
    for mention in filter(str.strip, mentions):
        unique.setdefault(normalize_name(mention), mention)
    if not unique:
        return EntityLinks()
    view = kb.graph(where)
    recall = max(10, top_k * 5 if useful_types(types) else top_k)
    stages = [Stage(lambda mention: by_name(view, mention))]
    if fuzzy_min is not None:
        stages.append(Stage(lambda mention: by_spelling(view, mention, recall), "fuzzy_min", fuzzy_min))
    if embedder is not None and min_score is not None:
        meaning = _by_meaning(kb, view, embedder, question, types, recall, where)
        stages.append(Stage(meaning, "min_score", min_score))
    linked = {mention: link_mention(mention, stages, types, top_k) for mention in unique.values()}
    for each in linked.values():
        if each.why:
            report_note(each.why)
    return EntityLinks(
        links=tuple(link for each in linked.values() for link in each.links),
        unlinked=tuple(mention for mention, each in linked.items() if not each.links),
    )


def _by_meaning(
    kb: KnowledgeBase,
    view: GraphView,
    embedder: Embedder,
    question: str,
    types: Texts,
    recall: int,
    where: Where | None,
) -> Callable[[str], list[Candidate]]:
    wanted = useful_types(types)

    def search(kind: GraphKind, vector: Vector) -> Iterator[Candidate]:
        for id_, score in kb.search_graph(kind, vector, embedder=embedder.identity, top_k=recall, where=where):
            if id_ in view.entities:  # the knowledge base may have moved on since the graph was read
                yield Candidate(view.entities[id_], score, "embedding")

    @cache
    def as_described() -> list[Candidate]:
        if not wanted or not question.strip():
            return []
        found = search("profile", embedder.embed_query(question))
        return [each for each in found if _is_known(each.entity) and is_of_type(each.entity, wanted)]

    def find(mention: str) -> list[Candidate]:
        found = [*search("entity", embedder.embed_query(mention)), *as_described()]
        return sorted(found, key=lambda each: (-each.score, each.entity.id))

    return find


def _is_known(entity: Entity) -> bool:
    return entity.type != OTHER
