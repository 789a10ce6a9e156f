from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragbraid.nodes.plan_text import parse
from ragbraid.registry.errors import NodeInputError
from ragbraid.registry.logic import LogicStep


def steps(text: str) -> list[dict[str, Any]]:
    return [step.model_dump(exclude_defaults=True) for step in parse(text).steps]


def first(action: str) -> LogicStep:
    return parse(f"Step1: q\nAction1: {action}").steps[0]


def test_a_plan_as_kag_writes_it_with_prose_and_fences() -> None:
    text = """First the teams have to be found.
```
Step1:Which teams did Ann play for?
Action1:Retrieval(s=s1:Player[`Ann Smith`],p=p1:PlayedFor,o=o1:SportsTeam)
```
Then their years.
```
Step2: When were they founded?
Action2:Retrieval(s=o1, p=p2:FoundationYear, o=o2:Year)
```
```
Step3:Which was founded last?
Action3:Math(content=[`o2`], target=`Which team, of these, was founded last?`)->math3
```
**Step4: The answer**
Action4: output(math3, o1)
"""
    plan = parse(text)
    assert plan.raw == text
    assert plan.notes == ()
    assert [step.depends_on for step in plan.steps] == [(), (1,), (2,), (1, 3)]
    assert steps(text)[0] == {
        "n": 1,
        "question": "Which teams did Ann play for?",
        "op": "retrieve",
        "s": {"alias": "s1", "types": ("Player",), "mention": "Ann Smith"},
        "p": {"alias": "p1", "types": ("PlayedFor",)},
        "o": {"alias": "o1", "types": ("SportsTeam",)},
    }
    assert plan.steps[2].target == "Which team, of these, was founded last?"
    assert plan.steps[3].inputs == ("math3", "o1")


def test_a_chinese_plan_without_types_and_with_full_width_signs() -> None:
    plan = parse(
        "Step1：查询吴京\nAction1：Retrieval(s=s1:公众人物[`吴京`]，p=p1，o=o1)\nStep2:输出\nAction2:output(s1)"
    )
    assert plan.steps[0].s is not None
    assert (plan.steps[0].s.types, plan.steps[0].s.mention) == (("公众人物",), "吴京")
    assert plan.steps[1].depends_on == (1,)


@pytest.mark.parametrize("name", ["Retrieval", "retriever", "get_spo", "Retrieve"])
def test_all_names_of_a_retrieval_are_known(name: str) -> None:
    step = first(f"{name}(s=s1:Company[acme],p=p1:founder,o=o1:Person)")
    assert (step.op, [slot.alias for slot in step.slots]) == ("retrieve", ["s1", "p1", "o1"])


def test_a_search_for_one_thing_has_a_subject_alone() -> None:
    step = first("search_s(s=s1:Person[`Ann`], s.job=`painter`)")
    assert step.s is not None
    assert (step.s.mention, step.s.constraints, step.p, step.o) == ("Ann", {"job": "painter"}, None, None)


def test_get_is_an_output() -> None:
    plan = parse("Step1: q\nAction1: Retrieval(s=s1:A[x],p=p1:b,o=o1:C)\nStep2: r\nAction2: get(`o1`)")
    assert (plan.steps[1].op, plan.steps[1].inputs) == ("output", ("o1",))


@pytest.mark.parametrize(
    "name",
    [
        "Acme, Inc.",
        "a=b",
        "Foo, p=1",
        "Foo [2020] Ltd",
        "Rock'n'Roll",
        'The "Best" Co.',
        "the `quoted` one",
        "A`b",
        "x ] y",
        "f(x)",
        "->",
        "<b>bold</b>",
        "《心理治疗》，上",
        "{{ name }}",
    ],
)
def test_names_survive_whatever_they_hold(name: str) -> None:
    for written in (f"[`{name}`]", f"[{name}]"):
        step = first(f"Retrieval(s=s1:Company{written},p=p1:founder of,o=o1:Person|Group{written},o.place=`{name}`)")
        assert step.s is not None
        assert step.o is not None
        assert (step.s.mention, step.o.mention) == (name, name)
        assert (step.o.types, step.o.constraints) == (("Person", "Group"), {"place": name})
        assert step.p is not None
        assert step.p.types == ("founder of",)


@given(st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=30))
def test_any_name_in_backticks_survives(name: str) -> None:
    plain = name.strip("`\"'“”‘’")
    if not plain or plain != name or name.count("`") == 1:
        return
    step = first(f"Retrieval(s=s1:Company[`{name}`],p=p1:founder,o=o1)")
    assert step.s is not None
    if "]," not in name and "]，" not in name:
        assert step.s.mention == name


def test_conditions_with_other_signs_than_equality_keep_them() -> None:
    step = first("Retrieval(s=s1:A[x],p=p1:b,o=o1:C,o.age>=30,o.city!=`Rome`)")
    assert step.o is not None
    assert step.o.constraints == {"age": ">= 30", "city": "!= Rome"}


@pytest.mark.parametrize("kind", ["judgement", "entailment", "extract", "choice", "multiChoice", "multi_choice"])
def test_every_kind_of_deduction_is_known(kind: str) -> None:
    step = first(f"Deduce(op={kind}, content=[`o1 = 5, or so`, 'it is', two words], target=`which, target=x`)->d1")
    assert step.deduce_kind == ("multi_choice" if "ulti" in kind else kind)
    assert step.inputs == ("o1 = 5, or so", "it is", "two words")
    assert step.target == "which, target=x"


def test_maths_may_have_no_input_or_no_sign_before_its_list() -> None:
    assert first("Math(content=[], target=`30+6`)->math1").inputs == ()
    assert first("Math(content[`1`,`2`], target=`sum`)->math1").inputs == ("1", "2")
    assert first("Math(content=[`1`])->math1").target == "q"


def test_without_an_output_line_the_last_result_is_the_output() -> None:
    plan = parse("Step1: q\nAction1: Retrieval(s=s1:A[x],p=p1:b,o=o1:C)")
    assert (plan.steps[1].op, plan.steps[1].inputs) == ("output", ("o1",))
    assert plan.notes == ("no line outputs anything, so `o1`, the result of the last step, is the output",)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "\nStep1: q\nStep2: r\nAction2: Output(a)",
            "Line 2 of the logical form cannot be read: the step has no Action line.",
        ),
        ("Step1: q", "Line 1 of the logical form cannot be read: the last step has no Action line."),
        (
            "Action1: Output(a)",
            "Line 1 of the logical form cannot be read: an Action line stands without a Step line before it.",
        ),
        (
            "Step1: q\nAction1: Frobnicate(a)",
            "Line 2 of the logical form cannot be read: `Frobnicate` is none of Retrieval, Math, Deduce and Output.",
        ),
        (
            "Step1: q\nAction1: find it",
            "Line 2 of the logical form cannot be read: `find it` is no call such as Retrieval(...).",
        ),
        (
            "Step1: q\nAction1: Retrieval(s=1x:P,p=p1,o=o1)",
            "`s=1x:P,p=p1,o=o1` is none of s=alias:Type[`name`], p=alias:relation, o=alias:Type.",
        ),
        (
            "Step1: q\nAction1: Retrieval(s=s1,s=s2,o=o1)",
            "Line 2 of the logical form cannot be read: `s` is given twice.",
        ),
        (
            "Step1: q\nAction1: Retrieval(s=s1:A[x],o.age=3)",
            "Line 2 of the logical form cannot be read: `o` has a condition but is not given.",
        ),
        (
            "Step1: q\nAction1: Deduce(op=guess, content=[1], target=x)->d1",
            "`op=guess` is none of judgement, entailment, extract, choice and multiChoice.",
        ),
        (
            "Step1: q\nAction1: Math(1 + 1)->m1",
            "Line 2 of the logical form cannot be read: its arguments are not of the form content=[...], target=...",
        ),
        (
            "Step1: q\nAction1: Math(content=[1], target=x)->1m",
            "Line 2 of the logical form cannot be read: `1m` is no name of a variable.",
        ),
        ("", "The logical form cannot run. The plan has no step."),
        (
            "Step1: q\nAction1: Math(content=[o9], target=z)->m1",
            "The logical form cannot run. Step 1 uses `o9`, which no step introduces.",
        ),
    ],
)
def test_what_cannot_be_read_is_a_sentence_with_its_line(text: str, sentence: str) -> None:
    with pytest.raises(NodeInputError) as caught:
        parse(text)
    assert sentence in str(caught.value)


@given(st.text(max_size=80))
def test_any_text_gives_a_plan_or_a_sentence(text: str) -> None:
    said = ""
    try:
        said = parse(f"Step1: q\nAction1: Retrieval({text})").raw
    except NodeInputError as error:
        said = str(error)
    assert said.startswith(("Step1: q", "Line ", "The logical form cannot run."))
