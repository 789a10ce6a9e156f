"""Reading ready triples from JSON Lines, CSV and TSV, plain or compressed."""

from __future__ import annotations

import csv
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, TypeVar

from ragbraid.nodes.enrich_forms import choose_type, clip, collapsed, cut_name
from ragbraid.nodes.load_files import name_place
from ragbraid.nodes.load_lines import BadLine, numbered_lines, open_lines, parse_line, require_whole
from ragbraid.registry.context import report_progress
from ragbraid.registry.errors import RunError
from ragbraid.registry.graph_parts import Mention, Triple

T = TypeVar("T")
TripleFormat = Literal["auto", "jsonl", "csv", "tsv"]

SAMPLES = 3
"""How many of the bad lines a note names."""
_PROGRESS_STEP = 10_000
_WITHOUT_HEADER = ("subject", "predicate", "object", "passage_id")
_NAMES: dict[str, tuple[str, ...]] = {
    "subject": ("subject", "s", "subj", "head", "h"),
    "predicate": ("predicate", "p", "pred", "relation", "rel", "r"),
    "object": ("object", "o", "obj", "tail", "t"),
    "passage": ("chunk_id", "passage_id", "document_id", "doc_id", "source"),
}


@dataclass(frozen=True, slots=True)
class Statement:
    """What one line states: about which passage, and which triples and mentions."""

    passage: str | None
    triples: tuple[Triple, ...]
    mentions: tuple[Mention, ...] = ()


@dataclass(slots=True)
class Faults:
    """How many there are, and the first of them with place and reason."""

    count: int = 0
    samples: list[str] = field(default_factory=list)

    def add(self, place: str, reason: str) -> None:
        """Count one more."""
        self.count += 1
        if len(self.samples) < SAMPLES:
            self.samples.append(f"{place}: {reason}")


@dataclass(slots=True)
class Statements:
    """What a file states; `bad_lines` cannot be read at all, `bad_items` are triples and entities that are none."""

    scope: str
    name: str
    read: list[Statement] = field(default_factory=list)
    bad_lines: Faults = field(default_factory=Faults)
    bad_items: Faults = field(default_factory=Faults)


def read_statements(path: str, *, file_format: TripleFormat, columns: Sequence[str] | None) -> Statements:
    """Read every line of a file into a statement, or count it as bad.

    Args:
        path: the file.
        file_format: `auto` goes by the file's name, a `.gz` at its end aside.
        columns: the names of the columns of CSV or TSV without a header.

    Raises:
        RunError: the file cannot be opened, is damaged, or is no table with a subject and an object.
    """
    file = Path(path).expanduser()
    chosen = _format_of(file) if file_format == "auto" else file_format
    with open_lines(path, file) as stream:
        found = Statements(name_place(file.resolve()), file.name)
        rows = _objects(stream, found) if chosen == "jsonl" else _rows(stream, found, chosen, columns, path)
        try:
            for number, values in rows:
                if number % _PROGRESS_STEP == 0:
                    report_progress("read triples", number)
                if (said := _to_statement(values, f"{found.name}:{number}", found.bad_items)) is not None:
                    found.read.append(said)
        except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
            reason = f"`{path}` is damaged or not UTF-8 after {len(found.read)} lines of triples: {error}."
            raise RunError(reason, kind="input") from error
    return found


def _format_of(file: Path) -> TripleFormat:
    suffixes = [suffix.lower() for suffix in file.suffixes if suffix.lower() != ".gz"]
    known: dict[str, TripleFormat] = {".csv": "csv", ".tsv": "tsv", ".tab": "tsv"}
    return known.get(suffixes[-1] if suffixes else "", "jsonl")


def _objects(stream: IO[bytes], found: Statements) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in numbered_lines(stream):
        if line.strip():
            try:
                yield number, parse_line(line)
            except BadLine as error:
                found.bad_lines.add(f"{found.name}:{number}", str(error))


def _texts(stream: IO[bytes], found: Statements) -> Iterator[str]:
    for number, line in numbered_lines(stream):
        try:
            yield require_whole(line).decode("utf-8")
        except BadLine as error:
            found.bad_lines.add(f"{found.name}:{number}", str(error))
            yield "\n"  # so that the lines behind it keep their numbers


def _rows(
    stream: IO[bytes], found: Statements, chosen: TripleFormat, columns: Sequence[str] | None, path: str
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    text = _texts(stream, found)
    # A quotation mark in TSV is a character like any other, as tools that write knowledge graphs have it.
    reader = csv.reader(text, delimiter="\t", quoting=csv.QUOTE_NONE) if chosen == "tsv" else csv.reader(text)
    for row in reader:
        if not any(cell.strip() for cell in row):
            continue
        if columns is None:
            named = [cell.strip().lower() for cell in row]
            is_header = all(set(_NAMES[role]) & set(named) for role in ("subject", "object"))
            columns = named if is_header else _WITHOUT_HEADER[: len(row)]
            if not is_header and not 3 <= len(row) <= len(_WITHOUT_HEADER):
                message = f"The first line of `{path}` names no columns `subject` and `object`, and has {len(row)}."
                raise RunError(message, kind="input", hint="name them in the file, or in `columns`")
            if is_header:
                continue
        yield reader.line_num, dict(zip(columns, row, strict=False))


def _to_statement(values: Mapping[str, Any], place: str, faults: Faults) -> Statement | None:
    """Return what a line states; items that are no triples and no entities are counted and left out."""

    def read(items: Iterable[Any], make: Callable[[Any], T]) -> tuple[T, ...]:
        made = []
        for item in items:
            try:
                made.append(make(item))
            except BadLine as error:
                faults.add(place, str(error))
        return tuple(made)

    given, entities = values.get("triples"), values.get("entities")
    if isinstance(given, list):
        rows = [dict(zip(_WITHOUT_HEADER[:3], each, strict=True)) if _is_row(each) else each for each in given]
        mentions = read(entities if isinstance(entities, list) else (), _mention)
        triples = read(rows, _triple)
    else:
        triples = read([values], _triple)
        mentions = read([each for triple in triples for each in _typed(triple, values)], _mention)
    named = read([values], lambda each: _text(each, "passage"))
    return Statement(named[0] or None, triples, mentions) if named and (triples or mentions) else None


def _typed(triple: Triple, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    ends = ((triple.subject, values.get("subject_type")), (triple.object, values.get("object_type")))
    return [{"name": name, "type": type_} for name, type_ in ends if type_]


def _is_row(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3


def _triple(values: Any) -> Triple:
    if not isinstance(values, Mapping):
        raise BadLine("A triple is neither an object nor a list of three texts.")
    subject, object_ = cut_name(_text(values, "subject")), cut_name(_text(values, "object"))
    if not subject or not object_:
        raise BadLine("The subject or the object is missing or no name.")
    return Triple(
        subject=subject,
        predicate=cut_name(_text(values, "predicate")),
        object=object_,
        keywords=_keywords(values.get("keywords")),
        description=clip(str(values.get("description") or "")),
        weight=_weight(values.get("weight")),
    )


def _mention(value: Any) -> Mention:
    given = value if isinstance(value, Mapping) else {"name": value}
    name = cut_name(str(given.get("name") or ""))
    if not name:
        raise BadLine("An entity has no name.")
    described = clip(str(given.get("description") or ""))
    return Mention(name=name, type=choose_type(str(given.get("type") or ""), ()), description=described)


def _text(values: Mapping[str, Any], role: str) -> str:
    """Return the first field of that role, as text."""
    value = next((values[name] for name in _NAMES[role] if values.get(name) not in (None, "")), "")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadLine(f"The {role} is no text.")
    return str(value)


def _keywords(value: Any) -> tuple[str, ...]:
    words = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else []
    return tuple(dict.fromkeys(word for each in words if (word := collapsed(str(each)))))


def _weight(value: Any) -> float:
    if value in (None, ""):
        return 1.0
    try:
        weight = float(value)
    except (TypeError, ValueError):
        weight = math.nan
    if not (math.isfinite(weight) and weight > 0):
        raise BadLine("The weight is no number above 0.")
    return weight
