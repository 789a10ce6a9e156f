"""A process that ingests in forked children and kills them, so that a hundred kills cost one start of Python.

Reads one JSON object a line from standard input and answers each with one line. Request: `folder`, `corpus` (a name in
`CORPORA`), and one of these or none: `kill_after_seconds`; `kill_at_write`, the number of a write of the store, from 1;
`kill_at_call`, the number of a call of the system, from 1, of the kind `call` (a key of `CALLS`), for which the process
must run under `killing_strace`. Answer: `killed`, `seconds`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from graph_parts import open_kb, with_graphs
from index_parts import Corpus, HashEmbedder, WordSparse, make_set, with_atoms
from qdrant_edge import EdgeShard  # noqa: F401  # loaded before the first fork

from ragbraid.nodes.index import upsert
from ragbraid.nodes.store_edge import EdgeStore
from ragbraid.registry.contracts import Chunk, IndexReport
from ragbraid.registry.graph_parts import ChunkGraph, Triple

SECONDS_PER_BATCH = 0.002
BATCH_SIZE = 4

FIRST: Corpus = {f"s{n}": [f"first {n} part {part}" for part in range(10)] for n in range(20)}
SECOND: Corpus = {
    **{f"s{n}": FIRST[f"s{n}"] for n in range(5)},
    **{f"s{n}": [*FIRST[f"s{n}"][:6], *(f"second {n} new {part} " * 4 for part in range(5))] for n in range(5, 15)},
    **{f"t{n}": [f"second {n} added {part}" for part in range(10)] for n in range(8)},
}
"""Five sources unchanged, ten changed, five gone, eight new, and another average length."""
CORPORA = {"first": FIRST, "second": SECOND, "tagged": SECOND, "linked": SECOND}
WRITES = ("create", "drop", "upsert", "patch", "delete", "flush", "set_sparse")
LAST_CALL = 1000
"""strace kills a forked child at its call of this number."""
_NO_FILE = 10**6
_NOWHERE = "/nowhere/at/all"
CALLS: dict[str, Callable[[], object]] = {
    "renameat": lambda: os.rename(_NOWHERE, _NOWHERE, src_dir_fd=_NO_FILE, dst_dir_fd=_NO_FILE),
    "unlinkat": lambda: os.unlink("nothing", dir_fd=_NO_FILE),
    "ftruncate": lambda: os.ftruncate(_NO_FILE, 0),
}
"""The calls by which the engine makes and replaces files, each made in vain."""


def killing_strace(call: str) -> list[str]:
    """Return the command under which this script must run to be killed at calls of the system."""
    killing = f"inject={call}:signal=SIGKILL:when={LAST_CALL}"
    return ["strace", "-f", "-o", os.devnull, "-e", f"trace={call}", "-e", killing]


class Stores(NamedTuple):
    """The collections of one knowledge base."""

    chunks: EdgeStore
    graph: EdgeStore

    def close(self) -> None:
        self.chunks.close()
        self.graph.close()


def open_stores(folder: str | os.PathLike[str]) -> Stores:
    return Stores(EdgeStore(folder, "kb"), EdgeStore(folder, "kb.graph"))


def link(chunk: Chunk) -> ChunkGraph:
    """Say of "first 3 part 4" that 3 has part 4."""
    words = chunk.text.split()
    return ChunkGraph(triples=(Triple(subject=f"thing {words[1]}", predicate="has", object=f"part {words[3]}"),))


def ingest(stores: Stores, corpus: str, embedder: HashEmbedder) -> IndexReport:
    kb = open_kb(stores.chunks, "kb", stores.graph)
    chunks = make_set(CORPORA[corpus])
    if corpus == "linked":
        chunks = with_graphs(chunks, link)
    if corpus == "tagged":
        chunks = with_atoms(chunks, lambda chunk: [f"{chunk.text}?"])
    return upsert(chunks, kb=kb, embedder=embedder, sparse=WordSparse(), cleanup="full", batch_size=BATCH_SIZE)


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        started = time.monotonic()
        pid = os.fork()
        if pid == 0:
            _run_child(request)
        if request.get("kill_after_seconds") is not None:
            time.sleep(request["kill_after_seconds"])
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        if not killed and status != 0:
            sys.exit(f"the child failed with status {status}")
        print(json.dumps({"killed": killed, "seconds": time.monotonic() - started}), flush=True)


def _run_child(request: dict[str, Any]) -> None:
    status = 1
    try:
        stores = open_stores(request["folder"])
        if request.get("kill_at_write") is not None:
            _die_at_write(stores, request["kill_at_write"])
        if request.get("kill_at_call") is not None:
            _die_at_call(request["call"], request["kill_at_call"])
        ingest(stores, request["corpus"], HashEmbedder(before_batch=lambda _: time.sleep(SECONDS_PER_BATCH)))
        stores.close()
        status = 0
    finally:
        os._exit(status)


def _die_at_write(stores: Stores, number: int) -> None:
    """Kill the process instead of the write of this number."""
    count = 0

    def counting(write: Any) -> Any:
        def counted(*args: Any, **given: Any) -> Any:
            nonlocal count
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return write(*args, **given)

        return counted

    for store in stores:
        for name in WRITES:
            setattr(store, name, counting(getattr(store, name)))


def _die_at_call(call: str, number: int) -> None:
    """Make as many calls in vain as leave the last one, at which strace kills, for the call of this number."""
    for _ in range(LAST_CALL - number):
        with contextlib.suppress(OSError):
            CALLS[call]()


if __name__ == "__main__":
    main()
