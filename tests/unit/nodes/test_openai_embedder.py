"""Embeddings over HTTP, against a real server on the loopback interface."""

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from ragbraid.nodes.openai_chat import RetryPolicy
from ragbraid.nodes.openai_embedder import OpenAIEmbedder, openai_embedder
from ragbraid.registry.context import StepContext, step_context
from ragbraid.registry.errors import RunError, ServiceError, SettingsError
from ragbraid.registry.providers import RESOURCE_ATTRIBUTE
from ragbraid.registry.resources import Embedder

KEY = "sk-secret-0123456789"


def vector_of(text: str) -> list[float]:
    return [float(len(text)), 3.0, 4.0]


def embeddings_of(request: dict) -> dict:
    data = [{"object": "embedding", "index": i, "embedding": vector_of(t)} for i, t in enumerate(request["input"])]
    return {
        "object": "list",
        "model": request["model"],
        "data": data[::-1],
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }


class Endpoint:
    """Answers with `plan` first (status or body per request), then with embeddings; keeps what it was sent."""

    def __init__(self) -> None:
        self.plan: list[int | dict | str] = []
        self.requests: list[dict] = []
        self.keys: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append(request)
                outer.keys.append(self.headers["Authorization"])
                step = outer.plan.pop(0) if outer.plan else embeddings_of(request)
                status = step if isinstance(step, int) else 200
                body = {"error": {"message": f"status {status} for {KEY}"}} if isinstance(step, int) else step
                raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(raw)))
                if status == 429:
                    self.send_header("Retry-After", "0")
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def endpoint():
    running = Endpoint()
    yield running
    running.close()


@pytest.fixture
def make(endpoint):
    made = []

    def embedder(**settings) -> OpenAIEmbedder:
        found = openai_embedder(**{"model": "some-embedder", "base_url": endpoint.url, "api_key": KEY, **settings})
        assert isinstance(found, OpenAIEmbedder)
        found._retry = RetryPolicy(settings.get("max_attempts", 3), first_delay_seconds=0.001)
        made.append(found)
        return found

    yield embedder
    for found in made:
        found.close()


def test_texts_go_in_batches_and_vectors_come_back_in_order_with_unit_length(endpoint, make):
    embedder = make(batch_size=2)
    vectors = embedder.embed_documents(["a", "bbb", "cc"])
    assert vectors.dtype == np.float32
    assert np.allclose(vectors[1], np.array([3, 3, 4]) / np.sqrt(34))
    assert [request["input"] for request in endpoint.requests] == [["a", "bbb"], ["cc"]]
    assert endpoint.requests[0]["encoding_format"] == "float"
    assert "dimensions" not in endpoint.requests[0]
    assert endpoint.keys == [f"Bearer {KEY}"] * 2
    assert isinstance(embedder, Embedder)


def test_the_dimension_is_asked_for_when_the_settings_give_it_and_found_out_otherwise(endpoint, make):
    assert make().dimension == 3
    short = make(dimension=3)
    assert short.dimension == 3
    assert len(endpoint.requests) == 1
    short.embed_query("x")
    assert endpoint.requests[-1]["dimensions"] == 3


def test_prefixes_are_written_and_belong_to_the_identity(endpoint, make):
    embedder = make(query_prefix="q: ", passage_prefix="p: ")
    embedder.embed_query("x")
    embedder.embed_documents(["y"])
    assert [request["input"] for request in endpoint.requests] == [["q: x"], ["p: y"]]
    assert embedder.identity == "openai:some-embedder query='q: ' passage='p: '"
    assert make(dimension=3).identity == "openai:some-embedder dimension=3"
    assert make(model="intfloat/multilingual-e5-large").identity.endswith("query='query: ' passage='passage: '")


def test_nothing_to_embed_asks_nothing_when_the_dimension_is_known(endpoint, make):
    assert make(dimension=3).embed_documents([]).shape == (0, 3)
    assert endpoint.requests == []


def test_tokens_are_counted(make):
    with step_context(StepContext()) as context:
        make(batch_size=1).embed_documents(["a", "b"])
    assert context.usage.prompt_tokens == 14
    assert context.usage.llm_calls == 0


def test_what_may_pass_is_tried_again_and_nothing_more_often(endpoint, make):
    endpoint.plan = [429, 503]
    assert make().embed_documents(["a"]).shape == (1, 3)
    assert len(endpoint.requests) == 3
    endpoint.plan = [503] * 9
    with pytest.raises(ServiceError) as caught:
        make(max_attempts=2).embed_documents(["a"])
    assert caught.value.kind == "unavailable"
    assert len(endpoint.requests) == 5


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (401, "auth", "The key was not accepted"),
        (429, "rate_limit", "Too many requests"),
        (400, "refused", "refused (400)"),
    ],
)
def test_failures_are_sentences_with_a_kind_and_without_the_key(endpoint, make, status, kind, words):
    endpoint.plan = [status]
    with pytest.raises(ServiceError) as caught:
        make(max_attempts=1).embed_documents(["a"])
    assert caught.value.kind == kind
    assert words in str(caught.value)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"data": [{"index": 0, "embedding": [1.0]}], "model": "m"}, "1 vectors for 2 texts"),
        (
            {"data": [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [1.0, 2.0]}], "model": "m"},
            "differ in length: 1, 2",
        ),
        ({"data": [{"index": i, "embedding": [0.0]} for i in (0, 1)], "model": "m"}, "zero or not finite"),
    ],
)
def test_an_answer_that_is_not_one_vector_per_text_is_refused(endpoint, make, body, words):
    endpoint.plan = [body]
    with pytest.raises(ServiceError, match=words) as caught:
        make().embed_documents(["a", "b"])
    assert caught.value.kind == "invalid_output"


def test_an_answer_that_is_no_json_is_told(endpoint, make):
    endpoint.plan = ["<html>"]
    with pytest.raises(ServiceError, match="some-embedder"):
        make(max_attempts=1).embed_documents(["a"])


def test_vectors_of_another_length_than_asked_for_are_refused(make):
    with pytest.raises(ServiceError, match="have 3 numbers, not the `dimension` of 8"):
        make(dimension=8).embed_documents(["a"])


def test_a_server_that_is_not_there_is_a_sentence():
    embedder = openai_embedder(model="m", base_url="http://127.0.0.1:9/v1", max_attempts=1)
    with pytest.raises(ServiceError, match="No connection to model `m` at") as caught:
        embedder.embed_query("x")
    assert caught.value.kind == "unavailable"
    embedder.close()


def test_a_request_that_hangs_ends_with_its_step_and_its_connection_is_closed():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        embedder = openai_embedder(model="m", base_url=f"http://127.0.0.1:{listener.getsockname()[1]}/v1")
        asked = threading.Event()

        def stop() -> None:
            if asked.is_set():
                raise RunError("nobody waits", kind="cancelled")

        def embed() -> None:
            with step_context(StepContext(on_check=stop)), pytest.raises(RunError, match="nobody waits"):
                embedder.embed_query("x")

        thread = threading.Thread(target=embed)
        thread.start()
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(30)
            assert connection.recv(65536).startswith(b"POST /v1/embeddings")
            asked.set()
            while connection.recv(65536):
                pass  # until the other end closes, which is long before its own 60 seconds
        thread.join(30)
        assert not thread.is_alive()
    embedder.close()


def test_an_address_that_is_none_is_refused_before_anything_is_sent():
    with pytest.raises(SettingsError, match=r"The `base_url` of `openai.embedder` is no web address"):
        openai_embedder(model="m", base_url="localhost:80")


def test_the_provider_keeps_its_key_secret_and_the_catalogue_finds_it():
    provider = getattr(openai_embedder, RESOURCE_ATTRIBUTE)
    assert (provider.role, provider.secrets) == ("embedder", frozenset({"api_key"}))
