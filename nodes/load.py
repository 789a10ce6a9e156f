"""The `load.*` nodes: files and ready passages become documents, ready triples join their chunks.

A source that cannot be read never ends a run: it is reported among the failures, with the reason, and the rest goes
on. Only a path at which nothing exists is an error.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

from pydantic import Field, PositiveInt

from ragbraid.nodes.load_document import format_of, make_document, report_formats, unknown_format
from ragbraid.nodes.load_files import find_files, name_place
from ragbraid.nodes.load_lines import Passages, read_passages
from ragbraid.nodes.load_remote import RemoteRequest, load_urls
from ragbraid.nodes.load_text import UnreadableText, decode
from ragbraid.nodes.load_triples import load_triples
from ragbraid.registry.context import report_note, report_progress
from ragbraid.registry.contracts import Document, DocumentSet, SourceFailure
from ragbraid.registry.errors import NodeInputError
from ragbraid.registry.node import FilePath, is_url, node
from ragbraid.registry.resources import RemoteFiles

__all__ = ["load_files", "load_jsonl", "load_triples"]

ScopeName = Annotated[str, Field(min_length=1)]


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
    path: Annotated[str, FilePath()] | list[str],
    remote: RemoteFiles | None = None,
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

    Where `path` is a URL (`s3://bucket/docs/`, `s3://bucket/**/*.md`, `https://host/docs/`, `gs:`, `az:`), a document's
    `source` is its URL without query and credentials, and its metadata has the date `last_modified`. On a web server a
    URL that ends with a slash is a page of links, whose files and folders below it are read; any other is one document.

    Args:
        path: a file, a folder, or a pattern such as `docs/**/*.md`; in a flow file relative to it, else to the working directory.
            Or a URL of these, or a list of URLs, which is best given a `scope`.
        remote: reaches URLs; left out, without credentials of its own.
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
        NodeInputError: the path is empty, a URL cannot be used, or the encoding is unknown.
        ServiceError: a URL cannot be listed to its end, its place goes away while it is read, or refuses credentials.
    """
    _check_encoding(encoding)
    patterns = [pattern] if isinstance(pattern, str) else pattern
    if isinstance(path, list) or is_url(path):
        urls = path if isinstance(path, list) else [path]
        return _load_remote(RemoteRequest(urls, patterns, exclude or [], encoding, max_bytes, prefix, scope), remote)
    found = find_files(path, patterns, exclude or [], follow_links=follow_links)
    documents: list[Document] = []
    failures = [failure.model_copy(update={"source": prefix + failure.source}) for failure in found.failures]
    passed_over = 0
    guessed: dict[str, int] = {}
    for done, source in enumerate(found.files):
        report_progress("read files", done, len(found.files))
        file_format = format_of(source)
        if file_format is None:
            passed_over += 1
            if found.explicit(source):
                failures.append(SourceFailure(source=prefix + source, reason=unknown_format(source)))
            continue
        try:
            raw = _read_bytes(found.root / source, max_bytes)
            text, used = decode(raw, encoding)
        except UnreadableText as error:
            failures.append(SourceFailure(source=prefix + source, reason=str(error)))
            continue
        if encoding is None and not used.startswith("utf"):
            guessed[used] = guessed.get(used, 0) + 1
        documents.append(make_document(prefix + source, text, file_format, raw))
    report_progress("read files", len(found.files), len(found.files))
    _report_notes(found.links, found.special)
    report_formats(passed_over, guessed)
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


def _load_remote(request: RemoteRequest, remote: RemoteFiles | None) -> DocumentSet:
    if not request.urls:
        raise NodeInputError("The list of URLs to load is empty.")
    if remote is not None:
        return load_urls(request, remote)
    from ragbraid.nodes.remote_files import FsspecFiles

    with contextlib.closing(FsspecFiles()) as anonymous:
        return load_urls(request, anonymous)


def _report_notes(links: int, special: int) -> None:
    if links:
        report_note(f"{links} symbolic links were not followed (`follow_links` is off).")
    if special:
        report_note(f"{special} devices, pipes or sockets were passed over.")
