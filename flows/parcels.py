"""Values on their way between processes: pickled so that the models which a plan makes for itself arrive as its own.

The output of a loop, and of a flow with several outputs, is a model that is made while the plan is compiled. Each process
has its own; what travels is the model's number in the plan, so that it is one of the plan's own models everywhere.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any

from ragbraid.dsl.plan import Plan
from ragbraid.dsl.records import Record
from ragbraid.dsl.walk import records_of
from ragbraid.flows.frames import UNSET, Frame

Outside = Mapping[tuple[int, int], Any]
"""Values of the bodies around a branch by how many bodies outwards they stand, from 1, and their slot there."""


class Parcels:
    """Packs and unpacks values that belong to runs of one plan."""

    def __init__(self, plan: Plan) -> None:
        self._records = tuple(records_of(plan.body))
        self._numbers = {record: number for number, record in enumerate(self._records)}

    def pack(self, value: Any) -> bytes:
        """Return a value as bytes.

        Raises:
            Exception: whatever a value raises that cannot be pickled.
        """
        buffer = io.BytesIO()
        _Pickler(buffer, self._numbers).dump(value)
        return buffer.getvalue()

    def unpack(self, content: bytes) -> Any:
        """Return the value. Only for contents that another process of the same run has packed."""
        return _Unpickler(io.BytesIO(content), self._records).load()


def outside_values(reads: frozenset[tuple[int, int]], frame: Frame) -> dict[tuple[int, int], Any]:
    """Return what a branch reads of the frames around it, of which `frame` is the nearest."""
    found = {}
    for depth, slot in sorted(reads):
        around = frame
        for _ in range(depth - 1):
            assert around.parent is not None, "a branch reads a scope that is not there"
            around = around.parent
        if around.values[slot] is not UNSET:
            found[depth, slot] = around.values[slot]
    return found


def outside_frame(values: Outside) -> Frame:
    """Return a frame around a branch that holds these values and nothing else."""
    frame: Frame | None = None
    for depth in range(max((depth for depth, _ in values), default=1), 0, -1):
        here = {slot: value for (level, slot), value in values.items() if level == depth}
        frame = Frame(max(here, default=-1) + 1, frame)
        for slot, value in here.items():
            frame.values[slot] = value
    assert frame is not None
    return frame


def _made(record: type[Record], values: Mapping[str, Any]) -> Record:
    return record.model_construct(**values)


class _Pickler(pickle.Pickler):
    def __init__(self, buffer: io.BytesIO, numbers: Mapping[type[Any], int]) -> None:
        super().__init__(buffer, protocol=pickle.HIGHEST_PROTOCOL)
        self._numbers = numbers

    def persistent_id(self, obj: Any) -> int | None:
        return self._numbers.get(obj) if isinstance(obj, type) else None

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) not in self._numbers:
            return NotImplemented
        return _made, (type(obj), {name: getattr(obj, name) for name in type(obj).model_fields})


class _Unpickler(pickle.Unpickler):
    def __init__(self, buffer: io.BytesIO, records: tuple[type[Any], ...]) -> None:
        super().__init__(buffer)
        self._records = records

    def persistent_load(self, pid: Any) -> Any:
        return self._records[pid]
