"""From what is written under a node to a value of the plan, with its static type."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from ragbraid.dsl.expressions import (
    EnvReference,
    Expression,
    ExpressionProblem,
    PlainText,
    Reference,
    Template,
    compile_expression,
    infer,
    names,
    parse_value,
)
from ragbraid.dsl.plan import Computed, Converted, Literally, Mapped, Sequenced, SlotRef, Value
from ragbraid.dsl.report import Report
from ragbraid.dsl.scope import POISON, Scope
from ragbraid.dsl.source_nodes import MappingNode, Node, ScalarNode, SequenceNode, subspan
from ragbraid.dsl.types import (
    Misfit,
    assignable,
    choices,
    describe,
    field_names,
    field_type,
    find_conversion,
    is_optional,
    item_type,
    locate,
    without_none,
)
from ragbraid.registry.conversions import Conversion
from ragbraid.registry.errors import SourceSpan
from ragbraid.registry.node import FilePath, is_url
from ragbraid.registry.suggest import did_you_mean


@dataclass(frozen=True, slots=True)
class Bound:
    """A value of the plan, its type (POISON when something in it is wrong) and the slots of this body that it reads."""

    value: Value
    type: Any
    needs: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Context:
    """What binding needs to know: the names in scope, the conversions, and where to report."""

    scope: Scope
    report: Report
    conversions: tuple[Conversion, ...]


WRONG = Bound(Literally(None), POISON)
"""Stands for a value whose mistake has been reported."""


def is_dynamic(node: Node) -> bool:
    """Whether anything in the node is a reference, an expression or a template."""
    if isinstance(node, ScalarNode):
        return isinstance(node.value, str) and not isinstance(parse_value(node.value), PlainText)
    if isinstance(node, SequenceNode):
        return any(is_dynamic(item) for item in node.items)
    return any(is_dynamic(entry.value) for entry in node.entries)


def bind_literal(
    node: Node, expected: Any, what: str, report: Report, conversions: tuple[Conversion, ...] = ()
) -> Bound:
    """Check a literal against a type, converting where a conversion is declared; RB201 when it does not fit."""
    if _is_none(node, expected):
        return Bound(Literally(None), expected)
    plain = _unescape(node)
    value, problem = locate(plain, expected)
    if problem is not None:
        conversion = find_conversion(type(plain), expected, conversions)
        if conversion is not None:
            return Bound(Literally(conversion.apply(plain)), conversion.target)
        report.error("RB201", f"{what} {problem.sentence}", _span_of(node, problem), _meant(plain, problem, expected))
        return WRONG
    if _is_file_path(expected) and isinstance(value, str) and not is_url(value):
        value = str((Path(node.span.file).parent / Path(value).expanduser()).absolute())
    return Bound(Literally(value), expected)


def _is_none(node: Node, expected: Any) -> bool:
    """Whether a plain `none` is the language's none: where the type allows none, and no literal of that text."""
    if not isinstance(node, ScalarNode) or not node.plain or node.value != "none" or not is_optional(expected):
        return False
    return "none" not in (choices(expected) or ())


def _span_of(node: Node, problem: Misfit) -> SourceSpan:
    """Return where the part of a value stands that does not fit."""
    span = node.span
    for part in problem.path:
        if isinstance(node, MappingNode) and (entry := node.entry(str(part))) is not None:
            node = entry.value
            span = entry.key_span if problem.on_key else node.span
        elif isinstance(node, SequenceNode) and isinstance(part, int) and part < len(node.items):
            node = node.items[part]
            span = node.span
    return span


def _meant(plain: Any, problem: Misfit, expected: Any) -> str | None:
    """Return the choice that was probably meant by a text that is none of them."""
    allowed = None if problem.path or not isinstance(plain, str) else choices(expected)
    return did_you_mean(plain, [choice for choice in allowed if isinstance(choice, str)]) if allowed else None


def bind_value(node: Node, expected: Any, what: str, context: Context) -> Bound:
    """Turn a YAML value into a value of the plan.

    `expected` types literals; the caller compares the type of everything dynamic with what the port takes. `what`
    begins the sentence of a finding ("`top_k` of `rerank`").
    """
    if not is_dynamic(node):
        return bind_literal(node, expected, what, context.report, context.conversions)
    if isinstance(node, ScalarNode):
        return bind_text(node, context)
    if isinstance(node, SequenceNode):
        inner = item_type(without_none(expected)) or Any
        items = [_bind_item(item, inner, what, context) for item in node.items]
        return _joined(Sequenced(tuple(item.value for item in items)), items, list[Any])
    return _bind_mapping(node, expected, what, context)


def fit(bound: Bound, expected: Any, conversions: tuple[Conversion, ...]) -> Bound | None:
    """Return the value as `expected` takes it, converted where a conversion is declared; None when it does not fit."""
    if bound.type is POISON or assignable(bound.type, expected):
        return bound
    conversion = find_conversion(bound.type, expected, conversions)
    if conversion is None:
        return None
    return Bound(Converted(bound.value, conversion), conversion.target, bound.needs)


def fit_collected(bound: Bound, item: Any, conversions: tuple[Conversion, ...]) -> Bound | None:
    """Return the value as a port takes it that collects `item`s: one of them, or a list whose items all join the others."""
    fitted = fit(bound, item, conversions)
    return bound if fitted is None and assignable(bound.type, list[item | None]) else fitted


def _bind_item(node: Node, expected: Any, what: str, context: Context) -> Bound:
    bound = bind_value(node, expected, what, context)
    fitted = fit(bound, expected, context.conversions)
    if fitted is None:
        message = f"{what} takes {describe(expected)} here, but this is {describe(bound.type)}"
        context.report.error("RB203", message, node.span)
        return WRONG
    return fitted


def bind_text(node: ScalarNode, context: Context) -> Bound:
    """Turn a reference, an expression or a template into a value of the plan."""
    text = str(node.value)
    parsed = parse_value(text)
    if isinstance(parsed, ExpressionProblem):
        if _names_something_wrong(text[parsed.start :], context.scope):
            return WRONG
        return _problems(node, (parsed,), context.report)
    if isinstance(parsed, EnvReference):
        hint = "bind it under `resources`, where it is read when the resource is opened and never written anywhere"
        context.report.error("RB404", f"`{text}` may only stand under `resources`", node.span, hint)
        return WRONG
    if isinstance(parsed, Reference):
        return _bind_reference(node, parsed, context)
    if isinstance(parsed, PlainText):
        return Bound(Literally(parsed.text), str)
    return bind_expression(node, parsed, context)


def _names_something_wrong(text: str, scope: Scope) -> bool:
    """Whether a text refers to something whose name was reported, such as `$my-node`."""
    reference = text.removeprefix("$").partition(".")[0].strip()
    found = scope.peek(reference)
    return found is not None and found[1].type is POISON


def bind_expression(
    node: ScalarNode,
    parsed: Expression | Template | Reference,
    context: Context,
    extra: Iterable[tuple[str, Any]] = (),
) -> Bound:
    """Turn a parsed expression into a computed value; `extra` names are typed here but filled by the runner."""
    own = dict(extra)
    reads: dict[str, SlotRef] = {}
    needs: set[int] = set()
    poisoned = False
    for use in names(parsed):
        found = None if use.root in own else context.scope.find(use.root)
        if found is None:
            continue
        depth, visible = found
        if visible.type is POISON:
            poisoned, own[use.root] = True, Any
        reads[use.root] = SlotRef(depth, visible.slot, (), use.root)
        if depth == 0:
            needs.add(visible.slot)
    types = context.scope.types()
    result, problems = infer(parsed, {**types, **own} if own else types)
    if problems:
        return _problems(node, problems, context.report)
    if isinstance(parsed, Reference):
        computable = parse_value(f"${{{str(node.value).strip()[1:]}}}")
        assert isinstance(computable, Expression)
        parsed = computable
    computed = Computed(str(node.value), tuple(reads.items()), compile_expression(parsed))
    return Bound(computed, POISON if poisoned else result, frozenset(needs))


def resolve_reference(
    root: str, path: Iterable[str | int], context: Context, place: Callable[[int], SourceSpan]
) -> Bound:
    """Look up a name and walk into its fields. `place(n)` is the span of the n-th part, 0 for the name itself."""
    path = tuple(path)
    scope, report = context.scope, context.report
    found = scope.find(root)
    if found is None and root in ("env", "secret"):
        shown = "${" + ".".join([root, *map(str, path)]) + "}"
        hint = "bind it under `resources`, where it is read when the resource is opened and never written anywhere"
        report.error("RB404", f"`{shown}` may only stand under `resources`", place(0), hint)
        return WRONG
    if found is None:
        known = [entry.name for entry in scope.visible()]
        hint = did_you_mean(root, known) or f"in scope are {_listed(known)}"
        report.error("RB103", f"nothing here is called `{root}`", place(0), hint)
        return WRONG
    depth, visible = found
    current = visible.type
    text = root
    for position, part in enumerate(path, start=1):
        if current is POISON:
            break
        if is_optional(current):
            hint = "test it with `when`, or give it a value with `${ ... | default(...) }`"
            report.error("RB308", f"`{text}` may be none here, so it has no `{part}`", place(position), hint)
            return WRONG
        inner = item_type(current) if isinstance(part, int) else field_type(current, part)
        if inner is None:
            return _unknown_part(text, current, part, place(position), report)
        current = inner
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    needs = frozenset({visible.slot}) if depth == 0 else frozenset()
    return Bound(SlotRef(depth, visible.slot, path, text), current, needs)


def _unknown_part(text: str, current: Any, part: str | int, place: SourceSpan, report: Report) -> Bound:
    if isinstance(part, int):
        report.error("RB104", f"`{text}` is {describe(current)}, which has no items", place)
        return WRONG
    known = field_names(current)
    hint = did_you_mean(part, known) or (f"it has {_listed(known)}" if known else "it has no fields")
    report.error("RB104", f"`{text}` is {describe(current)}, which has no `{part}`", place, hint)
    return WRONG


def _bind_reference(node: ScalarNode, parsed: Reference, context: Context) -> Bound:
    def place(position: int) -> SourceSpan:
        start, end = parsed.spans[position]
        return subspan(node, start, end)

    return resolve_reference(parsed.root, parsed.path, context, place)


def _bind_mapping(node: MappingNode, expected: Any, what: str, context: Context) -> Bound:
    base = without_none(expected)
    items = []
    for entry in node.entries:
        inner = field_type(base, entry.key) or item_type(base) or Any
        items.append((entry.key, _bind_item(entry.value, inner, what, context)))
    value = Mapped(tuple((key, item.value) for key, item in items))
    return _joined(value, [item for _, item in items], dict[str, Any])


def _joined(value: Value, parts: list[Bound], type_: Any) -> Bound:
    if any(part.type is POISON for part in parts):
        return WRONG
    needs = frozenset().union(*(part.needs for part in parts))
    return Bound(value, type_, needs)


def _problems(node: ScalarNode, problems: Iterable[ExpressionProblem], report: Report) -> Bound:
    for problem in problems:
        report.error(problem.code, problem.message, subspan(node, problem.start, problem.end), problem.hint)
    return WRONG


def _unescape(node: Node) -> Any:
    """Return the node as plain data, with `$$` read as a dollar sign."""
    if isinstance(node, ScalarNode):
        if not isinstance(node.value, str):
            return node.value
        parsed = parse_value(node.value)
        return parsed.text if isinstance(parsed, PlainText) else node.value
    if isinstance(node, SequenceNode):
        return [_unescape(item) for item in node.items]
    return {entry.key: _unescape(entry.value) for entry in node.entries}


def _is_file_path(expected: Any) -> bool:
    if get_origin(expected) is Annotated:
        base, *metadata = get_args(expected)
        return any(isinstance(item, FilePath) for item in metadata) or _is_file_path(base)
    return any(_is_file_path(arg) for arg in get_args(expected))


def _listed(known: Iterable[str]) -> str:
    shown = [f"`{name}`" for name in known]
    return ", ".join(shown[:12]) + (", ..." if len(shown) > 12 else "") if shown else "no names"
