"""Naming a few of many ids in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

MAX_SAMPLES = 5
"""How many ids one sentence names."""


def sample(ids: Sequence[str]) -> str:
    """Return the first ids, and how many more there are."""
    more = f" and {len(ids) - MAX_SAMPLES} more" if len(ids) > MAX_SAMPLES else ""
    return ", ".join(ids[:MAX_SAMPLES]) + more
