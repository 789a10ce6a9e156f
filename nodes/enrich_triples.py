"""The node `enrich.extract_triples`: entities, then the facts about them, as KAG and HippoRAG extract them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, PositiveInt

from ragbraid.nodes.enrich_forms import (
    SELF_LOOPS,
    TOO_MANY,
    UNKNOWN_NUMBER,
    UNREADABLE,
    EntitiesDraft,
    FactDraft,
    FactsDraft,
    M,
    OfficialNamesDraft,
    TypeNames,
    add_graphs,
    cut_name,
    is_without_graph,
    read_entities,
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
from ragbraid.registry.errors import NodeInputError, ServiceError
from ragbraid.registry.graph_names import normalize_name
from ragbraid.registry.graph_parts import Mention, Triple
from ragbraid.registry.knowledge import KnowledgeBase
from ragbraid.registry.node import PromptFile, node
from ragbraid.registry.resources import LLM

Schema = dict[Annotated[str, Field(min_length=1, max_length=64)], list[Annotated[str, Field(min_length=1)]]]

NO_TYPE = "of a type that the schema lacks"
NO_PREDICATE = "of a predicate that the schema does not allow"
AMBIGUOUS = "about a name that several entities bear"

_ALWAYS = ("passages", "rule", "key", "language")
_EXTRACTOR = Enricher(
    name="extract_triples",
    doing="extract facts",
    done="read for facts",
    one="entity",
    many="entities and facts",
    share_setting="max_empty_share",
    is_nothing=is_without_graph,
)


@dataclass(frozen=True)
class _Prompts:
    """The templates of a flow that replace ours."""

    extract_entities: str | None
    official_names: str | None
    extract_facts: str | None


@dataclass(frozen=True)
class _Reader:
    """Reads one chunk: what all of its questions share."""

    llm: LLM
    how: Asking
    prompts: _Prompts
    types: TypeNames
    schema: Mapping[str, Sequence[str]]
    official: bool
    max_entities: int
    max_facts: int

    async def read(self, chunk: Chunk) -> JsonValue:
        """Return the answer about a chunk: its entities, the facts between them, and what was left out."""
        left_out: Counter[str] = Counter()
        facts = {"types": self.types, "max_entities": self.max_entities}
        form = sized(EntitiesDraft, entities=self.max_entities)
        draft = await self._ask(chunk, "extract_entities", form, facts=facts)
        mentions = read_entities(draft.entities, self.types, self.max_entities, left_out)
        if self.schema:
            left_out[NO_TYPE] += sum(mention.type not in self.schema for mention in mentions)
            mentions = [mention for mention in mentions if mention.type in self.schema]
        missed = 0
        if self.official and mentions:
            try:
                mentions = await self._rename(chunk, mentions, left_out)
            except ServiceError as error:
                if error.kind not in ABOUT_ONE_CHUNK:
                    raise
                missed = 1
        triples = await self._facts(chunk, mentions, left_out) if mentions else []
        return to_answer(mentions, triples, left_out, **{INCOMPLETE: missed})

    async def _rename(self, chunk: Chunk, mentions: Sequence[Mention], left_out: Counter[str]) -> list[Mention]:
        lines = [f"{each.name} ({each.type}): {each.description or ''}".rstrip(": ") for each in mentions]
        form = sized(OfficialNamesDraft, names=len(mentions))
        draft = await self._ask(chunk, "official_names", form, lists={"entities": lines})
        renamed = list(mentions)
        for said in draft.names:
            name = cut_name(said.official_name)
            if not 1 <= said.number <= len(mentions):
                left_out[UNKNOWN_NUMBER] += 1
            elif not name:
                left_out[UNREADABLE] += 1
            elif name != (written := mentions[said.number - 1]).name:
                renamed[said.number - 1] = written.model_copy(update={"name": name, "aliases": (written.name,)})
        return renamed

    async def _facts(self, chunk: Chunk, mentions: Sequence[Mention], left_out: Counter[str]) -> list[Triple]:
        names = _Names(mentions, with_types=bool(self.schema))
        predicates = [f"{type_}: {', '.join(allowed)}" for type_, allowed in self.schema.items()]
        facts = {"predicates": predicates, "max_facts": self.max_facts}
        form = sized(FactsDraft, facts=self.max_facts)
        draft = await self._ask(chunk, "extract_facts", form, lists={"entities": names.lines}, facts=facts)
        found = [triple for fact in draft.facts if (triple := self._triple(fact, names, left_out)) is not None]
        left_out[TOO_MANY] += max(0, len(found) - self.max_facts)
        return found[: self.max_facts]

    def _triple(self, fact: FactDraft, names: _Names, left_out: Counter[str]) -> Triple | None:
        subject, object_, predicate = cut_name(fact.subject), cut_name(fact.object), cut_name(fact.predicate)
        if not (subject and object_ and predicate):
            left_out[UNREADABLE] += 1
            return None
        ends = names.meant(subject), names.meant(object_)
        if len(ends[0]) > 1 or len(ends[1]) > 1:
            left_out[AMBIGUOUS] += 1
            return None
        if self.schema:
            allowed = self.schema.get(ends[0][0].type, ()) if ends[0] else ()
            wanted = _predicate_key(predicate)
            predicate = next((known for known in allowed if _predicate_key(known) == wanted), "")
            if not predicate:
                left_out[NO_PREDICATE] += 1
                return None
        subject, object_ = (end[0].name if end else said for end, said in zip(ends, (subject, object_), strict=True))
        if normalize_name(subject) == normalize_name(object_):
            left_out[SELF_LOOPS] += 1
            return None
        return Triple(subject=subject, predicate=predicate, object=object_)

    async def _ask(self, chunk: Chunk, name: str, form: type[M], **material: Any) -> M:
        how = replace(self.how, prompt=getattr(self.prompts, name))
        values = gather(None, passages=[show(chunk)], **material)
        return await ask_in(language_of(chunk, how), self.llm, name, form, values, how)


class _Names:
    """The entities of a passage as a prompt lists them, and which of them a name in the answer means."""

    def __init__(self, mentions: Iterable[Mention], *, with_types: bool) -> None:
        self._official: dict[str, Mention] = {}
        self._written: dict[str, dict[str, Mention]] = {}
        self._shown: dict[str, Mention] = {}
        for mention in mentions:
            key = normalize_name(mention.name)
            if key in self._official:
                continue
            line = " = ".join((mention.name, *mention.aliases)) + (f" – {mention.type}" if with_types else "")
            self._official[key] = mention
            self._shown[line] = mention
            for alias in mention.aliases:
                self._written.setdefault(normalize_name(alias), {})[key] = mention
        self.lines = list(self._shown)

    def meant(self, name: str) -> list[Mention]:
        """Return the entities that a name can mean: by its official name, else as the passage writes it."""
        if name in self._shown:
            return [self._shown[name]]
        key = normalize_name(name)
        return [self._official[key]] if key in self._official else list(self._written.get(key, {}).values())


@node(
    "enrich.extract_triples",
    cacheable=False,
    example="""
    chunks: {use: chunk.recursive, documents: $documents}
    extracted: {use: enrich.extract_triples, chunks: $chunks, names: official}
    """,
)
async def extract_triples(
    chunks: ChunkSet,
    *,
    llm: LLM,
    kb: KnowledgeBase | None = None,
    entities_prompt: Annotated[str | None, PromptFile((*_ALWAYS, "types", "max_entities"))] = None,
    names_prompt: Annotated[str | None, PromptFile((*_ALWAYS, "entities"))] = None,
    facts_prompt: Annotated[str | None, PromptFile((*_ALWAYS, "entities", "predicates", "max_facts"))] = None,
    types: Annotated[TypeNames, Field(max_length=60)] = (),
    schema: Annotated[Schema | None, Field(min_length=1, max_length=60)] = None,
    names: Literal["as_written", "official"] = "as_written",
    max_entities: Annotated[int, Field(ge=1, le=500)] = 40,
    max_facts: Annotated[int, Field(ge=1, le=500)] = 60,
    max_empty_share: Annotated[float, Field(ge=0, le=1)] = 0.5,
    only_named: bool = False,
    concurrency: Annotated[int, Field(ge=1, le=64)] = 4,
    max_tokens: PositiveInt = 3000,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
) -> ChunkSet:
    """Adds to each chunk its entities and the facts that it states about them, for the knowledge graph.

    Two questions for each chunk, as HippoRAG (Gutiérrez et al. 2024) asks them: which entities it names, then which
    facts it states about these, as subject, predicate and object. An end of a fact that is no entity becomes one of
    type `Other`. Names and predicates are cut at 256 characters.

    With `names: official` a third question, between the two, is KAG's (Liang et al. 2024): entities get the names that
    a reference work has, what the chunk writes becomes an alias, and facts are about the official names. Two things of
    one name get what tells them apart into their names, and so stay two entities; a fact that could be about either is
    left out. KAG asks for names last, when that cannot be seen any more.

    With a `schema` an entity has one of its types, and a fact one of the predicates that the type of its subject
    allows, written as the schema writes it. What does not fit is left out.

    Reruns, failures and unreadable answers are dealt with as `enrich.extract_graph` does; what is left out of an
    answer is counted in the trace by its reason.

    Args:
        chunks: the chunks to read; atoms among them are passed over, and a graph that a chunk has already is added to.
        kb: the knowledge base that the chunks will go to.
        entities_prompt: a template file that replaces ours for entities; blocks `system` and `user`, or the user message.
        names_prompt: the same for official names.
        facts_prompt: the same for facts.
        types: the types that entities may have, anything else becomes `Other`; an empty list leaves them to the model.
        schema: the types that entities may have, each with the predicates that facts about it may have; in place of `types`.
        names: whether entities keep the names that a chunk writes, or get the official ones.
        max_entities: how many entities one chunk may give; those that follow are left out.
        max_facts: how many facts one chunk may give.
        max_empty_share: fail when a larger share of the chunks than this gets nothing.
        only_named: leave out entities whose name does not stand in the chunk, and the facts about them; small models
            invent some. Without it they are counted in the trace.
        concurrency: how many chunks are with the model at once.
        max_tokens: bounds what the model writes in one answer.
        temperature: 0 makes the facts as repeatable as the model allows.
        language: language of the prompts and of predicates; `auto` takes each chunk's.

    Raises:
        NodeInputError: a template is wrong, or both `types` and `schema` are given.
        ServiceError: the model failed from the start, or too many chunks got nothing (kind `invalid_output`).
    """
    if types and schema:
        raise NodeInputError("`types` and `schema` both say which types there are; give one of the two.", kind="input")
    prompts = _Prompts(entities_prompt, names_prompt, facts_prompt)
    used = [name for name in vars(prompts) if names == "official" or name != "official_names"]
    how = Asking(None, max_tokens, temperature, language)
    reader = _Reader(
        llm=llm,
        how=how,
        prompts=prompts,
        types=tuple(schema or types),
        schema=schema or {},
        official=names == "official",
        max_entities=max_entities,
        max_facts=max_facts,
    )
    settings = (vars(prompts), tuple(types), schema, max_entities, max_facts)
    made_by = fingerprint(llm, how, used, *settings)
    shown = replace(how, prompt=entities_prompt or names_prompt or facts_prompt)
    stamps = {chunk.id: stamp_chunk(_EXTRACTOR, chunk, made_by, shown) for chunk in readable(chunks)}
    return await add_graphs(
        _EXTRACTOR,
        chunks,
        stamps,
        reader.read,
        kb=kb,
        concurrency=concurrency,
        max_share=max_empty_share,
        only_named=only_named,
    )


def _predicate_key(predicate: str) -> str:
    return normalize_name(predicate.replace("_", " "))
