"""Drawings of a plan as text and for Mermaid; `ragbraid.dsl.draw_svg` draws an SVG."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ragbraid.dsl.edges import Edge, plan_edges
from ragbraid.dsl.outline import Item, Part, outline, walk
from ragbraid.dsl.plan import AnyStep, Call, Plan, Step


def step_label(step: AnyStep) -> str:
    """Return the name of the node that a step runs, the flow that it calls, or what kind of block it is."""
    if isinstance(step, Step):
        return step.node.name
    return f"flow {step.block.flow}" if isinstance(step.block, Call) else step.label


def draw_text(plan: Plan, *, types: bool = False) -> str:
    """Draw one line per step: what goes in, the step and its node; with `types`, what travels."""
    incoming: dict[tuple[str, bool], list[Edge]] = {}
    results: list[Edge] = []
    for edge in plan_edges(plan):
        if edge.kind == "output":
            results.append(edge)
        else:
            incoming.setdefault((edge.target, edge.kind == "result"), []).append(edge)
    lines = [f"{plan.name}({', '.join(spec.name for spec in plan.inputs)})"]
    lines.extend(_text_of(outline(plan), incoming, types, "  "))
    for edge in results:
        lines.append(f"  output {edge.port}".rstrip() + f" <- {edge.source}" + (f": {edge.type}" if types else ""))
    return "\n".join(lines) + "\n"


def _text_of(part: Part, incoming: dict[tuple[str, bool], list[Edge]], types: bool, indent: str) -> Iterator[str]:
    width = max((len(item.step.name) for item in part.items), default=0)
    for item in part.items:
        yield f"{indent}{item.step.name:<{width}}  {step_label(item.step)}"
        margin = f"{indent}{'':<{width}}    "
        yield from (f"{margin}<- {_edge_text(edge, types)}" for edge in incoming.get((item.id, False), ()))
        for inner in item.parts:
            if inner.label:
                yield f"{margin}[{inner.label}]"
            yield from _text_of(inner, incoming, types, margin + "  ")
        yield from (f"{margin}-> {_result_text(edge, types)}" for edge in incoming.get((item.id, True), ()))


def _edge_text(edge: Edge, types: bool) -> str:
    text = f"{edge.source} -> {edge.port}"
    return text + _type_text(edge) if types else text


def _result_text(edge: Edge, types: bool) -> str:
    return f"{edge.port}: {edge.source}" + (_type_text(edge) if types else "")


def _type_text(edge: Edge) -> str:
    return f": {edge.type}" + (f" by {edge.conversion}" if edge.conversion else "")


def draw_mermaid(plan: Plan, *, types: bool = False) -> str:
    """Draw a Mermaid flowchart, which GitHub and many editors show; a block is a subgraph."""
    whole = outline(plan)
    lines = ["flowchart LR", *_mermaid_part(whole, "input", "  "), '  result(["output"])']
    steps = {item.id for _, item in walk(whole)}
    arrows = []
    for edge in plan_edges(plan):
        if edge.kind == "result":
            continue  # an arrow from the inside of a subgraph to the subgraph itself cannot be drawn
        label = f"|{_mermaid_label(edge)}|" if types else ""
        target = "result" if edge.kind == "output" else _mermaid_id("step", edge.target)
        source = _mermaid_id("step" if edge.source in steps else "input", edge.source)
        arrows.append(f"  {source} -->{label} {target}")
    return "\n".join([*lines, *dict.fromkeys(arrows)]) + "\n"


def _mermaid_part(part: Part, word: str, indent: str) -> Iterator[str]:
    yield from (f'{indent}{_mermaid_id(word, path)}(["{name}"])' for path, name in part.givens)
    for item in part.items:
        yield from _mermaid_item(item, indent)


def _mermaid_item(item: Item, indent: str) -> Iterator[str]:
    name, label = _mermaid_id("step", item.id), step_label(item.step)
    if not item.parts:
        yield f'{indent}{name}["{item.step.name}<br/><small>{label}</small>"]'
        return
    yield f'{indent}subgraph {name}["{item.step.name} ({label})"]'
    for part in item.parts:
        if part.label:
            yield f'{indent}  subgraph {name}_{_safe(part.label)}["{part.label}"]'
        yield from _mermaid_part(part, "input", indent + ("    " if part.label else "  "))
        if part.label:
            yield f"{indent}  end"
    yield f"{indent}end"


def _mermaid_id(word: str, path: str) -> str:
    return f"{word}_{_safe(path)}"


def _safe(text: str) -> str:
    return re.sub(r"\W+", "_", text)


def _mermaid_label(edge: Edge) -> str:
    text = edge.type + (f" by {edge.conversion}" if edge.conversion else "")
    return '"' + text.replace('"', "#quot;") + '"'
