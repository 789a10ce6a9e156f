"""A run as its trace tells it, read back from JSON: what is shown of a run that is over, wherever it ran."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, ValidationError

from ragbraid.dsl.layout import Drawing
from ragbraid.flows.trace import RunStatus, Trace
from ragbraid.registry.context import StepStatus
from ragbraid.registry.contracts import Usage
from ragbraid.registry.errors import SettingsError

_TOKENS_OF_A_PRICE = 1_000_000


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class ErrorRecord(_Record):
    """Why a step or a run failed."""

    class_: str = Field(alias="class")
    kind: str
    step: str | None
    message: str
    hint: str | None


class StepRecord(_Record):
    """What one step did; times are seconds since the start of the run."""

    path: str
    node: str
    status: StepStatus
    started: NonNegativeFloat
    ended: NonNegativeFloat | None
    attempts: int
    cached: bool
    usage: Usage
    notes: tuple[str, ...]
    error: ErrorRecord | None
    inputs: Mapping[str, Any]
    output: Any


class RunRecord(_Record):
    """What one run did; `steps` are in the order in which they started."""

    flow: str
    plan: str
    status: RunStatus
    seconds: NonNegativeFloat
    abandoned_calls: int
    started_at: datetime
    usage: Usage
    error: ErrorRecord | None
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    steps: tuple[StepRecord, ...]
    drawing: Drawing | None = None
    steps_left_out: int = 0
    values_left_out: int = 0
    """Steps that a trace of bounded size has no entry of, and entries whose inputs and output it does not have."""

    @property
    def gaps(self) -> str:
        """What a trace of bounded size does not have, as a sentence; empty where it has everything."""
        parts = (
            (self.steps_left_out, "step of its middle", "steps of its middle"),
            (self.values_left_out, "step's inputs and output", "steps' inputs and outputs"),
        )
        told = [f"{count:,} {one if count == 1 else many}" for count, one, many in parts if count]
        return f"the trace was too large to be kept whole: without {' and '.join(told)}" if told else ""


@dataclass(frozen=True, slots=True)
class Prices:
    """What a model's tokens cost, in US dollars per million."""

    prompt_usd: float
    completion_usd: float

    def cost_usd(self, usage: Usage) -> float:
        """Return what a step paid for. Tokens of a step without a call of a model are an embedder's and cost nothing."""
        if not usage.llm_calls:
            return 0.0
        paid = usage.prompt_tokens * self.prompt_usd + usage.completion_tokens * self.completion_usd
        return paid / _TOKENS_OF_A_PRICE


def record_of(trace: Trace) -> RunRecord:
    """Return what a trace of this process tells."""
    return RunRecord.model_validate(trace.to_dict())


def read_trace(path: Path) -> RunRecord:
    """Read a trace that `Trace.write` wrote.

    Raises:
        SettingsError: there is no such file, or it holds no trace.
    """
    try:
        return RunRecord.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise SettingsError(f"the trace {path} cannot be read: {error.strerror or error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise SettingsError(
            f"{path} is no trace of a run ({place}: {first['msg']})", hint="`ragbraid run FLOW --trace FILE` writes one"
        ) from error
    except ValueError as error:
        raise SettingsError(
            f"{path} is no JSON, so no trace of a run: {error}", hint="`ragbraid run FLOW --trace FILE` writes one"
        ) from error
