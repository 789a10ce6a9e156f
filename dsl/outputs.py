"""What a flow gives back: references, expressions and templates under names."""

from __future__ import annotations

from typing import Any

from ragbraid.dsl.source_nodes import MappingNode, Node, ScalarNode
from ragbraid.dsl.syntax import OutputDecl
from ragbraid.dsl.values import WRONG, Bound, Context, bind_value, is_dynamic
from ragbraid.registry.suggest import nearest


def bind_output(decl: OutputDecl, context: Context) -> Bound:
    """Bind one output; RB012 where it refers to nothing, since a flow gives back what it computed."""
    what = f"the output `{decl.name.text}`" if decl.name.text else "the output"
    if is_dynamic(decl.value):
        return bind_value(decl.value, Any, what, context)
    hint = _hint(decl.value, context)
    context.report.error("RB012", f"{what} is a reference, such as `$generator`", decl.value.span, hint)
    return WRONG


def _hint(node: Node, context: Context) -> str | None:
    if isinstance(node, ScalarNode) and isinstance(node.value, str):
        root, dot, rest = node.value.strip().strip("{}").strip().partition(".")
        meant = nearest(root, [visible.name for visible in context.scope.visible()])
        return f"did you mean `${meant}{dot}{rest}`?" if meant else None
    return "delete it, or refer to a step" if not isinstance(node, MappingNode) else None
