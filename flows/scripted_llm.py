"""A scripted OpenAI-compatible server on loopback: a model that says what a script says, and fails when told to.

For authors who work on a flow without a key, and for tests that need a real server:

    with ScriptedLLM([Rule(user="capital", reply="Paris [1].")]) as server:
        ...  # openai.chat with base_url=server.base_url

It speaks `/v1/chat/completions` (streamed or not), `/v1/models` and `/v1/embeddings`, and records every request.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Self

from ragbraid.flows.scripted_bodies import MODEL_NAME, completion_body, embeddings_body, error_body, stream_events
from ragbraid.flows.scripted_rules import (
    HTTP_FAULTS,
    ChatRequest,
    Recording,
    Reply,
    Responder,
    load_rules,
)
from ragbraid.registry.errors import SettingsError

DEFAULT_PORT = 8089
_HANG_SECONDS = 3600.0
_LOOK_SECONDS = 0.05
"""How often the server looks whether a client that waits is still there."""


@dataclass
class Recorded:
    """One request that the server got, and the HTTP status that it sent back (0 while there is none).

    `given_up` says that the client went away while it was still waiting for the answer, or in the middle of a stream.
    """

    path: str
    body: dict[str, Any]
    headers: dict[str, str]
    status: int = 0
    given_up: bool = False


class ScriptedLLM:
    """The server. Entering the block starts it on a free port of 127.0.0.1, leaving it stops it.

    Args:
        script: `Rule`s, a `Recording`, or functions of a `ChatRequest`; every one sees every request, and the first in
            order that has a reply gives it.
        port: 0 takes a free one.
        api_key: when given, requests without it get 401.
        record_to: a file that gets every answered chat as one JSON line, in the form that `Recording` reads.
        dimension: length of the vectors of `/v1/embeddings`.
    """

    def __init__(
        self,
        script: Iterable[Responder] = (),
        *,
        port: int = 0,
        api_key: str | None = None,
        record_to: Path | None = None,
        dimension: int = 64,
    ) -> None:
        self.script = list(script)
        self.dimension = dimension
        self.requests: list[Recorded] = []
        self.never_streams = False
        """Whether to answer in one piece all the same when a stream is asked for, as some servers do."""
        self._port = port
        self._api_key = api_key
        self._record_to = record_to
        self._lock = threading.Lock()
        self._chats = 0
        self._stopping = threading.Event()
        self._http: _HttpServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def base_url(self) -> str:
        """The address to give to an OpenAI client, `/v1` included."""
        if self._http is None:
            raise SettingsError("a scripted server has an address only while it runs: use it in a `with` block")
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    @property
    def chats(self) -> list[ChatRequest]:
        """Every chat request so far, in order of arrival."""
        found = [request for request in list(self.requests) if request.path.endswith("/chat/completions")]
        return [ChatRequest(r.body, r.headers, number) for number, r in enumerate(found, start=1)]

    def __enter__(self) -> Self:
        try:
            self._http = _HttpServer(self, self._port)
        except OSError as error:
            raise SettingsError(
                f"The scripted server cannot listen on port {self._port}: {error.strerror}.", hint="choose another port"
            ) from None
        self._stopping.clear()
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), name="scripted-llm")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._http is not None
        assert self._thread is not None
        self._stopping.set()
        self._http.shutdown()
        self._thread.join()
        self._http.close_connections()
        self._http.server_close()
        self._http = None

    # -- what the handlers ask ---------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> bool:
        """Wait, but not beyond the server's end; returns whether that has come."""
        return self._stopping.wait(seconds)

    def admits(self, headers: dict[str, str]) -> bool:
        """Whether a request carries the key that the server wants."""
        return self._api_key is None or headers.get("authorization") == f"Bearer {self._api_key}"

    def answer(self, body: dict[str, Any], headers: dict[str, str]) -> Reply | None:
        """Ask the script; None when it has no answer."""
        with self._lock:
            self._chats += 1
            request = ChatRequest(body, headers, self._chats)
        # Every responder sees every request, so that the second of two rules can answer the second request of a kind.
        replies = [responder(request) for responder in self.script]
        reply = next((reply for reply in replies if reply is not None), None)
        if reply is not None and reply.fault is None and self._record_to is not None:
            line = json.dumps({"messages": request.messages, "reply": reply.text}, ensure_ascii=False)
            with self._lock, self._record_to.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        return reply

    def record(self, recorded: Recorded) -> None:
        """Keep a request."""
        with self._lock:
            self.requests.append(recorded)


def serve_forever(
    rules_path: Path | None,
    port: int = DEFAULT_PORT,
    *,
    recording: Path | None = None,
    record_to: Path | None = None,
    announce: Callable[[str], None] = print,
) -> None:
    """Serve a script until Ctrl-C.

    Args:
        rules_path: a file of rules (`load_rules`).
        port: where to listen on 127.0.0.1; 0 takes a free port.
        recording: a recording that is replayed where no rule answers.
        record_to: a file that gets every answered chat.
        announce: gets one sentence with the address once the server listens.

    Raises:
        SettingsError: a file is wrong, or the port is taken.
    """
    script: list[Responder] = list(load_rules(rules_path)) if rules_path is not None else []
    if recording is not None:
        script.append(Recording.load(recording))
    with ScriptedLLM(script, port=port, record_to=record_to) as server:
        announce(f"Scripted model `{MODEL_NAME}` at {server.base_url}; Ctrl-C ends it.")
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


class _HttpServer(ThreadingHTTPServer):
    """Keeps its open connections, so that stopping does not wait for clients that keep theirs alive."""

    daemon_threads = False
    # The default of 5 resets connections when a flow asks many questions at once.
    request_queue_size = 256

    def __init__(self, scripted: ScriptedLLM, port: int) -> None:
        self.scripted = scripted
        self._open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self._open.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def close_connections(self) -> None:
        """End the connections that clients left open."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away in the middle of an answer is its own affair; all else is shown as usual."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _HttpServer

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed per request; `requests` has them all."""

    def do_GET(self) -> None:
        """List the one model."""
        if self.path.endswith("/models"):
            self._send(200, {"object": "list", "data": [{"id": MODEL_NAME, "object": "model", "owned_by": "ragbraid"}]})
        else:
            self._send(404, error_body(f"There is no {self.path} here."))

    def do_POST(self) -> None:
        """Answer a chat or an embedding request."""
        headers = {name.lower(): value for name, value in self.headers.items()}
        raw = self.rfile.read(int(headers.get("content-length", "0")))
        try:
            body = json.loads(raw)
        except ValueError:
            body = None
        recorded = Recorded(self.path, body if isinstance(body, dict) else {}, headers)
        self.server.scripted.record(recorded)
        if isinstance(body, dict):
            recorded.status = self._dispatch(body, recorded)
        else:
            recorded.status = self._send(400, error_body("The body of the request is no JSON object."))

    def _dispatch(self, body: dict[str, Any], recorded: Recorded) -> int:
        scripted = self.server.scripted
        if not scripted.admits(recorded.headers):
            return self._send(401, error_body("Incorrect API key provided."))
        if self.path.endswith("/embeddings"):
            return self._send(200, embeddings_body(body, scripted.dimension))
        if not self.path.endswith("/chat/completions"):
            return self._send(404, error_body(f"There is no {self.path} here."))
        request = ChatRequest(body)
        reply = scripted.answer(body, recorded.headers)
        if reply is None:
            return self._send(400, error_body(f"No rule answers this request. Its last user message: {request.user!r}"))
        return self._reply(request, reply, recorded)

    def _reply(self, request: ChatRequest, reply: Reply, recorded: Recorded) -> int:
        if not self._keeps_waiting(_HANG_SECONDS if reply.fault == "timeout" else reply.delay_seconds, recorded):
            return 0
        if reply.fault in ("timeout", "reset"):
            return self._hang_up()
        if reply.fault == "web_page":
            return self._send_bytes(200, "text/html", b"<!doctype html><title>A web page</title>")
        if reply.fault in HTTP_FAULTS:
            status, message = HTTP_FAULTS[reply.fault]
            return self._send(status, error_body(reply.message or message), retry_after=reply.retry_after)
        completion = completion_body(request, reply)
        if request.body.get("stream") and not self.server.scripted.never_streams:
            with_usage = bool((request.body.get("stream_options") or {}).get("include_usage"))
            return self._stream(list(stream_events(completion, with_usage)), reply, recorded)
        return self._send(200, completion)

    def _hang_up(self) -> int:
        """Cut the line so that the client sees a reset, not an orderly end."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        return 0

    def _send(self, status: int, body: dict[str, Any], *, retry_after: str | None = None) -> int:
        payload = json.dumps(body, ensure_ascii=False).encode()
        return self._send_bytes(status, "application/json", payload, retry_after=retry_after)

    def _send_bytes(self, status: int, content_type: str, payload: bytes, *, retry_after: str | None = None) -> int:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(payload)))
        if retry_after is not None:
            self.send_header("Retry-After", retry_after)
        self.end_headers()
        self.wfile.write(payload)
        return status

    def _stream(self, events: Sequence[dict[str, Any]], reply: Reply, recorded: Recorded) -> int:
        """Send events one by one; a client that is gone gets no more of them."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        broken = reply.fault in ("broken_stream", "stream_error")
        for number, event in enumerate(events[: len(events) // 2] if broken else events, start=1):
            if reply.before_piece is not None:
                reply.before_piece(number)
            if not self._keeps_waiting(reply.piece_seconds, recorded):
                return 200
            self._send_event(json.dumps(event, ensure_ascii=False))
        if reply.fault == "broken_stream":
            return self._hang_up()
        self._send_event(json.dumps(error_body(reply.message or "The server had an error.")) if broken else "[DONE]")
        self.wfile.write(b"0\r\n\r\n")
        return 200

    def _send_event(self, data: str) -> None:
        payload = b"data: " + data.encode() + b"\n\n"
        self.wfile.write(b"%x\r\n%b\r\n" % (len(payload), payload))

    def _keeps_waiting(self, seconds: float, recorded: Recorded) -> bool:
        """Wait; returns whether the client is still there, which is otherwise noted."""
        end = monotonic() + seconds
        while not self._is_deserted():
            left = end - monotonic()
            if left <= 0 or self.server.scripted.wait(min(left, _LOOK_SECONDS)):
                return True
        recorded.given_up, self.close_connection = True, True
        return False

    def _is_deserted(self) -> bool:
        """Whether the client has closed the connection, of which writing says nothing until it is too late."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        try:
            return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)
        except ConnectionError:
            return True
