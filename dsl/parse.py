"""From YAML nodes to the syntax tree: keys, shapes and declarations. Nothing is looked up here."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ragbraid.dsl.report import Report
from ragbraid.dsl.source import read_inline
from ragbraid.dsl.source_nodes import Entry, MappingNode, Node, ScalarNode, SequenceNode, subspan
from ragbraid.dsl.syntax import FlowSyntax, InputDecl, Named, NodeDecl, OutputDecl, ResourceDecl
from ragbraid.dsl.types import split_declaration
from ragbraid.registry.errors import SourceSpan
from ragbraid.registry.node import BLOCK_KEYS, RESERVED_KEYS
from ragbraid.registry.suggest import did_you_mean

LANGUAGE_VERSION = 1
TOP_KEYS = (
    "ragbraid", "name", "about", "inputs", "resources", "nodes", "flow", "outputs", "limits", "deploy",
)  # fmt: skip
REQUIRED_TOP_KEYS = ("ragbraid", "name", "nodes", "outputs")
BOUND_KEYS = ("ge", "gt", "le", "lt", "min_length", "max_length", "pattern", "choices")
INPUT_KEYS = ("type", "default", "about", *BOUND_KEYS)

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def parse_flow(root: Node, file: str, report: Report) -> FlowSyntax | None:
    """Read the whole tree; None when its shape is too wrong to go on."""
    if not isinstance(root, MappingNode):
        report.error(
            "RB012", "a flow file is a mapping with the keys `ragbraid`, `name`, `nodes` and `outputs`", root.span
        )
        return None
    check_keys(root, TOP_KEYS, "a flow file", report)
    missing = [key for key in REQUIRED_TOP_KEYS if root.get(key) is None]
    for key in missing:
        report.error("RB011", f"the key `{key}` is missing", _start_of(root.span), _MISSING_HINTS[key])
    _check_version(root, report)
    nodes = _parse_nodes(root.get("nodes"), report)
    if nodes is None:
        return None
    arrows = _parse_arrows(root.get("flow"), report)
    outputs = _parse_outputs(root.get("outputs"), report)
    inputs = _parse_inputs(root.get("inputs"), report)
    return FlowSyntax(
        file=file,
        name=_text(root, "name", report) or "",
        about=_text(root, "about", report) or "",
        inputs=inputs,
        resources=_parse_resources(root.get("resources"), report),
        nodes=nodes,
        arrows=tuple(arrow for arrow in arrows if arrow is not None),
        arrows_complete=None not in arrows,
        outputs=outputs,
        limits=_mapping_or_none(root, "limits", report),
        deploy=_mapping_or_none(root, "deploy", report),
        span=root.span,
    )


_MISSING_HINTS = {
    "ragbraid": f"write `ragbraid: {LANGUAGE_VERSION}`, the version of the language",
    "name": "give the flow a name, such as `name: my_flow`",
    "nodes": "list the flow's nodes under `nodes:`",
    "outputs": "say what the flow gives back, such as `outputs: $generator`",
}


def check_keys(mapping: MappingNode, known: Iterable[str], where: str, report: Report) -> None:
    """Report every key that is none of `known`, with the nearest one as a hint."""
    known = tuple(known)
    for entry in mapping.entries:
        if entry.key not in known:
            hint = did_you_mean(entry.key, known) or f"known keys are {', '.join(known)}"
            report.error("RB010", f"`{entry.key}` is not a key of {where}", entry.key_span, hint)


def check_name(name: Named, what: str, report: Report) -> bool:
    """Report a name that could not be referred to; returns whether it is well formed."""
    if _NAME.fullmatch(name.text):
        return True
    hint = "names start with a letter and go on with letters, digits and `_`"
    report.error("RB014", f"`{name.text}` cannot be the name of {what}", name.span, hint)
    return False


def _check_version(root: MappingNode, report: Report) -> None:
    node = root.get("ragbraid")
    if node is None or (isinstance(node, ScalarNode) and node.value == LANGUAGE_VERSION):
        return
    written = node.text if isinstance(node, ScalarNode) else "this"
    hint = f"write `ragbraid: {LANGUAGE_VERSION}`"
    report.error("RB013", f"`{written}` is not a version of the language that this ragbraid reads", node.span, hint)


def _parse_nodes(node: Node | None, report: Report) -> tuple[NodeDecl, ...] | None:
    if node is None:
        return ()
    if not isinstance(node, MappingNode) or not node.entries:
        hint = "write `name: family.node` or `name: {use: family.node, setting: value}`"
        report.error("RB012", "`nodes` is a mapping of names to nodes", node.span, hint)
        return None
    parsed = (parse_node_decl(entry, report) for entry in node.entries)
    return tuple(decl for decl in parsed if decl is not None)


def parse_node_decl(entry: Entry, report: Report) -> NodeDecl | None:
    """Read `name: node` or `name: {use: node, ...}`; None when not even the name can be used."""
    name = Named(entry.key, entry.key_span)
    if not check_name(name, "a node", report):
        return None
    value = entry.value
    if isinstance(value, ScalarNode) and isinstance(value.value, str):
        return NodeDecl(name, value, (), {}, "", entry.key_span)
    if not isinstance(value, MappingNode):
        hint = "write `name: family.node` or `name: {use: family.node, setting: value}`"
        report.error("RB012", f"`{name.text}` does not say which node it uses", value.span, hint)
        return NodeDecl(name, None, (), {}, "", entry.key_span)
    block = next((e for e in value.entries if e.key in BLOCK_KEYS), None)
    if block is not None:
        hint = "blocks (`loop`, `map`, `switch`, `gate`) come with the next version of the language"
        report.error("RB015", f"`{block.key}` is not supported by this version of ragbraid", block.key_span, hint)
        return NodeDecl(name, None, (), {}, "", entry.key_span)
    use = value.get("use")
    if use is None:
        hint = f"write `{name.text}: {{use: family.node, ...}}`"
        report.error("RB011", f"`{name.text}` has no `use`", entry.key_span, hint)
        return NodeDecl(name, None, (), {}, "", entry.key_span)
    if not isinstance(use, ScalarNode) or not isinstance(use.value, str):
        report.error("RB012", "`use` names a node, such as `fuse.rrf`", use.span)
        return NodeDecl(name, None, (), {}, "", entry.key_span)
    reserved = {e.key: e for e in value.entries if e.key in RESERVED_KEYS}
    parameters = tuple(e for e in value.entries if e.key not in RESERVED_KEYS)
    about = _text(value, "about", report) or ""
    return NodeDecl(name, use, parameters, reserved, about, entry.key_span)


def _parse_outputs(node: Node | None, report: Report) -> tuple[OutputDecl, ...]:
    if node is None:
        return ()
    if isinstance(node, MappingNode):
        if not node.entries:
            report.error("RB012", "`outputs` is empty", node.span, _MISSING_HINTS["outputs"])
        named = [OutputDecl(Named(e.key, e.key_span), e.value) for e in node.entries]
        return tuple(output for output in named if check_name(output.name, "an output", report))
    if isinstance(node, ScalarNode) and isinstance(node.value, str):
        return (OutputDecl(Named("", node.span), node),)
    hint = _MISSING_HINTS["outputs"]
    report.error("RB012", "`outputs` is one reference or a mapping of names to references", node.span, hint)
    return ()


def _parse_inputs(node: Node | None, report: Report) -> tuple[InputDecl, ...]:
    if node is None:
        return ()
    if not isinstance(node, MappingNode):
        report.error("RB012", "`inputs` is a mapping of names to types", node.span, "write `question: str`")
        return ()
    parsed = (_parse_input(entry, report) for entry in node.entries)
    return tuple(decl for decl in parsed if decl is not None)


def _parse_input(entry: Entry, report: Report) -> InputDecl | None:
    name = Named(entry.key, entry.key_span)
    if not check_name(name, "an input", report):
        return None
    value = entry.value
    if isinstance(value, ScalarNode) and isinstance(value.value, str):
        return _short_declaration(name, value, report)
    if not isinstance(value, MappingNode):
        hint = f"write `{name.text}: str` or `{name.text}: {{type: int, default: 5}}`"
        report.error("RB012", f"the input `{name.text}` has no type", value.span, hint)
        return None
    check_keys(value, INPUT_KEYS, "an input", report)
    type_node = value.get("type")
    if type_node is None:
        report.error("RB011", f"the input `{name.text}` has no `type`", entry.key_span, "write `type: str`")
        return None
    if not isinstance(type_node, ScalarNode) or not isinstance(type_node.value, str):
        hint = 'a type with brackets is quoted here: `type: "list[str]"`'
        report.error("RB012", "`type` is the name of a type", type_node.span, hint)
        return None
    bounds = {e.key: e.value for e in value.entries if e.key in BOUND_KEYS}
    about = _text(value, "about", report) or ""
    return InputDecl(name, Named(type_node.value, type_node.span), value.get("default"), bounds, about)


def _short_declaration(name: Named, value: ScalarNode, report: Report) -> InputDecl | None:
    type_text, default_text = split_declaration(value.text)
    start = value.text.index(type_text)
    type_name = Named(type_text, subspan(value, start, start + len(type_text)))
    if default_text is None:
        return InputDecl(name, type_name, None, {}, "")
    begin = len(value.text) - len(default_text.lstrip())
    default, findings = read_inline(value, begin)
    report.extend(findings)
    if findings:
        return None
    place = subspan(value, begin, len(value.text))
    return InputDecl(name, type_name, default or ScalarNode(None, "", True, place), {}, "")


def _parse_resources(node: Node | None, report: Report) -> tuple[ResourceDecl, ...]:
    if node is None:
        return ()
    if not isinstance(node, MappingNode):
        hint = "write `kb: {use: qdrant.embedded, path: ./kb}`"
        report.error("RB012", "`resources` is a mapping of names to resources", node.span, hint)
        return ()
    return tuple(decl for entry in node.entries if (decl := _parse_resource(entry, report)) is not None)


def _parse_resource(entry: Entry, report: Report) -> ResourceDecl | None:
    name = Named(entry.key, entry.key_span)
    if not check_name(name, "a resource", report):
        return None
    value = entry.value
    if isinstance(value, ScalarNode) and isinstance(value.value, str):
        return ResourceDecl(name, value, (), entry.key_span)
    use = value.get("use") if isinstance(value, MappingNode) else None
    if not isinstance(value, MappingNode) or not isinstance(use, ScalarNode) or not isinstance(use.value, str):
        hint = f"write `{name.text}: {{use: family.provider, setting: value}}`"
        report.error("RB012", f"the resource `{name.text}` does not say what provides it", value.span, hint)
        return None
    settings = tuple(e for e in value.entries if e.key != "use")
    return ResourceDecl(name, use, settings, entry.key_span)


def _parse_arrows(node: Node | None, report: Report) -> list[ScalarNode | None]:
    """Return the strings of arrows; None stands for something that is none."""
    if node is None:
        return []
    items = node.items if isinstance(node, SequenceNode) else (node,)
    arrows: list[ScalarNode | None] = []
    for item in items:
        if isinstance(item, ScalarNode) and isinstance(item.value, str):
            arrows.append(item)
        else:
            arrows.append(None)
            hint = "write `flow: a, b -> c`"
            report.error("RB012", "`flow` is a string of arrows or a list of them", item.span, hint)
    return arrows


def _mapping_or_none(root: MappingNode, key: str, report: Report) -> MappingNode | None:
    node = root.get(key)
    if node is None or isinstance(node, MappingNode):
        return node
    report.error("RB012", f"`{key}` is a mapping", node.span, f"write `{key}: {{...}}`")
    return None


def _text(mapping: MappingNode, key: str, report: Report) -> str | None:
    node = mapping.get(key)
    if node is None:
        return None
    if isinstance(node, ScalarNode) and isinstance(node.value, str) and node.value.strip():
        return node.value
    report.error("RB012", f"`{key}` is a text", node.span)
    return None


def _start_of(span: SourceSpan) -> SourceSpan:
    return SourceSpan(span.file, span.line, span.column, span.line, span.column + 1)
