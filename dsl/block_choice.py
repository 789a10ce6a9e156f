"""`switch` and `gate`: one of several branches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ragbraid.dsl.bodies import MakeBlock
from ragbraid.dsl.branches import (
    BranchDraft,
    bind_branches,
    branch_targets,
    build_branch,
    close_branches,
    draft_branch,
    finish_branches,
)
from ragbraid.dsl.cases import read_cases
from ragbraid.dsl.conditions import bind_condition, bind_judgement
from ragbraid.dsl.draft import Draft
from ragbraid.dsl.known import FlowSource, Known
from ragbraid.dsl.plan import Block, Computed, Gate, Switch
from ragbraid.dsl.report import Report
from ragbraid.dsl.scope import POISON
from ragbraid.dsl.source_nodes import Node
from ragbraid.dsl.syntax import BranchDecl, GateDecl, SwitchDecl
from ragbraid.dsl.types import common_type, describe, optional
from ragbraid.dsl.values import Bound, Context, bind_value
from ragbraid.dsl.walk import slots_of
from ragbraid.registry.errors import Label


@dataclass
class SwitchDraft:
    """A switch in the making."""

    draft: Draft
    decl: SwitchDecl
    around: Context
    make_block: MakeBlock
    reads: frozenset[tuple[int, int]] = frozenset()
    branches: list[BranchDraft] = field(default_factory=list)
    otherwise: BranchDraft | None = None
    on: Bound | None = None
    conditions: list[Bound] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)

    @property
    def _all(self) -> list[BranchDraft]:
        return [*self.branches, *([self.otherwise] if self.otherwise is not None else [])]

    def declare(self, known: Known) -> Any:
        """Return None: what is inside decides."""

    def begin(self, known: Known) -> Any:
        """Look up the branches; the output is of the type that all of them have in common."""

        def drafted(decl: BranchDecl) -> BranchDraft:
            return draft_branch(decl, {}, self.around, known, self.make_block)

        self.branches = [drafted(decl) for decl in self.decl.cases]
        if self.decl.otherwise is not None:
            self.otherwise = drafted(self.decl.otherwise)
        common = _common_output(self._all, self.draft.name, self.around.report)
        by_condition = self.decl.on is None
        return optional(common) if by_condition and self.otherwise is None and common is not POISON else common

    def bind_values(self, known: Known) -> None:
        """Bind what decides (the value of `on` with the cases, or the conditions), and what is written inside."""
        bind_branches(self._all, known)
        if self.decl.on is not None:
            self.on = bind_value(self.decl.on, Any, "`on`", self.around)
            self.values = read_cases(self.decl, self.on.type, self.around.report)
            return
        hint = 'write a condition, such as `if: "${ hits | length == 0 }"`'
        for branch in self.decl.cases:
            assert branch.condition is not None
            self.conditions.append(bind_condition(branch.condition, "`if`", hint, self.around, "RB305"))

    def arrow_targets(self) -> Sequence[tuple[Draft, int]]:
        """Return the branches that are single nodes."""
        return branch_targets(self._all)

    def finish(self, known: Known) -> None:
        """Bind what is inside."""
        own = [bound.value for bound in (*self.conditions, *([self.on] if self.on else []))]
        outside = slots_of(own)
        self.reads = finish_branches(self._all, known) | outside

    def close(self) -> None:
        """Put every branch into order."""
        close_branches(self._all)

    def build(self, flows: FlowSource) -> Block:
        """Return the switch."""
        decides = self.values if self.on is not None else [bound.value for bound in self.conditions]
        cases = tuple(
            (branch.decl.label.text, decider, build_branch(branch, flows))
            for decider, branch in zip(decides, self.branches, strict=True)
        )
        last = None if self.otherwise is None else build_branch(self.otherwise, flows)
        return Switch(None if self.on is None else self.on.value, cases, last)


@dataclass
class GateDraft:
    """A gate in the making."""

    draft: Draft
    decl: GateDecl
    around: Context
    make_block: MakeBlock
    reads: frozenset[tuple[int, int]] = frozenset()
    tries: list[BranchDraft] = field(default_factory=list)
    output: Any = POISON
    enough: Computed | None = None

    def declare(self, known: Known) -> Any:
        """Return None: what is inside decides."""

    def begin(self, known: Known) -> Any:
        """Look up the groups that are tried; the output is of the type that all of them have in common."""
        self.tries = [draft_branch(decl, {}, self.around, known, self.make_block) for decl in self.decl.tries]
        self.output = _common_output(self.tries, self.draft.name, self.around.report)
        return self.output

    def bind_values(self, known: Known) -> None:
        """Bind the condition, and what is written inside."""
        bind_branches(self.tries, known)
        node: Node = self.decl.enough
        self.enough = bind_judgement(
            node, "enough", self.output, self.around, whose="what was tried", code="RB305", blind_code="RB304"
        )

    def arrow_targets(self) -> Sequence[tuple[Draft, int]]:
        """Return the tries that are single nodes."""
        return branch_targets(self.tries)

    def finish(self, known: Known) -> None:
        """Bind what is inside."""
        outside = slots_of([self.enough] if self.enough is not None else [])
        self.reads = finish_branches(self.tries, known) | outside

    def close(self) -> None:
        """Put every try into order."""
        close_branches(self.tries)

    def build(self, flows: FlowSource) -> Block:
        """Return the gate."""
        assert self.enough is not None
        return Gate(tuple(build_branch(branch, flows) for branch in self.tries), self.enough)


def _common_output(branches: Sequence[BranchDraft], name: str, report: Report) -> Any:
    """Return the type that takes what every branch gives; RB306 where there is none."""
    types = [branch.output.type for branch in branches]
    if any(type_ is POISON for type_ in types):
        return POISON
    common = common_type(types)
    if common is not None:
        return common
    odd = next(n for n, _ in enumerate(types) if common_type(types[: n + 1]) is None)
    first, other = branches[0], branches[odd]
    before = common_type(types[:odd])
    message = f"a branch of `{name}` gives {describe(types[odd])}, but those before it give {describe(before)}"
    labels = [Label(first.decl.label.span, f"gives {describe(types[0])}")]
    hint = "let every branch end in a node of the same output type"
    report.error("RB306", message, other.decl.label.span, hint, labels)
    return POISON
