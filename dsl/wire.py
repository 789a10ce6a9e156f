"""Arrows: which port of a node each of them fills."""

from __future__ import annotations

from collections.abc import Mapping

from ragbraid.dsl.arrows import ArrowRef, Path, parse_arrows
from ragbraid.dsl.draft import Draft, Fill
from ragbraid.dsl.keys import is_name
from ragbraid.dsl.scope import POISON
from ragbraid.dsl.source_nodes import ScalarNode, subspan
from ragbraid.dsl.syntax import block_kind
from ragbraid.dsl.types import assignable, describe, is_optional, item_type, without_none
from ragbraid.dsl.values import WRONG, Bound, Context, fit, fit_collected, resolve_reference
from ragbraid.dsl.walk import deepened, read_slots
from ragbraid.registry.catalogue import Catalogue
from ragbraid.registry.errors import Label, SourceSpan
from ragbraid.registry.node import Port
from ragbraid.registry.suggest import nearest


class Wiring:
    """Applies the arrows of one body to its drafts."""

    def __init__(self, drafts: Mapping[str, Draft], context: Context, catalogue: Catalogue) -> None:
        self._drafts = drafts
        self._context = context
        self._report = context.report
        self._catalogue = catalogue
        self._certain = True  # whether the string at hand could be read; if not, its arrows may lead elsewhere

    def apply(self, scalar: ScalarNode) -> bool:
        """Read one string of arrows and fill ports by it; returns whether all of it could be read."""
        text = str(scalar.value)
        paths, problems = parse_arrows(text)
        for problem in problems:
            # A name that cannot be one has been reported where it is declared.
            named = text[problem.start : problem.end]
            if is_name(named) or named not in self._drafts:
                span = subspan(scalar, problem.start, problem.end)
                self._report.error("RB016", problem.message, span, problem.hint)
        self._certain = not problems
        for path in paths:
            self._apply_path(scalar, path)
        return not problems

    def _apply_path(self, scalar: ScalarNode, path: Path) -> None:
        last = len(path.stages) - 1
        targets = [
            [self._target(scalar, ref, position == last) for ref in stage.refs] if position else []
            for position, stage in enumerate(path.stages)
        ]
        for position, (left, right) in enumerate(zip(path.stages, path.stages[1:], strict=False)):
            for source in left.refs:
                place = _span(scalar, source)
                bound = self._source(scalar, source, first=position == 0)
                for target, draft in zip(right.refs, targets[position + 1], strict=True):
                    if draft is not None:
                        self._connect(source, bound, place, draft, _span(scalar, target))

    def _source(self, scalar: ScalarNode, ref: ArrowRef, *, first: bool) -> Bound:
        """Return what a stage gives. A name of a later stage was looked up, and reported, as a target."""
        if not first and ref.names[0] not in self._drafts:
            return WRONG
        if ref.names[0] in self._drafts:
            self._drafts[ref.names[0]].touched_by_arrow = True
        span = _span(scalar, ref)
        using = self._using(ref)
        if using:
            message = f"nothing here is called `{ref.names[0]}`"
            self._report.error("RB103", message, span, f"did you mean `{using}`, which uses `{'.'.join(ref.names)}`?")
            return WRONG
        return resolve_reference(ref.names[0], ref.names[1:], self._context, lambda _: span)

    def _using(self, ref: ArrowRef) -> str | None:
        """Return the step that was meant where an arrow names a node of the catalogue."""
        if len(ref.names) < 2 or self._context.scope.peek(ref.names[0]) is not None:
            return None
        node = ".".join(ref.names)
        users = [name for name, draft in self._drafts.items() if draft.contract and draft.contract.name == node]
        return users[0] if len(users) == 1 else None

    def _target(self, scalar: ScalarNode, ref: ArrowRef, last: bool) -> Draft | None:
        name = ref.names[0]
        draft = self._drafts.get(name)
        span = _span(scalar, ref)
        if draft is None:
            known = self._context.scope.find(name) if self._context.scope.peek(name) is not None else None
            if known is not None:
                _, found = known
                hint = _GIVEN_BY.get(found.kind, "an arrow leads to nodes of the same body only")
                self._report.error("RB208", f"an arrow cannot lead into {found.shown}", span, hint)
                return None
            meant = nearest(name, self._drafts)
            if meant is not None:
                self._drafts[meant].suspect = True
            hint = f"did you mean `{meant}`?" if meant else "list it under `nodes:`"
            if using := self._using(ref):
                hint = f"did you mean `{using}`, which uses `{'.'.join(ref.names)}`?"
                self._drafts[using].suspect = True
            self._report.error("RB103", f"no node of this flow is called `{name}`", span, hint)
            return None
        draft.touched_by_arrow = True
        if last and len(ref.names) > 1:
            port = ".".join(ref.names[1:])
            hint = f"write `{port}: $...` under `{name}`"
            self._report.error("RB208", f"an arrow leads into a node, not into `{port}` of it", span, hint)
            draft.suspect = True
            return None
        return draft

    def _connect(self, source: ArrowRef, bound: Bound, place: SourceSpan, draft: Draft, target: SourceSpan) -> None:
        if draft.block is not None:
            self._connect_block(source, bound, place, draft, target)
            return
        if draft.contract is None:
            return
        if bound.type is POISON:
            draft.suspect = True
            return
        accepting = self._accepting(draft, bound)
        chosen = _choose(accepting, bound)
        if chosen is None and not accepting and _is_read_already(bound, draft):
            return  # the arrow draws what is written under the node
        if chosen is None:
            if self._certain and not draft.arrow_refused:
                self._report_refused(source, bound, place, draft, target, [port for port, _ in accepting])
            draft.suspect = draft.arrow_refused = True
            return
        self._fill(source, chosen, place, draft)

    def _accepting(self, draft: Draft, bound: Bound) -> list[tuple[Port, Bound]]:
        return [(port, fitted) for port in draft.open_data_ports() if (fitted := self._accepts(port, bound))]

    def _connect_block(
        self, source: ArrowRef, bound: Bound, place: SourceSpan, block: Draft, target: SourceSpan
    ) -> None:
        """Give a value to the branches of a block that are single nodes: to all of them that have a port for it."""
        assert block.block is not None
        name = ".".join(source.names)
        targets = block.block.arrow_targets()
        if not targets:
            kind = block_kind(block.decl)
            hint = f"what is inside sees `{name}`: write `${name}` where it is needed, or `{name} -> ...` in its `flow`"
            self._report.error("RB208", f"an arrow cannot lead into the {kind} `{block.name}`", place, hint)
            return
        taken = False
        for draft, depth in targets:
            seen = Bound(deepened(bound.value, depth), bound.type)
            chosen = None if bound.type is POISON else _choose(self._accepting(draft, seen), seen)
            if chosen is not None:
                self._fill(source, chosen, place, draft)
                taken = True
            draft.suspect = draft.suspect or bound.type is POISON
        if not taken and bound.type is not POISON:
            self._connect(source, bound, place, targets[0][0], target)  # reports why that one refuses it
            for draft, _ in targets:
                draft.suspect = True

    def _fill(self, source: ArrowRef, chosen: tuple[Port, Bound], place: SourceSpan, draft: Draft) -> None:
        port, fitted = chosen
        fill = Fill(fitted, "arrow", ".".join(source.names), place)
        if not port.fan_in:
            draft.fills[port.name] = fill
            return
        fan = draft.fans.setdefault(port.name, {})
        key = source.names[0] if source.names[0] not in fan else ".".join(source.names)
        if key in fan:
            if self._certain:
                self._report.error("RB208", f"the arrow from `{key}` to `{draft.name}` is written twice", place)
            return
        fan[key] = fill

    def _accepts(self, port: Port, bound: Bound) -> Bound | None:
        # A step that was skipped is simply absent from a fan-in, so an optional value fits there.
        if port.fan_in:
            offered = Bound(bound.value, without_none(bound.type), bound.needs)
            return fit_collected(offered, port.item, self._context.conversions)
        return fit(bound, port.type, self._context.conversions)

    def _report_refused(
        self,
        source: ArrowRef,
        bound: Bound,
        place: SourceSpan,
        draft: Draft,
        target: SourceSpan,
        accepting: list[Port],
    ) -> None:
        name = ".".join(source.names)
        given = describe(bound.type)
        if accepting:
            ports = " and ".join(f"`{port.name}` ({describe(port.type)})" for port in accepting)
            hint = f"write `{accepting[0].name}: ${name}` under `{draft.name}` to say which one is meant"
            message = f"`{name}` ({given}) could fill {ports} of `{draft.name}`"
            self._report.error("RB204", message, place, hint)
            return
        open_ports = list(draft.open_data_ports())
        taken = self._taken_port(draft, bound)
        if taken is not None or not open_ports:
            message = f"`{draft.name}` has no port left that `{name}` could fill"
            filled = f"its `{taken}` is filled by `{draft.fills[taken].detail}` already" if taken else None
            refusal = filled or _one_after_the_other(name, bound, draft) or "it takes no arrows"
            self._report.error("RB208", message, place, refusal)
            return
        wanted = [port.item if port.fan_in else port.type for port in open_ports]
        if is_optional(bound.type) and any(
            fit(Bound(bound.value, without_none(bound.type)), tp, self._context.conversions) for tp in wanted
        ):
            message = (
                f"`{name}` may be skipped, but `{draft.name}` always needs its {describe(without_none(bound.type))}"
            )
            hint = f"skip `{draft.name}` too with `when`, or put a node between them that takes a missing value"
            self._report.error("RB308", message, place, hint)
            return
        wanted = wanted[:1]
        expected = describe(wanted[0])
        message = f"`{draft.name}` needs {expected}, but `{name}` gives {given}"
        labels = [Label(target, f"expects {expected}")]
        advice = _one_after_the_other(name, bound, draft) or self._bridge_hint(bound, wanted, given, expected)
        self._report.error("RB203", message, place, advice, labels)

    def _taken_port(self, draft: Draft, bound: Bound) -> str | None:
        """Return the port that would take the value, were it not filled already."""
        ports = draft.contract.data_ports if draft.contract is not None else ()
        filled = (port for port in ports if not draft.is_open(port))
        return next((port.name for port in filled if self._accepts(port, bound)), None)

    def _bridge_hint(self, bound: Bound, wanted: list[object], given: str, expected: str) -> str | None:
        """Name a node that could stand between the two."""
        conversions = self._context.conversions
        for node in self._catalogue.nodes():
            takes = any(fit(bound, port.item or port.type, ()) for port in node.data_ports)
            gives = any(fit(Bound(bound.value, node.output), tp, conversions) for tp in wanted)
            if takes and gives:
                return f"put a node between them that turns {given} into {expected}, for example `{node.name}`"
        return None


def _one_after_the_other(name: str, bound: Bound, draft: Draft) -> str | None:
    """Lead from two nodes in a row that give the same kind of thing, such as KAG's `kg_cs->kg_fr->rc`, to a gate."""
    given = without_none(bound.type)
    if draft.output is POISON or item_type(given) is None or not assignable(given, without_none(draft.output)):
        return None
    return (
        f"both give {describe(given)}: to run `{draft.name}` only where `{name}` finds nothing, write a gate over what both "
        'do, `gate: {try: [..., ...], enough: "${ out | length > 0 }"}`; else send both to a node that collects'
    )


_GIVEN_BY = {
    "input": "inputs get their value from the caller; only nodes can stand after an arrow",
    "state": "a state gets its value from `next`; only nodes can stand after an arrow",
    "variable": "a loop variable gets its value from the list; only nodes can stand after an arrow",
}


def _is_read_already(bound: Bound, draft: Draft) -> bool:
    """Whether what is written under the node refers to where the arrow comes from."""
    written = {
        read for fill in draft.fills.values() if fill.origin == "written" for read in read_slots(fill.bound.value)
    }
    return bool(written & set(read_slots(bound.value)))


def _choose(accepting: list[tuple[Port, Bound]], bound: Bound) -> tuple[Port, Bound] | None:
    """Prefer what needs no conversion, then what must be filled; None where that leaves none or several."""
    direct = [pair for pair in accepting if pair[1].type == without_none(bound.type) or pair[1] is bound]
    candidates = direct or accepting
    required = [pair for pair in candidates if pair[0].required]
    candidates = required or candidates
    return candidates[0] if len(candidates) == 1 else None


def _span(scalar: ScalarNode, ref: ArrowRef) -> SourceSpan:
    return subspan(scalar, ref.start, ref.end)
