from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from ragbraid.dsl.plan import Computed, Plan
from ragbraid.flows.cache import NoStableFormError, StepCache, canonical, result_key
from ragbraid.flows.runner import RunResult
from ragbraid.flows.scheduler import run_plan
from ragbraid.registry.contracts import Chunk, FanIn, Hit, Query, Ranking
from ragbraid.registry.errors import NodeOutputError, SettingsError
from ragbraid.registry.node import contract_of, node

calls: dict[str, int] = {}
"""How often each node of this module was called, by what it was asked."""


def count(key: str) -> None:
    calls[key] = calls.get(key, 0) + 1


@node("demo.shout")
def shout(text: str, *, marks: int = 1, log: str = "") -> str:
    """Shout."""
    count(log)
    return text.upper() + "!" * marks


@node("demo.shout", version=2)
def shout_again(text: str, *, marks: int = 1, log: str = "") -> str:
    """Shout, differently."""
    return text.upper()


@node("demo.rank")
def rank(text: str, *, log: str = "") -> Ranking:
    """Give a ranking."""
    count(log)
    hit = Hit(id=text, text=text, score=0.1 + 0.2, rank=1, score_kind="cosine", section_path=("a", "b"))
    return Ranking.from_hits([hit], route="r", score_kind="cosine")


@node("demo.join")
def join(parts: FanIn[str], *, log: str = "") -> str:
    """Join, in order."""
    count(log)
    return " ".join(parts.values())


@node("demo.loose")
def loose(value: Any, *, log: str = "") -> Any:
    """Give anything."""
    count(log)
    return value


@node("demo.write", cacheable=False)
def write(text: str, *, log: str = "") -> str:
    """Have an effect."""
    count(log)
    return text


@node("demo.ask")
def ask(text: str, *, kb: Any = None, log: str = "") -> str:
    """Ask a store."""
    count(log)
    return f"{text}@{kb.identity}"


@dataclass(frozen=True)
class Store:
    identity: str


@pytest.fixture
def log(request) -> str:
    return str(request.node.nodeid)


def run(plan: Plan, resources: Any, inputs: Mapping[str, Any] | None = None, **options: Any) -> RunResult:
    return asyncio.run(run_plan(plan, inputs or {}, resources=resources, **options))


def one_step(plans: Any, function: Any, seconds: float = float("inf"), **ports: Any) -> Plan:
    return plans.plan({"s": plans.use(function, ports, cache_seconds=seconds)})


# -- running -----------------------------------------------------------------------------------------------------------


def test_a_second_run_takes_the_result_from_the_cache(plans, held, tmp_path, log):
    plan = one_step(plans, rank, text="a", log=log)
    first, second = (run(plan, held(), cache=StepCache(tmp_path)) for _ in range(2))
    assert calls[log] == 1
    assert second.outputs == first.outputs
    assert second.outputs.hits[0].section_path == ("a", "b")
    assert (second.trace.step("s").cached, second.trace.step("s").attempts) == (True, 0)
    assert first.trace.step("s").cached is False


def test_without_a_cache_or_without_the_key_nothing_is_stored(plans, held, tmp_path, log):
    run(one_step(plans, shout, text="a", log=log), held())
    run(plans.plan({"s": plans.use(shout, {"text": "a", "log": log})}), held(), cache=StepCache(tmp_path))
    assert calls[log] == 2
    assert list(tmp_path.iterdir()) == []


def test_a_result_older_than_its_lifetime_is_made_again(plans, held, tmp_path, log):
    run(one_step(plans, shout, text="a", log=log), held(), cache=StepCache(tmp_path))
    (path,) = tmp_path.rglob("*.jsonl")
    head, value = path.read_text().splitlines()
    old = json.loads(head)
    old["stored_at"] -= 100
    path.write_text(f"{json.dumps(old)}\n{value}\n")
    assert (
        run(one_step(plans, shout, 200.0, text="a", log=log), held(), cache=StepCache(tmp_path)).trace.step("s").cached
    )
    run(one_step(plans, shout, 50.0, text="a", log=log), held(), cache=StepCache(tmp_path))
    assert calls[log] == 2


def test_a_damaged_file_is_a_miss_and_is_replaced(plans, held, tmp_path, log):
    plan = one_step(plans, shout, text="a", log=log)
    run(plan, held(), cache=StepCache(tmp_path))
    (path,) = tmp_path.rglob("*.jsonl")
    head = path.read_text().splitlines()[0]
    for broken in ("", "{}", "not json", f"{head}\n", f"{head}\n17\n", f"{head}\n{{\n", "[1]\n2\n"):
        path.write_text(broken)
        assert run(plan, held(), cache=StepCache(tmp_path)).outputs == "A!"
    assert calls[log] == 8
    assert run(plan, held(), cache=StepCache(tmp_path)).trace.step("s").cached


def test_a_result_that_breaks_its_post_condition_is_not_kept(plans, held, tmp_path, log):
    never = Computed("${ out == '' }", (), lambda out: out == "")
    use = plans.use(shout, {"text": "a", "log": log}, cache_seconds=float("inf"), ensure=never)
    with pytest.raises(NodeOutputError):
        run(plans.plan({"s": use}), held(), cache=StepCache(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_node_with_effects_is_never_cached_and_the_trace_says_so(plans, held, tmp_path, log):
    plan = one_step(plans, write, text="a", log=log)
    results = [run(plan, held(), cache=StepCache(tmp_path)) for _ in range(2)]
    assert calls[log] == 2
    assert results[0].trace.step("s").notes == ["not cached: demo.write does more than return a value"]


def test_the_fingerprint_of_a_resource_is_part_of_the_key(plans, held, tmp_path, log):
    use = plans.use(ask, {"text": "a", "log": log}, resources={"kb": "main"}, cache_seconds=float("inf"))
    plan = plans.plan({"s": use}, roles={"main": "kb"})
    stores = [Store("docs:1"), Store("docs:1"), Store("docs:2")]
    outputs = [run(plan, held({"main": store}), cache=StepCache(tmp_path)).outputs for store in stores]
    assert outputs == ["a@docs:1", "a@docs:1", "a@docs:2"]
    assert calls[log] == 2


class Odd:
    """Has no JSON form."""


@pytest.mark.parametrize(
    ("value", "note"),
    [
        (Odd(), "not cached: `value` holds a Odd, which has no stable form"),
        (SecretStr("hush"), "not cached: `value` holds a SecretStr, which has no stable form"),
        ((1, 2), "not cached: the output of `demo.loose` would not read back from JSON as it is"),
        (float("nan"), "not cached: the output of `demo.loose` would not read back from JSON as it is"),
        (Query(text="a"), "not cached: the output of `demo.loose` would not read back from JSON as it is"),
    ],
)
def test_what_cannot_be_kept_truly_is_not_kept_and_the_trace_says_why(plans, held, tmp_path, log, value, note):
    plan = one_step(plans, loose, value=value, log=log)
    result = run(plan, held(), cache=StepCache(tmp_path))
    assert result.trace.step("s").notes == [note]
    assert list(tmp_path.rglob("*")) == []
    assert "hush" not in json.dumps(result.trace.to_dict())


def test_a_directory_that_cannot_be_written_to_is_one_sentence_and_costs_no_result(plans, held, tmp_path, log):
    (tmp_path / "file").write_text("in the way")
    cache = StepCache(tmp_path / "file")
    sentence = f"the result of `demo.shout` cannot be kept under {tmp_path / 'file'}: Not a directory"
    with pytest.raises(SettingsError) as caught:
        cache.store("a" * 64, contract_of(shout), "A!")
    assert str(caught.value) == sentence
    result = run(one_step(plans, shout, text="a", log=log), held(), cache=cache)
    assert (result.outputs, result.trace.step("s").notes) == ("A!", [f"not cached: {sentence}"])


def test_concurrent_writers_and_readers_never_see_half_a_file(tmp_path):
    cache, contract = StepCache(tmp_path), contract_of(shout)
    key = result_key(contract, {"text": "a"}, [])
    values = {str(number) * 50_000 for number in range(8)}
    cache.store(key, contract, "0" * 50_000)
    seen: list[Any] = []

    def work(value: str) -> None:
        for _ in range(20):
            cache.store(key, contract, value)
            seen.append(cache.load(key, contract, float("inf")))

    threads = [threading.Thread(target=work, args=(value,)) for value in values]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 160
    assert all(found is not None and found.value in values for found in seen)
    assert [path.suffix for path in tmp_path.rglob("*") if path.is_file()] == [".jsonl"]


# -- keys --------------------------------------------------------------------------------------------------------------


def key(function: Any = shout, prints: Any = (), **inputs: Any) -> str:
    return result_key(contract_of(function), inputs, list(prints))


def test_the_key_is_the_same_for_the_same_things():
    assert key(text="a", marks=2) == key(marks=2, text="a")
    assert key(text="a") == key(text="a", marks=1)
    assert len(key(text="a")) == 64


def test_the_key_differs_in_node_version_ports_and_resources():
    keys = [
        key(text="a"),
        key(text="a", marks=2),
        key(text="a1"),
        key(shout_again, text="a"),
        key(write, text="a"),
        key(prints=[("kb", "1")], text="a"),
        key(prints=[("kb", "2")], text="a"),
        key(prints=[("embedder", "1")], text="a"),
    ]
    assert len(set(keys)) == len(keys)


def test_the_order_of_a_fan_in_is_part_of_the_key():
    assert key(join, parts=FanIn(a="1", b="2")) != key(join, parts=FanIn(b="2", a="1"))


def test_values_of_different_type_have_different_keys():
    hit = Hit(id="i", text="t", score=0.0, rank=1, score_kind="rank")
    chunk = Chunk(id="i", document_id="", source="", index=0, text="t")
    values = [1, 1.0, True, "1", None, [1], (1,), {1}, {"1": 1}, {1: 1}, b"1", [[1]], ["list", [1]], Path("1"), Store("1"),
              hit, chunk, hit.model_dump(), Query(text="1"), {"text": "1"}]  # fmt: skip
    keys = [key(loose, value=value) for value in values]
    assert len(set(keys)) == len(values)


def test_a_path_stands_for_the_state_of_its_file(tmp_path):
    path = tmp_path / "prompt.jinja"
    path.write_text("one")
    os.utime(path, ns=(1, 1))
    first = key(loose, value=path)
    assert key(loose, value=path) == first
    os.utime(path, ns=(2, 2))
    assert key(loose, value=path) != first


@dataclasses.dataclass(frozen=True)
class Pair:
    left: Any
    right: Any


plain = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False)
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=8
)


def typed(value: Any) -> Any:
    """Tell 1, 1.0 and True apart, and 0.0 and -0.0, which Python's `==` does not."""
    if isinstance(value, list):
        return [typed(item) for item in value]
    if isinstance(value, dict):
        return ("mapping", [(name, typed(item)) for name, item in value.items()])
    return (type(value).__name__, repr(value))


@given(values, values)
def test_two_values_share_a_form_only_if_they_are_the_same(one, other):
    same = typed(one) == typed(other)
    assert (json.dumps(canonical(one)) == json.dumps(canonical(other))) is same
    assert (json.dumps(canonical(Pair(one, other))) == json.dumps(canonical(Pair(other, one)))) is same


def test_what_has_no_stable_form_is_refused_by_name_of_its_port():
    with pytest.raises(NoStableFormError, match="`value` holds a Odd"):
        key(loose, value=[{"deep": Odd()}])
