"""The catalogue: every node, contract and resource provider that flow files may name.

Nodes are found through the entry point group `ragbraid.nodes`, whose entry names are node families: the module behind
`fuse` is imported when a flow first names a `fuse.*` node. Ours come through the same door as a plugin's.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from ragbraid.registry.contract import Contract
from ragbraid.registry.contracts import CONTRACTS
from ragbraid.registry.conversions import CONVERSIONS, Conversion
from ragbraid.registry.errors import ContractError
from ragbraid.registry.knowledge import KNOWLEDGE_CONTRACTS
from ragbraid.registry.node import NODE_ATTRIBUTE, NodeContract
from ragbraid.registry.providers import RESOURCE_ATTRIBUTE, ResourceProvider

NODE_GROUP = "ragbraid.nodes"
RESOURCE_GROUP = "ragbraid.resources"
FLOW_GROUP = "ragbraid.flows"


class Catalogue:
    """Nodes, contracts, conversions and resource providers by name. An explicit object: pass it where it is needed."""

    def __init__(self) -> None:
        self._nodes: dict[str, dict[int, NodeContract]] = {}
        self._resources: dict[str, ResourceProvider] = {}
        self._types: dict[str, Any] = {
            **CONTRACTS,
            **KNOWLEDGE_CONTRACTS,
        }
        self._has_method_types = False
        self._conversions: list[Conversion] = list(CONVERSIONS)
        self._families: dict[str, list[EntryPoint]] = {}
        self._resource_families: dict[str, list[EntryPoint]] = {}
        self._flows: dict[str, Path | EntryPoint] = {}
        self._lock = threading.RLock()

    # -- filling -------------------------------------------------------------------------------------------------

    def add_node(self, function: Callable[..., Any]) -> None:
        """Add one function that was declared with `@node`.

        Raises:
            ContractError: another function bears the same name and version; the message names both places.
        """
        contract: NodeContract = getattr(function, NODE_ATTRIBUTE)
        versions = self._nodes.setdefault(contract.name, {})
        other = versions.get(contract.version)
        if other is not None and other.place != contract.place:
            raise ContractError(f"node {contract.reference} is declared twice: {other.place} and {contract.place}")
        versions[contract.version] = contract

    def add_resource(self, provider: ResourceProvider) -> None:
        """Add one resource provider.

        Raises:
            ContractError: another provider bears the same name.
        """
        other = self._resources.get(provider.name)
        if other is not None and other.place != provider.place:
            raise ContractError(f"resource {provider.name} is declared twice: {other.place} and {provider.place}")
        self._resources[provider.name] = provider

    def add_module(self, module: ModuleType) -> None:
        """Add every node, resource provider and contract that a module itself defines."""
        for value in list(vars(module).values()):
            if isinstance(getattr(value, NODE_ATTRIBUTE, None), NodeContract):
                self.add_node(value)
            elif isinstance(provider := getattr(value, RESOURCE_ATTRIBUTE, None), ResourceProvider):
                self.add_resource(provider)
            elif isinstance(value, type) and issubclass(value, Contract) and value.__module__ == module.__name__:
                self.add_type(value)

    def add_type(self, cls: type[Any]) -> None:
        """Make a contract usable as a type name in flow files.

        Raises:
            ContractError: another type bears the same name.
        """
        self._load_method_types()
        other = self._types.get(cls.__name__)
        if other is not None and other is not cls:
            raise ContractError(f"type {cls.__name__} is declared twice: in {other.__module__} and {cls.__module__}")
        self._types[cls.__name__] = cls

    def add_flow(self, name: str, file: Path) -> None:
        """Register a flow file under a name, so that `use: NAME` makes it a node.

        Raises:
            ContractError: the name is taken by a node or another flow.
        """
        other = self._flows.get(name)
        if self.find_node(name) is not None or (other is not None and other != file):
            raise ContractError(f"flow {name} ({file}) is declared twice: a node or another flow has this name")
        self._flows[name] = file

    def add_installed(self) -> None:
        """Remember where every installed package says that its node families, resources and flows are."""
        found = entry_points()  # every call reads what every installed package declares
        self.add_entry_points(found.select(group=NODE_GROUP), found.select(group=RESOURCE_GROUP))
        for entry in found.select(group=FLOW_GROUP):
            self._flows.setdefault(entry.name, entry)

    def add_entry_points(self, nodes: Iterable[EntryPoint], resources: Iterable[EntryPoint]) -> None:
        """Remember where families are to be found; nothing is imported yet."""
        for entry in nodes:
            self._families.setdefault(entry.name, []).append(entry)
        for entry in resources:
            self._resource_families.setdefault(entry.name, []).append(entry)

    # -- asking --------------------------------------------------------------------------------------------------

    def find_node(self, reference: str) -> NodeContract | None:
        """Return the node of a name (`fuse.rrf`, its highest version) or of a name and version (`fuse.rrf@2`)."""
        name, _, version = reference.partition("@")
        self._load(self._families, name.partition(".")[0])
        versions = self._nodes.get(name)
        if not versions:
            return None
        if not version:
            return versions[max(versions)]
        return versions.get(int(version)) if version.isdecimal() else None

    def find_resource(self, name: str) -> ResourceProvider | None:
        """Return the resource provider of a name, or None."""
        self._load(self._resource_families, name.partition(".")[0])
        return self._resources.get(name)

    def find_type(self, name: str) -> Any | None:
        """Return the contract of a name, looking into plugins when it is none of ours."""
        if name not in self._types:
            self._load_method_types()
        if name not in self._types:
            self.load_all()
        return self._types.get(name)

    def find_flow(self, name: str) -> Path | None:
        """Return the file of a registered flow, or None. A plugin's entry point names a path in its module.

        Raises:
            ContractError: the plugin that registers the flow cannot be imported.
        """
        found = self._flows.get(name)
        if not isinstance(found, EntryPoint):
            return found
        try:
            file = Path(found.load())
        except (ImportError, AttributeError, TypeError) as error:
            raise ContractError(f"flow `{found.name} = {found.value}` cannot be loaded: {error}") from error
        self._flows[name] = file
        return file

    def flows(self) -> list[str]:
        """Return the name of every registered flow, sorted."""
        return sorted(self._flows)

    def nodes(self) -> list[NodeContract]:
        """Return every node in its highest version, sorted by name."""
        self.load_all()
        return [versions[max(versions)] for _, versions in sorted(self._nodes.items())]

    def resources(self) -> list[ResourceProvider]:
        """Return every resource provider, sorted by name."""
        self.load_all()
        return [provider for _, provider in sorted(self._resources.items())]

    def types(self) -> dict[str, Any]:
        """Return every contract by name, plugins included."""
        self._load_method_types()
        self.load_all()
        return dict(sorted(self._types.items()))

    def conversions(self) -> tuple[Conversion, ...]:
        """Return the conversions that connections may apply."""
        return tuple(self._conversions)

    def load_all(self) -> None:
        """Import the module of every family."""
        for families in (self._families, self._resource_families):
            for family in list(families):
                self._load(families, family)

    def _load_method_types(self) -> None:
        """Add the contracts of graph and reasoning methods, which take long to import and which few flow files name."""
        if self._has_method_types:
            return
        from ragbraid.registry.graph import GRAPH_CONTRACTS
        from ragbraid.registry.logic import LOGIC_CONTRACTS
        from ragbraid.registry.reasoning import REASONING_CONTRACTS
        from ragbraid.registry.reports import REPORT_CONTRACTS

        self._types |= {**GRAPH_CONTRACTS, **LOGIC_CONTRACTS, **REASONING_CONTRACTS, **REPORT_CONTRACTS}
        self._has_method_types = True

    def _load(self, families: dict[str, list[EntryPoint]], family: str) -> None:
        with self._lock:
            for entry in families.pop(family, ()):
                try:
                    module = importlib.import_module(entry.module)
                except ImportError as error:
                    raise ContractError(f"plugin `{entry.name} = {entry.value}` cannot be imported: {error}") from error
                self.add_module(module)


@cache
def installed_catalogue() -> Catalogue:
    """Return the catalogue of everything that is installed; one per process."""
    catalogue = Catalogue()
    catalogue.add_installed()
    return catalogue
