"""What is allowed but probably a mistake, and names that clash."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping

from ragbraid.dsl.draft import Draft
from ragbraid.dsl.plan import Literally
from ragbraid.dsl.report import Report
from ragbraid.dsl.scope import POISON, Scope, Visible
from ragbraid.dsl.source_nodes import MappingNode, ScalarNode
from ragbraid.dsl.syntax import InputDecl, ResourceDecl
from ragbraid.dsl.values import Context
from ragbraid.registry.errors import Label, SourceSpan
from ragbraid.registry.node import Port
from ragbraid.registry.suggest import did_you_mean


def report_name_clashes(drafts: Iterable[Draft], names: Mapping[str, Visible], report: Report) -> None:
    """RB210 for a node that bears the name of an input, a state or a loop variable of the same body."""
    for draft in drafts:
        other = names.get(draft.name)
        if other is not None:
            word = other.shown.partition(" `")[0]
            labels = [Label(other.span, word)]
            message = f"the node `{draft.name}` has the name of {_A[other.kind]}"
            report.error("RB210", message, draft.span, "rename one of the two", labels)
            draft.output = POISON


_A = {"input": "an input", "state": "a state", "variable": "a loop variable"}


def report_hidden_names(inner: Iterable[Visible], around: Scope, report: Report) -> None:
    """RB309 for a name inside a block that hides one of the scope around it."""
    for name in inner:
        found = around.peek(name.name)
        if found is not None:
            hint = "rename one of the two, so that it is clear which of them is meant"
            message = f"`{name.name}` hides {found[1].shown} around this block"
            report.warning("RB309", message, name.span, hint)


def report_unused_inputs(decls: Iterable[InputDecl], scope: Scope, report: Report) -> None:
    """RB901 for an input that nothing refers to."""
    for decl in decls:
        if decl.name.text not in scope.used:
            hint = "remove it, or refer to it as `$" + decl.name.text + "`"
            report.warning("RB901", f"nothing uses the input `{decl.name.text}`", decl.name.span, hint)


def report_unknown_weights(draft: Draft, report: Report) -> None:
    """RB904 for a weight of a list that never arrives."""
    fill = draft.fills.get("weights")
    if fill is None or fill.origin != "written" or not draft.fans or not isinstance(fill.bound.value, Literally):
        return
    arriving = {key for fan in draft.fans.values() for key in fan}
    weights = fill.bound.value.value
    for name in weights if isinstance(weights, dict) else ():
        if name not in arriving:
            known = ", ".join(f"`{key}`" for key in sorted(arriving))
            message = f"`{draft.name}` has a weight for `{name}`, but no list of that name arrives"
            hint = did_you_mean(name, arriving) or f"the lists are {known}"
            report.warning("RB904", message, _key_span(draft, "weights", name) or fill.span, hint)


def _key_span(draft: Draft, parameter: str, key: str) -> SourceSpan | None:
    value = next((entry.value for entry in draft.decl.parameters if entry.key == parameter), None)
    entry = value.entry(key) if isinstance(value, MappingNode) else None
    return None if entry is None else entry.key_span


def report_unused_resources(decls: Iterable[ResourceDecl], used: Container[str], report: Report) -> None:
    """RB902 for a resource that no step asks for."""
    for decl in decls:
        name = decl.name.text
        if name not in used:
            hint = f"remove it, or name it under a node, such as `kb: {name}`"
            report.warning("RB902", f"nothing uses the resource `{name}`", decl.name.span, hint)


def report_texts_like_references(draft: Draft, context: Context) -> None:
    """RB907 for a text under a node that looks like a reference whose dollar sign was forgotten."""
    if draft.contract is None:
        return
    for entry in draft.decl.parameters:
        port = draft.contract.port(entry.key)
        fill = draft.fills.get(entry.key)
        if port is None or fill is None or fill.bound.type is POISON or not isinstance(entry.value, ScalarNode):
            continue
        meant = _meant_reference(entry.value, port, context)
        if meant is not None:
            message = f"`{port.name}` of `{draft.name}` is the text `{entry.value.text}`"
            context.report.warning("RB907", message, entry.value.span, f"did you mean `{meant}`?")


def _meant_reference(node: ScalarNode, port: Port, context: Context) -> str | None:
    text = node.text.strip()
    if not isinstance(node.value, str) or "$" in text:
        return None
    bare = _BARE_REFERENCE.fullmatch(text)
    if bare is not None:
        plain = text == bare["path"]
        known = context.scope.peek(bare["root"]) is not None
        # A setting may well be a word that a node happens to be called.
        return f"${bare['path']}" if known and not (plain and port.kind == "setting") else None
    braces = _JINJA_BRACES.fullmatch(text)
    return f"${{ {braces[1].strip()} }}" if braces else None


_BARE_REFERENCE = re.compile(r"(?:\{\s*|\{\{\s*|\uff04)?(?P<path>(?P<root>[A-Za-z]\w*)(?:\.\w+)*)(?:\s*\}){0,2}")
_JINJA_BRACES = re.compile(r"\{\{(.*)\}\}")
