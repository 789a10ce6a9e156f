"""From YAML nodes to the syntax tree: keys, shapes and declarations. Nothing is looked up here."""

from __future__ import annotations

from ragbraid.dsl.keys import check_keys, check_name, read_text, use_hint
from ragbraid.dsl.parse_inputs import parse_declaration
from ragbraid.dsl.parse_nodes import parse_arrows_of, parse_nodes
from ragbraid.dsl.report import Report
from ragbraid.dsl.source_nodes import Entry, MappingNode, Node, ScalarNode, SequenceNode, subspan
from ragbraid.dsl.syntax import FlowSyntax, InputDecl, Named, OutputDecl, ResourceDecl
from ragbraid.registry.errors import SourceSpan

LANGUAGE_VERSION = 1
TOP_KEYS = (
    "ragbraid", "name", "about", "inputs", "resources", "nodes", "flow", "outputs", "limits", "deploy",
)  # fmt: skip
REQUIRED_TOP_KEYS = ("ragbraid", "name", "nodes", "outputs")
NOT_IN_FLOW_NAMES = "/%&><"
"""Characters that Prefect refuses in the name of a flow."""


def parse_flow(root: Node, file: str, report: Report) -> FlowSyntax | None:
    """Read the whole tree; None when its shape is too wrong to go on."""
    if not isinstance(root, MappingNode):
        report.error(
            "RB012", "a flow file is a mapping with the keys `ragbraid`, `name`, `nodes` and `outputs`", root.span
        )
        return None
    root = check_keys(root, TOP_KEYS, "a flow file", report)
    missing = [key for key in REQUIRED_TOP_KEYS if root.get(key) is None]
    for key in missing:
        report.error("RB011", f"the key `{key}` is missing", _start_of(root.span), _MISSING_HINTS[key])
    _check_version(root, report)
    name = _flow_name(root, report)
    about = read_text(root, "about", report) or ""
    nodes = parse_nodes(root.get("nodes"), report)
    arrows = parse_arrows_of(root.get("flow"), report)
    outputs = _parse_outputs(root.get("outputs"), report)
    inputs = _parse_inputs(root.get("inputs"), report)
    if nodes is None:
        return None
    return FlowSyntax(
        file=file,
        name=name,
        about=about,
        inputs=inputs or (),
        inputs_complete=inputs is not None,
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


def _check_version(root: MappingNode, report: Report) -> None:
    node = root.get("ragbraid")
    if node is None or (isinstance(node, ScalarNode) and type(node.value) is int and node.value == LANGUAGE_VERSION):
        return
    written = node.text if isinstance(node, ScalarNode) else "this"
    hint = f"write `ragbraid: {LANGUAGE_VERSION}`"
    report.error("RB013", f"`{written}` is not a version of the language that this ragbraid reads", node.span, hint)


def _flow_name(root: MappingNode, report: Report) -> str:
    name = read_text(root, "name", report) or ""
    odd = next((character for character in name if character in NOT_IN_FLOW_NAMES), None)
    node = root.get("name")
    if odd is not None and isinstance(node, ScalarNode):
        at = node.text.index(odd)
        hint = f"Prefect refuses {' '.join(NOT_IN_FLOW_NAMES)} in names of flows"
        report.error("RB014", f"the name of a flow cannot contain `{odd}`", subspan(node, at, at + 1), hint)
    return name


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
    if isinstance(node, SequenceNode):
        hint = "give each of them a name, such as `outputs: {answer: $generator, passages: $rerank}`"
    report.error("RB012", "`outputs` is one reference or a mapping of names to references", node.span, hint)
    return ()


def _parse_inputs(node: Node | None, report: Report) -> tuple[InputDecl, ...] | None:
    """Return the declarations; None when it is not known what they are."""
    if node is None:
        return ()
    if not isinstance(node, MappingNode):
        hint = "write `question: str`, or delete `inputs`" if _is_empty(node) else "write `question: str`"
        report.error("RB012", "`inputs` is a mapping of names to types", node.span, hint)
        return None
    return tuple(parse_declaration(entry, "an input", report) for entry in node.entries)


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
    if isinstance(value, MappingNode) and use is None:
        report.error(
            "RB011", f"the resource `{name.text}` has no `use`", entry.key_span, use_hint(name.text, value, "provider")
        )
        return None
    if not isinstance(value, MappingNode) or not isinstance(use, ScalarNode) or not isinstance(use.value, str):
        hint = f"write `{name.text}: {{use: family.provider, setting: value}}`"
        report.error("RB012", f"the resource `{name.text}` does not say what provides it", value.span, hint)
        return None
    settings = tuple(e for e in value.entries if e.key != "use")
    return ResourceDecl(name, use, settings, entry.key_span)


def _mapping_or_none(root: MappingNode, key: str, report: Report) -> MappingNode | None:
    node = root.get(key)
    if node is None or isinstance(node, MappingNode):
        return node
    hint = f"write `{key}: {{...}}`, or delete it" if _is_empty(node) else f"write `{key}: {{...}}`"
    report.error("RB012", f"`{key}` is a mapping", node.span, hint)
    return None


def _is_empty(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.value is None


def _start_of(span: SourceSpan) -> SourceSpan:
    return SourceSpan(span.file, span.line, span.column, span.line, span.column + 1)
