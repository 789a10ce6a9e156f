from __future__ import annotations

from typing import Annotated, Any

import pytest
from pydantic import Field

from ragbraid.registry.contracts import FanIn, Ranking
from ragbraid.registry.errors import ContractError
from ragbraid.registry.knowledge import KnowledgeBase
from ragbraid.registry.node import RESERVED_KEYS, contract_of, node
from ragbraid.registry.resources import LLM


@node("test.search", ambient={"query": ("question",)}, blocking=True)
def search(query: str, lists: FanIn[Ranking], *, kb: KnowledgeBase, llm: LLM | None = None, top_k: int = 5) -> Ranking:
    """Look something up.

    More words.

    Args:
        query: what to look for,
            in words.
        top_k (int): how many.

    Raises:
        ServiceError: never.
    """
    return Ranking()


def test_the_contract_is_the_signature() -> None:
    contract = contract_of(search)
    assert [port.name for port in contract.data_ports] == ["query", "lists"]
    assert [port.name for port in contract.settings] == ["top_k"]
    assert [(need.name, need.role, need.required) for need in contract.resources] == [
        ("kb", "kb", True),
        ("llm", "llm", False),
    ]
    assert contract.output is Ranking
    assert contract.about == "Look something up."
    assert contract.reference == "test.search@1"
    assert contract.blocking
    assert not contract.is_async


def test_ports_know_default_item_aliases_and_text() -> None:
    contract = contract_of(search)
    query, lists, top_k = contract.ports
    assert query.required
    assert query.ambient == ("question",)
    assert query.about == "what to look for, in words."
    assert lists.fan_in
    assert lists.item is Ranking
    assert not top_k.required
    assert top_k.default == 5
    assert top_k.about == "how many."
    assert contract.port("nothing") is None


def test_a_node_stays_callable_as_the_function_it_is() -> None:
    @node("test.add")
    def add(left: int, right: int) -> int:
        """Add two numbers."""
        return left + right

    assert add(2, 3) == 5


def test_bounds_are_part_of_the_port_and_validate() -> None:
    @node("test.bounded")
    def bounded(*, k: Annotated[int, Field(ge=1)] = 3) -> int:
        """Bounded."""
        return k

    port = contract_of(bounded).port("k")
    assert port is not None
    assert port.adapter.validate_python(4) == 4
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        port.adapter.validate_python(0)


def make(name: str, source: str) -> Any:
    scope: dict[str, Any] = {"node": node, "Ranking": Ranking}
    code = f"@node({name!r})\n{source}"
    exec(code, scope)  # noqa: S102
    return scope["made"]


@pytest.mark.parametrize(
    ("name", "source", "sentence"),
    [
        ("search", 'def made() -> int:\n    """x"""', "not of the form family.name"),
        ("Test.search", 'def made() -> int:\n    """x"""', "not of the form family.name"),
        ("test.x", 'def made():\n    """x"""', "return type is not annotated"),
        ("test.x", "def made() -> int: ...", "needs a docstring"),
        ("test.x", 'def made(a) -> int:\n    """x"""', "`a` is not annotated"),
        ("test.x", 'def made(*a: int) -> int:\n    """x"""', "`a` must be a named parameter"),
        ("test.x", 'def made(a: int, /) -> int:\n    """x"""', "`a` must be a named parameter"),
        ("test.x", 'def made(a: "Nothing") -> int:\n    """x"""', "cannot be resolved"),
        ("test.x", 'def made(loop: int) -> int:\n    """x"""', "`loop` is a reserved key"),
    ],
)
def test_a_wrong_declaration_says_what_and_where(name: str, source: str, sentence: str) -> None:
    with pytest.raises(ContractError, match=sentence):
        make(name, source)


@pytest.mark.parametrize("key", sorted(RESERVED_KEYS))
def test_no_parameter_may_bear_a_reserved_key(key: str) -> None:
    with pytest.raises(ContractError, match="reserved key"):
        make("test.x", f'def made({key}: int) -> int:\n    """x"""')


def test_a_function_without_the_decorator_has_no_contract() -> None:
    with pytest.raises(ContractError, match="not declared with @node"):
        contract_of(len)
