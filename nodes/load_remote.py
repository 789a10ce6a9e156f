"""Documents from URLs: what `load.files` does where it is given `s3://bucket/docs/` or `https://host/page.html`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from ragbraid.nodes.load_document import format_of, make_document, report_formats, unknown_format
from ragbraid.nodes.load_files import glob_pattern
from ragbraid.nodes.load_text import UnreadableText, decode
from ragbraid.nodes.remote_errors import CredentialsRefusedError
from ragbraid.nodes.remote_urls import name_of, scheme_of, split_pattern
from ragbraid.registry.context import report_progress
from ragbraid.registry.contracts import Document, DocumentSet, Metadata, SourceFailure
from ragbraid.registry.errors import NodeInputError, RunError, ServiceError
from ragbraid.registry.resources import RemoteFile, RemoteFiles

MOST_LOST_IN_A_ROW = 10
"""How many files in a row may fail because the place does not answer, before it is taken to be away as a whole."""


@dataclass(frozen=True, slots=True)
class RemoteRequest:
    """What to load: URLs, patterns for what lies below them, and how to read it."""

    urls: Sequence[str]
    patterns: Sequence[str]
    exclude: Sequence[str]
    encoding: str | None
    max_bytes: int
    prefix: str
    scope: str | None


@dataclass
class _Chosen:
    """The files to read, in order, and what became of the others."""

    files: list[RemoteFile] = field(default_factory=list)
    failures: list[SourceFailure] = field(default_factory=list)
    passed_over: int = 0
    scopes: list[str] = field(default_factory=list)


def load_urls(request: RemoteRequest, remote: RemoteFiles) -> DocumentSet:
    """Read the files at some URLs into documents.

    A file that cannot be read is a failure of its own. A place that cannot be listed to its end, that refuses the
    credentials, or that goes away meanwhile ends the run: what is missing from a part must not be taken for deleted.

    Raises:
        NodeInputError: a URL cannot be used, or two have one name.
        RunError: of kind `input`, when nothing is at a place.
        ServiceError: the place is away, or refuses the credentials.
    """
    chosen = _Chosen()
    for url in request.urls:
        _choose(url, request, remote, chosen)
    _refuse_namesakes(chosen.files)
    documents, guessed = _read_all(chosen, request, remote)
    report_formats(chosen.passed_over, guessed)
    failures = [each.model_copy(update={"source": request.prefix + each.source}) for each in chosen.failures]
    return DocumentSet(
        documents=tuple(documents),
        failures=tuple(failures),
        scope=request.scope or ", ".join(chosen.scopes),
        complete=True,
    )


def _choose(url: str, request: RemoteRequest, remote: RemoteFiles, chosen: _Chosen) -> None:
    scheme_of(url)
    place, pattern = split_pattern(url)
    patterns = [pattern] if pattern is not None else list(request.patterns)
    try:
        listing = remote.find(place)
    except RunError as error:
        # Of several that were named one by one, each may fail for itself.
        if len(request.urls) == 1 or isinstance(error, CredentialsRefusedError):
            raise
        chosen.failures.append(SourceFailure(source=name_of(url), reason=_sentence(error)))
        chosen.scopes.append(name_of(url))
        return
    if listing.is_file:
        chosen.scopes.append(listing.place)
        _take(listing.files[0], chosen, explicit=True)
        return
    chosen.scopes.append(listing.place + ",".join(patterns))
    chosen.failures.extend(listing.failures)
    wanted = [glob_pattern(each) for each in patterns]
    named = [glob_pattern(each) for each in patterns if not each.endswith("*")]
    unwanted = [glob_pattern(each.rstrip("/")) for each in request.exclude]
    for file in listing.files:
        is_wanted = any(each.fullmatch(file.path) for each in wanted)
        if is_wanted and not any(each.fullmatch(part) for part in _with_folders(file.path) for each in unwanted):
            _take(file, chosen, explicit=any(each.fullmatch(file.path) for each in named))


def _take(file: RemoteFile, chosen: _Chosen, *, explicit: bool) -> None:
    if format_of(file.path, file.media_type) is not None:
        chosen.files.append(file)
        return
    chosen.passed_over += 1
    if explicit:
        chosen.failures.append(SourceFailure(source=file.name, reason=unknown_format(file.path)))


def _with_folders(path: str) -> Iterator[str]:
    parts = path.split("/")
    for end in range(1, len(parts) + 1):
        yield "/".join(parts[:end])


def _refuse_namesakes(files: Sequence[RemoteFile]) -> None:
    addresses: dict[str, str] = {}
    for file in files:
        if addresses.setdefault(file.name, file.address) != file.address:
            raise NodeInputError(
                f"Two of the URLs are both called `{file.name}`, since a query is no part of a source's name.",
                hint="load them in two nodes, each with a `prefix` of its own",
            )


def _read_all(chosen: _Chosen, request: RemoteRequest, remote: RemoteFiles) -> tuple[list[Document], dict[str, int]]:
    documents: list[Document] = []
    guessed: dict[str, int] = {}
    lost_in_a_row = 0
    files = list(dict.fromkeys(chosen.files))
    pool = ThreadPoolExecutor(remote.connections, thread_name_prefix="ragbraid-remote")
    try:
        for done, (file, content) in enumerate(pool.map(lambda each: _read(each, request.max_bytes, remote), files)):
            report_progress("read files", done, len(files))
            try:
                if not isinstance(content, bytes):
                    lost_in_a_row = _count_lost(content, lost_in_a_row)
                    raise UnreadableText(_sentence(content))
                lost_in_a_row = 0
                documents.append(_document(file, content, request, guessed))
            except UnreadableText as error:
                chosen.failures.append(SourceFailure(source=file.name, reason=str(error)))
    finally:
        pool.shutdown(cancel_futures=True)
    report_progress("read files", len(files), len(files))
    return documents, guessed


def _read(file: RemoteFile, max_bytes: int, remote: RemoteFiles) -> tuple[RemoteFile, bytes | Exception]:
    """Return a file as it is now with its content, or with why it has none."""
    try:
        file = remote.look(file)
        if file.size is not None and file.size > max_bytes:
            return file, UnreadableText(_too_large(max_bytes))
        content = remote.read(file, max_bytes)
    except FileNotFoundError:
        return file, UnreadableText("It is gone since it was listed.")
    except ServiceError as error:
        return file, error
    return (file, content) if len(content) <= max_bytes else (file, UnreadableText(_too_large(max_bytes)))


def _count_lost(error: Exception, before: int) -> int:
    """Count files in a row that were lost to the place itself.

    Raises:
        ServiceError: it is not one file that is in trouble.
    """
    if isinstance(error, CredentialsRefusedError):
        raise error
    if not isinstance(error, ServiceError) or not (error.transient or error.kind == "auth"):
        return 0
    if before + 1 >= MOST_LOST_IN_A_ROW:
        raise ServiceError(
            f"{before + 1} files in a row could not be read, the last because: {_sentence(error)} Nothing was changed.",
            kind=error.kind,
            hint=error.hint,
        )
    return before + 1


def _document(file: RemoteFile, raw: bytes, request: RemoteRequest, guessed: dict[str, int]) -> Document:
    text, used = decode(raw, request.encoding)
    if request.encoding is None and not used.startswith("utf"):
        guessed[used] = guessed.get(used, 0) + 1
    file_format = format_of(file.path, file.media_type)
    assert file_format is not None, file.path
    known: Metadata = {} if file.modified is None else {"last_modified": file.modified}
    return make_document(request.prefix + file.name, text, file_format, raw, path=file.path, metadata=known)


def _too_large(max_bytes: int) -> str:
    return f"It is larger than {max_bytes:,} bytes; raise `max_bytes` to read it."


def _sentence(error: Exception) -> str:
    return str(error).rstrip(".") + "."
