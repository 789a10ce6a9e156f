"""What an index run tells: what became of each source, where it moved, and what the reader should know besides."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from ragbraid.registry.contracts import IndexReport, SourceReport
from ragbraid.registry.knowledge import DocumentRecord, KnowledgeBaseInfo, SourceChunks, UpdatePlan

EMPTY = "it holds no text, so there is nothing to find in it"


def find_moved(
    missing: Iterable[str], recorded: Sequence[DocumentRecord], given: Sequence[SourceChunks]
) -> dict[str, str]:
    """Pair sources that are missing from a run with new ones that have their content: they were moved, not lost.

    Args:
        missing: recorded sources that the run did not bring.
        recorded: every source of the index before the run.
        given: the sources that the run brings.

    Returns:
        The new name of each missing source that has one; a new source stands for one missing source only.
    """
    before = {record.source: record.content_hash for record in recorded}
    new_places: dict[str, list[str]] = defaultdict(list)
    for each in reversed(given):
        if each.record.source not in before:
            new_places[each.record.content_hash].append(each.record.source)
    moved = {}
    for source in missing:
        if places := new_places.get(before[source]):
            moved[source] = places.pop()
    return moved


def find_namesakes(
    given: Sequence[SourceChunks], before: Mapping[str, DocumentRecord], *, scope: str, root: str
) -> dict[str, str]:
    """Find sources that would replace another one of the same name, and say why they are left out.

    A source of the same content, of the same folder or of the same scope is the same source, wherever it lies now.

    Args:
        given: the sources that the run brings.
        before: the records of the index before the run.
        scope: what the loader looked at.
        root: the folder that the sources' names are relative to; empty where they are not.

    Returns:
        The reason for each such source.
    """
    found = {}
    for each in given:
        record = before.get(each.record.source)
        if record is None or not root or not record.root or record.root == root or record.scope in ("", scope):
            continue
        if record.content_hash != each.record.content_hash:
            found[record.source] = (
                f"another source of this name is indexed, from `{record.root}`. Load one of the folders with a `prefix`, or, "
                f'if this is the same folder at a new place, with `scope: "{record.scope}"`'
            )
    return found


def describe_sources(
    plan: UpdatePlan,
    given: Sequence[SourceChunks],
    before: Mapping[str, DocumentRecord],
    *,
    scope: str,
    moved: Mapping[str, str],
    repeated: Mapping[str, int],
) -> list[SourceReport]:
    """Return the plan's reports, each with its repeated chunks and with the reason where one helps.

    Args:
        plan: what the update did.
        given: the sources that the run brought.
        before: the records of the index before the run.
        scope: what the loader looked at.
        moved: new names of deleted sources.
        repeated: how many chunks a source repeats.
    """
    contents = {each.record.source: each for each in given}
    reports = []
    for report in plan.sources:
        source, reason = report.source, None
        if source in contents:
            reason = _why_given(contents[source], before.get(source), scope)
        elif source in moved:
            reason = f"its content is now in {moved[source]}"
        unchanged = report.chunks_unchanged + repeated.get(source, 0)
        reports.append(report.model_copy(update={"reason": reason, "chunks_unchanged": unchanged}))
    return reports


def note_left_behind(
    recorded: Iterable[DocumentRecord], present: Collection[str], *, scope: str, removed: Collection[str]
) -> list[str]:
    """Say what stays indexed of a folder from which this run took sources over, since it may be this one, moved."""
    records = [record for record in recorded if record.scope not in ("", scope)]
    taken_from = {record.scope for record in records if record.source in present}
    left: dict[str, int] = defaultdict(int)
    for record in records:
        if record.scope in taken_from and record.source not in present and record.source not in removed:
            left[record.scope] += 1
    return [
        f"Sources of `{old}` stay indexed that are not in `{scope}`, where others of them are now: {count}. "
        f'If this is the same folder at a new place, load it with `scope: "{old}"`.'
        for old, count in sorted(left.items())
    ]


def total(
    info: KnowledgeBaseInfo, reports: Sequence[SourceReport], *, embedded: int, empty: int, notes: Sequence[str]
) -> IndexReport:
    """Add up what became of the sources."""

    def count(status: str) -> int:
        return sum(report.status == status for report in reports)

    return IndexReport(
        knowledge_base=info.name,
        generation=info.generation,
        sources=tuple(reports),
        added=count("added"),
        updated=count("updated"),
        unchanged=count("unchanged"),
        deleted=count("deleted"),
        failed=count("failed"),
        empty=empty,
        chunks_added=sum(report.chunks_added for report in reports),
        chunks_deleted=sum(report.chunks_deleted for report in reports),
        chunks_unchanged=sum(report.chunks_unchanged for report in reports),
        atoms_added=sum(report.atoms_added for report in reports),
        atoms_deleted=sum(report.atoms_deleted for report in reports),
        atoms_unchanged=sum(report.atoms_unchanged for report in reports),
        entities=info.entities,
        facts=info.facts,
        embedded=embedded,
        notes=tuple(notes),
    )


def _why_given(given: SourceChunks, before: DocumentRecord | None, scope: str) -> str | None:
    if not given.chunks:
        return EMPTY
    if before is None or before.scope in ("", scope):
        return None
    if before.content_hash == given.record.content_hash:
        return f"until now of `{before.scope}`"
    return f"replaces the source of this name of `{before.scope}`"
