"""What is allowed but probably a mistake, and names that clash."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ragbraid.dsl.draft import Draft
from ragbraid.dsl.plan import Literally
from ragbraid.dsl.report import Report
from ragbraid.dsl.scope import POISON, Scope, Visible
from ragbraid.dsl.syntax import InputDecl
from ragbraid.registry.errors import Label


def report_name_clashes(drafts: Iterable[Draft], names: Mapping[str, Visible], report: Report) -> None:
    """RB210 for a node that bears the name of an input."""
    for draft in drafts:
        other = names.get(draft.name)
        if other is not None:
            labels = [Label(other.span, "the input")]
            message = f"the node `{draft.name}` has the name of an input"
            report.error("RB210", message, draft.span, "rename one of the two", labels)
            draft.output = POISON


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
            report.warning("RB904", message, fill.span, f"the lists are {known}")
