from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from ragbraid.dsl.plan import Computed, Literally, Plan, Policy, Retry, SlotRef, Step
from ragbraid.registry.contracts import Hit, Ranking

Compile = Callable[..., Plan]
Codes = Callable[..., list[str]]


def policy_of(plan: Plan, name: str) -> Policy:
    return next(step.policy for step in plan.body.steps if step.name == name)


def rc(compile_flow: Compile, written: str, **parts: str) -> Policy:
    nodes = f"rc: {{use: retrieve.dense, {written}}}\nm: fuse.rrf"
    return policy_of(compile_flow(nodes, flow="rc -> m", outputs="$m", **parts), "rc")


def test_a_step_without_reserved_keys_has_the_plain_policy(compile_flow: Compile) -> None:
    assert policy_of(compile_flow("rc: retrieve.dense", outputs="$rc"), "rc") == Policy()


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("retry: 3", Retry(attempts=3)),
        ("retry: {attempts: 2, delay: 500ms}", Retry(attempts=2, delay=0.5)),
        ("retry: {attempts: 2, delay: 3, backoff: 2}", Retry(attempts=2, delay=3.0, backoff=2.0)),
        ("retry: {attempts: 2, on: [timeout]}", Retry(attempts=2, on=frozenset({"timeout"}))),
        ("retry: {attempts: 2, on: rate_limit}", Retry(attempts=2, on=frozenset({"rate_limit"}))),
    ],
)
def test_retry_is_data(compile_flow: Compile, written: str, expected: Retry) -> None:
    assert rc(compile_flow, written).retry == expected


@pytest.mark.parametrize(
    ("written", "seconds"), [("30s", 30), ("2m", 120), ("1h", 3600), ("1.5s", 1.5), ("250ms", 0.25), ("5", 5)]
)
def test_a_timeout_is_seconds(compile_flow: Compile, written: str, seconds: float) -> None:
    assert rc(compile_flow, f"timeout: {written}").timeout_seconds == seconds


@pytest.mark.parametrize(("written", "seconds"), [("true", math.inf), ("false", None), ("1h", 3600), ("7d", 604800)])
def test_a_cache_has_a_lifetime(compile_flow: Compile, written: str, seconds: float | None) -> None:
    assert rc(compile_flow, f"cache: {written}").cache_seconds == seconds


def test_a_condition_makes_the_output_optional_and_is_computed_from_names(compile_flow: Compile) -> None:
    plan = compile_flow('rc: {use: retrieve.dense, when: "${ question | length > 3 }"}', outputs="$rc")
    step = plan.body.steps[0]
    assert step.output == Ranking | None
    assert isinstance(step.policy.when, Computed)
    assert step.policy.when.evaluate(question="long enough") is True


def test_a_reference_can_be_a_condition(compile_flow: Compile) -> None:
    policy = rc(compile_flow, "when: $fast", inputs="question: str\nfast: bool = true")
    assert policy.when == SlotRef(0, 1, (), "fast")


def test_a_constant_condition_is_kept(compile_flow: Compile) -> None:
    assert rc(compile_flow, "when: false").when == Literally(value=False)


@pytest.mark.parametrize("written", ['"${ not out.degraded }"', '"${ out.degraded == false }"'])
def test_a_post_condition_looks_at_out(compile_flow: Compile, written: str) -> None:
    ensure = rc(compile_flow, f"ensure: {written}").ensure
    assert ensure is not None
    assert ensure.names == ()
    assert ensure.evaluate(out=Ranking()) is True


def test_a_post_condition_can_be_a_reference_into_out(compile_flow: Compile) -> None:
    ensure = rc(compile_flow, "ensure: $out.degraded").ensure
    assert ensure is not None
    assert ensure.evaluate(out=Ranking(degraded=True)) is True


def test_a_post_condition_can_compare_with_what_is_in_scope(compile_flow: Compile) -> None:
    ensure = rc(compile_flow, 'ensure: "${ out | length >= least }"', inputs="question: str\nleast: int = 1").ensure
    assert ensure is not None
    assert ensure.names == (("least", SlotRef(0, 1, (), "least")),)
    hit = Hit(id="a", text="a", score=1.0, rank=1, score_kind="rank")
    assert ensure.evaluate(out=Ranking(hits=(hit,)), least=1) is True
    assert ensure.evaluate(out=Ranking(), least=1) is False


def test_skip_on_error_makes_the_output_optional(compile_flow: Compile) -> None:
    plan = compile_flow("rc: {use: retrieve.dense, on_error: skip}", outputs="$rc")
    assert plan.body.steps[0].policy.on_error == "skip"
    assert plan.output_types == {"": Ranking | None}


def test_an_empty_output_in_the_place_of_a_failed_step_keeps_its_type(compile_flow: Compile) -> None:
    plan = compile_flow("rc: {use: retrieve.dense, on_error: empty}", outputs="$rc")
    policy = policy_of(plan, "rc")
    assert (policy.on_error, policy.output, plan.output_types) == ("empty", Ranking, {"": Ranking})


def test_an_empty_output_may_stand_in_for_a_group_and_for_what_is_skipped(compile_flow: Compile) -> None:
    nodes = """
g: {nodes: {rc: retrieve.dense, top: {use: rerank.cross, hits: $rc}}, output: $top, on_error: empty}
sp: {use: retrieve.sparse, when: "${ g | length > 0 }", on_error: empty}
"""
    plan = compile_flow(nodes, outputs="{g: $g, sp: $sp}")
    assert [policy_of(plan, name).output for name in ("g", "sp")] == [Ranking, Ranking]
    assert plan.output_types == {"g": Ranking, "sp": Ranking | None}


def test_a_text_cannot_say_that_it_is_empty_because_something_failed(codes_of: Codes) -> None:
    assert codes_of("w: {use: text.rewrite, on_error: empty}", outputs="$w") == ["RB201"]


def test_a_replacement_is_a_step_with_the_same_values(compile_flow: Compile) -> None:
    nodes = """
w: text.rewrite
rc: {use: retrieve.dense, query: $w, on_error: {use: retrieve.sparse, top_k: 7, kb: laws}}
"""
    rest = "resources:\n  laws: {use: qdrant.embedded, path: ./laws}"
    plan = compile_flow(nodes, outputs="$rc", rest=rest)
    replacement = policy_of(plan, "rc").on_error
    assert isinstance(replacement, Step)
    assert (replacement.name, replacement.path, replacement.node.name) == ("rc", "rc.on_error", "retrieve.sparse")
    values = {binding.port: binding for binding in replacement.bindings}
    assert values["query"].value == next(b for b in plan.body.steps[1].bindings if b.port == "query").value  # type: ignore[union-attr]
    assert values["top_k"].value == Literally(7)
    assert dict(replacement.resources) == {"kb": "laws"}
    assert plan.roles == {"kb": "kb", "embedder": "embedder", "laws": "kb"}


def test_a_replacement_can_read_another_step_which_then_runs_before(compile_flow: Compile) -> None:
    nodes = "rc: {use: retrieve.dense, on_error: {use: rerank.cross, hits: $sp}}\nsp: retrieve.sparse"
    plan = compile_flow(nodes, outputs="$rc")
    assert [step.name for step in plan.body.steps] == ["sp", "rc"]


def test_a_replacement_that_waits_for_its_own_step_is_a_cycle(codes_of: Codes) -> None:
    nodes = "rc: {use: retrieve.dense, on_error: {use: rerank.cross, hits: $r}}\nr: {use: rerank.cross, hits: $rc}"
    assert codes_of(nodes, outputs="$r") == ["RB207"]
