"""How items are shared out, what travels with them, and who runs them."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragbraid.dsl.plan import BlockStep, Limits, Map, Plan
from ragbraid.dsl.walk import branch_reads, map_steps, records_of
from ragbraid.flows.api import Flow, load
from ragbraid.flows.bundle import Bundle, bundle_of, load_with_bundle, open_bundle
from ragbraid.flows.frames import Frame
from ragbraid.flows.limits import RunLimits
from ragbraid.flows.parcels import Parcels, outside_frame, outside_values
from ragbraid.flows.project import load_project
from ragbraid.flows.remote_maps import MOST_ITEMS, share_out
from ragbraid.flows.task_runners import RunnerPlace, read_task_runner, runner_place
from ragbraid.registry.contracts import Usage
from ragbraid.registry.errors import RunError, SettingsError

MAPS = """
ragbraid: 1
name: maps
inputs: {names: "list[str]", mark: {type: "list[str]", default: []}}
nodes:
  before:
    loop:
      carry: {said: "list[str] = $mark"}
      nodes: {same: {map: {over: {one: $said}, nodes: {it: {map: {over: {two: $names}, nodes: {w: {use: mine.same, text: "${ two ~ one }"}}, output: $w}}}, output: $it}}}
      next: {said: "${ said + same[0] }"}
      max_steps: 2
  m:
    map:
      over: {name: $names}
      nodes:
        choice:
          switch:
            when: [{if: "${ before.steps > 1 }", nodes: {n: {use: mine.same, text: $name}}, output: $n}]
            else: {nodes: {n: {use: mine.same, text: "${ mark | join(name) }"}}, output: $n}
      output: $choice
outputs: $m
"""


NODES = '''
from ragbraid import node


@node("mine.same")
def same(text: str) -> str:
    """Give a text back."""
    return text
'''


def write(folder: Path, project: str = "", deploy: str = "{}") -> Path:
    (folder / "my_nodes.py").write_text(NODES)
    (folder / "ragbraid.toml").write_text(f'nodes = ["my_nodes.py"]\n{project}')
    path = folder / "maps.yaml"
    path.write_text(f"{MAPS}deploy: {deploy}\n")
    return path


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return load(write(tmp_path)).plan


def block_of(step: BlockStep) -> Map:
    assert isinstance(step.block, Map)
    return step.block


@given(st.integers(1, 2000), st.integers(1, 64), st.integers(1, 64))
def test_no_more_items_are_under_way_than_the_map_allows_and_no_slot_is_idle_that_could_work(
    items: int, concurrency: int, slots: int
) -> None:
    shares = share_out(items, concurrency, slots)
    assert shares.errands * shares.at_once <= concurrency
    assert 1 <= shares.at_once <= shares.size
    assert shares.size <= max(MOST_ITEMS, concurrency)
    assert shares.errands >= min(items, concurrency, slots) or shares.errands * shares.size >= items


@pytest.mark.parametrize(
    ("items", "concurrency", "slots", "shares"),
    [
        (64, 8, 2, (8, 4, 2)),  # four at a time on each of two workers, in eight errands
        (8, 8, 2, (4, 4, 2)),
        (2, 8, 2, (1, 1, 2)),
        (1, 8, 2, (1, 1, 1)),
        (10_000, 8, 2, (32, 4, 2)),
        (1000, 8, 100, (32, 1, 8)),
        (64, 1, 2, (16, 1, 1)),
    ],
)
def test_how_items_are_shared_out(items: int, concurrency: int, slots: int, shares: tuple[int, int, int]) -> None:
    found = share_out(items, concurrency, slots)
    assert (found.size, found.at_once, found.errands) == shares


def test_a_body_reads_what_its_steps_its_blocks_and_its_output_read_of_the_bodies_around_it(plan: Plan) -> None:
    inside, nested, last = (block_of(step) for step in map_steps(plan.body))
    names, mark, before = 0, 1, 2
    # `said` of the loop is the nearest scope of the first map, the flow the one after it.
    assert branch_reads(inside.branch) == {(2, names)}
    assert branch_reads(nested.branch) == {(1, 0)}
    assert branch_reads(last.branch) == {(1, before), (1, mark)}


def test_only_what_is_read_travels_and_stands_where_it_stood() -> None:
    outer = Frame(5)
    outer.values[:] = [0, 1, 2, 3, 4]
    inner = Frame(2, outer)
    inner.values[0] = "state"
    values = outside_values(frozenset({(1, 0), (1, 1), (2, 3)}), inner)
    assert values == {(1, 0): "state", (2, 3): 3}, "what has no value yet is left out"
    frame = outside_frame(values)
    assert frame.values[0] == "state"
    assert frame.parent is not None
    assert frame.parent.values[3] == 3
    assert outside_frame({}).values == []


def test_a_record_arrives_as_the_model_of_the_plan_that_receives_it(plan: Plan) -> None:
    here, there = plan, load(plan.file).plan
    record, other = next(records_of(here.body)), next(records_of(there.body))
    value: Any = record(said=["a"], steps=1, stopped_by="max_steps")
    arrived = Parcels(there).unpack(Parcels(here).pack([value, value]))
    assert type(arrived[0]) is other
    assert arrived[0] is arrived[1]
    assert arrived[0].model_dump() == value.model_dump()


def test_what_the_command_line_may_say() -> None:
    assert read_task_runner("dask") == RunnerPlace("dask")
    assert read_task_runner("ray=ray://head:10001") == RunnerPlace("ray", "ray://head:10001")
    for wrong, sentence in [("dusk", "choose one of threads, dask, ray"), ("threads=here", "has no address")]:
        with pytest.raises(SettingsError, match=sentence):
            read_task_runner(wrong)


def place_of(flow: Flow) -> RunnerPlace | None:
    return runner_place(flow.plan, flow.project)


def test_the_address_comes_from_the_project_or_its_profile_and_may_name_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAGBRAID_TEST_SCHEDULER", "tcp://far:8786")
    project = """
task_runners = {dask = "tcp://near:8786"}
[profiles.big.task_runners]
dask = "${env.RAGBRAID_TEST_SCHEDULER}"
[profiles.small]
"""
    path = write(tmp_path, project, "{task_runner: dask}")
    assert place_of(load(path)) == RunnerPlace("dask", "tcp://near:8786")
    assert place_of(load(path, profile="small")) == RunnerPlace("dask", "tcp://near:8786")
    assert place_of(load(path, profile="big")) == RunnerPlace("dask", "tcp://far:8786")
    assert place_of(load(path).with_task_runner("dask=tcp://mine:1")) == RunnerPlace("dask", "tcp://mine:1")
    assert place_of(load(path).with_task_runner("ray")) == RunnerPlace("ray")
    assert place_of(load(path).with_task_runner("threads")) is None


@pytest.mark.parametrize(
    ("project", "sentence"),
    [
        ('task_runners = {dusk = "tcp://x:1"}', "unknown key `task_runners.dusk`"),
        ("[profiles.big.task_runners]\ndask = 8786", "`dask` must be a text"),
        ("task_runners = 1", "must be a table"),
    ],
)
def test_a_project_file_that_is_wrong_about_task_runners(tmp_path: Path, project: str, sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        load_project(write(tmp_path, project))


def test_who_runs_items_travels_with_a_deployment(tmp_path: Path) -> None:
    path = write(tmp_path, 'task_runners = {dask = "tcp://near:8786"}', "{task_runner: dask}")
    flow, bundle = load_with_bundle(path)
    assert (
        place_of(open_bundle(Bundle.unpack(bundle.pack()))) == place_of(flow) == RunnerPlace("dask", "tcp://near:8786")
    )


def test_a_flow_that_was_not_loaded_from_a_file_cannot_go_to_another_process(plan: Plan) -> None:
    with pytest.raises(SettingsError, match="was not loaded from a file"):
        bundle_of(Flow(plan))


def test_the_flow_knows_the_files_that_it_was_made_of(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert load(path).files == {path: path.read_bytes()}


def test_what_is_left_of_limits_is_told_to_errands() -> None:
    limits = RunLimits(Limits(seconds=5, llm_calls=3, tokens=100))
    limits.charge("a", Usage(llm_calls=2, prompt_tokens=30, completion_tokens=10))
    assert limits.remaining() == Limits(llm_calls=1, tokens=60)
    with pytest.raises(RunError):
        limits.charge("a", Usage(llm_calls=2))
    assert limits.remaining() == Limits(llm_calls=0, tokens=60)
    assert RunLimits(Limits()).remaining() == Limits()
