from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from ragbraid.dsl.plan import Body, Computed, Converted, Literally, Plan, Sequenced, SlotRef, Step
from ragbraid.flows.compiled import CompiledBody
from ragbraid.flows.frames import Frame
from ragbraid.flows.limits import RunLimits
from ragbraid.flows.runner import RunEvent, RunResult
from ragbraid.flows.scheduler import run_body, run_plan
from ragbraid.flows.steps import Run
from ragbraid.flows.trace import Trace
from ragbraid.registry.contracts import FanIn, Hit, Query, Ranking
from ragbraid.registry.conversions import CONVERSIONS
from ragbraid.registry.errors import NodeInputError, NodeOutputError, RunError, ServiceError, SettingsError
from ragbraid.registry.node import node

Act = Callable[[], Any]
"""What a test wants a node to do; handed in as a literal."""

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


@node("demo.say")
async def say(does: Any) -> Any:
    """Give whatever the test's function gives."""
    return await does()


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


@node("demo.nap")
def nap(x: int) -> int:
    """Hold up the loop for longer than a worker's turn."""
    time.sleep(0.03)
    return x


@node("demo.half")
def half(x: float) -> float:
    """Halve."""
    return x / 2


@node("demo.read")
def read_query(query: Query) -> str:
    """Give a query's text."""
    return query.text


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


# -- failures ----------------------------------------------------------------------------------------------------------


async def fail_with(error: Exception) -> None:
    raise error


def test_a_foreign_exception_becomes_a_run_error_that_names_step_and_class(plans, held):
    plan = plans.plan({"s": plans.use(act, {"does": lambda: fail_with(ValueError("too odd"))})})
    error = expect_failure(plan, held())
    assert (str(error), error.kind, error.step) == ("`s` failed with ValueError: too odd", "failed", "s")
    assert isinstance(error.__cause__, ValueError)
    assert error.trace.step("s").outcome == "failed"
    assert error.trace.status == "failed"


def test_an_error_of_ours_keeps_its_class_and_kind(plans, held):
    service = ServiceError("the model is busy", kind="rate_limit")
    error = expect_failure(plans.plan({"s": plans.use(act, {"does": lambda: fail_with(service)})}), held())
    assert error is service
    assert (error.kind, error.step) == ("rate_limit", "s")


@pytest.mark.parametrize("order", [("fails", "hangs"), ("hangs", "fails")])
@pytest.mark.parametrize("rooted", [True, False])
def test_a_failure_cancels_its_siblings_and_waits_for_them(plans, held, order, rooted):
    seen: list[str] = []

    async def main() -> tuple[Any, int, int]:
        hanging = asyncio.Event()

        async def hang() -> None:
            hanging.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                seen.append("cleaned up")

        async def fail() -> None:
            await hanging.wait()
            raise ValueError("no")

        ports = {"fails": {"does": fail}, "hangs": {"does": hang}}
        after = () if rooted else ("root",)
        uses = {name: plans.use(act, ports[name], after=after) for name in order}
        root = {} if rooted else {"root": plans.use(add, {"x": 1})}
        parts = {"parts": {"fails": "$fails", "hangs": "$hangs"}}
        plan = plans.plan({**root, **uses, "sum": plans.use(total, parts)})
        with pytest.raises(RunError, match="`fails` failed with ValueError: no") as caught:
            await run_plan(plan, {}, resources=held())
        task = asyncio.current_task()
        assert task is not None
        await asyncio.sleep(0)  # a cancellation that was ours must not be left over
        return caught.value, len(asyncio.all_tasks()), task.cancelling()

    error, tasks, cancelling = asyncio.run(main())
    assert (seen, tasks, cancelling) == (["cleaned up"], 1, 0)
    assert {step.path: step.outcome for step in error.trace.steps if step.path != "root"} == {
        "fails": "failed",
        "hangs": "failed",
    }
    assert error.trace.step("hangs").error.kind == "cancelled"


def test_a_failure_while_many_tasks_wait_leaves_nothing_behind(plans, held):
    async def main() -> int:
        async def fail() -> None:
            await asyncio.sleep(0)
            raise ValueError("no")

        uses = {f"w{i}": plans.use(act, {"does": asyncio.Event().wait}, after=("root",)) for i in range(20)}
        uses["bad"] = plans.use(act, {"does": fail}, after=("root",))
        plan = plans.plan({"root": plans.use(add, {"x": 1}), **uses})
        with pytest.raises(RunError):
            await run_plan(plan, {}, resources=held())
        return len(asyncio.all_tasks())

    assert asyncio.run(main()) == 1


def test_a_node_that_awaited_something_cancelled_fails_and_does_not_cancel_the_run(plans, held):
    async def cancelled_inside() -> None:
        raise asyncio.CancelledError

    error = expect_failure(plans.plan({"s": plans.use(act, {"does": cancelled_inside})}), held())
    assert (error.kind, error.step, error.trace.status) == ("cancelled", "s", "failed")


# -- cancellation ------------------------------------------------------------------------------------------------------


def test_cancelling_a_run_stops_all_that_it_started_and_the_trace_says_so(plans, held):
    trace = Trace()

    async def main() -> int:
        started = asyncio.Barrier(3)

        async def hang() -> None:
            await started.wait()
            await asyncio.Event().wait()

        uses = {name: plans.use(act, {"does": hang}) for name in ("a", "b")}
        plan = plans.plan({**uses, "c": plans.use(add, {"x": "$a"})})
        task = asyncio.create_task(run_plan(plan, {}, resources=held(), trace=trace))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return len(asyncio.all_tasks())

    assert asyncio.run(main()) == 1
    assert trace.status == "cancelled"
    assert {step.path: step.outcome for step in trace.steps} == {"a": "failed", "b": "failed"}
    assert trace.to_dict()["steps"][0]["error"]["kind"] == "cancelled"


def test_ctrl_c_ends_the_run_and_the_trace_says_cancelled(plans, held):
    trace = Trace()

    async def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    plan = plans.plan({"a": plans.use(act, {"does": interrupt})})
    with pytest.raises(KeyboardInterrupt):
        run(plan, held(), trace=trace)
    assert trace.status == "cancelled"


def test_a_long_run_of_computing_steps_lets_others_have_a_turn(plans, held):
    async def main() -> bool:
        uses = {f"s{i}": plans.use(nap, {"x": f"$s{i - 1}" if i else 0}) for i in range(5)}
        task = asyncio.create_task(run_plan(plans.plan(uses), {}, resources=held()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return task.cancelled()

    assert asyncio.run(main())


# -- nesting -----------------------------------------------------------------------------------------------------------


def nested(plans: Any, inner: Body, held: Any, outer_value: int) -> tuple[Any, Trace]:
    """Run `inner` three times inside a step of a body around it, as a block will."""
    trace = Trace()
    frames: list[Frame] = []

    async def main() -> Any:
        compiled = CompiledBody(inner, {})

        async def repeat() -> int:
            last = 0
            for number in range(3):
                outer = frames[0]
                frame = Frame(compiled.size, parent=outer, prefix=f"block[{number}].")
                frame.values[0] = last
                await run_body(compiled, frame, runs[0])
                last = frame.values[-1]
            return last

        runs: list[Any] = []
        plan = plans.plan({"base": plans.use(add, {"x": "$n"}), "block": plans.use(say, {"does": repeat}, after=("base",))},
                          inputs={"n": int})  # fmt: skip
        body = CompiledBody(plan.body, {})
        runs.append(Run(trace, held(), None, None, None, RunLimits(plan.limits)))
        frames.append(Frame(body.size))
        frames[0].values[0] = outer_value
        await run_body(body, frames[0], runs[0])
        return frames[0].values[-1]

    return asyncio.run(main()), trace


def test_a_body_runs_inside_a_body_and_reads_the_scope_around_it(plans, held):
    base = SlotRef(1, 1, (), "$base")
    inner = plans.body({"sum": plans.use(aadd, {"x": "$last", "y": base})}, inputs=("last",))
    value, trace = nested(plans, inner, held, outer_value=9)
    assert value == 30
    assert [step.path for step in trace.steps] == ["base", "block", "block[0].sum", "block[1].sum", "block[2].sum"]


def test_a_failure_inside_an_inner_body_names_the_inner_step(plans, held):
    inner = plans.body(
        {
            "waits": plans.use(act, {"does": lambda: asyncio.Event().wait()}),
            "bad": plans.use(act, {"does": lambda: fail_with(ValueError("no"))}),
        },
        inputs=("last",),
    )
    with pytest.raises(RunError, match="no") as caught:
        nested(plans, inner, held, outer_value=1)
    assert caught.value.step == "block[0].bad"


# -- executors and listeners -------------------------------------------------------------------------------------------


class Recording:
    """An executor that notes what it is asked to do."""

    def __init__(self, handles_policies: bool, attempts: int = 1, stored: Mapping[str, Any] | None = None) -> None:
        self.handles_policies = handles_policies
        self.attempts = attempts
        self.stored = dict(stored or {})
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def execute(
        self, step: Step, path: str, call: Callable[[], Awaitable[Any]], inputs: Mapping[str, Any]
    ) -> Any:
        self.asked.append((path, dict(inputs)))
        if path in self.stored:
            return self.stored[path]
        for _ in range(self.attempts - 1):
            try:
                return await call()
            except RunError:
                continue
        return await call()


def test_an_executor_makes_every_call_and_sees_the_checked_inputs(plans, held):
    executor = Recording(handles_policies=False)
    plan = plans.plan({"a": plans.use(add, {"x": 1}), "b": plans.use(aadd, {"x": "$a"})})
    assert run(plan, held(), executor=executor).outputs == 3
    assert executor.asked == [("a", {"x": 1}), ("b", {"x": 2})]


def test_an_executor_that_handles_policies_retries_and_caches_by_itself(plans, held):
    calls: list[int] = []

    async def second_time() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise ServiceError("busy", kind="rate_limit")

    executor = Recording(handles_policies=True, attempts=2, stored={"known": 40})
    plan = plans.plan(
        {"known": plans.use(add, {"x": 1}), "again": plans.use(act, {"does": second_time, "x": "$known"})}
    )
    result = run(plan, held(), executor=executor)
    assert result.outputs == 40
    assert (result.trace.step("known").cached, result.trace.step("known").attempts) == (True, 0)
    assert (result.trace.step("again").cached, result.trace.step("again").attempts) == (False, 2)


def test_what_an_executor_kept_from_another_day_is_checked_too(plans, held):
    executor = Recording(handles_policies=True, stored={"known": "forty"})
    error = expect_failure(plans.plan({"known": plans.use(add, {"x": 1})}), held(), executor=executor)
    assert isinstance(error, NodeOutputError)


def test_the_listener_hears_of_every_step_from_start_to_end(plans, held):
    events: list[RunEvent] = []
    plan = plans.plan({"a": plans.use(add, {"x": 1}), "b": plans.use(add, {"x": "$a"}, when=Literally(False))})
    run(plan, held(), listener=events.append)
    assert [(event.kind, event.path, event.node, event.status, event.output) for event in events] == [
        ("started", "a", "demo.add@1", None, None),
        ("finished", "a", "demo.add@1", "ok", 2),
        ("started", "b", "demo.add@1", None, None),
        ("finished", "b", "demo.add@1", "skipped", None),
    ]


def test_the_listener_hears_of_a_failure_too(plans, held):
    events: list[RunEvent] = []
    plan = plans.plan({"a": plans.use(act, {"does": lambda: fail_with(ValueError("no"))})})
    error = expect_failure(plan, held(), listener=events.append)
    assert (events[-1].status, events[-1].error) == ("failed", error)
