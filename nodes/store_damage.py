"""What is said, by every engine on disk alike, when the files of a knowledge base cannot be read."""

from __future__ import annotations

from pathlib import Path

from ragbraid.registry.errors import DamagedStoreError, ServiceError


def damaged(folder: Path, reason: str, *, is_only_this: bool) -> ServiceError:
    """Return the error for a knowledge base whose files cannot be read.

    Args:
        folder: where it lies.
        reason: what the engine said; its first line is told.
        is_only_this: whether the folder holds this knowledge base and nothing else, so that it may be deleted.
    """
    lines = reason.strip().splitlines()
    said = lines[0][:200] if lines else "no reason given"
    sentence = f"knowledge base {folder} failed, its files may be damaged or not Qdrant's: {said}"
    if is_only_this:
        sentence += "; delete it with `ragbraid kb drop`, or delete that folder, and ingest again"
        return DamagedStoreError(sentence, folder=str(folder))
    return ServiceError(f"{sentence}; choose another `path` or `name`, or look at what lies there", kind="failed")


def names_in(folder: Path) -> set[str]:
    """Return the names of all that lies in a folder; none where it is no folder."""
    return {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
