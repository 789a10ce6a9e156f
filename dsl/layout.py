"""Where everything stands in a drawing of a plan: columns by longest path, blocks as boxes around what is inside them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ragbraid.dsl.draw import step_label
from ragbraid.dsl.edges import plan_edges
from ragbraid.dsl.outline import Item, Part, outline
from ragbraid.dsl.plan import Plan

BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, MARGIN, TITLE = 190, 46, 70, 24, 20, 26
_RESULT = ""
"""The id of the box of the outputs, which no step can bear."""


@dataclass(frozen=True, slots=True)
class DrawnBox:
    """A box at its place, in pixels from the upper left corner of the drawing.

    `id` is that of the step, input, state or loop variable (`ragbraid.dsl.outline`), of a branch (`route[general]`), or
    empty for the outputs. `small` is what stands below the title; a `frame` stands around the boxes inside it.
    """

    id: str
    title: str
    small: str
    x: int
    y: int
    width: int
    height: int
    frame: bool


@dataclass(frozen=True, slots=True)
class DrawnArrow:
    """An arrow from the right side of a box to the left side of another; `type` is what travels."""

    x1: int
    y1: int
    x2: int
    y2: int
    type: str

    @property
    def curve(self) -> str:
        """The arrow as the `d` of an SVG path."""
        bend = (self.x1 + self.x2) / 2
        return f"M{self.x1} {self.y1} C{bend} {self.y1} {bend} {self.y2} {self.x2} {self.y2}"


@dataclass(frozen=True, slots=True)
class Drawing:
    """A plan's boxes, every frame before what is inside it, and its arrows."""

    width: int
    height: int
    boxes: tuple[DrawnBox, ...]
    arrows: tuple[DrawnArrow, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "width": self.width,
            "height": self.height,
            "boxes": [asdict(box) for box in self.boxes],
            "arrows": [asdict(arrow) for arrow in self.arrows],
        }


@dataclass(frozen=True, slots=True)
class _Line:
    source: str
    target: str
    type: str


@dataclass(frozen=True, slots=True)
class _Box:
    """A box with its place inside its parent; `title` stands on it, `small` below the title."""

    id: str
    title: str
    small: str
    width: int
    height: int
    x: int = 0
    y: int = 0
    inner: tuple[_Box, ...] = ()
    lines: tuple[_Line, ...] = ()
    """Connections between the boxes inside."""


def draw_plan(plan: Plan) -> Drawing:
    """Place one box per input, step and output, and a frame around the inside of every block."""
    whole = outline(plan)
    parents = _parents(whole)
    parents[_RESULT] = None
    lines = [
        _Line(edge.source, _RESULT if edge.kind == "output" else edge.target, edge.type) for edge in plan_edges(plan)
    ]
    lifted: dict[str | None, list[_Line]] = {}
    for line in lines:
        parent, raised = _lift(line, parents)
        if raised is not None:
            lifted.setdefault(parent, []).append(raised)
    boxes = [*_boxes_of(whole, lifted), _Box(_RESULT, "output", "", BOX_WIDTH, BOX_HEIGHT)]
    between = _unique(lifted.get(None, ()))
    placed, width, height = _place(boxes, between)
    corner = (MARGIN, MARGIN)
    return Drawing(
        width + 2 * MARGIN, height + 2 * MARGIN, tuple(_drawn(placed, corner)), tuple(_arrows(placed, between, corner))
    )


# -- which box stands in which -----------------------------------------------------------------------------------------


def _parents(part: Part, parent: str | None = None) -> dict[str, str | None]:
    """Return the id of the box around every box; None for those of the flow itself."""
    found: dict[str, str | None] = {path: parent for path, _ in part.givens}
    for item in part.items:
        found[item.id] = parent
        for inner in item.parts:
            around = _frame_id(item, inner)
            if around != item.id:
                found[around] = item.id
            found |= _parents(inner, around)
    return found


def _frame_id(item: Item, part: Part) -> str:
    return f"{item.id}[{part.label}]" if part.label else item.id


def _lift(line: _Line, parents: Mapping[str, str | None]) -> tuple[str | None, _Line | None]:
    """Raise both ends of a connection to boxes that stand side by side; None where one stands inside the other."""
    source, target = _path(line.source, parents), _path(line.target, parents)
    shared = 0
    while shared < min(len(source), len(target)) and source[shared] == target[shared]:
        shared += 1
    if shared in (len(source), len(target)):
        return None, None
    parent = source[shared - 1] if shared else None
    return parent, _Line(source[shared], target[shared], line.type)


def _path(box: str, parents: Mapping[str, str | None]) -> list[str]:
    """Return the boxes from the outermost one down to this one."""
    path = [box]
    while (parent := parents[path[0]]) is not None:
        path.insert(0, parent)
    return path


# -- sizes and places --------------------------------------------------------------------------------------------------


def _boxes_of(part: Part, lines: Mapping[str | None, Sequence[_Line]]) -> list[_Box]:
    givens = [_Box(path, name, "", BOX_WIDTH, BOX_HEIGHT) for path, name in part.givens]
    return [*givens, *(_box(item, lines) for item in part.items)]


def _box(item: Item, lines: Mapping[str | None, Sequence[_Line]]) -> _Box:
    label = step_label(item.step)
    if not item.parts:
        return _Box(item.id, item.step.name, label, BOX_WIDTH, BOX_HEIGHT)
    title = f"{item.step.name} ({label})"
    if len(item.parts) == 1 and not item.parts[0].label:
        return _frame(item.id, title, _boxes_of(item.parts[0], lines), lines)
    frames = [_frame(_frame_id(item, part), part.label or "body", _boxes_of(part, lines), lines) for part in item.parts]
    return _frame(item.id, title, frames, lines)


def _frame(box: str, title: str, inner: Sequence[_Box], lines: Mapping[str | None, Sequence[_Line]]) -> _Box:
    between = _unique(lines.get(box, ()))
    placed, width, height = _place(inner, between)
    width, height = max(width + 2 * MARGIN, BOX_WIDTH), height + MARGIN + TITLE + MARGIN // 2
    return _Box(box, title, "", width, height, inner=tuple(placed), lines=tuple(between))


def _place(boxes: Sequence[_Box], lines: Sequence[_Line]) -> tuple[list[_Box], int, int]:
    """Put every box one column behind the last of those that it reads; returns the whole's width and height."""
    columns: list[list[_Box]] = []
    column_of: dict[str, int] = {}
    sources: dict[str, list[str]] = {}
    for line in lines:
        sources.setdefault(line.target, []).append(line.source)
    for box in boxes:
        behind = [column_of[source] for source in sources.get(box.id, ()) if source in column_of]
        column_of[box.id] = 1 + max(behind, default=-1)
        columns.extend([] for _ in range(column_of[box.id] + 1 - len(columns)))
        columns[column_of[box.id]].append(box)
    placed, x, height = [], 0, 0
    for column in columns:
        y = 0
        for box in column:
            placed.append(_Box(box.id, box.title, box.small, box.width, box.height, x, y, box.inner, box.lines))
            y += box.height + GAP_Y
        x += max(box.width for box in column) + GAP_X
        height = max(height, y - GAP_Y)
    return placed, max(x - GAP_X, 0), height


def _unique(lines: Iterable[_Line]) -> list[_Line]:
    return list(dict.fromkeys(lines))


# -- in pixels of the whole --------------------------------------------------------------------------------------------


def _drawn(boxes: Sequence[_Box], corner: tuple[int, int]) -> Iterator[DrawnBox]:
    for box in boxes:
        x, y = corner[0] + box.x, corner[1] + box.y
        yield DrawnBox(box.id, box.title, box.small, x, y, box.width, box.height, bool(box.inner))
        yield from _drawn(box.inner, _inner_corner(box, corner))


def _arrows(boxes: Sequence[_Box], lines: Sequence[_Line], corner: tuple[int, int]) -> Iterator[DrawnArrow]:
    places = {box.id: box for box in boxes}
    for line in lines:
        source, target = places[line.source], places[line.target]
        yield DrawnArrow(
            corner[0] + source.x + source.width,
            corner[1] + source.y + source.height // 2,
            corner[0] + target.x,
            corner[1] + target.y + target.height // 2,
            line.type,
        )
    for box in boxes:
        yield from _arrows(box.inner, box.lines, _inner_corner(box, corner))


def _inner_corner(box: _Box, corner: tuple[int, int]) -> tuple[int, int]:
    return corner[0] + box.x + MARGIN, corner[1] + box.y + TITLE + 10
