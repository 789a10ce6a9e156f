"""Branches in the making: a body with the one value that leaves it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ragbraid.dsl.bodies import BodyDraft, MakeBlock, bind_body, bind_values, build_body, close_body, draft_body
from ragbraid.dsl.draft import Draft
from ragbraid.dsl.known import FlowSource, Known
from ragbraid.dsl.outputs import bind_output
from ragbraid.dsl.plan import Branch, SlotRef
from ragbraid.dsl.scope import Visible
from ragbraid.dsl.syntax import BranchDecl, Named, OutputDecl
from ragbraid.dsl.values import WRONG, Bound, Context

Reads = frozenset[tuple[int, int]]


@dataclass
class BranchDraft:
    """A branch in the making: its body, and its output as the body sees it."""

    decl: BranchDecl
    body: BodyDraft
    output: Bound


def draft_branch(
    decl: BranchDecl, given: Mapping[str, Visible], around: Context, known: Known, make_block: MakeBlock
) -> BranchDraft:
    """Look up what a branch runs, and the type of what it gives."""
    body = draft_body(decl.body, given, around, known, around.report, make_block, named=not decl.single)
    output = _single_output(body.drafts[0]) if decl.single else _written_output(decl, body.context)
    body.take(output.value)
    return BranchDraft(decl, body, output)


def _single_output(draft: Draft) -> Bound:
    return Bound(SlotRef(0, draft.slot, (), draft.name), draft.output, frozenset({draft.slot}))


def _written_output(decl: BranchDecl, context: Context) -> Bound:
    if decl.output is None:
        return WRONG
    return bind_output(OutputDecl(Named("", decl.output.span), decl.output), context)


def branch_targets(branches: Iterable[BranchDraft]) -> list[tuple[Draft, int]]:
    """Return the nodes of branches that are single nodes, each with how many bodies inwards it stands."""
    found: list[tuple[Draft, int]] = []
    for branch in branches:
        if not branch.decl.single:
            continue
        draft = branch.body.drafts[0]
        inner = [(draft, 0)] if draft.block is None else draft.block.arrow_targets()
        found.extend((target, depth + 1) for target, depth in inner)
    return found


def bind_branches(branches: Iterable[BranchDraft], known: Known) -> None:
    """Bind what is written under the nodes of branches."""
    for branch in branches:
        bind_values(branch.body, known)


def finish_branches(branches: Sequence[BranchDraft], known: Known) -> Reads:
    """Bind and check what branches run; returns what they read from around them."""
    for branch in branches:
        bind_body(branch.body, known)
    return frozenset(read for branch in branches for read in branch.body.outer_reads([branch.output.value]))


def close_branches(branches: Iterable[BranchDraft]) -> None:
    """Put every branch into order."""
    for branch in branches:
        close_body(branch.body)


def build_branch(branch: BranchDraft, flows: FlowSource) -> Branch:
    """Return the branch; everything must have been checked."""
    return Branch(build_body(branch.body, flows), branch.output.value)
