from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

NOW = datetime(2026, 11, 30, 16, 14, 54, tzinfo=UTC)


@pytest.mark.parametrize(
    ("planned_by_a_schedule", "due_in_seconds", "has_begun", "expected"),
    [(True, 6, False, True), (True, -6, False, False), (True, 6, True, False), (False, 2, False, False)],
)
def test_a_run_is_only_planned_while_its_schedule_does_not_ask_for_it_yet(
    planned_by_a_schedule: bool, due_in_seconds: int, has_begun: bool, expected: bool
) -> None:
    from prefect.client.schemas.objects import FlowRun

    from ragbraid.flows.prefect_history import is_only_planned

    run = FlowRun(
        flow_id=uuid4(),
        auto_scheduled=planned_by_a_schedule,
        expected_start_time=NOW + timedelta(seconds=due_in_seconds),
        start_time=NOW if has_begun else None,
    )
    assert is_only_planned(run, NOW) is expected
