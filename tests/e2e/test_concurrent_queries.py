"""Many questions at once on one embedded knowledge base: as many answers, and the ones that come one after another."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cli_parts import embedding_server, make_project, run_here

import ragbraid
from ragbraid.flows.resources import shared_pool
from ragbraid.registry.contracts import Ranking

FLOW = """
ragbraid: 1
name: at_once
inputs: {question: str}
nodes:
  search: {use: retrieve.hybrid, top_k: 10, fetch_k: 20, weights: {dense: 0.01, sparse: 1}}
outputs: $search
"""
DOCUMENTS = 40
QUESTIONS = [f"How often does pump number{number % DOCUMENTS} need oil, request r{number}?" for number in range(64)]


@pytest.fixture
def flow(tmp_path: Path) -> Iterator[ragbraid.Flow]:
    with embedding_server() as server:
        make_project(tmp_path, server.base_url)
        for number in range(DOCUMENTS):
            (tmp_path / f"docs/{number}.md").write_text(f"Pump number{number} needs oil every {number + 100} days.\n")
        result = run_here("ingest", tmp_path / "ingest.yaml", "-i", f"folder={tmp_path / 'docs'}")
        assert result.exit_code == 0, result.output
        (tmp_path / "at_once.yaml").write_text(FLOW)
        yield ragbraid.load(tmp_path / "at_once.yaml")
        shared_pool().close()


def test_64_runs_on_one_loop_and_8_threads_give_the_answers_of_one_after_another(flow: ragbraid.Flow) -> None:
    one_by_one: list[Ranking] = [flow.run(question=question) for question in QUESTIONS]
    for number, ranking in enumerate(one_by_one):
        assert len(ranking) == 10
        assert ranking[0].source == f"{number % DOCUMENTS}.md"

    async def all_at_once() -> list[Ranking]:
        return await asyncio.gather(*(flow.arun(question=question) for question in QUESTIONS))

    assert asyncio.run(all_at_once()) == one_by_one
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda question: flow.run(question=question), QUESTIONS)) == one_by_one
