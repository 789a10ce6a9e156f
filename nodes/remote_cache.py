"""Remote files kept on disk, so that one whose version is known need not be downloaded again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
import uuid
from collections.abc import Iterable
from pathlib import Path

_OLD_SECONDS = 3600.0


class RemoteCache:
    """A folder with one file for each remote file: a line that says which version it is, then the content.

    Files are named by hashes: no name from outside reaches the disk. Whatever is damaged is as good as not there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, place: str, name: str, version: str) -> bytes | None:
        """Return the content of a file in this version, or None."""
        try:
            head, _, content = self._file(place, name).read_bytes().partition(b"\n")
            fields = json.loads(head)
        except (OSError, ValueError):
            return None
        if not isinstance(fields, dict) or fields.get("version") != version:
            return None
        return content if fields.get("sha256") == hashlib.sha256(content).hexdigest() else None

    def put(self, place: str, name: str, version: str, content: bytes) -> None:
        """Keep the content of a file.

        Raises:
            OSError: it cannot be written.
        """
        file = self._file(place, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        head = {"name": name, "version": version, "sha256": hashlib.sha256(content).hexdigest()}
        draft = file.with_name(f"{file.name}.{uuid.uuid4().hex}.part")
        try:
            draft.write_bytes(json.dumps(head).encode() + b"\n" + content)
            os.replace(draft, file)
        finally:
            draft.unlink(missing_ok=True)

    def keep_only(self, place: str, names: Iterable[str]) -> None:
        """Delete what is kept of a place and not among these names any more, and what killed writers left."""
        wanted = {_digest(name) for name in names}
        with contextlib.suppress(OSError):
            for file in (self._folder / _digest(place)).iterdir():
                if file.name not in wanted and (file.suffix != ".part" or _is_old(file)):
                    file.unlink(missing_ok=True)

    def _file(self, place: str, name: str) -> Path:
        return self._folder / _digest(place) / _digest(name)


def _is_old(file: Path) -> bool:
    return time.time() - file.stat().st_mtime > _OLD_SECONDS


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
