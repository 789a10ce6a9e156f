"""`ragbraid mcp` as a client of the protocol sees it: a real client, over the pipes of a real process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from cli_parts import bind, make_project, run_here
from fastmcp import Client
from fastmcp.client.transports import StdioTransport

from ragbraid.flows.scripted_llm import ScriptedLLM
from ragbraid.flows.scripted_rules import Rule

KEY = "sk-very-secret-key"
LLM = """
[resources.llm]
use = "openai.chat"
base_url = "{url}"
model = "m"
max_attempts = 1
api_key = "${{env.MCP_TEST_KEY}}"
"""
NODES = '''
import asyncio
import threading
from pathlib import Path

from ragbraid import node

print("the module is loaded")
BARRIER = threading.Barrier(2)


@node("mine.meet", blocking=True)
def meet(text: str) -> str:
    """Wait for another call."""
    print("waiting for another")
    BARRIER.wait(60)
    return text


@node("mine.wait")
async def wait(text: str) -> str:
    """Wait until the run is cancelled, and take a moment to end."""
    Path(text + ".begun").touch()
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        await asyncio.sleep(0.1)
        Path(text + ".ended").touch()
        raise
    return text
'''
FLOW = (
    "ragbraid: 1\nname: {name}\ninputs: {{text: str}}\nnodes: {{a: {{use: mine.{name}, text: $text}}}}\noutputs: $a\n"
)

Scenario = Callable[[Client[Any]], Awaitable[None]]


@pytest.fixture
def model() -> Iterator[ScriptedLLM]:
    answer = {"cannot_answer": False, "answer": "The north gate closes at 21:30 [1].", "citations": []}
    rules = [Rule(user="broken", fault="server_error"), Rule(json=answer)]
    with ScriptedLLM(rules, api_key=KEY) as server:
        yield server


@pytest.fixture
def project(tmp_path: Path, model: ScriptedLLM, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small knowledge base with the example flows, and two flows over nodes that wait."""
    monkeypatch.setenv("MCP_TEST_KEY", KEY)
    monkeypatch.chdir(tmp_path)
    with ScriptedLLM() as vectors:
        make_project(tmp_path, vectors.base_url)
        (tmp_path / "my_nodes.py").write_text(NODES)
        for name in ("meet", "wait"):
            (tmp_path / f"{name}.yaml").write_text(FLOW.format(name=name))
        more = LLM.format(url=model.base_url)
        bind(tmp_path, vectors.base_url, more=more)
        toml = (tmp_path / "ragbraid.toml").read_text()
        (tmp_path / "ragbraid.toml").write_text('nodes = ["my_nodes.py"]\n' + toml)
        result = run_here("ingest", "ingest.yaml", "-i", "folder=docs")
        assert result.exit_code == 0, result.output
        yield tmp_path


def with_client(project: Path, scenario: Scenario, *flows: str) -> str:
    """Play a scenario with a client of a process that serves flows; return what the process wrote beside the protocol."""
    log = project / "server.log"

    @asynccontextmanager
    async def connected() -> AsyncIterator[Client[Any]]:
        arguments = ["-m", "ragbraid.flows.cli", "mcp", *flows]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        transport = StdioTransport(sys.executable, arguments, env, str(project), keep_alive=False, log_file=log)
        async with Client(transport) as client:
            yield client

    async def play() -> None:
        async with connected() as client:
            await scenario(client)

    asyncio.run(play())
    return log.read_text()


def error_of(result: Any) -> str:
    assert result.is_error
    assert result.structured_content is None
    text: str = result.content[0].text
    return text


def test_every_flow_is_a_tool_with_its_inputs(project: Path) -> None:
    async def scenario(client: Client[Any]) -> None:
        answer, meet = await client.list_tools()
        assert (answer.name, meet.name) == ("hybrid_answer", "meet")
        assert answer.description is not None
        assert answer.description.startswith("Hybrid retrieval and an answer")
        assert answer.input_schema == {
            "type": "object",
            "properties": {
                "question": {"type": "string"},
                "top_k": {
                    "type": "integer",
                    "default": 8,
                    "minimum": 1,
                    "maximum": 50,
                    "description": "how many passages the model reads",
                },
            },
            "required": ["question"],
            "additionalProperties": False,
        }

    log = with_client(project, scenario, "hybrid_answer.yaml", "meet.yaml")
    assert "serving hybrid_answer, meet over standard input and output" in log
    assert "the module is loaded" in log


def test_a_call_gives_what_run_prints_as_text_and_as_json(project: Path) -> None:
    question = "When does the north gate close?"
    results: list[Any] = []

    async def scenario(client: Client[Any]) -> None:
        results.append(await client.call_tool("hybrid_answer", {"question": question, "top_k": 2}))

    with_client(project, scenario, "hybrid_answer.yaml")
    inputs = ("hybrid_answer.yaml", "-i", f"question={question}", "-i", "top_k=2")
    printed = run_here("run", *inputs).stdout
    assert results[0].content[0].text + "\n" == printed
    assert printed.startswith("The north gate closes at 21:30 [1].\n\nSources:\n  [1] ")
    assert results[0].structured_content == json.loads(run_here("run", *inputs, "--json").stdout)


def test_wrong_arguments_are_refused_with_a_sentence_for_each(project: Path) -> None:
    async def scenario(client: Client[Any]) -> None:
        said = error_of(await client.call_tool("hybrid_answer", {"top_k": 90, "questions": "?"}, raise_on_error=False))
        assert said.splitlines() == [
            "`hybrid_answer` has no input `questions`; did you mean `question`?",
            "the input `question` is missing",
            "the input `top_k` is 90: Input should be less than or equal to 50",
        ]
        assert "Unknown tool: 'other'" in error_of(await client.call_tool("other", {}, raise_on_error=False))

    with_client(project, scenario, "hybrid_answer.yaml")


def test_a_service_that_fails_is_told_without_a_secret_and_the_next_call_works(project: Path) -> None:
    async def scenario(client: Client[Any]) -> None:
        failed = await client.call_tool("hybrid_answer", {"question": "Is the gate broken?"}, raise_on_error=False)
        said = error_of(failed)
        assert said.startswith("step `answer`: ")
        assert "The server had an error" in said
        assert "Traceback" not in said
        assert KEY not in said
        assert (await client.call_tool("hybrid_answer", {"question": "When does the gate close?"})).content

    log = with_client(project, scenario, "hybrid_answer.yaml")
    assert "Traceback" not in log
    assert KEY not in log


def test_two_calls_run_at_the_same_time_and_nodes_may_print(project: Path) -> None:
    async def scenario(client: Client[Any]) -> None:
        results = await asyncio.gather(*(client.call_tool("meet", {"text": text}) for text in "ab"))
        assert [result.structured_content for result in results] == [{"result": "a"}, {"result": "b"}]

    log = with_client(project, scenario, "meet.yaml")
    assert log.count("waiting for another") == 2


def test_a_run_that_passes_its_limit_is_told_as_such(project: Path) -> None:
    flow = project / "wait.yaml"
    flow.write_text(flow.read_text() + "limits: {seconds: 0.2}\n")

    async def scenario(client: Client[Any]) -> None:
        said = error_of(await client.call_tool("wait", {"text": "limited"}, raise_on_error=False))
        assert "0.2" in said
        assert "limit" in said

    with_client(project, scenario, "wait.yaml")


async def appears(path: Path) -> None:
    while not path.exists():
        await asyncio.sleep(0.05)


def test_cancelling_a_call_cancels_its_run_and_no_other(project: Path) -> None:
    async def scenario(client: Client[Any]) -> None:
        calls = {name: asyncio.create_task(client.call_tool("wait", {"text": name})) for name in ("one", "two")}
        for name in calls:
            await appears(project / f"{name}.begun")
        calls["one"].cancel()
        await appears(project / "one.ended")
        assert not (project / "two.ended").exists()
        calls["two"].cancel()
        await appears(project / "two.ended")
        await asyncio.gather(*calls.values(), return_exceptions=True)

    assert "Traceback" not in with_client(project, scenario, "wait.yaml")


@contextmanager
def served_raw(project: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a process with a call under way, without a client library."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ragbraid.flows.cli", "mcp", "wait.yaml"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=project,
    )
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    messages: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "wait", "arguments": {"text": "raw"}}},
    ]
    lines = [json.dumps({"jsonrpc": "2.0", **message}) + "\n" for message in messages]
    with process:
        try:
            assert process.stdin is not None
            process.stdin.writelines(lines)
            process.stdin.flush()
            asyncio.run(appears(project / "raw.begun"))
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str], project: Path) -> tuple[int, str]:
    """Return the exit code and what was said; only the protocol was on standard output."""
    said, errors = process.communicate(timeout=60)
    assert [json.loads(line)["jsonrpc"] for line in said.splitlines()]
    assert (project / "raw.ended").exists()
    assert "Traceback" not in errors
    return process.returncode, errors


def test_a_client_that_goes_away_ends_the_process_and_the_runs_under_way(project: Path) -> None:
    with served_raw(project) as process:
        code, _ = ended(process, project)
    assert code == 0


def test_ctrl_c_ends_the_runs_under_way_and_the_process(project: Path) -> None:
    with served_raw(project) as process:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)  # its input is still open
        code, errors = ended(process, project)
    assert (code, errors.splitlines()[-1]) == (130, "stopped")
