"""The `index.*` nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Literal, TypeVar

from pydantic import Field, PositiveInt

from ragbraid.nodes.batches import batches
from ragbraid.nodes.index_report import describe_sources, find_moved, find_namesakes, note_left_behind, total
from ragbraid.registry.context import report_degraded, report_progress
from ragbraid.registry.contracts import Chunk, ChunkSet, IndexReport, SourceRecord, SourceReport
from ragbraid.registry.errors import NodeInputError, RunError
from ragbraid.registry.graph_store import GraphRecord
from ragbraid.registry.knowledge import DocumentRecord, IndexUpdate, KnowledgeBase, SourceChunks
from ragbraid.registry.node import node
from ragbraid.registry.resources import Embedder, SparseEncoder

T = TypeVar("T")

Cleanup = Literal["none", "incremental", "scoped_full", "full"]


@node(
    "index.upsert",
    blocking=True,
    cacheable=False,
    example="""
    docs: {use: load.files, path: data}
    chunks: {use: chunk.recursive, documents: $docs}
    store: {use: index.upsert, chunks: $chunks, cleanup: scoped_full}
    """,
)
def upsert(
    chunks: ChunkSet,
    *,
    kb: KnowledgeBase,
    embedder: Embedder,
    sparse: SparseEncoder,
    cleanup: Cleanup = "incremental",
    batch_size: PositiveInt = 64,
    neighbour_min_score: Annotated[float, Field(gt=0, le=1)] | None = 0.95,
    max_delete_share: Annotated[float, Field(ge=0, le=1)] = 0.5,
    allow_mass_delete: bool = False,
    force: bool = False,
) -> IndexReport:
    """Bring a knowledge base in line with a chunk set, embedding only texts that it does not hold yet.

    A text that has moved to another source keeps its vector. The update becomes visible all at once when it is
    complete; until then, and when it is cut off, searches see the index as it was before. A run after a cut-off one
    continues where that stopped. Modes of clean-up as in LangChain's indexing API, except that a source counts as seen
    only as a whole.

    Args:
        chunks: all chunks of every source that was read, with the sources themselves.
        kb: the knowledge base; made when there is none.
        embedder: embeds new and changed chunks.
        sparse: makes the term weights.
        cleanup: what goes: `none` deletes nothing, old chunks of a changed source stay; `incremental` replaces the
            chunks of changed sources; `scoped_full` also removes sources of the same scope that are missing from this
            run; `full` removes every source that is missing from this run.
        batch_size: texts per call of the embedder.
        neighbour_min_score: cosine from which on the names of two entities of the knowledge graph count as nearly the
            same (synonym edges); numbers and dates are not compared. What fits depends on the embedder: HippoRAG 2 has
            0.8 for NV-Embed-v2, the packaged model gives that to names that have nothing in common. None compares none.
        max_delete_share: refuse to remove more than this share of the sources that `full` or `scoped_full` look at;
            one whose content this run brings under a new name has moved and does not count.
        allow_mass_delete: remove however many sources are missing.
        force: embed and write every chunk again, also of unchanged sources.

    Raises:
        NodeInputError: a chunk belongs to no source of the set, or two chunks share an id.
        RunError: of kind `refused`, when `full` gets an incomplete set or too many sources would go.
        SettingsError: another model filled the knowledge base.
        ServiceError: another update is under way, or store or embedder failed; a rerun continues.
    """
    failed = {failure.source: failure.reason for failure in chunks.failures}
    sources, repeated = group_by_source(chunks, skip=frozenset(failed))
    with kb.update(embedder=embedder, sparse=sparse, scope=chunks.scope, root=chunks.root) as update:
        before = {record.source: record for record in update.sources()}
        if cleanup != "full":  # then everything that this run does not bring goes anyway
            failed |= find_namesakes(sources, before, scope=chunks.scope, root=chunks.root)
            sources = [given for given in sources if given.record.source not in failed]
        recorded = list(before.values())
        present = {given.record.source for given in sources} | failed.keys()
        remove, notes = _missing_sources(recorded, present, chunks, cleanup)
        moved = find_moved(remove, recorded, sources)
        if not allow_mass_delete:
            lost = [source for source in remove if source not in moved]
            covered = [
                record for record in recorded if _is_covered(record, chunks, cleanup) or record.source in present
            ]
            _refuse_mass_delete(lost, len(covered), max_delete_share)
        if cleanup == "scoped_full":
            notes += note_left_behind(recorded, present - failed.keys(), scope=chunks.scope, removed=remove)
        plan = update.plan(sources, remove=remove, keep_old_chunks=cleanup == "none", force=force)
        _embed(update, plan.to_embed, embedder, batch_size)
        records = update.plan_graph(neighbour_min_score=neighbour_min_score)
        _embed_graph(update, records, embedder, batch_size)
        update.commit()
    reports = describe_sources(plan, sources, before, scope=chunks.scope, moved=moved, repeated=repeated)
    reports += [SourceReport(source=source, status="failed", reason=reason) for source, reason in failed.items()]
    empty = sum(not given.chunks for given in sources)
    return total(kb.info(), reports, embedded=len(plan.to_embed) + len(records), empty=empty, notes=notes)


def group_by_source(chunks: ChunkSet, *, skip: frozenset[str]) -> tuple[list[SourceChunks], dict[str, int]]:
    """Give each source its chunks, in order; a chunk that a source repeats unchanged is taken once.

    Args:
        chunks: the set.
        skip: sources that failed, which are left alone whatever the set holds of them.

    Returns:
        The sources, and how many repetitions each had.

    Raises:
        NodeInputError: a chunk belongs to no source of the set, or ids or sources clash.
    """
    records: dict[str, SourceRecord] = {}
    for record in chunks.sources:
        if records.setdefault(record.source, record) != record:
            raise NodeInputError(f"The chunk set lists the source `{record.source}` twice, with different content.")
    by_source: dict[str, list[Chunk]] = {source: [] for source in records}
    seen: dict[str, Chunk] = {}
    repeated: dict[str, int] = {}
    for chunk in chunks.chunks:
        if chunk.source not in records:
            raise NodeInputError(f"Chunk `{chunk.id}` belongs to `{chunk.source}`, which the chunk set does not list.")
        first = seen.get(chunk.id)
        if first is None:
            seen[chunk.id] = chunk
            by_source[chunk.source].append(chunk)
        elif (first.source, first.text, first.text_to_embed) == (chunk.source, chunk.text, chunk.text_to_embed):
            repeated[chunk.source] = repeated.get(chunk.source, 0) + (chunk.kind != "atom")
        else:
            raise NodeInputError(
                f"Two different chunks have the id `{chunk.id}`: one of `{first.source}`, one of `{chunk.source}`."
            )
    given = [SourceChunks(records[source], tuple(own)) for source, own in by_source.items() if source not in skip]
    return given, repeated


def _missing_sources(
    recorded: Sequence[DocumentRecord], present: set[str], chunks: ChunkSet, cleanup: Cleanup
) -> tuple[list[str], list[str]]:
    """Return the recorded sources that the run did not bring and that the clean-up mode removes, and what to tell."""
    if cleanup in ("none", "incremental"):
        return [], []
    missing = [
        record.source for record in recorded if _is_covered(record, chunks, cleanup) and record.source not in present
    ]
    if chunks.complete:
        return missing, []
    if cleanup == "full":
        raise RunError(
            "The clean-up `full` needs a loader that saw everything, and this chunk set is not complete; "
            "a source that was overlooked would be deleted.",
            kind="refused",
            hint="Load the whole folder, or use `cleanup: incremental`.",
        )
    if not missing:
        return [], []
    note = (
        f"{len(missing)} sources of `{chunks.scope}` were not found but stay indexed, because the loader could not "
        "see its whole scope."
    )
    report_degraded(note)
    return [], [note]


def _refuse_mass_delete(lost: Sequence[str], covered: int, max_delete_share: float) -> None:
    """Stop before an empty folder or a wrong path empties an index."""
    if len(lost) > max_delete_share * covered:
        raise RunError(
            f"{len(lost)} of {covered} indexed sources are missing from this run (for example `{lost[0]}`), more "
            f"than the share of {max_delete_share:g} that may be deleted at once; nothing was changed.",
            kind="refused",
            hint="Check what was loaded; if they are really gone, run again with `allow_mass_delete: true`.",
        )


def _is_covered(record: DocumentRecord, chunks: ChunkSet, cleanup: Cleanup) -> bool:
    return cleanup == "full" or record.scope == chunks.scope


def _embed(update: IndexUpdate, chunks: Sequence[Chunk], embedder: Embedder, batch_size: int) -> None:
    """Embed and write in batches of texts of like length, whose padding costs an embedder least.

    Atoms come last: a chunk carries what a model said about it, and once it is stored nothing of that is asked again.
    """
    ordered = sorted(chunks, key=lambda c: (c.kind == "atom", len(c.text_to_embed), c.source, c.id))
    for done, batch in _counted(batches(ordered, batch_size)):
        update.write(batch, embedder.embed_documents([chunk.text_to_embed for chunk in batch]))
        report_progress("embedding", done, len(chunks))


def _embed_graph(update: IndexUpdate, records: Sequence[GraphRecord], embedder: Embedder, batch_size: int) -> None:
    ordered = sorted(records, key=lambda record: (len(record.text), record.place))
    for done, batch in _counted(batches(ordered, batch_size)):
        update.write_graph(batch, embedder.embed_documents([record.text for record in batch]))
        report_progress("embedding the knowledge graph", done, len(records))


def _counted(groups: Iterable[list[T]]) -> Iterator[tuple[int, list[T]]]:
    """Yield each group with the number of items up to its end."""
    done = 0
    for group in groups:
        done += len(group)
        yield done, group
