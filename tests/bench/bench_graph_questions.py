"""How well questions are answered over ready knowledge graphs: MetaQA by relation paths, 2Wiki by passages.

    python tests/bench/bench_graph_questions.py metaqa  ../shared/data/sets/metaqa_kg
    python tests/bench/bench_graph_questions.py passages ../shared/data/sets/2wiki_1000 --cache ~/.cache/ragbraid-bench

`metaqa` takes the gold topic entity and the gold relation path of every question (an oracle plans, no model): hits@1 is
the share of questions whose first found entity is an answer, exact that of those whose set of entities is the set of
answers. Beside it what personalised PageRank from the topic entity gives without any path.

`passages` prints recall@2, recall@5 and the share with all gold passages among five, over the gold triples: dense,
hybrid, HippoRAG 2 (no model filters its facts) and the three routes of KAG (`kg_cs`, `kg_fr`, `rc`), fused by RRF.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import inspect
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from bench_atoms import RandomEmbedder
from cached_embedder import CachedEmbedder
from question_sets import read_corpus, read_questions, recall

from ragbraid.nodes.bm25 import Bm25Encoder
from ragbraid.nodes.fuse import reciprocal_rank_fusion
from ragbraid.nodes.graph import (
    exact,
    facts,
    follow,
    frontier,
    fuzzy,
    link,
    ppr,
    seed,
    seed_entities,
    spot,
    to_chunks,
)  # fmt: skip
from ragbraid.nodes.index import upsert
from ragbraid.nodes.page_rank import edges_of, page_rank
from ragbraid.nodes.resource_packaged import packaged_embedder
from ragbraid.nodes.resource_qdrant import embedded
from ragbraid.nodes.retrieve import dense, hybrid
from ragbraid.registry.contracts import Chunk, ChunkSet, FanIn, Query, Ranking, SourceRecord
from ragbraid.registry.graph_names import entity_id
from ragbraid.registry.graph_parts import ChunkGraph, Triple
from ragbraid.registry.knowledge import KnowledgeBase
from ragbraid.registry.resources import Embedder

HOPS = {
    "director": "directed_by", "actor": "starred_actors", "writer": "written_by", "year": "release_year",
    "language": "in_language", "genre": "has_genre", "tags": "has_tags",
}  # fmt: skip


def run(value: Any) -> Any:
    """Return a value, waited for where it is awaitable."""
    return asyncio.run(value) if inspect.isawaitable(value) else value


def chunk_set(folder: Path) -> ChunkSet:
    """Make a chunk of every passage, with the gold triples that name it."""
    triples: dict[str, list[Triple]] = {}
    with gzip.open(folder / "kg_gold.jsonl.gz", "rt", encoding="utf-8") as lines:
        for each in map(json.loads, lines):
            triple = Triple(subject=each["s"], predicate=each["p"], object=each["o"])
            triples.setdefault(each["passage_id"], []).append(triple)
    chunks = []
    for each in read_corpus(folder):
        id_ = each["id"]
        graph = ChunkGraph(triples=tuple(triples[id_])) if id_ in triples else None
        text = f"{each['title']}\n{each['text']}"
        chunks.append(
            Chunk(id=id_, document_id=id_, source=id_, index=0, text=each["text"], embed_text=text, graph=graph)
        )
    records = [SourceRecord(source=c.id, document_id=c.id, content_hash=c.id) for c in chunks]
    return ChunkSet(chunks=tuple(chunks), sources=tuple(records), complete=True)


@contextmanager
def filled(folder: Path, embedder: Embedder, **given: Any) -> Iterator[KnowledgeBase]:
    """Index a set into a knowledge base that is deleted afterwards."""
    with tempfile.TemporaryDirectory() as place:
        kb = embedded(place)
        report = upsert(chunk_set(folder), kb=kb, embedder=embedder, sparse=Bm25Encoder(), **given)
        print(f"{folder.name}: {report.chunks_added} passages, {report.entities} entities, {report.facts} facts")
        yield kb
        kb.close()


def relations(kind: str) -> tuple[str, ...]:
    """Return the relation path of a kind of question: `actor_to_movie_to_genre` goes back over one and on over another."""
    stops = kind.split("_to_")
    return tuple(HOPS[after] if before == "movie" else f"~{HOPS[before]}" for before, after in pairwise(stops))


def metaqa(folder: Path) -> None:
    """Follow the gold relation path of every question."""
    with filled(folder, RandomEmbedder(), neighbour_min_score=None) as kb:
        rows: dict[str, list[tuple[bool, bool, bool, bool]]] = {}
        for each in read_questions(folder):
            topic, answers = each["meta"]["topic_entity"], {entity_id(name) for name in each["answers"]}
            links = run(link((topic,), each["question"], kb=kb, embedder=None))
            path = relations(each["meta"]["qtype"])
            walked = run(follow(links, path, kb=kb))
            found = run(frontier(walked)).entity_ids
            one_hop = found
            if len(path) == 1:
                forward = path[0].removeprefix("~")
                sides = {"object": links} if path[0].startswith("~") else {"subject": links}
                near = run(exact(**sides, predicates=(forward,), kb=kb))
                one_hop = tuple(fact.other_end(links.entity_ids[0]) for fact in near.facts)
            if links.unlinked:
                print("  not linked:", links.unlinked)
            walk = by_walk(kb, links.entity_ids)
            rows.setdefault(each["type"], []).append(
                (
                    found[:1] != () and found[0] in answers,
                    set(found) == answers,
                    one_hop[:1] != () and one_hop[0] in answers,
                    walk in answers,
                )
            )
    print(f"{'questions':<12}{'n':>5}{'hits@1':>9}{'exact set':>11}{'graph.exact':>13}{'PPR alone':>11}")
    for kind, results in sorted(rows.items()):
        shares = [np.mean([row[column] for row in results]) for column in range(4)]
        print(f"{kind:<12}{len(results):>5}{shares[0]:>9.3f}{shares[1]:>11.3f}{shares[2]:>13.3f}{shares[3]:>11.3f}")


def by_walk(kb: KnowledgeBase, seeds: Sequence[str]) -> str:
    """Return the entity where a random walk from the seeds spends most time, the seeds left out."""
    edges = edges_of(kb.graph(), synonyms=False, chunks=False)
    if not seeds:
        return ""
    restart = np.zeros(len(edges))
    restart[[edges.entities[id_] for id_ in seeds]] = 1 / len(seeds)
    scores = page_rank(edges, restart, 0.5)
    scores[[edges.entities[id_] for id_ in seeds]] = 0
    return list(edges.entities)[int(scores.argmax())]


def passages(folder: Path, cache: Path) -> None:
    """Compare routes by the passages that they bring."""
    embedder, sparse = CachedEmbedder(packaged_embedder(threads=2), cache), Bm25Encoder()
    with filled(folder, embedder) as kb:
        routes = make_routes(kb, embedder, sparse)
        questions = read_questions(folder)
        found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in routes}
        for each in questions:
            gold = set(each["gold_passage_ids"])
            for name, route in routes.items():
                ids = [hit.id for hit in route(each["question"])]
                found[name].append((recall(ids[:2], gold), recall(ids[:5], gold), float(gold <= set(ids[:5]))))
    print(f"{len(questions)} questions\n{'route':<28}{'R@2':>8}{'R@5':>8}{'all@5':>8}")
    for name, rows in found.items():
        print(f"{name:<28}" + "".join(f"{value:>8.3f}" for value in np.mean(rows, axis=0)))


def make_routes(kb: KnowledgeBase, embedder: Embedder, sparse: Bm25Encoder) -> dict[str, Callable[[str], Ranking]]:
    """Return the routes by name."""

    def by_dense(question: str, top_k: int = 5) -> Ranking:
        return run(dense(Query(text=question), kb=kb, embedder=embedder, top_k=top_k))

    def by_hybrid(question: str, top_k: int = 5) -> Ranking:
        return run(hybrid(Query(text=question), kb=kb, embedder=embedder, sparse=sparse, top_k=top_k))

    def hipporag2(question: str) -> Ranking:
        near = run(facts(Query(text=question), kb=kb, embedder=embedder, top_k=5, scale_over=100))
        seeds = run(seed(near, by_dense(question, 200), kb=kb))
        return run(ppr(seeds, kb=kb, top_k=5))

    def linked(question: str) -> Any:
        names = run(spot(question, kb=kb))
        return run(link(names, question, kb=kb, embedder=None))

    def kg_walk(question: str) -> Ranking:
        return run(ppr(run(seed_entities(linked(question))), kb=kb, top_k=20))

    def kg_fuzzy(question: str) -> Ranking:
        near = run(fuzzy(question, linked(question), kb=kb, embedder=embedder))
        return run(to_chunks(Query(text=question), subgraph=near, kb=kb, pick="order"))

    def three_routes(question: str) -> Ranking:
        lists = {"kg_cs": kg_fuzzy(question), "kg_fr": kg_walk(question), "rc": by_hybrid(question, 20)}
        return run(reciprocal_rank_fusion(FanIn(lists)))

    return {
        "dense": by_dense,
        "hybrid": by_hybrid,
        "hipporag2 (no filter)": hipporag2,
        "graph.fuzzy to chunks": kg_fuzzy,
        "graph.ppr from names": kg_walk,
        "three routes, RRF": three_routes,
    }


def main() -> None:
    """Run the measurement."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("what", choices=("metaqa", "passages"))
    options.add_argument("folder", type=Path)
    options.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "ragbraid-bench")
    given = options.parse_args()
    if given.what == "metaqa":
        metaqa(given.folder)
    else:
        passages(given.folder, given.cache)


if __name__ == "__main__":
    main()
