"""`ragbraid nodes` and `schema`: what there is to build flows from."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent
from typing import Any

import click

from ragbraid.dsl.schema import flow_schema, port_schema
from ragbraid.dsl.tables import format_table
from ragbraid.dsl.types import describe
from ragbraid.flows.cli_output import print_json
from ragbraid.flows.cli_params import complete_node, json_option, project_option
from ragbraid.flows.project import load_project, project_catalogue
from ragbraid.registry.catalogue import Catalogue
from ragbraid.registry.node import NodeContract, Port
from ragbraid.registry.suggest import did_you_mean


@click.command()
@click.argument("name", required=False, shell_complete=complete_node)
@project_option
@json_option
def nodes(name: str | None, project: Path | None, as_json: bool) -> None:
    """List the nodes, or show one: its ports, settings with bounds and defaults, resources, and an example."""
    catalogue = project_catalogue(load_project(project=project))
    if name is None:
        _list_nodes(catalogue, as_json)
        return
    node = catalogue.find_node(name)
    if node is None:
        hint = did_you_mean(name, (other.name for other in catalogue.nodes())) or "`ragbraid nodes` lists what there is"
        raise click.UsageError(f"no node is called `{name}`; {hint}")
    if as_json:
        print_json(node_to_dict(node))
    else:
        click.echo(node_page(node))


@click.command()
@project_option
def schema(project: Path | None) -> None:
    """Print the JSON Schema of flow files, with the parameters of every node; editors complete by it."""
    print_json(flow_schema(project_catalogue(load_project(project=project))))


def _list_nodes(catalogue: Catalogue, as_json: bool) -> None:
    if as_json:
        print_json([node_to_dict(node) for node in catalogue.nodes()])
        return
    rows = [(node.name, _signature(node), node.about) for node in catalogue.nodes()]
    click.echo(format_table(("NODE", "TAKES -> GIVES", "WHAT IT DOES"), rows))


def _signature(node: NodeContract) -> str:
    taken = ", ".join(_port_type(port) for port in node.data_ports)
    return f"{taken} -> {describe(node.output)}".lstrip()


def _port_type(port: Port) -> str:
    return f"{describe(port.item)} ..." if port.fan_in else describe(port.type)


def node_to_dict(node: NodeContract) -> dict[str, Any]:
    """Return a node's contract as plain data, for `--json` and for the documentation."""
    return {
        "name": node.name,
        "version": node.version,
        "about": node.about,
        "ports": [_port_to_dict(port) for port in node.ports],
        "resources": [{"name": need.name, "role": need.role, "required": need.required} for need in node.resources],
        "output": describe(node.output),
        "example": node.example,
        "docstring": node.docstring,
    }


def _port_to_dict(port: Port) -> dict[str, Any]:
    return {
        "name": port.name,
        "kind": port.kind,
        "type": _port_type(port),
        "required": port.required,
        "default": None if port.required else port.default,
        "bounds": port_bounds(port),
        "ambient": list(port.ambient),
        "about": port.about,
    }


_BOUND_SIGNS = {
    "minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<",
    "minLength": "length >=", "maxLength": "length <=",
}  # fmt: skip


def port_bounds(port: Port) -> str:
    """Return the bounds of a port's literal in words, such as `>= 1, <= 50`."""
    schema = port_schema(port)
    literal = schema.get("anyOf", [{}])[0]
    branches = [literal, *literal.get("anyOf", ())]
    return ", ".join(
        f"{sign} {branch[key]}" for branch in branches for key, sign in _BOUND_SIGNS.items() if key in branch
    )


def node_page(node: NodeContract) -> str:
    """Return one node as a page of text."""
    parts = [f"{node.name} (version {node.version})", "", node.docstring, ""]
    rows = [
        (
            port.name,
            port.kind,
            _port_type(port),
            "required" if port.required else repr(port.default),
            port_bounds(port),
            ", ".join(port.ambient),
        )
        for port in node.ports
    ]
    if rows:
        parts.append(format_table(("PARAMETER", "KIND", "TYPE", "DEFAULT", "BOUNDS", "ALSO FILLED BY"), rows))
    parts.extend(
        f"{'needs' if need.required else 'uses, where there is one,'} the resource `{need.name}` ({need.role})"
        for need in node.resources
    )
    parts.append(f"gives {describe(node.output)}")
    if node.example:
        parts.extend(["", "Example (under `nodes:`):", "", indent(node.example, "  ")])
    return "\n".join(parts)
