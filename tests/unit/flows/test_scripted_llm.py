import json
import math
import threading
from pathlib import Path

import httpx
import openai
import pytest

from ragbraid.flows.scripted_llm import ScriptedLLM, serve_forever
from ragbraid.flows.scripted_rules import ChatRequest, Recording, Reply, Rule, load_rules
from ragbraid.flows.scripted_text import count_tokens, embed_text
from ragbraid.registry.errors import SettingsError


def chat(server: ScriptedLLM, user: str, *, system: str | None = None, **more: object) -> httpx.Response:
    messages = [{"role": "user", "content": user}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return httpx.post(
        f"{server.base_url}/chat/completions",
        json={"model": "m", "messages": messages, **more},
        timeout=20,
        verify=False,
    )


def text_of(response: httpx.Response) -> str:
    content = response.json()["choices"][0]["message"]["content"]
    assert isinstance(content, str)
    return content


def test_the_first_rule_that_matches_answers() -> None:
    rules = [
        Rule(user="capital of France", reply="Paris"),
        Rule(system="terse", reply="yes"),
        Rule(reply="otherwise"),
    ]
    with ScriptedLLM(rules) as server:
        assert text_of(chat(server, "What is the capital of France?")) == "Paris"
        assert text_of(chat(server, "hello", system="Be terse.")) == "yes"
        assert text_of(chat(server, "hello")) == "otherwise"


def test_a_rule_may_answer_only_the_nth_request_that_it_matches() -> None:
    rules = [Rule(user="x", call=1, fault="rate_limit"), Rule(user="x", call=[2, 3], reply="later"), Rule(reply="end")]
    with ScriptedLLM(rules) as server:
        assert chat(server, "unrelated").json()["choices"][0]["message"]["content"] == "end"
        assert [chat(server, "x").status_code for _ in range(3)] == [429, 200, 200]
        assert text_of(chat(server, "x")) == "end"


def test_a_request_that_no_rule_answers_is_an_error_that_quotes_it() -> None:
    with ScriptedLLM([Rule(user="weather", reply="ok")]) as server:
        response = chat(server, "unknown thing")
    assert response.status_code == 400
    assert response.json()["error"]["message"] == (
        "No rule answers this request. Its last user message: 'unknown thing'"
    )


def test_functions_answer_beside_rules() -> None:
    def shout(request: ChatRequest) -> Reply | None:
        return Reply(text=f"{request.user.upper()} {request.number}") if request.user.startswith("say ") else None

    with ScriptedLLM([shout, Rule(reply="rule")]) as server:
        assert text_of(chat(server, "say hi")) == "SAY HI 1"
        assert text_of(chat(server, "hi")) == "rule"


@pytest.mark.parametrize(
    ("fault", "status"), [("rate_limit", 429), ("server_error", 500), ("unauthorized", 401), ("bad_request", 400)]
)
def test_http_faults_have_their_status_and_message(fault: str, status: int) -> None:
    rule = Rule.model_validate({"fault": fault, "message": "as told", "retry_after": 7})
    with ScriptedLLM([rule]) as server:
        response = chat(server, "x")
    assert (response.status_code, response.json()["error"]["message"]) == (status, "as told")
    assert response.headers["retry-after"] == "7.0"


def test_a_reset_cuts_the_line() -> None:
    with ScriptedLLM([Rule(fault="reset")]) as server, pytest.raises(httpx.TransportError):
        chat(server, "x")


def test_a_hanging_request_does_not_keep_the_server_from_stopping() -> None:
    with ScriptedLLM([Rule(fault="timeout")]) as server:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.base_url}/chat/completions", json={"messages": []}, timeout=0.2, verify=False)
        assert [request.status for request in server.requests] == [0]


def test_cut_off_replies_end_in_the_middle_with_the_reason_length() -> None:
    with ScriptedLLM([Rule(reply="0123456789", fault="cut_off")]) as server:
        choice = chat(server, "x").json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("01234", "length")


def test_other_faults_change_the_reply() -> None:
    with ScriptedLLM([Rule(user="empty", fault="empty_choices"), Rule(user="schema", fault="wrong_schema")]) as server:
        assert chat(server, "empty").json()["choices"] == []
        assert json.loads(text_of(chat(server, "schema"))) == {"unexpected": True}


@pytest.mark.parametrize(("wrap", "start"), [("fence", "```json\n{"), ("prose", "Sure"), ("think", "<think>")])
def test_replies_can_be_wrapped_as_chat_models_do(wrap: str, start: str) -> None:
    with ScriptedLLM([Rule.model_validate({"json": {"a": 1}, "wrap": wrap})]) as server:
        text = text_of(chat(server, "x"))
    assert text.startswith(start)
    assert '{"a": 1}' in text


def test_json_answers_a_request_with_tools_as_a_tool_call() -> None:
    tools = [{"type": "function", "function": {"name": "Out", "parameters": {}}}]
    with ScriptedLLM([Rule.model_validate({"json": {"a": 1}})]) as server:
        message = chat(server, "x", tools=tools).json()["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"][0]["function"] == {"name": "Out", "arguments": '{"a": 1}'}


def test_the_openai_client_reads_chats_streams_models_and_embeddings() -> None:
    text = "a longer reply that needs several pieces, 中文也可以"
    with (
        ScriptedLLM([Rule(reply=text)], dimension=16) as server,
        openai.OpenAI(base_url=server.base_url, api_key="k", max_retries=0) as client,
    ):
        plain = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        assert plain.choices[0].message.content == text
        assert plain.usage is not None
        assert plain.usage.completion_tokens == count_tokens(text)
        with client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "x"}],
            stream=True,
            stream_options={"include_usage": True},
        ) as stream:
            chunks = list(stream)
        pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        assert "".join(pieces) == text
        assert len(pieces) > 3
        assert chunks[-1].usage == plain.usage
        assert [model.id for model in client.models.list()] == ["scripted"]
        data = client.embeddings.create(model="e", input=["red fox", "blue sea"]).data
        assert [len(item.embedding) for item in data] == [16, 16]
        assert data[0].embedding == pytest.approx(embed_text("red fox", 16), abs=1e-6)


def test_every_request_is_recorded_with_its_status() -> None:
    with ScriptedLLM([Rule(call=1, reply="ok")], api_key="right") as server:
        assert chat(server, "no key").status_code == 401
        url = f"{server.base_url}/chat/completions"
        body = {"messages": [{"role": "user", "content": "with key"}]}
        assert httpx.post(url, json=body, headers={"Authorization": "Bearer right"}).status_code == 200
        assert httpx.post(url, content=b"no json", headers={"Authorization": "Bearer right"}).status_code == 400
        assert httpx.get(f"{server.base_url}/nothing").status_code == 404
    assert [request.status for request in server.requests] == [401, 200, 400]
    assert [request.user for request in server.chats] == ["no key", "with key", ""]


def test_many_clients_at_once_are_counted_right() -> None:
    rules = [Rule(call=[1, 2, 3], reply="early"), Rule(reply="late")]
    replies: list[str] = []
    with ScriptedLLM(rules) as server:
        threads = [threading.Thread(target=lambda: replies.append(text_of(chat(server, "x")))) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(replies) == ["early"] * 3 + ["late"] * 9
    assert len(server.requests) == 12


def test_what_was_served_can_be_recorded_and_replayed(tmp_path: Path) -> None:
    file = tmp_path / "session.jsonl"
    with ScriptedLLM([Rule(call=1, reply="eins"), Rule(call=2, reply="zwei")], record_to=file) as server:
        assert [text_of(chat(server, "x")) for _ in range(2)] == ["eins", "zwei"]
    with ScriptedLLM([Recording.load(file)]) as server:
        assert [text_of(chat(server, "x")) for _ in range(3)] == ["eins", "zwei", "zwei"]
        assert chat(server, "never recorded").status_code == 400


def test_a_broken_recording_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "session.jsonl"
    file.write_text('{"messages": [], "reply": "a"}\n\n{"messages": []}\n')
    with pytest.raises(SettingsError, match=r"Line 3 of the recording .* is not an object"):
        Recording.load(file)


def test_rules_are_read_from_yaml_and_from_json(tmp_path: Path) -> None:
    as_yaml, as_json = tmp_path / "rules.yaml", tmp_path / "rules.json"
    as_yaml.write_text("rules:\n  - user: 首都\n    json: {answer: 巴黎}\n  - fault: timeout\n", encoding="utf-8")
    as_json.write_text('[{"user": "a", "reply": "b"}]')
    rules = load_rules(as_yaml)
    assert [(rule.user, rule.fault) for rule in rules] == [("首都", None), (None, "timeout")]
    assert rules[0](ChatRequest({"messages": [{"role": "user", "content": "法国的首都"}]})) == Reply(
        '{"answer": "巴黎"}'
    )
    assert load_rules(as_json)[0].reply == "b"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("- {user: x, rely: y}", "Rule 1 of .* is wrong: `rely`: Extra inputs are not permitted"),
        ("- {reply: a}\n- {user: x}", "Rule 2 of .* is wrong: a rule needs `reply`, `json` or `fault`"),
        ("- {reply: a, json: {}}", "Rule 1 of .* is wrong: a rule has `reply` or `json`, not both"),
        ("- {user: '(', reply: a}", "Rule 1 of .* is wrong: '\\(' is not a regular expression"),
        ("rules: 5", "must hold a list of rules"),
        ("a: [", "is not valid YAML"),
    ],
)
def test_a_wrong_rules_file_gets_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=sentence) as caught:
        load_rules(file)
    assert ("reply, json, wrap" in (caught.value.hint or "")) == ("rely" in text)


def test_a_missing_rules_file_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot be read: No such file"):
        serve_forever(tmp_path / "none.yaml")


def test_serve_forever_says_where_it_listens_and_a_taken_port_is_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("- reply: hello")
    with ScriptedLLM() as other, pytest.raises(SettingsError, match=r"cannot listen on port \d+"):
        serve_forever(file, port=int(other.base_url.split(":")[2].split("/")[0]))

    said: list[str] = []

    def interrupt(sentence: str) -> None:
        said.append(sentence)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        serve_forever(file, port=0, announce=interrupt)
    assert said[0].startswith("Scripted model `scripted` at http://127.0.0.1:")


def test_texts_that_share_words_have_near_vectors() -> None:
    def cosine(left: str, right: str) -> float:
        return math.fsum(a * b for a, b in zip(embed_text(left, 256), embed_text(right, 256), strict=True))

    assert cosine("the red fox", "the red fox") == pytest.approx(1)
    assert cosine("the red fox", "a red fox runs") > cosine("the red fox", "deep blue sea")
    assert cosine("知识图谱检索", "图谱检索") > cosine("知识图谱检索", "蓝色大海")
    assert embed_text("!!!", 4) == [1.0, 0.0, 0.0, 0.0]


def test_tokens_are_counted_roughly_and_always_alike() -> None:
    assert [count_tokens(text) for text in ("", "word", "words", "图谱", "图谱 ab")] == [0, 1, 2, 2, 3]
