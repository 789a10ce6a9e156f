"""What atoms cost the searches that must not notice them, on the engine in the process.

    python tests/bench/bench_atoms.py --chunks 10000 --atoms 5

Fills one knowledge base without atoms and one with, from the same random texts and vectors, and prints for each: CPU-ms
a query of every search, the size on disk, and CPU-ms to recall what a model said about 256 chunks. Ends with an error
when a search among chunks gives anything else where there are atoms. Scores may differ in their last bit: they do so
between two knowledge bases without atoms as well, since the engine does not always add up in the same order.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ragbraid.nodes.bm25 import Bm25Encoder
from ragbraid.nodes.index import upsert
from ragbraid.nodes.resource_qdrant import embedded
from ragbraid.registry.contracts import Chunk, ChunkSet, SourceRecord
from ragbraid.registry.knowledge import KnowledgeBase

DIMENSION = 384
WORDS = [f"word{number}" for number in range(5000)]
QUERIES = 50
ROUNDS = 7


class RandomEmbedder:
    """Unit vectors that hang on the text alone."""

    identity = "random"
    dimension = DIMENSION

    def embed_documents(self, texts: Sequence[str]) -> Any:
        return np.stack([self.embed_query(text) for text in texts])

    def embed_query(self, text: str) -> Any:
        seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
        vector = np.random.default_rng(seed).standard_normal(DIMENSION)
        return (vector / np.linalg.norm(vector)).astype(np.float32)


def make_set(chunks: int, atoms: int) -> ChunkSet:
    """Make chunks of forty random words, ten to a source, and so many atoms for each."""
    random = np.random.default_rng(0)
    made: list[Chunk] = []
    for number in range(chunks):
        text, source = " ".join(random.choice(WORDS, 40)), f"s{number // 10}"
        where = {"document_id": source, "source": source, "index": number % 10}
        questions = [f"question {place} about {number}" for place in range(atoms)]
        said = {"enrichments": {f"asked-{number}": questions}} if atoms else {}
        made.append(Chunk(id=f"c{number}", text=text, **where, **said))
        made += [
            Chunk(id=f"c{number}-{place}", text=question, kind="atom", parent_id=f"c{number}", **where)
            for place, question in enumerate(questions)
        ]
    sources = dict.fromkeys(chunk.source for chunk in made)
    records = tuple(SourceRecord(source=each, document_id=each, content_hash=each) for each in sources)
    return ChunkSet(chunks=tuple(made), sources=records)


def cost(work: Callable[[int], Any]) -> tuple[float, list[Any]]:
    """Return CPU-ms a call, the best of several rounds, and what the calls gave."""
    rounds = []
    for _ in range(ROUNDS):
        started = time.process_time()
        given = [work(number) for number in range(QUERIES)]
        rounds.append((time.process_time() - started) / QUERIES * 1000)
    return min(rounds), given


def measure(kb: KnowledgeBase, with_atoms: bool) -> tuple[dict[str, float], list[Any]]:
    """Return the figures of a knowledge base, and what its searches among chunks found."""
    vectors = [RandomEmbedder().embed_query(f"query {number}") for number in range(QUERIES)]
    terms = [Bm25Encoder().encode_query(" ".join(WORDS[number : number + 6])) for number in range(QUERIES)]
    identity = Bm25Encoder().identity
    dense, by_vector = cost(lambda n: kb.search_dense(vectors[n], embedder="random", top_k=50))
    sparse, by_terms = cost(lambda n: kb.search_sparse(terms[n], sparse=identity, top_k=50))
    figures = {"dense": dense, "sparse": sparse}
    if with_atoms:
        figures["atoms"], _ = cost(lambda n: kb.search_atoms(vectors[n], embedder="random", top_k=8))
        figures["recall of 256"], _ = cost(lambda n: kb.recall([f"asked-{n + place}" for place in range(256)]))
    return figures, [[f"{hit.id} {hit.score:.5e}" for hit in hits] for hits in (*by_vector, *by_terms)]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--chunks", type=int, default=10_000)
    parser.add_argument("--atoms", type=int, default=5, help="of each chunk")
    options = parser.parse_args()
    found = []
    for atoms in (0, options.atoms):
        with tempfile.TemporaryDirectory() as folder:
            kb = embedded(folder)
            upsert(make_set(options.chunks, atoms), kb=kb, embedder=RandomEmbedder(), sparse=Bm25Encoder())
            figures, results = measure(kb, atoms > 0)
            found.append(results)
            kb.close()
            megabytes = sum(file.stat().st_blocks * 512 for file in Path(folder).rglob("*") if file.is_file()) / 1e6
        shown = ", ".join(f"{name} {value:.2f}" for name, value in figures.items())
        print(f"{options.chunks} chunks, {atoms} atoms each: {shown} CPU-ms; {megabytes:.0f} MB", flush=True)
    if found[0] != found[1]:
        sys.exit("searches among chunks differ where there are atoms")
    print("searches among chunks give the same, with scores that agree to six digits")


if __name__ == "__main__":
    main()
