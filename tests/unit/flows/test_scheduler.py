from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from ragbraid.dsl.compile import check_text
from ragbraid.dsl.plan import Computed, Converted, Literally, Plan, Sequenced, SlotRef
from ragbraid.flows.runner import RunResult
from ragbraid.flows.scheduler import run_plan
from ragbraid.registry.catalogue import Catalogue
from ragbraid.registry.contracts import FanIn, Hit, Query, Ranking
from ragbraid.registry.conversions import CONVERSIONS
from ragbraid.registry.errors import NodeInputError, NodeOutputError, RunError, SettingsError
from ragbraid.registry.node import node

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


@node("demo.add")
def add(x: int, y: int = 1) -> int:
    """Add."""
    return x + y


@node("demo.aadd")
async def aadd(x: int, y: int = 1) -> int:
    """Add, on the loop."""
    return x + y


@node("demo.act")
async def act(does: Any, x: int = 0) -> int:
    """Do what the test says and return x."""
    await does()
    return x


@node("demo.block", blocking=True)
def block(does: Any, x: int = 0) -> int:
    """Do what the test says in a thread and return x."""
    does()
    return x


@node("demo.total")
def total(parts: FanIn[int]) -> int:
    """Add what arrives."""
    assert isinstance(parts, FanIn)
    return sum(parts.values())


@node("demo.keys")
def keys(parts: FanIn[int]) -> list[str]:
    """List the upstream nodes in the order in which they were handed over."""
    return list(parts)


@node("demo.present")
def present(parts: FanIn[int | None]) -> list[str]:
    """List the upstream nodes, those that gave nothing too."""
    return list(parts)


@node("demo.number")
def number(x: int) -> int:
    """Give a number, or so it says."""
    return "seven" if x == 7 else x  # type: ignore[return-value]


@node("demo.half")
def half(x: float) -> float:
    """Halve."""
    return x / 2


@node("demo.count")
def count(ranking: Ranking) -> int:
    """Count hits."""
    return len(ranking)


@node("demo.scores")
def scores(ranking: list[Hit]) -> list[float]:
    """Give the scores of hits."""
    return [hit.score for hit in ranking]


@node("demo.push")
def push(items: list[str]) -> int:
    """Change its own input, as no node should."""
    items.append("again")
    return len(items)


@node("demo.tenant", blocking=True)
def which_tenant() -> str:
    """Give the tenant of the caller's context."""
    return tenant.get()


@node("demo.thread", blocking=True)
def which_thread() -> int:
    """Give the thread it runs in."""
    return threading.get_ident()


@node("demo.search")
def search(index: Query, *, kb: Any = None) -> str:
    """Stand-in with a resource-like setting."""
    return f"{kb}:{index.text}"


def run(plan: Plan, resources: Any, inputs: Mapping[str, Any] | None = None, **options: Any) -> RunResult:
    return asyncio.run(run_plan(plan, inputs or {}, resources=resources, **options))


def expect_failure(plan: Plan, resources: Any, kind: type[BaseException] = RunError, **options: Any) -> Any:
    with pytest.raises(kind) as caught:
        run(plan, resources, **options)
    return caught.value


# -- values and order --------------------------------------------------------------------------------------------------


def test_a_chain_hands_values_on_and_a_single_output_comes_alone(plans, held):
    plan = plans.plan({"a": plans.use(add, {"x": "$n"}), "b": plans.use(aadd, {"x": "$a", "y": 10})}, inputs={"n": int})
    result = run(plan, held(), {"n": 1})
    assert result.outputs == 12
    assert [(step.path, step.outcome, step.output) for step in result.trace.steps] == [("a", "ok", 2), ("b", "ok", 12)]


def test_named_outputs_come_as_a_dict(plans, held):
    plan = plans.plan({"a": plans.use(add, {"x": 1})}, outputs={"twice": "$a", "fixed": 5})
    assert run(plan, held()).outputs == {"twice": 2, "fixed": 5}


def test_every_kind_of_planned_value_is_read(plans, held):
    ranking = Ranking.from_hits(
        [Hit(id="h", text="t", score=0.5, rank=1, score_kind="rank")], route="r", score_kind="rank"
    )
    to_hits = next(item for item in CONVERSIONS if item.name == "ranking_to_hits")
    slot = SlotRef(0, 0, (), "$ranking")
    plan = plans.plan(
        {
            "scores": plans.use(scores, {"ranking": Converted(slot, to_hits)}),
            "sum": plans.use(
                add,
                {
                    "x": Computed("${ n + 1 }", (("n", SlotRef(0, 1, (), "n")),), lambda n: n + 1),
                    "y": SlotRef(0, 0, ("hits", 0, "rank"), "$ranking.hits[0].rank"),
                },
            ),
        },
        inputs={"ranking": Ranking, "n": int},
        outputs={"scores": "$scores", "sum": "$sum", "list": Sequenced((Literally(1), SlotRef(0, 1, (), "$n")))},
    )
    assert run(plan, held(), {"ranking": ranking, "n": 4}).outputs == {"scores": [0.5], "sum": 6, "list": [1, 4]}


def test_async_branches_run_at_the_same_time(plans, held):
    async def main() -> RunResult:
        both = asyncio.Barrier(2)
        uses = {name: plans.use(act, {"does": both.wait, "x": 1}) for name in ("a", "b")}
        plan = plans.plan({**uses, "sum": plans.use(total, {"parts": {"a": "$a", "b": "$b"}})})
        return await run_plan(plan, {}, resources=held())

    assert asyncio.run(main()).outputs == 2


def test_blocking_branches_run_in_threads_at_the_same_time(plans, held):
    both = threading.Barrier(2, timeout=30)
    uses = {name: plans.use(block, {"does": both.wait, "x": 1}) for name in ("a", "b")}
    plan = plans.plan({**uses, "sum": plans.use(total, {"parts": {"a": "$a", "b": "$b"}})})
    assert run(plan, held()).outputs == 2


def test_a_blocking_node_runs_beside_the_loop_in_the_context_of_its_caller(plans, held):
    tenant.set("acme")
    plan = plans.plan(
        {"who": plans.use(which_tenant), "where": plans.use(which_thread)}, outputs={"who": "$who", "where": "$where"}
    )
    outputs = run(plan, held()).outputs
    assert outputs["who"] == "acme"
    assert outputs["where"] != threading.get_ident()


def test_a_step_starts_as_soon_as_its_own_inputs_are_there(plans, held):
    async def main() -> list[str]:
        late = asyncio.Event()

        async def release() -> None:
            late.set()

        plan = plans.plan(
            {
                "slow": plans.use(act, {"does": late.wait}),
                "fast": plans.use(aadd, {"x": 1}),
                "after_fast": plans.use(act, {"does": release, "x": "$fast"}),
            },
            outputs="$slow",
        )
        result = await run_plan(plan, {}, resources=held())
        return [step.path for step in sorted(result.trace.steps, key=lambda step: step.ended or 0)]

    assert asyncio.run(main()) == ["fast", "after_fast", "slow"]


def test_a_step_that_computes_does_not_hold_up_one_that_waits(plans, held):
    order: list[str] = []

    async def main() -> None:
        async def note() -> None:
            order.append("waits")

        def computes() -> int:
            order.append("computes")
            return 1

        plan = plans.plan(
            {
                "root": plans.use(aadd, {"x": 1}),
                "quick": plans.use(
                    add, {"x": Computed("${ f }", (("r", SlotRef(0, 0, (), "r")),), lambda r: computes())}
                ),
                "waits": plans.use(act, {"does": note, "x": "$root"}),
            },
            outputs={"q": "$quick", "w": "$waits"},
        )
        await run_plan(plan, {}, resources=held())

    asyncio.run(main())
    assert order == ["waits", "computes"]


def test_a_fan_in_keeps_the_written_order_whatever_finishes_first(plans, held):
    async def main() -> Any:
        first = asyncio.Event()

        async def open_first() -> None:
            first.set()

        plan = plans.plan(
            {
                "late": plans.use(act, {"does": first.wait}),
                "early": plans.use(act, {"does": open_first}),
                "keys": plans.use(keys, {"parts": {"late": "$late", "early": "$early"}}),
            }
        )
        return (await run_plan(plan, {}, resources=held())).outputs

    assert asyncio.run(main()) == ["late", "early"]


def test_what_was_skipped_upstream_does_not_arrive_at_a_fan_in_unless_it_takes_none(plans, held):
    uses = {"a": plans.use(add, {"x": 1}), "b": plans.use(add, {"x": 1}, when=Literally(False))}
    parts = {"parts": {"a": "$a", "b": "$b"}}
    plan = plans.plan(
        {**uses, "keys": plans.use(keys, parts), "present": plans.use(present, parts)},
        outputs={"keys": "$keys", "present": "$present"},
    )
    assert run(plan, held()).outputs == {"keys": ["a"], "present": ["a", "b"]}


def test_a_literal_list_is_not_shared_between_runs(plans, held):
    plan = plans.plan({"a": plans.use(push, {"items": ["once"]})})
    assert [run(plan, held()).outputs for _ in range(3)] == [2, 2, 2]


def test_sixty_four_runs_of_one_plan_do_not_mix(plans, held):
    uses = {f"s{i}": plans.use(aadd if i % 2 else add, {"x": f"$s{i - 1}" if i else "$n"}) for i in range(6)}
    plan = plans.plan({**uses, "last": plans.use(block, {"does": lambda: None, "x": "$s5"})}, inputs={"n": int})

    async def main() -> list[int]:
        runs = (run_plan(plan, {"n": n}, resources=held()) for n in range(64))
        return [result.outputs for result in await asyncio.gather(*runs)]

    assert asyncio.run(main()) == [n + 6 for n in range(64)]


def test_a_chain_of_thousands_is_no_recursion(plans, held):
    uses = {f"s{i}": plans.use(add, {"x": f"$s{i - 1}" if i else 0}) for i in range(5000)}
    assert run(plans.plan(uses), held()).outputs == 5000


def test_an_empty_body_gives_the_outputs_of_its_inputs(plans, held):
    assert run(plans.plan({}, inputs={"n": int}, outputs="$n"), held(), {"n": 3}).outputs == 3


# -- resources ---------------------------------------------------------------------------------------------------------


def test_resources_are_handed_over_by_parameter_and_absent_ones_left_to_the_default(plans, held):
    use = plans.use(search, {"index": Query(text="q")}, resources={"kb": "main"})
    plan = plans.plan({"s": use}, roles={"main": "kb"})
    assert run(plan, held({"main": "store"})).outputs == "store:q"
    assert run(plan, held()).outputs == "None:q"


def test_a_resource_that_cannot_be_opened_fails_the_step_with_its_own_error(plans, held):
    class Broken(held):
        def get(self, name: str, role: str) -> Any:
            raise SettingsError(f"nothing is bound to {name}")

    use = plans.use(search, {"index": Query(text="q")}, resources={"kb": "main"})
    error = expect_failure(plans.plan({"s": use}, roles={"main": "kb"}), Broken(), SettingsError)
    assert error.trace.step("s").error is error


# -- contracts ---------------------------------------------------------------------------------------------------------


def test_an_output_that_breaks_the_contract_names_step_node_expected_and_found(plans, held):
    error = expect_failure(
        plans.plan({"n": plans.use(number, {"x": "$x"})}, inputs={"x": int}), held(), inputs={"x": 7}
    )
    assert isinstance(error, NodeOutputError)
    assert str(error) == "`n` (demo.number) gives int, but returned the text 'seven'"
    assert (error.step, error.kind) == ("n", "contract")


@pytest.mark.parametrize(
    ("function", "port", "given", "message"),
    [
        (add, "x", "5", "`s` (demo.add) takes int for `x`, but was given the text '5'"),
        (add, "x", None, "`s` (demo.add) takes int for `x`, but was given none"),
        (count, "ranking", [1, 2], "`s` (demo.count) takes Ranking for `ranking`, but was given a list of 2"),
        (
            scores,
            "ranking",
            ["h"],
            "`s` (demo.scores) takes list[Hit] for `ranking`, but was given a list of 1 with the text 'h' at `0`",
        ),
        (total, "parts", {"a": "x"}, "`s` (demo.total) takes FanIn[int] for `parts`, but was given a dict of 1 with the text 'x' at `a`"),
    ],
)  # fmt: skip
def test_an_input_that_breaks_the_contract_is_one_sentence(plans, held, function, port, given, message):
    plan = plans.plan({"s": plans.use(function, {port: "$v"})}, inputs={"v": Any})
    error = expect_failure(plan, held(), NodeInputError, inputs={"v": given})
    assert str(error).startswith(message)
    assert error.step == "s"


def test_a_whole_number_is_a_float_and_nothing_else_is_converted(plans, held):
    plan = plans.plan({"h": plans.use(half, {"x": "$x"})}, inputs={"x": Any})
    assert run(plan, held(), {"x": 3}).outputs == 1.5
    assert isinstance(expect_failure(plan, held(), inputs={"x": "3"}), NodeInputError)


def test_a_reference_into_nothing_says_what_was_missing(plans, held):
    plan = plans.plan({"s": plans.use(add, {"x": "$q.weight"})}, inputs={"q": Query | None})
    error = expect_failure(plan, held(), inputs={"q": None})
    assert str(error) == "`$q.weight` has no value in this run: `weight` was to be read from what is empty (none)"
    assert error.step == "s"


def test_an_expression_that_fails_is_named(plans, held):
    divide = Computed("${ 1 / n }", (("n", SlotRef(0, 0, (), "n")),), lambda n: 1 / n)
    error = expect_failure(
        plans.plan({"s": plans.use(half, {"x": divide})}, inputs={"n": int}), held(), inputs={"n": 0}
    )
    assert str(error) == "`${ 1 / n }` cannot be computed: ZeroDivisionError: division by zero"
    assert error.step == "s"


def test_inputs_of_the_flow_are_checked_and_the_failed_run_has_a_trace(plans, held):
    plan = plans.plan({"s": plans.use(add, {"x": "$n"})}, inputs={"n": int})
    error = expect_failure(plan, held(), inputs={"m": 1})
    assert error.kind == "input"
    assert "`m`" in str(error)
    assert "`n` is missing" in str(error)
    assert (error.trace.status, error.trace.steps) == ("failed", [])


# -- with the compiler -------------------------------------------------------------------------------------------------

FLOW = """
ragbraid: 1
name: policies
inputs:
  n: int
  wanted: bool = true
nodes:
  a: {use: demo.add, x: $n, y: "${ n * 2 }"}
  b: {use: demo.aadd, x: $n, when: $wanted}
  bad: {use: demo.number, x: 7, on_error: {use: demo.add, x: $a, y: 100}, retry: 2}
  sum: {use: demo.total, parts: [$a, $bad], ensure: "${ out > n }", timeout: 30s}
  keys: {use: demo.present, parts: [$a, $b]}
outputs: {sum: $sum, keys: $keys}
"""


def test_a_checked_file_runs_as_it_is_written(held):
    catalogue = Catalogue()
    for function in (add, aadd, number, total, present):
        catalogue.add_node(function)
    checked = check_text(FLOW, "policies.yaml", catalogue)
    assert [finding.message for finding in checked.findings] == []
    assert checked.plan is not None
    result = run(checked.plan, held(), {"n": 2, "wanted": False})
    assert result.outputs == {"sum": 112, "keys": ["a", "b"]}
    outcomes = {step.path: step.outcome for step in result.trace.steps}
    assert (outcomes["b"], outcomes["bad"], outcomes["sum"]) == ("skipped", "failed", "ok")
    assert len(outcomes) == 6
