"""Items of maps in the processes of a task runner: a Dask cluster of two workers, and Ray where it is installed."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from cli_parts import run_here
from prefect_parts import records_of, task_runs

from ragbraid.flows.api import Flow, load
from ragbraid.flows.fleets import close_fleets, open_fleet
from ragbraid.flows.runner import RunEvent
from ragbraid.flows.scripted_llm import ScriptedLLM
from ragbraid.flows.scripted_rules import Rule
from ragbraid.flows.task_runners import RunnerPlace
from ragbraid.flows.trace import Trace
from ragbraid.registry.errors import LimitError, NodeOutputError, RunError, ServiceError, SettingsError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("task_runners"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

NODES = '''
import asyncio
import os
import signal
import time
from pathlib import Path

from ragbraid import LLM, Embedder, NodeOutputError, Reranker, Usage, node, resource
from ragbraid.registry.context import current_folder, report_note, report_usage
from ragbraid.registry.resources import Message


def log(name, what=""):
    with (Path(__file__).parent / name).open("a") as stream:
        stream.write(f"{os.getpid()} {what}\\n")


class Weight:
    """A value that tells whenever it arrives somewhere."""

    def __init__(self, size):
        self.text = "x" * size

    def __setstate__(self, state):
        self.__dict__.update(state)
        log("arrivals", len(self.text))


@node("mine.weigh", cacheable=False)
def weigh(size: int) -> object:
    """Make something heavy."""
    return Weight(size)


@node("mine.measure")
def measure(name: str, *, heavy: object) -> str:
    """Use something heavy."""
    return f"{name} {len(heavy.text)}"


@node("mine.where")
def where(name: str) -> int:
    """Say in which process it runs, once two of them have been here."""
    log("here", name)
    for _ in range(600):
        if len({line.split()[0] for line in (Path(__file__).parent / "here").read_text().splitlines()}) > 1:
            break
        time.sleep(0.05)
    return os.getpid()


@node("mine.join")
def join(first: str, second: str) -> str:
    """Join two texts."""
    report_note(f"joined {first}")
    return f"{first}-{second}"


@node("mine.check")
def check(name: str, *, bad: list[str] = []) -> str:
    """Refuse some names."""
    if name in bad:
        raise NodeOutputError(f"{name} is bad")
    return name.upper()


@node("mine.spend", cacheable=False)
def spend(name: str) -> str:
    """Use a model as it were."""
    log("calls", name)
    report_usage(Usage(llm_calls=1, prompt_tokens=10))
    return name


@node("mine.wait", cacheable=False)
async def wait(name: str) -> str:
    """Wait until it is cancelled."""
    log("waiting", name)
    try:
        await asyncio.sleep(120)
    finally:
        log("ended", name)
    return name


@node("mine.die", cacheable=False)
def die(name: str, *, times: int = 1, heavy: object = None) -> str:
    """Take the whole process along, so many times."""
    if name == "die":
        log("deaths")
        if len((Path(__file__).parent / "deaths").read_text().splitlines()) <= times:
            os.kill(os.getpid(), signal.SIGKILL)
    return name


@node("mine.fragile", cacheable=False)
def fragile(name: str) -> str:
    """Fail for one name while a file is there."""
    log("tried", name)
    if name == "cyd" and (Path(__file__).parent / "bad").exists():
        for _ in range(600):
            if len((Path(__file__).parent / "tried").read_text().splitlines()) == 3:
                time.sleep(0.5)
                break
            time.sleep(0.05)
        raise NodeOutputError("cyd is fragile")
    return name


@node("mine.open")
def open_file(name: str) -> object:
    """Give something that cannot leave the process."""
    return (item for item in name)


@node("mine.folder")
def folder(name: str) -> str:
    """Say where the project lies."""
    return str(current_folder())


class Counted:
    identity = "counted"

    def score(self, query, texts):
        return [float(len(text)) for text in texts]


@resource("mine.counted", secrets=["key"])
def counted(key: str = "") -> Reranker:
    """Say when it is opened."""
    log("opened", key)
    return Counted()


@resource("mine.alone", one_process=True)
def alone() -> Reranker:
    """Belong to one process."""
    return Counted()


@node("mine.rate")
def rate(name: str, reranker: Reranker) -> float:
    """Score a name."""
    return reranker.score("", [name])[0]


@node("mine.ask", cacheable=False)
async def ask(name: str, llm: LLM) -> str:
    """Ask a model."""
    said = await llm.complete([Message(role="user", content=name)], max_tokens=20, temperature=0.0)
    return said.value


@node("mine.embed")
def embed(name: str, embedder: Embedder) -> int:
    """Embed a name."""
    return int(embedder.embed_query(name).shape[0])
'''
NAMES = ["ada", "bob", "cyd", "dot", "eve", "fay", "gus", "hal", "ivy"]


class Cluster:
    """A Dask cluster on this machine and its address."""

    def __init__(self) -> None:
        import distributed

        self.dask = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0")
        self.address = str(self.dask.scheduler_address)
        self.runner = f"dask={self.address}"

    def close(self) -> None:
        close_fleets()
        self.dask.close()


@pytest.fixture(scope="module")
def module_cluster() -> Iterator[Cluster]:
    if find_spec("prefect_dask") is None:
        pytest.skip("prefect-dask is not installed")
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "OMP_NUM_THREADS")}
    os.environ.update(PYTHONPATH=str(Path(__file__).parents[2]), OMP_NUM_THREADS="1")
    cluster = Cluster()
    yield cluster
    cluster.close()
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})


@pytest.fixture
def cluster(module_cluster: Cluster) -> Cluster:
    """Two workers, whatever a test before did to them."""
    module_cluster.dask.wait_for_workers(2, timeout=60)
    return module_cluster


class Project:
    """A folder with nodes of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "my_nodes.py").write_text(NODES)
        self.configure()

    def configure(self, more: str = "") -> None:
        (self.folder / "ragbraid.toml").write_text('nodes = ["my_nodes.py"]\n' + inspect.cleandoc(more) + "\n")

    def write(self, text: str, name: str = "mapped") -> Path:
        path = self.folder / f"{name}.yaml"
        path.write_text(f"ragbraid: 1\nname: {name}\n" + inspect.cleandoc(text) + "\n")
        return path

    def map_of(self, body: str, *, inputs: str = "", more: str = "") -> Path:
        """Write a flow whose one map gives what its step `it` gives for every name."""
        inputs = 'names: {type: "list[str]"}' + (f", {inputs}" if inputs else "")
        head = f"inputs: {{{inputs}}}\noutputs: $m\n{more}nodes:\n  m:\n    map:\n      over: {{name: $names}}\n"
        return self.write(f"{head}      nodes: {{it: {body}}}\n      output: $it\n      concurrency: 4")

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def processes(self, name: str) -> set[str]:
        return {line.split()[0] for line in self.lines(name)}

    def wait_for(self, name: str, count: int) -> None:
        for _ in range(600):
            if len(self.lines(name)) >= count:
                return
            time.sleep(0.05)
        raise AssertionError(f"{name} has {self.lines(name)}")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def paths_of(trace: Trace) -> list[str]:
    return [step.path for step in trace.steps]


# -- the same as inline ------------------------------------------------------------------------------------------------

SHAPES = {
    "skip": """
        inputs: {names: {type: "list[str]"}, bad: {type: "list[str]", default: [bob, eve]}}
        outputs: $m
        nodes:
          m:
            map:
              over: {name: $names}
              nodes: {it: {use: mine.check, bad: $bad}}
              output: $it
              on_error: skip
    """,
    "none": """
        inputs: {names: {type: "list[str]"}, bad: {type: "list[str]", default: [ada, ivy]}}
        outputs: $m
        nodes:
          m:
            map:
              over: {name: $names}
              nodes: {it: {use: mine.check, bad: $bad}}
              output: $it
              on_error: none
    """,
    "nested": """
        inputs: {names: {type: "list[str]"}, mark: str = x}
        outputs: $m
        nodes:
          first: {use: mine.check, name: $mark}
          m:
            map:
              over: {name: $names}
              nodes:
                inner:
                  map:
                    over: {other: $names}
                    nodes: {it: {use: mine.join, first: "${ first ~ name }", second: $other}}
                    output: $it
              output: $inner
    """,
    "in a loop": """
        inputs: {names: {type: "list[str]"}, mark: str = x}
        outputs: {rounds: $rounds, said: $rounds.said}
        nodes:
          rounds:
            loop:
              carry: {said: "list[str] = $names"}
              nodes:
                m:
                  map:
                    over: {name: $said}
                    nodes:
                      it: {use: mine.join, first: $name, second: $mark}
                    output: $it
              next: {said: $m}
              max_steps: 3
    """,
    "a loop inside, whose record is read and given": """
        inputs: {names: {type: "list[str]"}}
        outputs: $m
        nodes:
          before:
            loop:
              carry: {mark: str = a}
              nodes: {more: {use: mine.join, first: $mark, second: b}}
              next: {mark: $more}
              max_steps: 2
          m:
            map:
              over: {name: $names}
              nodes:
                growing:
                  loop:
                    carry: {text: str = $name}
                    nodes: {more: {use: mine.join, first: $text, second: $before.mark}}
                    next: {text: $more}
                    max_steps: 2
              output: $growing
    """,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_map_gives_what_it_gives_inline_and_its_trace_has_the_same_steps(
    project: Project, cluster: Cluster, shape: str
) -> None:
    path = project.write(SHAPES[shape])
    here = load(path).run_traced(names=NAMES)
    there = load(path).with_task_runner(cluster.runner).run_traced(names=NAMES)
    assert _plain(there.outputs) == _plain(here.outputs)
    assert sorted(paths_of(there.trace)) == sorted(paths_of(here.trace))
    told = {step.path: (step.outcome, sorted(step.notes)) for step in here.trace.steps}
    assert {step.path: (step.outcome, sorted(step.notes)) for step in there.trace.steps} == told
    shown = {step["path"]: (step["inputs"], step["output"]) for step in here.trace.to_dict()["steps"]}
    assert {step["path"]: (step["inputs"], step["output"]) for step in there.trace.to_dict()["steps"]} == shown


def _plain(value: Any) -> Any:
    """Records of two plans are of two classes."""
    if hasattr(value, "model_dump"):
        return value.model_dump()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def test_items_run_in_both_workers_and_their_steps_come_in_the_order_of_the_items(
    project: Project, cluster: Cluster
) -> None:
    flow = load(project.map_of("{use: mine.where}")).with_task_runner(cluster.runner)
    events: list[RunEvent] = []
    result = flow.run_traced(names=NAMES * 20, listener=events.append)
    assert len(set(result.outputs)) == 2
    assert os.getpid() not in result.outputs
    assert paths_of(result.trace) == ["m", *(f"m[{number}].it" for number in range(1, 181))]
    whole = result.trace.step("m")
    assert whole.ended is not None
    assert all(whole.started <= step.started <= (step.ended or 0) <= whole.ended for step in result.trace.steps)
    assert {event.path for event in events if event.kind == "finished"} == {step.path for step in result.trace.steps}
    assert [event.done for event in events if event.kind == "progress"][-1] == 180


# -- what workers are sent and open ------------------------------------------------------------------------------------


def test_a_large_value_goes_to_each_worker_once(project: Project, cluster: Cluster) -> None:
    path = project.write("""
        inputs: {names: {type: "list[str]"}, size: int}
        outputs: $m
        nodes:
          heavy: {use: mine.weigh, size: $size}
          m:
            map:
              over: {name: $names}
              nodes: {it: {use: mine.measure, heavy: $heavy}}
              output: $it
    """)
    flow = load(path).with_task_runner(cluster.runner)
    size = 5_000_000
    assert flow.run(names=NAMES * 8, size=size) == [f"{name} {size}" for name in NAMES * 8]
    assert len(project.lines("arrivals")) == len(project.processes("arrivals")) == 2


def test_a_resource_is_opened_once_in_each_worker_whatever_runs(project: Project, cluster: Cluster) -> None:
    project.configure('[resources.reranker]\nuse = "mine.counted"')
    path = project.map_of("{use: mine.rate}")
    for _ in range(2):
        assert load(path).with_task_runner(cluster.runner).run(names=NAMES * 4) == [3.0] * 36
    assert len(project.lines("opened")) == len(project.processes("opened")) == 2


@pytest.mark.model
def test_the_packaged_embedder_serves_in_workers(project: Project, cluster: Cluster) -> None:
    assert load(project.map_of("{use: mine.embed}")).with_task_runner(cluster.runner).run(names=NAMES) == [384] * 9


def test_secrets_are_resolved_by_the_worker_and_one_that_is_missing_there_is_a_sentence(
    project: Project, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAGBRAID_TEST_ONLY_HERE", "hush")
    project.configure('[resources.reranker]\nuse = "mine.counted"\nkey = "${env.RAGBRAID_TEST_ONLY_HERE}"')
    flow = load(project.map_of("{use: mine.rate}")).with_task_runner(cluster.runner)
    with pytest.raises(SettingsError, match=r"a worker cannot run the items of `m`: .*RAGBRAID_TEST_ONLY_HERE"):
        flow.run(names=NAMES)
    assert project.lines("opened") == []
    project.configure('[resources.reranker]\nuse = "mine.counted"\nkey = "hush"')
    flow = load(project.map_of("{use: mine.rate}")).with_task_runner(cluster.runner)
    with pytest.raises(SettingsError, match="the secret in `key` would go to the workers"):
        flow.run(names=NAMES)


def test_workers_ask_a_model_over_http_and_what_they_used_is_counted(project: Project, cluster: Cluster) -> None:
    with ScriptedLLM([Rule(reply="fine")]) as model:
        project.configure(f'[resources.llm]\nuse = "openai.chat"\nbase_url = "{model.base_url}"\nmodel = "m"')
        flow = load(project.map_of("{use: mine.ask}")).with_task_runner(cluster.runner)
        result = flow.run_traced(names=NAMES)
        assert result.outputs == ["fine"] * 9
        assert len(model.chats) == 9
    assert result.trace.usage.llm_calls == 9
    assert result.trace.step("m[3].it").usage.llm_calls == 1


def test_the_project_of_a_worker_is_that_of_the_run(project: Project, cluster: Cluster) -> None:
    flow = load(project.map_of("{use: mine.folder}")).with_task_runner(cluster.runner)
    assert set(flow.run(names=NAMES)) == {str(project.folder)}


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_what_belongs_to_one_process_is_refused_before_anything_runs(project: Project) -> None:
    project.configure('[resources.reranker]\nuse = "mine.alone"')
    flow = load(project.map_of("{use: mine.rate}")).with_task_runner("dask")
    with pytest.raises(SettingsError, match=r"map `m` cannot run in other processes .*`reranker` is mine.alone"):
        flow.run(names=NAMES)
    search = load(project.map_of("{use: retrieve.hybrid, query: $name}")).with_task_runner("ray=ray://nowhere:1")
    with pytest.raises(SettingsError, match=r"`kb` is qdrant.embedded, which belongs to one process; .*qdrant.server"):
        search.run(names=NAMES)
    assert not (project.folder / ".ragbraid").exists()


def test_an_item_that_gives_what_cannot_travel_is_a_sentence(project: Project, cluster: Cluster) -> None:
    flow = load(project.map_of("{use: mine.open}")).with_task_runner(cluster.runner)
    with pytest.raises(RunError, match=r"what `m\[1\]` gave cannot leave its worker: TypeError.*generator") as caught:
        flow.run(names=["ada"])
    assert (caught.value.kind, caught.value.step) == ("contract", "m[1]")


def test_a_cluster_that_is_not_there_is_a_sentence(project: Project) -> None:
    dask_config = pytest.importorskip("dask.config")
    with dask_config.set({"distributed.comm.timeouts.connect": "1s"}):
        flow = load(project.map_of("{use: mine.check}")).with_task_runner("dask=tcp://127.0.0.1:9")
        with pytest.raises(ServiceError, match=r"dask cannot be started on tcp://127.0.0.1:9"):
            flow.run(names=NAMES)


def test_the_command_line_names_a_task_runner(project: Project, cluster: Cluster) -> None:
    path = project.map_of("{use: mine.check}")
    inputs = ("-i", f"names={json.dumps(NAMES)}", "--json")
    result = run_here("run", path, *inputs, "--engine", "inline", "--task-runner", cluster.runner)
    assert json.loads(result.stdout) == [name.upper() for name in NAMES]
    result = run_here("run", path, *inputs, "--task-runner", "dusk")
    assert result.exit_code != 0
    assert "there is no task runner `dusk`" in result.output


# -- failures, limits, cancellation ------------------------------------------------------------------------------------


def test_a_failure_comes_back_as_it_was_raised(project: Project, cluster: Cluster) -> None:
    _fails_as_it_was_raised(load(project.map_of("{use: mine.check, bad: [dot]}")).with_task_runner(cluster.runner))


def _fails_as_it_was_raised(flow: Flow) -> None:
    with pytest.raises(NodeOutputError, match="dot is bad") as caught:
        flow.run(names=NAMES)
    assert caught.value.step == "m[4].it"
    trace = caught.value.trace
    assert trace.step("m[4].it").outcome == "failed"
    assert (trace.step("m").outcome, trace.status) == ("failed", "failed")


def test_limits_hold_across_processes(project: Project, cluster: Cluster) -> None:
    path = project.map_of("{use: mine.spend}", more="limits: {llm_calls: 20}\n")
    flow = load(path).with_task_runner(cluster.runner)
    assert len(flow.run(names=NAMES * 2)) == 18
    with pytest.raises(LimitError, match=r"used \d+ LLM calls, its limit is 20") as caught:
        flow.run(names=NAMES * 20)
    used = caught.value.trace.usage.llm_calls
    assert 20 < used <= 2 * 21, "no worker goes on beyond what was left when its errand was sent"


def test_a_limit_of_seconds_ends_what_runs_on_workers(project: Project, cluster: Cluster) -> None:
    path = project.map_of("{use: mine.wait}", more="limits: {seconds: 3}\n")
    with pytest.raises(LimitError, match="its limit of 3 seconds is used up"):
        load(path).with_task_runner(cluster.runner).run(names=NAMES)
    project.wait_for("ended", len(project.lines("waiting")))


def test_cancelling_a_run_ends_its_items_on_the_workers(project: Project, cluster: Cluster) -> None:
    flow = load(project.map_of("{use: mine.wait}")).with_task_runner(cluster.runner)
    _ends_its_items_when_it_is_cancelled(flow, project)
    quick = load(project.map_of("{use: mine.check}")).with_task_runner(cluster.runner)
    assert quick.run(names=["ada"]) == ["ADA"], "the workers are free"


def _ends_its_items_when_it_is_cancelled(flow: Flow, project: Project) -> None:
    async def run_and_cancel() -> None:
        task = asyncio.create_task(flow.arun(names=NAMES))
        await asyncio.to_thread(project.wait_for, "waiting", 4)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run_and_cancel())
    project.wait_for("ended", 4)
    assert len(project.lines("waiting")) == 4, "what had not begun does not begin"


def test_the_items_of_a_worker_that_is_killed_run_on_another(project: Project, cluster: Cluster) -> None:
    flow = load(project.map_of("{use: mine.die}")).with_task_runner(cluster.runner)
    assert flow.run(names=["a", "die", "c"]) == ["a", "die", "c"]
    assert len(project.lines("deaths")) == 2


def test_a_large_value_that_dies_with_its_worker_does_not_leave_the_run_waiting(
    project: Project, cluster: Cluster
) -> None:
    path = project.write("""
        inputs: {names: {type: "list[str]"}}
        outputs: $m
        nodes:
          heavy: {use: mine.weigh, size: 1000000}
          m:
            map:
              over: {name: $names}
              nodes: {it: {use: mine.die, heavy: $heavy}}
              output: $it
    """)
    flow = load(path).with_task_runner(cluster.runner)
    assert flow.run(names=["die"]) == ["die"]
    assert len(project.lines("deaths")) == 2


def test_items_that_kill_every_worker_fail_with_a_sentence(project: Project, cluster: Cluster) -> None:
    flow = load(project.map_of("{use: mine.die, times: 99}")).with_task_runner(cluster.runner)
    with pytest.raises(ServiceError, match=r"item 1 of `m` failed on the Dask cluster at .*: the worker process died"):
        flow.run(names=["die"])
    assert len(project.lines("deaths")) == 4
    assert open_fleet(RunnerPlace("dask", cluster.address)).is_alive()


# -- on Prefect --------------------------------------------------------------------------------------------------------


@pytest.mark.prefect
def test_on_prefect_items_are_task_runs_and_a_retried_run_repeats_those_that_failed(
    project: Project, cluster: Cluster, prefect_api: Any
) -> None:
    (project.folder / "bad").touch()
    flow = load(project.map_of("{use: mine.fragile}")).with_task_runner(cluster.runner)

    async def run_twice() -> tuple[Any, Any, list[Any]]:
        from prefect.client.orchestration import get_client
        from prefect.flow_engine import run_flow_async
        from prefect.states import AwaitingRetry

        first: Any = await flow.prefect(names=NAMES[:3], return_state=True)
        run_id = first.state_details.flow_run_id
        (project.folder / "bad").unlink()
        async with get_client() as client:
            await client.set_flow_run_state(run_id, AwaitingRetry(), force=True)
            flow_run = await client.read_flow_run(run_id)
        second: Any = await run_flow_async(
            flow.prefect, flow_run=flow_run, parameters={"names": NAMES[:3]}, return_type="state"
        )
        return first, second, await records_of(run_id, 4)

    first, second, records = asyncio.run(run_twice())
    assert first.is_failed()
    assert "cyd is fragile" in first.message
    assert second.result() == ["ada", "bob", "cyd"]
    assert {record.name for record in records} == {"m[1]", "m[2]", "m[3]"}
    assert sorted(line.split()[1] for line in project.lines("tried")) == ["ada", "bob", "cyd", "cyd"]


@pytest.mark.prefect
def test_at_blocks_a_map_is_one_task_run_however_many_items_it_has(
    project: Project, cluster: Cluster, prefect_api: Any
) -> None:
    flow = load(project.map_of("{use: mine.check}")).with_task_runner(cluster.runner).with_visible("blocks")
    assert [record.name for record in task_runs(flow, 1, names=NAMES * 10)] == ["m"]


# -- Ray ---------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(find_spec("prefect_ray") is None, reason="Ray is not installed: 240 MB, extra `ray`")
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_ray_does_what_dask_does(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # its sockets need a short path
    for name, value in {"RAY_TMPDIR": scratch, "RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    try:
        path = project.write(SHAPES["a loop inside, whose record is read and given"])
        here, there = load(path).run_traced(names=NAMES), load(path).with_task_runner("ray").run_traced(names=NAMES)
        assert _plain(there.outputs) == _plain(here.outputs)
        assert sorted(paths_of(there.trace)) == sorted(paths_of(here.trace))
        project.configure('[resources.reranker]\nuse = "mine.counted"')
        assert load(project.map_of("{use: mine.rate}")).with_task_runner("ray").run(names=NAMES * 9) == [3.0] * 81
        assert len(project.lines("opened")) == len(project.processes("opened")) <= 2
        _fails_as_it_was_raised(load(project.map_of("{use: mine.check, bad: [dot]}")).with_task_runner("ray"))
        flow = load(project.map_of("{use: mine.die}")).with_task_runner("ray")
        assert flow.run(names=["a", "die", "c"]) == ["a", "die", "c"]
        _ends_its_items_when_it_is_cancelled(load(project.map_of("{use: mine.wait}")).with_task_runner("ray"), project)
    finally:
        close_fleets()
        shutil.rmtree(scratch)
