import asyncio
import contextlib
import importlib.util
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
import uvicorn
from answering_parts import ANSWER, DRAFT, GOOD, answering

from ragbraid.flows.scripted_llm import ScriptedLLM
from ragbraid.flows.scripted_rules import Reply, Responder, Rule
from ragbraid.registry.errors import FlowError

EXAMPLE = Path(__file__).parents[2] / "docs/examples/fastapi_app.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fastapi_app", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def serving(example: ModuleType, folder: Path, *script: Responder) -> Iterator[tuple[str, ScriptedLLM]]:
    """Serve the example with a real server in a thread; gives its address and the model's server."""
    with answering(folder, *script) as model:
        config = uvicorn.Config(example.make_app(folder / "answering.yaml"), port=0, log_level="error", lifespan="on")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            threading.Event().wait(0.01)
        try:
            yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", model
        finally:
            server.should_exit = True
            thread.join()


def events_of(lines: list[str]) -> list[tuple[str, Any]]:
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    data = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    return list(zip(names, data, strict=True))


def ask_stream(url: str, **inputs: Any) -> list[tuple[str, Any]]:
    with httpx.stream("POST", f"{url}/ask/stream", json=inputs, timeout=60) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        return events_of(list(response.iter_lines()))


def test_ask_gives_the_answer_and_ask_stream_how_it_came_about(example: ModuleType, tmp_path: Path) -> None:
    with serving(example, tmp_path, GOOD) as (url, _):
        answer = httpx.post(f"{url}/ask", json={"question": "How often?"}, timeout=60).json()
        events = ask_stream(url, question="How often?")
    assert (answer["text"], answer["citations"], answer["refused"]) == (ANSWER, [], False)
    assert [name for name, _ in events if name != "text"] == ["step", "step", "result"]
    assert events[0] == ("step", {"step": "answer", "what": "started", "status": None, "done": 0, "total": None})
    assert events[-2][1]["status"] == "ok"
    assert events[-1][1]["text"] == ANSWER
    assert "".join(data["text"] for name, data in events if name == "text") == ANSWER


def test_text_arrives_while_the_model_still_writes(example: ModuleType, tmp_path: Path) -> None:
    read = threading.Event()

    def hold(number: int) -> None:
        assert number < 7 or read.wait(30)

    with (
        serving(example, tmp_path, lambda _: Reply(DRAFT, before_piece=hold)) as (url, _),
        httpx.stream("POST", f"{url}/ask/stream", json={"question": "How often?"}, timeout=60) as response,
    ):
        lines = response.iter_lines()
        assert "event: text" in lines
        read.set()
        assert "event: result" in lines


@pytest.mark.parametrize("path", ["/ask", "/ask/stream"])
@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        ({}, "question"),
        ({"question": "ok then", "length": 0}, "length"),
        ({"question": "ok then", "lenght": 9}, "lenght"),
        (["question"], "the body must be a JSON object with the flow's inputs"),
    ],
)
def test_wrong_inputs_are_422_with_our_sentence(
    example: ModuleType, served: tuple[str, ScriptedLLM], path: str, inputs: Any, sentence: str
) -> None:
    response = httpx.post(f"{served[0]}{path}", json=inputs)
    assert response.status_code == 422
    assert response.json()["kind"] == "input"
    assert sentence in response.json()["error"]
    assert served[1].requests == []


@pytest.fixture(scope="module")
def served(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ScriptedLLM]]:
    with serving(example, tmp_path_factory.mktemp("served")) as running:
        yield running


@pytest.mark.parametrize(
    ("fault", "status", "kind"),
    [
        ("server_error", 503, "unavailable"),
        ("rate_limit", 503, "rate_limit"),
        ("unauthorized", 502, "auth"),
        ("not_json", 502, "invalid_output"),
        ("cut_off", 502, "truncated"),
    ],
)
def test_a_model_that_fails_is_a_status_and_a_sentence(
    example: ModuleType, tmp_path: Path, fault: Any, status: int, kind: str
) -> None:
    with serving(example, tmp_path, Rule(fault=fault, reply=DRAFT)) as (url, _):
        response = httpx.post(f"{url}/ask", json={"question": "How often?"}, timeout=60)
        events = ask_stream(url, question="How often?")
    assert response.status_code == status
    said = response.json()
    assert (said["kind"], said["step"]) == (kind, "answer")
    assert "model `m`" in said["error"]
    assert events[-1] == ("error", said)


@pytest.mark.parametrize("path", ["/ask", "/ask/stream"])
def test_a_client_who_goes_away_cancels_the_run_and_its_call_of_the_model(
    example: ModuleType, tmp_path: Path, path: str
) -> None:
    async def leave(url: str) -> None:
        async with httpx.AsyncClient(timeout=60) as client:
            asked = asyncio.ensure_future(client.post(f"{url}{path}", json={"question": "How often?"}))
            while not model.requests:
                await asyncio.sleep(0.01)
            asked.cancel()
            await asyncio.wait([asked])
        while not model.requests[0].given_up:
            await asyncio.sleep(0.01)

    slow = Rule(reply=DRAFT, delay_seconds=600) if path == "/ask" else Rule(reply=DRAFT, piece_seconds=600)
    with serving(example, tmp_path, slow) as (url, model):
        asyncio.run(asyncio.wait_for(leave(url), 60))


def test_twenty_requests_at_once_are_served_by_one_flow(example: ModuleType, tmp_path: Path) -> None:
    def echo(request: Any) -> Reply:
        return Reply(json.dumps({"cannot_answer": False, "answer": f"said {request.user[-60:]}"}))

    async def ask_all(url: str) -> list[Any]:
        async with httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=20)) as client:

            async def one(number: int) -> str:
                inputs = {"question": f"Question number {number:02}?"}
                if number % 2:
                    return str((await client.post(f"{url}/ask", json=inputs)).json()["text"])
                response = await client.post(f"{url}/ask/stream", json=inputs)
                return str(events_of(response.text.splitlines())[-1][1]["text"])

            return await asyncio.gather(*[one(number) for number in range(20)])

    with serving(example, tmp_path, echo) as (url, model):
        answers = asyncio.run(ask_all(url))
        assert len(model.requests) == 20
    assert all(f"Question number {number:02}?" in answer for number, answer in enumerate(answers))


def test_a_flow_with_a_mistake_does_not_start(example: ModuleType, tmp_path: Path) -> None:
    async def start() -> None:
        app = example.make_app(tmp_path / "wrong.yaml")
        async with app.router.lifespan_context(app):
            pytest.fail("it started")

    (tmp_path / "wrong.yaml").write_text("ragbraid: 1\nname: wrong\n")
    with pytest.raises(FlowError):
        asyncio.run(start())


KEPT = '''
from pathlib import Path

from ragbraid import LLM, Usage, resource
from ragbraid.registry.resources import Completion


class Kept:
    identity = "kept"

    def __init__(self, log):
        self.log = log
        log.write_text("opened")

    async def complete(self, messages, *, max_tokens, temperature):
        return Completion("So.", Usage(), "kept")

    async def extract(self, messages, output, *, max_tokens, temperature):
        return Completion(output(cannot_answer=False, answer="So."), Usage(), "kept")

    def close(self):
        self.log.write_text("closed")


@resource("mine.kept")
def kept(*, log: Path) -> LLM:
    """Say when it is closed."""
    return Kept(log)
'''


def test_what_was_opened_once_is_closed_when_the_service_ends(example: ModuleType, tmp_path: Path) -> None:
    async def serve() -> None:
        app = example.make_app(tmp_path / "answering.yaml")
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://s") as client,
        ):
            answer = await client.post("/ask", json={"question": "How?"})
            assert answer.json()["text"] == "So."
            assert (tmp_path / "log").read_text() == "opened"

    with answering(tmp_path):
        (tmp_path / "kept.py").write_text(KEPT)
        (tmp_path / "ragbraid.toml").write_text(
            'nodes = ["kept.py"]\n[resources.llm]\nuse = "mine.kept"\nlog = "log"\n'
        )
        asyncio.run(serve())
    assert (tmp_path / "log").read_text() == "closed"
