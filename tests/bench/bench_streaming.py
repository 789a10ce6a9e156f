#!/usr/bin/env python
"""What following a run costs per step, and how long the first words of an answer take against the bare OpenAI client.

    python tests/bench/bench_streaming.py [--rounds 15]

Every round measures all variants in turn, so that the machine's mood hits all alike; figures are medians. Steps do
nothing; the model is the scripted server, which sends a piece every 10 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from ragbraid import Flow, load, node
from ragbraid.dsl.compile import check_text
from ragbraid.flows.scripted_llm import ScriptedLLM
from ragbraid.flows.scripted_rules import Rule
from ragbraid.registry.catalogue import Catalogue

STEPS = 500
PIECE_SECONDS = 0.01
DRAFT = json.dumps({"cannot_answer": False, "answer": "The alpha pump needs oil every twelve days. " * 10})


@node("bench.hand_on")
def hand_on(value: int) -> int:
    """Hand a number on."""
    return value


def chain() -> Flow:
    """A flow of 500 steps that each wait for the one before."""
    catalogue = Catalogue()
    catalogue.add_node(hand_on)
    steps = ["  n0: {use: bench.hand_on, value: $value}"]
    steps += [f"  n{number}: {{use: bench.hand_on, value: $n{number - 1}}}" for number in range(1, STEPS)]
    text = "\n".join(
        ["ragbraid: 1", "name: chain", "inputs: {value: int}", "nodes:", *steps, f"outputs: $n{STEPS - 1}"]
    )
    checked = check_text(text, "chain.yaml", catalogue)
    assert checked.plan is not None, checked.findings
    return Flow(checked.plan, catalogue=catalogue)


async def microseconds_a_step(run: Callable[[], Awaitable[Any]]) -> float:
    """CPU time of one run, by step."""
    begun = process_time()
    await run()
    return (process_time() - begun) / STEPS * 1e6


async def follow(flow: Flow) -> None:
    """Take every event of a run."""
    async for _ in flow.astream(value=1):
        pass


async def steps(rounds: int) -> dict[str, float]:
    """Cost of a step: nobody listens, a listener that does nothing, a stream on the loop, a stream from a thread."""
    flow = chain()

    async def threaded() -> None:
        for _ in flow.stream(value=1):
            pass

    variants: dict[str, Callable[[], Awaitable[Any]]] = {
        "nobody listens": lambda: flow.arun(value=1),
        "a listener": lambda: flow.arun_traced({"value": 1}, listener=lambda event: None),
        "astream": lambda: follow(flow),
        "stream": threaded,
    }
    taken: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds + 1):
        for name, run in variants.items():
            taken[name].append(await microseconds_a_step(run))
    return {f"{name}, us a step": statistics.median(times[1:]) for name, times in taken.items()}


async def first_words(rounds: int) -> dict[str, float]:
    """Milliseconds until the first words of an answer are there: bare client, flow."""
    from openai import AsyncOpenAI

    with (
        tempfile.TemporaryDirectory() as folder,
        ScriptedLLM([Rule(reply=DRAFT, piece_seconds=PIECE_SECONDS)]) as server,
    ):
        place = Path(folder)
        (place / "ragbraid.toml").write_text(
            f'[resources.llm]\nuse = "openai.chat"\nmodel = "m"\nbase_url = "{server.base_url}"\n'
        )
        (place / "qa.yaml").write_text(
            "ragbraid: 1\nname: qa\ninputs: {question: str}\nnodes: {answer: generate.closed_book}\noutputs: $answer\n"
        )
        flow = load(place / "qa.yaml")
        client = AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0)
        await flow.arun(question="?")  # templates, clients and instructor are there
        messages = server.chats[0].messages

        async def bare() -> tuple[float, float]:
            begun, first, answer = perf_counter(), 0.0, ""
            stream = await client.chat.completions.create(model="m", messages=messages, stream=True)  # type: ignore[call-overload]
            async for chunk in stream:
                answer += chunk.choices[0].delta.content or ""
                if not first and len(answer) > len('{"cannot_answer": false, "answer": "'):
                    first = perf_counter() - begun
            return first, perf_counter() - begun

        async def ours() -> tuple[float, float]:
            begun, first = perf_counter(), 0.0
            async for event in flow.astream(question="?"):
                if not first and event.kind == "text":
                    first = perf_counter() - begun
            return first, perf_counter() - begun

        taken: dict[str, list[tuple[float, float]]] = {"bare client": [], "flow": []}
        for _ in range(rounds + 1):
            taken["bare client"].append(await bare())
            taken["flow"].append(await ours())
        await client.close()
    found = {}
    for name, times in taken.items():
        found[f"{name}, ms to the first words"] = statistics.median(first for first, _ in times[1:]) * 1e3
        found[f"{name}, ms to the end"] = statistics.median(last for _, last in times[1:]) * 1e3
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    for name, value in {**asyncio.run(steps(rounds)), **asyncio.run(first_words(rounds))}.items():
        print(f"{name:36} {value:8.1f}")


if __name__ == "__main__":
    main()
