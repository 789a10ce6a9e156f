"""What a run did, step by step. Recording costs next to nothing; the bounded JSON form is made when it is asked for."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, time
from enum import Enum
from html import escape
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel

from ragbraid.dsl.layout import draw_plan
from ragbraid.flows.secrets import redact
from ragbraid.registry.context import ProgressListener, StepContext, StepStatus, TextListener, UsageListener
from ragbraid.registry.contracts import Answer, Usage
from ragbraid.registry.errors import RunError, SettingsError

if TYPE_CHECKING:
    from ragbraid.dsl.plan import Plan

RunStatus = Literal["running", "ok", "failed", "cancelled"]

MAX_TEXT = 2_000
MAX_ITEMS = 20
MAX_DEPTH = 12

_NO_USAGE = Usage()
_NOTHING: Mapping[str, Any] = {}


@dataclasses.dataclass(frozen=True, slots=True)
class Bounded:
    """A value that was bounded where it arose: all that a step in another process tells of its inputs and output."""

    json: Any


class StepTrace(StepContext):
    """What one step did. It is also what the step's node reports to while it runs.

    Times are seconds since the start of the run. `attempts` counts the calls of the node: 0 for a step that was
    skipped or answered from a cache. Attributes that a plain step never changes are class attributes, since one of
    these is made for every step.
    """

    usage: Usage = _NO_USAGE
    ended: float | None = None
    attempts: int = 1
    cached: bool = False
    state: Literal["failed", "skipped"] | None = None
    error: Exception | None = None
    inputs: Mapping[str, Any] = _NOTHING
    output: Any = None

    on_progress: ProgressListener | None = None
    on_usage: UsageListener | None = None
    on_text: TextListener | None = None
    texts: int = 0
    status: StepStatus | None = None

    def __init__(self, path: str, node: str, started: float) -> None:
        self.path = path
        self.node = node
        self.started = started
        self.notes = []

    @property
    def outcome(self) -> StepStatus:
        """How the step ended, in one word.

        `failed` and `skipped` are the scheduler's; `degraded` is what the node reported or what its output says;
        `empty` is an output that `is_empty`; everything else is `ok`.
        """
        if self.state is not None:
            return self.state
        if self.status is not None:
            return self.status
        if getattr(self.output, "degraded", False) is True:
            return "degraded"
        return "empty" if is_empty(self.output) else "ok"

    def to_dict(self) -> dict[str, Any]:
        """Return the step's entry of the trace, bounded."""
        return {**self.facts(), **self.values()}

    def facts(self) -> dict[str, Any]:
        """Return the entry without the values that went in and came out."""
        return {
            "path": self.path,
            "node": self.node,
            "status": self.outcome,
            "started": round(self.started, 6),
            "ended": None if self.ended is None else round(self.ended, 6),
            "attempts": self.attempts,
            "cached": self.cached,
            "usage": self.usage.model_dump(),
            "notes": [bounded(note) for note in self.notes],
            "error": _error_dict(self.error),
        }

    def values(self) -> dict[str, Any]:
        """Return what went into the step and what came out, bounded."""
        return {
            "inputs": {name: bounded(value) for name, value in self.inputs.items()},
            "output": bounded(self.output),
        }


class Trace:
    """What one run did. `steps` are in the order in which they started.

    Make one and hand it to the run where it is wanted whatever happens, a cancelled run included; else it comes with
    the result or as `.trace` of the error.
    """

    _FIELDS: ClassVar[tuple[str, ...]] = ("flow", "plan", "status", "seconds", "abandoned_calls")

    def __init__(self) -> None:
        self.flow = ""
        self.plan = ""
        self.status: RunStatus = "running"
        self.started_at = datetime.now(UTC)
        self.origin = perf_counter()
        self.seconds = 0.0
        self.inputs: Mapping[str, Any] = {}
        self.outputs: Mapping[str, Any] = {}
        """What the flow gave; of a run that failed, the outputs that it had reached. One value stands under ``""``."""
        self.error: BaseException | None = None
        self.steps: list[StepTrace] = []
        self.abandoned_calls = 0
        """Calls of blocking nodes that were left behind in their threads; whatever they return is dropped."""
        self._planned: Plan | None = None
        self._loaded: dict[str, Any] | None = None

    def begin(self, plan: Plan, inputs: Mapping[str, Any]) -> None:
        """Record that the run of a flow starts now."""
        self.flow, self.plan, self.inputs = plan.name, plan.hash, inputs
        self._planned = plan
        self.started_at = datetime.now(UTC)
        self.origin = perf_counter()

    def finish(self, status: RunStatus, outputs: Mapping[str, Any], error: BaseException | None = None) -> None:
        """Record how the run ended."""
        self.status, self.outputs, self.error = status, outputs, error
        self.seconds = perf_counter() - self.origin

    @property
    def usage(self) -> Usage:
        """What all steps used together."""
        return sum((step.usage for step in self.steps), _NO_USAGE)

    def step(self, path: str) -> StepTrace:
        """Return the entry of a step; the last one where a step of that path ran more than once.

        Raises:
            KeyError: no step of that path was started.
        """
        for entry in reversed(self.steps):
            if entry.path == path:
                return entry
        raise KeyError(path)

    def to_dict(self) -> dict[str, Any]:
        """Return the trace as JSON values: long texts and lists are cut and say by how much.

        The drawing of the flow is part of it, so that a trace can be shown where the flow is not, or is another by now.
        """
        if self._loaded is not None:
            return self._loaded
        return {**self.facts(), "steps": [step.to_dict() for step in self.steps]}

    def facts(self) -> dict[str, Any]:
        """Return what `to_dict` does, without the steps."""
        return {
            **{name: getattr(self, name) for name in self._FIELDS},
            "started_at": self.started_at.isoformat(),
            "usage": self.usage.model_dump(),
            "error": _error_dict(self.error),
            "inputs": {name: bounded(value) for name, value in self.inputs.items()},
            "outputs": {name: bounded(value) for name, value in self.outputs.items()},
            "drawing": None if self._planned is None else draw_plan(self._planned).to_dict(),
        }

    def write(self, path: Path | str) -> None:
        """Write the trace as a JSON file, whole or not at all.

        Raises:
            SettingsError: the file cannot be written.
        """
        target = Path(path)
        partial = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            partial.write_text(json.dumps(self.to_dict(), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
            partial.replace(target)
        except OSError as error:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise SettingsError(f"the trace cannot be written to {target}: {error.strerror or error}") from error

    def _repr_html_(self) -> str:
        """Return the trace page, which loads nothing and runs no script, in a frame: what a notebook shows of a run."""
        from ragbraid.flows.trace_page import trace_page
        from ragbraid.flows.trace_record import record_of

        style = "width: 100%; height: 36em; border: 1px solid #ccc"
        return f'<iframe srcdoc="{escape(trace_page(record_of(self)))}" sandbox="" style="{style}"></iframe>'

    def __reduce__(self) -> tuple[Any, ...]:
        # Values of steps may be anything, so a trace travels (with a pickled error) in its bounded form.
        return _rebuild, (self.to_dict(),)


def is_empty(value: Any) -> bool:
    """Whether an output holds nothing: None, anything of length 0 (a ranking, a list, a text), or a refused answer."""
    if value is None:
        return True
    if isinstance(value, Answer):
        return value.refused
    if isinstance(value, int | float):
        return False
    try:
        return len(value) == 0
    except TypeError:
        return False


def bounded(value: Any, depth: int = MAX_DEPTH) -> Any:
    """Return a value as JSON of bounded size.

    Secrets that this process has resolved are replaced by their references. Texts longer than 2,000 characters and lists or mappings longer than 20 are cut and end with the number of what is
    left out. Models and dataclasses become their fields; anything else that is no JSON value is shown by its class
    alone, since its text might hold what must not be shown.
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, Bounded):
        return value.json
    if isinstance(value, str):
        text = redact(str(value.value) if isinstance(value, Enum) else value)
        return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… ({len(text) - MAX_TEXT:,} more characters)"
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth == 0:
        return f"<{type(value).__name__}>"
    if isinstance(value, BaseModel):
        return {name: bounded(getattr(value, name), depth - 1) for name in type(value).model_fields}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: bounded(getattr(value, item.name), depth - 1) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return _bounded_mapping(value, depth)
    if isinstance(value, list | tuple | set | frozenset):
        items = [bounded(item, depth - 1) for _, item in zip(range(MAX_ITEMS), value, strict=False)]
        return items if len(value) <= MAX_ITEMS else [*items, f"… ({len(value) - MAX_ITEMS:,} more)"]
    return _plain_text(value)


def _bounded_mapping(value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    pairs = zip(range(MAX_ITEMS), value.items(), strict=False)
    result = {str(key): bounded(item, depth - 1) for _, (key, item) in pairs}
    if len(value) > MAX_ITEMS:
        result["…"] = f"({len(value) - MAX_ITEMS:,} more)"
    return result


def _plain_text(value: Any) -> str:
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, bytes):
        return f"<{len(value):,} bytes>"
    shape = getattr(value, "shape", None)
    return f"<{type(value).__name__}{'' if shape is None else f' {shape}'}>"


def _error_dict(error: BaseException | None) -> dict[str, Any] | None:
    if error is None:
        return None
    run_error = error if isinstance(error, RunError) else None
    return {
        "class": type(error).__name__,
        "kind": run_error.kind if run_error else "failed",
        "step": run_error.step if run_error else None,
        "message": bounded(str(error)),
        "hint": bounded(getattr(error, "hint", None)),
    }


def _rebuild(loaded: dict[str, Any]) -> Trace:
    trace = Trace()
    for name in Trace._FIELDS:
        setattr(trace, name, loaded[name])
    trace.started_at = datetime.fromisoformat(loaded["started_at"])
    trace._loaded = loaded
    return trace
