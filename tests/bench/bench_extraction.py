"""What the packaged small model makes of passages: extracted graphs of a question set, counted.

    python tests/bench/bench_extraction.py ../shared/data/mini/lihua_world --passages 20

Prints for `enrich.extract_graph` and `enrich.extract_triples`: how many passages got a graph, gave nothing, and failed;
entities and facts; how many of the entities stand in the text that they come from; calls, tokens and seconds. It
measures the machinery (whatever the model says has the right form or is counted as a failure, and no passage is lost)
and shows how little so small a model understands.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from question_sets import read_corpus

from ragbraid.nodes.enrich import extract_graph, extract_triples
from ragbraid.nodes.resource_smollm import smollm_chat
from ragbraid.registry.context import StepContext, step_context
from ragbraid.registry.contracts import Chunk, ChunkSet, SourceRecord
from ragbraid.registry.errors import ServiceError
from ragbraid.registry.graph_names import normalize_name
from ragbraid.registry.graph_parts import parts_of


def passages(folder: Path, count: int) -> ChunkSet:
    """Return the first passages of a set, each a source of its own."""
    chunks = [
        Chunk(id=each["id"], document_id=each["id"], source=each["id"], index=0, text=each["text"], title=each["title"])
        for each in read_corpus(folder)[:count]
    ]
    records = [SourceRecord(source=c.id, document_id=c.id, content_hash=c.id) for c in chunks]
    return ChunkSet(chunks=tuple(chunks), sources=tuple(records), complete=True)


def measure(name: str, extract: Callable[[], Awaitable[ChunkSet]], given: ChunkSet) -> None:
    """Run one extractor and print what came of it."""
    step, start = StepContext(), time.perf_counter()
    with step_context(step):
        try:
            found = asyncio.run(extract())
        except ServiceError as error:
            print(f"{name}: failed as a whole: {error}")
            return
    seconds = time.perf_counter() - start
    entities, facts, in_text = 0, 0, 0
    with_graph = [chunk for chunk in found.chunks if chunk.graph and (chunk.graph.mentions or chunk.graph.triples)]
    for chunk in with_graph:
        assert chunk.graph is not None
        named, stated = parts_of(chunk.id, chunk.graph)
        text = normalize_name(chunk.text)
        entities, facts = entities + len(named), facts + len(stated)
        in_text += sum(normalize_name(part.name) in text for part in named.values())
    failed = [failure.source for failure in found.failures]
    lost = {chunk.id for chunk in given.chunks} - {chunk.id for chunk in found.chunks} - set(failed)
    print(f"{name}: {len(given.chunks)} passages in {seconds:.0f} s, {step.usage.llm_calls} calls,", end=" ")
    print(f"{step.usage.completion_tokens} tokens written")
    print(
        f"  {len(with_graph)} with a graph, {len(found.chunks) - len(with_graph)} without, {len(failed)} failed, {len(lost)} lost"
    )
    print(f"  {entities} entities ({in_text} of them stand in their passage), {facts} facts")
    for note in step.notes:
        print(f"  note: {note[:300]}")


def main() -> None:
    """Run the measurement."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path)
    options.add_argument("--passages", type=int, default=20)
    options.add_argument("--max-tokens", type=int, default=1200)
    given = options.parse_args()
    llm, chunks = smollm_chat(), passages(given.folder, given.passages)
    bounds = {"max_empty_share": 1.0, "concurrency": 1, "max_tokens": given.max_tokens}
    measure(
        "enrich.extract_graph",
        lambda: extract_graph(chunks, llm=llm, gleanings=0, max_entities=8, max_records=12, **bounds),  # type: ignore[arg-type]
        chunks,
    )
    measure("enrich.extract_triples", lambda: extract_triples(chunks, llm=llm, **bounds), chunks)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
