"""Searching a knowledge base through its atoms: the nearest atom of each chunk, and the chunks as hits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from ragbraid.nodes.store import EVERYTHING, Payload, Test, Tests
from ragbraid.nodes.store_found import Found, ScoredPoint
from ragbraid.registry.errors import SettingsError
from ragbraid.registry.knowledge import KnowledgeBaseInfo, Where
from ragbraid.registry.reasoning import ATOM

ATOMS = "atoms"
"""The route of hits that were found through atoms."""
_ATOMS_A_CHUNK = 4
"""How many atoms are fetched for each chunk that is wanted, to begin with."""

ChunkPlace = tuple[str, str]
"""Source and chunk id: a moved file can bring one id from two sources."""


def require_atoms(info: KnowledgeBaseInfo, where: Where | None) -> None:
    """Refuse a search that could find nothing.

    Raises:
        SettingsError: there are no atoms, or `where` has a condition on `kind`, which atoms do not take from chunks.
    """
    if not info.atoms:
        raise SettingsError(
            f"knowledge base `{info.name}` holds no atoms, the questions that its chunks answer",
            hint="run an ingestion flow with `enrich.tag_atoms` before `index.upsert` first",
        )
    if where is not None and any(condition.field == "kind" for condition in (*where.all, *where.none)):
        raise SettingsError("atoms cannot be filtered by `kind`; filter by source, title, language or metadata")


def not_of(chunk_ids: Sequence[str]) -> Tests:
    """Return the filter against the atoms of these chunks."""
    return Tests(must_not=(Test("parent_id", any_of=tuple(chunk_ids)),)) if chunk_ids else EVERYTHING


def nearest_atoms(search: Callable[[int], Found], top_k: int) -> dict[ChunkPlace, ScoredPoint]:
    """Return the nearest atom of each of the best chunks, best first; of one chunk id the better place stays.

    Asks for more atoms until there are enough chunks: many atoms of one chunk must not crowd out the others.

    Args:
        search: finds so many atoms, nearest first.
        top_k: how many chunks are wanted.
    """
    limit = top_k * _ATOMS_A_CHUNK
    while True:
        points = search(limit)
        nearest: dict[str, ScoredPoint] = {}
        for point in points:
            nearest.setdefault(point.payload["parent_id"], point)
        if len(nearest) >= top_k or len(points) < limit:
            best = islice(nearest.items(), top_k)
            return {(point.payload["source"], id_): point for id_, point in best}
        limit *= _ATOMS_A_CHUNK


def found_through(nearest: Mapping[ChunkPlace, ScoredPoint], chunks: Mapping[ChunkPlace, Payload]) -> Found:
    """Return the chunks in the place of their nearest atoms, with these atoms' questions in their metadata.

    Args:
        nearest: the nearest atom of each chunk, best first.
        chunks: the payloads of these chunks.
    """
    atoms = list(nearest.values())
    payloads = []
    for place, atom in nearest.items():
        metadata = {**chunks[place]["metadata"], ATOM: atom.payload["text"]}
        payloads.append({**chunks[place], "metadata": metadata})
    return Found([atom.id for atom in atoms], range(len(atoms)), [atom.score for atom in atoms], payloads)
