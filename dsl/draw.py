"""Drawings of a plan: text, Mermaid and SVG."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import Any

from ragbraid.dsl.edges import Edge, plan_edges
from ragbraid.dsl.plan import Plan, Step

BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, MARGIN = 190, 46, 70, 24, 20
_SVG_DEFINITIONS = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0 L8 4 L0 8 z" fill="#667"/></marker></defs>'
)


def draw_text(plan: Plan, *, types: bool = False) -> str:
    """Draw one line per step: what goes in, the step and its node; with `types`, what travels."""
    lines = [f"{plan.name}({', '.join(spec.name for spec in plan.inputs)})"]
    incoming: dict[str, list[Edge]] = {}
    results: list[Edge] = []
    for edge in plan_edges(plan):
        (results if edge.kind == "output" else incoming.setdefault(edge.target, [])).append(edge)
    width = max((len(step.name) for step in plan.body.steps), default=0)
    for step in plan.body.steps:
        lines.append(f"  {step.name:<{width}}  {_label(step)}")
        lines.extend(f"  {'':<{width}}    <- {_edge_text(edge, types)}" for edge in incoming.get(step.name, ()))
    for edge in results:
        lines.append(f"  output {edge.port}".rstrip() + f" <- {edge.source}" + (f": {edge.type}" if types else ""))
    return "\n".join(lines) + "\n"


def _label(step: Any) -> str:
    """Return the name of the node that a step runs, or what kind of block it is."""
    return step.node.name if isinstance(step, Step) else str(step.label)


def _edge_text(edge: Edge, types: bool) -> str:
    text = f"{edge.source} -> {edge.port}"
    if not types:
        return text
    return f"{text}: {edge.type}" + (f" by {edge.conversion}" if edge.conversion else "")


def draw_mermaid(plan: Plan, *, types: bool = False) -> str:
    """Draw a Mermaid flowchart, which GitHub and many editors show."""
    names = {spec.name: f"input_{spec.name}" for spec in plan.inputs}
    names |= {step.name: f"step_{step.name}" for step in plan.body.steps}
    lines = ["flowchart LR"]
    lines.extend(f'  {names[spec.name]}(["{spec.name}"])' for spec in plan.inputs)
    lines.extend(f'  {names[step.name]}["{step.name}<br/><small>{_label(step)}</small>"]' for step in plan.body.steps)
    lines.append('  result(["output"])')
    for edge in plan_edges(plan):
        label = f"|{_mermaid_label(edge)}|" if types else ""
        target = "result" if edge.kind == "output" else names[edge.target]
        lines.append(f"  {names[edge.source]} -->{label} {target}")
    return "\n".join(dict.fromkeys(lines)) + "\n"


def _mermaid_label(edge: Edge) -> str:
    text = edge.type + (f" by {edge.conversion}" if edge.conversion else "")
    return '"' + text.replace('"', "#quot;") + '"'


def draw_svg(plan: Plan, *, types: bool = False) -> str:
    """Draw a self-contained SVG: columns by longest path from the inputs, one box per input, step and output."""
    edges = list(dict.fromkeys(_Line(edge.source, _target(edge), edge.type) for edge in plan_edges(plan)))
    columns = _columns(plan, edges)
    boxes = {
        name: (MARGIN + column * (BOX_WIDTH + GAP_X), MARGIN + row * (BOX_HEIGHT + GAP_Y))
        for column, names in enumerate(columns)
        for row, name in enumerate(names)
    }
    width = MARGIN * 2 + len(columns) * (BOX_WIDTH + GAP_X) - GAP_X
    height = MARGIN * 2 + max(len(names) for names in columns) * (BOX_HEIGHT + GAP_Y) - GAP_Y
    nodes = {step.name: _label(step) for step in plan.body.steps}
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'role="img" font-family="system-ui, sans-serif" font-size="13">'
    )
    about = f"<title>{escape(plan.name)}</title><desc>{escape(draw_text(plan))}</desc>"
    drawn_edges = [_svg_edge(edge, boxes, types) for edge in edges]
    drawn_boxes = [_svg_box(name, nodes.get(name), boxes[name]) for names in columns for name in names]
    parts = [head, about, _SVG_DEFINITIONS, *drawn_edges, *drawn_boxes, "</svg>"]
    return "\n".join(parts) + "\n"


_RESULT = ""
"""The name of the box of the outputs, which no step can bear."""


@dataclass(frozen=True, slots=True)
class _Line:
    source: str
    target: str
    type: str


def _target(edge: Edge) -> str:
    return _RESULT if edge.kind == "output" else edge.target


def _columns(plan: Plan, edges: Iterable[_Line]) -> list[list[str]]:
    """Put every box one column behind the last of those that it reads; steps are in running order already."""
    sources: dict[str, list[str]] = {}
    for edge in edges:
        sources.setdefault(edge.target, []).append(edge.source)
    column: dict[str, int] = {}
    columns: list[list[str]] = []
    for name in [*(spec.name for spec in plan.inputs), *(step.name for step in plan.body.steps), _RESULT]:
        column[name] = 1 + max((column[source] for source in sources.get(name, ())), default=-1)
        columns.extend([] for _ in range(column[name] + 1 - len(columns)))
        columns[column[name]].append(name)
    return columns


def _svg_box(name: str, node: str | None, corner: tuple[int, int]) -> str:
    x, y = corner
    rounded = 8 if node else 22
    fill = "#eef3fb" if node else "#f5f5f0"
    middle = x + BOX_WIDTH / 2
    title = f'<text x="{middle}" y="{y + (20 if node else 28)}" text-anchor="middle">{escape(name or "output")}</text>'
    small = (
        f'<text x="{middle}" y="{y + 36}" text-anchor="middle" font-size="11" fill="#556">{escape(node)}</text>'
        if node
        else ""
    )
    box = (
        f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="{rounded}" fill="{fill}" stroke="#889"/>'
    )
    return f"<g>{box}{title}{small}</g>"


def _svg_edge(edge: _Line, boxes: dict[str, tuple[int, int]], types: bool) -> str:
    x1, y1 = boxes[edge.source][0] + BOX_WIDTH, boxes[edge.source][1] + BOX_HEIGHT / 2
    x2, y2 = boxes[edge.target][0], boxes[edge.target][1] + BOX_HEIGHT / 2
    bend = (x1 + x2) / 2
    path = f'<path d="M{x1} {y1} C{bend} {y1} {bend} {y2} {x2} {y2}" fill="none" stroke="#667" marker-end="url(#tip)"/>'
    if not types:
        return path
    label = escape(edge.type)
    return (
        f'{path}<text x="{bend}" y="{(y1 + y2) / 2 - 4}" text-anchor="middle" font-size="10" fill="#446">{label}</text>'
    )
