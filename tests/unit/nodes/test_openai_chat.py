import asyncio
import contextlib
import logging
import pickle
import threading
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from pydantic import BaseModel

from ragbraid.flows.scripted_llm import ScriptedLLM
from ragbraid.flows.scripted_rules import ChatRequest, Reply, Rule
from ragbraid.nodes.openai_chat import OpenAIChat, OutputMode, RetryPolicy
from ragbraid.nodes.openai_errors import retry_after_seconds
from ragbraid.nodes.openai_text import find_object, without_thoughts
from ragbraid.nodes.resource_openai import openai_chat
from ragbraid.registry.catalogue import installed_catalogue
from ragbraid.registry.context import StepContext, step_context
from ragbraid.registry.contracts import Usage
from ragbraid.registry.errors import LimitError, ServiceError, SettingsError
from ragbraid.registry.resources import LLM, Completion, Message

KEY = "sk-very-secret-0123456789"
HEADER_SECRET = "token-in-a-header-987"
MODES: list[OutputMode] = ["auto", "json_schema", "tools", "markdown_json", "json"]


class City(BaseModel):
    name: str
    people: int


PARIS = City(name="Paris", people=2_100_000)
GOOD = Rule.model_validate({"json": PARIS.model_dump()})


def chat_at(server: ScriptedLLM, **more: Any) -> OpenAIChat:
    settings = {"model": "m", "api_key": KEY, "retry": RetryPolicy(3, 0.01), "timeout_seconds": 20.0, **more}
    return OpenAIChat(base_url=server.base_url, **settings)


def ask(text: str = "Where?") -> list[Message]:
    return [Message(role="user", content=text)]


def extract(llm: LLM, text: str = "Where?") -> Completion[City]:
    return asyncio.run(llm.extract(ask(text), City, max_tokens=50, temperature=0))


def complete(llm: LLM, text: str = "Where?") -> Completion[str]:
    return asyncio.run(llm.complete(ask(text), max_tokens=50, temperature=0))


@contextlib.contextmanager
def failing(**rule: Any) -> Iterator[ScriptedLLM]:
    with ScriptedLLM([Rule.model_validate(rule)]) as server:
        yield server


# -- answers -----------------------------------------------------------------------------------------------------------


def test_the_provider_makes_an_llm_that_keeps_key_and_headers_as_secrets() -> None:
    provider = installed_catalogue().find_resource("openai.chat")
    assert provider is not None
    assert (provider.role, provider.secrets) == ("llm", {"api_key", "headers"})
    assert isinstance(provider.factory(model="m", base_url="http://127.0.0.1:9/v1"), LLM)


def test_the_embedder_of_the_endpoint_stands_in_the_same_family() -> None:
    provider = installed_catalogue().find_resource("openai.embedder")
    assert provider is not None
    assert provider.role == "embedder"


def test_complete_returns_text_usage_and_the_model_that_answered() -> None:
    with ScriptedLLM([Rule(reply="In Paris.")]) as server:
        done = complete(chat_at(server))
        sent = server.chats[0]
    assert done == Completion("In Paris.", Usage(llm_calls=1, prompt_tokens=2, completion_tokens=3), "m")
    assert sent.messages == [{"role": "user", "content": "Where?"}]
    assert (sent.body["max_tokens"], sent.body["temperature"], sent.body["model"]) == (50, 0, "m")
    assert sent.headers["authorization"] == f"Bearer {KEY}"


def test_complete_leaves_out_what_the_model_only_thought() -> None:
    with ScriptedLLM([Rule(reply="<think>Hm, France?</think>\n\nParis.")]) as server:
        assert complete(chat_at(server)).value == "Paris."


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_gets_an_instance_of_the_model_itself(mode: OutputMode) -> None:
    with ScriptedLLM([GOOD]) as server:
        done = extract(chat_at(server, mode=mode))
    assert done.value == PARIS
    assert type(done.value) is City
    assert pickle.loads(pickle.dumps(done)) == done
    assert done.usage.llm_calls == 1


@pytest.mark.parametrize("mode", ["auto", "json_schema", "markdown_json", "json"])
@pytest.mark.parametrize("wrap", ["fence", "prose", "think"])
def test_json_in_fences_in_prose_or_after_thoughts_is_accepted_at_once(mode: OutputMode, wrap: str) -> None:
    with ScriptedLLM([Rule.model_validate({"json": PARIS.model_dump(), "wrap": wrap})]) as server:
        assert extract(chat_at(server, mode=mode)).value == PARIS
        assert len(server.requests) == 1


def test_auto_states_the_schema_as_response_format_and_in_the_prompt() -> None:
    with ScriptedLLM([GOOD]) as server:
        extract(chat_at(server))
        sent = server.chats[0]
    assert sent.body["response_format"]["type"] == "json_schema"
    assert '"people"' in sent.system
    assert sent.messages[-1] == {"role": "user", "content": "Where?"}


def test_auto_goes_on_without_response_format_at_an_endpoint_that_rejects_it() -> None:
    def old_server(request: ChatRequest) -> Reply:
        if "response_format" in request.body:
            return Reply(fault="bad_request", message="'response_format' of type json_schema is not supported")
        return Reply(PARIS.model_dump_json())

    with ScriptedLLM([old_server]) as server:
        llm = chat_at(server)
        assert extract(llm).value == PARIS
        assert extract(llm).value == PARIS
        assert [request.status for request in server.requests] == [400, 200, 200]
        with pytest.raises(ServiceError, match="was refused"):
            extract(chat_at(server, mode="json_schema"))


def test_passages_that_hold_json_are_not_taken_for_the_answer() -> None:
    text = 'The passage says {"name": "Oslo", "people": 1}. So: {"name": "Paris", "people": 2100000} as in [1] and {x}.'
    with ScriptedLLM([Rule(reply=text)]) as server:
        assert extract(chat_at(server)).value == PARIS


# -- repairs, retries, usage -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["wrong_schema", "not_json"])
def test_invalid_output_is_repaired_and_every_call_is_counted(fault: str) -> None:
    bad = Rule.model_validate({"fault": fault, "call": [1, 2]})
    step = StepContext()
    with ScriptedLLM([bad, GOOD]) as server, step_context(step):
        done = extract(chat_at(server))
        assert len(server.requests) == 3
    assert done.value == PARIS
    assert done.usage.llm_calls == 3
    assert step.usage == done.usage
    assert done.usage.prompt_tokens > 3 * 2


@pytest.mark.parametrize("mode", MODES)
def test_after_two_repairs_the_output_is_invalid_and_the_calls_still_count(mode: OutputMode) -> None:
    step = StepContext()
    with failing(fault="wrong_schema") as server, step_context(step):
        with pytest.raises(ServiceError) as caught:
            extract(chat_at(server, mode=mode))
        assert len(server.requests) == 3
    assert caught.value.kind == "invalid_output"
    assert "after 2 repairs it still does not fit the form: `name`: Field required" in str(caught.value)
    assert step.usage.llm_calls == 3


def test_repairs_and_retries_are_counted_apart() -> None:
    script = [
        Rule(call=[1, 3, 5], fault="server_error"),
        Rule(call=[2, 4], fault="wrong_schema"),
        GOOD,
    ]
    with ScriptedLLM(script) as server:
        done = extract(chat_at(server, retry=RetryPolicy(2, 0.01)))
        assert [request.status for request in server.requests] == [500, 200, 500, 200, 500, 200]
    assert done.usage.llm_calls == 3


@pytest.mark.parametrize(
    ("fault", "kind"),
    [("rate_limit", "rate_limit"), ("server_error", "unavailable"), ("reset", "unavailable")],
)
def test_transient_failures_are_tried_again_in_one_layer_only(fault: str, kind: str) -> None:
    with ScriptedLLM([Rule.model_validate({"fault": fault, "call": [1, 2]}), GOOD]) as server:
        assert extract(chat_at(server)).value == PARIS
        assert len(server.requests) == 3
    with failing(fault=fault) as server:
        with pytest.raises(ServiceError) as caught:
            extract(chat_at(server))
        assert len(server.requests) == 3
    assert caught.value.kind == kind
    assert caught.value.transient


def test_a_timeout_is_tried_again_and_then_named_with_its_seconds() -> None:
    with failing(fault="timeout") as server:
        with pytest.raises(ServiceError, match=r"No answer from model `m` at http.* within 0.2 seconds") as caught:
            complete(chat_at(server, timeout_seconds=0.2, retry=RetryPolicy(2, 0.01)))
        assert len(server.requests) == 2
    assert caught.value.kind == "timeout"


def test_retry_after_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def note(seconds: float) -> None:
        waits.append(seconds)

    with ScriptedLLM([Rule(fault="rate_limit", call=1, retry_after=7), Rule(fault="server_error", call=2), GOOD]) as s:
        llm = chat_at(s)
        monkeypatch.setattr("ragbraid.nodes.openai_chat._pause", note)
        assert extract(llm).value == PARIS
    assert waits[0] == 7
    assert 0.02 <= waits[1] <= 0.03


def test_an_endpoint_that_asks_for_a_long_wait_is_not_waited_for() -> None:
    with failing(fault="rate_limit", retry_after=3600) as server:
        with pytest.raises(ServiceError, match="which asks to wait 3600 seconds") as caught:
            complete(chat_at(server))
        assert len(server.requests) == 1
    assert caught.value.kind == "rate_limit"


def test_retry_after_is_read_as_seconds_or_as_a_date() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    assert retry_after_seconds({"retry-after": "1.5"}) == 1.5
    assert retry_after_seconds({"retry-after": soon}) == pytest.approx(30, abs=5)
    assert retry_after_seconds({"retry-after": "Sun, 06 Nov 1994 08:49:37 GMT"}) == 0
    assert retry_after_seconds({"retry-after": "soon"}) is None
    assert retry_after_seconds({}) is None


def test_a_limit_of_the_run_ends_the_call_between_repairs() -> None:
    def limit(usage: Usage) -> None:
        raise LimitError("enough")

    with failing(fault="wrong_schema") as server:
        with step_context(StepContext(on_usage=limit)), pytest.raises(LimitError, match="enough"):
            extract(chat_at(server))
        assert len(server.requests) == 1


# -- failures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "kind", "sentence"),
    [
        ({"fault": "unauthorized"}, "auth", r"The key was not accepted \(401\) by model `m` at http://127"),
        ({"fault": "bad_request"}, "refused", r"refused \(400\) by model `m` at .*: The request is not valid\."),
        ({"fault": "content_filter", "reply": "x"}, "refused", "withheld by .*: its content filter took effect"),
        ({"fault": "cut_off", "reply": '{"name": "P'}, "truncated", "was cut off at its limit of 50 tokens"),
        ({"fault": "empty_choices"}, "invalid_output", "cannot be used: it holds no choice"),
        ({"fault": "web_page"}, "unavailable", "it is no chat completion; check `base_url`"),
    ],
)
def test_lasting_failures_are_not_tried_again_and_say_what_happened(
    rule: dict[str, Any], kind: str, sentence: str
) -> None:
    for call in (extract, complete):
        with failing(**rule) as server:
            with pytest.raises(ServiceError, match=sentence) as caught:
                call(chat_at(server))
            assert len(server.requests) == 1
        assert caught.value.kind == kind


def test_an_empty_text_is_no_answer() -> None:
    with failing(reply="<think>...</think>") as server, pytest.raises(ServiceError, match="it is empty") as caught:
        complete(chat_at(server))
    assert caught.value.kind == "invalid_output"


def test_a_server_that_does_not_run_is_unavailable() -> None:
    with ScriptedLLM() as server:
        address = server.base_url
    llm = OpenAIChat(base_url=address, model="m", retry=RetryPolicy(2, 0.01))
    with pytest.raises(ServiceError, match=f"No connection to model `m` at {address}") as caught:
        complete(llm)
    assert caught.value.kind == "unavailable"
    assert caught.value.hint == "check that the server runs and that `base_url` is right"


def test_an_unknown_model_hints_at_the_settings() -> None:
    with ScriptedLLM() as server:
        llm = OpenAIChat(base_url=server.base_url, model="m")
        server.script.append(lambda request: Reply(fault="not_found"))
        with pytest.raises(ServiceError, match=r"refused \(404\)") as caught:
            complete(llm)
    assert (caught.value.kind, caught.value.hint) == ("refused", "check `base_url` and `model`")


def test_failures_survive_pickling() -> None:
    with failing(fault="unauthorized") as server, pytest.raises(ServiceError) as caught:
        extract(chat_at(server))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.kind, again.hint) == (str(caught.value), "auth", "check `api_key`")


FAILURES: list[dict[str, Any]] = [
    {"fault": fault, "message": f"you sent {KEY} and {HEADER_SECRET}", "reply": f"leaks {KEY}"}
    for fault in (
        "rate_limit", "server_error", "unauthorized", "bad_request", "content_filter", "timeout", "reset",
        "web_page", "empty_choices", "cut_off", "wrong_schema", "not_json",
    )
]  # fmt: skip


@pytest.mark.parametrize("mode", ["auto", "tools", "markdown_json"])
@pytest.mark.parametrize("rule", FAILURES, ids=lambda rule: str(rule["fault"]))
def test_no_failure_repeats_a_secret(rule: dict[str, Any], mode: OutputMode, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with failing(**rule) as server:
        llm = chat_at(
            server, mode=mode, headers={"X-Token": f"Bearer {HEADER_SECRET}"}, timeout_seconds=0.3,
            retry=RetryPolicy(2, 0.01),
        )  # fmt: skip
        with pytest.raises(ServiceError) as caught:
            extract(llm)
        assert server.requests[0].headers["x-token"] == f"Bearer {HEADER_SECRET}"
    error = caught.value
    assert error.__cause__ is None
    assert error.__context__ is None
    with_locals = traceback.TracebackException.from_exception(error, capture_locals=True)
    logged = [record.getMessage() for record in caplog.records]
    told = [
        str(error), repr(error), str(error.hint), repr(error.__dict__), repr(llm), repr(llm.endpoint),
        repr(llm.clients), llm.identity, "".join(with_locals.format()), pickle.dumps(error).decode("latin-1"), *logged,
    ]  # fmt: skip
    shown = "\n".join(line for line in "\n".join(told).splitlines() if "failing(**rule)" not in line)
    shown = "\n".join(line for line in shown.splitlines() if not line.strip().startswith(("rule = ", "mode = ")))
    assert KEY not in shown
    assert HEADER_SECRET not in shown


def test_instructor_logs_nothing_of_our_calls_and_keeps_its_voice_for_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with failing(fault="wrong_schema") as server, pytest.raises(ServiceError):
        extract(chat_at(server))
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    logging.getLogger("instructor.v2.retry").error("someone else's")
    assert [record.getMessage() for record in caplog.records if record.name == "instructor.v2.retry"] == [
        "someone else's"
    ]


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base_url", "sentence"),
    [
        ("http://user:pa55word@host/v1", "holds a password or a query"),
        ("https://host/v1?key=pa55word", "holds a password or a query"),
        ("host:8000/v1", "is no web address: 'host:8000/v1'"),
        ("", "is no web address"),
    ],
)
def test_a_wrong_address_is_refused_without_repeating_its_password(base_url: str, sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence) as caught:
        openai_chat(model="m", base_url=base_url)
    assert "pa55word" not in str(caught.value)


def test_openai_itself_wants_a_key() -> None:
    with pytest.raises(SettingsError, match="neither `base_url` nor `api_key`"):
        openai_chat(model="m")
    assert isinstance(openai_chat(model="gpt", api_key=KEY), OpenAIChat)


def test_the_identity_names_endpoint_and_model_and_never_the_key() -> None:
    llm = openai_chat(model="m", base_url="http://host/v1/", api_key=KEY)
    assert llm.identity == "http://host/v1#m"
    assert repr(llm) == "OpenAIChat('http://host/v1#m')"


def test_keys_of_the_environment_are_not_sent_to_other_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-mine")
    with ScriptedLLM([Rule(reply="ok")]) as server:
        complete(chat_at(server, api_key=None))
        headers = server.chats[0].headers
    assert KEY not in str(headers)
    assert "org-of-mine" not in str(headers)


# -- event loops -------------------------------------------------------------------------------------------------------


def test_one_resource_serves_one_event_loop_after_another_and_closes_its_connections() -> None:
    with ScriptedLLM([Rule(reply="ok")]) as server:
        llm = chat_at(server)
        for _ in range(3):
            assert asyncio.run(_twice(llm)) == ["ok", "ok"]
            assert llm.clients.open_loops() == 0


async def _twice(llm: LLM) -> list[str]:
    return [(await llm.complete(ask(), max_tokens=5, temperature=0)).value for _ in range(2)]


def test_one_resource_serves_event_loops_in_several_threads_at_once() -> None:
    async def in_threads(llm: LLM) -> list[str]:
        calls = [asyncio.to_thread(asyncio.run, _twice(llm)) for _ in range(4)]
        own = await _twice(llm)
        return own + [text for pair in await asyncio.gather(*calls) for text in pair]

    with ScriptedLLM([Rule(reply="ok")]) as server:
        assert asyncio.run(in_threads(chat_at(server))) == ["ok"] * 10


def test_no_more_requests_run_at_once_than_allowed() -> None:
    running, most = 0, 0

    def slow(request: ChatRequest) -> Reply:
        nonlocal running, most
        running += 1
        most = max(most, running)
        pause.wait(0.05)
        running -= 1
        return Reply("ok")

    pause = threading.Event()

    async def many(llm: LLM) -> None:
        await asyncio.gather(*(llm.complete(ask(), max_tokens=5, temperature=0) for _ in range(6)))

    with ScriptedLLM([slow]) as server:
        asyncio.run(many(chat_at(server, max_concurrency=2)))
        assert len(server.requests) == 6
    assert most == 2


def test_cancelling_ends_a_call_at_once() -> None:
    async def cancelled(llm: LLM) -> None:
        task = asyncio.create_task(llm.extract(ask(), City, max_tokens=5, temperature=0))
        while not server.requests:
            await asyncio.sleep(0.01)
        task.cancel()
        await task

    with failing(fault="timeout") as server:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(cancelled(chat_at(server)))
        assert len(server.requests) == 1


# -- finding JSON ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": 1}', '{"a": 1}'),
        (' {"other": 1} ', '{"other": 1}'),
        ('```json\n{"a": 1}\n```', '{"a": 1}'),
        ('first {"a": 1} then {"a": {"a": 3}} done [1] {}', '{"a": {"a": 3}}'),
        ("no json at all {", "no json at all {"),
        ('cut {"a": 1', 'cut {"a": 1'),
        ("{" * 200_000, "{" * 200_000),
        ('{"a":' * 100_000, '{"a":' * 100_000),
    ],
)
def test_the_last_object_with_a_known_field_is_found(text: str, found: str) -> None:
    assert find_object(text, ["a"]) == found


def test_thoughts_are_left_out_also_without_their_opening_tag() -> None:
    assert without_thoughts("<think>a</think>b<think>c</think>d") == "bd"
    assert without_thoughts("so I think\n</think>\nanswer") == "\nanswer"
    assert without_thoughts("plain") == "plain"
