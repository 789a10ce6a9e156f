"""Cutting work into batches of the size that a store takes at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

from ragbraid.nodes.store import WRITE_BATCH

T = TypeVar("T")


def batches(items: Iterable[T], size: int = WRITE_BATCH) -> Iterator[list[T]]:
    """Yield the items in lists of at most `size`, in order."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
