"""`kill -9` at random moments and at every write of an ingestion: readers see one generation, and a rerun repairs all.

The first update that brings atoms is killed at every change of a file, too: adding their vector only then, the engine
wrote two files of which the second lacked what the first one said, and opened them no more.

The killed process is real, the store is on disk; the seed is in every message, and RAGBRAID_CRASH_SEED repeats a run.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from crash_child import BATCH_SIZE, CALLS, CORPORA, LAST_CALL, Stores, ingest, killing_strace, link, open_stores
from graph_parts import graph_content, open_kb
from index_parts import HashEmbedder, WordSparse, content_of, make_set

from ragbraid.nodes.graph_store import QdrantGraphStore
from ragbraid.registry.errors import SettingsError
from ragbraid.registry.graph_parts import parts_of

KILLS = 30
KINDS = ["ingestion", "update", "update with atoms", "update with a graph"]
SEED = int(os.environ.get("RAGBRAID_CRASH_SEED", random.SystemRandom().randrange(10**6)))
PARTS = Path(__file__).parents[1] / "parts"


class Killer:
    """Asks the child process for ingestions that end by SIGKILL."""

    def __init__(self, under: Sequence[str] = ()) -> None:
        self._process = subprocess.Popen(
            [*under, sys.executable, str(PARTS / "crash_child.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, folder: Path, corpus: str, **kill: float | str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"folder": str(folder), "corpus": corpus, **kill}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    started = Killer()
    yield started
    started.close()


@pytest.fixture(scope="module")
def indexes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Clean indexes: their folders, contents, and what a reader sees of them."""
    made: dict[str, Any] = {}
    for corpus in CORPORA:
        folder = tmp_path_factory.mktemp(corpus)
        stores = open_stores(folder)
        ingest(stores, corpus, HashEmbedder())
        made[corpus] = {"folder": folder, "content": everything_in(stores), "seen": what_a_reader_sees(stores)}
        stores.close()
    return made


def everything_in(stores: Stores) -> Any:
    kb = open_kb(stores.chunks, "kb", stores.graph)
    return content_of(stores.chunks), graph_content(QdrantGraphStore(stores.graph), kb.info().generation)


def what_a_reader_sees(stores: Stores) -> Any:
    """Texts by vector, through atoms, facts, scores by terms, the recorded sources; None before the first commit."""
    kb = open_kb(stores.chunks, "kb", stores.graph)
    sparse = WordSparse()
    try:
        dense = kb.search_dense(HashEmbedder().embed_query("any"), embedder="hash-1", top_k=1000)
    except SettingsError:
        return None
    terms = kb.search_sparse(sparse.encode_query("part added new"), sparse="words-1", top_k=1000)
    has_atoms = kb.info().atoms > 0
    atoms = kb.search_atoms(HashEmbedder().embed_query("any"), embedder="hash-1", top_k=1000) if has_atoms else []
    facts = kb.graph().facts.values() if kb.info().entities else ()
    return (
        sorted((fact.text, fact.chunk_ids) for fact in facts),
        sorted((hit.source, hit.text) for hit in dense),
        sorted((hit.source, hit.text, hit.metadata["atom"]) for hit in atoms),
        sorted((hit.id, round(hit.score, 4)) for hit in terms),
        [(record.source, record.chunk_ids, record.content_hash) for record in kb.documents()],
    )


def check_after_kill(folder: Path, indexes: dict[str, Any], *, before: Any, corpus: str, message: str) -> int:
    """Read and rerun after a kill; return how many texts the rerun embedded."""
    stores = open_stores(folder)
    try:
        assert what_a_reader_sees(stores) in (before, indexes[corpus]["seen"]), message
        embedder = HashEmbedder()
        ingest(stores, corpus, embedder)
        assert everything_in(stores) == indexes[corpus]["content"], message
        assert open_kb(stores.chunks, "kb", stores.graph).verify() == [], message
        return embedder.embedded
    finally:
        stores.close()


def prepare(folder: Path, indexes: dict[str, Any], corpus: str) -> Any:
    """Put the state before the run into a folder; return what a reader sees of it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    if corpus == "first":
        return None
    shutil.copytree(indexes["first"]["folder"], folder, dirs_exist_ok=True)
    return indexes["first"]["seen"]


def texts_to_embed(corpus: str) -> int:
    texts = [text for texts in CORPORA[corpus].values() for text in texts]
    known = set() if corpus == "first" else {text for texts in CORPORA["first"].values() for text in texts}
    graphs = [parts_of(chunk.id, link(chunk)) for chunk in make_set(CORPORA["linked"]).chunks]
    more = {
        "tagged": len(texts),
        "linked": len({id_ for entities, facts in graphs for id_ in (*entities, *facts)}),
    }
    return sum(text not in known for text in texts) + more.get(corpus, 0)


@pytest.mark.slow
@pytest.mark.parametrize("corpus", ["first", "second", "tagged", "linked"], ids=KINDS)
def test_killed_at_random_moments(killer: Killer, indexes: dict[str, Any], tmp_path: Path, corpus: str) -> None:
    folder = tmp_path / "kb"
    moments = random.Random(f"{SEED} {corpus}")
    prepare(folder, indexes, corpus)
    seconds = killer.run(folder, corpus)["seconds"]
    whole = texts_to_embed(corpus)
    embedded = []
    for number in range(KILLS):
        before = prepare(folder, indexes, corpus)
        moment = moments.uniform(0, seconds)
        killed = killer.run(folder, corpus, kill_after_seconds=moment)["killed"]
        message = f"seed {SEED}, kill {number} after {moment:.3f} of {seconds:.3f} s, killed: {killed}"
        embedded.append(check_after_kill(folder, indexes, before=before, corpus=corpus, message=message))
    assert max(embedded) <= whole
    assert sum(embedded) < KILLS * whole, f"no rerun took anything over (seed {SEED})"


@pytest.mark.slow
@pytest.mark.parametrize("corpus", ["first", "second", "tagged", "linked"], ids=KINDS)
def test_killed_at_every_kind_of_write(killer: Killer, indexes: dict[str, Any], tmp_path: Path, corpus: str) -> None:
    folder = tmp_path / "kb"
    batches = -(-texts_to_embed(corpus) // BATCH_SIZE)
    number = 0
    embedded = []
    while True:
        # Of the many writes of embedded batches one in eight will do; all others are tried.
        number += 8 if 4 < number < batches - 8 else 1
        before = prepare(folder, indexes, corpus)
        if not killer.run(folder, corpus, kill_at_write=number)["killed"]:
            break
        message = f"killed at write {number} of the {corpus} corpus"
        embedded.append(check_after_kill(folder, indexes, before=before, corpus=corpus, message=message))
    assert number > batches
    assert embedded == sorted(embedded, reverse=True)
    assert embedded[0] == texts_to_embed(corpus)
    assert embedded[-1] == 0


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize("call", CALLS)
def test_killed_at_every_change_of_a_file_when_the_first_atoms_come(
    indexes: dict[str, Any], tmp_path: Path, call: str
) -> None:
    folder = tmp_path / "kb"
    killer = Killer(under=killing_strace(call))
    try:
        for number in range(1, LAST_CALL):
            before = prepare(folder, indexes, "tagged")
            if not killer.run(folder, "tagged", call=call, kill_at_call=number)["killed"]:
                break
            message = f"killed at {call} {number}"
            check_after_kill(folder, indexes, before=before, corpus="tagged", message=message)
    finally:
        killer.close()
    assert 5 < number < LAST_CALL - 1
