"""What a flow run is called: after its question or its source, so that a list of runs can be read."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from ragbraid.dsl.plan import InputSpec
from ragbraid.flows.secrets import redact

MAX_NAME = 60
"""Characters of a name."""

_QUESTIONS = ("question", "query")
_SOURCES = ("path", "folder", "source", "url")

_GENERATED = re.compile(r"[A-Za-z]+(-[A-Za-z]+)+")
"""What Prefect and its form call a run that nobody has named: `ruddy-otter`, `Licensed-Baiji`."""
_LOGIN = re.compile(r"(?<=//)[^/@\s]*@")
_DIRECTIONS = frozenset("\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff")
"""Signs without a shape, some of which turn the direction of what follows them."""


def run_name(inputs: Sequence[InputSpec], given: Mapping[str, Any], present: str = "") -> str | None:
    """Return what to call a run, or None where it keeps the name that it has.

    It is called after its question, else after what it reads, of which the end is kept where it is too long. No secret
    of this process, no password or query of an address and no control character is in it.

    Args:
        inputs: the flow's inputs, in the file's order.
        given: what the run was started with.
        present: the run's name; one that a person chose is kept.
    """
    if present and not _GENERATED.fullmatch(present):
        return None
    values = {spec.name: given.get(spec.name, None if spec.required else spec.default) for spec in inputs}
    for name in (*_QUESTIONS, *_SOURCES):
        value = values.get(name)
        if isinstance(value, str) and (found := _one_line(value, is_source=name in _SOURCES)):
            return found
    return None


def _one_line(text: str, *, is_source: bool) -> str:
    text = redact(text)  # first: of a secret that was cut, nothing would be recognised
    if is_source and "://" in text:
        text = _LOGIN.sub("", re.split(r"[?#]", text)[0])
    shown = (sign for sign in text if sign.isspace() or not _is_unseen(sign))
    line = " ".join("".join(shown).split())
    if len(line) <= MAX_NAME:
        return line
    return f"…{line[1 - MAX_NAME :].lstrip()}" if is_source else f"{line[: MAX_NAME - 1].rstrip()}…"


def _is_unseen(sign: str) -> bool:
    return sign in _DIRECTIONS or unicodedata.category(sign) in ("Cc", "Cs")
