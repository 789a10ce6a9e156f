"""Where flow files, and what they name, are read from: the disk, or the contents that came with a deployment."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_given: ContextVar[Mapping[Path, bytes] | None] = ContextVar("ragbraid_given_files", default=None)
_read: ContextVar[dict[Path, bytes] | None] = ContextVar("ragbraid_read_files", default=None)


def read_bytes(path: str | Path, limit: int = -1) -> bytes:
    """Return the content of a file, or no more than its first `limit` bytes.

    Raises:
        OSError: as opening and reading the file.
    """
    place = _place(path)
    given = _given.get()
    if given is None:
        with open(path, "rb") as stream:
            content = stream.read(limit)
    elif place in given:
        content = given[place] if limit < 0 else given[place][:limit]
    else:
        raise FileNotFoundError(2, "it did not travel with the deployment", str(path))
    seen = _read.get()
    if seen is not None:
        seen[place] = content
    return content


def is_file(path: str | Path) -> bool:
    """Whether there is such a file."""
    given = _given.get()
    return Path(path).is_file() if given is None else _place(path) in given


@contextmanager
def files_given(contents: Mapping[Path, bytes]) -> Iterator[None]:
    """Inside the block these files, by absolute path, are all that there are: nothing is read from the disk."""
    token = _given.set(contents)
    try:
        yield
    finally:
        _given.reset(token)


@contextmanager
def files_noted() -> Iterator[dict[Path, bytes]]:
    """Note every file that is read inside the block, by absolute path, with the content that was read."""
    seen: dict[Path, bytes] = {}
    token = _read.set(seen)
    try:
        yield seen
    finally:
        _read.reset(token)


def _place(path: str | Path) -> Path:
    # Links stay as they are: what a file names is relative to the folder under whose name it was opened.
    return Path(os.path.abspath(path))
