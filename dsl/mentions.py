"""Which names of the scope around it a block refers to, read from what is written alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ragbraid.dsl.arrows import parse_arrows
from ragbraid.dsl.expressions import ExpressionProblem, names, parse_value
from ragbraid.dsl.source_nodes import Node, ScalarNode, SequenceNode
from ragbraid.dsl.syntax import BodyDecl, BranchDecl, GateDecl, GroupDecl, LoopDecl, MapDecl, NodeDecl, SwitchDecl


def mentioned_names(decl: NodeDecl) -> frozenset[str]:
    """Return every name that a node or block refers to and does not declare inside itself."""
    values = [entry.value for entry in (*decl.parameters, *decl.reserved.values())]
    return frozenset(_in_values(values)) | _in_block(decl)


def _in_block(decl: NodeDecl) -> frozenset[str]:
    match decl.block:
        case None:
            return frozenset()
        case LoopDecl() as loop:
            own = {state.name.text for state in loop.carry} | ({loop.items.key} if loop.items else set())
            starts = [state.default for state in loop.carry]
            outside = [*starts, loop.max_steps, loop.items.value if loop.items else None]
            inside = [entry.value for entry in (*loop.next, *loop.stop_when)]
            return frozenset(_in_values(outside)) | _in_body(loop.body, inside, own)
        case MapDecl() as block:
            return frozenset(_in_values([block.over.value])) | _in_body(
                block.branch.body, [block.branch.output], {block.over.key}
            )
        case SwitchDecl() as switch:
            branches = [*switch.cases, *([switch.otherwise] if switch.otherwise else [])]
            own_values = [switch.on, *(branch.condition for branch in branches)]
            return frozenset(_in_values(own_values)) | _in_branches(branches)
        case GateDecl() as gate:
            return frozenset(_in_values([gate.enough])) | _in_branches(gate.tries)
        case GroupDecl() as group:
            return _in_branches([group.branch])


def _in_branches(branches: Iterable[BranchDecl]) -> frozenset[str]:
    found: frozenset[str] = frozenset()
    for branch in branches:
        found |= _in_body(branch.body, [branch.output], set(), named=not branch.single)
    return found


def _in_body(body: BodyDecl, further: Iterable[Node | None], own: set[str], *, named: bool = True) -> frozenset[str]:
    found = set(_in_values(further))
    for node in body.nodes:
        found |= mentioned_names(node)
    for arrow in body.arrows:
        paths, _ = parse_arrows(str(arrow.value))
        found.update(ref.names[0] for path in paths for stage in path.stages for ref in stage.refs)
    return frozenset(found - own - ({node.name.text for node in body.nodes} if named else set()))


def _in_values(values: Iterable[Node | None]) -> Iterator[str]:
    for value in values:
        if isinstance(value, ScalarNode):
            parsed = parse_value(value.value) if isinstance(value.value, str) else None
            if parsed is not None and not isinstance(parsed, ExpressionProblem):
                yield from (use.root for use in names(parsed))
        elif isinstance(value, SequenceNode):
            yield from _in_values(value.items)
        elif value is not None:
            yield from _in_values(entry.value for entry in value.entries)
