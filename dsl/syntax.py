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

    `use` is None where the entry is a block, or so wrong that only its name is known.
    """

    name: Named
    use: ScalarNode | None
    parameters: tuple[Entry, ...]
    reserved: Mapping[str, Entry]
    about: str
    span: SourceSpan
    block: BlockDecl | None = None


@dataclass(frozen=True, slots=True)
class BodyDecl:
    """Nodes with the arrows between them: the inside of a block or of a branch."""

    nodes: tuple[NodeDecl, ...]
    arrows: tuple[ScalarNode, ...]
    arrows_complete: bool
    span: SourceSpan


@dataclass(frozen=True, slots=True)
class BranchDecl:
    """One way through a block: a single node, or a body with an output. `condition` is that of a `switch` by `when`."""

    label: Named
    body: BodyDecl
    output: Node | None
    single: bool
    condition: Node | None = None


@dataclass(frozen=True, slots=True)
class LoopDecl:
    """A `loop`; the start of a state stands as its default."""

    carry: tuple[InputDecl, ...]
    body: BodyDecl
    next: tuple[Entry, ...]
    stop_when: tuple[Entry, ...]
    max_steps: Node | None
    items: Entry | None
    span: SourceSpan


@dataclass(frozen=True, slots=True)
class MapDecl:
    """A `map`."""

    over: Entry
    branch: BranchDecl
    concurrency: Node | None
    on_error: Node | None


@dataclass(frozen=True, slots=True)
class SwitchDecl:
    """A `switch`: by the value of `on`, or by conditions where that is None."""

    on: Node | None
    cases: tuple[BranchDecl, ...]
    otherwise: BranchDecl | None
    span: SourceSpan


@dataclass(frozen=True, slots=True)
class GateDecl:
    """A `gate`."""

    tries: tuple[BranchDecl, ...]
    enough: Node
    span: SourceSpan


@dataclass(frozen=True, slots=True)
class GroupDecl:
    """Nodes under one name."""

    branch: BranchDecl


BlockDecl = LoopDecl | MapDecl | SwitchDecl | GateDecl | GroupDecl


def block_kind(decl: NodeDecl) -> str:
    """Return what a block is called: `loop`, `map`, `switch`, `gate` or `group`."""
    return type(decl.block).__name__.removesuffix("Decl").lower()


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
