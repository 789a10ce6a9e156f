"""The steps of a run as a tree: what ran inside a block stands under it, round by round."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ragbraid.flows.trace_record import Prices, StepRecord
from ragbraid.registry.contracts import Usage

ROUND_WORDS = {"loop": "round", "map": "item", "gate": "try", "switch": "branch"}
"""What one run of the inside of a block is called."""
_LABELLED_BRANCHES = ("switch", "gate")


@dataclass
class StepNode:
    """A step with what ran inside it.

    `number` is its place in the trace, from 1; `name` its name without what stands around it; `round` the label of the
    round, item, try or branch that it belongs to; `box` its id in the drawing of the flow.
    """

    number: int
    step: StepRecord
    name: str
    round: str
    box: str
    children: list[StepNode] = field(default_factory=list)

    @property
    def rounds(self) -> list[tuple[str, list[StepNode]]]:
        """What ran inside, by round; a map's items in their order, whichever started first."""
        grouped: dict[str, list[StepNode]] = {}
        for child in self.children:
            grouped.setdefault(child.round, []).append(child)
        return sorted(grouped.items(), key=lambda entry: int(entry[0]) if entry[0].isdecimal() else 0)

    @property
    def usage(self) -> Usage:
        """What it used with everything inside it."""
        return sum((node.step.usage for node in walk_tree([self])), Usage())

    def cost_usd(self, prices: Prices) -> float:
        """Return what it cost with everything inside it."""
        return sum(prices.cost_usd(node.step.usage) for node in walk_tree([self]))


class _Place(NamedTuple):
    parent: StepNode | None
    round: str
    name: str


def step_tree(steps: Iterable[StepRecord]) -> list[StepNode]:
    """Return the steps of the flow itself, each with what ran inside it.

    A step whose block is not in the trace stands at the top under its whole path.
    """
    roots: list[StepNode] = []
    latest: dict[str, StepNode] = {}  # a block that is tried again has its steps under the same paths once more
    for number, step in enumerate(steps, start=1):
        place = _place(step.path, latest)
        node = StepNode(number, step, place.name, place.round, _box(place))
        (roots if place.parent is None else place.parent.children).append(node)
        latest[step.path] = node
    return roots


def walk_tree(nodes: Iterable[StepNode]) -> Iterator[StepNode]:
    """Yield every step, each before what ran inside it."""
    for node in nodes:
        yield node
        yield from walk_tree(node.children)


def _place(path: str, known: dict[str, StepNode]) -> _Place:
    around, dot, name = path.rpartition(".")
    if not dot:
        return _Place(None, "", path)
    if around in known:
        return _Place(known[around], "", name)
    block, bracket, _ = around.rpartition("[")
    while bracket:  # a label may itself hold brackets
        if block in known and around.endswith("]"):
            return _Place(known[block], around[len(block) + 1 : -1], name)
        block, bracket, _ = block.rpartition("[")
    return _Place(None, "", path)


def _box(place: _Place) -> str:
    if place.parent is None:
        return place.name
    labelled = place.round and place.parent.step.node in _LABELLED_BRANCHES
    return f"{place.parent.box}[{place.round}].{place.name}" if labelled else f"{place.parent.box}.{place.name}"
