"""Conditions: references and expressions that are true or false."""

from __future__ import annotations

from typing import Any

from ragbraid.dsl.expressions import Expression, ExpressionProblem, Reference, names, parse_value
from ragbraid.dsl.plan import Computed, Literally
from ragbraid.dsl.scope import POISON
from ragbraid.dsl.source_nodes import Node, ScalarNode, subspan
from ragbraid.dsl.types import assignable, describe
from ragbraid.dsl.values import Bound, Context, bind_expression, bind_text


def bind_condition(node: Node, what: str, hint: str, context: Context, code: str) -> Bound:
    """Bind a condition; `code` is reported where it is none. `what` names it in sentences, the hint shows one."""
    if not isinstance(node, ScalarNode) or not isinstance(node.value, str):
        context.report.error(code, f"{what} is a condition", node.span, hint)
        return Bound(Literally(value=True), POISON)
    bound = bind_text(node, context)
    if bound.type is not POISON and not assignable(bound.type, bool):
        context.report.error(code, f"{what} is true or false, but this is {describe(bound.type)}", node.span, hint)
    return bound


def bind_judgement(
    node: Node, key: str, out: Any, context: Context, *, whose: str, code: str, blind_code: str
) -> Computed | None:
    """Bind a condition over `out`, the output of a node or a block; None where it is wrong.

    Args:
        node: what is written.
        key: the key that it is written under: `ensure`, `enough`.
        out: the type of the output, or POISON.
        context: the names in scope and where to report.
        whose: whose output `out` is, for the sentence.
        code: reported where it is not true or false.
        blind_code: reported where it does not look at `out`.
    """
    hint = f"write a condition over `out`, such as `{key}: ${{ out | length >= 3 }}`"
    report = context.report
    parsed = parse_value(node.value) if isinstance(node, ScalarNode) and isinstance(node.value, str) else None
    if not isinstance(node, ScalarNode) or not isinstance(parsed, Expression | Reference | ExpressionProblem):
        report.error(code, f"`{key}` is a condition over `out`", node.span, hint)
        return None
    if isinstance(parsed, ExpressionProblem):
        report.error(parsed.code, parsed.message, subspan(node, parsed.start, parsed.end), parsed.hint)
        return None
    if all(use.root != "out" for use in names(parsed)):
        known = [use for use in names(parsed) if context.scope.find(use.root) is not None]
        if len(known) == len(names(parsed)):
            report.error(blind_code, f"this `{key}` does not look at `out`, the output of {whose}", node.span, hint)
            return None
    bound = bind_expression(node, parsed, context, extra=[("out", Any if out is POISON else out)])
    if bound.type is not POISON and not assignable(bound.type, bool):
        report.error(code, f"`{key}` is true or false, but this is {describe(bound.type)}", node.span, hint)
    return bound.value if isinstance(bound.value, Computed) else None
