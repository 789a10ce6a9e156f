"""Takes the JSON object out of what chat models put around it: thoughts, code fences, friendly sentences."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

from pydantic_core import from_json

_THOUGHTS = re.compile(r"<think>.*?</think>", re.DOTALL)
_THOUGHTS_BEGIN, _THOUGHTS_END = "<think>", "</think>"
_MAX_FAILED_STARTS = 64
"""How many braces that begin no object are tried: each try may read the whole rest of the text."""


def without_thoughts(text: str) -> str:
    """Return the text without its `<think>` parts; some servers drop the opening tag, then all up to the end tag goes."""
    text = _THOUGHTS.sub("", text)
    _, found, rest = text.rpartition(_THOUGHTS_END)
    return rest if found else text


def without_open_thoughts(text: str) -> str:
    """As `without_thoughts`, of a text that is still being written: without thoughts that go on, even if they have
    only begun to begin, and without white space in front."""
    text, begun, _ = without_thoughts(text).partition(_THOUGHTS_BEGIN)
    if not begun:
        _, bracket, tail = text.rpartition("<")
        if bracket and _THOUGHTS_BEGIN.startswith(bracket + tail):
            text = text[: -len(bracket + tail)]
    return text.lstrip()


def find_open_object(text: str, fields: Collection[str]) -> dict[str, Any] | None:
    """Return what is there of the JSON object that `find_object` will find in a text that is still being written.

    A string or a number that has no end yet is given as far as it goes. None while no object has one of the fields.
    """
    decoder = json.JSONDecoder()
    found = None
    position, failed = text.find("{"), 0
    while position >= 0 and failed < _MAX_FAILED_STARTS:
        try:
            value, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            failed += 1
            # If it is an object that goes on, then all the rest of the text is in it.
            value, end = _open_object(text[position:]), position + 1
            if any(field in value for field in fields):
                return value
        if any(field in value for field in fields):
            found = value
        position = text.find("{", end)
    return found


def find_object(text: str, fields: Collection[str]) -> str:
    """Return the last JSON object in the text that has one of the fields; the text itself when there is none.

    The last one, because what a model quotes from its input comes before what it concludes. A text that is JSON
    already comes back unchanged.
    """
    stripped = text.strip()
    if stripped.startswith("{") and stripped.endswith("}") and _is_object(stripped):
        return stripped
    decoder = json.JSONDecoder()
    found = text
    position, failed = text.find("{"), 0
    while position >= 0 and failed < _MAX_FAILED_STARTS:
        end = position + 1
        try:
            value, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            failed += 1
        else:
            if any(field in value for field in fields):
                found = text[position:end]
        position = text.find("{", end)
    return found


def _is_object(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _open_object(text: str) -> dict[str, Any]:
    try:
        value = from_json(text, allow_partial="trailing-strings")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
