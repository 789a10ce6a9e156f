"""What became of a run in one line, for the list of runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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


def _totals(report: IndexReport) -> str:
    counts = [f"{count:,} {status}" for status in _COUNTS if (count := getattr(report, status))]
    return ", ".join(counts) or "no sources"
