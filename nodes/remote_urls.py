"""URLs of remote files: which are taken, what they are called without credentials, and where a pattern begins."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

from ragbraid.registry.errors import NodeInputError

PACKAGE_OF_SCHEME = {
    "http": "aiohttp",
    "https": "aiohttp",
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "memory": "fsspec",
}
"""The schemes that are taken, and the package behind each. None of them reads files of this machine, nor does any chain."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def scheme_of(url: str) -> str:
    """Return the scheme of a URL that may be read, in lower case.

    Raises:
        NodeInputError: it is none, its scheme is not taken, it chains places, or credentials stand in it.
    """
    found = _SCHEME.match(url)
    scheme = found[1].lower() if found else ""
    if scheme not in PACKAGE_OF_SCHEME:
        listed = ", ".join(f"`{each}`" for each in PACKAGE_OF_SCHEME)
        raise NodeInputError(
            f"`{scheme or url}` cannot be loaded from by URL; schemes are {listed}.",
            hint="a folder of this machine is given as a path, such as `docs` or `/srv/docs`",
        )
    place = url.split("://", 1)[1]
    if "::" in url or _CONTROL.search(url) or not place.strip("/"):
        raise NodeInputError(f"A `{scheme}` URL to load from is malformed; write `{scheme}://place/folder/`.")
    if "@" in place.split("/")[0]:
        raise NodeInputError(
            f"A `{scheme}` URL to load from holds a user or password, which would be stored with the run.",
            hint="give credentials to the resource `remote`, as `${env.NAME}` or `${secret.NAME}`",
        )
    if is_http(scheme):
        _check_web(url)
    return scheme


def is_http(scheme: str) -> bool:
    """Whether a scheme is that of the web."""
    return scheme in ("http", "https")


def name_of(url: str) -> str:
    """Return what a URL is called: without query, fragment and credentials, which may be signatures and change."""
    scheme, place = url.split("://", 1)
    scheme = scheme.lower()
    if is_http(scheme):
        host, slash, path = re.split(r"[?#]", place, maxsplit=1)[0].partition("/")
        place = host.rpartition("@")[2].lower() + slash + path
    return f"{scheme}://{place}"


def split_pattern(url: str) -> tuple[str, str | None]:
    """Return the place before the first name with a wildcard, and the pattern from there on; None where there is none.

    In URLs of the web `?` begins a query and is no wildcard.
    """
    scheme, place = url.split("://", 1)
    wildcard = re.compile(r"[*\[]" if is_http(scheme.lower()) else r"[*?\[]")
    names = place.split("/")
    for position, name in enumerate(names[1:], start=1):
        if wildcard.search(name):
            return f"{scheme}://{'/'.join(names[:position])}/", "/".join(names[position:])
    return url, None


def path_of_web_file(url: str, place: str) -> str | None:
    """Return what a URL of the web is called below a place, decoded; None for what lies elsewhere or is a query.

    Args:
        url: a link, absolute.
        place: the URL of a listing, ending with a slash.
    """
    if "?" in url or "#" in url:
        return None
    inner = url.split("://", 1)[-1]
    root = place.split("://", 1)[-1]
    if not inner.startswith(root) or inner == root:
        return None
    return unquote(inner[len(root) :]).removeprefix("./")


def is_usable(path: str) -> bool:
    """Whether the path of a remote file names one place: no empty, `.` or `..` part, no control characters, valid text."""
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return not _CONTROL.search(path) and not any(part in ("", ".", "..") for part in path.split("/"))


def _check_web(url: str) -> None:
    try:
        parts = urlsplit(url)
        well_formed = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        well_formed = False
    if not well_formed:
        raise NodeInputError("A URL to load from is malformed; write `https://host/folder/` or `https://host/file.md`.")
