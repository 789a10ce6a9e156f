"""A run as one HTML page: nothing is loaded, nothing is executed, and every text of the run stays a text.

The page has no script and forbids itself any by its content security policy. It works from `file://`, with a keyboard
alone, on a phone and in a screen reader; a browser opens a folded step when a link leads into it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from ragbraid.dsl.layout import DrawnBox
from ragbraid.flows.trace_record import ErrorRecord, Prices, RunRecord
from ragbraid.flows.trace_text import HitTable, glimpse, hit_table, seconds_text, value_text
from ragbraid.flows.trace_tree import ROUND_WORDS, StepNode, step_tree, walk_tree
from ragbraid.registry.contracts import Usage

if TYPE_CHECKING:
    from jinja2 import Template

MAX_STEPS = 1_000
MAX_ROUNDS = 20
MAX_VALUE = 6_000
MAX_VALUES = 2_000_000
MAX_LINE = 80
MAX_UNFOLDED = 40
"""What a page shows: steps, rounds of one block, characters of one value and of all values together, of one on a line with its name; steps of a block that lie open."""

_SYMBOLS = {"ok": "✓", "empty": "∅", "degraded": "!", "failed": "✗", "skipped": "–", "running": "…", "cancelled": "✗"}
_WORST_FIRST = ("failed", "degraded", "empty", "ok", "skipped")


class Value(NamedTuple):
    """A named value; the name of a flow's single output is empty. A ranking has a table beside its text."""

    name: str
    text: str
    hits: HitTable | None = None

    @property
    def short(self) -> bool:
        """Whether it fits on a line."""
        return self.hits is None and len(self.text) <= MAX_LINE and "\n" not in self.text


class Cited(NamedTuple):
    """An answer with what it cites, each with its number, place and quote."""

    name: str
    text: str
    citations: list[tuple[str, str, str]]


class Cell(NamedTuple):
    """A step in one round, at a glance."""

    view: StepView
    gist: str


@dataclass
class RoundView:
    """What ran in one round of a block; `title` is empty where a block has no rounds."""

    title: str
    steps: list[StepView] = field(default_factory=list)


@dataclass
class StepView:
    """A step as the page shows it; times are percent of the run's."""

    anchor: str
    name: str
    path: str
    node: str
    status: str
    symbol: str
    took: str
    began: str
    bar_start: float
    bar_width: float
    usage: Usage
    cost: str
    attempts: int
    cached: bool
    notes: Sequence[str]
    error: ErrorRecord | None
    inputs: list[Value]
    output: Value
    rounds: list[RoundView] = field(default_factory=list)
    rows: list[tuple[str, list[list[Cell]]]] = field(default_factory=list)
    """The rounds side by side: a row per step inside, a column per round."""
    left_out: str = ""

    @property
    def unfolded(self) -> bool:
        """Whether its rounds are few enough to lie open."""
        return sum(len(shown.steps) for shown in self.rounds) <= MAX_UNFOLDED


class BoxView(NamedTuple):
    """A box of the drawing; without a link where nothing of it ran or is shown."""

    box: DrawnBox
    status: str
    symbol: str
    link: str
    label: str


def trace_page(run: RunRecord, prices: Prices | None = None) -> str:
    """Return the page of a run as HTML.

    The page has a bound, whatever ran: 1,000 steps, 20 rounds of one block (and those that failed), 6,000 characters of
    one value, 2 million of all; it says what is left out.

    Args:
        run: the run, as its trace tells it.
        prices: what tokens cost; without them the page has no cost.
    """
    return _Page(run, prices).render()


class _Page:
    """Builds a page; counts what it has room for."""

    def __init__(self, run: RunRecord, prices: Prices | None) -> None:
        self.run = run
        self.prices = prices
        self.seconds = max([run.seconds, *(step.ended or step.started for step in run.steps)])
        self.room_for_steps = MAX_STEPS
        self.room_for_values = MAX_VALUES
        self.shown: dict[int, StepView] = {}

    def render(self) -> str:
        run = self.run
        tree = step_tree(run.steps)
        top = RoundView("")
        left_out = self._fill(top, tree)
        failed = next((node for node in walk_tree(tree) if run.error and node.step.path == run.error.step), None)
        style, template = _template()
        return template.render(
            run=run,
            style=style,
            style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
            took=seconds_text(run.seconds),
            symbol=_SYMBOLS[run.status],
            cost="" if self.prices is None else _usd(sum(node.cost_usd(self.prices) for node in tree)),
            failed=self.shown.get(failed.number) if failed else None,
            inputs=self._values(run.inputs),
            answers=[cited for name, value in run.outputs.items() if (cited := _cited(name, value))],
            outputs=self._values(run.outputs),
            top=top,
            left_out=_left_out(left_out, "step"),
            boxes=[] if run.drawing is None else self._boxes(run.drawing.boxes, tree),
        ).lstrip()

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _fill(self, shown: RoundView, nodes: Sequence[StepNode]) -> int:
        """Show steps as long as there is room; returns how many are left out."""
        for position, node in enumerate(nodes):
            if not self.room_for_steps:
                return sum(1 for _ in walk_tree(nodes[position:]))
            self.room_for_steps -= 1
            shown.steps.append(self._step(node))
        return 0

    def _step(self, node: StepNode) -> StepView:
        step = node.step
        ended = self.run.seconds if step.ended is None else step.ended
        width = 100 * max(ended - step.started, 0) / self.seconds if self.seconds else 0
        view = StepView(
            anchor=f"step-{node.number}",
            name=node.name,
            path=step.path,
            node=step.node,
            status=step.status,
            symbol=_SYMBOLS[step.status],
            took=seconds_text(max(ended - step.started, 0)) if step.ended is not None else "not ended",
            began=seconds_text(step.started),
            bar_start=round(min(100 * step.started / self.seconds, 99.5) if self.seconds else 0, 2),
            bar_width=round(max(width, 0.5), 2),
            usage=node.usage,
            cost="" if self.prices is None else _usd(node.cost_usd(self.prices)),
            attempts=step.attempts,
            cached=step.cached,
            notes=step.notes,
            error=step.error,
            inputs=self._values(step.inputs),
            output=self._value("output", step.output),
        )
        self.shown[node.number] = view
        self._fill_rounds(view, node)
        return view

    def _fill_rounds(self, view: StepView, node: StepNode) -> None:
        word = ROUND_WORDS.get(node.step.node, "part")
        rounds, left_out = node.rounds, 0
        for position, (label, nodes) in enumerate(rounds):
            failed = any(inner.step.status == "failed" for inner in walk_tree(nodes))
            if position >= MAX_ROUNDS and (not failed or len(view.rounds) >= 2 * MAX_ROUNDS):
                left_out += sum(1 for _ in walk_tree(nodes))
                continue
            shown = RoundView(f"{word} {label}" if label else "")
            left_out += self._fill(shown, nodes)
            if shown.steps:
                view.rounds.append(shown)
        view.left_out = _left_out(left_out, f"step of further {word}s" if len(rounds) > 1 else "step")
        if len(view.rounds) > 1:
            view.rows = self._side_by_side(view)

    def _side_by_side(self, block: StepView) -> list[tuple[str, list[list[Cell]]]]:
        names = dict.fromkeys(step.name for shown in block.rounds for step in shown.steps)
        return [
            (name, [[self._cell(step) for step in shown.steps if step.name == name] for shown in block.rounds])
            for name in names
        ]

    def _cell(self, view: StepView) -> Cell:
        step = self.run.steps[int(view.anchor.removeprefix("step-")) - 1]
        return Cell(
            view, step.error.message[:200] if step.error else "" if step.output is None else glimpse(step.output)
        )

    # -- values --------------------------------------------------------------------------------------------------------

    def _values(self, values: Mapping[str, Any]) -> list[Value]:
        return [self._value(name, value) for name, value in values.items()]

    def _value(self, name: str, value: Any) -> Value:
        text = value_text(value)
        room = min(MAX_VALUE, self.room_for_values)
        if len(text) > room:
            text = f"{text[:room]}… ({len(text) - room:,} more characters in the trace)"
        self.room_for_values -= min(len(text), room)
        return Value(name, text, hit_table(value) if room == MAX_VALUE else None)

    # -- the drawing ---------------------------------------------------------------------------------------------------

    def _boxes(self, boxes: Sequence[DrawnBox], tree: Sequence[StepNode]) -> list[BoxView]:
        ran: dict[str, list[StepNode]] = {}
        for node in walk_tree(tree):
            ran.setdefault(node.box, []).append(node)
        return [self._box(box, ran.get(box.id, [])) for box in boxes]

    def _box(self, box: DrawnBox, nodes: Sequence[StepNode]) -> BoxView:
        if not nodes:
            return BoxView(box, "idle" if box.small else "", "", "", "")
        worst = min(nodes, key=lambda node: _WORST_FIRST.index(node.step.status))
        linked = [node for node in (worst, *nodes) if node.number in self.shown]
        status = worst.step.status
        what = f"{box.title}, {box.small}" if box.small else box.title
        times = f"ran {len(nodes):,} times, {status}" if len(nodes) > 1 else status
        link = f"#{self.shown[linked[0].number].anchor}" if linked else ""
        return BoxView(box, status, _SYMBOLS[status], link, f"{what}: {times}")


def _cited(name: str, value: Any) -> Cited | None:
    """Return an output that is an answer as readers see it."""
    if not (isinstance(value, Mapping) and isinstance(value.get("text"), str) and "citations" in value):
        return None
    citations = value["citations"] if isinstance(value["citations"], list) else []
    told = [
        (str(each.get("marker")), str(each.get("source") or each.get("chunk_id")), str(each.get("quote") or ""))
        for each in citations
        if isinstance(each, Mapping)
    ]
    return Cited(name, value["text"], told)


def _left_out(count: int, what: str) -> str:
    if not count:
        return ""
    first, _, rest = what.partition(" ")
    return f"{count:,} {first}{'' if count == 1 else 's'} {rest}".rstrip() + " not shown; the trace has all of them"


def _usd(amount: float) -> str:
    return f"${amount:.4f}" if amount < 1 else f"${amount:,.2f}"


@cache
def _template() -> tuple[str, Template]:
    """Return the style sheet and the template, in which every value is escaped unless it says otherwise."""
    from jinja2 import Environment, StrictUndefined

    folder = files("ragbraid.flows") / "pages"
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((folder / "trace.html.jinja").read_text(encoding="utf-8"))
    return (folder / "trace.css").read_text(encoding="utf-8"), template
