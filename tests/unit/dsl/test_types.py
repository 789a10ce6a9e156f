from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date, datetime
from enum import Enum
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple, NewType, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, JsonValue

from ragbraid.dsl.types import (
    TypeProblem,
    assignable,
    choices,
    common_type,
    describe,
    field_names,
    field_type,
    find_conversion,
    is_optional,
    item_type,
    optional,
    parse_type,
    split_declaration,
    strip,
    validate,
    without_none,
)
from ragbraid.registry.contracts import (
    CONTRACTS,
    Answer,
    Chunk,
    ChunkSet,
    FanIn,
    Hit,
    Metadata,
    Query,
    Ranking,
    Span,
)
from ragbraid.registry.conversions import CONVERSIONS


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Record(TypedDict):
    hits: Ranking
    steps: int


class Pair(NamedTuple):
    left: str
    right: int


@dataclasses.dataclass
class Plan:
    steps: list[str]
    _hidden: int = 0

    @cached_property
    def count(self) -> int:
        return len(self.steps)


UserId = NewType("UserId", str)


def parse(text: str) -> Any:
    return parse_type(text, CONTRACTS.get, lambda: CONTRACTS)


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "tp"),
    [
        ("str", str),
        ("int", int),
        ("float", float),
        ("bool", bool),
        ("date", date),
        ("datetime", datetime),
        ("any", Any),
        ("Ranking", Ranking),
        ("list[Query]", list[Query]),
        (" list [ Query ] ", list[Query]),
        ("dict[str, list[int]]", dict[str, list[int]]),
        ("Ranking | none", Ranking | None),
        ("str | int | none", str | int | None),
        ('literal["a", "b", 1, true]', Literal["a", "b", 1, True]),
        ("literal['it\\'s', -3]", Literal["it's", -3]),
        ("list", list[Any]),
        ("dict", dict[str, Any]),
    ],
)
def test_a_type_is_read_as_it_is_written(text: str, tp: Any) -> None:
    assert parse(text) == tp


@pytest.mark.parametrize(
    ("text", "message", "place", "hint"),
    [
        ("Rankng", "there is no type `Rankng`", "Rankng", "did you mean `Ranking`?"),
        ("list[Rankng]", "there is no type `Rankng`", "Rankng", "did you mean `Ranking`?"),
        ("string", "there is no type `string`", "string", "write `str`"),
        ("List[str]", "there is no type `List`", "List", "write `list`"),
        ("str?", "`?` is not part of a type", "?", "a value that may be missing is `T | none`"),
        ("list[str", "the bracket of `list[` is not closed", "list[", "add `]`"),
        ("str]", "this bracket closes nothing", "]", "delete it"),
        ("dict[str]", "`dict` is written `dict[K, V]`", "str", None),
        ("list[str, int]", "`list` is written `list[T]`", "str, int", None),
        ("dict[list[int], str]", "list[int] cannot be the key of a dict", "l", "keys are str or int"),
        ("Ranking[str]", "`Ranking` takes nothing in brackets", "[", None),
        ("literal[a]", "a text in `literal` needs quotes", "a", 'write "a"'),
        ("literal", "`literal` names its values in brackets", "literal", 'write literal["a", "b"]'),
        ('"a"', '`"a"` is no type', '"a"', 'fixed values are written literal["a"]'),
        ("str | ", "a type is missing here", "", "such as `str` or `list[Chunk]`"),
        ("", "a type is missing here", "", "such as `str` or `list[Chunk]`"),
        ("str x", "`x` does not belong behind a type", "x", None),
    ],
)
def test_what_is_wrong_with_a_type_is_said_in_place(text: str, message: str, place: str, hint: str | None) -> None:
    problem = parse(text)
    assert isinstance(problem, TypeProblem)
    assert problem.message == message
    assert text[problem.start : problem.end] == place
    assert problem.hint == hint


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("str", ("str", None)),
        ("str = auto", ("str", "auto")),
        ("list[str] =  [a, b]", ("list[str]", "[a, b]")),
        ('literal["a=b", "c"] = a', ('literal["a=b", "c"]', "a")),
        ("Ranking = $first", ("Ranking", "$first")),
        ("bool=${ a == b }", ("bool", "${ a == b }")),
        ("str =", ("str", "")),
    ],
)
def test_a_declaration_is_split_at_its_equals_sign(text: str, parts: tuple[str, str | None]) -> None:
    assert split_declaration(text) == parts
    if parts[1] is not None:
        assert text.endswith(parts[1])


@pytest.mark.parametrize(
    ("tp", "text"),
    [
        (Annotated[int, Field(ge=1)], "int"),
        (tuple[Hit, ...], "list[Hit]"),
        (tuple[int, str], "list[int | str]"),
        (Sequence[str], "list[str]"),
        (Mapping[str, int], "dict[str, int]"),
        (FanIn[Ranking], "dict[str, Ranking]"),
        (Metadata, "dict[str, any]"),
        (Literal["a"] | None, 'literal["a"] | none'),
        (type(None), "none"),
        (dict, "dict[str, any]"),
        (list, "list[any]"),
        (Colour, "Colour"),
    ],
)
def test_a_hint_is_described_as_a_flow_file_writes_it(tp: Any, text: str) -> None:
    assert describe(tp) == text


# -- assignability -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (int, float),
        (Literal["a"], str),
        (Literal["a"], Literal["a", "b"]),
        (Literal[1], float),
        (bool, Literal[True, False]),
        (str, str | None),
        (Literal["a"] | None, Literal["a", "b"] | None),
        (str | None, None | int | str),
        (tuple[Hit, ...], list[Hit]),
        (list[Hit], tuple[Hit, ...]),
        (list[Hit], Sequence[Hit]),
        (list[int], list[float]),
        (tuple[int, str], list[int | str]),
        (tuple[int, int], tuple[float, float]),
        (set[int], Iterable[float]),
        (list[int], Collection[int]),
        (dict[str, int], Mapping[str, float]),
        (dict[str, int], FanIn[int]),
        (Record, dict[str, Ranking | int]),
        (Annotated[int, Field(ge=1)], int),
        (int, Annotated[int, Field(ge=1)]),
        (UserId, str),
        (Any, Ranking),
        (Ranking, Any),
        (list[Any], list[Hit]),
        (JsonValue, str),
        (Ranking, object),
        (Ranking, BaseModel),
    ],
)
def test_what_may_stand_where(source: Any, target: Any) -> None:
    assert assignable(source, target)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (bool, int),
        (bool, float),
        (Literal[True], int),
        (float, int),
        (datetime, date),
        (date, datetime),
        (str, list[str]),
        (str, Sequence[str]),
        (str, Literal["a"]),
        (Literal["a", "c"], Literal["a", "b"]),
        (Literal[1], Literal[True]),
        (str | None, str),
        (type(None), str),
        (Ranking, list[Hit]),
        (list[str], list[int]),
        (tuple[int, ...], tuple[int, int]),
        (Iterable[int], list[int]),
        (list[int], set[int]),
        (dict[str, str], dict[str, int]),
        (dict[str, int], list[int]),
        (dict[str, Any], Record),
        (Chunk, Hit),
        (Colour, Literal["red"]),
    ],
)
def test_what_may_not_stand_where(source: Any, target: Any) -> None:
    assert not assignable(source, target)


def test_a_conversion_is_one_hop_and_the_nearest_one_wins() -> None:
    found = [
        find_conversion(source, target, CONVERSIONS)
        for source, target in (
            (str, Query),
            (Literal["x"], Query),
            (Ranking, list[Chunk]),
            (Ranking, list[Hit]),
            (ChunkSet, Sequence[Chunk]),
            (Answer, str | None),
        )
    ]
    assert [conversion.name if conversion else None for conversion in found] == [
        "text_to_query",
        "text_to_query",
        "ranking_to_chunks",
        "ranking_to_hits",
        "set_to_chunks",
        "answer_to_text",
    ]
    assert find_conversion(str | None, Query, CONVERSIONS) is None
    assert find_conversion(Answer, Query, CONVERSIONS) is None


# -- none, unions, common types ----------------------------------------------------------------------------------------


def test_none_is_added_and_taken_away() -> None:
    bounded = Annotated[int, Field(ge=1)]
    assert is_optional(str | None)
    assert is_optional(Annotated[str | None, Field(max_length=3)])
    assert not is_optional(Any)
    assert optional(str) == str | None
    assert optional(str | None) == str | None
    assert optional(Any) is Any
    assert without_none(bounded | None) == bounded
    assert without_none(str) is str
    assert strip(bounded) is int


@pytest.mark.parametrize(
    ("options", "common"),
    [
        ([int, float], float),
        ([Literal["a"], Literal["b"]], Literal["a", "b"]),
        ([Literal["a"], str], str),
        ([Literal["a"], Literal["a"], int], None),
        ([Ranking, None], Ranking | None),
        ([Ranking | None, Ranking], Ranking | None),
        ([list[int], list[float]], list[float]),
        ([Chunk, Hit], None),
        ([Chunk, Any], Any),
        ([None, None], type(None)),
        ([], None),
    ],
)
def test_the_common_type_takes_all(options: list[Any], common: Any) -> None:
    assert common_type(options) == common


# -- what is inside ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tp", "name", "field"),
    [
        (Hit, "text", str),
        (Hit, "document_id", str | None),
        (Hit, "text_to_rank", str),
        (Annotated[Hit, "x"], "score", float),
        (Plan, "steps", list[str]),
        (Plan, "count", int),
        (Pair, "right", int),
        (Record, "hits", Ranking),
        (dict[str, Hit], "anything", Hit),
        (Any, "x", Any),
        (Hit | Chunk, "text", str),
        (Hit, "nothing", None),
        (Hit, "model_config", None),
        (Hit, "model_copy", None),
        (Hit, "model_fields_set", None),
        (Plan, "_hidden", None),
        (Hit | None, "text", None),
        (Hit | Chunk, "score", None),
        (Record, "x", None),
        (dict[int, Hit], "x", None),
        (str, "upper", None),
        (list[Hit], "text", None),
    ],
)
def test_fields_have_types(tp: Any, name: str, field: Any) -> None:
    assert field_type(tp, name) == field


def test_field_names_are_those_that_can_be_read() -> None:
    assert field_names(Span) == ["start", "end"]
    assert field_names(Plan) == ["steps", "count"]
    assert field_names(Record) == ["hits", "steps"]
    assert "text_to_rank" in field_names(Hit)
    assert field_names(dict[str, int]) == field_names(Any) == field_names(str) == []


@pytest.mark.parametrize(
    ("tp", "item"),
    [
        (list[Hit], Hit),
        (tuple[Hit, ...], Hit),
        (tuple[int, float], float),
        (set[str], str),
        (Sequence[int], int),
        (dict[str, Hit], Hit),
        (str, str),
        (Ranking, Hit),
        (Any, Any),
        (list, Any),
        (list[int] | tuple[float, ...], float),
        (int, None),
        (Query, None),
        (ChunkSet, None),
        (list[int] | None, None),
    ],
)
def test_items_have_types(tp: Any, item: Any) -> None:
    assert item_type(tp) == item


@pytest.mark.parametrize(
    ("tp", "values"),
    [
        (Literal["a", 1], ("a", 1)),
        (Literal["a"] | None, ("a", None)),
        (bool, (True, False)),
        (Colour, ("red", "blue")),
        (str, None),
        (Literal["a"] | str, None),
        (type(None), None),
    ],
)
def test_closed_types_list_their_values(tp: Any, values: tuple[Any, ...] | None) -> None:
    assert choices(tp) == values


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "tp", "converted"),
    [
        (5, float, 5.0),
        ([1, 2], tuple[int, ...], (1, 2)),
        ({"text": "x"}, Query, Query(text="x")),
        ([{"start": 1, "end": 2}], list[Span], [Span(start=1, end=2)]),
        ("2024-05-01", date, date(2024, 5, 1)),
        ("red", Colour, Colour.RED),
        (None, int | None, None),
        ({"a": 1}, FanIn[int], {"a": 1}),
        (Query(text="x"), Query, Query(text="x")),
        ({"a": [1, None]}, Any, {"a": [1, None]}),
        ("x", Annotated[str, Field(min_length=1)], "x"),
    ],
)
def test_values_become_what_the_type_asks_for(value: Any, tp: Any, converted: Any) -> None:
    found, message = validate(value, tp)
    assert message is None
    assert found == converted
    assert type(found) is type(converted)


@pytest.mark.parametrize(
    ("value", "tp", "message"),
    [
        (99, Annotated[int, Field(ge=1, le=50)], "must be at most 50, not 99"),
        (0, Annotated[int, Field(ge=1)], "must be at least 1, not 0"),
        (0.0, Annotated[float, Field(gt=0)], "must be greater than 0, not 0.0"),
        ("5", int, 'must be a whole number, not "5"'),
        (5.0, int, "must be a whole number, not 5.0"),
        (True, int, "must be a whole number, not true"),
        (1, bool, "must be true or false, not 1"),
        ("x" * 60, float, 'must be a number, not "' + "x" * 37 + '..."'),
        (5, str, "must be text, not 5"),
        (None, str, "must be text, not none"),
        ("x", list[str], 'must be a list, not "x"'),
        ([1], dict[str, int], "must be a mapping, not a list"),
        ([1, "x"], list[int], 'must be a whole number, not "x" (in `[1]`)'),
        ({"a": {"b": "x"}}, dict[str, dict[str, int]], 'must be a whole number, not "x" (in `a.b`)'),
        ("c", Literal["a", "b"], 'must be "a" or "b", not "c"'),
        (3, str | list[str], "must be str | list[str], not 3"),
        ("x", date, 'must be a date such as 2025-03-01, not "x"'),
        ([], Annotated[list[int], Field(min_length=1)], "must have at least 1 item, not 0"),
        ("abc", Annotated[str, Field(max_length=2)], "must have at most 2 characters, not 3"),
        ("ab", Annotated[str, Field(pattern="^a$")], 'must be text of the form ^a$, not "ab"'),
        ({"txt": "x"}, Query, "has no field `txt`, did you mean `text`?"),
        ({}, Query, "lacks `text`"),
        ([{"text": 1}], list[Query], "must be text, not 1 (in `[0].text`)"),
        ({"start": 3, "end": 1}, Span, "is refused: a span ends before it starts: 3..1"),
    ],
)
def test_values_that_do_not_fit_are_told_in_one_plain_sentence(value: Any, tp: Any, message: str) -> None:
    assert validate(value, tp) == (None, message)


# -- properties --------------------------------------------------------------------------------------------------------

SINGLE = st.sampled_from([str, int, float, bool, date, datetime, type(None), Hit, Ranking, Query, Chunk])
LITERAL = st.lists(
    st.sampled_from(["a", 'b"c', "d\\e", "é", "x y"]) | st.integers(-3, 3) | st.booleans(), min_size=1, max_size=3
).map(lambda values: Literal[tuple(values)])
TYPES = st.recursive(
    SINGLE | LITERAL,
    lambda inner: st.one_of(
        inner.map(lambda tp: list[tp]),
        inner.map(lambda tp: dict[str, tp]),
        st.lists(inner, min_size=2, max_size=3).map(lambda tps: optional(tps[0]) if len(tps) == 2 else tps[0] | tps[1]),
    ),
    max_leaves=5,
)
RICHER = st.recursive(
    SINGLE | LITERAL,
    lambda inner: st.one_of(
        inner.map(lambda tp: list[tp]),
        inner.map(lambda tp: tuple[tp, ...]),
        st.tuples(inner, inner).map(lambda tps: tuple[tps[0], tps[1]]),
        inner.map(lambda tp: Sequence[tp]),
        inner.map(lambda tp: Iterable[tp]),
        inner.map(lambda tp: frozenset[tp]),
        inner.map(lambda tp: dict[str, tp]),
        inner.map(lambda tp: Mapping[str, tp]),
        st.tuples(inner, inner).map(lambda tps: tps[0] | tps[1]),
    ),
    max_leaves=4,
)


@given(TYPES)
def test_what_is_described_can_be_read_back(tp: Any) -> None:
    assert parse(describe(tp)) == tp


@given(RICHER)
def test_every_type_takes_itself_and_goes_into_its_optional(tp: Any) -> None:
    assert assignable(tp, tp)
    assert assignable(tp, optional(tp))
    assert assignable(without_none(tp), tp)


@given(RICHER, RICHER, RICHER)
def test_assignability_is_transitive(a: Any, b: Any, c: Any) -> None:
    if assignable(a, b) and assignable(b, c):
        assert assignable(a, c)


@given(RICHER, RICHER)
def test_the_common_type_takes_both(a: Any, b: Any) -> None:
    found = common_type([a, b])
    if found is not None:
        assert assignable(a, found)
        assert assignable(b, found)


@given(st.text(max_size=40) | st.text(alphabet="listrdcn[],| \"'literal=12?", max_size=40))
def test_any_text_is_a_type_or_a_problem_in_it(text: str) -> None:
    found = parse(text)
    if isinstance(found, TypeProblem):
        assert 0 <= found.start <= found.end <= len(text)
    else:
        assert describe(found)
    assert split_declaration(text)[0] in text


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(VALUES, TYPES)
def test_every_value_fits_or_is_told_why_not(value: Any, tp: Any) -> None:
    _, message = validate(value, tp)
    assert message is None or (message and "pydantic" not in message and "Input" not in message)
