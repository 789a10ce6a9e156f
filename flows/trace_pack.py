"""A trace in the form in which a server keeps it: compressed text of bounded size, and back."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import ValidationError

from ragbraid.flows.trace import StepTrace, Trace
from ragbraid.flows.trace_record import RunRecord
from ragbraid.registry.errors import SettingsError

MAX_PACKED = 256 * 1024
"""Characters of a packed trace: what one run may take in the server's database."""

MAX_STEPS = 2_000
"""Steps that keep an entry."""

MAX_VALUES = 2 * 1024 * 1024
"""Characters of JSON that inputs and outputs of steps may take before they are compressed."""

NOT_KEPT = "(not kept: the trace was too large)"
"""Stands where a value was left out."""

_MAX_UNPACKED = 64 * 1024 * 1024
_LEVEL = 6


def pack_trace(trace: Trace) -> str:
    """Return a trace as text of at most 256 KiB, gzip in base64; it says itself how much of it is left out.

    Values of steps go first, from the middle of the run: what failed, the flow's own steps, and the first and last
    rounds of a loop are kept for longest. Then entries of steps go, in the same order.
    """
    facts = trace.facts()
    for name in ("inputs", "outputs"):
        if len(_json(facts[name])) > MAX_VALUES // 4:
            facts[name] = {"": NOT_KEPT}
    order = _most_telling_first(trace.steps)
    entries = order[:MAX_STEPS]
    values = _values_within(trace.steps, entries, MAX_VALUES)
    while len(packed := _pack(facts, trace.steps, entries, values)) > MAX_PACKED:
        # Of what compresses badly, half is kept, and half of that.
        if values:
            values = dict(list(values.items())[: len(values) // 2])
        elif entries:
            entries = entries[: len(entries) // 2]
        else:
            facts = {**facts, "inputs": {"": NOT_KEPT}, "outputs": {"": NOT_KEPT}, "drawing": None}
    return packed


def unpack_trace(packed: str) -> RunRecord:
    """Return the run that a packed trace tells of.

    Raises:
        SettingsError: it is no packed trace, or one that another version of ragbraid wrote in another form.
    """
    try:
        unpacking = zlib.decompressobj(wbits=31)
        text = unpacking.decompress(base64.b64decode(packed, validate=True), _MAX_UNPACKED)
        if unpacking.eof:
            return RunRecord.model_validate(json.loads(text))
        reason = "it is cut off or too long"
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        reason = f"{'.'.join(map(str, first['loc'])) or 'the whole'}: {first['msg']}"
    except (ValueError, zlib.error) as error:
        reason = str(error)
    raise SettingsError(
        f"the trace that the run has left cannot be read ({reason})",
        hint="another version of ragbraid may have written it, or something else",
    )


def _pack(
    facts: dict[str, Any], steps: Sequence[StepTrace], entries: Iterable[int], values: dict[int, dict[str, Any]]
) -> str:
    told = [
        {**steps[number].facts(), **values.get(number, {"inputs": {}, "output": NOT_KEPT})}
        for number in sorted(entries)
    ]
    whole = {
        **facts,
        "steps": told,
        "steps_left_out": len(steps) - len(told),
        "values_left_out": len(told) - len(values),
    }
    return base64.b64encode(gzip.compress(_json(whole).encode(), _LEVEL, mtime=0)).decode()


def _most_telling_first(steps: Sequence[StepTrace]) -> list[int]:
    """Return the places of the steps: failed ones, those of the flow itself, then the others from both ends inwards."""
    inwards = [place for pair in zip(range(len(steps)), reversed(range(len(steps))), strict=True) for place in pair]
    return sorted(dict.fromkeys(inwards), key=lambda place: _importance(steps[place]))


def _importance(step: StepTrace) -> int:
    if step.error is not None:
        return 0
    return 2 if "." in step.path else 1


def _values_within(steps: Sequence[StepTrace], order: Sequence[int], room: int) -> dict[int, dict[str, Any]]:
    """Return the values of the first steps of an order that fit; no more than twice the room is looked at."""
    kept: dict[int, dict[str, Any]] = {}
    looked_at = taken = 0
    for number in order:
        values = steps[number].values()
        size = len(_json(values))
        looked_at += size
        if taken + size <= room:
            taken += size
            kept[number] = values
        if looked_at > 2 * room:
            break
    return kept


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace").decode()
