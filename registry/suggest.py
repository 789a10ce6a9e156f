"""The nearest known name to a misspelled one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher

CUTOFF = 0.75
"""Below this similarity a suggestion misleads more than it helps (`kg_cs` is no typing mistake of `kg_fr`)."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most similar to `name`, or None when none is similar enough.

    Ties go to the name that sorts first, so that the answer does not depend on the order of `known`.
    """
    scored = [(SequenceMatcher(None, name.lower(), other.lower()).ratio(), other) for other in set(known)]
    best = min(scored, key=lambda pair: (-pair[0], pair[1]), default=(0.0, ""))
    return best[1] if best[0] >= CUTOFF else None


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """Return a hint such as "did you mean `fuse.rrf`?", or None."""
    found = nearest(name, known)
    return f"did you mean `{found}`?" if found else None
