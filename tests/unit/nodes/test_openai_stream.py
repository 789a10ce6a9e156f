import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import BaseModel

from ragbraid.flows.scripted_llm import ScriptedLLM
from ragbraid.flows.scripted_rules import ChatRequest, Reply, Rule
from ragbraid.nodes.openai_chat import OpenAIChat, OutputMode, RetryPolicy
from ragbraid.nodes.openai_text import find_open_object, without_open_thoughts
from ragbraid.registry.context import StepContext, WritesText, report_text, step_context
from ragbraid.registry.contracts import Usage
from ragbraid.registry.errors import ServiceError
from ragbraid.registry.resources import Message

LONG = "The alpha pump needs oil every 12 days, says the handbook [1]."


class Said(BaseModel):
    unsure: bool = False
    text: str
    numbers: list[int] = []

    @classmethod
    def text_so_far(cls, written: Mapping[str, Any]) -> str:
        return "" if written.get("unsure") else str(written.get("text", ""))


class Judged(BaseModel):
    reason: str


class Reader(StepContext):
    """A step that somebody follows: what they see, and every piece that came."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = ""
        self.pieces: list[tuple[str, bool]] = []
        self.on_text = self.read

    def read(self, piece: str, restart: bool = False) -> None:
        self.pieces.append((piece, restart))
        self.seen = piece if restart else self.seen + piece


def chat_at(server: ScriptedLLM, mode: OutputMode = "auto", **more: Any) -> OpenAIChat:
    return OpenAIChat(
        base_url=server.base_url, model="m", mode=mode, retry=RetryPolicy(3, 0.01), **{"timeout_seconds": 20.0, **more}
    )


def complete(llm: OpenAIChat, *, step: StepContext) -> Any:
    async def ask() -> Any:
        return await llm.complete([Message(role="user", content="Oil?")], max_tokens=90, temperature=0)

    with step_context(step):
        return asyncio.run(ask())


def extract(llm: OpenAIChat, output: type[BaseModel] = Said, *, step: StepContext) -> Any:
    async def ask() -> Any:
        return await llm.extract([Message(role="user", content="Oil?")], output, max_tokens=90, temperature=0)

    with step_context(step):
        return asyncio.run(ask())


def said(text: str = LONG, **more: Any) -> str:
    return Said(text=text, **more).model_dump_json()


# -- what is streamed --------------------------------------------------------------------------------------------------


def test_without_a_reader_nothing_is_streamed() -> None:
    with ScriptedLLM([Rule(reply=LONG)]) as server:
        assert complete(chat_at(server), step=StepContext()).value == LONG
        assert "stream" not in server.chats[0].body


def test_a_text_comes_in_pieces_and_costs_what_it_costs_in_one() -> None:
    with ScriptedLLM([Rule(reply=LONG)]) as server:
        whole, step = complete(chat_at(server), step=StepContext()), Reader()
        streamed = complete(chat_at(server), step=step)
    assert streamed == whole
    assert step.usage == whole.usage == Usage(llm_calls=1, prompt_tokens=2, completion_tokens=16)
    assert step.seen == LONG
    assert [piece for piece, _ in step.pieces][:3] == ["", "The alpha pump n", "eeds oil every 1"]
    assert step.notes == []


def test_the_first_piece_is_there_before_the_answer_is_complete() -> None:
    half_read = threading.Event()

    def wait_for_the_reader(number: int) -> None:
        if number == 5:
            assert half_read.wait(20)

    class Waiting(Reader):
        def read(self, piece: str, restart: bool = False) -> None:
            super().read(piece, restart)
            if "pump" in self.seen:
                half_read.set()

    with ScriptedLLM([lambda _: Reply(said(), before_piece=wait_for_the_reader)]) as server:
        assert extract(chat_at(server), step=Waiting()).value.text == LONG


@pytest.mark.parametrize("mode", ["auto", "json_schema", "tools", "markdown_json", "json"])
@pytest.mark.parametrize("wrap", [None, "fence", "prose", "think"])
def test_of_a_structured_answer_the_text_alone_is_shown(mode: OutputMode, wrap: Any) -> None:
    if mode == "tools" and wrap:
        pytest.skip("arguments of tools are never wrapped")
    text = 'Oil,\n"every" 12 days 🛢 中文 \\ [1].'
    with ScriptedLLM([Rule.model_validate({"reply": said(text, numbers=[1]), "wrap": wrap})]) as server:
        step = Reader()
        done = extract(chat_at(server, mode), step=step)
    assert done.value == Said(text=text, numbers=[1])
    assert done.usage.completion_tokens > 0
    assert step.seen == text
    assert len(step.pieces) > 2
    assert not any(restart for _, restart in step.pieces[1:])


def test_a_form_that_names_no_text_is_not_streamed() -> None:
    assert not issubclass(Judged, WritesText)
    with ScriptedLLM([Rule.model_validate({"json": {"reason": LONG}})]) as server:
        step = Reader()
        extract(chat_at(server), Judged, step=step)
        assert "stream" not in server.chats[0].body
    assert step.pieces == []


def test_a_text_that_turns_out_to_be_none_is_taken_back() -> None:
    reply = '{"text": "' + LONG + '", "unsure": true}'
    with ScriptedLLM([Rule(reply=reply)]) as server:
        step = Reader()
        extract(chat_at(server), step=step)
    assert step.pieces[-1] == ("", True)
    assert step.seen == ""


def test_an_object_that_a_model_quotes_gives_way_to_its_answer() -> None:
    reply = f'The passage says {{"text": "Oslo"}}. So: {said()}'
    with ScriptedLLM([Rule(reply=reply)]) as server:
        step = Reader()
        extract(chat_at(server), step=step)
    assert step.seen == LONG


def test_thoughts_are_never_shown() -> None:
    with ScriptedLLM([Rule(reply=LONG, wrap="think")]) as server:
        step = Reader()
        complete(chat_at(server), step=step)
    assert step.seen == LONG
    assert not any("<" in piece or "format" in piece for piece, _ in step.pieces)


# -- failures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["broken_stream", "stream_error"])
def test_a_stream_that_breaks_off_is_tried_again_and_its_text_is_void(fault: str) -> None:
    with ScriptedLLM([Rule.model_validate({"fault": fault, "reply": LONG, "call": 1}), Rule(reply=LONG)]) as server:
        step = Reader()
        assert complete(chat_at(server), step=step).value == LONG
    restarts = [position for position, (_, restart) in enumerate(step.pieces) if restart]
    assert len(restarts) == 2  # every request begins a text, the second one after pieces of the first
    assert restarts[1] > 1
    assert step.seen == LONG


def test_a_stream_that_always_breaks_off_is_a_sentence() -> None:
    with ScriptedLLM([Rule(fault="stream_error", reply=LONG, message="the card overheated")]) as server:
        with pytest.raises(ServiceError) as caught:
            complete(chat_at(server), step=Reader())
        assert len(server.requests) == 3
        where = f"model `m` at {server.base_url}"
    assert str(caught.value) == f"The answer of {where} broke off: the card overheated."
    assert caught.value.kind == "unavailable"
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)


def test_an_answer_that_is_cut_off_is_said_to_be_and_counted() -> None:
    with ScriptedLLM([Rule(fault="cut_off", reply=said())]) as server:
        step = Reader()
        with pytest.raises(ServiceError, match="cut off at its limit of 90 tokens") as caught:
            extract(chat_at(server), step=step)
    assert caught.value.kind == "truncated"
    assert step.usage.completion_tokens > 0


def test_a_repair_begins_the_text_anew() -> None:
    with ScriptedLLM(
        [Rule(reply='{"text": "half", "numbers": "x"}', user="^Oil", call=1), Rule(reply=said())]
    ) as server:
        step = Reader()
        assert extract(chat_at(server), step=step).value.text == LONG
    assert ("", True) in step.pieces[1:]
    assert step.seen == LONG
    assert step.usage.llm_calls == 2


def test_a_stream_is_bounded_by_the_timeout_of_a_request() -> None:
    held = threading.Event()
    with ScriptedLLM([lambda _: Reply(LONG, before_piece=lambda number: number > 2 and held.wait(20))]) as server:
        llm = chat_at(server, timeout_seconds=0.5)
        llm.retry = RetryPolicy(1)
        with pytest.raises(ServiceError, match=r"No answer from .* within 0\.5 seconds"):
            complete(llm, step=Reader())
        held.set()


def test_a_reader_who_leaves_closes_the_stream() -> None:
    async def leave(llm: OpenAIChat, step: Reader) -> None:
        asked = asyncio.ensure_future(llm.complete([Message(role="user", content="?")], max_tokens=9, temperature=0))
        while not step.seen:
            await asyncio.sleep(0.01)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        left.set()

    left = threading.Event()
    with ScriptedLLM([lambda _: Reply(LONG, before_piece=lambda number: number > 2 and left.wait(20))]) as server:
        step = Reader()
        with step_context(step):
            asyncio.run(leave(chat_at(server), step))
    assert server.requests[0].given_up


# -- endpoints that do less --------------------------------------------------------------------------------------------


def refusing(word: str, message: str) -> Any:
    def answer(request: ChatRequest) -> Reply:
        if word in request.body:
            return Reply(fault="bad_request", message=message)
        return Reply(LONG)

    return answer


def test_an_endpoint_without_streams_gives_the_text_in_one_piece_and_the_trace_says_so() -> None:
    with ScriptedLLM([refusing("stream", "`stream` is not supported by this model")]) as server:
        llm = chat_at(server)
        for _ in range(2):
            step = Reader()
            assert complete(llm, step=step).value == LONG
            assert step.pieces == [("", True), ("", True), (LONG, False)][-len(step.pieces) :]
            assert step.notes == ["the endpoint does not stream: the text came in one piece"]
        assert [request.status for request in server.requests] == [400, 200, 200]


def test_an_endpoint_without_stream_options_streams_but_its_tokens_are_not_counted() -> None:
    with ScriptedLLM([refusing("stream_options", "Unrecognized request argument supplied: stream_options")]) as server:
        step = Reader()
        assert complete(chat_at(server), step=step).value == LONG
    assert len(step.pieces) > 3
    assert step.usage == Usage(llm_calls=1)
    assert step.notes == ["the endpoint did not say how many tokens the streamed answer took; they are not counted"]


def test_an_endpoint_that_ignores_stream_is_understood() -> None:
    with ScriptedLLM([Rule(reply=LONG)]) as server:
        server.never_streams = True
        step = Reader()
        done = complete(chat_at(server), step=step)
        assert len(server.requests) == 1
    assert (done.value, done.usage.completion_tokens, step.seen) == (LONG, 16, LONG)
    assert step.notes == ["the endpoint does not stream: the text came in one piece"]


def test_a_web_page_is_no_stream() -> None:
    web_page = ScriptedLLM([Rule(fault="web_page")])
    with web_page as server, pytest.raises(ServiceError, match="it is no chat completion"):
        complete(chat_at(server), step=Reader())


# -- one text for a step -----------------------------------------------------------------------------------------------


def test_of_two_requests_at_once_the_newer_one_has_the_text() -> None:
    async def both(llm: OpenAIChat) -> None:
        ask = [llm.complete([Message(role="user", content=name)], max_tokens=9, temperature=0) for name in "ab"]
        await asyncio.gather(*ask)

    with ScriptedLLM([Rule(user="a", reply="first " * 9), Rule(user="b", reply="second " * 9)]) as server:
        step = Reader()
        with step_context(step):
            asyncio.run(both(chat_at(server)))
    assert step.seen == "second " * 9


def test_a_node_may_report_a_text_of_its_own() -> None:
    report_text("nobody listens")
    step = Reader()
    with step_context(step):
        report_text("a")
        report_text("b")
        assert step.seen == "ab"
        report_text("c", restart=True)
    assert step.seen == "c"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("<", ""),
        ("<thi", ""),
        ("<think>so", ""),
        ("<think>so</think>", ""),
        ("<think>so</think>\n\nYes", "Yes"),
        ("1 < 2", "1 < 2"),
        ("Yes <", "Yes "),
        ("Yes <b", "Yes <b"),
    ],
)
def test_a_thought_that_begins_is_held_back(text: str, shown: str) -> None:
    assert without_open_thoughts(text) == shown


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", None),
        ("So: {", None),
        ('{"oth', None),
        ('{"a"', None),
        ('{"a": "x', {"a": "x"}),
        ('{"a": "x\\', {"a": "x"}),
        ('{"a": "x\\u4e', {"a": "x"}),
        ('{"a": "x\\ud83d', {"a": "x"}),
        ('{"a": "x\\ud83d\\ude00', {"a": "x😀"}),
        ('{"a": "x", "b": tr', {"a": "x"}),
        ('{"a": "x", "b": 12, "c": [{"d": "y', {"a": "x", "b": 12, "c": [{"d": "y"}]}),
        ('{"a": "x"} and {y} and', {"a": "x"}),
        ('{"a": "x"} so {"a": "z', {"a": "z"}),
        ('{"other": 1} so {"c": 2', None),
        ("{" * 200, None),
    ],
)
def test_an_object_is_read_as_far_as_it_is_written(text: str, found: dict[str, Any] | None) -> None:
    assert find_open_object(text, ["a", "b"]) == found
