"""Remote files through fsspec: listing a place wholly or not at all, and reading what lies there."""

from __future__ import annotations

import html
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from ragbraid.nodes.remote_cache import RemoteCache
from ragbraid.nodes.remote_errors import as_service_error, is_missing
from ragbraid.nodes.remote_systems import close_system, open_system
from ragbraid.nodes.remote_urls import is_http, is_usable, name_of, path_of_web_file, scheme_of
from ragbraid.registry.contracts import SourceFailure
from ragbraid.registry.errors import RunError, ServiceError
from ragbraid.registry.resources import RemoteFile, RemoteListing

T = TypeVar("T")

_logger = logging.getLogger(__name__)

MAX_PAGES = 10_000
"""How many pages a listing of the web may have before it is taken to lead in circles."""

_PIECE = 1 << 20
_FIRST_PAUSE_SECONDS = 0.5
_SETTLED_SECONDS = 60.0
"""How old a date must be to stand for a version: it may tell seconds apart, and no more."""


class FsspecFiles:
    """The `RemoteFiles` of every scheme that fsspec knows and `remote_urls` allows.

    Args:
        options: what the file system of a scheme is opened with; not for the web.
        headers: sent with every request to the host of `base_url`, and to no other.
        base_url: the host that `headers` are for.
        timeout_seconds: how long a connection may be silent.
        attempts: how often something is tried that may succeed a second time.
        connections: how many files to read at once.
        cache: keeps what was read.
    """

    def __init__(
        self,
        *,
        options: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        base_url: str | None = None,
        timeout_seconds: float = 60.0,
        attempts: int = 3,
        connections: int = 8,
        cache: RemoteCache | None = None,
    ) -> None:
        self._options = dict(options or {})
        self._headers = dict(headers or {})
        self._base_url = base_url
        self._timeout_seconds = timeout_seconds
        self._attempts = attempts
        self._connections = connections
        self._cache = cache
        self._lock = threading.Lock()
        self._systems: dict[str, Any] = {}

    @property
    def connections(self) -> int:
        """How many files to read at once."""
        return self._connections

    def find(self, url: str) -> RemoteListing:
        """List a file, or all files below a place, wholly or not at all.

        Raises:
            RunError: of kind `input`, when nothing is there or the URL cannot be used.
            SettingsError: a package is not installed, or `options` do not fit.
            ServiceError: the place cannot be listed to its end.
        """
        scheme = scheme_of(url)
        system = self._system(scheme)
        name = name_of(url)
        try:
            if not is_http(scheme):
                listing = self._find_objects(system, scheme, url, name)
            elif name.endswith("/"):
                listing = self._find_web(system, name)
            else:
                listing = _one(self.look(RemoteFile(name, path_of(name), name, url)))
        except FileNotFoundError:
            raise RunError(f"Nothing is at `{name}`.", kind="input", hint="is the name right, and its case?") from None
        if self._cache is not None and not listing.is_file:
            self._cache.keep_only(listing.place, [file.name for file in listing.files])
        return listing

    def look(self, file: RemoteFile) -> RemoteFile:
        """Return a file of the web with its size, version and date; listings of other places have said these.

        Raises:
            FileNotFoundError: it is gone.
            ServiceError: it cannot be looked at.
        """
        if file.size is not None or not is_http(scheme_of(file.address)):
            return file
        system = self._system(scheme_of(file.address))
        return _described(file, self._try(lambda: system.info(file.address), f"`{file.name}` cannot be read"))

    def read(self, file: RemoteFile, max_bytes: int) -> bytes:
        """Return the content of a file, from the cache where that has this version of it.

        Raises:
            FileNotFoundError: it is gone.
            ServiceError: it cannot be read.
        """
        if self._cache is None or file.version is None:
            return self._download(file, max_bytes)
        kept = self._cache.get(file.place, file.name, file.version)
        if kept is not None:
            return kept
        content = self._download(file, max_bytes)
        if len(content) == (len(content) if file.size is None else file.size) <= max_bytes:
            try:
                self._cache.put(file.place, file.name, file.version, content)
            except OSError as error:
                _logger.warning("`%s` could not be kept in the cache: %s", file.name, error.strerror)
        return content

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            systems, self._systems = self._systems, {}
        for system in systems.values():
            close_system(system)

    def _system(self, scheme: str) -> Any:
        with self._lock:
            system = self._systems.get(scheme)
            if system is None:
                system = self._systems[scheme] = open_system(
                    scheme,
                    options=self._options,
                    headers=self._headers,
                    base_url=self._base_url,
                    timeout_seconds=self._timeout_seconds,
                )
            return system

    def _find_objects(self, system: Any, scheme: str, url: str, name: str) -> RemoteListing:
        what = f"`{name}` cannot be listed"
        root = str(system._strip_protocol(url)).strip("/")
        found = self._try(lambda: system.find(root, detail=True), what)
        entries = {str(key).removeprefix("/"): info for key, info in found.items() if info.get("type") != "directory"}
        if not entries:
            self._try(lambda: system.info(root), what)  # an empty place is there, a misspelled one is not
        place = f"{scheme}://{root}/"
        if list(entries) == [root] and not url.endswith("/"):
            return _one(_described(RemoteFile(name, path_of(name), name, root), entries[root]))
        files: list[RemoteFile] = []
        failures: list[SourceFailure] = []
        for key, info in sorted(entries.items()):
            path = key.removeprefix(f"{root}/")
            if not path or path.endswith("/"):
                continue  # an object that stands for a folder
            _take(RemoteFile(f"{scheme}://{key}", path, place, key), info, files, failures)
        return RemoteListing(place, tuple(files), tuple(failures))

    def _find_web(self, system: Any, place: str) -> RemoteListing:
        pending, seen = [place], {place}
        found: dict[str, str] = {}
        while pending:
            page = pending.pop()
            links = self._try(lambda page=page: system.ls(page, detail=True), f"`{page}` cannot be listed")  # type: ignore[misc]
            for link in links:
                address = html.unescape(link["name"])
                path = path_of_web_file(address, place)
                if path is None:
                    continue
                if not path.endswith("/"):
                    found[path] = address
                elif is_usable(path[:-1]) and address not in seen:
                    seen.add(address)
                    pending.append(address)
            if len(seen) > MAX_PAGES:
                raise ServiceError(
                    f"The listing of `{place}` has more than {MAX_PAGES:,} pages; perhaps it leads in circles.",
                    kind="failed",
                )
        files: list[RemoteFile] = []
        failures: list[SourceFailure] = []
        for path, address in sorted(found.items()):
            _take(RemoteFile(name_of(address), path, place, address), {}, files, failures)
        return RemoteListing(place, tuple(files), tuple(failures))

    def _download(self, file: RemoteFile, max_bytes: int) -> bytes:
        system = self._system(scheme_of(file.place))
        if is_http(scheme_of(file.place)):
            return self._try(lambda: _stream(system, file, max_bytes), f"`{file.name}` cannot be read")
        if file.size == 0:
            return b""  # no range of it could be asked for
        return bytes(
            self._try(
                lambda: system.cat_file(file.address, start=0, end=max_bytes + 1), f"`{file.name}` cannot be read"
            )
        )

    def _try(self, call: Callable[[], T], what: str) -> T:
        """Call, and call again after a pause where that may help.

        Raises:
            FileNotFoundError: nothing is there.
            ServiceError: it did not succeed.
        """
        for attempt in range(self._attempts):
            try:
                return call()
            except Exception as error:  # noqa: BLE001 - file systems raise errors of their own libraries
                if is_missing(error):
                    raise FileNotFoundError from None
                failure = as_service_error(error, what)
                if not failure.transient or attempt == self._attempts - 1:
                    raise failure from None
            time.sleep(_FIRST_PAUSE_SECONDS * 2**attempt)
        raise AssertionError("unreachable: the last attempt returns or raises")


def path_of(name: str) -> str:
    """Return the last part of a file's name."""
    return name.rstrip("/").rpartition("/")[2]


def _one(file: RemoteFile) -> RemoteListing:
    return RemoteListing(file.name, (file,), is_file=True)


def _take(file: RemoteFile, info: Mapping[str, Any], files: list[RemoteFile], failures: list[SourceFailure]) -> None:
    if is_usable(file.path):
        files.append(_described(file, info))
        return
    shown = file.name.encode("utf-8", "backslashreplace").decode()
    shown = "".join(character if character.isprintable() else f"\\x{ord(character):02x}" for character in shown)
    reason = "Its name has an empty part, `.`, `..` or characters that cannot be shown; rename it."
    failures.append(SourceFailure(source=shown, reason=reason))


def _described(file: RemoteFile, info: Mapping[str, Any]) -> RemoteFile:
    """Return the file with what its place says of it; places differ in how they call these."""
    size = info.get("size")
    modified = _date(next((info[key] for key in ("LastModified", "Last-Modified", "last_modified", "updated", "created")
                           if info.get(key)), None))  # fmt: skip
    etag = next((str(info[key]) for key in ("ETag", "etag") if info.get(key)), "")
    version = None
    if etag and not etag.startswith("W/"):
        version = f"{etag} {size}"
    elif modified is not None and size is not None and _is_settled(modified):
        version = f"{modified.isoformat()} {size}"
    return replace(
        file,
        size=size if isinstance(size, int) else None,
        version=version,
        modified=None if modified is None else modified.isoformat(timespec="seconds"),
        media_type=info.get("mimetype"),
    )


def _date(value: Any) -> datetime | None:
    try:
        date = value if isinstance(value, datetime) else parsedate_to_datetime(str(value))
    except ValueError:
        return None
    return date.replace(tzinfo=UTC) if date.tzinfo is None else date.astimezone(UTC)


def _is_settled(modified: datetime) -> bool:
    return (datetime.now(UTC) - modified).total_seconds() > _SETTLED_SECONDS


def _stream(system: Any, file: RemoteFile, max_bytes: int) -> bytes:
    """Read a file of the web piece by piece: its server need not know ranges, nor tell the truth about the size."""
    pieces: list[bytes] = []
    left = max_bytes + 1
    with system.open(file.address, "rb", block_size=0, size=file.size) as stream:
        while left > 0 and (piece := stream.read(min(left, _PIECE))):
            pieces.append(piece)
            left -= len(piece)
    return b"".join(pieces)
