import asyncio
import gc
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ragbraid.flows.api import Flow, load
from ragbraid.flows.runner import RunEvent, RunResult
from ragbraid.flows.scripted_llm import ScriptedLLM
from ragbraid.flows.scripted_rules import Reply, Responder, Rule
from ragbraid.flows.streaming import stream_run, stream_run_in_thread
from ragbraid.registry.errors import RunError, ServiceError

ANSWER = "The alpha pump needs oil every twelve days, and never on Sundays."
DRAFT = {"cannot_answer": False, "answer": ANSWER}

FLOW = """
ragbraid: 1
name: {name}
inputs: {{question: str}}
nodes:
  answer:
    use: generate.closed_book
    retry: {{attempts: 2, delay: 10ms, on: [unavailable]}}
  said: {{use: mine.last_words, text: $answer.text}}
outputs: $said
"""
NODES = '''
import asyncio
import threading

from ragbraid import node
from ragbraid.registry.context import report_progress, report_text

ENDED = threading.Event()
STARTED = threading.Event()
GO_ON = threading.Event()


@node("mine.last_words")
def last_words(text: str) -> str:
    """Take the last two words."""
    report_progress("words", 2, 2)
    return " ".join(text.split()[-2:])


@node("mine.wait")
async def wait(question: str) -> str:
    """Wait to be cancelled."""
    try:
        await asyncio.sleep(60)
    finally:
        ENDED.set()
    return question


@node("mine.hum", blocking=True)
def hum(question: str) -> str:
    """Write in a thread."""
    for word in question.split():
        report_text(word)
    return question
'''


@contextmanager
def flow_at(folder: Path, *script: Responder, text: str = FLOW) -> Iterator[tuple[Flow, ScriptedLLM]]:
    with ScriptedLLM(script) as server:
        name = f"qa{len(list(folder.glob('*.yaml')))}"
        (folder / "stream_nodes.py").write_text(NODES)
        (folder / "ragbraid.toml").write_text(
            f'nodes = ["stream_nodes.py"]\n[resources.llm]\nuse = "openai.chat"\nmodel = "m"\n'
            f'base_url = "{server.base_url}"\nmax_attempts = 1\n'
        )
        (folder / f"{name}.yaml").write_text(text.format(name=name))
        yield load(folder / f"{name}.yaml"), server


GOOD = Rule.model_validate({"json": DRAFT})


async def all_of(events: Any) -> list[RunEvent]:
    return [event async for event in events]


def by_async(flow: Flow, **inputs: Any) -> list[RunEvent]:
    return asyncio.run(all_of(flow.astream(**inputs)))


def by_thread(flow: Flow, **inputs: Any) -> list[RunEvent]:
    return list(flow.stream(**inputs))


Take = Callable[..., list[RunEvent]]
BOTH = pytest.mark.parametrize("take", [by_async, by_thread])


def shown(events: list[RunEvent], path: str = "answer") -> str:
    text = ""
    for event in events:
        if event.kind == "text" and event.path == path:
            text = event.text if event.restart else text + event.text
    return text


# -- what comes --------------------------------------------------------------------------------------------------------


@BOTH
def test_steps_text_and_the_result_come_in_order(take: Take, tmp_path: Path) -> None:
    with flow_at(tmp_path, GOOD) as (flow, _):
        events = take(flow, question="How often?")
    told = [(event.kind, event.path) for event in events if event.kind != "text"]
    assert told == [
        ("started", "answer"),
        ("finished", "answer"),
        ("started", "said"),
        ("progress", "said"),
        ("finished", "said"),
        ("result", ""),
    ]
    places = [number for number, event in enumerate(events) if event.kind == "text"]
    assert places
    assert places == list(range(1, 1 + len(places)))
    assert shown(events) == ANSWER
    result = events[-1].result
    assert isinstance(result, RunResult)
    assert result.outputs == "on Sundays."
    assert result.trace.usage.completion_tokens > 0


def test_stream_also_works_where_a_loop_runs(tmp_path: Path) -> None:
    async def in_a_loop(flow: Flow) -> list[RunEvent]:
        return list(flow.stream({"question": "How often?"}))

    with flow_at(tmp_path, GOOD) as (flow, _):
        assert shown(asyncio.run(in_a_loop(flow))) == ANSWER


@pytest.mark.parametrize("take", [by_async, by_thread])
def test_the_first_words_come_while_the_model_still_writes(take: Take, tmp_path: Path) -> None:
    read = threading.Event()

    def hold(number: int) -> None:
        assert number < 7 or read.wait(20)

    def look(flow: Flow) -> str:
        with closing(flow.stream(question="?")) as events:
            first = next(event for event in events if event.kind == "text")
            read.set()
            rest = list(events)
        return first.text + shown(rest)

    async def alook(flow: Flow) -> str:
        async with aclosing(flow.astream(question="?")) as events:
            async for event in events:
                if event.kind == "text":
                    break
            read.set()
            return event.text + shown([event async for event in events])

    with flow_at(tmp_path, lambda _: Reply(json.dumps(DRAFT), before_piece=hold)) as (flow, _):
        assert (look(flow) if take is by_thread else asyncio.run(alook(flow))) == ANSWER


def test_what_nobody_follows_is_not_streamed(tmp_path: Path) -> None:
    events: list[RunEvent] = []
    with flow_at(tmp_path, GOOD) as (flow, server):
        flow.run(question="?")
        flow.run_traced(question="?", listener=events.append)
        assert ["stream" in chat.body for chat in server.chats] == [False, False]
    assert {event.kind for event in events} == {"started", "progress", "finished"}


def test_a_step_that_is_tried_again_begins_its_text_anew(tmp_path: Path) -> None:
    broken = Rule.model_validate({"json": DRAFT, "fault": "broken_stream", "call": 1})
    with flow_at(tmp_path, broken, GOOD) as (flow, _):
        events = by_async(flow, question="?")
    texts = [event for event in events if event.kind == "text"]
    assert [event.text for event in texts if event.restart] == [""]
    assert not texts[0].restart
    assert shown(events) == ANSWER


def test_text_from_a_thread_keeps_its_order_and_comes_before_the_end_of_its_step(tmp_path: Path) -> None:
    flow_text = "ragbraid: 1\nname: {name}\ninputs: {{question: str}}\nnodes:\n  hum: mine.hum\n  hum2: mine.hum\noutputs: {{hum: $hum, hum2: $hum2}}\n"
    words = [f"w{number} " for number in range(200)]
    with flow_at(tmp_path, text=flow_text) as (flow, _):
        events = by_async(flow, question="".join(words))
    for path in ("hum", "hum2"):
        assert shown(events, path) == "".join(words).replace(" ", "")
        own = [event.kind for event in events if event.path == path]
        assert (own[0], own[-1]) == ("started", "finished")


@BOTH
def test_a_slow_consumer_misses_nothing_and_gets_the_text_in_one_piece(take: Take, tmp_path: Path) -> None:
    def slowly(flow: Flow) -> list[RunEvent]:
        done = threading.Event()

        def start(listener: Any) -> Any:
            async def run() -> RunResult:
                try:
                    return await flow.arun_traced({"question": "?"}, listener=listener, follow_text=True)
                finally:
                    done.set()

            return run()

        if take is by_thread:
            events = stream_run_in_thread(start)
            first = next(events)
            assert done.wait(20)
            return [first, *events]

        async def wait() -> list[RunEvent]:
            stream = stream_run(start)
            first = await anext(stream)
            while not done.is_set():
                await asyncio.sleep(0.01)
            return [first, *await all_of(stream)]

        return asyncio.run(wait())

    with flow_at(tmp_path, GOOD) as (flow, _):
        events = slowly(flow)
    assert [event.text for event in events if event.kind == "text"] == [ANSWER]
    assert [event.kind for event in events][-4:] == ["started", "progress", "finished", "result"]


# -- failures ----------------------------------------------------------------------------------------------------------


@BOTH
def test_a_failure_comes_after_the_events_before_it(take: Take, tmp_path: Path) -> None:
    events: list[RunEvent] = []

    def gather(flow: Flow) -> None:
        events.extend(flow.stream(question="?"))

    async def agather(flow: Flow) -> None:
        async for event in flow.astream(question="?"):
            events.append(event)

    with (
        flow_at(tmp_path, Rule(fault="unauthorized")) as (flow, _),
        pytest.raises(ServiceError, match="The key was not accepted") as caught,
    ):
        gather(flow) if take is by_thread else asyncio.run(agather(flow))
    assert [(event.kind, event.status) for event in events] == [("started", None), ("finished", "failed")]
    assert caught.value.step == "answer"
    assert caught.value.trace.status == "failed"


@BOTH
def test_a_wrong_input_is_said_at_the_first_event(take: Take, tmp_path: Path) -> None:
    with flow_at(tmp_path) as (flow, _), pytest.raises(RunError, match="question") as caught:
        take(flow, wrong=1)
    assert caught.value.kind == "input"


# -- leaving early -----------------------------------------------------------------------------------------------------

WAITING = "ragbraid: 1\nname: {name}\ninputs: {{question: str}}\nnodes:\n  wait: mine.wait\noutputs: $wait\n"


def ended_of(flow: Flow) -> threading.Event:
    ended: threading.Event = flow.plan.body.steps[0].node.function.__globals__["ENDED"]
    ended.clear()
    return ended


def test_closing_the_iterator_ends_the_run_before_it_returns(tmp_path: Path) -> None:
    async def leave(flow: Flow) -> None:
        async with aclosing(flow.astream(question="?")) as events:
            assert (await anext(events)).kind == "started"
            await asyncio.sleep(0)

    with flow_at(tmp_path, text=WAITING) as (flow, _):
        ended = ended_of(flow)
        asyncio.run(leave(flow))
        assert ended.is_set()


def test_a_plain_break_ends_the_run(tmp_path: Path) -> None:
    async def leave(flow: Flow, ended: threading.Event) -> None:
        async for _ in flow.astream(question="?"):
            await asyncio.sleep(0.01)
            break
        gc.collect()
        while not ended.is_set():
            await asyncio.sleep(0.01)

    with flow_at(tmp_path, text=WAITING) as (flow, _):
        ended = ended_of(flow)
        asyncio.run(asyncio.wait_for(leave(flow, ended), 20))
        ended.clear()
        for _ in flow.stream(question="?"):
            break
        assert not [thread for thread in threading.enumerate() if thread.name == "ragbraid-stream"]


def test_cancelling_the_consumer_ends_the_run(tmp_path: Path) -> None:
    async def cancel(flow: Flow) -> None:
        task = asyncio.ensure_future(all_of(flow.astream(question="?")))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with flow_at(tmp_path, text=WAITING) as (flow, _):
        ended = ended_of(flow)
        asyncio.run(cancel(flow))
        assert ended.is_set()


@BOTH
def test_leaving_closes_the_request_to_the_model(take: Take, tmp_path: Path) -> None:
    left = threading.Event()

    def hold(number: int) -> None:
        assert number < 7 or left.wait(20)

    async def aleave(flow: Flow) -> None:
        async with aclosing(flow.astream(question="?")) as events:
            async for event in events:
                if event.kind == "text":
                    break

    def leave(flow: Flow) -> None:
        for event in flow.stream(question="?"):
            if event.kind == "text":
                break

    with flow_at(tmp_path, lambda _: Reply(json.dumps(DRAFT), before_piece=hold)) as (flow, server):
        leave(flow) if take is by_thread else asyncio.run(aleave(flow))
        left.set()
    assert server.requests[0].given_up


def test_an_iterator_that_is_never_asked_starts_no_run(tmp_path: Path) -> None:
    with flow_at(tmp_path, GOOD) as (flow, server):
        flow.stream(question="?").close()
        asyncio.run(flow.astream(question="?").aclose())
        assert server.requests == []


# -- many loops and threads --------------------------------------------------------------------------------------------


def test_loop_after_loop_and_thread_beside_thread_the_model_answers(tmp_path: Path) -> None:
    answers: list[Any] = []

    def run(flow: Flow) -> None:
        answers.append(flow.run(question="?"))

    with flow_at(tmp_path, GOOD) as (flow, server):
        for _ in range(3):
            assert asyncio.run(flow.arun(question="?")) == "on Sundays."
        threads = [threading.Thread(target=run, args=(flow,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == ["on Sundays."] * 8
        assert len(server.requests) == 11
        assert flow.resources.get("llm", "llm").clients.open_loops() == 0
