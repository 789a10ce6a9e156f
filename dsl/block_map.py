"""`map` and inline groups: one branch, for every item or once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from ragbraid.dsl.bodies import MakeBlock
from ragbraid.dsl.branches import (
    BranchDraft,
    bind_branches,
    build_branch,
    close_branches,
    draft_branch,
    finish_branches,
)
from ragbraid.dsl.draft import Draft
from ragbraid.dsl.items import bind_items
from ragbraid.dsl.known import FlowSource, Known
from ragbraid.dsl.plan import Block, Group, Map
from ragbraid.dsl.report import Report
from ragbraid.dsl.scope import POISON, Visible
from ragbraid.dsl.source_nodes import Node, ScalarNode
from ragbraid.dsl.syntax import GroupDecl, MapDecl
from ragbraid.dsl.types import optional
from ragbraid.dsl.values import WRONG, Bound, Context
from ragbraid.dsl.walk import slots_of

DEFAULT_CONCURRENCY = 8
MAP_ON_ERROR = ("fail", "skip", "none")


@dataclass
class MapDraft:
    """A map in the making."""

    draft: Draft
    decl: MapDecl
    around: Context
    make_block: MakeBlock
    reads: frozenset[tuple[int, int]] = frozenset()
    items: Bound = WRONG
    branch: BranchDraft = field(init=False)
    concurrency: int = DEFAULT_CONCURRENCY
    on_error: Literal["fail", "skip", "none"] = "fail"

    def declare(self, known: Known) -> Any:
        """Return None: what is inside decides."""

    def begin(self, known: Known) -> Any:
        """Look up the body; the output is a list of what it gives."""
        name = self.decl.over.key
        self.items, item = bind_items(self.decl.over, "`over`", self.around)
        given = {name: Visible(name, 0, item, "variable", self.decl.over.key_span)}
        self.branch = draft_branch(self.decl.branch, given, self.around, known, self.make_block)
        self._read_settings(self.around.report)
        inner = self.branch.output.type
        if inner is POISON:
            return POISON
        item = optional(inner) if self.on_error == "none" else inner
        return list[item]  # type: ignore[valid-type]

    def _read_settings(self, report: Report) -> None:
        if self.decl.concurrency is not None:
            self.concurrency = _read_concurrency(self.decl.concurrency, report)
        node = self.decl.on_error
        if node is not None:
            value = node.value if isinstance(node, ScalarNode) else None
            if value in MAP_ON_ERROR:
                self.on_error = cast('Literal["fail", "skip", "none"]', value)
            else:
                hint = "`skip` leaves failed items out, `none` keeps their place"
                report.error("RB201", "`on_error` of a map is `fail`, `skip` or `none`", node.span, hint)

    def bind_values(self, known: Known) -> None:
        """Bind what is written inside; what a map goes over was bound to find out its type."""
        bind_branches([self.branch], known)

    def arrow_targets(self) -> Sequence[tuple[Draft, int]]:
        """Return nothing: what a map needs is referred to inside it."""
        return ()

    def finish(self, known: Known) -> None:
        """Bind what is inside."""
        inside = finish_branches([self.branch], known)
        self.reads = inside | slots_of([self.items.value])
        name = self.decl.over.key
        if name not in self.branch.body.context.scope.used and not self.around.report.failed:
            hint = f"refer to it as `${name}`, or the body does the same for every item"
            self.around.report.warning(
                "RB901", f"nothing uses the loop variable `{name}`", self.decl.over.key_span, hint
            )

    def close(self) -> None:
        """Put the body into order."""
        close_branches([self.branch])

    def build(self, flows: FlowSource) -> Block:
        """Return the map."""
        return Map(build_branch(self.branch, flows), self.items.value, self.concurrency, self.on_error)


def _read_concurrency(node: Node, report: Report) -> int:
    value = node.value if isinstance(node, ScalarNode) else None
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    report.error("RB201", "`concurrency` is a whole number of at least 1", node.span, "write `concurrency: 8`")
    return DEFAULT_CONCURRENCY


@dataclass
class GroupDraft:
    """An inline group in the making."""

    draft: Draft
    decl: GroupDecl
    around: Context
    make_block: MakeBlock
    reads: frozenset[tuple[int, int]] = frozenset()
    branch: BranchDraft = field(init=False)

    def declare(self, known: Known) -> Any:
        """Return None: what is inside decides."""

    def begin(self, known: Known) -> Any:
        """Look up the body; the output is what it gives."""
        self.branch = draft_branch(self.decl.branch, {}, self.around, known, self.make_block)
        return self.branch.output.type

    def bind_values(self, known: Known) -> None:
        """Bind what is written inside."""
        bind_branches([self.branch], known)

    def arrow_targets(self) -> Sequence[tuple[Draft, int]]:
        """Return nothing: what a group needs is referred to inside it."""
        return ()

    def finish(self, known: Known) -> None:
        """Bind what is inside."""
        self.reads = finish_branches([self.branch], known)

    def close(self) -> None:
        """Put the body into order."""
        close_branches([self.branch])

    def build(self, flows: FlowSource) -> Block:
        """Return the group."""
        return Group(build_branch(self.branch, flows))
