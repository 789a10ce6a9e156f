"""Lists at run time: one thing with tuples to the language, and what a port that collects takes apart."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from pydantic import Field

from ragbraid.flows.checks import port_check, value_check
from ragbraid.registry.contracts import FanIn, Ranking
from ragbraid.registry.errors import NodeInputError, NodeOutputError
from ragbraid.registry.node import contract_of, node

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
    with pytest.raises(NodeOutputError, match=r"the state `x` of `turn` is list\[str\]"):
        value_check("the state `x`", Texts)(given, "turn")


def test_a_tuple_of_a_fixed_length_is_no_list() -> None:
    with pytest.raises(NodeOutputError):
        value_check("the state `x`", tuple[int, int])([1, 2], "turn")


def test_a_list_that_needs_no_other_form_is_passed_on_as_it_is() -> None:
    class Text(str):
        pass

    given = [Text("a")]
    assert value_check("the state `x`", list[Any])(given, "turn")[0] is given[0]


A, B = Ranking(route="a"), Ranking(route="b")


@node("demo.collect")
def collect(parts: FanIn[Ranking]) -> int:
    """Collect rankings."""
    return len(parts)


@node("demo.collect_lists")
def collect_lists(parts: FanIn[list[Ranking]]) -> int:
    """Collect lists of rankings."""
    return len(parts)


def collected(function: Any, given: Any) -> Any:
    contract = contract_of(function)
    return port_check(contract, contract.ports[0])[1](given, "m")


def test_a_port_that_collects_takes_every_item_of_a_list_in_its_order() -> None:
    found = collected(collect, {"rc": A, "found": [B, None, A], "none": []})
    assert list(found.items()) == [("rc", A), ("found[1]", B), ("found[3]", A)]


def test_a_port_that_collects_lists_takes_them_whole() -> None:
    assert collected(collect_lists, {"found": [A, B]}) == {"found": [A, B]}


def test_an_item_of_a_list_that_does_not_fit_is_named() -> None:
    with pytest.raises(NodeInputError, match=r"with the text 'x' at `found\[2\]`"):
        collected(collect, {"found": [A, "x"]})
