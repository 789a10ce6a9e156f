"""A graph database that speaks Bolt and openCypher, from a wheel: `bolt_server.py FOLDER BOLT_PORT HTTP_PORT PASSWORD`.

ArcadeDB is not Neo4j. It runs what `nodes/neo4j_cypher.py` says, sent by Neo4j's driver, but for the commands that make
vector indexes and wait for them; those it makes by SQL of its own. It ends when its standard input does.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

DATABASE = "graph"
USER = "root"
INSTALLED = all(importlib.util.find_spec(name) for name in ("arcadedb_embedded", "neo4j"))


@dataclass(frozen=True)
class BoltServer:
    url: str
    http_url: str
    password: str

    def sql(self, command: str) -> None:
        """Run a command of ArcadeDB's own SQL."""
        request = urllib.request.Request(
            f"{self.http_url}/api/v1/command/{DATABASE}",
            data=json.dumps({"language": "sql", "command": command}).encode(),
            headers={"Authorization": "Basic " + b64encode(f"{USER}:{self.password}".encode()).decode()},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()


@contextmanager
def running(folder: Path) -> Iterator[BoltServer]:
    """Run the server for as long as the context lasts."""
    bolt_port, http_port, password = free_port(), free_port(), "correct horse"
    command = [sys.executable, __file__, str(folder), str(bolt_port), str(http_port), password]
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=folder)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.strip() == b"ready":
                break
        else:
            raise AssertionError(f"the server did not start:\n{(folder / 'log.txt').read_text()}")
        yield BoltServer(f"bolt://127.0.0.1:{bolt_port}", f"http://127.0.0.1:{http_port}", password)
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def serve(folder: str, bolt_port: str, http_port: str, password: str) -> None:
    from arcadedb_embedded.server import ArcadeDBServer

    server = ArcadeDBServer(
        root_path=folder,
        root_password=password,
        config={
            "host": "127.0.0.1",
            "http_port": int(http_port),
            "bolt_port": int(bolt_port),
            "server_plugins": "Bolt:com.arcadedb.bolt.BoltProtocolPlugin",
        },
        jvm_kwargs={"heap_size": "512m"},
    )
    server.start()
    server.create_database(DATABASE)
    print("\nready", flush=True)
    sys.stdin.read()
    server.stop()
    os._exit(0)  # threads of the engine would wait for clients that keep their connections open


if __name__ == "__main__":
    serve(*sys.argv[1:])
