"""The graph of one body: an order to run in, cycles, nodes that nothing reaches."""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter

from ragbraid.dsl.draft import Draft
from ragbraid.dsl.report import Report
from ragbraid.registry.errors import Label


def order_steps(drafts: Sequence[Draft], report: Report) -> list[Draft]:
    """Return the drafts so that each comes after what it reads, ties in file order; RB207 for every cycle."""
    by_slot = {draft.slot: draft for draft in drafts}
    edges = {draft.slot: {slot for slot in draft.needs if slot in by_slot} for draft in drafts}
    while True:
        try:
            return [by_slot[slot] for slot in _stable_order(edges)]
        except CycleError as error:
            cycle = [by_slot[slot] for slot in error.args[1]][:-1]
            _report_cycle(cycle, report)
            # Break the reported cycle, so that another one is found and this one is reported once.
            for draft in cycle:
                edges[draft.slot] -= {other.slot for other in cycle}


def _stable_order(edges: dict[int, set[int]]) -> list[int]:
    sorter = TopologicalSorter(edges)
    sorter.prepare()
    order: list[int] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        order.extend(ready)
        sorter.done(*ready)
    return order


def _report_cycle(cycle: list[Draft], report: Report) -> None:
    first = min(range(len(cycle)), key=lambda position: cycle[position].slot)
    turned = cycle[first:] + cycle[:first]
    names = " -> ".join(f"`{draft.name}`" for draft in [*turned, turned[0]])
    hint = "a flow runs forward only; to repeat steps, put them into a `loop`"
    labels = [Label(draft.span, "is part of the cycle") for draft in turned[1:]]
    report.error("RB207", f"these nodes wait for each other: {names}", turned[0].span, hint, labels)


def report_unreached(drafts: Sequence[Draft], output_slots: frozenset[int], report: Report) -> None:
    """RB206 for a node that no arrow, reference or output touches; RB906 for one whose result nothing uses."""
    read = output_slots.union(*(draft.needs for draft in drafts))
    for draft in drafts:
        if draft.slot in read:
            continue
        if draft.touched_by_arrow:
            hint = "use it in an arrow, a reference or under `outputs`, or remove it"
            report.warning("RB906", f"nothing uses the result of `{draft.name}`", draft.span, hint)
        else:
            hint = "use it in an arrow, a reference or under `outputs`, or remove it"
            report.error("RB206", f"nothing in the flow reaches `{draft.name}`", draft.span, hint)
