from __future__ import annotations

import pickle
import subprocess
import sys
from datetime import date
from typing import Any, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ragbraid.dsl.expressions import (
    EnvReference,
    Expression,
    ExpressionProblem,
    NameUse,
    PlainText,
    Reference,
    Template,
    compile_expression,
    infer,
    names,
    parse_value,
)
from ragbraid.dsl.types import describe, validate
from ragbraid.registry.contracts import Answer, Chunk, Hit, Query, Ranking
from ragbraid.registry.errors import RunError

SCOPE: dict[str, Any] = {
    "hits": Ranking,
    "n": int,
    "f": float,
    "name": str,
    "thoughts": list[str],
    "think": Answer,
    "chunks": list[Chunk],
    "maybe": Ranking | None,
    "opt": str | None,
    "kind": Literal["relation", "general"],
    "flag": bool,
    "day": date,
    "anything": Any,
    "weights": dict[str, float],
}
HITS = Ranking.from_hits(
    [Hit(id=str(i), text=f"t{i}", score=1 / (i + 1), rank=1, score_kind="bm25", source="s") for i in range(5)],
    route="rc",
    score_kind="bm25",
)


def compiled(text: str) -> Any:
    value = parse_value(text)
    assert isinstance(value, Expression | Template)
    return compile_expression(value)


def problems_of(text: str) -> tuple[ExpressionProblem, ...]:
    value = parse_value(text)
    return (value,) if isinstance(value, ExpressionProblem) else infer(value, SCOPE)[1]


# -- what a text is ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "plain"), [("plain", "plain"), ("", ""), ("$$5", "$5"), ("a $$ b $$$$", "a $ b $$"), ("{x}", "{x}")]
)
def test_plain_text_and_dollar_signs(text: str, plain: str) -> None:
    assert parse_value(text) == PlainText(plain)


def test_a_reference_knows_its_parts_and_their_places() -> None:
    text = " $plan.steps[0].text['a b'][-1] "
    value = parse_value(text)
    assert isinstance(value, Reference)
    assert (value.root, value.path) == ("plan", ("steps", 0, "text", "a b", -1))
    assert [text[start:end] for start, end in value.spans] == ["$plan", "steps", "0", "text", "a b", "-1"]
    assert text[value.start : value.end] == "$plan.steps[0].text['a b'][-1]"


def test_names_of_any_alphabet_are_references() -> None:
    value = parse_value("$图谱.标题")
    assert isinstance(value, Reference)
    assert (value.root, value.path) == ("图谱", ("标题",))


def test_environment_variables_and_secrets_are_recognised() -> None:
    assert parse_value("${env.KEY}") == EnvReference("env", "KEY", 0, 10)
    assert parse_value("${ secret.KEY }") == EnvReference("secret", "KEY", 0, 15)
    template = parse_value("https://${env.HOST}/x")
    assert isinstance(template, Template)
    assert template.parts == ("https://", EnvReference("env", "HOST", 8, 19), "/x")


def test_an_expression_with_white_space_around_it_is_the_whole_value() -> None:
    value = parse_value("  ${ n }\n")
    assert isinstance(value, Expression)
    assert value.source == " n "


def test_a_template_keeps_its_pieces() -> None:
    value = parse_value('a ${ n } b ${ "}" }$$')
    assert isinstance(value, Template)
    assert [part.source if isinstance(part, Expression) else part for part in value.parts] == [
        "a ",
        " n ",
        " b ",
        ' "}" ',
        "$",
    ]


def test_names_are_found_with_their_paths() -> None:
    text = "${ hits[0].text if flag else think['text'] ~ (thoughts | join(name)) }"
    value = parse_value(text)
    assert isinstance(value, Expression)
    found = names(value)
    assert [(use.root, use.path, text[use.start : use.end]) for use in found] == [
        ("hits", (0, "text"), "hits[0].text"),
        ("flag", (), "flag"),
        ("think", ("text",), "think['text']"),
        ("thoughts", (), "thoughts"),
        ("name", (), "name"),
    ]
    assert names(parse_value("$a.b")) == (NameUse("a", ("b",), 0, 4),)  # type: ignore[arg-type]
    assert names(PlainText("x")) == ()


# -- problems ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code", "message", "place", "hint"),
    [
        ("cost $5", "RB401", "a single `$` means nothing here", "$", "write `$$`"),
        ("^\\d+$", "RB401", "a single `$` means nothing here", "$", "write `$$`"),
        ("$a.b + 1", "RB401", "the reference `$a.b` does not stand alone", "$a.b", "write `${a.b}`"),
        ("hello $name", "RB401", "the reference `$name` does not stand alone", "$name", "write `${name}`"),
        ("x ${ n", "RB401", "the brace of this `${` is not closed", "${", "add `}`"),
        ("${ 'x }", "RB401", "the brace of this `${` is not closed", "${", "add `}`"),
        ("${ }", "RB401", "the expression is empty", " ", "between the braces"),
        ("${ n + }", "RB401", "the expression breaks off here", "+", None),
        ("${ (n }", "RB401", "the expression breaks off here", "n", None),
        ("${ n n }", "RB401", "`n` does not belong here", "n", None),
        ("${ n && flag }", "RB401", "`&&` does not belong here", "&&", "write `and`"),
        ("${ flag ? 1 : 2 }", "RB401", "`?` does not belong here", "?", "write `A if CONDITION else B`"),
        ("${ n = 3 }", "RB401", "`=` does not belong here", "=", "write `==`"),
        ("${ $name }", "RB401", "`$` does not belong here", "$", "without `$`"),
        ("${ [x for x in thoughts] }", "RB401", "`for` does not belong here", "for", "`map`"),
        ("${ n if flag }", "RB401", "this `if` has no `else`", "n if flag", "`else B`".replace("`else B`", "else B")),
        ("${ " + "(" * 300 + "n" + ")" * 300 + " }", "RB401", "nested too deeply", None, "compute this in a node"),
        ("${ n" + " + n" * 600 + " }", "RB401", "longer than 2000 characters", None, "compute this in a node"),
        ("${ foo }", "RB402", "nothing here is called `foo`", "foo", "in scope are `hits`"),
        ("a ${ nam } b", "RB402", "nothing here is called `nam`", "nam", "did you mean `name`?"),
        ("${ name.upper() }", "RB403", "`name.upper(...)` is a call", "name.upper", "`... | upper`"),
        ("${ len(name) }", "RB403", "`len(...)` is a call", "len", "write `... | length`"),
        ("${ range(9) }", "RB403", "`range(...)` is a call", "range", "compute this in a node"),
        ("${ hits.__class__ }", "RB403", "`__class__` cannot be read", "__class__", None),
        ("${ hits['__class__'] }", "RB403", "`__class__` cannot be read", "'__class__'", None),
        ("${ hits | lenght }", "RB403", "there is no filter `lenght`", "lenght", "did you mean `length`?"),
        ("${ n is evn }", "RB403", "there is no test `evn`", "evn", "did you mean `even`?"),
        ("${ n | round(1, 2, 3) }", "RB403", "the filter `round` does not take these", "round(1, 2, 3)", None),
        ("${ thoughts | map('uper') }", "RB403", "`map` needs the name of a filter", "'uper'", "`upper`"),
        ("${ n ** 100000 }", "RB403", "an exponent above 1000", "100000", None),
        ("${ hits[0].txt }", "RB104", "Hit has no field `txt`", "txt", "did you mean `text`?"),
        ("${ hits['rout'] }", "RB104", "Ranking has no field `rout`", "'rout'", "did you mean `route`?"),
        ("${ hits | map(attribute='txt') }", "RB104", "Hit has no field `txt`", "txt", "did you mean `text`?"),
        ("${ n + name }", "RB205", "`+` does not go together with int and str", "n + name", "join texts with `~`"),
        ("${ thoughts + name }", "RB205", "with list[str] and str", "thoughts + name", "`[item]`"),
        ("${ hits + hits }", "RB205", "with Ranking and Ranking", "hits + hits", None),
        ("${ name * 3 }", "RB205", "`*` does not go together with str and int", "name * 3", None),
        ("${ flag + 1 }", "RB205", "with bool and int", "flag + 1", None),
        ("${ -name }", "RB205", "`-` needs a number, not str", "name", None),
        ("${ name < n }", "RB205", "str cannot be compared with int", "name < n", None),
        ("${ day < name }", "RB205", "date cannot be compared with str", "day < name", None),
        ("${ n in thoughts }", "RB205", "int cannot be in list[str]", "n in thoughts", None),
        ("${ kind == 'relatoin' }", "RB205", 'never equals "relatoin"', "kind == 'relatoin'", 'mean "relation"?'),
        ("${ n != 'a' }", "RB205", 'int always differs from "a"', "n != 'a'", None),
        ("${ maybe | length }", "RB205", "this may be none: its type is Ranking | none", "maybe", "default"),
        ("${ opt + 'x' }", "RB205", "this may be none", "opt", "default"),
        ("${ n | upper }", "RB205", "`upper` needs a text, not int", "n", None),
        ("${ n | first }", "RB205", "`first` needs a list, not int", "n", None),
        ("${ hits | join }", "RB205", "`join` cannot put Hit into a text", "join", 'map(attribute="text")'),
        ("${ n[0] }", "RB205", "int has no items", "n", None),
        ("${ thoughts[name] }", "RB205", "a position is a whole number, not str", "name", None),
        ("found ${ hits }", "RB205", "Ranking cannot be put into a text", "hits", "join"),
        ("found ${ opt }", "RB205", "this may be none", "opt", "default"),
        ("${ name ~ hits }", "RB205", "Ranking cannot be put into a text", "hits", "join"),
        ("k: ${env.KEY}", "RB404", "`${env.KEY}` may only stand under `resources`", "${env.KEY}", "bind it"),
    ],
)
def test_one_mistake_is_one_problem_in_its_place(
    text: str, code: str, message: str, place: str | None, hint: str | None
) -> None:
    problems = problems_of(text)
    assert [problem.code for problem in problems] == [code], problems
    assert message in problems[0].message
    if place is not None:
        assert text[problems[0].start : problems[0].end] == place
    if hint is not None:
        assert hint in (problems[0].hint or "")


def test_two_mistakes_are_two_problems_in_the_order_of_the_text() -> None:
    assert [problem.code for problem in problems_of("${ foo + 1 } ${ hits.txt }")] == ["RB402", "RB104"]


# -- types -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "tp"),
    [
        ("$hits[0].text", "str"),
        ("${ hits | length == 0 }", "bool"),
        ("${ thoughts + [think.text] }", "list[str]"),
        ("${ thoughts + [] }", "list[str]"),
        ("${ [] }", "list[any]"),
        ("${ [1, 2.5] }", "list[float]"),
        ("${ 'a' if flag else 'b' }", 'literal["a", "b"]'),
        ("${ hits if flag else none }", "Ranking | none"),
        ("${ n + 1 }", "int"),
        ("${ n + 1.5 }", "float"),
        ("${ n / 2 }", "float"),
        ("${ n // 2 }", "int"),
        ("${ n ** 2 }", "int"),
        ("${ n ** n }", "float"),
        ("${ -3 }", "literal[-3]"),
        ("${ name ~ n }", "str"),
        ("${ name + 'x' }", "str"),
        ("${ anything.x[0] + 1 }", "any"),
        ("${ not hits }", "bool"),
        ("${ flag and n > 3 }", "bool"),
        ("${ opt or 'x' }", "str"),
        ("${ opt | default('x') }", "str"),
        ("${ hits | first }", "Hit"),
        ("${ hits | first | default(none) }", "Hit | none"),
        ("${ hits[:3] }", "list[Hit]"),
        ("${ name[0] }", "str"),
        ("${ weights['x'] }", "float"),
        ("${ {'a': n, 'b': 2} }", "dict[str, int]"),
        ("${ hits | map(attribute='text') }", "list[str]"),
        ("${ hits | map(attribute='title') }", "list[str | none]"),
        ("${ hits | map(attribute='title', default='') }", "list[str]"),
        ("${ hits | map(attribute='text') | join(', ') }", "str"),
        ("${ thoughts | map('length') }", "list[int]"),
        ("${ hits | selectattr('score', 'gt', 0.5) | list }", "list[Hit]"),
        ("${ chunks | sum(attribute='index') }", "int"),
        ("${ hits | max(attribute='score') }", "Hit"),
        ("${ thoughts | sort | unique | reverse }", "list[str]"),
        ("${ name | reverse }", "str"),
        ("${ name | int }", "int"),
        ("${ f | abs }", "float"),
        ("${ f | round | int }", "int"),
        ("${ hits | tojson }", "str"),
        ("${ n is divisibleby 3 }", "bool"),
        ("${ 'a' in thoughts and 'x' in name and 'k' in weights }", "bool"),
        ("${ (maybe | length) if maybe else 0 }", "int"),
        ("${ (maybe | length) if maybe is not none else 0 }", "int"),
        ("${ 0 if maybe is none else maybe | length }", "int"),
        ("${ maybe is not none and maybe | length > 3 }", "bool"),
        ("${ maybe is none or maybe | length > 3 }", "bool"),
        ("${ maybe != none and maybe.hits[0].title is none }", "bool"),
        ("${ 1 < n <= 3 }", "bool"),
        ("text ${ n } ${ day } ${ kind }", "str"),
        ("plain", "str"),
    ],
)
def test_expressions_have_types(text: str, tp: str) -> None:
    value = parse_value(text)
    assert not isinstance(value, ExpressionProblem)
    found, problems = infer(value, SCOPE)
    assert problems == ()
    assert describe(found) == tp


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values", "result"),
    [
        ("${ hits | length == 0 }", {"hits": HITS}, False),
        ("${ thoughts + [a.text] }", {"thoughts": ("x",), "a": Query(text="q")}, ["x", "q"]),
        ("a ${ n } b ${ name | upper }", {"n": 1, "name": "é"}, "a 1 b É"),
        ("${ x } ${ y } ${ z }", {"x": True, "y": 1.5, "z": date(2024, 5, 1)}, "true 1.5 2024-05-01"),
        ("${ hits | map(attribute='text') | join(', ') }", {"hits": HITS}, "t0, t1, t2, t3, t4"),
        ("${ hits | selectattr('score', 'gt', 0.3) | map(attribute='id') }", {"hits": HITS}, ["0", "1", "2"]),
        ("${ hits | rejectattr('source') | list }", {"hits": HITS}, []),
        ("${ hits[1].scores.rc.rank }", {"hits": HITS}, 2),
        ("${ hits[-1].id ~ '/' ~ (hits | last).id }", {"hits": HITS}, "4/4"),
        ("${ hits[:2] | map(attribute='id') == ['0', '1'] }", {"hits": HITS}, True),
        ("${ hits | first | default(none) }", {"hits": Ranking()}, None),
        ("${ m.x | default(3) + 1 }", {"m": {}}, 4),
        ("${ m.items }", {"m": {"items": 7}}, 7),
        ("${ m.x is defined or m.y is undefined }", {"m": {"x": 1}}, True),
        ("${ (1, 2) == [1, 2] }", {}, True),
        ("${ 7 // 2 ~ '.' ~ 7 % 2 ~ '.' ~ 2 ** 3 ~ '.' ~ -1 }", {}, "3.1.8.-1"),
        ("${ 1 < n <= 3 and n in [2, 3] and 'x' not in 'abc' }", {"n": 3}, True),
        ("${ n | round(2) }", {"n": 2.346}, 2.35),
        ("${ n | round(0, 'floor') | int }", {"n": 2.9}, 2),
        ("${ ' Ab ' | trim | lower | replace('a', 'xy') | capitalize }", {}, "Xyb"),
        ("${ ['b', 'A', 'a'] | unique | sort(reverse=true) }", {}, ["b", "A"]),
        ("${ [3, 1, 2] | sum + ([3, 1] | min) * ([3, 1] | max) }", {}, 9),
        ("${ [1, 2, 3, 4] | select('odd') | list + ([1, 2] | reject('odd')) }", {}, [1, 3, 2]),
        ("${ 'abc'[1:] ~ ('abc' | reverse) ~ ('abc' | first) }", {}, "bccbaa"),
        ("${ '12' | int + ('x' | int(5)) }", {}, 17),
        ("${ {'k': q} | tojson }", {"q": Query(text="é")}, '{"k": {"text": "é", "role": "original", "weight": 1.0}}'),
        ("${ none or 0 or 'last' }", {}, "last"),
        ("${ hits.route is string and hits.hits is sequence and 1 is number and true is true }", {"hits": HITS}, True),
    ],
)
def test_expressions_have_values(text: str, values: dict[str, Any], result: Any) -> None:
    assert compiled(text)(**values) == result


@pytest.mark.parametrize(
    ("text", "values", "reason"),
    [
        ("${ hits | first }", {"hits": Ranking()}, "the list is empty"),
        ("${ hits[7].text }", {"hits": HITS}, "there is no item 7, the list is too short"),
        ("${ 1 / n }", {"n": 0}, "nothing can be divided by 0"),
        ("x ${ n }", {"n": None}, "none cannot be put into a text"),
        ("x ${ n }", {"n": HITS}, "a value of type Ranking cannot be put into a text"),
        ("${ n.foo }", {"n": None}, "it is none, so it has no `foo`"),
        ("${ n.foo }", {"n": 3}, "a number has no field `foo`"),
        ("${ n.upper }", {"n": "x"}, "a text has no field `upper`"),
        ("${ n.copy }", {"n": {"a": 1}}, "there is no entry `copy`"),
        ("${ q.model_dump }", {"q": Query(text="x")}, "has no field `model_dump`"),
        ("${ q[k] }", {"q": Query(text="x"), "k": "__class__"}, "has no field `__class__`"),
        ("${ n }", {}, "`n` has no value"),
        ("${ n + 'x' }", {"n": 1}, "`+` cannot join a number and a text"),
        ("${ n * 3 }", {"n": "x"}, "`*` needs numbers, and this is a text"),
        ("${ n % n }", {"n": "%s"}, "`%` needs numbers"),
        ("${ n < 'x' }", {"n": 1}, "a number and a text have no order"),
        ("${ [1, 'a'] | sort }", {}, "of different kinds"),
        ("${ 'x' | int }", {}, "a text is no number"),
        ("${ q | list }", {"q": Query(text="x")}, "a value of type Query is no list"),
        ("${ n ** 900 }", {"n": 10**20}, "the power is too large"),
        ("${ (0 - 8) ** 0.5 }", {}, "the root of a negative number is no number"),
        ("${ s | replace('a', s) }", {"s": "a" * 2000}, "the text grows longer than 1,000,000 characters"),
        ("${ s ~ s }", {"s": "a" * 600_000}, "the text grows longer than 1,000,000 characters"),
        ("${ xs + xs }", {"xs": [0] * 60_000}, "the list grows longer than 100,000 items"),
    ],
)
def test_an_expression_without_a_value_says_why(text: str, values: dict[str, Any], reason: str) -> None:
    with pytest.raises(RunError) as caught:
        compiled(text)(**values)
    message = str(caught.value)
    assert reason in message
    assert text[text.index("${") :] in message


def test_a_compiled_expression_survives_pickling() -> None:
    copy = pickle.loads(pickle.dumps(compiled("found ${ hits | length }")))
    assert copy(hits=HITS) == "found 5"


def test_jinja_is_not_loaded_until_an_expression_is_read() -> None:
    code = "import sys, ragbraid.dsl.expressions as e; e.parse_value('$a.b'); sys.exit('jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- properties --------------------------------------------------------------------------------------------------------


@given(st.text(max_size=60) | st.text(alphabet="${}n.[]|()'\" +-*/~=<>!,:0aif", max_size=60))
def test_no_text_makes_the_reader_crash(text: str) -> None:
    for source in (text, "${" + text + "}", "${ n " + text + " }"):
        value = parse_value(source)
        if isinstance(value, ExpressionProblem):
            assert 0 <= value.start <= value.end <= len(source)
            continue
        _, problems = infer(value, SCOPE)
        assert all(0 <= problem.start <= problem.end <= len(source) for problem in problems)
        assert all(0 <= use.start < use.end <= len(source) for use in names(value))


@given(st.text(max_size=40))
def test_a_text_with_doubled_dollars_is_itself(text: str) -> None:
    assert parse_value(text.replace("$", "$$")) == PlainText(text)


VALUES = {"n": 3, "f": 0.5, "name": "ab", "flag": True, "thoughts": ["x", "yz"], "opt": None, "hits": HITS}
ATOMS = st.sampled_from([*VALUES, "1", "0", "2.5", "'q'", "true", "none", "[1]", "[]", "['a', name]", "hits[0].text"])
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "~", "and", "or", "==", "!=", "<", ">=", "in"]
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(OPERATORS), inner).map(
            lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
        ),
        st.tuples(inner, inner, inner).map(lambda parts: f"({parts[0]} if {parts[1]} else {parts[2]})"),
        inner.map(lambda part: f"(not {part})"),
        inner.map(lambda part: f"(-{part})"),
        inner.map(lambda part: f"{part}[:2]"),
        st.tuples(inner, st.sampled_from(["length", "first", "list", "sort", "default(1)", "join", "max", "sum",
                                          "upper", "reverse", "string", "abs", "round", "tojson", "unique"])).map(
            lambda parts: f"({parts[0]} | {parts[1]})"
        ),
    ),
    max_leaves=6,
)  # fmt: skip


@given(EXPRESSIONS)
@example("(-(name if n else (name | sum)))")
@example("((name or []) | reverse)")
@example("(([] if none else name) | first)[:2]")  # of what may be anything, a part may be a text
def test_a_value_is_of_the_type_that_was_inferred(source: str) -> None:
    value = parse_value("${ " + source + " }")
    if isinstance(value, ExpressionProblem):
        assert value.code == "RB403"
        return
    found, problems = infer(value, {name: SCOPE[name] for name in VALUES})
    if problems:
        return
    result, failure = None, None
    try:
        result = compile_expression(value)(**VALUES)  # type: ignore[arg-type]
    except RunError as error:
        failure = str(error)
    if failure is not None:
        allowed = ("divided by 0", "is empty", "too large", "different kinds", "no number", "no order", "Overflow")
        # What `sum` gives of other things than numbers, and what stands in an empty list, is `any` to the checker.
        may_be_anything = "sum" in source or "[]" in source
        assert may_be_anything or any(reason in failure for reason in allowed), failure
    elif not isinstance(result, Ranking | Hit):
        _, message = validate(result, found)
        assert message is None, (source, describe(found), result)
