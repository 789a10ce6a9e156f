"""What became of a run in one line, for the list of runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ragbraid.registry.contracts import IndexReport

_COUNTS = ("added", "updated", "unchanged", "deleted", "failed")
_MOST_NAMED = 3


def outcome_of(outputs: Any) -> str | None:
    """Return the totals of the ingestions among a flow's outputs: `3 added, 1 failed`; None where there is none.

    Args:
        outputs: what the flow gave: one value, or a mapping by name.
    """
    reports = _reports(outputs)
    lines = [f"{name}: {_totals(report)}" if len(reports) > 1 else _totals(report) for name, report in reports.items()]
    return "; ".join(lines) or None


def failures_of(outputs: Any, limit: int) -> list[str]:
    """Return a line `bad.pdf: why` for every source that the ingestions among a flow's outputs could not read.

    Args:
        outputs: what the flow gave: one value, or a mapping by name.
        limit: lines at most; one more says how many are left out.
    """
    told = [
        f"{source.source}: {source.reason or 'it could not be read'}"
        for report in _reports(outputs).values()
        for source in report.sources
        if source.status == "failed"
    ]
    return told if len(told) <= limit else [*told[:limit], f"and {len(told) - limit:,} more"]


def refused_outcome(value: Any) -> str | None:
    """Return what an ingestion did and which sources it could not read, for the sentence that refuses its report."""
    return "; ".join([_totals(value), *failures_of(value, _MOST_NAMED)]) if isinstance(value, IndexReport) else None


def _reports(outputs: Any) -> dict[str, IndexReport]:
    named = outputs if isinstance(outputs, Mapping) else {"": outputs}
    return {name: value for name, value in named.items() if isinstance(value, IndexReport)}


def _totals(report: IndexReport) -> str:
    counts = [f"{count:,} {status}" for status in _COUNTS if (count := getattr(report, status))]
    return ", ".join(counts) or "no sources"
