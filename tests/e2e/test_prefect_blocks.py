"""Blocks and flows as nodes under Prefect: one flow run, task runs named by their place."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from prefect_parts import Project, run_state, task_runs

# Prefect's engine asks for the default result storage with a client that it does not close.
pytestmark = [pytest.mark.prefect, pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]

SUB = """
ragbraid: 1
name: marked_twice
inputs: {text: str}
nodes:
  one: {use: mine.tag, mark: "?"}
  two: {use: mine.tag, text: $one, mark: "?"}
outputs: $two
"""

EVERY_BLOCK = """
    inputs: {text: str}
    nodes:
      interleave:
        loop:
          carry: {said: str = $text}
          nodes: {think: {use: mine.tag, text: $said}}
          next: {said: $think}
          stop_when: {long: "${ think | length >= 4 }"}
          max_steps: 9
      parts:
        map:
          over: {letter: "${ ['x', 'y'] }"}
          nodes: {double: {use: mine.twice, text: $letter}}
          output: $double
      route:
        switch:
          on: ${ text == 'a' }
          cases:
            'true': {use: mine.join, second: "${ parts | join('+') }"}
            'false': {use: mine.tag, text: never}
      last: {use: ./sub.yaml, text: $route}
    flow: interleave.said -> route
    outputs: {last: $last, why: $interleave.stopped_by}
"""


@pytest.fixture
def project(tmp_path: Path, prefect_api: Any) -> Project:
    (tmp_path / "sub.yaml").write_text(SUB)
    return Project(tmp_path)


def test_task_runs_bear_the_place_of_their_step_and_the_answer_is_the_same(project: Project) -> None:
    flow = project.flow(EVERY_BLOCK)
    inline = flow.run_traced({"text": "a"}, engine="inline")
    assert inline.outputs == {"last": "a!!!|xx+yy??", "why": "long"}
    runs = task_runs(flow, 8, text="a")
    names = ["interleave[1].think", "interleave[2].think", "interleave[3].think", "last.one", "last.two"]
    names += ["parts[1].double", "parts[2].double", "route[true].join"]
    assert [run.name for run in runs] == names
    assert len({run.flow_run_id for run in runs}) == 1, "a flow as a node is no flow run of its own"
    on_prefect = flow.run_traced({"text": "a"}, engine="prefect")
    assert on_prefect.outputs == inline.outputs
    assert sorted(step.path for step in on_prefect.trace.steps) == sorted(step.path for step in inline.trace.steps)
    notes = {step.path: step.notes for step in on_prefect.trace.steps}
    assert notes["interleave"] == ["ended after 3 steps: long"]
    assert notes["route"] == ["took true"]


def test_a_retried_flow_run_repeats_no_finished_step_of_a_loop(project: Project) -> None:
    flow = project.flow("""
        inputs: {text: str}
        nodes:
          l:
            loop:
              carry: {said: str = $text}
              nodes:
                more: {use: mine.tag, text: $said}
                sure: {use: mine.flaky, text: $more, failures: 1, when: "${ more | length > 2 }"}
              next: {said: $more}
              stop_when: {sure: "${ sure is not none }"}
              max_steps: 5
        outputs: $l.said
    """)
    assert asyncio.run(flow.prefect.with_options(retries=1)(text="a")) == "a!!"
    assert project.module(flow).COUNTS == {"tag": 2, "flaky": 2}


def test_a_failure_inside_blocks_names_its_place_in_the_state_of_the_run(project: Project) -> None:
    flow = project.flow("""
        inputs: {text: str}
        nodes:
          m:
            map:
              over: {letter: "${ ['x'] }"}
              nodes: {g: {nodes: {bad: {use: mine.crash, text: $letter}}, output: $bad}}
              output: $g
        outputs: $m
    """)
    state = run_state(flow, text="a")
    assert state.is_failed()
    assert "`m[1].g.bad` failed with ValueError: cannot do x" in state.message


def visible_task_runs(project: Project, visible: Any, expected: int) -> list[Any]:
    return task_runs(project.flow(EVERY_BLOCK).with_visible(visible), expected, text="a")


def test_at_blocks_a_block_is_one_task_run_with_the_edges_of_the_flow(project: Project) -> None:
    runs = {run.name: run for run in visible_task_runs(project, "blocks", 4)}
    assert sorted(runs) == ["interleave", "last", "parts", "route"]
    upstream = {name: {given.id for given in run.task_inputs["inputs"]} for name, run in runs.items()}
    assert upstream["route"] == {runs["interleave"].id, runs["parts"].id}
    assert upstream["last"] == {runs["route"].id}


def test_at_flow_nothing_is_a_task_run_and_every_level_gives_the_same_answer_and_trace(project: Project) -> None:
    assert visible_task_runs(project, "flow", 0) == []
    flow = project.flow(EVERY_BLOCK)
    inline = flow.run_traced({"text": "a"})
    for visible in ("blocks", "flow"):
        result = flow.with_visible(visible).run_traced({"text": "a"}, engine="prefect")
        assert result.outputs == inline.outputs
        assert {s.path: s.notes for s in result.trace.steps} == {s.path: s.notes for s in inline.trace.steps}


def test_at_blocks_a_retried_flow_run_repeats_no_finished_block(project: Project) -> None:
    flow = project.flow("""
        inputs: {text: str}
        deploy: {visible: blocks}
        nodes:
          l:
            loop:
              carry: {said: str = $text}
              nodes: {more: {use: mine.tag, text: $said}}
              next: {said: $more}
              max_steps: 3
          sure: {use: mine.flaky, text: $l.said, failures: 1}
        outputs: {sure: $sure, why: $l.stopped_by, steps: $l.steps}
    """)
    again = flow.prefect.with_options(retries=1)
    assert asyncio.run(again(text="a")) == {"sure": "a!!!", "why": "max_steps", "steps": 3}
    assert project.module(flow).COUNTS == {"tag": 3, "flaky": 2}


def test_at_blocks_a_block_keeps_its_own_retries_timeout_and_replacement(project: Project) -> None:
    flow = project.flow("""
        inputs: {text: str}
        deploy: {visible: blocks}
        nodes:
          again:
            nodes: {sure: {use: mine.flaky, text: $text, failures: 1}}
            output: $sure
            retry: {attempts: 2, delay: 10ms}
          late:
            nodes: {never: {use: mine.stuck, text: $text}}
            output: $never
            timeout: 0.2s
            on_error: {use: mine.tag, text: "instead"}
        outputs: {again: $again, late: $late}
    """)
    result = flow.run_traced({"text": "a"}, engine="prefect")
    project.module(flow).RELEASE.set()
    assert result.outputs == {"again": "a", "late": "instead!"}
    assert "`late` (group) did not finish within 0.2 s" in str(result.trace.step("late").error)


def test_a_failure_inside_a_block_that_is_one_task_run_names_its_place(project: Project) -> None:
    flow = project.flow("""
        inputs: {text: str}
        deploy: {visible: blocks}
        nodes:
          m:
            map:
              over: {letter: "${ ['x'] }"}
              nodes: {bad: {use: mine.crash, text: $letter}}
              output: $bad
        outputs: $m
    """)
    state = run_state(flow, text="a")
    assert state.is_failed()
    assert "`m[1].bad` failed with ValueError: cannot do x" in state.message
