"""From a model's draft with `[n]` markers to an answer whose every citation points at a passage that was sent."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ragbraid.nodes.graph_hits import chunk_ids_of
from ragbraid.registry.contracts import Citation, Hit

_NUMBERS = r"[0-9]{1,6}(?:\s*[,;，、；]\s*[0-9]{1,6})*"
_MARKER = re.compile(rf"([ \t]*)[\[【［]\s*({_NUMBERS})\s*[\]】］]")


@dataclass(frozen=True)
class CitedText:
    """A text whose markers run from 1 in order of appearance, its citations, and how many numbers were unknown."""

    text: str
    citations: tuple[Citation, ...]
    unknown: int


def resolve_citations(text: str, quotes: Sequence[tuple[int, str]], hits: Sequence[Hit]) -> CitedText:
    """Match the markers and listed quotes of a draft with the passages that the model was given.

    Numbers that no passage bears are removed from the text and from the list and counted (each number once). A passage
    that the model listed without a marker in its text gets its marker at the end. A citation is verified when its
    quote occurs in the passage, compared after Unicode NFKC and without white space; of several quotes for a passage
    the first verified one stays.

    Args:
        text: the draft, with markers such as `[2]`, `[1, 3]` or `【2】`.
        quotes: pairs of passage number and quote, as the model listed them.
        hits: the passages in the order of their numbers, from 1.
    """
    marked = marked_numbers(text)
    listed = [number for number, _ in quotes]
    known = range(1, len(hits) + 1)
    order = list(dict.fromkeys(number for number in (*marked, *listed) if number in known))
    renumbered = {old: new for new, old in enumerate(order, start=1)}
    unmarked = [number for number in order if number not in marked]
    written = renumber_markers(text, {old: [new] for old, new in renumbered.items()})
    if unmarked:
        written = f"{written} " + "".join(f"[{renumbered[number]}]" for number in unmarked)
    citations = tuple(
        _citation(renumbered[number], hits[number - 1], [quote for n, quote in quotes if n == number])
        for number in order
    )
    return CitedText(written, citations, len({*marked, *listed} - set(known)))


def marked_numbers(text: str) -> list[int]:
    """Return the numbers of all markers of a text, in order."""
    return [number for match in _MARKER.finditer(text) for number in _numbers(match)]


def renumber_markers(text: str, numbers: Mapping[int, Sequence[int]]) -> str:
    """Return a text with other numbers in its markers: each becomes those that stand for it, and goes without any."""
    return _MARKER.sub(lambda match: _rewritten(match, numbers), text).strip()


def without_markers(text: str) -> str:
    """Return a cited text without its markers, for readers who do not see the passages that they count."""
    return _MARKER.sub("", text).strip()


def _numbers(match: re.Match[str]) -> list[int]:
    return [int(number) for number in re.findall(r"[0-9]+", match[2])]


def _rewritten(match: re.Match[str], numbers: Mapping[int, Sequence[int]]) -> str:
    kept = dict.fromkeys(new for old in _numbers(match) for new in numbers.get(old, ()))
    return match[1] + "".join(f"[{number}]" for number in kept) if kept else ""


def _citation(marker: int, hit: Hit, quotes: Sequence[str]) -> Citation:
    given = [quote.strip() for quote in quotes if quote.strip()]
    verified = next((quote for quote in given if is_quoted(quote, hit.text)), None)
    return cite(marker, hit, verified or next(iter(given), None), verified=verified is not None)


def cite(marker: int, hit: Hit, quote: str | None, *, verified: bool) -> Citation:
    """Return the citation of a hit: where it comes from, and what is quoted from it.

    An entity, a fact or a report is no place to look at, so the citation names the first chunk that it comes from; what
    is quoted are the words that the model was shown.
    """
    return Citation(
        marker=marker,
        chunk_id=next(iter(chunk_ids_of(hit)), hit.id),
        document_id=hit.document_id,
        source=hit.source,
        title=hit.title,
        section_path=hit.section_path,
        kind=hit.kind,
        quote=quote,
        verified=verified,
    )


def is_quoted(quote: str, passage: str) -> bool:
    """Whether the quote occurs in the passage, compared after NFKC and without white space (line breaks differ)."""
    wanted = _plain(quote)
    return bool(wanted) and wanted in _plain(passage)


def _plain(text: str) -> str:
    return "".join(unicodedata.normalize("NFKC", text).split())
