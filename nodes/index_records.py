"""What an index stores about sources and chunks, and the comparison of what is wanted with what is stored.

Pure functions over frozen values; `index_update` does the reading and writing.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ragbraid.nodes.store import ATOM, Payload, Point, chunk_payload, point_id
from ragbraid.registry.contracts import Chunk, SourceReport
from ragbraid.registry.errors import NodeInputError
from ragbraid.registry.knowledge import DocumentRecord, SourceChunks

AVERAGE_GRID = 1.1
"""Ratio of neighbouring values of the grid that the average chunk length is rounded to."""

ChunkKey = tuple[str, str]
"""Source and chunk id."""


@dataclass(frozen=True, slots=True)
class WantedChunk:
    """A chunk that a source shall have, with what decides whether anything of it must be written or embedded."""

    chunk: Chunk
    digest: str
    embed_hash: str
    tokens: int = -1
    """Length in tokens of the sparse encoder; negative until counted, 0 for atoms, which have no term weights."""

    @property
    def key(self) -> ChunkKey:
        """Source and chunk id."""
        return self.chunk.source, self.chunk.id

    @property
    def is_atom(self) -> bool:
        """Whether it is a question of another chunk."""
        return self.chunk.kind == "atom"

    def average_step(self, step: int) -> int:
        """Return the step of the average that it is stored with: atoms depend on none."""
        return 0 if self.is_atom else step


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A chunk's point as it is stored, without texts and vectors."""

    id: str
    source: str
    chunk_id: str
    digest: str
    embed_hash: str
    average_step: int
    tokens: int
    is_atom: bool = False

    @classmethod
    def from_point(cls, point: Point) -> StoredChunk:
        """Read the point of a chunk."""
        payload = point.payload
        return cls(
            id=point.id,
            source=payload["source"],
            chunk_id=payload["chunk_id"],
            digest=payload["digest"],
            embed_hash=payload["embed_hash"],
            average_step=payload["average_step"],
            tokens=payload["tokens"],
            is_atom=payload["kind"] == ATOM,
        )

    @property
    def key(self) -> ChunkKey:
        """Source and chunk id."""
        return self.source, self.chunk_id


@dataclass(frozen=True, slots=True)
class Tally:
    """How many chunks, or atoms, of a source are added, deleted and unchanged."""

    added: int = 0
    deleted: int = 0
    unchanged: int = 0


@dataclass(frozen=True, slots=True)
class SourceDraft:
    """What a source shall be: its record, and its chunks with their atoms."""

    record: DocumentRecord
    chunks: tuple[WantedChunk, ...]


@dataclass
class Work:
    """Everything that an update has found to do; `step` is the place of its average length on the grid."""

    step: int = 0
    embed: dict[ChunkKey, WantedChunk] = field(default_factory=dict)
    copy: list[tuple[WantedChunk, str]] = field(default_factory=list)
    """Chunks that are written anew with the vector of the stored point named beside."""
    adopted: set[str] = field(default_factory=set)
    """Points that a killed update wrote and that are right as they are."""
    retire: list[str] = field(default_factory=list)
    records: list[DocumentRecord] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)


def embed_hash(embedder: str, text: str) -> str:
    """Identify a vector: the model and the text that it was made from."""
    return _sha256(f"{embedder}\x00{text}")


def chunk_digest(chunk: Chunk) -> str:
    """Identify everything that is stored of a chunk."""
    payload = chunk_payload(chunk, gen_from=0, gen_to=0)
    return _sha256(json.dumps(payload, sort_keys=True, ensure_ascii=False, separators=(",", ":")))


def chunk_point_id(source: str, chunk_id: str, generation: int) -> str:
    """Return the id of the point that holds a chunk as a generation wrote it.

    The source is part of it: a moved file may bring the chunk ids of its old place while both are still there.
    """
    return point_id("chunk", f"{source}\x1f{chunk_id}", generation)


def record_point_id(record: DocumentRecord) -> str:
    """Return the id of the point that holds a document record."""
    return point_id("document", record.source, record.generation)


def stored_payload(wanted: WantedChunk, *, step: int, generation: int) -> Payload:
    """Lay out a chunk's point: the chunk, and what the next update compares with."""
    payload = chunk_payload(wanted.chunk, gen_from=generation)
    payload.update(digest=wanted.digest, embed_hash=wanted.embed_hash, tokens=wanted.tokens)
    return payload | {"average_step": wanted.average_step(step)}


def average_step(tokens: int, chunks: int) -> int:
    """Return the step of the grid nearest to the average chunk length of a corpus.

    Weights of BM25 depend on the average, so every change of a corpus would change every stored weight. On a grid of
    steps of 10 % they stay until the average has really moved, and still depend on the corpus alone.
    """
    average = max(tokens / chunks, 1.0) if chunks else 1.0
    return round(math.log(average, AVERAGE_GRID))


def average_at(step: int) -> float:
    """Return the average chunk length, in tokens, that a step of the grid stands for."""
    return round(AVERAGE_GRID**step, 6)


def draft_source(
    given: SourceChunks,
    *,
    embedder: str,
    scope: str,
    root: str = "",
    old_chunk_ids: Sequence[str] = (),
    old_atoms: int = 0,
) -> SourceDraft:
    """Work out what a source shall be, its tokens not yet counted.

    Args:
        given: the source with its chunks.
        embedder: identity of the model.
        scope: what its loader looked at.
        root: the folder that its name is relative to.
        old_chunk_ids: chunks that it no longer gives and that stay.
        old_atoms: how many atoms it no longer gives and stay.

    Raises:
        NodeInputError: two of its chunks have one id, or an atom has no chunk.
    """
    chunks = tuple(
        WantedChunk(chunk, chunk_digest(chunk), embed_hash(embedder, chunk.text_to_embed)) for chunk in given.chunks
    )
    if len({item.key for item in chunks}) < len(chunks):
        raise NodeInputError(f"Two chunks of the source `{given.record.source}` have one id.")
    fresh = tuple(item.chunk.id for item in chunks if not item.is_atom)
    _require_parents(given.chunks, frozenset(fresh))
    made_by = sorted({item.chunk.made_by for item in chunks})
    record = DocumentRecord(
        source=given.record.source,
        document_id=given.record.document_id,
        content_hash=given.record.content_hash,
        scope=scope,
        root=root,
        pipeline=made_by[0] if len(made_by) == 1 else _sha256("\x1f".join(made_by)) if made_by else "",
        state="committed",
        chunk_ids=(*fresh, *_without(old_chunk_ids, fresh)),
        atoms=len(chunks) - len(fresh) + old_atoms,
        old_atoms=old_atoms,
        digest=_sha256("\x1f".join(item.digest for item in chunks)),
        title=given.record.title,
    )
    return SourceDraft(record, chunks)


def is_unchanged(draft: DocumentRecord, before: DocumentRecord | None) -> bool:
    """Whether a source would be recorded exactly as it is: content, pipeline and everything stored of its chunks."""
    if before is None:
        return False
    return draft == before.model_copy(update={"generation": draft.generation, "tokens": draft.tokens})


def compare(
    wanted: Sequence[WantedChunk],
    before: Mapping[ChunkKey, StoredChunk],
    killed: Mapping[ChunkKey, StoredChunk],
    donors: Mapping[str, str],
    work: Work,
    *,
    keep_old_chunks: bool,
    force: bool,
) -> tuple[Tally, Tally]:
    """Add to `work` what one changed source needs.

    Args:
        wanted: all chunks that the source shall have.
        before: its committed chunks.
        killed: what a killed update wrote, for all sources.
        donors: a committed point of any source for every `embed_hash` whose vector is stored under another key.
        work: collects the result; its `step` is set.
        keep_old_chunks: whether committed chunks that are no longer wanted stay.
        force: embed every chunk again.

    Returns:
        What happens to its chunks and to its atoms; one with another text to embed is added and deleted.
    """
    added = set()
    replaced = set()
    for item in wanted:
        old, half, step = before.get(item.key), killed.get(item.key), item.average_step(work.step)
        has_vector = old is not None and old.embed_hash == item.embed_hash
        if not has_vector:
            added.add(item.key)
        if not force and old is not None and (old.digest, old.average_step) == (item.digest, step):
            continue
        if old is not None:
            replaced.add(item.key)
        if force:
            work.embed[item.key] = item
        elif half is not None and half.embed_hash == item.embed_hash:
            if (half.digest, half.average_step) == (item.digest, step):
                work.adopted.add(half.id)
            else:
                work.copy.append((item, half.id))
        elif old is not None and has_vector:
            work.copy.append((item, old.id))
        elif (donor := donors.get(item.embed_hash)) is not None:
            work.copy.append((item, donor))
        else:
            work.embed[item.key] = item
    gone = set() if keep_old_chunks else before.keys() - {item.key for item in wanted}
    work.retire += [before[key].id for key in sorted(replaced | gone)]
    chunks, atoms = (
        _tally([item.key for item in wanted if item.is_atom == is_atom], before, added, _of_kind(before, gone, is_atom))
        for is_atom in (False, True)
    )
    return chunks, atoms


def hashes_without_vector(
    wanted: Sequence[WantedChunk], before: Mapping[ChunkKey, StoredChunk], killed: Mapping[ChunkKey, StoredChunk]
) -> set[str]:
    """Return the `embed_hash` of every chunk whose vector is not stored under its own key."""
    return {
        item.embed_hash
        for item in wanted
        if all(
            stored is None or stored.embed_hash != item.embed_hash
            for stored in (before.get(item.key), killed.get(item.key))
        )
    }


def count_tokens(
    draft: SourceDraft,
    before: Mapping[ChunkKey, StoredChunk],
    killed: Mapping[ChunkKey, StoredChunk],
    count: Callable[[str], int],
    *,
    generation: int,
    keep_old_chunks: bool,
) -> SourceDraft:
    """Fill in lengths in tokens, how many atoms stay, and the generation that is going to write the source.

    Args:
        draft: the source.
        before: its committed chunks; one with the same text is not counted again.
        killed: what a killed update wrote, for all sources.
        count: counts the tokens of a text.
        generation: the next one.
        keep_old_chunks: whether committed chunks that are no longer wanted stay, and count.
    """

    def tokens_of(item: WantedChunk) -> int:
        if item.is_atom:
            return 0
        for stored in (before.get(item.key), killed.get(item.key)):
            if stored is not None and stored.embed_hash == item.embed_hash:
                return stored.tokens
        return count(item.chunk.text_to_embed)

    chunks = tuple(replace(item, tokens=tokens_of(item)) for item in draft.chunks)
    kept = [before[key] for key in before.keys() - {item.key for item in chunks}] if keep_old_chunks else []
    old_atoms = sum(stored.is_atom for stored in kept)
    found = {
        "tokens": sum(item.tokens for item in chunks) + sum(stored.tokens for stored in kept),
        "atoms": sum(item.is_atom for item in chunks) + old_atoms,
        "old_atoms": old_atoms,
        "generation": generation,
    }
    return SourceDraft(draft.record.model_copy(update=found), chunks)


def report_source(
    source: str,
    status: Literal["added", "updated", "unchanged", "deleted"],
    chunks: Tally,
    atoms: Tally,
) -> SourceReport:
    """Make the report about one source."""
    return SourceReport(
        source=source,
        status=status,
        chunks_added=chunks.added,
        chunks_deleted=chunks.deleted,
        chunks_unchanged=chunks.unchanged,
        atoms_added=atoms.added,
        atoms_deleted=atoms.deleted,
        atoms_unchanged=atoms.unchanged,
    )


def _of_kind(before: Mapping[ChunkKey, StoredChunk], keys: Iterable[ChunkKey], is_atom: bool) -> int:
    return sum(before[key].is_atom == is_atom for key in keys)


def _tally(
    wanted: Sequence[ChunkKey], before: Mapping[ChunkKey, StoredChunk], added: Collection[ChunkKey], gone: int
) -> Tally:
    new = [key for key in wanted if key in added]
    return Tally(len(new), gone + sum(key in before for key in new), len(wanted) - len(new))


def _require_parents(chunks: Sequence[Chunk], ids: frozenset[str]) -> None:
    for chunk in chunks:
        if chunk.kind == "atom" and chunk.parent_id not in ids:
            raise NodeInputError(
                f"The atom `{chunk.text}` of the source `{chunk.source}` belongs to the chunk `{chunk.parent_id}`, "
                "which that source does not have; keep chunks and their atoms together."
            )


def _without(ids: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    seen = frozenset(others)
    return tuple(id_ for id_ in ids if id_ not in seen)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()
