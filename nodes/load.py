"""The `load.*` nodes: files and ready passages become documents, ready triples join their chunks.

A source that cannot be read never ends a run: it is reported among the failures, with the reason, and the rest goes
on. Only a path at which nothing exists is an error.
"""

from __future__ import annotations

import hashlib
import uuid
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from ragbraid.nodes.load_files import find_files, name_place
from ragbraid.nodes.load_html import read_html
from ragbraid.nodes.load_lines import Passages, read_passages
from ragbraid.nodes.load_text import ReadText, UnreadableText, decode, read_markdown, read_restructured
from ragbraid.nodes.load_triples import load_triples
from ragbraid.registry.context import report_note, report_progress
from ragbraid.registry.contracts import Document, DocumentSet, SourceFailure
from ragbraid.registry.errors import NodeInputError
from ragbraid.registry.node import FilePath, node

__all__ = ["load_files", "load_jsonl", "load_triples"]

FileFormat = Literal["text", "markdown", "html"]
ScopeName = Annotated[str, Field(min_length=1)]

_FORMATS: dict[str, FileFormat] = {
    ".txt": "text", ".text": "text", ".log": "text", ".rst": "text",
    ".md": "markdown", ".markdown": "markdown", ".mdx": "markdown",
    ".html": "html", ".htm": "html", ".xhtml": "html",
}  # fmt: skip
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "ragbraid:document")


@node(
    "load.files",
    blocking=True,
    cacheable=False,
    example="""
    documents: {use: load.files, path: docs, pattern: "**/*.md", exclude: [drafts]}
    """,
)
def load_files(
    *,
    path: Annotated[str, FilePath()],
    pattern: str | list[str] = "**/*",
    exclude: list[str] | None = None,
    encoding: str | None = None,
    max_bytes: PositiveInt = 100_000_000,
    follow_links: bool = False,
    prefix: str = "",
    scope: ScopeName | None = None,
) -> DocumentSet:
    """Read text, Markdown and HTML files into documents, in the order of their paths.

    A document's `source` is `prefix` and its path relative to the folder, its `id` is derived from that alone, its `content_hash` is the SHA-256 of the file's bytes, and its title is the first heading, else the `<title>`, else
    the file's name. HTML becomes text with Markdown headings; the front matter of Markdown becomes metadata when it
    is a simple mapping. Line breaks become `\\n`. Hidden files and folders are passed over unless a pattern names them.

    Args:
        path: a file, a folder, or a pattern such as `docs/**/*.md`; in a flow file relative to it, else to the working directory.
        pattern: which files of a folder to read, by path relative to it; `**` spans folders. One pattern or several.
        exclude: patterns of files and folders to leave out.
        encoding: how the files are encoded; recognised (byte order mark, UTF-8, then by content) when left out.
        max_bytes: size in bytes above which a file is not read but reported.
        follow_links: whether symbolic links are followed; a folder that links lead to twice is read once.
        prefix: what the names of sources begin with, such as `wiki/`, where several folders share a knowledge base.
        scope: what an index knows all of this by when it looks for what is gone; left out, it is the path as seen from
            the folder of `ragbraid.toml`, else of the flow, or the whole path outside of that, with the patterns.

    Raises:
        RunError: nothing exists at the path.
        NodeInputError: the path is empty, or the encoding is unknown.
    """
    _check_encoding(encoding)
    patterns = [pattern] if isinstance(pattern, str) else pattern
    found = find_files(path, patterns, exclude or [], follow_links=follow_links)
    documents: list[Document] = []
    failures = [failure.model_copy(update={"source": prefix + failure.source}) for failure in found.failures]
    passed_over = 0
    guessed: dict[str, int] = {}
    for done, source in enumerate(found.files):
        report_progress("read files", done, len(found.files))
        file_format = _FORMATS.get(PurePosixPath(source).suffix.lower())
        if file_format is None:
            passed_over += 1
            if found.explicit(source):
                failures.append(SourceFailure(source=prefix + source, reason=_unknown_format(source)))
            continue
        try:
            raw = _read_bytes(found.root / source, max_bytes)
            text, used = decode(raw, encoding)
        except UnreadableText as error:
            failures.append(SourceFailure(source=prefix + source, reason=str(error)))
            continue
        if encoding is None and not used.startswith("utf"):
            guessed[used] = guessed.get(used, 0) + 1
        documents.append(_document(prefix + source, text, file_format, raw))
    report_progress("read files", len(found.files), len(found.files))
    _report_notes(passed_over, found.links, found.special, guessed)
    return DocumentSet(
        documents=tuple(documents),
        failures=tuple(failures),
        scope=scope or found.scope,
        root=f"{name_place(found.root)}/{prefix}",
        complete=found.complete,
    )


@node(
    "load.jsonl",
    blocking=True,
    cacheable=False,
    example="""
    passages: {use: load.jsonl, path: passages.jsonl.gz, id_field: id, text_field: text}
    """,
)
def load_jsonl(
    *,
    path: Annotated[str, FilePath()],
    id_field: str = "id",
    text_field: str = "text",
    title_field: str = "title",
    scope: ScopeName | None = None,
) -> DocumentSet:
    """Read ready passages from a JSON Lines file, one document per line.

    A document's `id` and `source` are the line's id, its `content_hash` is the SHA-256 of the line. Other fields that
    hold a text, a number, true, false, null or a list of these become metadata; nested ones are left out and counted
    in a note. A bad line is reported with its number; since its source may be unknown, the set then does not claim to
    be complete.

    Args:
        path: the file, UTF-8, plain or compressed with gzip (told by its content); in a flow file relative to it, else to the working directory.
        id_field: the field with the id, a text or a whole number.
        text_field: the field with the text.
        title_field: the field with the title; a line may lack it.
        scope: what an index knows all of this by when it looks for what is gone; left out, it is the path as seen from
            the folder of `ragbraid.toml`, else of the flow, or the whole path outside of that.

    Raises:
        RunError: the file does not exist or cannot be opened.
    """
    passages: Passages = read_passages(path, id_field=id_field, text_field=text_field, title_field=title_field)
    if passages.nested:
        fields = ", ".join(f"`{name}`" for name in sorted(passages.nested))
        report_note(f"Nested fields were left out of the metadata: {fields}.")
    return DocumentSet(
        documents=tuple(passages.documents),
        failures=tuple(passages.failures),
        scope=scope or passages.scope,
        complete=passages.complete,
    )


def _check_encoding(encoding: str | None) -> None:
    if encoding is None:
        return
    try:
        b" ".decode(encoding, "replace")
    except (LookupError, UnicodeError) as error:
        raise NodeInputError(
            f"The encoding `{encoding}` is unknown.", hint="for example `utf-8`, `gb18030`, `big5` or `cp1252`"
        ) from error


def _read_bytes(file: Path, max_bytes: int) -> bytes:
    try:
        if not file.is_file():
            raise UnreadableText("It is gone, or no regular file.")
        with file.open("rb") as stream:
            raw = stream.read(max_bytes + 1)
    except OSError as error:
        raise UnreadableText(f"It cannot be read ({(error.strerror or type(error).__name__).lower()}).") from error
    if len(raw) > max_bytes:
        raise UnreadableText(f"It is larger than {max_bytes:,} bytes; raise `max_bytes` to read it.")
    return raw


def _document(source: str, text: str, file_format: FileFormat, raw: bytes) -> Document:
    path = PurePosixPath(source)
    if file_format == "html":
        read = read_html(text)
    elif file_format == "markdown":
        read = read_markdown(text)
    else:
        read = read_restructured(text) if path.suffix.lower() == ".rst" else ReadText(text)
    return Document(
        id=str(uuid.uuid5(_NAMESPACE, source)),
        source=source,
        text=read.text,
        title=read.title or path.stem,
        format=file_format,
        content_hash=hashlib.sha256(raw).hexdigest(),
        metadata=read.metadata,
    )


def _unknown_format(source: str) -> str:
    suffix = PurePosixPath(source).suffix
    kind = f"Files ending in `{suffix}`" if suffix else "Files without an extension"
    return f"{kind} are not read; known are {', '.join(_FORMATS)}."


def _report_notes(passed_over: int, links: int, special: int, guessed: dict[str, int]) -> None:
    if passed_over:
        report_note(f"{passed_over} files of other formats were passed over.")
    if links:
        report_note(f"{links} symbolic links were not followed (`follow_links` is off).")
    if special:
        report_note(f"{special} devices, pipes or sockets were passed over.")
    for encoding, count in sorted(guessed.items()):
        report_note(f"{count} files are not UTF-8; they were recognised as {encoding} and read as such.")
