#!/usr/bin/env python
"""What an ingestion costs beside the embedder: chunks a second, against the bare embedder on the same texts.

    OMP_NUM_THREADS=1 python tests/bench/bench_ingestion.py [--chunks 400] [--rounds 3]

The handbook of the example flows is cut at headings and repeated under other names until there are enough chunks, each
made different by a number. `index.upsert` brings them into a new embedded knowledge base; the embedder alone gets the
texts in the batches that it got there. Printed are processor times and the speed of the ingestion as a share of the
bare embedder's. Rounds alternate.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ragbraid.nodes.bm25 import Bm25Encoder
from ragbraid.nodes.chunk import chunk_by_headings
from ragbraid.nodes.index import upsert
from ragbraid.nodes.load import load_files
from ragbraid.nodes.resource_packaged import packaged_embedder
from ragbraid.nodes.resource_qdrant import embedded
from ragbraid.registry.contracts import Chunk, ChunkSet, DocumentSet
from ragbraid.registry.resources import Embedder

HANDBOOK = Path(__file__).parents[2] / "examples_flows" / "data" / "handbook"
TARGET = 0.9


class Recording:
    """An embedder that notes the batches that it gets."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self.identity, self.dimension = embedder.identity, embedder.dimension
        self.batches: list[list[str]] = []

    def embed_documents(self, texts: Sequence[str]) -> np.ndarray:
        self.batches.append(list(texts))
        return np.asarray(self._embedder.embed_documents(texts))

    def embed_query(self, text: str) -> np.ndarray:
        return np.asarray(self._embedder.embed_query(text))


def many_chunks(wanted: int) -> ChunkSet:
    """Return so many different chunks of the handbook."""
    documents = load_files(path=str(HANDBOOK))
    made: list[Chunk] = []
    sources = {}
    number = 0
    while len(made) < wanted:
        renamed = tuple(
            document.model_copy(
                update={
                    "id": f"{document.id}-{number}",
                    "source": f"{number}/{document.source}",
                    "text": document.text.replace("\n\n", f"\n\nCopy {number}. ", 3),
                    "content_hash": f"{number}-{document.content_hash}",
                }
            )
            for document in documents.documents
        )
        found = chunk_by_headings(DocumentSet(documents=renamed, scope="bench", complete=True), size=900)
        made.extend(found.chunks)
        sources |= {record.source: record for record in found.sources}
        number += 1
    kept = made[:wanted]
    names = {chunk.source for chunk in kept}
    return ChunkSet(
        chunks=tuple(kept), sources=tuple(s for n, s in sources.items() if n in names), scope="bench", complete=True
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    chunks, embedder, sparse = many_chunks(arguments.chunks), packaged_embedder(), Bm25Encoder()
    embedder.embed_documents(["warm"])
    ingesting, bare = [], []
    for _ in range(arguments.rounds):
        recording = Recording(embedder)
        with tempfile.TemporaryDirectory() as folder:
            kb = embedded(path=folder)
            start = time.process_time()
            report = upsert(chunks, kb=kb, embedder=recording, sparse=sparse)
            ingesting.append(time.process_time() - start)
        start = time.process_time()
        for batch in recording.batches:
            embedder.embed_documents(batch)
        bare.append(time.process_time() - start)
    speed = statistics.median(bare) / statistics.median(ingesting)
    print(f"{len(chunks)} chunks, {report.embedded} embedded in {len(recording.batches)} batches")
    print(
        f"ingestion {statistics.median(ingesting):.2f} s, embedder alone {statistics.median(bare):.2f} s, processor time"
    )
    print(
        f"{'met' if speed >= TARGET else 'missed'}: {speed:.2f} times as fast as the bare embedder, at least {TARGET}"
    )


if __name__ == "__main__":
    main()
