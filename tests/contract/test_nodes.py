"""What every node and provider of the catalogue must hold."""

from __future__ import annotations

import textwrap

import pytest
import yaml

from ragbraid.dsl.compile import check_text
from ragbraid.registry.catalogue import installed_catalogue
from ragbraid.registry.node import NodeContract
from ragbraid.registry.providers import ResourceProvider

NODES = installed_catalogue().nodes()
PROVIDERS = installed_catalogue().resources()


@pytest.mark.parametrize("contract", NODES, ids=lambda contract: contract.name)
def test_a_node_explains_itself_and_each_of_its_parameters(contract: NodeContract) -> None:
    assert contract.about.endswith(".")
    assert len(contract.about) <= 120
    undocumented = [port.name for port in contract.ports if not port.about]
    assert undocumented == []


@pytest.mark.parametrize("contract", NODES, ids=lambda contract: contract.name)
def test_ports_have_json_schemas_and_valid_defaults(contract: NodeContract) -> None:
    for port in contract.ports:
        assert port.adapter.json_schema()
        if not port.required:
            port.adapter.validate_python(port.default)


@pytest.mark.parametrize("contract", NODES, ids=lambda contract: contract.name)
def test_the_example_of_a_node_is_a_piece_of_a_flow_that_checks(contract: NodeContract) -> None:
    assert contract.example
    nodes = yaml.safe_load(contract.example)
    used = [value if isinstance(value, str) else value["use"] for value in nodes.values()]
    assert contract.name in used
    # What an example refers to comes from the flow's inputs here, of whatever type its port takes.
    names = {name for name in _names(nodes) if name not in nodes}
    inputs = "\n".join(f"  {name}: any" for name in sorted(names | {"question"}))
    body = textwrap.indent(contract.example, "  ")
    last = list(nodes)[-1]
    text = f"ragbraid: 1\nname: example\ninputs:\n{inputs}\nnodes:\n{body}\noutputs: ${last}\n"
    checked = check_text(text, "example.yaml", installed_catalogue())
    wrong = [f for f in checked.findings if f.severity == "error" and f.code not in ("RB202", "RB206", "RB406")]
    assert wrong == []


def _names(value: object) -> set[str]:
    if isinstance(value, str):
        return {value[1:].split(".")[0]} if value.startswith("$") and not value.startswith("${") else set()
    if isinstance(value, dict):
        return set().union(*(_names(item) for item in value.values()))
    if isinstance(value, list):
        return set().union(*(_names(item) for item in value))
    return set()


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)
def test_a_provider_explains_itself(provider: ResourceProvider) -> None:
    assert provider.about.endswith(".")
    for setting in provider.settings:
        assert setting.name in provider.docstring, setting.name
