"""`loop`: carried states, their next values, reasons to stop, and the bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args, get_origin

from annotated_types import Le, Lt
from pydantic.fields import FieldInfo

from ragbraid.dsl.bind import bind_expected
from ragbraid.dsl.bodies import BodyDraft, MakeBlock, bind_body, bind_values, build_body, close_body, draft_body
from ragbraid.dsl.calls import record_type
from ragbraid.dsl.conditions import bind_condition
from ragbraid.dsl.draft import Draft
from ragbraid.dsl.inputs import read_declared_type
from ragbraid.dsl.items import bind_items
from ragbraid.dsl.known import FlowSource, Known
from ragbraid.dsl.plan import DONE, MAX_STEPS, Block, Carried, Loop, StopCondition
from ragbraid.dsl.scope import POISON, Visible
from ragbraid.dsl.source_nodes import Entry, Node, ScalarNode
from ragbraid.dsl.syntax import InputDecl, LoopDecl
from ragbraid.dsl.types import assignable, describe, strip
from ragbraid.dsl.values import WRONG, Bound, Context, bind_value, is_dynamic
from ragbraid.dsl.walk import slots_of
from ragbraid.registry.suggest import did_you_mean


@dataclass
class LoopDraft:
    """A loop in the making."""

    draft: Draft
    decl: LoopDecl
    around: Context
    make_block: MakeBlock
    reads: frozenset[tuple[int, int]] = frozenset()
    record: type[Any] = object
    body: BodyDraft = field(init=False)
    types: dict[str, Any] = field(default_factory=dict)
    starts: dict[str, Bound] = field(default_factory=dict)
    next: dict[str, Bound] = field(default_factory=dict)
    stops: list[tuple[str, Bound]] = field(default_factory=list)
    items: Bound | None = None
    max_steps: Bound = WRONG

    def declare(self, known: Known) -> Any:
        """Read the types of the states, which make the type of the output."""
        for state in self.decl.carry:
            self.types[state.name.text] = read_declared_type(state, known.catalogue, self.around.report)
        self.record = record_type(f"{self.draft.name}_output", self._fields())
        return self.record

    def begin(self, known: Known) -> Any:
        """Look up what is inside."""
        given = {
            state.name.text: Visible(state.name.text, slot, self.types[state.name.text], "state", state.name.span)
            for slot, state in enumerate(self.decl.carry)
        }
        items = self.decl.items
        if items is not None:
            self.items, item = bind_items(items, "`for`", self.around)
            given[items.key] = Visible(items.key, len(given), item, "variable", items.key_span)
        self.body = draft_body(self.decl.body, given, self.around, known, self.around.report, self.make_block)
        return self.record

    def _fields(self) -> dict[str, Any]:
        reasons = [reason.key for reason in self.decl.stop_when] + [MAX_STEPS]
        reasons += [DONE] if self.decl.items is not None else []
        return {**self.types, "steps": int, "stopped_by": Literal[tuple(reasons)]}

    def bind_values(self, known: Known) -> None:
        """Bind the starts of the states and the bound, and what is written inside."""
        bind_values(self.body, known)
        for state in self.decl.carry:
            self.starts[state.name.text] = self._start(state)
        if self.decl.max_steps is not None:
            self.max_steps = _bind_bound(self.decl.max_steps, self.around)

    def _start(self, state: InputDecl) -> Bound:
        name, report = state.name.text, self.around.report
        if state.default is None:
            if state.type is not None:
                hint = f"write `{name}: {state.type.text} = ...`, with what it is in the first step"
                report.error("RB011", f"the state `{name}` has no value to start with", state.name.span, hint)
            return WRONG
        return _bind_state(state.default, self.types[name], f"the state `{name}`", self.around)

    def arrow_targets(self) -> Sequence[tuple[Draft, int]]:
        """Return nothing: what a loop needs is referred to inside it."""
        return ()

    def finish(self, known: Known) -> None:
        """Bind what is inside, then the next values and the conditions, which may read all of it."""
        bind_body(self.body, known)
        for entry in self.decl.next:
            self._bind_next(entry)
        changing = self._changing()
        for entry in self.decl.stop_when:
            self._bind_stop(entry, changing)
        inside = [bound.value for bound in (*self.next.values(), *(stop for _, stop in self.stops))]
        for value in inside:
            self.body.take(value)
        own = [bound.value for bound in (*self.starts.values(), self.max_steps, *([self.items] if self.items else []))]
        self.reads = frozenset(self.body.outer_reads(inside)) | slots_of(own)

    def _bind_next(self, entry: Entry) -> None:
        context = self.body.context
        if entry.key not in self.types:
            hint = did_you_mean(entry.key, self.types) or "declare it under `carry`"
            context.report.error("RB103", f"the loop carries no state `{entry.key}`", entry.key_span, hint)
            return
        what = f"the next value of the state `{entry.key}`"
        self.next[entry.key] = _bind_state(entry.value, self.types[entry.key], what, context)

    def _changing(self) -> frozenset[int]:
        """Return the slots that can differ from step to step: all but the states that keep their value."""
        kept = {slot for slot, name in enumerate(self.types) if name not in self.next}
        return frozenset(range(len(self.body.inputs) + len(self.body.drafts))) - kept

    def _bind_stop(self, entry: Entry, changing: frozenset[int]) -> None:
        reason, report = entry.key, self.around.report
        if reason in (MAX_STEPS, DONE):
            message = f"`{reason}` is a reason of the language's own"
            report.error("RB014", message, entry.key_span, "call this reason something else")
            return
        hint = f"write a condition, such as `{reason}: ${{ hits | length == 0 }}`"
        bound = bind_condition(entry.value, f"`{reason}`", hint, self.body.context, "RB305")
        if bound.type is not POISON and not bound.needs & changing:
            message = f"nothing in the loop can change the condition `{reason}`"
            hint = "let it look at a node of the loop or at a state that has a `next`"
            report.error("RB304", message, entry.value.span, hint)
        self.stops.append((reason, bound))

    def close(self) -> None:
        """Put the body into order."""
        close_body(self.body)

    def build(self, flows: FlowSource) -> Block:
        """Return the loop."""
        states = tuple(self._carried(name) for name in self.types)
        stops = tuple(StopCondition(reason, bound.value, bound.needs) for reason, bound in self.stops)
        items = None if self.items is None else self.items.value
        return Loop(build_body(self.body, flows), states, stops, self.max_steps.value, items, self.record)

    def _carried(self, name: str) -> Carried:
        following = self.next.get(name)
        value, needs = (None, frozenset[int]()) if following is None else (following.value, following.needs)
        return Carried(name, self.types[name], self.starts[name].value, value, needs)


def _bind_state(node: Node, type_: Any, what: str, context: Context) -> Bound:
    if type_ is POISON:
        bind_value(node, Any, what, context)  # what it refers to counts as used
        return WRONG
    return bind_expected(node, type_, what, context, "RB301")


def _bind_bound(node: Node, context: Context) -> Bound:
    """Bind `max_steps`: a literal of at least 1, or a reference whose type has an upper bound."""
    report = context.report
    if not is_dynamic(node):
        value = node.value if isinstance(node, ScalarNode) else None
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return bind_value(node, int, "`max_steps`", context)
        report.error("RB201", "`max_steps` is a whole number of at least 1", node.span, "write `max_steps: 5`")
        return WRONG
    bound = bind_value(node, int, "`max_steps`", context)
    if bound.type is POISON:
        return bound
    if not assignable(bound.type, int):
        report.error("RB203", f"`max_steps` is a whole number, but this is {describe(bound.type)}", node.span)
        return WRONG
    if not _has_upper_bound(bound.type):
        text = node.text if isinstance(node, ScalarNode) else "this"
        hint = "write a number, or refer to an input with `le`, such as `max_steps: {type: int, default: 5, le: 20}`"
        report.error("RB303", f"`{text}` has no upper bound, so the loop could run for ever", node.span, hint)
        return WRONG
    return bound


def _has_upper_bound(tp: Any) -> bool:
    if get_origin(strip(tp)) is Literal:
        return True
    if get_origin(tp) is not Annotated:
        return False
    metadata: list[Any] = []
    for item in get_args(tp)[1:]:
        metadata.extend(item.metadata if isinstance(item, FieldInfo) else [item])
    return any(isinstance(item, Le | Lt) for item in metadata) or _has_upper_bound(get_args(tp)[0])
