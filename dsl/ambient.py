"""Ports that nothing written and no arrow fills: names in scope, defaults, and what is still missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from ragbraid.dsl.draft import Draft, Fill
from ragbraid.dsl.plan import Literally, SlotRef
from ragbraid.dsl.scope import POISON, Visible
from ragbraid.dsl.types import describe, field_names, field_type
from ragbraid.dsl.values import Bound, Context, fit
from ragbraid.registry.node import Port

MAX_CANDIDATES = 12
"""How many names in scope a hint lists."""


class Neighbours:
    """What else of a graph bears which name, asked once for every port that a name in scope may fill."""

    def __init__(self, drafts: Sequence[Draft]) -> None:
        self._bearers: dict[str, list[tuple[Draft, str, object]]] = {}
        self._readers: dict[int, list[int]] = {}
        self._downstream: dict[int, set[int]] = {}
        fields_of: dict[int, list[tuple[str, object]]] = {}
        for draft in drafts:
            for slot in draft.needs:
                self._readers.setdefault(slot, []).append(draft.slot)
            if draft.output is POISON:
                continue
            self._bearers.setdefault(draft.name, []).append((draft, draft.name, draft.output))
            output = draft.output
            if id(output) not in fields_of:
                fields_of[id(output)] = [(field, field_type(output, field)) for field in field_names(output)]
            for field, type_ in fields_of[id(output)]:
                self._bearers.setdefault(field, []).append((draft, f"{draft.name}.{field}", type_))

    def bearing(self, name: str, slot: int) -> Iterator[tuple[str, object]]:
        """Yield what bears a name, with its type: nodes and fields of their outputs, none that waits for `slot`."""
        for draft, shown, type_ in self._bearers.get(name, ()):
            if draft.slot not in self.downstream(slot):
                yield shown, type_

    def downstream(self, slot: int) -> set[int]:
        """Return the slot and every slot whose step reads it, directly or not."""
        if slot not in self._downstream:
            found = {slot}
            waiting = [slot]
            while waiting:
                new = [reader for reader in self._readers.get(waiting.pop(), ()) if reader not in found]
                found.update(new)
                waiting.extend(new)
            self._downstream[slot] = found
        return self._downstream[slot]


def fill_the_rest(draft: Draft, neighbours: Neighbours, context: Context) -> None:
    """Fill every port that is still open by a name in scope or its default; RB202 where neither serves.

    A name in scope is refused (RB209) where a node that could have been meant bears the port's name, or has an output
    field of that name: the author says which one it is.
    """
    if draft.contract is None:
        return
    for port in draft.contract.ports:
        if draft.has_value(port):
            continue
        found = _find_ambient(port, context)
        if found is not None:
            _take(draft, port, found, neighbours, context)
        elif not port.required:
            _take_default(draft, port, context)
        elif not draft.suspect and context.scope.complete:
            _report_open(draft, port, context)


def _names(port: Port) -> tuple[str, ...]:
    return (port.name, *port.ambient)


def _find_ambient(port: Port, context: Context) -> tuple[Visible, Bound] | None:
    if port.fan_in:
        return None
    for name in _names(port):
        found = context.scope.peek(name)
        if found is None or not found[1].given:
            continue
        depth, visible = found
        needs = frozenset({visible.slot}) if depth == 0 else frozenset()
        bound = Bound(SlotRef(depth, visible.slot, (), name), visible.type, needs)
        fitted = fit(bound, port.type, context.conversions)
        if fitted is not None:
            context.scope.find(name)
            return visible, fitted
    return None


def _take(draft: Draft, port: Port, found: tuple[Visible, Bound], neighbours: Neighbours, context: Context) -> None:
    visible, bound = found
    rival = _rival(draft, port, neighbours, context)
    if rival is not None:
        message = f"`{port.name}` of {draft.shown} could be {visible.shown} or `{rival}`"
        hint = f"write `{port.name}: ${visible.name}` or `{port.name}: ${rival}` under `{draft.name}`"
        context.report.error("RB209", message, draft.span, hint)
        draft.suspect = True
    draft.suspect = draft.suspect or bound.type is POISON
    draft.fills[port.name] = Fill(bound, "ambient", visible.name, draft.span)


def _rival(draft: Draft, port: Port, neighbours: Neighbours, context: Context) -> str | None:
    """Return what else of this graph bears one of the port's names with a type that fits."""
    bearing = (found for name in _names(port) for found in neighbours.bearing(name, draft.slot))
    return next((shown for shown, type_ in bearing if _fits(type_, port, context)), None)


def _fits(offered: object, port: Port, context: Context) -> bool:
    return fit(Bound(Literally(None), offered), port.type, context.conversions) is not None


def _take_default(draft: Draft, port: Port, context: Context) -> None:
    bound = Bound(Literally(port.default), port.type)
    draft.fills[port.name] = Fill(bound, "default", repr(port.default), draft.span)
    for name in _names(port):
        found = context.scope.peek(name)
        if found is not None and found[1].given and found[1].type is not POISON:
            context.scope.find(name)
            wanted, given = describe(port.type), describe(found[1].type)
            message = (
                f"{found[1].shown} ({given}) does not fit `{port.name}` of `{draft.name}`, which keeps its default"
            )
            hint = f"declare it as {wanted}, or write `{port.name}` under `{draft.name}`"
            context.report.warning("RB905", message, draft.span, hint)
            return


def _report_open(draft: Draft, port: Port, context: Context) -> None:
    wanted = describe(port.item if port.fan_in else port.type)
    message = f"nothing fills `{port.name}` of {draft.shown}, which needs {wanted}"
    context.report.error("RB202", message, draft.span, _open_hint(draft, port, context))
    draft.suspect = True


def _open_hint(draft: Draft, port: Port, context: Context) -> str:
    by_arrow = f"draw an arrow into `{draft.name}` or " if port.kind == "data" else ""
    advice = f"{by_arrow}write `{port.name}: ...` under it"
    visible = islice((v for v in context.scope.visible() if v.slot != draft.slot), MAX_CANDIDATES + 1)
    candidates = [f"`{v.name}` ({_refused(v, port, context)})" for v in visible]
    if not candidates:
        return advice
    shown = ", ".join(candidates[:MAX_CANDIDATES]) + (", ..." if len(candidates) > MAX_CANDIDATES else "")
    return f"{advice}; in scope are {shown}"


def _refused(visible: Visible, port: Port, context: Context) -> str:
    """Say why a name in scope was not taken for a port."""
    if visible.type is POISON:
        return "wrong itself"
    expected = port.item if port.fan_in else port.type
    fits = fit(Bound(Literally(None), visible.type), expected, context.conversions) is not None
    if not fits:
        return f"{describe(visible.type)}, another type"
    if visible.kind == "node":
        return f"{describe(visible.type)}, a step: needs an arrow or a reference"
    return f"{describe(visible.type)}, another name"
