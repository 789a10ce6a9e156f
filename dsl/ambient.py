"""Ports that nothing written and no arrow fills: names in scope, defaults, and what is still missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ragbraid.dsl.draft import Draft, Fill
from ragbraid.dsl.plan import Literally, SlotRef
from ragbraid.dsl.scope import POISON, Scope, Visible
from ragbraid.dsl.types import describe, field_type
from ragbraid.dsl.values import Bound, Context, fit
from ragbraid.registry.node import Port


def fill_the_rest(draft: Draft, drafts: Sequence[Draft], context: Context) -> None:
    """Fill every port that is still open by a name in scope or its default; RB202 where neither serves.

    A name in scope is refused (RB209) where a node that could have been meant bears the port's name, or has an output
    field of that name: the author says which one it is.
    """
    if draft.contract is None:
        return
    later = downstream(draft, drafts)
    for port in draft.contract.ports:
        if draft.has_value(port):
            continue
        found = _find_ambient(port, context)
        if found is not None:
            _take(draft, port, found, [d for d in drafts if d.slot not in later], context)
        elif not port.required:
            _take_default(draft, port, context)
        elif not draft.suspect:
            _report_open(draft, port, context)


def downstream(draft: Draft, drafts: Iterable[Draft]) -> set[int]:
    """Return the slots of the draft and of every draft that reads it, directly or not."""
    readers: dict[int, list[int]] = {}
    for other in drafts:
        for slot in other.needs:
            readers.setdefault(slot, []).append(other.slot)
    found = {draft.slot}
    waiting = [draft.slot]
    while waiting:
        for slot in readers.get(waiting.pop(), ()):
            if slot not in found:
                found.add(slot)
                waiting.append(slot)
    return found


def _names(port: Port) -> tuple[str, ...]:
    return (port.name, *port.ambient)


def _find_ambient(port: Port, context: Context) -> tuple[Visible, Bound] | None:
    if port.fan_in:
        return None
    for name in _names(port):
        found = _peek(context.scope, name)
        if found is None or found[1].kind != "input":
            continue
        depth, visible = found
        needs = frozenset({visible.slot}) if depth == 0 else frozenset()
        bound = Bound(SlotRef(depth, visible.slot, (), name), visible.type, needs)
        fitted = fit(bound, port.type, context.conversions)
        if fitted is not None:
            context.scope.find(name)
            return visible, fitted
    return None


def _peek(scope: Scope, name: str) -> tuple[int, Visible] | None:
    """Look a name up without counting it as used."""
    depth = 0
    current: Scope | None = scope
    while current is not None:
        if name in current.names:
            return depth, current.names[name]
        current, depth = current.parent, depth + 1
    return None


def _take(
    draft: Draft, port: Port, found: tuple[Visible, Bound], candidates: Iterable[Draft], context: Context
) -> None:
    visible, bound = found
    rival = _rival(port, candidates, context)
    if rival is not None:
        message = f"`{port.name}` of `{draft.name}` could be the input `{visible.name}` or `{rival}`"
        hint = f"write `{port.name}: ${visible.name}` or `{port.name}: ${rival}` under `{draft.name}`"
        context.report.error("RB209", message, draft.span, hint)
        draft.suspect = True
    draft.suspect = draft.suspect or bound.type is POISON
    draft.fills[port.name] = Fill(bound, "ambient", visible.name, draft.span)


def _rival(port: Port, candidates: Iterable[Draft], context: Context) -> str | None:
    """Return what else of this graph bears one of the port's names with a type that fits."""
    for other in candidates:
        if other.output is POISON:
            continue
        for name in _names(port):
            if other.name == name and _fits(other.output, port, context):
                return other.name
            inner = field_type(other.output, name)
            if inner is not None and _fits(inner, port, context):
                return f"{other.name}.{name}"
    return None


def _fits(offered: object, port: Port, context: Context) -> bool:
    return fit(Bound(Literally(None), offered), port.type, context.conversions) is not None


def _take_default(draft: Draft, port: Port, context: Context) -> None:
    bound = Bound(Literally(port.default), port.type)
    draft.fills[port.name] = Fill(bound, "default", repr(port.default), draft.span)
    for name in _names(port):
        found = _peek(context.scope, name)
        if found is not None and found[1].kind == "input" and found[1].type is not POISON:
            context.scope.find(name)
            wanted, given = describe(port.type), describe(found[1].type)
            message = (
                f"the input `{name}` ({given}) does not fit `{port.name}` of `{draft.name}`, which keeps its default"
            )
            hint = f"declare the input as {wanted}, or write `{port.name}` under `{draft.name}`"
            context.report.warning("RB905", message, draft.span, hint)
            return


def _report_open(draft: Draft, port: Port, context: Context) -> None:
    wanted = describe(port.item if port.fan_in else port.type)
    message = f"nothing fills `{port.name}` of `{draft.name}`, which needs {wanted}"
    context.report.error("RB202", message, draft.span, _open_hint(draft, port, context))
    draft.suspect = True


def _open_hint(draft: Draft, port: Port, context: Context) -> str:
    names = ", ".join(f"`{v.name}`: {_type_of(v)}" for v in context.scope.visible() if v.slot != draft.slot)
    advice = f"draw an arrow into `{draft.name}` or write `{port.name}: $...` under it"
    near = [name for name in _names(port) if (found := _peek(context.scope, name)) and found[1].kind == "input"]
    if near:
        return f"`{near[0]}` has another type; {advice}; in scope are {names}"
    return f"{advice}; in scope are {names}" if names else advice


def _type_of(visible: Visible) -> str:
    return "?" if visible.type is POISON else describe(visible.type)
