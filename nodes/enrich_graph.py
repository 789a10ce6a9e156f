"""The node `enrich.extract_graph`: entities and undirected relations, as LightRAG and GraphRAG extract them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, JsonValue, PositiveInt

from ragbraid.nodes.enrich_forms import (
    GraphDraft,
    TypeNames,
    add_graphs,
    is_without_graph,
    read_entities,
    read_relationships,
    sized,
    to_answer,
)
from ragbraid.nodes.enriching import (
    ABOUT_ONE_CHUNK,
    INCOMPLETE,
    Enricher,
    fingerprint,
    language_of,
    readable,
    show,
    stamp_chunk,
)
from ragbraid.nodes.reasoning import Asking, PromptLanguage, Temperature, ask_in, gather
from ragbraid.registry.contracts import Chunk, ChunkSet
from ragbraid.registry.errors import ServiceError
from ragbraid.registry.graph_names import entity_id, fact_id
from ragbraid.registry.graph_parts import Mention, Triple
from ragbraid.registry.knowledge import KnowledgeBase
from ragbraid.registry.node import PromptFile, node
from ragbraid.registry.resources import LLM

ENTITY_TYPES: TypeNames = ("Person", "Organization", "Place", "Event", "Work", "Product", "Concept", "Time")
_NAMES = ("passages", "types", "known_entities", "known_relationships", "max_entities", "max_records", "rule", "key")
_EXTRACTOR = Enricher(
    name="extract_graph",
    doing="extract the graph",
    done="read for the graph",
    one="entity",
    many="entities",
    share_setting="max_empty_share",
    is_nothing=is_without_graph,
)


@node(
    "enrich.extract_graph",
    cacheable=False,
    example="""
    chunks: {use: chunk.recursive, documents: $documents}
    extracted: {use: enrich.extract_graph, chunks: $chunks, types: [Person, Organization, Place]}
    """,
)
async def extract_graph(
    chunks: ChunkSet,
    *,
    llm: LLM,
    kb: KnowledgeBase | None = None,
    prompt: Annotated[str | None, PromptFile((*_NAMES, "language"))] = None,
    types: Annotated[TypeNames, Field(max_length=60)] = ENTITY_TYPES,
    gleanings: Annotated[int, Field(ge=0, le=3)] = 1,
    max_records: Annotated[int, Field(ge=1, le=500)] = 100,
    max_entities: Annotated[int, Field(ge=1, le=500)] = 40,
    max_empty_share: Annotated[float, Field(ge=0, le=1)] = 0.5,
    only_named: bool = False,
    concurrency: Annotated[int, Field(ge=1, le=64)] = 4,
    max_tokens: PositiveInt = 4000,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
) -> ChunkSet:
    """Adds to each chunk the entities that it names and the relations between them, for the knowledge graph.

    The extraction of LightRAG (Guo et al. 2024) and GraphRAG (Edge et al. 2024): relations have no direction and no
    predicate, but keywords, a description and a strength, which is their weight. One that a chunk states twice counts
    once. An end of a relation that is missing among the entities becomes an entity without a type. Names are cut at 256
    characters, descriptions at 1,000.

    Every further pass over a chunk is shown what was found and asked for what is missing. Each answer is an object of
    its own, so nothing is lost where two passes meet, as in GraphRAG; the passes end when one brings nothing new.

    A chunk that the knowledge base holds as it was read before (same text, title, prompt, settings and model) keeps
    what was found, and the model is not asked about it. Where the model fails, the sources that it left unfinished are
    reported as failed and stay in the knowledge base as they are; the others go on. A chunk whose answer had the wrong
    form or was cut off stays without a graph, which marks the step as degraded; the next run asks again. Single items
    that cannot be read are left out and counted in the trace.

    Args:
        chunks: the chunks to read; atoms among them are passed over, and a graph that a chunk has already is added to.
        kb: the knowledge base that the chunks will go to.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        types: the types that entities may have, anything else becomes `Other`; an empty list leaves them to the model.
        gleanings: how many further passes ask for what was missed; 0 reads every chunk once.
        max_records: how many entities and relations one answer may hold together; those that follow are left out.
        max_entities: how many entities one answer may hold.
        max_empty_share: fail when a larger share of the chunks than this gets nothing.
        only_named: leave out entities whose name does not stand in the chunk, and the facts about them; small models
            invent some. Without it they are counted in the trace.
        concurrency: how many chunks are with the model at once.
        max_tokens: bounds what the model writes in one pass over a chunk.
        temperature: 0 makes the graph as repeatable as the model allows.
        language: language of the prompt and of what it describes; `auto` takes each chunk's.

    Raises:
        NodeInputError: the template is wrong.
        ServiceError: the model failed from the start, or too many chunks got nothing (kind `invalid_output`).
    """
    how = Asking(prompt, max_tokens, temperature, language)
    made_by = fingerprint(llm, how, [_EXTRACTOR.name], tuple(types), gleanings, max_records, max_entities)
    stamps = {chunk.id: stamp_chunk(_EXTRACTOR, chunk, made_by, how) for chunk in readable(chunks)}
    form = sized(GraphDraft, entities=max_entities, relationships=max_records)
    facts = {"types": types, "max_entities": max_entities, "max_records": max_records}

    async def one_pass(chunk: Chunk, mentions: Sequence[Mention], triples: Sequence[Triple]) -> GraphDraft:
        known = {
            "known_entities": list(dict.fromkeys(mention.name for mention in mentions)),
            "known_relationships": list(dict.fromkeys(f"{each.subject} – {each.object}" for each in triples)),
        }
        values = gather(None, passages=[show(chunk)], lists=known, facts=facts)
        return await ask_in(language_of(chunk, how), llm, _EXTRACTOR.name, form, values, how)

    async def extract(chunk: Chunk) -> JsonValue:
        mentions: list[Mention] = []
        triples: list[Triple] = []
        left_out: Counter[str] = Counter()
        missed = 0
        for done in range(gleanings + 1):
            try:
                draft = await one_pass(chunk, mentions, triples)
            except ServiceError as error:
                if done == 0 or error.kind not in ABOUT_ONE_CHUNK:
                    raise
                missed = 1
                break
            before = _ids(mentions, triples)
            said = read_entities(draft.entities, types, min(max_entities, max_records), left_out)
            mentions += said
            triples += read_relationships(draft.relationships, max_records - len(said), left_out)
            if _ids(mentions, triples) == before:
                break
        return to_answer(mentions, triples, left_out, **{INCOMPLETE: missed})

    return await add_graphs(
        _EXTRACTOR,
        chunks,
        stamps,
        extract,
        kb=kb,
        concurrency=concurrency,
        max_share=max_empty_share,
        only_named=only_named,
    )


def _ids(mentions: Sequence[Mention], triples: Sequence[Triple]) -> set[str]:
    named = {entity_id(mention.name) for mention in mentions}
    return named | {fact_id(each.subject, each.predicate, each.object) for each in triples}
