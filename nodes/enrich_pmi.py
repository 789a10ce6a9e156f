"""The nodes `enrich.pmi_graph` and `enrich.label_pairs`: a graph of what stands together, and labels for its pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Annotated

from pydantic import Field, JsonValue, PositiveInt

from ragbraid.nodes.enrich_forms import (
    EMPTY,
    UNKNOWN_NUMBER,
    LabelsDraft,
    add_graphs,
    relation,
    sized,
    to_answer,
    with_graph,
)
from ragbraid.nodes.enriching import Enricher, fingerprint, language_of, readable, show, stamp_chunk
from ragbraid.nodes.graph_pmi import CO_OCCURRENCE, Association, associations, view_of
from ragbraid.nodes.reasoning import Asking, PromptLanguage, Temperature, ask_in, gather
from ragbraid.nodes.terms import Term, find_terms
from ragbraid.registry.context import report_note, report_progress
from ragbraid.registry.contracts import Chunk, ChunkSet
from ragbraid.registry.graph_parts import ChunkGraph, Mention, Triple
from ragbraid.registry.knowledge import KnowledgeBase
from ragbraid.registry.node import PromptFile, node
from ragbraid.registry.resources import LLM

Pair = tuple[str, str]

_PROGRESS_STEP = 100
_LABELLER = Enricher(
    name="label_pairs",
    doing="label pairs",
    done="read for their pairs",
    one="label",
    many="labels",
    share_setting="max_failed_share",
    is_nothing=lambda said: False,
)


@node(
    "enrich.pmi_graph",
    blocking=True,
    example="""
    chunks: {use: chunk.recursive, documents: $documents}
    linked: {use: enrich.pmi_graph, chunks: $chunks, min_joint: 3}
    """,
)
def pmi_graph(
    chunks: ChunkSet,
    *,
    min_joint: Annotated[int, Field(ge=1)] = 2,
    min_pmi: Annotated[float, Field(allow_inf_nan=False)] = 0.0,
    max_terms: Annotated[int, Field(ge=2, le=100)] = 20,
) -> ChunkSet:
    """Adds to each chunk the terms that it shares with others and which of them stand together more often than by chance.

    A knowledge graph without a model: terms are names and identifiers, Chinese nouns, and short titles; two of them
    are related when at least `min_joint` chunks hold both and their pointwise mutual information lies above `min_pmi`
    (`PMI = log2(n_xy N / (n_x n_y))`, counted in chunks). The relation has no predicate, its keyword is
    `co-occurrence`, and it counts 1 for each chunk that holds both, so its weight is the number of these chunks; how
    much it is worth, the normalised PMI, follows from the graph whenever it is read.

    It counts in the chunks that it is given, so give it the whole corpus, as an ingestion has it: then an ingestion of
    what has changed gives the same graph as one from nothing.

    Args:
        chunks: the whole corpus; atoms are passed over, and a graph that a chunk has already is added to.
        min_joint: how many chunks hold both terms at least; a term in fewer chunks is left out.
        min_pmi: bound above which the PMI of a pair lies; 0 means more often than by chance.
        max_terms: how many terms one chunk gives at most, the most frequent in it first.
    """
    read = readable(chunks)
    kept = _shared_terms(read, min_joint, max_terms)
    single = Counter(key for terms in kept.values() for key in terms)
    joint = Counter(pair for terms in kept.values() for pair in combinations(sorted(terms), 2))
    pairs = {
        pair
        for pair, n_xy in joint.items()
        if n_xy >= min_joint and Association(len(read), single[pair[0]], single[pair[1]], n_xy).pmi > min_pmi
    }
    report_note(f"{len(single)} terms and {len(pairs)} pairs that stand together more often than by chance")
    linked = (
        with_graph(chunk, _graph(kept[chunk.id], pairs)) if chunk.id in kept else chunk for chunk in chunks.chunks
    )
    return chunks.model_copy(update={"chunks": tuple(linked)})


def _shared_terms(read: Sequence[Chunk], min_joint: int, max_terms: int) -> dict[str, dict[str, Term]]:
    """Return for each chunk the terms that enough chunks have, the most frequent in it first."""
    found: dict[str, dict[str, Term]] = {}
    for done, chunk in enumerate(read):
        if done % _PROGRESS_STEP == 0:
            report_progress("find terms", done, len(read))
        found[chunk.id] = find_terms(chunk)
    report_progress("find terms", len(read), len(read))
    spread = Counter(key for terms in found.values() for key in terms)
    kept = {}
    for id_, terms in found.items():
        shared = [(key, term) for key, term in terms.items() if spread[key] >= min_joint]
        shared.sort(key=lambda pair: -pair[1].count)
        kept[id_] = dict(shared[:max_terms])
    return kept


def _graph(terms: Mapping[str, Term], pairs: set[Pair]) -> ChunkGraph:
    triples = (
        Triple(subject=terms[one].name, object=terms[other].name, keywords=(CO_OCCURRENCE,))
        for one, other in combinations(sorted(terms), 2)
        if (one, other) in pairs
    )
    return ChunkGraph(mentions=tuple(Mention(name=term.name) for term in terms.values()), triples=tuple(triples))


@node(
    "enrich.label_pairs",
    cacheable=False,
    example="""
    chunks: {use: chunk.recursive, documents: $documents}
    linked: {use: enrich.pmi_graph, chunks: $chunks}
    labelled: {use: enrich.label_pairs, chunks: $linked, max_pairs: 10}
    """,
)
async def label_pairs(
    chunks: ChunkSet,
    *,
    llm: LLM,
    kb: KnowledgeBase | None = None,
    prompt: Annotated[str | None, PromptFile(("passages", "pairs", "rule", "key", "language"))] = None,
    min_joint: Annotated[int, Field(ge=1)] = 2,
    min_pmi: Annotated[float, Field(allow_inf_nan=False)] = 0.0,
    max_pairs: Annotated[int, Field(ge=1, le=100)] = 20,
    max_failed_share: Annotated[float, Field(ge=0, le=1)] = 0.5,
    concurrency: Annotated[int, Field(ge=1, le=64)] = 4,
    max_tokens: PositiveInt = 2000,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
) -> ChunkSet:
    """Asks a model what connects the pairs of terms that stand together more often than by chance.

    One question for each chunk with such pairs, about its strongest ones by normalised PMI. Where the chunk states a
    connection, keywords, a description and a strength are added to the relation of the two; the others stay as they
    are. That takes a fraction of what the extraction of a whole graph does.

    Answers are kept and failures dealt with as `enrich.extract_graph` does; a chunk whose pairs have changed is asked
    about again.

    Args:
        chunks: the whole corpus, as `enrich.pmi_graph` gives it.
        kb: the knowledge base that the chunks will go to.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        min_joint: how many chunks name both ends of a pair at least.
        min_pmi: bound above which the PMI of a pair lies.
        max_pairs: how many pairs of one chunk are asked about.
        max_failed_share: fail when the model's answers about a larger share of the chunks than this are unusable.
        concurrency: how many chunks are with the model at once.
        max_tokens: bounds what the model writes for one chunk.
        temperature: 0 makes the labels as repeatable as the model allows.
        language: language of the prompt and of what it describes; `auto` takes each chunk's.

    Raises:
        NodeInputError: the template is wrong.
        ServiceError: the model failed from the start, or on too many chunks (kind `invalid_output`).
    """
    how = Asking(prompt, max_tokens, temperature, language)
    made_by = fingerprint(llm, how, [_LABELLER.name])
    pairs = _strongest_pairs(chunks, min_joint, min_pmi, max_pairs)
    stamps = {
        chunk.id: stamp_chunk(_LABELLER, chunk, made_by, how, pairs[chunk.id])
        for chunk in chunks.chunks
        if pairs.get(chunk.id)
    }

    async def label(chunk: Chunk) -> JsonValue:
        shown = pairs[chunk.id]
        lines = {"pairs": [f"{one} – {other}" for one, other in shown]}
        values = gather(None, passages=[show(chunk)], lists=lines)
        form = sized(LabelsDraft, relationships=len(shown))
        draft = await ask_in(language_of(chunk, how), llm, _LABELLER.name, form, values, how)
        return _labels(draft, shown)

    return await add_graphs(
        _LABELLER, chunks, stamps, label, kb=kb, concurrency=concurrency, max_share=max_failed_share, only_named=False
    )


def _labels(draft: LabelsDraft, pairs: Sequence[Pair]) -> JsonValue:
    left_out: Counter[str] = Counter()
    triples = []
    for each in draft.relationships:
        if not 1 <= each.number <= len(pairs):
            left_out[UNKNOWN_NUMBER] += 1
        elif not (each.keywords or each.description.strip()):
            left_out[EMPTY] += 1
        else:
            triples.append(relation(*pairs[each.number - 1], each.keywords, each.description, each.strength))
    return to_answer((), triples, left_out)


def _strongest_pairs(chunks: ChunkSet, min_joint: int, min_pmi: float, most: int) -> dict[str, list[Pair]]:
    """Return for each chunk its pairs that are more than chance, the strongest first, in the chunk's own spelling."""
    view = view_of(chunks.chunks)
    pairs: dict[str, list[Pair]] = {}
    for id_ in associations(view, min_joint=min_joint, min_pmi=min_pmi, chunks=len(readable(chunks))):
        for part in view.facts[id_].parts:
            if CO_OCCURRENCE in part.keywords and len(found := pairs.setdefault(part.chunk_id, [])) < most:
                found.append((part.subject, part.object))
    return pairs
