"""Looking up nodes, and binding what is written under them."""

from __future__ import annotations

from collections.abc import Iterable

from ragbraid.dsl.draft import Draft, Fill
from ragbraid.dsl.report import Report
from ragbraid.dsl.scope import POISON
from ragbraid.dsl.source_nodes import Entry, MappingNode, Node, ScalarNode, SequenceNode
from ragbraid.dsl.syntax import NodeDecl
from ragbraid.dsl.types import describe, optional, without_none
from ragbraid.dsl.values import WRONG, Bound, Context, bind_value, fit, is_dynamic
from ragbraid.registry.catalogue import Catalogue
from ragbraid.registry.node import NodeContract, Port, ResourceNeed
from ragbraid.registry.suggest import did_you_mean


def draft_nodes(decls: Iterable[NodeDecl], first_slot: int, catalogue: Catalogue, report: Report) -> list[Draft]:
    """Look up every node; one that is unknown is reported and poisons what follows from it."""
    drafts = []
    for slot, decl in enumerate(decls, start=first_slot):
        contract = find_contract(decl, catalogue, report)
        drafts.append(draft_node(decl, slot, contract))
    return drafts


def draft_node(decl: NodeDecl, slot: int, contract: NodeContract | None) -> Draft:
    """Begin a draft; its output may be none where the step may be skipped."""
    draft = Draft(decl, slot, contract, suspect=contract is None)
    if contract is not None:
        draft.output = optional(contract.output) if _may_be_skipped(decl) else contract.output
    return draft


def find_contract(decl: NodeDecl, catalogue: Catalogue, report: Report) -> NodeContract | None:
    """Return the node that `use` names; RB101 when there is none."""
    if decl.use is None:
        return None
    reference = str(decl.use.value)
    if reference.startswith(("./", "../", "/")) or reference.endswith((".yaml", ".yml")):
        hint = "flows as nodes come with the next version of the language"
        report.error("RB015", f"using the flow `{reference}` as a node is not supported yet", decl.use.span, hint)
        return None
    contract = catalogue.find_node(reference)
    if contract is not None:
        return contract
    name, _, version = reference.partition("@")
    newest = catalogue.find_node(name)
    if newest is not None:
        hint = f"the newest version is `{newest.reference}`"
        report.error("RB101", f"`{name}` has no version {version!r}", decl.use.span, hint)
        return None
    hint = did_you_mean(name, (node.name for node in catalogue.nodes())) or "`ragbraid nodes` lists what there is"
    report.error("RB101", f"no node is called `{reference}`", decl.use.span, hint)
    return None


def bind_written(draft: Draft, context: Context, resources: Iterable[str]) -> None:
    """Fill the ports and resources that are written under the node."""
    if draft.contract is None:
        return
    needs = {need.name: need for need in draft.contract.resources}
    for entry in draft.decl.parameters:
        port = draft.contract.port(entry.key)
        if port is not None:
            draft.fills[port.name] = _written_fill(draft, port, entry, context)
        elif entry.key in needs:
            _bind_resource(draft, needs[entry.key], entry, context.report, resources)
        else:
            _report_unknown(draft, entry, context.report)
    for need in draft.contract.resources:
        draft.resources.setdefault(need.name, need.name)


def _written_fill(draft: Draft, port: Port, entry: Entry, context: Context) -> Fill:
    what = f"`{port.name}` of `{draft.name}`"
    bound = bind_port(port, entry.value, what, context)
    draft.suspect = draft.suspect or bound.type is POISON
    return Fill(bound, "written", _shown(entry.value), entry.value.span)


def bind_port(port: Port, node: Node, what: str, context: Context) -> Bound:
    """Bind a YAML value to a port, converting where a conversion is declared; RB203 or RB308 where it does not fit."""
    if port.fan_in and isinstance(node, SequenceNode | ScalarNode) and is_dynamic(node):
        node = _keyed(node)
    expected = dict[str, port.item] if port.fan_in else port.type  # type: ignore[name-defined]
    bound = bind_value(node, expected, what, context)
    fitted = fit(bound, expected, context.conversions)
    if fitted is not None:
        return fitted
    if fit(Bound(bound.value, without_none(bound.type)), expected, context.conversions) is not None:
        message = f"{what} always needs {describe(expected)}, but `{_shown(node)}` may be skipped"
        context.report.error("RB308", message, node.span, "give the value a default, or skip this node too with `when`")
    else:
        message = f"{what} takes {describe(expected)}, but this is {describe(bound.type)}"
        context.report.error("RB203", message, node.span)
    return WRONG


def _keyed(node: SequenceNode | ScalarNode) -> Node:
    """Read `lists: [$a, $b]` or `lists: $a` as the mapping that a fan-in port takes, keyed by the names referred to."""
    items = node.items if isinstance(node, SequenceNode) else (node,)
    entries = tuple(Entry(_key_of(item, position), item.span, item) for position, item in enumerate(items))
    return MappingNode(entries, node.span)


def _key_of(node: Node, position: int) -> str:
    text = node.text if isinstance(node, ScalarNode) else ""
    return text.lstrip("$").strip() or str(position)


def _bind_resource(draft: Draft, need: ResourceNeed, entry: Entry, report: Report, known: Iterable[str]) -> None:
    value = entry.value
    if not isinstance(value, ScalarNode) or not isinstance(value.value, str):
        report.error("RB012", f"`{need.name}` of `{draft.name}` names a resource", value.span)
        return
    known = tuple(known)
    if value.value not in known:
        hint = did_you_mean(value.value, known) or "declare it under `resources:`"
        report.error("RB106", f"no resource is called `{value.value}`", value.span, hint)
        return
    draft.resources[need.name] = value.value


def _report_unknown(draft: Draft, entry: Entry, report: Report) -> None:
    assert draft.contract is not None
    known = [port.name for port in draft.contract.ports] + [need.name for need in draft.contract.resources]
    hint = did_you_mean(entry.key, known) or f"it has {', '.join(f'`{name}`' for name in known)}"
    report.error("RB102", f"`{draft.contract.name}` has no parameter `{entry.key}`", entry.key_span, hint)


def _may_be_skipped(decl: NodeDecl) -> bool:
    on_error = decl.reserved.get("on_error")
    skips = on_error is not None and isinstance(on_error.value, ScalarNode) and on_error.value.value == "skip"
    return skips or "when" in decl.reserved


def _shown(node: Node) -> str:
    if isinstance(node, ScalarNode):
        return node.text
    return "[...]" if isinstance(node, SequenceNode) else "{...}"
