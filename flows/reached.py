"""The outputs that a run reached, also where it failed."""

from __future__ import annotations

from typing import Any

from ragbraid.dsl.plan import Plan, SlotRef
from ragbraid.flows.trace import Trace


def reached_outputs(plan: Plan, trace: Trace) -> dict[str, Any]:
    """Return by name what a run has given; of one that failed, the outputs that it reached.

    An output that is what a step gave counts also where the step failed by its `ensure`: an ingestion in which too many
    sources failed has a report, and it says which.
    """
    reached = dict(trace.outputs)
    paths = {step.slot: step.path for step in plan.body.steps}
    for name, value in plan.outputs:
        if name in reached or not isinstance(value, SlotRef) or value.path or value.slot not in paths:
            continue
        entry = next((entry for entry in reversed(trace.steps) if entry.path == paths[value.slot]), None)
        if entry is not None and entry.output is not None:
            reached[name] = entry.output
    return reached
