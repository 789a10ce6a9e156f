"""What stores survive and how they complain: killed processes, second processes, damaged files, servers that refuse."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from ragbraid.nodes.resource_qdrant import embedded, local, server
from ragbraid.nodes.store import CHUNKS, Point, Store, point_id
from ragbraid.nodes.store_client import open_local, open_server
from ragbraid.nodes.store_edge import EdgeStore
from ragbraid.registry.errors import DamagedStoreError, ServiceError, SettingsError

OpenStore = Callable[[Path, str], Store]

on_disk = pytest.mark.parametrize("open_on_disk", [EdgeStore, open_local], ids=["edge", "local"])

CHILD = """
import os, signal, sys
import numpy as np
from pathlib import Path
from ragbraid.nodes.store import CHUNKS, Point, point_id
from ragbraid.nodes.store_edge import EdgeStore
from ragbraid.nodes.store_client import open_local
from ragbraid.registry.resources import SparseVector

opener, folder, then = sys.argv[1:]
store = (EdgeStore if opener == "EdgeStore" else open_local)(Path(folder), "kb")
store.create(2)
def make(number):
    payload = {"kind": "chunk", "number": number}
    return Point(point_id("chunk", str(number)), payload, np.asarray([1, number], dtype=np.float32), SparseVector((1,), (1.0,)))
for start in range(0, 500, 50):
    store.upsert([make(number) for number in range(start, start + 50)])
store.patch({"patched": True}, ids=[point_id("chunk", "0")])
store.delete(ids=[point_id("chunk", "1")])
print("ready", flush=True)
if then == "die":
    os.kill(os.getpid(), signal.SIGKILL)
sys.stdin.read()
store.close()
"""


def start_child(opener: OpenStore, folder: Path, then: str) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, opener.__name__, str(folder), then],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


@on_disk
def test_everything_that_returned_survives_kill_9_without_a_flush(open_on_disk: OpenStore, tmp_path: Path) -> None:
    with start_child(open_on_disk, tmp_path, "die") as child:
        child.wait()
    assert child.returncode == -9
    store = open_on_disk(tmp_path, "kb")
    assert store.count(CHUNKS) == 499
    numbers = {point.payload["number"]: point.payload for point in store.scroll(CHUNKS)}
    assert set(numbers) == set(range(500)) - {1}
    assert numbers[0]["patched"] is True
    assert len(store.search_dense(np.asarray([1, 1], dtype=np.float32), 1000, CHUNKS)) == 499
    store.close()


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # qdrant-client leaves its lock file open
@on_disk
def test_a_second_process_gets_one_sentence(open_on_disk: OpenStore, tmp_path: Path) -> None:
    with start_child(open_on_disk, tmp_path, "wait") as child:
        with pytest.raises(ServiceError, match=r"is open in another process; close it there, or .* qdrant\.server"):
            open_on_disk(tmp_path, "kb")
        child.communicate()
    store = open_on_disk(tmp_path, "kb")
    assert store.count(CHUNKS) == 499
    store.close()


@on_disk
def test_two_handles_share_one_engine_until_the_last_is_closed(open_on_disk: OpenStore, tmp_path: Path) -> None:
    first, second = open_on_disk(tmp_path, "kb"), open_on_disk(tmp_path / "." / "", "kb")
    first.create(2)
    assert second.exists()
    assert first.shared is second.shared
    first.close()
    first.close()
    assert second.count(CHUNKS) == 0
    second.close()
    third = open_on_disk(tmp_path, "kb")
    assert third.exists()
    third.close()


DAMAGED = r"^knowledge base {folder} failed, its files may be damaged or not Qdrant's: .+"
DELETE_IT = "; delete it with `ragbraid kb drop`, or delete that folder, and ingest again$"
LOOK = "; choose another `path` or `name`, or look at what lies there$"


def damage(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"\x00damage\xff")


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # qdrant-client leaves its lock file open
@pytest.mark.parametrize(
    ("open_on_disk", "file", "folder"),
    [
        (EdgeStore, "kb/edge_config.json", "kb"),
        (open_local, "meta.json", "."),
        (open_local, "collection/kb/storage.sqlite", "."),
    ],
    ids=["edge", "local-meta", "local-storage"],
)
def test_damaged_files_are_the_same_sentence_from_every_engine(
    open_on_disk: OpenStore, file: str, folder: str, tmp_path: Path
) -> None:
    store = open_on_disk(tmp_path, "kb")
    store.create(2)
    store.close()
    damage(tmp_path / file)
    place = (tmp_path / folder).resolve()
    with pytest.raises(DamagedStoreError, match=DAMAGED.format(folder=place) + DELETE_IT) as caught:
        open_on_disk(tmp_path, "kb")
    assert Path(caught.value.folder) == place


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # qdrant-client leaves its lock file open
@pytest.mark.parametrize(
    ("open_on_disk", "file", "folder", "foreign"),
    [
        (EdgeStore, "kb/edge_config.json", "kb", "kb/letter.txt"),
        (open_local, "meta.json", ".", "letter.txt"),
        (open_local, "meta.json", ".", "collection/other/storage.sqlite"),
    ],
    ids=["edge", "local", "local-beside-another"],
)
def test_damaged_files_among_other_files_are_never_said_to_be_deletable(
    open_on_disk: OpenStore, file: str, folder: str, foreign: str, tmp_path: Path
) -> None:
    damage(tmp_path / file)
    damage(tmp_path / foreign)
    place = (tmp_path / folder).resolve()
    with pytest.raises(ServiceError, match=DAMAGED.format(folder=place) + LOOK) as caught:
        open_on_disk(tmp_path, "kb")
    assert not isinstance(caught.value, DamagedStoreError)


def test_a_path_that_is_a_file_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = EdgeStore(tmp_path / "file", "kb")
    with pytest.raises(ServiceError, match="kb"):
        store.create(2)
    store.close()


def test_a_disk_with_too_little_room_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ragbraid.nodes.store_edge.MIN_FREE_BYTES", 2**62)
    store = EdgeStore(tmp_path, "kb")
    with pytest.raises(ServiceError, match="the disk is full"):
        store.create(2)
    store.close()


class Refusing(BaseHTTPRequestHandler):
    """Answers every request with the status that stands in the path of its server."""

    status = 200
    delay_seconds = 0.0

    def _answer(self) -> None:
        time.sleep(self.delay_seconds)
        with contextlib.suppress(BrokenPipeError):  # a client that did not wait
            self.send_response(self.status)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

    do_GET = do_POST = do_PUT = _answer

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing on the terminal of the tests."""


@pytest.fixture
def answer_with() -> Iterator[Callable[..., str]]:
    """A function that starts a server which answers everything with one status, and returns its address."""
    servers: list[ThreadingHTTPServer] = []

    def start(status: int, delay_seconds: float = 0.0) -> str:
        handler = type("Handler", (Refusing,), {"status": status, "delay_seconds": delay_seconds})
        http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=http.serve_forever, daemon=True).start()
        servers.append(http)
        return f"http://127.0.0.1:{http.server_port}"

    yield start
    for http in servers:
        http.shutdown()
        http.server_close()


@pytest.mark.parametrize(
    ("status", "kind", "sentence"),
    [
        (401, "auth", "refused the API key"),
        (403, "auth", "refused the API key"),
        (429, "rate_limit", "asks for fewer requests"),
        (503, "unavailable", "cannot be reached"),
    ],
)
def test_a_servers_refusal_is_a_sentence_with_a_kind(
    answer_with: Callable[..., str], status: int, kind: str, sentence: str
) -> None:
    store = open_server(answer_with(status), "kb")
    with pytest.raises(ServiceError, match=sentence) as caught:
        store.count(CHUNKS)
    assert caught.value.kind == kind
    store.close()


def test_a_server_that_is_too_slow_is_a_timeout(answer_with: Callable[..., str]) -> None:
    store = open_server(answer_with(200, delay_seconds=2.0), "kb", timeout_seconds=1)
    with pytest.raises(ServiceError, match="did not answer in time") as caught:
        store.count(CHUNKS)
    assert caught.value.kind == "timeout"
    store.close()


@pytest.mark.parametrize("prefer_grpc", [False, True])
def test_a_server_that_is_not_there_is_a_sentence(prefer_grpc: bool) -> None:
    store = open_server("http://127.0.0.1:9", "kb", prefer_grpc=prefer_grpc, timeout_seconds=2)
    with pytest.raises(ServiceError, match=r"Qdrant at http://127\.0\.0\.1:9 \(kb\)") as caught:
        store.count(CHUNKS)
    assert caught.value.kind in ("unavailable", "timeout")
    store.close()


def test_no_message_holds_the_api_key_or_a_password() -> None:
    with pytest.warns(UserWarning, match="insecure"):
        kb = server("http://user:hunter2@127.0.0.1:9", "kb", api_key="sk-hidden", timeout_seconds=1)
    with pytest.raises(ServiceError) as caught:
        kb.info()
    assert "sk-hidden" not in str(caught.value)
    assert "hunter2" not in str(caught.value)
    kb.close()


def test_providers_check_their_settings(tmp_path: Path) -> None:
    for make in (lambda name: embedded(str(tmp_path), name), lambda name: local(str(tmp_path), name)):
        for name in ("", "a/b", "../x", ".hidden", "a..b", "x" * 200):
            with pytest.raises(SettingsError, match="is no name for a knowledge base"):
                make(name)
    with pytest.raises(SettingsError, match="`url` must be an address"):
        server("localhost", "kb")
    with pytest.raises(SettingsError, match="`timeout_seconds` is 0"):
        server("http://localhost:6333", "kb", timeout_seconds=0)


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.get([point_id("chunk", str(number)) for number in range(400)]),
        lambda store: store.count(CHUNKS),
        lambda store: store.flush(),
    ],
    ids=["get", "count", "flush"],
)
def test_closing_waits_for_a_call_of_another_thread_which_is_then_told(
    tmp_path: Path, call: Callable[[EdgeStore], object]
) -> None:
    """A step that was given up goes on in its thread while the end of the process closes the store."""
    store = EdgeStore(tmp_path, "kb")
    store.create(2)
    ids = [point_id("chunk", str(number)) for number in range(400)]
    store.upsert([Point(id_, {"kind": "chunk"}, np.asarray([1, 1], dtype=np.float32)) for id_ in ids])
    begun = threading.Event()
    ended: list[str] = []

    def use() -> None:
        try:
            while True:
                begun.set()
                call(store)
        except ServiceError as error:
            ended.append(str(error))

    user = threading.Thread(target=use)
    user.start()
    begun.wait()
    store.close()
    user.join()
    assert ended == [f"the knowledge base in {tmp_path / 'kb'} has been closed or does not exist"]
