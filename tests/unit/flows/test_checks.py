"""The language knows lists alone: what a node's signature calls a tuple takes a list, and the other way round."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from pydantic import Field

from ragbraid.flows.checks import value_check
from ragbraid.registry.errors import NodeOutputError

Texts = tuple[str, ...]


@pytest.mark.parametrize(
    ("annotation", "given", "taken"),
    [
        (Texts, ["a", "b"], ("a", "b")),
        (Texts, [], ()),
        (list[str], ("a",), ["a"]),
        (list[Texts], (["a"], ("b",)), [("a",), ("b",)]),
        (dict[str, Texts], {"x": ["a"]}, {"x": ("a",)}),
        (Texts | None, ["a"], ("a",)),
        (Texts | None, None, None),
        (Annotated[Texts, Field(max_length=2)], ["a"], ("a",)),
    ],
)
def test_a_list_and_a_tuple_take_each_others_place(annotation: Any, given: Any, taken: Any) -> None:
    assert value_check("the state `x`", annotation)(given, "turn") == taken


@pytest.mark.parametrize("given", ["ab", {"a": "b"}, {"a"}, None, [1], [["a"]]])
def test_nothing_else_becomes_a_tuple(given: Any) -> None:
    with pytest.raises(NodeOutputError, match="the state `x` of `turn` is tuple"):
        value_check("the state `x`", Texts)(given, "turn")


def test_a_tuple_of_a_fixed_length_is_no_list() -> None:
    with pytest.raises(NodeOutputError):
        value_check("the state `x`", tuple[int, int])([1, 2], "turn")


def test_a_list_that_needs_no_other_form_is_passed_on_as_it_is() -> None:
    class Text(str):
        pass

    given = [Text("a")]
    assert value_check("the state `x`", list[Any])(given, "turn")[0] is given[0]
