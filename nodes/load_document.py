"""From the bytes of one file to a document, by its format."""

from __future__ import annotations

import hashlib
import uuid
from pathlib import PurePosixPath
from typing import Literal

from ragbraid.nodes.load_html import read_html
from ragbraid.nodes.load_text import ReadText, read_markdown, read_restructured
from ragbraid.registry.context import report_note
from ragbraid.registry.contracts import Document, Metadata

FileFormat = Literal["text", "markdown", "html"]

_FORMATS: dict[str, FileFormat] = {
    ".txt": "text", ".text": "text", ".log": "text", ".rst": "text",
    ".md": "markdown", ".markdown": "markdown", ".mdx": "markdown",
    ".html": "html", ".htm": "html", ".xhtml": "html",
}  # fmt: skip
_MEDIA_TYPES: dict[str, FileFormat] = {
    "text/plain": "text",
    "text/markdown": "markdown",
    "text/html": "html",
    "application/xhtml+xml": "html",
}
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "ragbraid:document")


def format_of(path: str, media_type: str | None = None) -> FileFormat | None:
    """Return the format of a file by its extension, else by its media type; None where it is not read."""
    return _FORMATS.get(PurePosixPath(path).suffix.lower()) or _MEDIA_TYPES.get(media_type or "")


def unknown_format(path: str) -> str:
    """Return the sentence for a file that was asked for and whose format is not read."""
    suffix = PurePosixPath(path).suffix
    kind = f"Files ending in `{suffix}`" if suffix else "Files without an extension"
    return f"{kind} are not read; known are {', '.join(_FORMATS)}."


def make_document(
    source: str,
    text: str,
    file_format: FileFormat,
    raw: bytes,
    *,
    path: str | None = None,
    metadata: Metadata | None = None,
) -> Document:
    """Make the document of a file.

    Args:
        source: what it is called; its id follows from that alone.
        text: its content, decoded.
        file_format: how to read the text.
        raw: its bytes, for the hash.
        path: the file's path, for its title, where the source is none.
        metadata: what is known of the file; its own front matter goes before.
    """
    file = PurePosixPath(path or source)
    if file_format == "html":
        read = read_html(text)
    elif file_format == "markdown":
        read = read_markdown(text)
    else:
        read = read_restructured(text) if file.suffix.lower() == ".rst" else ReadText(text)
    return Document(
        id=str(uuid.uuid5(_NAMESPACE, source)),
        source=source,
        text=read.text,
        title=read.title or file.stem,
        format=file_format,
        content_hash=hashlib.sha256(raw).hexdigest(),
        metadata={**(metadata or {}), **read.metadata},
    )


def report_formats(passed_over: int, guessed: dict[str, int]) -> None:
    """Leave notes about files of other formats and of other encodings.

    Args:
        passed_over: how many files were not read.
        guessed: how many files are in each encoding that was recognised.
    """
    if passed_over:
        report_note(f"{passed_over} files of other formats were passed over.")
    for encoding, count in sorted(guessed.items()):
        report_note(f"{count} files are not UTF-8; they were recognised as {encoding} and read as such.")
