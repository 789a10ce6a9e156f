import asyncio
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

import ragbraid
from ragbraid.dsl.plan import Binding, Body, Deploy, InputSpec, Limits, Plan, Policy, SlotRef, Step
from ragbraid.flows.api import Flow
from ragbraid.flows.loops import run_to_end
from ragbraid.flows.prefect_runner import is_prefect_configured
from ragbraid.flows.project import Project
from ragbraid.flows.resources import ResourcePool
from ragbraid.flows.secrets import hide
from ragbraid.registry.catalogue import Catalogue
from ragbraid.registry.errors import FlowError, RunError, SettingsError, SourceSpan
from ragbraid.registry.node import contract_of, node
from ragbraid.registry.resources import LLM

HERE = SourceSpan("qa.yaml", 3, 1, 3, 5)
THREADS: list[str] = []


@node("test.repeat")
def repeat(text: str, times: int) -> str:
    """Repeat a text."""
    THREADS.append(threading.current_thread().name)
    return text * times


@node("test.leak")
def leak(text: str, times: int) -> str:
    """Tell a secret."""
    raise ValueError("refused: sk-leak-1234567")


@node("test.ask")
def ask(text: str, times: int, llm: LLM) -> str:
    """Ask a model."""
    return text


def spec(name: str, type_: Any, default: Any = None, *, required: bool = True, about: str = "") -> InputSpec:
    return InputSpec(name, type_, default, required, about, {"type": "x"})


INPUTS = (
    spec("question", str, about="what to ask"),
    spec("times", Annotated[int, Field(ge=1, le=3)], 2, required=False),
    spec("mode", Literal["fast", "good"], "fast", required=False),
)


def make_flow(folder: Path, function: Any = repeat, *, outputs: tuple[str, ...] = ("",)) -> Flow:
    contract = contract_of(function)
    bindings = (
        Binding("text", SlotRef(0, 0, (), "question"), "ambient", "question"),
        Binding("times", SlotRef(0, 1, (), "times"), "ambient", "times"),
    )
    roles = {need.name: need.role for need in contract.resources}
    step = Step(
        name="answer",
        path="answer",
        slot=3,
        node=contract,
        bindings=bindings,
        resources=tuple((name, name) for name in roles),
        output=str,
        needs=frozenset({0, 1}),
        policy=Policy(),
        span=HERE,
    )
    plan = Plan(
        name="qa",
        file=str(folder / "qa.yaml"),
        about="",
        inputs=INPUTS,
        body=Body(("question", "times", "mode"), (step,)),
        outputs=tuple((name, SlotRef(0, 3, (), "answer")) for name in outputs),
        output_types=dict.fromkeys(outputs, str),
        resources={},
        roles=roles,
        limits=Limits(),
        deploy=Deploy(),
        hash="0123456789abcdef",
    )
    return Flow(plan, Project(folder=folder), catalogue=Catalogue(), pool=ResourcePool())


def mistakes(flow: Flow, inputs: Mapping[str, Any]) -> list[str]:
    with pytest.raises(RunError) as caught:
        flow.run(**inputs)
    assert caught.value.kind == "input"
    return str(caught.value).splitlines()


def test_a_flow_with_one_output_gives_its_value(tmp_path: Path) -> None:
    assert make_flow(tmp_path).run(question="ab") == "abab"


def test_a_flow_with_named_outputs_gives_a_dict(tmp_path: Path) -> None:
    assert make_flow(tmp_path, outputs=("a", "b")).run(question="x", times=1) == {"a": "x", "b": "x"}


def test_a_flow_runs_on_the_callers_loop_or_beside_it(tmp_path: Path) -> None:
    flow = make_flow(tmp_path)

    async def both() -> tuple[str, str]:
        return await flow.arun(question="a"), flow.run(question="b")

    THREADS.clear()
    assert asyncio.run(both()) == ("aa", "bb")
    assert THREADS == ["MainThread", "ragbraid-run"]


def test_many_runs_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    flow = make_flow(tmp_path)

    async def run() -> list[str]:
        return await asyncio.gather(*(flow.arun(question=str(number), times=1) for number in range(64)))

    assert asyncio.run(run()) == [str(number) for number in range(64)]


def test_a_traced_run_gives_outputs_and_steps_and_takes_inputs_either_way(tmp_path: Path) -> None:
    result = make_flow(tmp_path).run_traced({"question": "a"}, times=3)
    assert result.outputs == "aaa"
    assert [step.path for step in result.trace.steps] == ["answer"]


def test_an_input_is_converted_to_its_type(tmp_path: Path) -> None:
    assert make_flow(tmp_path).run(question="a", times="3") == "aaa"


def test_all_mistakes_in_the_inputs_come_at_once(tmp_path: Path) -> None:
    assert mistakes(make_flow(tmp_path), {"qestion": "a", "times": 9, "mode": "slow", "zzz": 1}) == [
        "`qa` has no input `qestion`; did you mean `question`?",
        "`qa` has no input `zzz`; it has `question`, `times`, `mode`",
        "the input `question` is missing (what to ask)",
        "the input `times` is 9: Input should be less than or equal to 3",
        "the input `mode` is 'slow': Input should be 'fast' or 'good'",
    ]


def test_a_long_wrong_value_is_shown_in_part(tmp_path: Path) -> None:
    (line,) = mistakes(make_flow(tmp_path), {"question": "a", "times": "9" * 1000})
    assert len(line) < 200


def test_what_is_not_bound_is_told_before_anything_runs(tmp_path: Path) -> None:
    THREADS.clear()
    with pytest.raises(SettingsError, match="needs the resource `llm` \\(llm\\), and nothing is bound to it"):
        make_flow(tmp_path, ask).run(question="a")
    assert THREADS == []


def test_an_error_of_a_node_has_lost_every_secret(tmp_path: Path) -> None:
    hide("sk-leak-1234567")
    with pytest.raises(RunError) as caught:
        make_flow(tmp_path, leak).run(question="a")
    assert "refused: ***" in str(caught.value)
    assert "1234567" not in str(caught.value.__cause__)


def test_run_to_end_raises_in_the_callers_thread_what_the_other_one_met() -> None:
    async def fail() -> None:
        raise KeyError("inner")

    async def outer() -> None:
        run_to_end(fail())

    with pytest.raises(KeyError, match="inner"):
        asyncio.run(outer())


def test_loading_the_api_imports_nothing_heavy() -> None:
    heavy = ("prefect", "openai", "instructor", "fastembed", "onnxruntime", "torch", "qdrant_client", "qdrant_edge")
    code = f"import sys, ragbraid.flows.api, ragbraid.flows.resources; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


NODES = '''
from ragbraid import Reranker, node, resource


class Fixed:
    def __init__(self, identity):
        self.identity = identity

    def score(self, query, texts):
        return [0.0 for _ in texts]


@resource("mine.fixed")
def fixed(*, name: str) -> Reranker:
    """Always give one score."""
    return Fixed(name)


@node("mine.name")
def name_of(text: str, reranker: Reranker) -> str:
    """Name the model."""
    return f"{text}: {reranker.identity}"
'''
FLOW = """
ragbraid: 1
name: qa
inputs: {question: str}
nodes: {who: {use: mine.name, text: $question}}
outputs: $who
"""
TOML = """
nodes = ["my_nodes.py"]
[resources.reranker]
use = "mine.fixed"
name = "small"
[profiles.big.resources.reranker]
name = "large"
"""


@pytest.fixture
def flow_file(tmp_path: Path) -> Path:
    (tmp_path / "my_nodes.py").write_text(NODES)
    (tmp_path / "ragbraid.toml").write_text(TOML)
    (tmp_path / "qa.yaml").write_text(FLOW)
    return tmp_path / "qa.yaml"


def test_a_flow_file_runs_with_the_nodes_and_resources_of_its_project(flow_file: Path) -> None:
    assert ragbraid.load(flow_file).run(question="model") == "model: small"
    assert ragbraid.load(flow_file, profile="big").run(question="model") == "model: large"


def test_a_wrong_flow_file_raises_its_findings(flow_file: Path) -> None:
    flow_file.write_text(FLOW.replace("$question", "$qestion"))
    with pytest.raises(FlowError) as caught:
        ragbraid.load(flow_file)
    assert [finding.severity for finding in caught.value.findings].count("error") == 1


def test_explain_says_where_a_port_comes_from(flow_file: Path) -> None:
    (line,) = (line for line in ragbraid.load(flow_file).explain().splitlines() if "$question" in line)
    assert line.split()[:2] == ["who", "text"]


@pytest.fixture
def _no_prefect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PREFECT_API_URL", "PREFECT_PROFILE", "PREFECT_PROFILES_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("_no_prefect")
def test_prefect_is_not_configured_by_default() -> None:
    assert not is_prefect_configured()


@pytest.mark.usefixtures("_no_prefect")
def test_prefect_is_configured_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    assert is_prefect_configured()


@pytest.mark.usefixtures("_no_prefect")
def test_prefect_is_configured_by_its_active_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "profiles.toml").write_text(
        'active = "a"\n[profiles.a]\n[profiles.b]\nPREFECT_API_URL = "http://127.0.0.1:4200/api"\n'
    )
    assert not is_prefect_configured()
    monkeypatch.setenv("PREFECT_PROFILE", "b")
    assert is_prefect_configured()


@pytest.mark.usefixtures("_no_prefect")
@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("prefect.toml", '[api]\nurl = "http://127.0.0.1:4200/api"'),
        ("pyproject.toml", '[tool.prefect.api]\nurl = "http://127.0.0.1:4200/api"'),
    ],
)
def test_prefect_is_configured_by_its_project_files(tmp_path: Path, file: str, text: str) -> None:
    (tmp_path / file).write_text(text)
    assert is_prefect_configured()
