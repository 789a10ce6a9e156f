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
from ragbraid.registry.suggest import nearest

LANGUAGE_VERSION = 1
TOP_KEYS = (
    "ragbraid", "name", "about", "inputs", "resources", "nodes", "flow", "outputs", "limits", "deploy",
)  # fmt: skip
REQUIRED_TOP_KEYS = ("ragbraid", "name", "nodes", "outputs")
BOUND_KEYS = ("ge", "gt", "le", "lt", "min_length", "max_length", "pattern", "choices")
INPUT_KEYS = ("type", "default", "about", *BOUND_KEYS)

WORDS_OF_EXPRESSIONS = frozenset(
    {"and", "or", "not", "in", "is", "if", "else", "true", "false", "none", "env", "secret", "out"}
)
"""Names that an expression could not refer to; `out` is a node's own output in its `ensure`."""
NOT_IN_FLOW_NAMES = "/%&><"
"""Characters that Prefect refuses in the name of a flow."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_NODE_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+(@\d+)?")
_PLAIN_NAME = re.compile(r"\s*[A-Za-z]\w*\s*")


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
    about = _text(root, "about", report) or ""
    nodes = _parse_nodes(root.get("nodes"), report)
    arrows = _parse_arrows(root.get("flow"), report)
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


_OTHER_WORDS = {
    "min": "ge", "minimum": "ge", "max": "le", "maximum": "le", "enum": "choices", "options": "choices",
    "description": "about", "doc": "about", "help": "about", "steps": "nodes", "edges": "flow", "arrows": "flow",
    "version": "ragbraid", "tz": "timezone", "max_attempts": "attempts", "pool": "work_pool", "title": "name",
}  # fmt: skip
"""What other tools call our keys."""


def check_keys(mapping: MappingNode, known: Iterable[str], where: str, report: Report) -> MappingNode:
    """Report every key that is none of `known`, with the nearest one as a hint.

    Returns the mapping without unknown keys; one that is only misspelt stands under its right name, so that what
    depends on it is not reported as missing.
    """
    known = tuple(known)
    entries = {entry.key: entry for entry in mapping.entries if entry.key in known}
    for entry in mapping.entries:
        if entry.key in known:
            continue
        meant = nearest(entry.key, known)
        if meant is None and _OTHER_WORDS.get(entry.key) in known:
            meant = _OTHER_WORDS[entry.key]
        hint = f"did you mean `{meant}`?" if meant else f"known keys are {', '.join(known)}"
        report.error("RB010", f"`{entry.key}` is not a key of {where}", entry.key_span, hint)
        if meant is not None:
            entries.setdefault(meant, Entry(meant, entry.key_span, entry.value))
    return MappingNode(tuple(entries.values()), mapping.span)


def is_name(text: str) -> bool:
    """Whether a text is well formed as a name."""
    return _NAME.fullmatch(text) is not None


def check_name(name: Named, what: str, report: Report) -> bool:
    """Report a name that could not be referred to; returns whether it is well formed."""
    if not is_name(name.text):
        hint = "names start with a letter from a to z and go on with letters, digits and `_`"
        report.error("RB014", f"`{name.text}` cannot be the name of {what}", name.span, hint)
        return False
    if name.text in WORDS_OF_EXPRESSIONS:
        message = f"`{name.text}` cannot be the name of {what}: it means something else in expressions"
        report.error("RB014", message, name.span, "choose another name")
        return False
    return True


def _check_version(root: MappingNode, report: Report) -> None:
    node = root.get("ragbraid")
    if node is None or (isinstance(node, ScalarNode) and type(node.value) is int and node.value == LANGUAGE_VERSION):
        return
    written = node.text if isinstance(node, ScalarNode) else "this"
    hint = f"write `ragbraid: {LANGUAGE_VERSION}`"
    report.error("RB013", f"`{written}` is not a version of the language that this ragbraid reads", node.span, hint)


def _flow_name(root: MappingNode, report: Report) -> str:
    name = _text(root, "name", report) or ""
    odd = next((character for character in name if character in NOT_IN_FLOW_NAMES), None)
    node = root.get("name")
    if odd is not None and isinstance(node, ScalarNode):
        at = node.text.index(odd)
        hint = f"Prefect refuses {' '.join(NOT_IN_FLOW_NAMES)} in names of flows"
        report.error("RB014", f"the name of a flow cannot contain `{odd}`", subspan(node, at, at + 1), hint)
    return name


def _parse_nodes(node: Node | None, report: Report) -> tuple[NodeDecl, ...] | None:
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
    block = next((e for e in value.entries if e.key in BLOCK_KEYS), None)
    if block is not None:
        hint = "blocks (`loop`, `map`, `switch`, `gate`) come with the next version of the language"
        report.error("RB015", f"`{block.key}` is not supported by this version of ragbraid", block.key_span, hint)
        return NodeDecl(name, None, (), {}, "", entry.key_span)
    use = value.get("use")
    if use is None:
        report.error("RB011", f"`{name.text}` has no `use`", entry.key_span, _use_hint(name.text, value, "node"))
        return NodeDecl(name, None, (), {}, "", entry.key_span)
    if not isinstance(use, ScalarNode) or not isinstance(use.value, str):
        report.error("RB012", "`use` names a node, such as `fuse.rrf`", use.span)
        return NodeDecl(name, None, (), {}, "", entry.key_span)
    reserved = {e.key: e for e in value.entries if e.key in RESERVED_KEYS}
    parameters = tuple(e for e in value.entries if e.key not in RESERVED_KEYS)
    about = _text(value, "about", report) or ""
    return NodeDecl(name, use, parameters, reserved, about, entry.key_span)


def _use_hint(name: str, value: MappingNode, what: str) -> str:
    """Return how the node would be written right, as far as one can tell what was meant."""
    for entry in value.entries:
        if "." in entry.key and len(value.entries) == 1:
            return f"write `{name}: {{use: {entry.key}, ...}}` with the settings beside `use`"
        if isinstance(entry.value, ScalarNode) and _NODE_NAME.fullmatch(entry.value.text):
            return f"write `use: {entry.value.text}` instead of `{entry.key}: {entry.value.text}`"
    return f"write `{name}: {{use: family.{what}, ...}}`"


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
    return tuple(_parse_input(entry, report) for entry in node.entries)


def _parse_input(entry: Entry, report: Report) -> InputDecl:
    name = Named(entry.key, entry.key_span)
    unknown = InputDecl(name, None, None, {}, "")
    if not check_name(name, "an input", report):
        return unknown
    value = entry.value
    if isinstance(value, ScalarNode) and isinstance(value.value, str):
        return _short_declaration(name, value, report)
    if not isinstance(value, MappingNode):
        hint = f"write `{name.text}: str` or `{name.text}: {{type: int, default: 5}}`"
        report.error("RB012", f"the input `{name.text}` has no type", value.span, hint)
        return unknown
    value = check_keys(value, INPUT_KEYS, "an input", report)
    type_node = value.get("type")
    if type_node is None:
        report.error("RB011", f"the input `{name.text}` has no `type`", entry.key_span, "write `type: str`")
        return unknown
    if not isinstance(type_node, ScalarNode) or not isinstance(type_node.value, str):
        hint = 'a type with brackets is quoted here: `type: "list[str]"`'
        report.error("RB012", "`type` is the name of a type", type_node.span, hint)
        return unknown
    bounds = {e.key: e.value for e in value.entries if e.key in BOUND_KEYS}
    about = _text(value, "about", report) or ""
    return InputDecl(name, Named(type_node.value, type_node.span), value.get("default"), bounds, about)


def _short_declaration(name: Named, value: ScalarNode, report: Report) -> InputDecl:
    type_text, default_text = split_declaration(value.text)
    start = value.text.index(type_text)
    type_name = Named(type_text, subspan(value, start, start + len(type_text)))
    if default_text is None:
        return InputDecl(name, type_name, None, {}, "")
    begin = len(value.text) - len(default_text.lstrip())
    if not default_text.strip():
        hint = f"write `{name.text}: {type_text} = VALUE`, or delete the `=`"
        at = value.text.rindex("=", 0, max(begin, 1))
        report.error("RB011", "a value is missing after the `=`", subspan(value, at, at + 1), hint)
        return InputDecl(name, None, None, {}, "")
    default, findings = read_inline(value, begin)
    report.extend(findings)
    return InputDecl(name, None if findings else type_name, default, {}, "")


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
            "RB011", f"the resource `{name.text}` has no `use`", entry.key_span, _use_hint(name.text, value, "provider")
        )
        return None
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


def _mapping_or_none(root: MappingNode, key: str, report: Report) -> MappingNode | None:
    node = root.get(key)
    if node is None or isinstance(node, MappingNode):
        return node
    hint = f"write `{key}: {{...}}`, or delete it" if _is_empty(node) else f"write `{key}: {{...}}`"
    report.error("RB012", f"`{key}` is a mapping", node.span, hint)
    return None


def _is_empty(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.value is None


def _text(mapping: MappingNode, key: str, report: Report) -> str | None:
    node = mapping.get(key)
    if node is None:
        return None
    if isinstance(node, ScalarNode) and isinstance(node.value, str) and node.value.strip():
        return node.value
    report.error("RB012", f"`{key}` is a text", node.span, quote_hint(node))
    return None


def quote_hint(node: Node) -> str | None:
    """Return how a value that YAML reads as a number, a date or a truth value is written as text."""
    if isinstance(node, ScalarNode) and node.value is not None and not isinstance(node.value, str):
        return f'write "{node.text}" with quotes'
    return None


def _start_of(span: SourceSpan) -> SourceSpan:
    return SourceSpan(span.file, span.line, span.column, span.line, span.column + 1)
