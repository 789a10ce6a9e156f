"""A run that is cancelled in the UI, or by Ctrl-C, stops what it asks of models and ingests, cleanly and at once.

That a blocking node ends between two batches: `tests/unit/flows/test_inline_cancel.py`; that a request for embeddings
is cut off: `tests/unit/nodes/test_openai_embedder.py`; under a process worker: `test_recovery.py`; of `ragbraid serve`
itself: `test_serve.py`. Figures: `docs/measurements.md`.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cli_parts import run_here, start
from recovery_parts import Shop, ask, cancel, served, until_ended, wait_for

# Prefect's engine asks for the default result storage with a client that it does not close.
pytestmark = [pytest.mark.prefect, pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]


class Endpoint:
    """Answers so many requests for vectors and then none, nor any for a text, until it is told to go on."""

    def __init__(self, answers: int) -> None:
        self.left = answers
        self.texts = 0
        self.open = 0
        self.asked = 0
        self.lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer.lock:
                    outer.asked += 1
                    outer.left -= 1
                    hangs = outer.left < 0 or not self.path.endswith("/embeddings")
                    outer.open += hangs
                if hangs:
                    self.connection.settimeout(120)
                    assert self.connection.recv(1) == b""  # the other end has closed
                    with outer.lock:
                        outer.open -= 1
                    self.close_connection = True
                    return
                outer.texts += len(request["input"])
                data = [{"index": i, "embedding": [1.0, float(len(t))]} for i, t in enumerate(request["input"])]
                body = json.dumps({"object": "list", "model": "m", "data": data, "usage": None}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    running = Endpoint(answers=1)
    yield running
    running.close()


@pytest.fixture
def shop(tmp_path: Path, prefect_api: Any, endpoint: Endpoint) -> Shop:
    shop = Shop(tmp_path, prefect_api)
    (tmp_path / "docs").mkdir()
    for number in range(8):
        (tmp_path / "docs" / f"{number}.md").write_text(
            f"# Pump {number}\n\nPump {number} needs oil every {number} days.\n"
        )
    model = f'base_url = "{endpoint.url}"\nmodel = "m"\n'
    (tmp_path / "ragbraid.toml").write_text(
        f'[resources.embedder]\nuse = "openai.embedder"\n{model}dimension = 2\n\n[resources.llm]\nuse = "openai.chat"\n{model}'
    )
    return shop


ANSWER = """
inputs: {question: str = why}
nodes: {a: query.rewrite}
outputs: $a
"""
ENRICH = """
nodes:
  docs: {use: load.files, path: docs}
  chunks: {use: chunk.recursive, documents: $docs}
  asked: {use: enrich.tag_atoms, chunks: $chunks}
  store: {use: index.upsert, chunks: $asked}
outputs: $store
"""
INGEST = """
nodes:
  docs: {use: load.files, path: docs}
  chunks: {use: chunk.recursive, documents: $docs}
  store: {use: index.upsert, chunks: $chunks, batch_size: 4}
outputs: $store
"""


@pytest.mark.parametrize(("text", "calls"), [(ANSWER, 1), (ENRICH, 4)], ids=["a question", "an ingestion"])
def test_model_calls_that_hang_are_cut_off_when_the_run_is_cancelled(
    shop: Shop, endpoint: Endpoint, text: str, calls: int
) -> None:
    shop.write(text)
    with served(shop):
        run = shop.begin()
        wait_for(lambda: endpoint.open >= calls)
        cancel(run)
        cancelled = until_ended(run)
        wait_for(lambda: endpoint.open == 0)
    assert (cancelled.state.name, cancelled.state.message) == ("Cancelled", "the run was cancelled")
    assert endpoint.left == 1 - endpoint.asked, "nothing was asked after that"


def test_an_ingestion_that_is_cancelled_leaves_the_last_generation_and_the_next_one_goes_on(
    shop: Shop, endpoint: Endpoint
) -> None:
    shop.write(INGEST)
    with served(shop):
        run = shop.begin()
        wait_for(lambda: endpoint.open == 1)  # a batch is written, another one under way
        embedded = endpoint.texts
        assert embedded == 4
        cancel(run)
        assert until_ended(run).state.name == "Cancelled"
        wait_for(lambda: endpoint.open == 0)
        endpoint.left = 100
        again = shop.begin()  # in the same process: what the first one held is free
        done = until_ended(again)
    assert done.state.is_completed(), done.state.message
    assert endpoint.texts == 8, "the batch that was written is taken over"
    verified = run_here("kb", "verify", "--project", shop.folder / "ragbraid.toml")
    assert verified.exit_code == 0, verified.output


def test_ctrl_c_ends_a_run_of_the_command_line_and_marks_it_as_cancelled(shop: Shop, endpoint: Endpoint) -> None:
    from prefect.client.schemas.filters import FlowFilter, FlowFilterName

    file = shop.write(ANSWER)
    process = start("run", file, "--engine", "prefect", folder=shop.folder, env=shop.environment)
    wait_for(lambda: endpoint.open == 1)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    wait_for(lambda: endpoint.open == 0)
    assert process.returncode == 130, told
    assert "Traceback" not in told
    (run,) = ask(lambda client: client.read_flow_runs(flow_filter=FlowFilter(name=FlowFilterName(any_=[shop.name]))))
    assert (run.state.name, run.state.message) == ("Cancelled", "the run was stopped")
