"""The node `load.triples`: ready triples join the chunks that they belong to."""

from __future__ import annotations

import hashlib
import unicodedata
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from ragbraid.nodes.enrich_forms import with_graph
from ragbraid.nodes.load_triple_lines import SAMPLES, Statement, Statements, TripleFormat, read_statements
from ragbraid.registry.context import report_degraded, report_note
from ragbraid.registry.contracts import Chunk, ChunkSet, SourceRecord
from ragbraid.registry.errors import RunError
from ragbraid.registry.graph_names import normalize_name
from ragbraid.registry.graph_parts import ChunkGraph, Mention, Triple
from ragbraid.registry.node import FilePath, node

_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "ragbraid:triples")


@node(
    "load.triples",
    blocking=True,
    cacheable=False,
    example="""
    chunks: {use: chunk.recursive, documents: $documents}
    linked: {use: load.triples, chunks: $chunks, path: triples.jsonl.gz}
    """,
)
def load_triples(
    chunks: ChunkSet = ChunkSet(),  # noqa: B008 - frozen
    *,
    path: Annotated[str, FilePath()],
    format: TripleFormat = "auto",
    columns: Annotated[list[str], Field(min_length=2)] | None = None,
    metadata_field: str | None = None,
    without_passage: Literal["make_chunks", "leave_out"] = "make_chunks",
    facts_per_chunk: Annotated[int, Field(ge=1, le=1000)] = 40,
) -> ChunkSet:
    """Add ready triples to the chunks that they belong to, for the knowledge graph.

    A line of JSON, or of a table with these columns, is a triple: `subject` (or `s`, `head`), `predicate` (`p`,
    `relation`) and `object` (`o`, `tail`), and where known `subject_type`, `object_type`, `weight`, `description`,
    `keywords`. A line of JSON may also hold all of a passage: `triples`, a list of lists of three, and `entities`.

    `chunk_id`, `passage_id`, `document_id` or `source` names the passage: the id of a chunk, or the id or source of its
    document, which for passages of `load.jsonl` is the id of their line. Of several chunks of a document a triple
    goes to the first that has most of its two names. Where a passage is not among the chunks its triples are left out,
    and counted with samples in the trace.

    Triples without a passage become text: chunks of one source for each subject, a line for each fact, so that
    everything in the graph has a place that it can be cited from. `without_passage: leave_out` keeps them away.

    Args:
        chunks: the chunks that the triples belong to; none when the file is all there is.
        path: the file, UTF-8, plain or compressed with gzip; in a flow file relative to it, else to the working directory.
        format: what the file is; `auto` goes by its name and takes what is neither `.csv` nor `.tsv` for JSON Lines.
        columns: the names of the columns, for a table without a line that names them; left out, such a table has
            subject, predicate, object and passage_id.
        metadata_field: a metadata field of the chunks that names passages too.
        without_passage: what becomes of triples that name no passage.
        facts_per_chunk: how many facts without a passage one chunk holds.

    Raises:
        RunError: the file cannot be opened, is damaged, or holds no triple, or none of its passages is among the chunks.
    """
    found = read_statements(path, file_format=format, columns=columns)
    _report_bad(found, path)
    placed, missing = _place(chunks.chunks, found.read, metadata_field)
    _report_missing(missing, placed, chunks, path)
    linked = [with_graph(chunk, placed[chunk.id]) if chunk.id in placed else chunk for chunk in chunks.chunks]
    records, made = _make_chunks(found, facts_per_chunk) if without_passage == "make_chunks" else ([], [])
    facts = sum(len(graph.triples) for graph in placed.values())
    report_note(f"{facts} facts were added to {len(placed)} chunks")
    alone = sum(len(said.triples) for said in found.read if said.passage is None)
    if alone:
        became = f"became {len(made)} chunks of their own" if made else "were left out"
        report_note(f"{alone} facts without a passage {became}")
    return chunks.model_copy(
        update={
            "chunks": (*linked, *made),
            "sources": (*chunks.sources, *records),
            "scope": chunks.scope or found.scope,
            "complete": (chunks.complete or not chunks.sources) and not found.bad_lines.count,
        }
    )


def _place(
    chunks: Sequence[Chunk], statements: Iterable[Statement], metadata_field: str | None
) -> tuple[dict[str, ChunkGraph], Counter[str]]:
    """Return what belongs to each chunk, and how many triples name which missing passages."""
    passages = _passages(chunks, metadata_field)
    texts: dict[str, str] = {}
    triples: dict[str, list[Triple]] = {}
    mentions: dict[str, list[Mention]] = {}
    missing: Counter[str] = Counter()
    for said in statements:
        if said.passage is None:
            continue
        if said.passage not in passages:
            missing[said.passage] += len(said.triples)
            continue
        among = passages[said.passage]
        for triple in said.triples:
            triples.setdefault(_best(among, (triple.subject, triple.object), texts).id, []).append(triple)
        for mention in said.mentions:
            mentions.setdefault(_best(among, (mention.name,), texts).id, []).append(mention)
    ids = dict.fromkeys((*triples, *mentions))
    graphs = {
        id_: ChunkGraph(mentions=tuple(mentions.get(id_, ())), triples=tuple(triples.get(id_, ()))) for id_ in ids
    }
    return graphs, missing


def _passages(chunks: Sequence[Chunk], metadata_field: str | None) -> dict[str, list[Chunk]]:
    """Return the chunks of each passage, by everything that may name it."""
    found: dict[str, dict[str, Chunk]] = {}
    for chunk in chunks:
        if chunk.kind == "atom":
            continue
        names = {chunk.id, chunk.document_id, chunk.source}
        if metadata_field is not None and isinstance(value := chunk.metadata.get(metadata_field), str | int):
            names.add(str(value))
        for name in names:
            found.setdefault(name, {})[chunk.id] = chunk
    return {name: list(by_id.values()) for name, by_id in found.items()}


def _best(chunks: Sequence[Chunk], names: Iterable[str], texts: dict[str, str]) -> Chunk:
    """Return the first chunk that has most of the names, `texts` remembering how chunks read for that."""
    if len(chunks) == 1:
        return chunks[0]
    for chunk in chunks:
        if chunk.id not in texts:
            texts[chunk.id] = " ".join(unicodedata.normalize("NFKC", chunk.text).casefold().split())
    wanted = [normalize_name(name) for name in names]
    return max(chunks, key=lambda chunk: sum(name in texts[chunk.id] for name in wanted))


def _make_chunks(found: Statements, most: int) -> tuple[list[SourceRecord], list[Chunk]]:
    """Make chunks of the triples that name no passage, in the order in which their subjects appear."""
    subjects: dict[str, list[Triple]] = {}
    types: dict[str, list[Mention]] = {}
    for said in found.read:
        if said.passage is not None:
            continue
        for triple in said.triples:
            subjects.setdefault(normalize_name(triple.subject), []).append(triple)
        for mention in said.mentions:
            types.setdefault(normalize_name(mention.name), []).append(mention)
    records, chunks = [], []
    for stated in subjects.values():
        unique = list(dict.fromkeys(stated))
        subject = unique[0].subject
        source = f"{found.name}/{subject}"
        parts = [unique[start : start + most] for start in range(0, len(unique), most)]
        made = [_chunk(source, subject, index, part, types) for index, part in enumerate(parts)]
        # The graph counts as content: a changed type or weight is a change though the text is the same.
        content = "\x1e".join(chunk.text + repr(chunk.graph) for chunk in made)
        digest = hashlib.sha256(content.encode()).hexdigest()
        records.append(SourceRecord(source=source, document_id=made[0].document_id, content_hash=digest, title=subject))
        chunks += made
    return records, chunks


def _chunk(
    source: str, subject: str, index: int, triples: Sequence[Triple], types: Mapping[str, Sequence[Mention]]
) -> Chunk:
    text = "\n".join(_sentence(triple) for triple in triples)
    ends = dict.fromkeys(normalize_name(name) for triple in triples for name in (triple.subject, triple.object))
    mentions = dict.fromkeys(mention for end in ends for mention in types.get(end, ()))
    return Chunk(
        id=str(uuid.uuid5(_NAMESPACE, f"{source}\x1f{text}")),
        document_id=str(uuid.uuid5(_NAMESPACE, source)),
        source=source,
        index=index,
        text=text,
        title=subject,
        made_by="load.triples",
        graph=ChunkGraph(mentions=tuple(mentions), triples=tuple(triples)),
    )


def _sentence(triple: Triple) -> str:
    said = f"{triple.subject} {triple.predicate.replace('_', ' ') or '–'} {triple.object}"
    return f"{said}: {triple.description}" if triple.description else f"{said}."


def _report_bad(found: Statements, path: str) -> None:
    lines, items = found.bad_lines, found.bad_items
    if not found.read:
        raise RunError(" ".join([f"`{path}` holds no triple.", *(lines.samples or items.samples)]), kind="input")
    if lines.count:
        report_degraded(f"{lines.count} lines of `{path}` cannot be read and were left out: {' '.join(lines.samples)}")
    if items.count:
        report_note(f"{items.count} triples or entities of `{path}` were left out: {' '.join(items.samples)}")


def _report_missing(missing: Counter[str], placed: Mapping[str, ChunkGraph], chunks: ChunkSet, path: str) -> None:
    if not missing:
        return
    samples = ", ".join(f"`{name}`" for name in list(missing)[:SAMPLES])
    summary = f"{missing.total()} triples of `{path}` are about {len(missing)} passages that are not among the chunks"
    if not placed:
        known = ", ".join(f"`{record.source}`" for record in chunks.sources[:SAMPLES]) or "none"
        raise RunError(f"All {summary}: it names {samples}, the chunks come from {known}.", kind="input")
    report_degraded(f"{summary}, and were left out: {samples}")
