"""Values of a trace as text that people read: whole, and at a glance."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_CUT = re.compile(r"… \(([\d,]+) more\)")
GLIMPSE = 140
MAX_HIT_TEXT = 300
MAX_ROUTES = 6
"""What a reader takes in at once: characters of a value, characters of a hit, routes beside one another."""


def value_text(value: Any) -> str:
    """Return a JSON value as an indented outline. Fields that are null or hold nothing are left out."""
    return "\n".join(_lines(value, ""))


def glimpse(value: Any) -> str:
    """Return what a value is about in at most 140 characters: its text, what it found, or how much it holds."""
    return one_line(_gist(value), GLIMPSE)


@dataclass(frozen=True)
class HitTable:
    """The hits of a ranking as a table; the columns between score and source are the ranks in the routes."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    more: str


def hit_table(value: Any) -> HitTable | None:
    """Return a ranking as a table, or None for anything else and for a ranking without hits."""
    hits = value.get("hits") if isinstance(value, Mapping) else None
    told = [hit for hit in hits if isinstance(hit, Mapping)] if isinstance(hits, list) else []
    if not told:
        return None
    scores = [_mapping(hit.get("scores")) for hit in told]
    routes = list(dict.fromkeys(route for each in scores for route in each))[:MAX_ROUTES]
    rows = tuple(
        (
            str(hit.get("rank", "")),
            _score(hit.get("score")),
            *(str(_mapping(each.get(route)).get("rank", "")) for route in routes),
            _name_of(hit),
            one_line(str(hit.get("text") or ""), MAX_HIT_TEXT),
        )
        for hit, each in zip(told, scores, strict=True)
    )
    more = [hit for hit in hits or () if isinstance(hit, str)]
    return HitTable(("#", "score", *routes, "source", "text"), rows, " ".join(more))


def seconds_text(seconds: float) -> str:
    """Return a duration with the digits that matter: `3.1 ms`, `412 ms`, `4.12 s`, `2 min 5 s`."""
    if 0 < seconds < 0.0001:
        return "<0.1 ms"
    if seconds < 0.01:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.995:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


def _lines(value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        told = [(name, item) for name, item in value.items() if not _is_nothing(item)]
        for name, item in told:
            yield from _entry(f"{indent}{name}:", item, indent + "  ")
        if not told:
            yield f"{indent}(every field is empty)"
    elif isinstance(value, list) and value:
        for item in value:
            yield from _item(item, indent)
    else:
        yield from _scalar(indent, value, indent)


def _entry(head: str, value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, Mapping | list) and value:
        yield head
        yield from _lines(value, indent)
    else:
        yield from _scalar(f"{head} ", value, indent)


def _item(value: Any, indent: str) -> Iterator[str]:
    """Yield an item of a list: a dash, and everything of the item at one depth behind it."""
    first, *rest = _lines(value, indent + "  ")
    yield f"{indent}- {first[len(indent) + 2 :]}"
    yield from rest


def _scalar(head: str, value: Any, indent: str) -> Iterator[str]:
    first, *rest = _plain(value).split("\n")
    yield head + first
    yield from (indent + line for line in rest)


def _plain(value: Any) -> str:
    if value is None:
        return "(nothing)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping | list | str) and not value:
        return "(empty)"
    return str(value)


def _is_nothing(value: Any) -> bool:
    return value is None or (isinstance(value, Mapping | list | str) and not value)


def _gist(value: Any) -> str:
    if isinstance(value, Mapping):
        if isinstance(value.get("text"), str):
            return str(value["text"])
        hits = value.get("hits")
        if isinstance(hits, list):
            return f"{_count(hits, 'hit')}: {', '.join(map(_name_of, hits))}" if hits else "no hits"
        told = [f"{name}: {_plain(item)}" for name, item in value.items() if not isinstance(item, Mapping | list)]
        return ", ".join(told) or _count(list(value), "field")
    if isinstance(value, list):
        return _count(value, "item")
    return _plain(value)


def _name_of(hit: Any) -> str:
    return str(hit.get("source") or hit.get("id")) if isinstance(hit, Mapping) else str(hit)


def _score(score: Any) -> str:
    return f"{score:.4f}" if isinstance(score, float) else str(score)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def one_line(text: str, limit: int) -> str:
    """Return a text on one line, cut with a mark where it is longer than the limit."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _count(items: list[Any], word: str) -> str:
    """Count a list as it was before its trace was cut."""
    cut = _CUT.fullmatch(items[-1]) if items and isinstance(items[-1], str) else None
    count = len(items) - 1 + int(cut[1].replace(",", "")) if cut else len(items)
    return f"{count:,} {word}{'' if count == 1 else 's'}"
