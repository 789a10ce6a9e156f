"""What a knowledge graph of 100,000 facts costs: building, opening, walking, ranking; on the engine in the process.

    python tests/bench/bench_graph.py --facts 100000 --entities 50000

The graph is generated (entities are drawn by Zipf's law, five facts a chunk). Prints: seconds to build it with an
embedder that costs nothing, beside what the packaged model needs for the same texts at the rate measured in the same
run; seconds to change one document; and from a fresh process seconds and memory of the first query, CPU-ms and wall ms
(p50) of graph.link, graph.exact, graph.explore, graph.ppr and a search by vector.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from bench_atoms import RandomEmbedder

from ragbraid.nodes.bm25 import Bm25Encoder
from ragbraid.nodes.graph import exact, explore, link, ppr, seed_entities
from ragbraid.nodes.index import upsert
from ragbraid.nodes.resource_packaged import packaged_embedder
from ragbraid.nodes.resource_qdrant import embedded
from ragbraid.registry.contracts import Chunk, ChunkSet, SourceRecord
from ragbraid.registry.graph_parts import ChunkGraph, Triple

FACTS_A_CHUNK = 5
ROUNDS = 40
SAMPLE = 400


def make_set(facts: int, entities: int, *, edited: bool = False) -> ChunkSet:
    """Make chunks of five facts each, ten chunks to a source; `edited` gives the first source another fact."""
    random = np.random.default_rng(0)
    weights = 1 / np.arange(1, entities + 1) ** 0.7
    subjects = np.concatenate(
        [np.arange(entities), random.choice(entities, facts - entities, p=weights / weights.sum())]
    )
    random.shuffle(subjects)
    objects = random.choice(entities, facts, p=weights / weights.sum())
    predicates = random.integers(0, 40, facts)
    chunks = []
    for number in range(facts // FACTS_A_CHUNK):
        places = range(number * FACTS_A_CHUNK, (number + 1) * FACTS_A_CHUNK)
        triples = [
            Triple(
                subject=f"entity {subjects[p]}", predicate=f"relation {predicates[p]}", object=f"entity {objects[p]}"
            )
            for p in places
        ]
        if edited and number == 0:
            triples[0] = Triple(subject="entity 1", predicate="is new to", object="entity 2")
        text = ". ".join(f"{triple.subject} {triple.predicate} {triple.object}" for triple in triples)
        source = f"s{number // 10}"
        chunks.append(
            Chunk(
                id=f"c{number}", document_id=source, source=source, index=number % 10, text=text,
                graph=ChunkGraph(triples=tuple(triples)),
            )
        )  # fmt: skip
    changed = {"s0": "edited" if edited else "1"}
    sources = dict.fromkeys(chunk.source for chunk in chunks)
    records = [SourceRecord(source=s, document_id=s, content_hash=changed.get(s, "1")) for s in sources]
    return ChunkSet(chunks=tuple(chunks), sources=tuple(records), complete=True)


def resident_mb() -> float:
    """Return the memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that a call took, and its result."""
    start = time.perf_counter()
    result = run()
    if inspect.isawaitable(result):
        result = asyncio.run(result)  # type: ignore[arg-type]
    return time.perf_counter() - start, result


def measure(name: str, run: Callable[[int], Any]) -> None:
    """Print the median wall and processor time of a query."""
    walls, cpus = [], []
    for number in range(ROUNDS):
        cpu = time.process_time()
        wall, _ = timed(lambda number=number: run(number))
        walls.append(wall * 1000)
        cpus.append((time.process_time() - cpu) * 1000)
    print(f"  {name:<34} p50 {statistics.median(walls):8.2f} ms, {statistics.median(cpus):8.2f} CPU-ms")


def build(folder: str, given: argparse.Namespace) -> None:
    """Index the graph, change one document, and print what both take."""
    chunks = make_set(given.facts, given.entities)
    names = [f"entity {n} relation {n % 40} entity {n + 1}" for n in range(SAMPLE)]
    model = packaged_embedder()
    model.embed_documents(names[:32])
    model_rate = SAMPLE / timed(lambda: model.embed_documents(names))[0]
    embedder = RandomEmbedder()
    kb = embedded(folder)
    everything: Any = {"kb": kb, "embedder": embedder, "sparse": Bm25Encoder(), "batch_size": 256}
    stub_rate = 4096 / timed(lambda: embedder.embed_documents([f"text {n}" for n in range(4096)]))[0]
    seconds, report = timed(lambda: upsert(chunks, **everything))
    own, whole = seconds - report.embedded / stub_rate, report.embedded / model_rate
    print(f"{report.entities} entities, {report.facts} facts, {len(chunks.chunks)} chunks")
    print(f"  built in {seconds:.1f} s, {own:.1f} s without the embedder's stand-in")
    print(f"  the packaged model embeds {model_rate:.0f} such texts a second, {whole:.0f} s for {report.embedded}:")
    print(f"  the whole takes {(whole + own) / whole:.3f} of that")
    seconds, report = timed(lambda: upsert(make_set(given.facts, given.entities, edited=True), **everything))
    print(f"  one document changed: {seconds:.1f} s, {report.embedded} texts embedded")
    kb.close()
    size = sum(path.stat().st_blocks * 512 for path in Path(folder).rglob("*") if path.is_file()) / 2**20
    print(f"  {size:.0f} MB on disk", flush=True)


def query(folder: str) -> None:
    """Open the graph in a fresh process and print what queries take."""
    kb, embedder = embedded(folder), RandomEmbedder()
    kb.info()
    before = resident_mb()
    first, view = timed(kb.graph)
    _ = view.named("x"), view.degree("x"), view.entities_in("x")
    print(f"  first query of a generation: {first:.1f} s, {resident_mb() - before:.0f} MB more memory")
    ids = list(view.entities)
    named = [view.entities[ids[(7919 * n) % len(ids)]].name for n in range(ROUNDS)]
    links = [timed(lambda name=name: link((name,), name, kb=kb, embedder=None))[1] for name in named]
    facts = [view.facts_of(each.entity_ids[0])[0] for each in links]
    measure("graph.link by name", lambda n: link((named[n],), named[n], kb=kb, embedder=None))
    measure("graph.exact", lambda n: exact(links[n], (facts[n].predicate,), None, kb=kb))
    measure("graph.explore, depth 2", lambda n: explore(links[n], kb=kb, depth=2, fan=20, limit=200))
    seeds = [timed(lambda each=each: seed_entities(each))[1] for each in links]
    before = resident_mb()
    first, _ = timed(lambda: ppr(seeds[0], kb=kb))
    print(f"  first graph.ppr of a generation: {first:.1f} s, {resident_mb() - before:.0f} MB more memory")
    measure("graph.ppr, damping 0.5", lambda n: ppr(seeds[n], kb=kb))
    measure("graph.ppr, damping 0.85", lambda n: ppr(seeds[n], kb=kb, damping=0.85))
    vector = embedder.embed_query("x")
    measure("nearest 5 facts", lambda _: kb.search_graph("fact", vector, embedder="random", top_k=5))
    kb.close()


def main() -> None:
    """Run the measurement."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--facts", type=int, default=100_000)
    options.add_argument("--entities", type=int, default=50_000)
    options.add_argument("--only-query", metavar="FOLDER", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.only_query:
        query(given.only_query)
        return
    with tempfile.TemporaryDirectory() as folder:
        build(folder, given)
        subprocess.run([sys.executable, __file__, "--only-query", folder], check=True)


if __name__ == "__main__":
    main()
