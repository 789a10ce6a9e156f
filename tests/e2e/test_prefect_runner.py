import asyncio
import logging
import re
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect_parts import Project, run_state, task_runs
from relay import Relay

from ragbraid.flows.form_schema import form_schema
from ragbraid.registry.errors import FlowError, RunError, ServiceError, SettingsError

# Prefect's engine asks for the default result storage with a client that it does not close.
pytestmark = [pytest.mark.prefect, pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]


@pytest.fixture
def project(tmp_path: Path, prefect_api: Any) -> Project:
    return Project(tmp_path)


BRANCHES = """
    inputs: {text: str}
    nodes:
      left:  mine.twice
      right: mine.thrice
      both:  {use: mine.join, first: $left, second: $right}
    flow: text -> left, right
    outputs: $both
"""


def test_a_flow_gives_the_same_as_inline_and_its_task_runs_are_named_by_its_steps(project: Project) -> None:
    flow = project.flow(BRANCHES)
    assert asyncio.run(flow.prefect(text="a")) == flow.run(text="a") == "aa|aaa"
    runs = task_runs(flow, 3, text="b")
    assert [run.name for run in runs] == ["both", "left", "right"]
    assert {run.state.type.value for run in runs} == {"COMPLETED"}
    ids = {run.name: run.id for run in runs}
    assert {parent.id for parent in runs[0].task_inputs["inputs"]} == {ids["left"], ids["right"]}


def test_the_trace_is_the_same_kind_of_trace_as_inline(project: Project) -> None:
    flow = project.flow(BRANCHES)
    on_prefect, inline = flow.run_traced({"text": "a"}, engine="prefect"), flow.run_traced(text="a")
    assert on_prefect.outputs == inline.outputs
    assert [step.path for step in on_prefect.trace.steps] == [step.path for step in inline.trace.steps]


def test_two_cached_tasks_of_one_factory_with_one_input_keep_their_own_results(project: Project) -> None:
    flow = project.flow("""
        inputs: {text: str}
        nodes:
          left:  {use: mine.twice, text: $text, cache: true}
          right: {use: mine.thrice, text: $text, cache: true}
          both:  {use: mine.join, first: $left, second: $right}
        outputs: $both
    """)
    assert asyncio.run(flow.prefect(text="a")) == "aa|aaa"
    assert asyncio.run(flow.prefect(text="a")) == "aa|aaa"
    assert project.module(flow).COUNTS == {"twice": 1, "thrice": 1}


def test_one_node_used_twice_with_one_input_runs_twice(project: Project) -> None:
    flow = project.flow("""
        inputs: {text: str}
        nodes:
          left:  {use: mine.twice, text: $text}
          right: {use: mine.twice, text: $text, when: "${ left | length > 0 }"}
        outputs: {left: $left, right: $right}
    """)
    assert asyncio.run(flow.prefect(text="a")) == {"left": "aa", "right": "aa"}
    assert project.module(flow).COUNTS == {"twice": 2}


def test_without_cache_a_second_run_computes_again(project: Project) -> None:
    flow = project.flow("""
        inputs: {text: str}
        nodes: {a: {use: mine.twice, text: $text}}
        outputs: $a
    """)
    for _ in range(2):
        assert asyncio.run(flow.prefect(text="a")) == "aa"
    assert project.module(flow).COUNTS == {"twice": 2}


def test_a_cached_step_computes_again_for_another_input_setting_or_resource(project: Project) -> None:
    text = """
        inputs: {{text: str}}
        nodes:
          a: {{use: mine.tag, text: $text, mark: "{mark}", cache: true}}
          b: {{use: mine.rate, text: $a, cache: true}}
        outputs: {{a: $a, b: $b}}
    """
    name = "cached"
    project.configure('[resources.reranker]\nuse = "mine.locked"\n')
    flow = project.flow(text.format(mark="!"), name)
    counts = project.module(flow).COUNTS
    for _ in range(2):
        assert asyncio.run(flow.prefect(text="a")) == {"a": "a!", "b": 2.0}
    assert counts == {"tag": 1, "rate": 1}
    asyncio.run(flow.prefect(text="b"))
    assert counts == {"tag": 2, "rate": 2}
    asyncio.run(project.flow(text.format(mark="?"), name).prefect(text="a"))
    assert counts == {"tag": 3, "rate": 3}
    project.configure('[resources.reranker]\nuse = "mine.locked"\nmodel = "b"\n')
    asyncio.run(project.flow(text.format(mark="!"), name).prefect(text="a"))
    assert counts == {"tag": 3, "rate": 4}


def test_a_blocking_step_ends_at_its_timeout_while_its_function_still_waits(project: Project) -> None:
    flow = project.flow("""
        inputs: {text: str}
        nodes: {a: {use: mine.stuck, text: $text, timeout: 500ms}}
        outputs: $a
    """)
    release = project.module(flow).RELEASE
    try:
        with pytest.raises(RunError, match=r"`a` .*did not finish within 0\.5 s") as caught:
            asyncio.run(flow.prefect(text="a"))
        assert caught.value.kind == "timeout"
        assert not release.is_set()
    finally:
        release.set()


def test_branches_run_at_the_same_time(project: Project) -> None:
    flow = project.flow("""
        inputs: {text: str}
        nodes:
          left:  {use: mine.meet, text: $text}
          right: {use: mine.meet, text: $text}
          both:  {use: mine.join, first: $left, second: $right}
        outputs: $both
    """)
    assert asyncio.run(flow.prefect(text="a")) == "a|a"


def test_a_failure_of_a_kind_that_is_named_is_tried_again(project: Project) -> None:
    flow = project.flow("""
        inputs: {text: str}
        nodes: {a: {use: mine.flaky, text: $text, retry: {attempts: 3, delay: 10ms}}}
        outputs: $a
    """)
    assert asyncio.run(flow.prefect(text="a")) == "a"
    assert project.module(flow).COUNTS == {"flaky": 3}


def test_a_failure_of_another_kind_is_not_tried_again(project: Project) -> None:
    flow = project.flow("""
        inputs: {text: str}
        nodes: {a: {use: mine.flaky, text: $text, kind: auth, retry: {attempts: 3, delay: 10ms}}}
        outputs: $a
    """)
    with pytest.raises(ServiceError, match="the service is away"):
        asyncio.run(flow.prefect(text="a"))
    assert project.module(flow).COUNTS == {"flaky": 1}


def test_a_retried_flow_run_repeats_only_what_had_not_finished(project: Project) -> None:
    flow = project.flow("""
        inputs: {text: str}
        nodes:
          a: {use: mine.tag, text: $text}
          b: {use: mine.flaky, text: $a, failures: 1}
        outputs: $b
    """)
    assert asyncio.run(flow.prefect.with_options(retries=1)(text="a")) == "a!"
    assert project.module(flow).COUNTS == {"tag": 1, "flaky": 2}


def test_a_failed_step_fails_the_flow_run_with_its_sentence_and_no_traceback(
    project: Project, caplog: pytest.LogCaptureFixture
) -> None:
    flow = project.flow("""
        inputs: {text: str}
        nodes: {a: {use: mine.crash, text: $text}}
        outputs: $a
    """)
    state = run_state(flow, text="x")
    assert state.is_failed()
    assert "`a` failed with ValueError: cannot do x" in state.message
    with pytest.raises(RunError, match="cannot do x") as caught:
        asyncio.run(flow.prefect(text="x"))
    assert caught.value.step == "a"
    failures = [record for record in caplog.records if "cannot do x" in record.getMessage()]
    assert failures
    assert not any(record.exc_info for record in failures)


def test_big_values_pass_without_being_searched_for_futures(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    import prefect.task_engine

    visited = []
    original = prefect.task_engine.resolve_to_final_result

    def counting(expr: Any, context: dict[str, Any]) -> Any:
        visited.append(expr)
        return original(expr, context)

    monkeypatch.setattr(prefect.task_engine, "resolve_to_final_result", counting)
    flow = project.flow("""
        inputs: {count: int}
        nodes: {docs: {use: mine.documents, count: $count}, size: mine.measure}
        flow: docs -> size
        outputs: $size
    """)
    assert asyncio.run(flow.prefect(count=500)) == 500
    assert 0 < len(visited) < 20


def test_visible_flow_leaves_no_task_runs_and_gives_the_same(project: Project) -> None:
    flow = project.flow(BRANCHES + "    deploy: {visible: flow}\n")
    assert asyncio.run(flow.prefect(text="a")) == "aa|aaa"
    assert task_runs(flow, 0, text="a") == []


def test_what_nodes_log_reaches_the_run(project: Project) -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId

    flow = project.flow("""
        inputs: {text: str}
        nodes: {a: {use: mine.tag, text: $text}}
        outputs: $a
    """)

    async def messages() -> list[str]:
        state: Any = await flow.prefect(text="hello", return_state=True)
        only = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[state.state_details.flow_run_id]))
        found: list[str] = []
        async with get_client() as client:
            for _ in range(300):
                found = [log.message for log in await client.read_logs(log_filter=only)]
                if "tagging hello" in found:
                    break
                await asyncio.sleep(0.1)
        return found

    assert "tagging hello" in asyncio.run(messages())


def test_the_progress_of_a_step_is_an_artifact(project: Project) -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

    flow = project.flow("""
        inputs: {text: str}
        nodes: {a: {use: mine.slow, text: $text}}
        outputs: $a
    """)

    async def artifacts() -> list[Any]:
        await flow.prefect(text="x")
        key = f"{flow.name.replace('_', '-')}-a-progress"
        async with get_client() as client:
            return list(await client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=[key]))))

    (artifact,) = asyncio.run(artifacts())
    assert (artifact.type, artifact.data, artifact.description) == ("progress", 100.0, "letters")


def test_a_secret_may_be_a_block(project: Project) -> None:
    from prefect.blocks.system import Secret

    from ragbraid.flows.secrets import redact, resolve

    name = f"RB_{uuid.uuid4().hex}"

    async def save() -> None:
        await Secret(value="from-the-block").save(name.lower().replace("_", "-"))

    asyncio.run(save())
    assert resolve(f"${{secret.{name}}}") == "from-the-block"
    assert redact("it is from-the-block") == f"it is ${{secret.{name}}}"
    with pytest.raises(SettingsError, match="the secret RB_NOTHING is not known here"):
        resolve("${secret.RB_NOTHING}")


FORM = """
    about: Answer a question.
    inputs:
      question: {type: str, about: what you want to know}
      top_k: {type: int, default: 5, ge: 1, le: 50, about: how many passages}
      language: str = auto
    nodes:
      a: {use: mine.tag, text: $question, mark: "${ language ~ top_k }"}
    outputs: $a
"""


def test_the_form_has_types_bounds_defaults_and_descriptions(project: Project) -> None:
    flow = project.flow(FORM)
    schema = form_schema(flow.plan.inputs)
    question, top_k, language = (schema["properties"][name] for name in ("question", "top_k", "language"))
    assert (question["type"], question["description"]) == ("string", "what you want to know")
    assert (top_k["minimum"], top_k["maximum"], top_k["default"]) == (1, 50, 5)
    assert top_k["description"] == "how many passages (1 to 50)"
    assert language["default"] == "auto"
    assert schema["required"] == ["question"]
    assert schema["additionalProperties"] is False
    assert flow.prefect.description == "Answer a question."


def test_defaults_reach_the_flow_as_values(project: Project) -> None:
    assert asyncio.run(project.flow(FORM).prefect(question="q")) == "qauto5"


def test_a_wrong_input_fails_the_run_with_a_sentence(project: Project) -> None:
    state = run_state(project.flow(FORM), question="q", top_k=0)
    assert state.is_failed()
    assert "the input `top_k` is 0: Input should be greater than or equal to 1" in state.message


def test_a_missing_input_is_named(project: Project) -> None:
    with pytest.raises(RunError, match="the input `question` is missing"):
        asyncio.run(project.flow(FORM).prefect())


@pytest.mark.parametrize("name", ["self", "cls", "wait_for", "return_state", "model_config", "_hidden"])
def test_an_input_name_that_prefect_keeps_for_itself_is_refused(tmp_path: Path, name: str) -> None:
    project = Project(tmp_path)
    text = f"""
        inputs: {{{name}: str}}
        nodes: {{a: {{use: mine.tag, text: ${name}}}}}
        outputs: $a
    """
    with pytest.raises((FlowError, SettingsError), match=rf"\b{name}\b"):
        _ = project.flow(text).prefect


@pytest.mark.parametrize("name", ["schema", "json", "copy", "name", "flow", "parameters", "model_name"])
def test_other_names_that_look_special_work(project: Project, name: str) -> None:
    flow = project.flow(f"""
        inputs: {{{name}: {{type: str, about: a text}}}}
        nodes: {{a: {{use: mine.tag, text: ${name}}}}}
        outputs: $a
    """)
    assert asyncio.run(flow.prefect(**{name: "x"})) == "x!"


def test_a_worker_finds_a_flow_by_its_module_level_name(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.flows import load_flow_from_entrypoint

    flow = project.flow(BRANCHES)
    monkeypatch.setenv("RAGBRAID_FLOWS", str(project.folder))
    entrypoint = f"ragbraid.flows.library:{flow.name}"
    assert flow.prefect._entrypoint == entrypoint
    loaded: Any = load_flow_from_entrypoint(entrypoint)
    assert asyncio.run(loaded(text="a")) == "aa|aaa"
    assert load_flow_from_entrypoint(f"ragbraid.flows.library.{flow.name}") is loaded


def test_an_edited_file_is_compiled_anew_and_a_missing_one_says_where_it_was_sought(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ragbraid.flows import library

    flow = project.flow(BRANCHES, "edited")
    monkeypatch.setenv("RAGBRAID_FLOWS", str(project.folder))
    assert asyncio.run(library.edited(text="a")) == "aa|aaa"
    project.flow(BRANCHES.replace("right: mine.thrice", "right: mine.twice"), flow.name)
    assert asyncio.run(library.edited(text="a")) == "aa|aa"
    with pytest.raises(AttributeError, match=re.escape(str(project.folder))):
        _ = library.no_such_flow


def unused_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_an_api_that_does_not_answer_is_one_sentence(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.settings import PREFECT_API_URL, PREFECT_LOGGING_TO_API_ENABLED, temporary_settings

    flow = project.flow(BRANCHES)
    url = f"http://127.0.0.1:{unused_port()}/api"
    monkeypatch.setenv("PREFECT_API_URL", url)
    sentence = f"the Prefect API at {re.escape(url)} does not answer"
    updates = {PREFECT_API_URL: url, PREFECT_LOGGING_TO_API_ENABLED: False}
    with temporary_settings(updates=updates), pytest.raises(ServiceError, match=sentence) as caught:
        flow.run_traced({"text": "a"}, engine="auto")
    assert "prefect server start" in (caught.value.hint or "")
    assert flow.run(text="a") == "aa|aaa"


@pytest.fixture
def relay(prefect_api: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Relay]:
    from prefect.settings import (
        PREFECT_API_URL,
        PREFECT_CLIENT_MAX_RETRIES,
        PREFECT_LOGGING_TO_API_ENABLED,
        temporary_settings,
    )

    port = int(re.search(r":(\d+)/", prefect_api.url)[1])  # type: ignore[index]  # the fixture's own address
    relay = Relay(port)
    url = f"http://127.0.0.1:{relay.port}/api"
    monkeypatch.setenv("PREFECT_API_URL", url)
    # Few, so that a lost API is given up soon, but not none: the server, which other tests use too, may answer 503.
    updates = {PREFECT_API_URL: url, PREFECT_CLIENT_MAX_RETRIES: 3, PREFECT_LOGGING_TO_API_ENABLED: False}
    with temporary_settings(updates=updates):
        yield relay
    relay.cut()


def test_a_server_that_is_lost_during_a_run_does_not_take_the_result_with_it(
    project: Project, relay: Relay, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ragbraid.flows import prefect_artifacts, prefect_engine

    monkeypatch.setattr(prefect_engine, "PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(prefect_artifacts, "MOST_SECONDS", 0.5)
    flow = project.flow("""
        inputs: {text: str}
        nodes: {a: {use: mine.stuck, text: $text}, b: {use: mine.tag, text: $a}}
        outputs: $b
    """)
    module = project.module(flow)

    async def run() -> Any:
        running = asyncio.ensure_future(as_coroutine(flow.prefect(text="kept")))
        while not module.STARTED.is_set() and not running.done():
            await asyncio.sleep(0.2)
        await asyncio.to_thread(relay.cut)
        module.RELEASE.set()
        return await running

    # Prefect puts handlers of its own in the place of the root logger's when it first sets logging up.
    logger = logging.getLogger("ragbraid.flows.prefect_engine")
    logger.addHandler(caplog.handler)
    try:
        assert asyncio.run(run()) == "kept!"
    finally:
        logger.removeHandler(caplog.handler)
    # Where Prefect has left the root's handler in its place, every record arrives twice.
    # Between the two it says what else could not be written.
    waiting, *_, lost = dict.fromkeys(record.getMessage() for record in caplog.records if record.name == logger.name)
    assert waiting == (
        f"the run is done, but the Prefect API at http://127.0.0.1:{relay.port}/api has not taken note of it yet; its "
        "client tries up to 3 times (PREFECT_CLIENT_MAX_RETRIES), then the result is given without it"
    )
    assert "was lost and does not know" in lost


async def as_coroutine(awaitable: Any) -> Any:
    return await awaitable
