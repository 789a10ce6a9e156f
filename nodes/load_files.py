"""Which files a loader reads: a file, a folder or a glob becomes a sorted list of paths, with what could not be seen."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ragbraid.registry.context import current_folder
from ragbraid.registry.contracts import SourceFailure
from ragbraid.registry.errors import NodeInputError, RunError

_WILDCARD = re.compile(r"[*?\[]")


@dataclass(slots=True)
class Found:
    """What a look at the disk found: files by their path relative to `root`, in order.

    `scope` names what was looked at. `explicit` says of a file whether it was asked for by name or by extension.
    """

    root: Path
    scope: str
    files: list[str] = field(default_factory=list)
    failures: list[SourceFailure] = field(default_factory=list)
    links: int = 0
    special: int = 0
    named: list[re.Pattern[str]] = field(default_factory=list)
    complete: bool = True

    def explicit(self, source: str) -> bool:
        """Whether a file was asked for by its name or its extension, and not merely lies in the folder."""
        return any(pattern.fullmatch(source) for pattern in self.named)


def find_files(path: str, patterns: Sequence[str], exclude: Sequence[str], *, follow_links: bool) -> Found:
    """List the files behind a path.

    Raises:
        RunError: nothing exists at the path.
        NodeInputError: the path is empty.
    """
    if not path.strip():
        raise NodeInputError("The path to load from is empty; give a file, a folder or a pattern such as `docs/*.md`.")
    place = Path(path)
    try:
        place = place.expanduser()
        if _WILDCARD.search(path) and not place.exists():
            place, patterns = _split_glob(place)
        place = place.resolve(strict=True)
        mode = place.stat().st_mode
    except (OSError, RuntimeError, ValueError) as error:
        reason = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be opened ({_why(error)})"
        raise RunError(f"`{path}` {reason}.", kind="input", hint=f"it was looked for at {_absolute(place)}") from error
    if not stat.S_ISDIR(mode):
        only = re.compile(re.escape(place.name))
        return Found(place.parent, name_place(place), [place.name], named=[only])
    scope = f"{name_place(place)}/{','.join(patterns)}"
    named = [glob_pattern(each) for each in patterns if not each.endswith("*")]
    found = Found(place, scope, named=named)
    walk = _Walk(found, patterns, exclude, follow_links)
    walk.run()
    found.files.sort()
    return found


def name_place(place: Path) -> str:
    """Return what a file or folder is called in an index: its path in the project, or its whole path outside of it.

    So a project may be moved, or lie elsewhere on another machine, and still be known by what its index holds.

    Args:
        place: the absolute path, links resolved.
    """
    folder = current_folder()
    if folder is not None and place.is_relative_to(folder):
        return place.relative_to(folder).as_posix()
    return place.as_posix()


def glob_pattern(glob: str) -> re.Pattern[str]:
    """Translate a glob over relative paths: `*`, `?` and `[...]` stay within a name, `**` spans folders.

    As in a shell, a wildcard at the start of a name does not match a dot, so hidden files need a pattern that says so.
    """
    parts: list[str] = []
    segments = glob.removeprefix("./").split("/")
    for position, segment in enumerate(segments):
        last = position == len(segments) - 1
        if segment == "**":
            parts.append(r"(?:(?!\.)[^/]+/)*" + (r"(?!\.)[^/]+" if last else ""))
        else:
            parts.append(_segment_pattern(segment) + ("" if last else "/"))
    return re.compile("".join(parts), re.DOTALL)


class _Walk:
    """Goes through the folders below a root, without recursion, and collects into a `Found`."""

    def __init__(self, found: Found, patterns: Sequence[str], exclude: Sequence[str], follow_links: bool) -> None:
        self._found = found
        self._wanted = [glob_pattern(each) for each in patterns]
        self._unwanted = [glob_pattern(each.rstrip("/")) for each in exclude]
        self._hidden_folders = any(part.startswith(".") for each in patterns for part in each.split("/")[:-1])
        self._follow_links = follow_links
        self._visited: set[tuple[int, int]] = set()

    def run(self) -> None:
        pending = [""]
        while pending:
            folder = pending.pop()
            try:
                with os.scandir(self._found.root / folder) as listing:
                    entries = list(listing)
            except OSError as error:
                self._missed(folder or ".", f"The folder cannot be read ({_why(error)}).")
                continue
            for entry in entries:
                relative = f"{folder}{entry.name}"
                if not _is_text(entry.name):
                    shown = relative.encode("utf-8", "backslashreplace").decode()
                    self._missed(shown, "Its name is not valid UTF-8; rename it.")
                    continue
                try:
                    if not self._is_excluded(relative) and self._take(entry, relative):
                        pending.append(f"{relative}/")
                except OSError as error:
                    self._missed(relative, f"It cannot be looked at ({_why(error)}).")

    def _take(self, entry: os.DirEntry[str], relative: str) -> bool:
        """Take a file in; say of a folder whether to go into it."""
        if entry.is_symlink() and not self._follow_links:
            self._found.links += 1
            return False
        if entry.is_dir():
            return (self._hidden_folders or not entry.name.startswith(".")) and self._is_new(entry)
        if not any(pattern.fullmatch(relative) for pattern in self._wanted):
            return False
        if entry.is_file():
            self._found.files.append(relative)
        elif entry.is_symlink():
            self._found.failures.append(SourceFailure(source=relative, reason="It is a link to nothing."))
        else:
            self._found.special += 1
        return False

    def _is_excluded(self, relative: str) -> bool:
        return any(pattern.fullmatch(relative) for pattern in self._unwanted)

    def _is_new(self, entry: os.DirEntry[str]) -> bool:
        """Guard against links that lead in circles."""
        if not self._follow_links:
            return True
        status = entry.stat()
        key = (status.st_dev, status.st_ino)
        known = key in self._visited
        self._visited.add(key)
        return not known

    def _missed(self, source: str, reason: str) -> None:
        self._found.failures.append(SourceFailure(source=source, reason=reason))
        self._found.complete = False


def _split_glob(place: Path) -> tuple[Path, list[str]]:
    parts = place.parts
    first = next(position for position, part in enumerate(parts) if _WILDCARD.search(part))
    return Path(*parts[:first]), ["/".join(parts[first:])]


def _segment_pattern(segment: str) -> str:
    pattern = r"(?!\.)" if segment[:1] in ("*", "?", "[") else ""
    position = 0
    while position < len(segment):
        character = segment[position]
        closing = segment.find("]", position + 2) if character == "[" else -1
        if closing > 0:
            inside = segment[position + 1 : closing].replace("\\", "\\\\").replace("[", "\\[")
            pattern += f"(?!/)[{'^' + inside[1:] if inside[0] == '!' else inside}]"
            position = closing
        else:
            pattern += {"*": "[^/]*", "?": "[^/]"}.get(character) or re.escape(character)
        position += 1
    return pattern


def _is_text(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _why(error: Exception) -> str:
    return (error.strerror or type(error).__name__).lower() if isinstance(error, OSError) else str(error)


def _absolute(place: Path) -> str:
    try:
        return os.path.abspath(place)
    except ValueError:
        return str(place)
