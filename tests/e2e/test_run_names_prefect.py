"""What runs are called on a real Prefect server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from prefect_parts import Project

# Prefect's engine asks for the default result storage with a client that it does not close.
pytestmark = [pytest.mark.prefect, pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]


def test_a_run_is_called_after_its_question_and_no_name_is_no_obstacle(tmp_path: Path, prefect_api: Any) -> None:
    from prefect.client.orchestration import get_client

    flow = Project(tmp_path).flow("""
        inputs: {question: str}
        nodes: {a: {use: mine.tag, text: $question}}
        outputs: $a
    """)

    async def names(*questions: str) -> list[str]:
        found = []
        async with get_client() as client:
            for question in questions:
                state: Any = await flow.prefect(question=question, return_state=True)
                assert state.is_completed()
                found.append((await client.read_flow_run(state.state_details.flow_run_id)).name)
        return found

    asked, blank = asyncio.run(names("When does the\nferry leave?", " "))
    assert asked == "When does the ferry leave?"
    assert "-" in blank  # Prefect's own choice of words
