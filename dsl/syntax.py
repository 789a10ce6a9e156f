"""The syntax tree of a flow file: what is written, with its place, before any name is looked up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ragbraid.dsl.source_nodes import Entry, MappingNode, Node, ScalarNode
from ragbraid.registry.errors import SourceSpan


@dataclass(frozen=True, slots=True)
class Named:
    """A name and where it stands."""

    text: str
    span: SourceSpan


@dataclass(frozen=True, slots=True)
class InputDecl:
    """A declared input: its type as text, its default and bounds as nodes.

    The type is None where the declaration is so wrong that only its name is known.
    """

    name: Named
    type: Named | None
    default: Node | None
    bounds: Mapping[str, Node]
    about: str


@dataclass(frozen=True, slots=True)
class NodeDecl:
    """An entry under `nodes`: the node that it uses, its parameters and its reserved keys.

    `use` is None where the entry is so wrong that only its name is known.
    """

    name: Named
    use: ScalarNode | None
    parameters: tuple[Entry, ...]
    reserved: Mapping[str, Entry]
    about: str
    span: SourceSpan


@dataclass(frozen=True, slots=True)
class ResourceDecl:
    """An entry under `resources`: the provider and its settings."""

    name: Named
    use: ScalarNode
    settings: tuple[Entry, ...]
    span: SourceSpan


@dataclass(frozen=True, slots=True)
class OutputDecl:
    """One output of the flow; the empty name where the flow gives a single value."""

    name: Named
    value: Node


@dataclass(frozen=True, slots=True)
class FlowSyntax:
    """A whole flow file."""

    file: str
    name: str
    about: str
    inputs: tuple[InputDecl, ...]
    inputs_complete: bool
    """Whether all of `inputs` could be read; if not, a name that seems unknown may be one of them."""
    resources: tuple[ResourceDecl, ...]
    nodes: tuple[NodeDecl, ...]
    arrows: tuple[ScalarNode, ...]
    arrows_complete: bool
    """Whether all of `flow` could be read; if not, a port that seems open may not be."""
    outputs: tuple[OutputDecl, ...]
    limits: MappingNode | None
    deploy: MappingNode | None
    span: SourceSpan
