"""Reading passages from JSON Lines, plain or compressed, one line at a time."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NoReturn

from pydantic import JsonValue, ValidationError

from ragbraid.nodes.load_files import name_place
from ragbraid.registry.context import report_progress
from ragbraid.registry.contracts import Document, SourceFailure
from ragbraid.registry.errors import RunError

_GZIP_MARK = b"\x1f\x8b"
_MAX_LINE_BYTES = 64 * 1024 * 1024
_PROGRESS_STEP = 1000


@dataclass(slots=True)
class Passages:
    """What a file of passages holds; `nested` names the fields that were too deep for metadata."""

    scope: str
    documents: list[Document] = field(default_factory=list)
    failures: list[SourceFailure] = field(default_factory=list)
    nested: set[str] = field(default_factory=set)
    complete: bool = True

    def fail(self, place: str, reason: str, source: str | None) -> None:
        """Record a bad line; where its source is unknown, any source may be missing from the set."""
        self.failures.append(SourceFailure(source=source or place, reason=f"{place}: {reason}" if source else reason))
        self.complete = self.complete and source is not None


class BadLine(ValueError):
    """A line is no passage; `source` is its id where that could be read."""

    def __init__(self, reason: str, source: str | None = None) -> None:
        super().__init__(reason)
        self.source = source


def read_passages(path: str, *, id_field: str, text_field: str, title_field: str) -> Passages:
    """Read every line of a file into a document, or into a failure that names the line.

    Raises:
        RunError: the file does not exist or cannot be opened.
    """
    file = Path(path).expanduser()
    fields = (id_field, text_field, title_field)
    first_lines: dict[str, int] = {}
    with open_lines(path, file) as stream:
        passages = Passages(scope=name_place(file.resolve()))
        try:
            for number, line in numbered_lines(stream):
                if number % _PROGRESS_STEP == 0:
                    report_progress("read passages", number)
                if not line.strip():
                    continue
                try:
                    document = _to_document(line, fields, passages.nested)
                except BadLine as error:
                    passages.fail(f"{file.name}:{number}", str(error), error.source)
                    continue
                if (first := first_lines.setdefault(document.id, number)) == number:
                    passages.documents.append(document)
                else:
                    reason = f"The id `{document.id}` stands in line {first} already; the first line stays."
                    passages.failures.append(SourceFailure(source=f"{file.name}:{number}", reason=reason))
        except (OSError, EOFError, zlib.error) as error:
            reason = f"The file ends early or is damaged after line {len(first_lines)}: {error}."
            passages.failures.append(SourceFailure(source=file.name, reason=reason))
            passages.complete = False
    return passages


def open_lines(path: str, file: Path) -> IO[bytes]:
    """Open a file for reading, what gzip compressed (told by its content) as plain bytes.

    Args:
        path: the path as the user wrote it, for messages.
        file: the same path in full.

    Raises:
        RunError: the file does not exist or cannot be opened.
    """
    try:
        if file.exists() and not file.is_file():
            raise RunError(f"`{path}` is no file.", kind="input", hint="for folders of files there is `load.files`")
        with file.open("rb") as stream:
            compressed = stream.read(2) == _GZIP_MARK
        return gzip.open(file, "rb") if compressed else file.open("rb")  # type: ignore[return-value]
    except (OSError, ValueError) as error:
        gone = isinstance(error, FileNotFoundError)
        reason = "does not exist" if gone else f"cannot be opened ({getattr(error, 'strerror', None) or error})"
        raise RunError(f"`{path}` {reason}.", kind="input", hint=f"it was looked for at {file.absolute()}") from error


def numbered_lines(stream: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the lines with their numbers from 1; of one that is too long only the beginning."""
    number = 0
    while line := stream.readline(_MAX_LINE_BYTES):
        number += 1
        rest = line
        while len(rest) == _MAX_LINE_BYTES and not rest.endswith(b"\n"):
            rest = stream.readline(_MAX_LINE_BYTES)  # the tail of a line that is too long to be taken
        yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line


def _to_document(line: bytes, fields: tuple[str, str, str], nested: set[str]) -> Document:
    id_field, text_field, title_field = fields
    values = parse_line(line)
    identity = values.get(id_field)
    if isinstance(identity, bool) or not isinstance(identity, str | int) or identity == "":
        raise BadLine(f"The line has no usable `{id_field}` (a text or a whole number is needed).")
    source = str(identity)
    text, title = values.get(text_field), values.get(title_field)
    if not isinstance(text, str):
        raise BadLine(f"The field `{text_field}` is missing or is no text.", source)
    if title is not None and not isinstance(title, str):
        raise BadLine(f"The field `{title_field}` is no text.", source)
    metadata: dict[str, JsonValue] = {}
    for name, value in values.items():
        if name in fields:
            continue
        if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(v, dict | list) for v in value)):
            nested.add(name)
        else:
            metadata[name] = value
    try:
        return Document(
            id=source,
            source=source,
            text=text,
            title=title or None,
            format="jsonl",
            content_hash=hashlib.sha256(line.strip()).hexdigest(),
            metadata=metadata,
        )
    except ValidationError as error:
        raise BadLine(f"The line holds a value that cannot be kept: {error.errors()[0]['msg']}.") from error


def require_whole(line: bytes) -> bytes:
    """Return the line, unless it is only the beginning of one that is too long.

    Raises:
        BadLine: it is.
    """
    if len(line) >= _MAX_LINE_BYTES:
        raise BadLine(f"The line is longer than {_MAX_LINE_BYTES:,} bytes.")
    return line


def parse_line(line: bytes) -> dict[str, Any]:
    """Return the JSON object in a line.

    Raises:
        BadLine: there is none.
    """
    whole = require_whole(line)
    try:
        values = json.loads(whole.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise BadLine(f"The line is not valid UTF-8 (at byte {error.start}).") from error
    except RecursionError as error:
        raise BadLine("The line nests too deeply.") from error
    except ValueError as error:
        raise BadLine(f"The line is not valid JSON: {error}.") from error
    if not isinstance(values, dict):
        raise BadLine("The line is no JSON object.")
    if b"\\u" in line and not _is_encodable(values):
        raise BadLine("The line holds half of a surrogate pair, which is no character.")
    return values


def _is_encodable(values: dict[str, Any]) -> bool:
    try:
        json.dumps(values, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
