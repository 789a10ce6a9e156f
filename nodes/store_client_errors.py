"""What qdrant-client raises, as one sentence a user can act on."""

from __future__ import annotations

from pathlib import Path

from ragbraid.nodes.store_damage import damaged, names_in
from ragbraid.registry.errors import FailureKind, ServiceError


def plain_sentence(error: Exception, location: str) -> ServiceError:
    """Return the failure of a call to qdrant-client in plain words, with a kind that `retry` understands.

    Args:
        error: what the client raised.
        location: the place for the message; holds no key.
    """
    text = _text_of(error)
    return _known(text, location) or ServiceError(f"Qdrant at {location} failed: {text.strip()[:300]}", kind="failed")


def local_sentence(error: Exception, folder: Path, name: str, *, opening: bool = False) -> ServiceError:
    """Return the failure of a call to local mode on disk in plain words.

    Args:
        error: what the client raised.
        folder: where the knowledge bases lie.
        name: which of them it was.
        opening: whether it was being opened, when whatever is not known otherwise comes from unreadable files.
    """
    location, text = f"{folder} ({name})", _text_of(error)
    if (known := _known(text, location)) is not None:
        return known
    if opening or any(mark in text.lower() for mark in _DAMAGE):
        # All that lies in the folder is opened together, so only where this one is alone is it surely the damaged one.
        names = names_in(folder)
        is_only_this = bool(names) and names <= _OWN_ENTRIES and names_in(folder / "collection") <= {name}
        return damaged(folder, str(error) or type(error).__name__, is_only_this=is_only_this)
    return plain_sentence(error, location)


def _known(text: str, location: str) -> ServiceError | None:
    lower = text.lower()
    for kind, marks, sentence in _SENTENCES:
        if any(mark in lower for mark in marks):
            return ServiceError(sentence.format(location=location), kind=kind)
    return None


def _text_of(error: Exception) -> str:
    """Join what the error, its status and its cause say; gRPC and HTTP keep it in different places."""
    parts = [type(error).__name__, str(error)]
    code = getattr(error, "code", None)
    if callable(code):
        parts.append(str(code()))
    status = getattr(error, "status_code", None)
    if status is not None:
        parts.append(f"http status {status}")
    source = getattr(error, "source", None) or error.__cause__
    if isinstance(source, Exception):
        parts.append(f"{type(source).__name__}: {source}")
    return " ".join(parts)


_OWN_ENTRIES = {".lock", "meta.json", "collection"}
"""All that local mode keeps in its folder."""

_DAMAGE = ("file is not a database", "database disk image is malformed")

_SENTENCES: tuple[tuple[FailureKind, tuple[str, ...], str], ...] = (
    (
        "unavailable",
        ("already accessed by another instance", "alreadylocked"),
        (
            "knowledge base {location} is open in another process; close it there, or share one between processes with "
            "qdrant.server"
        ),
    ),
    (
        "auth",
        ("http status 401", "http status 403", "unauthenticated", "permission_denied"),
        "Qdrant at {location} refused the API key; set the right `api_key` of qdrant.server",
    ),
    (
        "failed",
        ("permissionerror", "permission denied", "readonly database"),
        "no permission to read or write knowledge base {location}; check the owner and mode of the folder",
    ),
    (
        "failed",
        ("no space left", "disk is full"),
        "the disk is full: knowledge base {location} could not be written; free some space and run again",
    ),
    (
        "timeout",
        ("timeout", "timed out", "deadline_exceeded"),
        "Qdrant at {location} did not answer in time; raise `timeout_seconds` or look at the server's load",
    ),
    (
        "rate_limit",
        ("http status 429", "resource_exhausted", "resourceexhausted"),
        "Qdrant at {location} asks for fewer requests (its rate limit)",
    ),
    (
        "unavailable",
        ("connecterror", "connection refused", "unavailable", "name or service not known", "http status 50"),
        "Qdrant at {location} cannot be reached; check the address and that the server runs",
    ),
)
