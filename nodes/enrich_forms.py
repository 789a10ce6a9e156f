"""What models are asked for when a knowledge graph is built, and how their answers become mentions and triples.

Drafts read leniently, item by item: one bad item costs that item, not the answer. What is left out is counted under
its reason, and the counts travel with the answer, so that a rerun tells the same as the run that asked.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from functools import lru_cache
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, JsonValue, create_model, model_validator

from ragbraid.nodes.enriching import INCOMPLETE, Ask, Enricher, enrich
from ragbraid.nodes.reasoning import Draft
from ragbraid.registry.context import report_degraded, report_note
from ragbraid.registry.contracts import Chunk, ChunkSet
from ragbraid.registry.errors import ServiceError
from ragbraid.registry.graph_names import normalize_name, normalize_text, tidy_name
from ragbraid.registry.graph_parts import OTHER, ChunkGraph, Mention, Triple
from ragbraid.registry.knowledge import KnowledgeBase

MAX_NAME = 256
"""Characters of a name; longer ones are cut, as LightRAG does."""
MAX_TYPE = 64
MAX_DESCRIPTION = 1_000
MAX_KEYWORDS = 10
LEFT_OUT = "left_out"
"""The key of an answer under which the counts of what was left out stand, by reason."""

UNREADABLE = "without a usable name"
TOO_MANY = "beyond the limit"
UNKNOWN_NUMBER = "for a number that stands for nothing"
EMPTY = "without content"
SELF_LOOPS = "from a thing to itself"

M = TypeVar("M", bound=BaseModel)
TypeNames = tuple[Annotated[str, Field(min_length=1, max_length=MAX_TYPE)], ...]


def _as_text(value: Any) -> str:
    """Read a text; a number as it is written, a list as its first text, anything else as no text."""
    if isinstance(value, list):
        value = next((each for each in value if isinstance(each, str)), "")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    return str(value)


def _as_texts(value: Any) -> list[str]:
    """Read a list of texts; a single text is taken for a list with commas, as LightRAG's prompt asks for."""
    if isinstance(value, str):
        value = value.replace("，", ",").replace("、", ",").split(",")
    return [_as_text(each) for each in value] if isinstance(value, list) else []


def _as_strength(value: Any) -> float:
    """Read a strength from 1 to 10; what is outside is moved to the nearest bound, what is no number counts as 1."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return 1.0
    return min(max(number, 1.0), 10.0) if math.isfinite(number) else 1.0


def _as_number(value: Any) -> int:
    """Read the number of an item; 0, which no item has, for what is none."""
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return 0


NameText = Annotated[str, BeforeValidator(_as_text), Field(json_schema_extra={"minLength": 1, "maxLength": MAX_NAME})]
TypeText = Annotated[str, BeforeValidator(_as_text), Field(json_schema_extra={"maxLength": MAX_TYPE})]
AboutText = Annotated[str, BeforeValidator(_as_text), Field(json_schema_extra={"maxLength": 500})]
Keywords = Annotated[list[str], BeforeValidator(_as_texts), Field(json_schema_extra={"maxItems": MAX_KEYWORDS})]
Strength = Annotated[float, BeforeValidator(_as_strength), Field(json_schema_extra={"minimum": 1, "maximum": 10})]
Number = Annotated[int, BeforeValidator(_as_number)]


class Item(Draft):
    """An item of a list in an answer; what is no object reads as an item without content."""

    @model_validator(mode="before")
    @classmethod
    def _lenient(cls, value: Any) -> Any:
        return value if isinstance(value, Mapping) else {}


class EntityDraft(Item):
    """One entity."""

    name: NameText = Field(default="", description="the name, as the passage writes it")
    type: TypeText = Field(default="", description="the type")
    description: AboutText = Field(default="", description="what the passage says about it, in one or two sentences")


class RelationshipDraft(Item):
    """One relationship between two entities."""

    source: NameText = Field(default="", description="the name of one entity")
    target: NameText = Field(default="", description="the name of the other entity")
    keywords: Keywords = Field(default_factory=list, description="a few words for the kind and topic of relationship")
    description: AboutText = Field(default="", description="what connects the two, in one sentence")
    strength: Strength = Field(default=1.0, description="how closely they are connected, from 1 to 10")


class GraphDraft(Draft):
    """The entities of the passage and the relationships between them."""

    entities: list[EntityDraft] = Field(description="the entities; empty when there are none")
    relationships: list[RelationshipDraft] = Field(description="the relationships; empty when there are none")


class EntitiesDraft(Draft):
    """The entities of the passage."""

    entities: list[EntityDraft] = Field(description="the entities; empty when there are none")


class FactDraft(Item):
    """One fact, as subject, predicate and object."""

    subject: NameText = Field(default="", description="whom or what the fact is about")
    predicate: NameText = Field(default="", description="what is said of it, in a few words such as `was born in`")
    object: NameText = Field(default="", description="the other thing, or the value")


class FactsDraft(Draft):
    """The facts that the passage states."""

    facts: list[FactDraft] = Field(description="the facts; empty when the passage states none")


class OfficialNameDraft(Item):
    """The official name of one entity."""

    number: Number = Field(default=0, description="the number of the entity in the list")
    official_name: NameText = Field(default="", description="its full and unambiguous name")


class OfficialNamesDraft(Draft):
    """The official names of the entities."""

    names: list[OfficialNameDraft] = Field(description="one for each entity of the list")


class LabelDraft(Item):
    """How the two things of one pair are connected."""

    number: Number = Field(default=0, description="the number of the pair in the list")
    keywords: Keywords = Field(default_factory=list, description="a few words for the kind and topic of relationship")
    description: AboutText = Field(default="", description="what connects the two, in one sentence")
    strength: Strength = Field(default=1.0, description="how closely they are connected, from 1 to 10")


class LabelsDraft(Draft):
    """The pairs between which the passage states a connection."""

    relationships: list[LabelDraft] = Field(description="empty when the passage connects none of the pairs")


@lru_cache(maxsize=256)
def sized(draft: type[M], **most: int) -> type[M]:
    """Return the draft with the lengths of its lists in its schema, which bounds what a model with a grammar writes.

    A longer answer is still read; the reader takes from it what it may hold.
    """
    fields: Any = {}
    for name, number in most.items():
        info = deepcopy(draft.model_fields[name])
        info.json_schema_extra = {"maxItems": number}
        fields[name] = (info.annotation, info)
    return create_model(draft.__name__, __base__=draft, __doc__=draft.__doc__, **fields)


def cut_name(text: str) -> str:
    """Return a name as it is kept: tidied and cut; empty for what holds no letter and no digit."""
    name = tidy_name(text)[:MAX_NAME].strip()
    return name if normalize_name(name) else ""


def choose_type(said: str, allowed: TypeNames) -> str:
    """Return the type that a model means: the first of a list with commas, as `allowed` writes it, else `OTHER`.

    Where no types are given any will do; one that is written in small or in capital letters only gets one capital.
    """
    first = tidy_name(said.replace("，", ",").split(",")[0])[:MAX_TYPE].strip()
    wanted = _type_key(first)
    if allowed:
        return next((name for name in allowed if _type_key(name) == wanted), OTHER)
    if not wanted:
        return OTHER
    return first.capitalize() if first.islower() or first.isupper() else first


def _type_key(name: str) -> str:
    return "".join(character for character in normalize_name(name) if character.isalnum())


def clip(text: str) -> str | None:
    """Return a description as it is kept, or None for an empty one."""
    return collapsed(text)[:MAX_DESCRIPTION].strip() or None


def collapsed(text: str) -> str:
    """Return a text with its white space collapsed."""
    return " ".join(text.split())


def read_entities(drafts: Sequence[EntityDraft], types: TypeNames, most: int, left_out: Counter[str]) -> list[Mention]:
    """Turn entities of an answer into mentions, at most so many; what is left out is counted."""
    found: list[Mention] = []
    for draft in drafts:
        if name := cut_name(draft.name):
            found.append(Mention(name=name, type=choose_type(draft.type, types), description=clip(draft.description)))
        else:
            left_out[UNREADABLE] += 1
    left_out[TOO_MANY] += max(0, len(found) - most)
    return found[:most]


def read_relationships(drafts: Sequence[RelationshipDraft], most: int, left_out: Counter[str]) -> list[Triple]:
    """Turn relationships of an answer into triples without a predicate, at most so many; what is left out is counted."""
    found: list[Triple] = []
    for draft in drafts:
        ends = cut_name(draft.source), cut_name(draft.target)
        if not all(ends):
            left_out[UNREADABLE] += 1
        elif normalize_name(ends[0]) == normalize_name(ends[1]):
            left_out[SELF_LOOPS] += 1
        else:
            found.append(relation(*ends, draft.keywords, draft.description, draft.strength))
    left_out[TOO_MANY] += max(0, len(found) - most)
    return found[:most]


def relation(source: str, target: str, keywords: Iterable[str], description: str, strength: float) -> Triple:
    """Return a relation in no direction, its strength as its weight."""
    words = [word[:MAX_NAME] for word in map(collapsed, keywords) if word]
    return Triple(
        subject=source,
        object=target,
        keywords=tuple(dict.fromkeys(words))[:MAX_KEYWORDS],
        description=clip(description),
        weight=strength,
    )


def to_answer(mentions: Iterable[Mention], triples: Iterable[Triple], left_out: Counter[str], **more: int) -> JsonValue:
    """Return the answer about a chunk as it is kept beside it: its graph, and the counts of what was left out.

    Raises:
        ServiceError: there was something in the answer, but nothing that can be read (kind `invalid_output`).
    """
    mentions, triples = tuple(mentions), tuple(triples)
    if left_out[UNREADABLE] and not mentions and not triples:
        raise ServiceError("None of the items that the model gave has a usable name.", kind="invalid_output")
    graph = ChunkGraph(mentions=tuple(dict.fromkeys(mentions)), triples=tuple(dict.fromkeys(triples)))
    answer: dict[str, JsonValue] = graph.model_dump(mode="json", exclude_defaults=True)
    counts: dict[str, JsonValue] = {reason: count for reason, count in sorted(left_out.items()) if count}
    return answer | ({LEFT_OUT: counts} if counts else {}) | {name: number for name, number in more.items() if number}


def graph_of(answer: JsonValue) -> ChunkGraph:
    """Return the graph of an answer that `to_answer` made; an empty one for anything else."""
    if not isinstance(answer, dict):
        return ChunkGraph()
    return ChunkGraph.model_validate({name: answer[name] for name in ("mentions", "triples") if name in answer})


def with_graph(chunk: Chunk, graph: ChunkGraph) -> Chunk:
    """Return the chunk with this graph added to what it contributes already; what is there twice is there once."""
    before = chunk.graph or ChunkGraph()
    mentions = tuple(dict.fromkeys((*before.mentions, *graph.mentions)))
    triples = tuple(dict.fromkeys((*before.triples, *graph.triples)))
    if not mentions and not triples:
        return chunk
    return chunk.model_copy(update={"graph": ChunkGraph(mentions=mentions, triples=triples)})


def is_without_graph(answer: JsonValue) -> bool:
    """Whether an answer holds no entity and no fact."""
    return not isinstance(answer, dict) or not (answer.get("mentions") or answer.get("triples"))


async def add_graphs(
    enricher: Enricher,
    chunks: ChunkSet,
    stamps: Mapping[str, str],
    ask: Ask,
    *,
    kb: KnowledgeBase | None,
    concurrency: int,
    max_share: float,
    only_named: bool,
) -> ChunkSet:
    """Ask a model about chunks as `enrich` does, and add the graphs in its answers to them.

    With `only_named` entities whose name does not stand in their chunk are left out, and the facts about them.
    """
    read = await enrich(enricher, chunks, stamps, ask, kb=kb, concurrency=concurrency, max_share=max_share)
    invented = 0

    def add(chunk: Chunk, said: JsonValue) -> list[Chunk]:
        nonlocal invented
        graph = graph_of(said)
        named, count = keep_named(chunk, graph)
        invented += count
        return [with_graph(chunk, named if only_named else graph)]

    done = read.attach(add)
    if invented:
        fate = "and were left out" if only_named else "(`only_named: true` leaves such out)"
        report_note(f"{invented} names of entities do not stand in the chunk that they were read in {fate}")
    _report_found(read.said.values())
    return done


def keep_named(chunk: Chunk, graph: ChunkGraph) -> tuple[ChunkGraph, int]:
    """Return what of a graph is about entities whose name or alias stands in the chunk, and how many others there are.

    Text, title and headings count; case, width and blanks do not.
    """
    text = normalize_text(" ".join([chunk.text, chunk.title or "", *chunk.section_path]))
    spellings: dict[str, set[str]] = {}
    for mention in graph.mentions:
        spellings.setdefault(normalize_name(mention.name), set()).update(map(normalize_name, mention.aliases))
    for name in (name for triple in graph.triples for name in (triple.subject, triple.object)):
        spellings.setdefault(normalize_name(name), set())
    named = {name for name, aliases in spellings.items() if any(each in text for each in (name, *aliases) if each)}
    kept = ChunkGraph(
        mentions=tuple(each for each in graph.mentions if normalize_name(each.name) in named),
        triples=tuple(
            each for each in graph.triples if named >= {normalize_name(each.subject), normalize_name(each.object)}
        ),
    )
    return kept, len(spellings) - len(named)


def _report_found(answers: Iterable[JsonValue]) -> None:
    """Leave in the trace how many entities and facts the chunks gave, and what was left out for which reason."""
    mentions = triples = incomplete = 0
    left_out: Counter[str] = Counter()
    for answer in answers:
        if isinstance(answer, dict):
            mentions += len(_listed(answer.get("mentions")))
            triples += len(_listed(answer.get("triples")))
            incomplete += bool(answer.get(INCOMPLETE))
            counts = answer.get(LEFT_OUT)
            left_out.update({k: v for k, v in counts.items() if isinstance(v, int)} if isinstance(counts, dict) else {})
    report_note(f"{mentions} mentions of entities and {triples} facts were found")
    if incomplete:
        report_degraded(f"{incomplete} chunks were read in part; the next run asks about them again")
    if left_out:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(left_out.items()))
        report_note(f"{left_out.total()} items of the model's answers were left out: {reasons}")


def _listed(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []
