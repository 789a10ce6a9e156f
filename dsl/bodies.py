"""Bodies in the making: the passes that bind the steps of a flow or of the inside of a block, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any

from ragbraid.dsl.ambient import Neighbours, fill_the_rest
from ragbraid.dsl.bind import as_skippable, bind_written, draft_nodes
from ragbraid.dsl.draft import BlockDraft, Draft
from ragbraid.dsl.graph import order_steps, report_unreached
from ragbraid.dsl.known import FlowSource, Known
from ragbraid.dsl.lint import (
    report_hidden_names,
    report_name_clashes,
    report_texts_like_references,
    report_unknown_weights,
)
from ragbraid.dsl.mentions import mentioned_names
from ragbraid.dsl.plan import Body, Value
from ragbraid.dsl.policy import read_on_error, read_policy
from ragbraid.dsl.prompts import bind_prompts
from ragbraid.dsl.report import Report
from ragbraid.dsl.scope import Scope, Visible
from ragbraid.dsl.syntax import BodyDecl
from ragbraid.dsl.values import Context
from ragbraid.dsl.walk import own_slots, read_slots
from ragbraid.dsl.wire import Wiring

MakeBlock = Callable[[Draft, Context], BlockDraft]


@dataclass
class BodyDraft:
    """A body in the making: its steps, and the names that they can refer to."""

    decl: BodyDecl
    inputs: tuple[str, ...]
    drafts: list[Draft]
    context: Context
    used: set[int] = field(default_factory=set)
    """Slots that leave the body: read by its output, by the next value of a state, by a condition to stop."""
    ordered: list[Draft] = field(default_factory=list)
    complete: bool = True
    """Whether all arrows could be read."""

    def take(self, value: Value) -> None:
        """Note what a value reads that leaves the body."""
        self.used |= own_slots(value)

    def outer_reads(self, values: Iterable[Value]) -> Iterator[tuple[int, int]]:
        """Yield what the steps and some further values of the body read around it, as seen from there."""
        for draft in self.drafts:
            yield from ((depth - 1, slot) for depth, slot in draft.reads() if depth > 0)
        for value in values:
            yield from ((depth - 1, slot) for depth, slot in read_slots(value) if depth > 0)


def draft_body(
    decl: BodyDecl,
    given: Mapping[str, Visible],
    around: Context | None,
    known: Known,
    report: Report,
    make_block: MakeBlock,
    *,
    named: bool = True,
    complete: bool = True,
) -> BodyDraft:
    """Look up the nodes of a body and find out the types of all of them.

    Args:
        decl: what is written.
        given: the names that have values before the body runs, in the order of their slots.
        around: the context of the body around this one.
        known: nodes, flows and resources.
        report: where to report.
        make_block: makes the draft of a block.
        named: whether the nodes can be referred to; the single node of a branch bears no name of the author's.
        complete: whether all names that the body declares could be read.
    """
    drafts = draft_nodes(decl.nodes, len(given), known, report)
    names = dict(given)
    parent = None if around is None else around.scope
    if named:
        report_name_clashes(drafts, names, report)
        for draft in drafts:
            names.setdefault(draft.name, Visible(draft.name, draft.slot, draft.output, "node", draft.span))
    if parent is not None:
        report_hidden_names(names.values(), parent, report)
    scope = Scope(names, parent, complete and (parent is None or parent.complete))
    context = Context(scope, report, known.catalogue.conversions())
    _begin_blocks(drafts, context, known, make_block)
    return BodyDraft(decl, tuple(given), drafts, context)


def _begin_blocks(drafts: Sequence[Draft], context: Context, known: Known, make_block: MakeBlock) -> None:
    """Find out the output of every block: what blocks declare first, then each after those that it reads."""
    blocks = [draft for draft in drafts if draft.decl.block is not None]
    for draft in blocks:
        draft.block = make_block(draft, context)
        declared = draft.block.declare(known)
        if declared is not None:
            _settle(draft, declared, context)
    for draft in _by_mention(blocks):
        assert draft.block is not None
        _settle(draft, draft.block.begin(known), context)


def _settle(draft: Draft, output: Any, context: Context) -> None:
    if not _clashes(draft, context):
        draft.output = as_skippable(output, draft.decl)
        context.scope.settle(draft.name, draft.output)


def _clashes(draft: Draft, context: Context) -> bool:
    """Whether the name of a block belongs to something that is given, which has been reported."""
    other = context.scope.names.get(draft.name)
    return other is not None and other.given


def _by_mention(drafts: Sequence[Draft]) -> list[Draft]:
    """Order blocks so that each comes after those whose names occur in it; those of a cycle stay as they are."""
    by_name = {draft.name: draft for draft in drafts}
    edges = {draft.name: mentioned_names(draft.decl) & (by_name.keys() - {draft.name}) for draft in drafts}
    try:
        return [by_name[name] for name in TopologicalSorter(edges).static_order()]
    except CycleError:
        return list(drafts)  # it is reported once everything is bound


def bind_values(body: BodyDraft, known: Known) -> None:
    """Bind what is written under every step, inside blocks too, so that arrows see which ports are still open."""
    for draft in body.drafts:
        if draft.block is not None:
            draft.block.bind_values(known)
        bind_written(draft, body.context, known.resources)
        bind_prompts(draft, body.context.report)
        report_texts_like_references(draft, body.context)


def bind_body(body: BodyDraft, known: Known) -> None:
    """Fill every port that is still open, in the order of precedence, and check what is inside the blocks."""
    context, drafts = body.context, body.drafts
    _apply_arrows(body, known)
    for draft in drafts:
        read_policy(draft, context)
        if draft.block is not None:
            draft.block.finish(known)
    neighbours = Neighbours(drafts)
    for draft in drafts:
        fill_the_rest(draft, neighbours, context)
    for draft in drafts:
        read_on_error(draft, neighbours, context, known)
        report_unknown_weights(draft, context.report)


def _apply_arrows(body: BodyDraft, known: Known) -> None:
    wiring = Wiring({draft.name: draft for draft in body.drafts}, body.context, known.catalogue)
    readable = [wiring.apply(scalar) for scalar in body.decl.arrows]
    body.complete = body.decl.arrows_complete and all(readable)
    if not body.complete:
        # An arrow that could not be read may be the one that fills a port that seems open.
        for draft in body.drafts:
            draft.suspect = True


def close_body(body: BodyDraft) -> None:
    """Put the steps into an order to run in; RB207 for cycles, RB206 for what nothing reaches."""
    report = body.context.report
    body.ordered = order_steps(body.drafts, report if body.complete else Report())
    for draft in body.drafts:
        if draft.block is not None:
            draft.block.close()
    if not report.failed:
        # After a mistake much looks unused that is only misspelt.
        report_unreached(body.drafts, frozenset(body.used), report)


def build_body(body: BodyDraft, flows: FlowSource) -> Body:
    """Return the body; everything must have been checked."""
    return Body(body.inputs, tuple(draft.to_step(draft.name, flows) for draft in body.ordered))
