"""The blocks of a flow file: their keys and shapes. Nothing is looked up here."""

from __future__ import annotations

from collections.abc import Callable

from ragbraid.dsl.keys import check_keys, check_name
from ragbraid.dsl.parse_inputs import parse_declaration
from ragbraid.dsl.report import Report
from ragbraid.dsl.source_nodes import Entry, MappingNode, Node, SequenceNode
from ragbraid.dsl.syntax import (
    BlockDecl,
    BodyDecl,
    BranchDecl,
    GateDecl,
    GroupDecl,
    LoopDecl,
    MapDecl,
    Named,
    SwitchDecl,
)
from ragbraid.registry.errors import SourceSpan

BODY_KEYS = ("nodes", "flow")
LOOP_KEYS = ("carry", "for", *BODY_KEYS, "next", "stop_when", "max_steps")
MAP_KEYS = ("over", *BODY_KEYS, "output", "concurrency", "on_error")
SWITCH_KEYS = ("on", "cases", "when", "else")
GATE_KEYS = ("try", "enough")
GROUP_KEYS = (*BODY_KEYS, "output")

ParseBody = Callable[[MappingNode, Report], "BodyDecl | None"]
ParseBranch = Callable[[Named, Node, Report], "BranchDecl | None"]


class BlockParser:
    """Parses blocks with the parsers of what stands inside them."""

    def __init__(self, body: ParseBody, branch: ParseBranch, report: Report) -> None:
        self._body = body
        self._branch = branch
        self._report = report

    def parse(self, entry: Entry) -> BlockDecl | None:
        """Read the value of a key `loop`, `map`, `switch` or `gate`; None where its shape is too wrong."""
        if not isinstance(entry.value, MappingNode):
            self._report.error("RB012", f"`{entry.key}` is a mapping", entry.value.span, _HINTS[entry.key])
            return None
        read = {"loop": self._loop, "map": self._map, "switch": self._switch, "gate": self._gate}[entry.key]
        return read(entry.value, entry.key_span)

    def group(self, name: Named, value: MappingNode) -> GroupDecl | None:
        """Read `{nodes, flow, output}` in the place of a node."""
        branch = self._branch(name, value, self._report)
        return None if branch is None else GroupDecl(branch)

    def _loop(self, value: MappingNode, place: SourceSpan) -> LoopDecl | None:
        value = check_keys(value, LOOP_KEYS, "a loop", self._report)
        if value.get("nodes") is None:
            self._report.error("RB011", "the loop has no `nodes`", place, "list the nodes that it runs under `nodes:`")
        body = self._body(value, self._report) if value.get("nodes") is not None else None
        carry = self._mapping(value, "carry", "write `carry: {hits: Ranking = $first}`")
        following = self._mapping(value, "next", "write `next: {hits: $pool}`")
        stops = self._mapping(value, "stop_when", "write `stop_when: {answered: $think.is_final}`")
        items = self._one_name(value, "for", "write `for: {step: $plan.steps}`")
        max_steps = value.get("max_steps")
        if max_steps is None:
            hint = "write `max_steps: 5`; a loop that may run for ever is not allowed"
            self._report.error("RB302", "the loop has no `max_steps`", place, hint)
        if body is None:
            return None
        states = tuple(parse_declaration(entry, "a state", self._report) for entry in carry)
        for reason in stops:
            check_name(Named(reason.key, reason.key_span), "a reason to stop", self._report)
        return LoopDecl(states, body, following, stops, max_steps, items, place)

    def _map(self, value: MappingNode, place: SourceSpan) -> MapDecl | None:
        value = check_keys(value, MAP_KEYS, "a map", self._report)
        over = self._one_name(value, "over", "write `over: {item: $list}`")
        missing = [key for key in ("over", "nodes", "output") if value.get(key) is None]
        for key in missing:
            self._report.error("RB011", f"the map has no `{key}`", place, _HINTS["map"])
        if missing:
            return None
        inside = MappingNode(tuple(e for e in value.entries if e.key in GROUP_KEYS), value.span)
        branch = self._branch(Named("map", place), inside, self._report)
        if over is None or branch is None:
            return None
        return MapDecl(over, branch, value.get("concurrency"), value.get("on_error"))

    def _switch(self, value: MappingNode, place: SourceSpan) -> SwitchDecl | None:
        value = check_keys(value, SWITCH_KEYS, "a switch", self._report)
        otherwise = value.entry("else")
        last = (
            None
            if otherwise is None
            else self._branch(Named("else", otherwise.key_span), otherwise.value, self._report)
        )
        on, cases, when = value.get("on"), value.get("cases"), value.get("when")
        if (on is None) == (when is None) or (on is None) != (cases is None):
            hint = _HINTS["switch"]
            self._report.error("RB011", "a switch has either `on` and `cases`, or `when`", place, hint)
            return None
        if on is not None and isinstance(cases, MappingNode) and cases.entries:
            branches = [self._branch(Named(e.key, e.key_span), e.value, self._report) for e in cases.entries]
        elif isinstance(when, SequenceNode) and when.items:
            branches = [self._condition(number, item) for number, item in enumerate(when.items, start=1)]
        else:
            wrong = cases or when
            assert wrong is not None
            self._report.error(
                "RB012", "the cases of a switch are not written as they should be", wrong.span, _HINTS["switch"]
            )
            return None
        if None in branches or (otherwise is not None and last is None):
            return None
        return SwitchDecl(on, tuple(branch for branch in branches if branch is not None), last, place)

    def _condition(self, number: int, item: Node) -> BranchDecl | None:
        condition = item.get("if") if isinstance(item, MappingNode) else None
        if not isinstance(item, MappingNode) or condition is None:
            hint = 'write `- {if: "${ hits | length == 0 }", use: family.node}`'
            self._report.error("RB011", "this branch has no `if`", item.span, hint)
            return None
        rest = MappingNode(tuple(e for e in item.entries if e.key != "if"), item.span)
        branch = self._branch(Named(str(number), item.span), rest, self._report)
        if branch is None:
            return None
        return BranchDecl(branch.label, branch.body, branch.output, branch.single, condition)

    def _gate(self, value: MappingNode, place: SourceSpan) -> GateDecl | None:
        value = check_keys(value, GATE_KEYS, "a gate", self._report)
        tries, enough = value.get("try"), value.get("enough")
        if tries is None or enough is None:
            missing = "try" if tries is None else "enough"
            self._report.error("RB011", f"the gate has no `{missing}`", place, _HINTS["gate"])
            return None
        if not isinstance(tries, SequenceNode) or not tries.items:
            self._report.error("RB012", "`try` is a list of nodes or groups", tries.span, _HINTS["gate"])
            return None
        branches = [
            self._branch(Named(str(number), item.span), item, self._report)
            for number, item in enumerate(tries.items, start=1)
        ]
        if None in branches:
            return None
        return GateDecl(tuple(branch for branch in branches if branch is not None), enough, place)

    def _mapping(self, value: MappingNode, key: str, hint: str) -> tuple[Entry, ...]:
        node = value.get(key)
        if node is None:
            return ()
        if isinstance(node, MappingNode):
            return node.entries
        self._report.error("RB012", f"`{key}` is a mapping", node.span, hint)
        return ()

    def _one_name(self, value: MappingNode, key: str, hint: str) -> Entry | None:
        node = value.get(key)
        if node is None:
            return None
        if isinstance(node, MappingNode) and len(node.entries) == 1:
            entry = node.entries[0]
            return entry if check_name(Named(entry.key, entry.key_span), "a loop variable", self._report) else None
        self._report.error("RB012", f"`{key}` names one variable and what it goes over", node.span, hint)
        return None


_HINTS = {
    "loop": "write `loop: {carry: ..., nodes: ..., flow: ..., next: ..., stop_when: ..., max_steps: 5}`",
    "map": "write `map: {over: {item: $list}, nodes: ..., flow: ..., output: $result}`",
    "switch": "write `switch: {on: $kind, cases: {one: ..., other: ...}, else: ...}` or `switch: {when: [...], else: ...}`",
    "gate": 'write `gate: {try: [...], enough: "${ out | length >= 3 }"}`',
}
