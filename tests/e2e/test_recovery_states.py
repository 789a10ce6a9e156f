"""What the states of flow runs and task runs say: what happened, where, and what to do, in a sentence and no traceback.

A failure inside blocks, wrong inputs and timeouts are also in `test_prefect_runner.py` and `test_prefect_blocks.py`.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from prefect_parts import Project, records_of

from ragbraid.flows.api import Flow
from ragbraid.registry.errors import RunError

# Prefect's engine asks for the default result storage with a client that it does not close.
pytestmark = [pytest.mark.prefect, pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]

NODES = '''
from ragbraid import ServiceError, Usage, node
from ragbraid.registry.context import report_usage


@node("own.ask", cacheable=False)
def ask(text: str, *, kind: str = "", calls: int = 0) -> str:
    """Ask a service."""
    if kind:
        raise ServiceError("the endpoint refuses", kind=kind, hint="look at its key")
    for _ in range(calls):
        report_usage(Usage(llm_calls=1))
    return text
'''


@pytest.fixture
def project(tmp_path: Path, prefect_api: Any) -> Project:
    made = Project(tmp_path)
    (tmp_path / "own_nodes.py").write_text(NODES)
    (tmp_path / "ragbraid.toml").write_text('nodes = ["my_nodes.py", "own_nodes.py"]\n')
    return made


def states_of(flow: Flow, tasks: int) -> tuple[Any, dict[str, Any]]:
    """Run a flow; return its state and those of its task runs by name."""

    async def work() -> tuple[Any, dict[str, Any]]:
        state: Any = await flow.prefect(text="x", return_state=True)
        found = await records_of(state.state_details.flow_run_id, tasks)
        return state, {run.name: run.state for run in found}

    return asyncio.run(work())


def one(step: str, more: str = "") -> str:
    return f"inputs: {{text: str}}\nnodes: {{a: {{{step}, text: $text}}}}\noutputs: $a\n{more}"


@pytest.mark.parametrize(
    ("text", "of_flow", "of_step"),
    [
        (one("use: own.ask, kind: auth"), "step `a`: the endpoint refuses (hint: look at its key)", None),
        (one("use: own.ask, kind: rate_limit, retry: {attempts: 2, delay: 10ms}"), "step `a`: the endpoint refuses (hint: look at its key)", None),
        (one("use: own.ask, calls: 3", "limits: {llm_calls: 2}"), "the run was ended at `a`: it used 3 LLM calls, its limit is 2 (hint: raise `limits: {llm_calls: ...}` in the flow if this much is wanted)", None),
        (one("use: own.ask, ensure: '${ out | length > 5 }'"), "what `a` gave does not keep `ensure: ${ out | length > 5 }`", "Completed"),
        (one("use: mine.crash"), "`a` failed with ValueError: cannot do x", None),
    ],
    ids=["key", "rate limit", "limits", "ensure", "fault of a node"],
)  # fmt: skip
def test_a_failure_is_the_message_of_both_states(
    project: Project, caplog: pytest.LogCaptureFixture, text: str, of_flow: str, of_step: str | None
) -> None:
    flow = project.flow(text)
    state, steps = states_of(flow, 1)
    assert (state.name, state.message) == ("Failed", of_flow)
    if of_step is None:
        assert (steps["a"].name, steps["a"].message) == ("Failed", of_flow)
    else:
        assert steps["a"].name == of_step
    assert not any(record.exc_info for record in caplog.records if record.levelno >= logging.ERROR)
    with pytest.raises(RunError) as caught:
        asyncio.run(flow.prefect(text="x"))
    assert caught.value.step == "a"


def test_a_run_that_went_on_without_a_step_is_completed_and_says_what_is_missing(project: Project) -> None:
    flow = project.flow("""
        inputs: {text: str}
        nodes:
          left:  {use: own.ask, text: $text, kind: unavailable, on_error: {use: mine.tag, text: $text}}
          right: {use: own.ask, text: $text, kind: auth, on_error: skip}
        outputs: {left: $left, right: $right}
    """)
    state, steps = states_of(flow, 3)
    assert state.name == "Completed"
    reasons = [f"step `{name}`: the endpoint refuses (hint: look at its key)" for name in ("left", "right")]
    assert state.message == "degraded: " + "; ".join(reasons)
    assert {name: found.name for name, found in steps.items() if name in ("left", "right")} == {
        "left": "Failed",
        "right": "Failed",
    }
    assert sorted(found.name for found in steps.values()) == ["Completed", "Failed", "Failed"]
    assert asyncio.run(flow.prefect(text="x")) == {"left": "x!", "right": None}
