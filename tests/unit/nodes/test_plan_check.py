import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragbraid.nodes.plan_check import check_steps, dependencies, introduced, make_plan
from ragbraid.nodes.plan_rewrite import rewrite
from ragbraid.nodes.plan_waves import collect, output, ready
from ragbraid.registry.errors import NodeInputError
from ragbraid.registry.logic import Binding, Bindings, LogicPlan, LogicStep, Slot, StepResult

Step = dict[str, Any]


def slot(text: str) -> Slot:
    """Read `o1`, `o1:Person`, `s1:Company=Acme`."""
    name, _, mention = text.partition("=")
    alias, _, types = name.partition(":")
    return Slot(alias=alias, types=tuple(types.split("|")) if types else (), mention=mention or None)


def retrieve(n: int, s: str, p: str, o: str, **more: Any) -> LogicStep:
    return LogicStep(n=n, question=f"question {n}", op="retrieve", s=slot(s), p=slot(p), o=slot(o), **more)


def compute(n: int, inputs: list[str], out: str | None = "m1", **more: Any) -> LogicStep:
    given: Step = {"target": "the sum", "op": "math", **more}
    return LogicStep(n=n, question=f"question {n}", inputs=tuple(inputs), out_alias=out, **given)


def answer(n: int, *inputs: str) -> LogicStep:
    return LogicStep(n=n, question="the answer", op="output", inputs=inputs)


FOUNDERS = [
    retrieve(1, "s1:Company=company A", "p1:founder", "o1:Person"),
    retrieve(2, "o1", "p2:birthDate", "o2:Date"),
    compute(3, ["o1", "o2"], target="the person with the earliest date"),
    answer(4, "m1"),
]


def test_the_example_of_the_method_depends_step_on_step() -> None:
    assert check_steps(FOUNDERS) == []
    plan = make_plan(FOUNDERS)
    assert [step.depends_on for step in plan.steps] == [(), (1,), (1, 2), (3,)]
    assert introduced(plan.steps) == {"s1": 1, "p1": 1, "o1": 1, "p2": 2, "o2": 2, "m1": 3}


def test_steps_that_do_not_need_each_other_run_in_one_wave() -> None:
    steps = [
        retrieve(1, "s1:Film=A", "p1:year", "o1"),
        retrieve(2, "s2:Film=B", "p2:year", "o2"),
        compute(3, ["o1", "o2"]),
        answer(4, "m1"),
    ]
    assert check_steps(steps) == []
    assert [step.n for step in ready(make_plan(steps), Bindings())] == [1, 2]


@pytest.mark.parametrize(
    ("steps", "sentence"),
    [
        ([], "The plan has no step."),
        (
            [retrieve(1, "s1=A", "p1", "o1"), answer(3, "o1")],
            "The steps have to be numbered 1 to 2 in order, but they are numbered 1, 3.",
        ),
        (
            [retrieve(2, "s1=A", "p1", "o1"), answer(1, "o1")],
            "The steps have to be numbered 1 to 2 in order, but they are numbered 2, 1.",
        ),
        (
            [retrieve(1, "s1=A", "p1", "o1")],
            "The plan has no output step; the last step has to output the answer's variables.",
        ),
        (
            [retrieve(1, "s1=A", "p1", "o1"), answer(2, "o1"), retrieve(3, "o1", "p2", "o2")],
            "Step 2 is the output step, but it is not the last one.",
        ),
        (
            [retrieve(1, "s1=A", "p1", "o1"), answer(2, "o1"), answer(3, "o1")],
            "Steps 2, 3 are all output steps; only the last step may be one.",
        ),
        (
            [compute(1, ["5", "o7"]), answer(2, "m1")],
            "Step 1 uses `o7`, which no step introduces.",
        ),
        ([retrieve(1, "s1=A", "p1", "o1"), answer(2, "founder")], "Step 2 uses `founder`, which no step introduces."),
        (
            [compute(1, ["o1"]), retrieve(2, "s1=A", "p1", "o1"), answer(3, "m1")],
            "Step 1 uses `o1`, which only step 2 introduces.",
        ),
        (
            [retrieve(1, "o2", "p1:born", "o1:Date"), retrieve(2, "s1=A", "p2", "o2:Person"), answer(3, "o1")],
            "Step 1 uses `o2`, which only step 2 introduces.",
        ),
        ([compute(1, ["m1"]), answer(2, "m1")], "Step 1 uses its own result `m1`."),
        (
            [compute(1, ["1"]), compute(2, ["2"]), answer(3, "m1")],
            "Step 2 makes `m1`, which step 1 introduced already.",
        ),
        (
            [retrieve(1, "s1=A", "p1:x", "o1"), retrieve(2, "s1=B", "p2:y", "o2"), answer(3, "o1")],
            "Step 2 introduces `s1`, which step 1 introduced as something else already.",
        ),
        (
            [retrieve(1, "s1=A", "p1:x", "o1"), retrieve(2, "o1", "p1:y", "o2"), answer(3, "o2")],
            "Step 2 introduces `p1`, which step 1 introduced as something else already.",
        ),
        (
            [LogicStep(n=1, question="q", op="retrieve", s=slot("s1=A"), p=slot("p1")), answer(2, "s1")],
            "Step 1 has no object; a retrieve step has all three.",
        ),
        (
            [LogicStep(n=1, question="q", op="retrieve", o=slot("o1")), answer(2, "o1")],
            "Step 1 has no subject and no predicate; a retrieve step has all three.",
        ),
        (
            [retrieve(1, "o1", "p1", "o1"), answer(2, "o1")],
            "Step 1 has `o1` in two places; subject, predicate and object are three variables.",
        ),
        (
            [retrieve(1, "s1=A", "p1", "o1", inputs=("5",)), answer(2, "o1")],
            "Step 1 is a retrieve step, so it takes no inputs.",
        ),
        ([compute(1, ["1"], out=None), answer(2, "5")], "Step 1 names no variable for its result."),
        (
            [compute(1, ["1"], target=" "), answer(2, "m1")],
            "Step 1 does not say what is wanted; write it as its target.",
        ),
        (
            [compute(1, ["1"], op="deduce"), answer(2, "m1")],
            "Step 1 does not say what kind of deduction it is.",
        ),
        (
            [compute(1, ["1"], s=slot("s1=A")), answer(2, "m1")],
            "Step 1 is a math step, so it takes inputs and no subject, predicate or object.",
        ),
        ([compute(1, ["1"]), answer(2)], "Step 2 outputs nothing: name the variables of the answer as its inputs."),
        (
            [compute(1, ["1"]), answer(2, "m1").model_copy(update={"out_alias": "x1"})],
            "Step 2 is the output, so it makes no variable.",
        ),
        ([compute(1, ["1"]).model_copy(update={"question": " "}), answer(2, "m1")], "Step 1 has no question."),
        (
            [compute(1, ["1"], depends_on=(7,)), answer(2, "m1")],
            "Step 1 waits for step 7, which does not exist.",
        ),
        (
            [
                compute(1, ["1"], out="m1", depends_on=(2,)),
                compute(2, ["m1"], out="m2"),
                answer(3, "m2"),
            ],
            "Steps 1 and 2 wait for each other in a circle.",
        ),
    ],
)
def test_every_mistake_is_one_sentence(steps: list[LogicStep], sentence: str) -> None:
    assert sentence in check_steps(steps)


def test_a_good_plan_has_no_finding_whatever_decoration_its_variables_bear() -> None:
    steps = [
        retrieve(1, "s1:Company=Acme", "p1:founder", "o1"),
        retrieve(2, "o1:Person", "p2:born", "o2:Date"),
        retrieve(3, "s1", "p3:seat", "o3:City"),
        compute(4, ["o2", "1990", "3 km"], out="res"),
        compute(5, ["res", "Paris is large", "o3"], out="d1", op="deduce", deduce_kind="judgement"),
        answer(6, "d1", "o3"),
    ]
    assert check_steps(steps) == []
    assert dependencies(steps) == {1: set(), 2: {1}, 3: {1}, 4: {2}, 5: {3, 4}, 6: {3, 5}}


def test_a_condition_may_use_a_variable() -> None:
    limited = Slot(alias="o2", constraints={"born in": "o1"})
    step = LogicStep(n=2, question="q", op="retrieve", s=slot("s2=B"), p=slot("p2"), o=limited)
    steps = [retrieve(1, "s1=A", "p1", "o1"), step, answer(3, "o2")]
    assert check_steps(steps) == []
    assert dependencies(steps)[2] == {1}


def test_later_steps_may_not_build_on_what_was_not_found_and_earlier_ones_stay() -> None:
    steps = [*FOUNDERS[:3], compute(4, ["o2"], out="m2"), answer(5, "m2")]
    assert check_steps(steps, lost=["o2"], since=4) == [
        "Step 4 uses `o2`, for which nothing was found; ask for it under a new name."
    ]


# -- waves -------------------------------------------------------------------------------------------------------------


def test_a_circle_made_by_hand_is_refused_before_anything_runs() -> None:
    steps = (
        compute(1, ["m2"], out="m1"),
        compute(2, ["m1"], out="m2"),
        answer(3, "m2"),
    )
    with pytest.raises(NodeInputError, match="Steps 1 and 2 of the plan wait for each other"):
        ready(LogicPlan(steps=steps), Bindings())


def test_waiting_for_a_step_that_does_not_exist_is_refused() -> None:
    with pytest.raises(NodeInputError, match="Step 1 of the plan waits for step 9, which the plan does not have"):
        ready(LogicPlan(steps=(compute(1, ["1"], depends_on=(9,)),)), Bindings())


@st.composite
def plans(draw: st.DrawFn) -> LogicPlan:
    count = draw(st.integers(1, 12))
    chance = draw(st.randoms(use_true_random=False))
    steps: list[LogicStep] = []
    for n in range(1, count + 1):
        earlier = [f"o{k}" for k in range(1, n)]
        used: list[str] = draw(st.lists(st.sampled_from(earlier), max_size=3, unique=True)) if earlier else []
        if used and chance.random() < 0.5:
            steps.append(compute(n, used, out=f"o{n}"))
        else:
            subject = used[0] if used else f"s{n}=Thing {n}"
            steps.append(retrieve(n, subject, f"p{n}:r{n}", f"o{n}"))
    steps.append(answer(count + 1, f"o{count}"))
    return make_plan(steps)


@settings(max_examples=80, deadline=None)
@given(plans(), st.randoms(use_true_random=False))
def test_random_plans_end_in_waves_that_respect_every_dependency(plan: LogicPlan, chance: Any) -> None:
    assert check_steps(plan.steps) == []
    known = Bindings()
    order: list[int] = []
    for _ in plan.steps:
        wave = ready(plan, known)
        if not wave:
            break
        assert all(set(step.depends_on) <= set(order) for step in wave)
        results = []
        for step in wave:
            concrete = asyncio.run(rewrite(step, known, "the question"))
            alias = step.out_alias or (step.o.alias if step.o else "")
            values = () if chance.random() < 0.3 else (f"value {step.n}",)
            lost = any(not (known.find(name) or Binding(alias="x")).values for name in _inputs(step, known))
            assert (concrete.reason is not None) == lost
            bound = Binding(alias=alias, values=values, status="ok" if values else "empty")
            results.append(StepResult(n=step.n, question=step.question, op=step.op, bindings=(bound,)))
        order += [step.n for step in wave]
        chance.shuffle(results)
        known = collect(known, results, wave)
    assert ready(plan, known) == []
    assert sorted(order) == [step.n for step in plan.steps[:-1]]
    assert output(plan, known).values == (known.find(plan.steps[-1].inputs[0]) or Binding(alias="x")).values


def _inputs(step: LogicStep, known: Bindings) -> list[str]:
    names = [*step.inputs, *(slot.alias for slot in step.slots if slot.mention is None)]
    return [name for name in names if known.find(name) is not None]
