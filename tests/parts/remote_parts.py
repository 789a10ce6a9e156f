"""Servers of remote files on loopback: S3's protocol, and the web with whatever can go wrong there."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

KEY, SECRET = "test-key-id", "test-secret-value"


@dataclass
class Bucket:
    """A bucket with its server; `settings` open it."""

    url: str
    name: str
    client: Any

    @property
    def settings(self) -> dict[str, Any]:
        return {"credentials": {"key": KEY, "secret": SECRET}, "options": {"endpoint_url": self.url}}

    def put(self, **objects: str) -> None:
        for key, text in objects.items():
            self[key] = text

    def __setitem__(self, key: str, text: str | bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=text.encode() if isinstance(text, str) else text)

    def __delitem__(self, key: str) -> None:
        self.client.delete_object(Bucket=self.name, Key=key)


@contextmanager
def s3_server() -> Iterator[Any]:
    """A server of S3's protocol; yields a function that makes a bucket."""
    import logging

    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    client = boto3.client(
        "s3", endpoint_url=url, aws_access_key_id=KEY, aws_secret_access_key=SECRET, region_name="us-east-1"
    )

    def make(name: str, objects: Mapping[str, str] | None = None) -> Bucket:
        client.create_bucket(Bucket=name)
        bucket = Bucket(url, name, client)
        for key, text in (objects or {}).items():
            bucket[key] = text
        return bucket

    try:
        yield make
    finally:
        client.close()
        server.stop()


@dataclass
class Web:
    """A web server over a folder, with what it was asked and rules by path for what it does otherwise."""

    folder: Path
    url: str = ""
    asked: list[str] = field(default_factory=list)
    headers: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    rules: dict[str, Any] = field(default_factory=dict)
    """By path: a status, a URL to redirect to, or a function that gets the handler."""

    def count(self, method: str) -> int:
        return sum(each.startswith(f"{method} ") for each in self.asked)


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, *args: Any, web: Web, **kwargs: Any) -> None:
        self.web = web
        super().__init__(*args, directory=str(web.folder), **kwargs)

    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        self._answer(super().do_GET)

    def do_POST(self) -> None:
        self._answer(lambda: self.send_error(405))

    def do_HEAD(self) -> None:
        self._answer(super().do_HEAD)

    def _answer(self, usual: Any) -> None:
        self.web.asked.append(f"{self.command} {self.path}")
        self.web.headers.append((self.path, dict(self.headers)))
        rule = self.web.rules.get(self.path.partition("?")[0])
        if rule is None:
            usual()
        elif isinstance(rule, int):
            self.send_error(rule)
        elif isinstance(rule, str):
            self.send_response(302)
            self.send_header("Location", rule)
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            rule(self)


@contextmanager
def web_server(folder: Path) -> Iterator[Web]:
    """Serve a folder, with pages that list what lies in it."""
    web = Web(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Handler, web=web))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    web.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield web
    finally:
        server.shutdown()
        server.server_close()


def cut_off(handler: BaseHTTPRequestHandler) -> None:
    """Promise more than is sent."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    if handler.command == "GET":
        handler.wfile.write(b"# Half")


def endless(handler: BaseHTTPRequestHandler) -> None:
    """Send without end, and without a word about how much."""
    handler.send_response(200)
    handler.end_headers()
    if handler.command == "GET":
        try:
            while True:
                handler.wfile.write(b"x" * 65536)
        except OSError:
            return
