"""A self-contained SVG of a plan."""

from __future__ import annotations

from html import escape

from ragbraid.dsl.draw import draw_text
from ragbraid.dsl.layout import DrawnArrow, DrawnBox, draw_plan
from ragbraid.dsl.plan import Plan

_DEFINITIONS = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0 L8 4 L0 8 z" fill="#667"/></marker></defs>'
)


def draw_svg(plan: Plan, *, types: bool = False) -> str:
    """Draw a self-contained SVG: one box per input, step and output, and a box around the inside of every block."""
    drawing = draw_plan(plan)
    width, height = drawing.width, drawing.height
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'role="img" font-family="system-ui, sans-serif" font-size="13">'
    )
    about = f"<title>{escape(plan.name)}</title><desc>{escape(draw_text(plan))}</desc>"
    frames = [_frame_around(box) for box in drawing.boxes if box.frame]
    arrows = [_arrow(arrow, types) for arrow in drawing.arrows]
    plain = [_plain(box) for box in drawing.boxes if not box.frame]
    return "\n".join([head, about, _DEFINITIONS, *frames, *arrows, *plain, "</svg>"]) + "\n"


def _frame_around(box: DrawnBox) -> str:
    rect = (
        f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="10" fill="#fbfbf7" stroke="#99a" '
        'stroke-dasharray="5 3"/>'
    )
    return f'<g>{rect}<text x="{box.x + 12}" y="{box.y + 19}" font-size="12" fill="#446">{escape(box.title)}</text></g>'


def _plain(box: DrawnBox) -> str:
    x, y = box.x, box.y
    middle = x + box.width / 2
    rounded, fill = (8, "#eef3fb") if box.small else (22, "#f5f5f0")
    title = f'<text x="{middle}" y="{y + (20 if box.small else 28)}" text-anchor="middle">{escape(box.title)}</text>'
    small = (
        f'<text x="{middle}" y="{y + 36}" text-anchor="middle" font-size="11" fill="#556">{escape(box.small)}</text>'
        if box.small
        else ""
    )
    rect = (
        f'<rect x="{x}" y="{y}" width="{box.width}" height="{box.height}" rx="{rounded}" fill="{fill}" stroke="#889"/>'
    )
    return f"<g>{rect}{title}{small}</g>"


def _arrow(arrow: DrawnArrow, types: bool) -> str:
    path = f'<path d="{arrow.curve}" fill="none" stroke="#667" marker-end="url(#tip)"/>'
    if not types:
        return path
    label = (
        f'<text x="{(arrow.x1 + arrow.x2) / 2}" y="{(arrow.y1 + arrow.y2) / 2 - 4}" text-anchor="middle" '
        f'font-size="10" fill="#446">{escape(arrow.type)}</text>'
    )
    return path + label
