"""What became of a run: in one line for the list of runs, and the outputs that it reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ragbraid.dsl.plan import Plan, SlotRef
from ragbraid.flows.trace import Trace
from ragbraid.registry.contracts import IndexReport

_COUNTS = ("added", "updated", "unchanged", "deleted", "failed")


def outcome_of(outputs: Any) -> str | None:
    """Return the totals of the ingestions among a flow's outputs: `3 added, 1 failed`; None where there is none.

    Args:
        outputs: what the flow gave: one value, or a mapping by name.
    """
    named = outputs if isinstance(outputs, Mapping) else {"": outputs}
    reports = {name: value for name, value in named.items() if isinstance(value, IndexReport)}
    lines = [f"{name}: {_totals(report)}" if len(reports) > 1 else _totals(report) for name, report in reports.items()]
    return "; ".join(lines) or None


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


def _totals(report: IndexReport) -> str:
    counts = [f"{count:,} {status}" for status in _COUNTS if (count := getattr(report, status))]
    return ", ".join(counts) or "no sources"
