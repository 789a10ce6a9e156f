"""Looking up nodes, and binding what is written under them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ragbraid.dsl.calls import contract_of_flow
from ragbraid.dsl.draft import Draft, Fill
from ragbraid.dsl.expressions import ExpressionProblem, names, parse_value
from ragbraid.dsl.known import Known
from ragbraid.dsl.plan import Mapped, Plan
from ragbraid.dsl.report import Report
from ragbraid.dsl.scope import POISON
from ragbraid.dsl.source_nodes import Entry, MappingNode, Node, ScalarNode, SequenceNode
from ragbraid.dsl.syntax import NodeDecl
from ragbraid.dsl.types import describe, optional, without_none
from ragbraid.dsl.values import WRONG, Bound, Context, bind_value, fit, fit_collected, is_dynamic
from ragbraid.registry.catalogue import Catalogue
from ragbraid.registry.node import RESERVED_KEYS, NodeContract, Port, ResourceNeed
from ragbraid.registry.suggest import did_you_mean, nearest


def draft_nodes(decls: Iterable[NodeDecl], first_slot: int, known: Known, report: Report) -> list[Draft]:
    """Look up every node; one that is unknown is reported and poisons what follows from it."""
    return [draft_node(decl, slot, known, report) for slot, decl in enumerate(decls, start=first_slot)]


def draft_node(decl: NodeDecl, slot: int, known: Known, report: Report) -> Draft:
    """Begin a draft; its output may be none where the step may be skipped. A block's output is found out later."""
    contract, flow = find_used(decl, known, report)
    draft = Draft(decl, slot, contract, flow=flow, suspect=contract is None and decl.block is None)
    if contract is not None:
        draft.output = as_skippable(contract.output, decl)
    return draft


def as_skippable(output: Any, decl: NodeDecl) -> Any:
    """Return the type of a step's output: none as well, where the step may be skipped."""
    return optional(output) if output is not POISON and _may_be_skipped(decl) else output


def find_used(decl: NodeDecl, known: Known, report: Report) -> tuple[NodeContract | None, Plan | None]:
    """Return the node that `use` names, and the flow behind it where it is one; RB101 when there is none."""
    if decl.use is None:
        return None, None
    reference = str(decl.use.value)
    if not is_flow_file(reference):
        contract = None if reference.endswith("@") else known.catalogue.find_node(reference)
        if contract is not None:
            return contract, None
        if known.catalogue.find_flow(reference) is None:
            _report_unknown_node(reference, decl.use, known.catalogue, report)
            return None, None
    flow = known.flows.find(decl.use, report)
    return (None, None) if flow is None else (contract_of_flow(flow), flow)


def is_flow_file(reference: str) -> bool:
    """Whether `use` names a flow by its file."""
    return reference.startswith(("./", "../", "/")) or reference.endswith((".yaml", ".yml"))


def _report_unknown_node(reference: str, use: ScalarNode, catalogue: Catalogue, report: Report) -> None:
    name, _, version = reference.partition("@")
    newest = catalogue.find_node(name)
    if newest is None:
        report.error("RB101", f"no node is called `{reference}`", use.span, _node_hint(name, catalogue))
        return
    hint = f"the newest version is `{newest.reference}`"
    message = f"`{name}` has no version `{version}`" if version else "a version is missing after the `@`"
    report.error("RB101", message, use.span, hint)


def _node_hint(name: str, catalogue: Catalogue) -> str:
    known = [node.name for node in catalogue.nodes()]
    found = did_you_mean(name, [*known, *catalogue.flows()])
    if found is None:
        # `dense` for `retrieve.dense`: the family was left out.
        in_families = [other for other in known if other.rpartition(".")[2] == name.lower()]
        found = f"did you mean {' or '.join(f'`{other}`' for other in in_families[:3])}?" if in_families else None
    return found or "`ragbraid nodes` lists what there is"


def bind_written(draft: Draft, context: Context, resources: Mapping[str, str | None]) -> None:
    """Fill the ports and resources that are written under the node.

    Args:
        draft: the node in the making.
        context: names in scope and where to report.
        resources: every resource that may be named, with its role where that is known.
    """
    if draft.contract is None:
        for entry in draft.decl.parameters:
            touch(entry.value, context)
        return
    needs = {need.name: need for need in draft.contract.resources}
    written = {entry.key for entry in draft.decl.parameters}
    for entry in draft.decl.parameters:
        name = entry.key
        if name not in needs and draft.contract.port(name) is None:
            name = _report_unknown(draft, entry, written, context)
        port = draft.contract.port(name)
        if port is not None:
            draft.fills[port.name] = _written_fill(draft, port, entry, context)
        elif name in needs:
            _bind_resource(draft, needs[name], entry, context.report, resources)
    for need in draft.contract.resources:
        draft.resources.setdefault(need.name, need.name)


def _written_fill(draft: Draft, port: Port, entry: Entry, context: Context) -> Fill:
    what = f"`{port.name}` of {draft.shown}"
    bound = bind_port(port, entry.value, what, context)
    draft.suspect = draft.suspect or bound.type is POISON
    return Fill(bound, "written", _shown(entry.value), entry.value.span)


def bind_port(port: Port, node: Node, what: str, context: Context) -> Bound:
    """Bind a YAML value to a port, converting where a conversion is declared; RB203 or RB308 where it does not fit."""
    if port.fan_in and isinstance(node, SequenceNode | ScalarNode):
        keyed = _keyed(node, what, context)
        if keyed is None:
            return WRONG
        node = keyed
    if port.fan_in and isinstance(node, MappingNode) and is_dynamic(node):
        return _bind_collected(port, node, what, context)
    expected = dict[str, port.item] if port.fan_in else port.type  # type: ignore[name-defined]
    return bind_expected(node, expected, what, context)


def _bind_collected(port: Port, node: MappingNode, what: str, context: Context) -> Bound:
    """Bind what is given by hand to a port that collects."""
    parts: dict[str, Bound] = {}
    for entry in node.entries:
        bound = bind_value(entry.value, port.item, what, context)
        fitted = fit_collected(bound, port.item, context.conversions)
        if fitted is None:
            message = f"{what} takes {describe(port.item)} here, but this is {describe(bound.type)}"
            context.report.error("RB203", message, entry.value.span)
            return WRONG
        parts[entry.key] = fitted
    if any(part.type is POISON for part in parts.values()):
        return WRONG
    needs = frozenset().union(*(part.needs for part in parts.values()))
    value = Mapped(tuple((key, part.value) for key, part in parts.items()))
    return Bound(value, dict[str, port.item], needs)  # type: ignore[name-defined]


def bind_expected(node: Node, expected: Any, what: str, context: Context, code: str = "RB203") -> Bound:
    """Bind a YAML value that must be of a type, converting where a conversion is declared; `code` where it is not."""
    bound = bind_value(node, expected, what, context)
    fitted = fit(bound, expected, context.conversions)
    if fitted is not None:
        return fitted
    if fit(Bound(bound.value, without_none(bound.type)), expected, context.conversions) is not None:
        message = f"{what} always needs {describe(expected)}, but `{_shown(node)}` may be skipped"
        context.report.error("RB308", message, node.span, "give the value a default, or skip this node too with `when`")
    else:
        message = f"{what} takes {describe(expected)}, but this is {describe(bound.type)}"
        hint = None
        if isinstance(node, MappingNode):
            hint = "a mapping with references in it stays a mapping; let a node make the value"
        context.report.error(code, message, node.span, hint)
    return WRONG


def _keyed(node: SequenceNode | ScalarNode, what: str, context: Context) -> Node | None:
    """Read `lists: [$a, $b]` or `lists: $a` as the mapping that a fan-in port takes, keyed by the names referred to."""
    items = node.items if isinstance(node, SequenceNode) else (node,)
    entries: dict[str, Entry] = {}
    for position, item in enumerate(items):
        if not is_dynamic(item):
            hint = "write `[$first, $second]`, or `{name: $first}` to name them otherwise"
            context.report.error("RB201", f"{what} takes references to steps", item.span, hint)
            return None
        key = (item.text.lstrip("$").strip() if isinstance(item, ScalarNode) else "") or str(position)
        if key in entries:
            context.report.error("RB208", f"`${key}` is given to {what} twice", item.span, "delete one of the two")
            return None
        entries[key] = Entry(key, item.span, item)
    return MappingNode(tuple(entries.values()), node.span)


def _bind_resource(
    draft: Draft, need: ResourceNeed, entry: Entry, report: Report, known: Mapping[str, str | None]
) -> None:
    value = entry.value
    if not isinstance(value, ScalarNode) or not isinstance(value.value, str):
        hint = f"write `{need.name}: {need.role}`, or declare another one under `resources:`"
        report.error("RB012", f"`{need.name}` of {draft.shown} names a resource", value.span, hint)
        return
    if value.value not in known:
        hint = did_you_mean(value.value, known) or "declare it under `resources:`"
        if value.value.startswith("$"):
            hint = f"write `{value.value[1:]}`: names of resources are written without `$`"
        report.error("RB106", f"no resource is called `{value.value}`", value.span, hint)
        return
    role = known[value.value]
    if role is not None and role != need.role:
        message = f"`{need.name}` of {draft.shown} takes a resource of the role `{need.role}`"
        report.error("RB203", f"{message}, but `{value.value}` has the role `{role}`", value.span)
        return
    draft.resources[need.name] = value.value


def _report_unknown(draft: Draft, entry: Entry, written: Collection[str], context: Context) -> str:
    """Report a parameter that the node does not have; returns the one that was meant, where one can tell."""
    assert draft.contract is not None
    known = [port.name for port in draft.contract.ports] + [need.name for need in draft.contract.resources]
    meant = nearest(entry.key, known)
    reserved = _RESERVED_MEANT.get(entry.key) or nearest(entry.key, RESERVED_KEYS)
    if meant is not None:
        hint = f"did you mean `{meant}`?"
    elif entry.key in _GROUPS:
        hint = "write the parameters beside `use`"
    elif reserved is not None:
        hint = f"did you mean `{reserved}`?"
    else:
        hint = f"it has {', '.join(f'`{name}`' for name in known)}"
    message = f"`{draft.contract.name}` has no parameter `{entry.key}`"
    context.report.error("RB102", message, entry.key_span, hint)
    # What is written here may belong to any port, so none of them is called open.
    draft.suspect = True
    if meant is None or meant in written:
        touch(entry.value, context)
        return ""
    return meant


_GROUPS = frozenset({"params", "parameters", "settings", "config", "args", "arguments", "with", "options", "inputs"})
_RESERVED_MEANT = {"if": "when", "condition": "when", "retries": "retry", "attempts": "retry", "description": "about"}


def touch(node: Node, context: Context) -> None:
    """Count the names in a value that cannot be bound as used."""
    if isinstance(node, ScalarNode):
        parsed = parse_value(node.value) if isinstance(node.value, str) else None
        if parsed is not None and not isinstance(parsed, ExpressionProblem):
            for use in names(parsed):
                context.scope.find(use.root)
        return
    for item in node.items if isinstance(node, SequenceNode) else [entry.value for entry in node.entries]:
        touch(item, context)


def _may_be_skipped(decl: NodeDecl) -> bool:
    on_error = decl.reserved.get("on_error")
    skips = on_error is not None and isinstance(on_error.value, ScalarNode) and on_error.value.value == "skip"
    return skips or "when" in decl.reserved


def _shown(node: Node) -> str:
    if isinstance(node, ScalarNode):
        return node.text
    return "[...]" if isinstance(node, SequenceNode) else "{...}"
