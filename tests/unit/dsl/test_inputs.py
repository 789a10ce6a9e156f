from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import TypeAdapter, ValidationError

from ragbraid.dsl.plan import InputSpec, Plan
from ragbraid.registry.contracts import Query
from ragbraid.registry.node import REQUIRED

Compile = Callable[..., Plan]
Codes = Callable[..., list[str]]


def declared(compile_flow: Compile, declaration: str) -> InputSpec:
    inputs = f"question: str\nx: {declaration}"
    return compile_flow("rc: retrieve.dense", outputs="{rc: $rc, x: $x}", inputs=inputs).inputs[1]


@pytest.mark.parametrize(
    ("declaration", "default"),
    [
        ("int = 5", 5),
        ("float = 1", 1.0),
        ("bool = true", True),
        ("str = no", "no"),
        ("str = on", "on"),
        ("str = a = b", "a = b"),
        ("str = 'quoted'", "quoted"),
        ("list[str] = []", []),
        ("'list[str] = [a, b]'", ["a", "b"]),
        ("str | none = null", None),
        ("str | none = none", None),
        ("{type: Ranking | none, default: none}", None),
        ("{type: str | none, default: 'none'}", "none"),
        ("str = none", "none"),
        ('\'literal["none", "some"] | none = none\'', "none"),
        ("date = 2025-03-01", date(2025, 3, 1)),
        ('literal["a", "b"] = b', "b"),
        ("{type: int, default: 5, ge: 1}", 5),
        ("{type: Query, default: {text: hello}}", Query(text="hello")),
        ('{type: "dict[str, float]", default: {a: 1}}', {"a": 1.0}),
        ("{type: str, default: $$5}", "$5"),
    ],
)
def test_a_default_is_of_the_declared_type(compile_flow: Compile, declaration: str, default: Any) -> None:
    spec = declared(compile_flow, declaration)
    assert spec.default == default
    assert type(spec.default) is type(default)
    assert not spec.required


def test_an_input_without_a_default_is_required(compile_flow: Compile) -> None:
    spec = declared(compile_flow, "{type: int, about: how many}")
    assert spec.required
    assert spec.default is REQUIRED
    assert spec.about == "how many"


@pytest.mark.parametrize(
    ("declaration", "good", "bad"),
    [
        ("{type: int, ge: 1, le: 50}", 50, 51),
        ("{type: int, gt: 1, lt: 3}", 2, 3),
        ("{type: float, ge: 0}", 0.0, -0.1),
        ("{type: str, min_length: 2, max_length: 3}", "ab", "abcd"),
        ("{type: str, pattern: '^a+$'}", "aaa", "b"),
        ('{type: "list[int]", max_length: 1}', [1], [1, 2]),
        ("{type: int | none, ge: 1}", None, 0),
        ("{type: str, choices: [short, long]}", "long", "tall"),
        ("{type: int, choices: [1, 2]}", 2, 3),
    ],
)
def test_bounds_and_choices_are_part_of_the_type(compile_flow: Compile, declaration: str, good: Any, bad: Any) -> None:
    adapter = TypeAdapter(declared(compile_flow, declaration).type)
    assert adapter.validate_python(good) == good
    with pytest.raises(ValidationError):
        adapter.validate_python(bad)


def test_choices_become_a_literal_that_fits_a_port_with_the_same_choices(compile_flow: Compile) -> None:
    plan = compile_flow(
        "rc: retrieve.dense\nanswer: generate.answer",
        flow="rc -> answer",
        inputs="question: str\nlanguage: {type: str, choices: [en, zh], default: en}",
    )
    assert get_origin(plan.inputs[1].type) is Literal
    assert get_args(plan.inputs[1].type) == ("en", "zh")
    language = next(b for b in plan.body.steps[1].bindings if b.port == "language")  # type: ignore[union-attr]
    assert language.origin == "ambient"


def test_a_declaration_is_kept_for_forms(compile_flow: Compile) -> None:
    spec = declared(compile_flow, "{type: int, default: 5, ge: 1, le: 50}")
    assert dict(spec.declared) == {"type": "int", "ge": 1, "le": 50}


@pytest.mark.parametrize(
    "declaration",
    ["{type: int, ge: 1, le: 0}", "{type: int, gt: 1, lt: 1}", "{type: str, min_length: 3, max_length: 2}",
     "{type: str, min_length: -1}", "{type: str, pattern: '(?=a)'}", "{type: bool, ge: 1}"],
)  # fmt: skip
def test_bounds_that_make_no_sense_are_one_finding(codes_of: Codes, declaration: str) -> None:
    codes = codes_of("rc: retrieve.dense", outputs="{rc: $rc, x: $x}", inputs=f"question: str\nx: {declaration}")
    assert codes == ["RB201"]
