"""The entries under `nodes` and the arrows between them, in a flow and in the body of a block."""

from __future__ import annotations

import re

from ragbraid.dsl.keys import check_keys, check_name, is_name, read_text, use_hint
from ragbraid.dsl.parse_blocks import GROUP_KEYS, BlockParser
from ragbraid.dsl.report import Report
from ragbraid.dsl.source_nodes import Entry, MappingNode, Node, ScalarNode, SequenceNode
from ragbraid.dsl.syntax import BodyDecl, BranchDecl, Named, NodeDecl
from ragbraid.registry.node import BLOCK_KEYS, RESERVED_KEYS

_PLAIN_NAME = re.compile(r"\s*[A-Za-z]\w*\s*")


def parse_nodes(node: Node | None, report: Report) -> tuple[NodeDecl, ...] | None:
    """Read the entries under `nodes`; None where there are none or they cannot be read."""
    if node is None:
        return None
    if not isinstance(node, MappingNode) or not node.entries:
        hint = "write `name: family.node` or `name: {use: family.node, setting: value}`"
        report.error("RB012", "`nodes` is a mapping of names to nodes", node.span, hint)
        return None
    return tuple(_parse_node(entry, report) for entry in node.entries)


def _parse_node(entry: Entry, report: Report) -> NodeDecl:
    name = Named(entry.key, entry.key_span)
    if not check_name(name, "a node", report):
        return NodeDecl(name, None, (), {}, "", entry.key_span)
    return parse_node_decl(entry, report)


def parse_node_decl(entry: Entry, report: Report) -> NodeDecl:
    """Read `name: node` or `name: {use: node, ...}`; its `use` is None where that cannot be read."""
    name = Named(entry.key, entry.key_span)
    value = entry.value
    if isinstance(value, ScalarNode) and isinstance(value.value, str):
        return NodeDecl(name, value, (), {}, "", entry.key_span)
    if not isinstance(value, MappingNode):
        hint = f"write `{name.text}: family.node` or `{name.text}: {{use: family.node, setting: value}}`"
        report.error("RB012", f"`{name.text}` does not say which node it uses", value.span, hint)
        return NodeDecl(name, None, (), {}, "", entry.key_span)
    if _is_block(value):
        return _parse_block_decl(name, value, report)
    use = value.get("use")
    if use is None:
        report.error("RB011", f"`{name.text}` has no `use`", entry.key_span, use_hint(name.text, value, "node"))
        return NodeDecl(name, None, (), {}, "", entry.key_span)
    if not isinstance(use, ScalarNode) or not isinstance(use.value, str):
        report.error("RB012", "`use` names a node, such as `fuse.rrf`", use.span)
        return NodeDecl(name, None, (), {}, "", entry.key_span)
    reserved = {e.key: e for e in value.entries if e.key in RESERVED_KEYS}
    parameters = tuple(e for e in value.entries if e.key not in RESERVED_KEYS)
    about = read_text(value, "about", report) or ""
    return NodeDecl(name, use, parameters, reserved, about, entry.key_span)


def _is_block(value: MappingNode) -> bool:
    return any(entry.key in BLOCK_KEYS for entry in value.entries) or _is_group(value)


def _is_group(value: Node) -> bool:
    return isinstance(value, MappingNode) and value.get("nodes") is not None and value.get("use") is None


def _parse_block_decl(name: Named, value: MappingNode, report: Report) -> NodeDecl:
    parser = BlockParser(parse_body, parse_branch, report)
    keys = tuple(entry.key for entry in value.entries if entry.key in BLOCK_KEYS)
    if len(keys) > 1:
        second = next(entry for entry in value.entries if entry.key == keys[1])
        hint = "give each block a name of its own"
        report.error("RB010", f"`{keys[1]}` cannot stand beside `{keys[0]}`", second.key_span, hint)
        return NodeDecl(name, None, (), {}, "", name.span)
    known = (*(keys[:1] or GROUP_KEYS), *sorted(RESERVED_KEYS - {"use", "cache"}))
    value = check_keys(value, known, "this block", report)
    if keys:
        entry = value.entry(keys[0])
        block = None if entry is None else parser.parse(entry)
    else:
        block = parser.group(name, MappingNode(tuple(e for e in value.entries if e.key in GROUP_KEYS), value.span))
    reserved = {e.key: e for e in value.entries if e.key in RESERVED_KEYS}
    about = read_text(value, "about", report) or ""
    return NodeDecl(name, None, (), reserved, about, name.span, block)


def parse_body(value: MappingNode, report: Report) -> BodyDecl | None:
    """Read `nodes` and `flow` of a block; None where there are no nodes."""
    node = value.get("nodes")
    if node is None:
        report.error("RB011", "this block has no `nodes`", value.span, "list the nodes that it runs under `nodes:`")
        return None
    nodes = parse_nodes(node, report)
    arrows = parse_arrows_of(value.get("flow"), report)
    if nodes is None:
        return None
    readable = tuple(arrow for arrow in arrows if arrow is not None)
    return BodyDecl(nodes, readable, len(readable) == len(arrows), value.span)


def parse_branch(label: Named, value: Node, report: Report) -> BranchDecl | None:
    """Read a branch: a node, a flow, a block, or `{nodes, flow, output}`."""
    if isinstance(value, MappingNode) and _is_group(value):
        value = check_keys(value, GROUP_KEYS, "a group of nodes", report)
        body = parse_body(value, report)
        output = value.get("output")
        if output is None:
            hint = "say which value leaves it, such as `output: $merger`"
            report.error("RB011", "this group of nodes has no `output`", value.span, hint)
        return None if body is None else BranchDecl(label, body, output, single=False)
    decl = parse_node_decl(Entry(_step_name(value, label), label.span, value), report)
    if decl.use is None and decl.block is None:
        return None
    return BranchDecl(label, BodyDecl((decl,), (), True, value.span), None, single=True)


def _step_name(value: Node, label: Named) -> str:
    """Call the one step of a branch after what it uses: `exact` for `graph.exact`, `kag` for `./kag.yaml`."""
    use = value.get("use") if isinstance(value, MappingNode) else value
    text = str(use.value).partition("@")[0] if isinstance(use, ScalarNode) else ""
    last = text.rpartition("/")[2].removesuffix(".yaml").removesuffix(".yml").rpartition(".")[2]
    return last if is_name(last) else f"branch_{label.text}" if is_name(f"branch_{label.text}") else "branch"


def parse_arrows_of(node: Node | None, report: Report) -> list[ScalarNode | None]:
    """Return the strings of arrows; None stands for something that is none."""
    if node is None:
        return []
    items = node.items if isinstance(node, SequenceNode) else (node,)
    texts = [item.value if isinstance(item, ScalarNode) else None for item in items]
    if len(items) > 1 and all(isinstance(text, str) and _PLAIN_NAME.fullmatch(text) for text in texts):
        hint = f"write `flow: {' -> '.join(map(str, texts))}`; in a list every item holds arrows of its own"
        report.error("RB016", "there is no arrow in this list", node.span, hint)
        return [None]
    arrows: list[ScalarNode | None] = []
    for item in items:
        if isinstance(item, ScalarNode) and isinstance(item.value, str):
            arrows.append(item)
        else:
            arrows.append(None)
            hint = "write `flow: a, b -> c`"
            report.error("RB012", "`flow` is a string of arrows or a list of them", item.span, hint)
    return arrows
