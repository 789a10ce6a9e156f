from __future__ import annotations

from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

from ragbraid.registry.catalogue import Catalogue, installed_catalogue
from ragbraid.registry.contract import Contract
from ragbraid.registry.contracts import Query
from ragbraid.registry.errors import ContractError
from ragbraid.registry.node import node
from ragbraid.registry.providers import resource
from ragbraid.registry.resources import Embedder


@node("shop.buy")
def buy(what: str) -> str:
    """Buy it."""
    return what


@node("shop.buy", version=2)
def buy_better(what: str) -> str:
    """Buy it better."""
    return what


@resource("shop.embedder", secrets=("key",))
def embedder(*, size: int = 3, key: str | None = None) -> Embedder:
    """An embedder."""
    raise NotImplementedError


class Basket(Contract):
    """What was bought."""

    things: tuple[str, ...] = ()


def module_of(*values: object, name: str = "shop_nodes") -> ModuleType:
    module = ModuleType(name)
    for position, value in enumerate(values):
        setattr(module, f"value_{position}", value)
    return module


def test_a_name_finds_the_highest_version_and_a_version_finds_itself() -> None:
    catalogue = Catalogue()
    catalogue.add_module(module_of(buy, buy_better))
    newest, first = catalogue.find_node("shop.buy"), catalogue.find_node("shop.buy@1")
    assert newest is not None
    assert newest.version == 2
    assert first is not None
    assert first.version == 1
    assert catalogue.find_node("shop.buy@3") is None
    assert catalogue.find_node("shop.buy@x") is None
    assert catalogue.find_node("shop.sell") is None
    assert [contract.version for contract in catalogue.nodes()] == [2]


def test_two_declarations_of_one_name_are_refused_with_both_places() -> None:
    @node("shop.buy")
    def another(what: str) -> str:
        """Buy something else."""
        return what

    catalogue = Catalogue()
    catalogue.add_node(buy)
    catalogue.add_node(buy)
    with pytest.raises(ContractError, match=r"declared twice: .*test_catalogue.py:\d+ and .*test_catalogue.py:\d+"):
        catalogue.add_node(another)


def test_contracts_of_a_module_become_type_names() -> None:
    catalogue = Catalogue()
    module = module_of(name=__name__)
    module.Basket = Basket  # type: ignore[attr-defined]
    catalogue.add_module(module)
    assert catalogue.find_type("Basket") is Basket
    assert catalogue.find_type("Query") is Query
    assert catalogue.find_type("Nothing") is None

    class Query2(Contract):
        """Another."""

    Query2.__name__ = "Query"
    with pytest.raises(ContractError, match="type Query is declared twice"):
        catalogue.add_type(Query2)


def test_a_provider_knows_role_settings_and_secrets() -> None:
    catalogue = Catalogue()
    catalogue.add_module(module_of(embedder))
    provider = catalogue.find_resource("shop.embedder")
    assert provider is not None
    assert provider.role == "embedder"
    assert [(s.name, s.required, s.secret) for s in provider.settings] == [("size", False, False), ("key", False, True)]


def test_a_family_is_imported_when_it_is_first_named() -> None:
    catalogue = Catalogue()
    entry = EntryPoint("nowhere", "ragbraid_has_no_such_module", "ragbraid.nodes")
    catalogue.add_entry_points([entry], [])
    assert catalogue.find_node("other.name") is None
    with pytest.raises(ContractError, match="plugin `nowhere = ragbraid_has_no_such_module` cannot be imported"):
        catalogue.find_node("nowhere.name")


def test_a_dotted_python_path_is_simply_not_a_node() -> None:
    assert installed_catalogue().find_node("os.system") is None
    assert installed_catalogue().find_node("ragbraid.nodes.fuse.reciprocal_rank_fusion") is None


def test_our_own_nodes_come_through_entry_points() -> None:
    names = {contract.name for contract in installed_catalogue().nodes()}
    assert {"load.files", "chunk.headings", "index.upsert", "retrieve.hybrid", "fuse.rrf", "generate.answer"} <= names
