from __future__ import annotations

import re
from collections.abc import Callable
from xml.etree import ElementTree

import pytest

from ragbraid.dsl.draw import draw_mermaid, draw_text
from ragbraid.dsl.draw_svg import draw_svg
from ragbraid.dsl.edges import plan_edges
from ragbraid.dsl.plan import Plan

Compile = Callable[..., Plan]
SVG = "{http://www.w3.org/2000/svg}"
NODES = 'kg: graph.exact\nc: graph.to_chunks\nrc: {use: retrieve.dense, when: "${ kg | length == 0 }"}\nm: fuse.rrf'
NAMED_OUTPUT = "output: retrieve.dense\nend: {use: rerank.cross, hits: $output}"


@pytest.fixture(scope="module")
def plan(compile_flow: Compile) -> Plan:
    return compile_flow(NODES, flow="kg -> c; c, rc -> m", outputs='{hits: $m, first: "${ m | length }"}')


@pytest.fixture(scope="module")
def named_output(compile_flow: Compile) -> Plan:
    return compile_flow(NAMED_OUTPUT, outputs="$end")


def test_edges_say_what_goes_where_by_which_conversion(plan: Plan) -> None:
    edges = {(e.source, e.target, e.port): e for e in plan_edges(plan)}
    assert edges["question", "kg", "query"].conversion == "text_to_query"
    assert edges["question", "kg", "query"].origin == "ambient"
    assert edges["kg", "c", "triples"].type == "list[Triple]"
    assert edges["kg", "rc", "when"].kind == "condition"
    assert edges["m", "output", "hits"].kind == "output"


def test_a_step_named_output_is_told_from_the_output(named_output: Plan) -> None:
    edges = plan_edges(named_output)
    assert [(e.source, e.target, e.kind) for e in edges if "output" in (e.source, e.target)] == [
        ("question", "output", "port"),
        ("output", "end", "port"),
        ("end", "output", "output"),
    ]


def test_the_text_has_a_line_for_every_step_edge_and_output(plan: Plan) -> None:
    text = draw_text(plan, types=True)
    assert text.startswith("demo(question)\n")
    assert text.count("<-") == len(plan_edges(plan))
    assert "<- question -> query: str by text_to_query" in text
    assert "output hits <- m: Ranking" in text


def test_the_text_shows_a_step_named_output_once(named_output: Plan) -> None:
    lines = draw_text(named_output).splitlines()
    assert [line for line in lines if line.strip().startswith("output")] == [
        "  output  retrieve.dense",
        "  output <- end",
    ]


@pytest.mark.parametrize("types", [True, False])
@pytest.mark.parametrize("drawn", ["plan", "named_output"])
def test_every_edge_of_the_mermaid_chart_joins_two_declared_boxes(
    drawn: str, types: bool, request: pytest.FixtureRequest
) -> None:
    plan: Plan = request.getfixturevalue(drawn)
    lines = draw_mermaid(plan, types=types).splitlines()
    assert lines[0] == "flowchart LR"
    boxes = [match[1] for line in lines if (match := re.match(r"  (\w+)[(\[]", line))]
    edges = [match for line in lines if (match := re.fullmatch(r'  (\w+) -->(\|"[^"|]*(?:\|[^"]*)?"\|)? (\w+)', line))]
    assert len(boxes) == len(set(boxes)) == len(plan.inputs) + len(plan.body.steps) + 1
    assert len(boxes) + len(edges) + 1 == len(lines)
    assert all(edge[1] in boxes and edge[3] in boxes for edge in edges)
    assert not {"end", "graph", "style", "class"} & set(boxes)


@pytest.mark.parametrize("types", [True, False])
@pytest.mark.parametrize("drawn", ["plan", "named_output"])
def test_the_svg_is_well_formed_and_no_box_covers_another(
    drawn: str, types: bool, request: pytest.FixtureRequest
) -> None:
    plan: Plan = request.getfixturevalue(drawn)
    root = ElementTree.fromstring(draw_svg(plan, types=types))
    assert root.tag == f"{SVG}svg"
    corners = [(float(box.attrib["x"]), float(box.attrib["y"])) for box in root.iter(f"{SVG}rect")]
    assert len(corners) == len(set(corners)) == len(plan.inputs) + len(plan.body.steps) + 1
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert all(0 <= x < width and 0 <= y < height for x, y in corners)
    names = [text.text for text in root.iter(f"{SVG}text")]
    assert {step.name for step in plan.body.steps} | {"question", "output"} <= set(names)


def test_every_arrow_of_the_svg_leads_to_the_right(plan: Plan) -> None:
    root = ElementTree.fromstring(draw_svg(plan))
    paths = [
        path.attrib["d"]
        for path in root.iter(f"{SVG}path")
        if path.attrib["d"].startswith("M") and "C" in path.attrib["d"]
    ]
    ends = [(float(d[1:].split()[0]), float(d.split()[-2])) for d in paths]
    assert len(ends) >= len(plan.body.steps)
    assert all(start < end for start, end in ends)


def test_a_flow_without_inputs_can_be_drawn(compile_flow: Compile) -> None:
    plan = compile_flow("load: {use: load.files, path: ./docs}", inputs="", outputs="$load")
    assert ElementTree.fromstring(draw_svg(plan)).tag == f"{SVG}svg"
    assert "load.files" in draw_text(plan)


def test_what_is_inside_a_block_stands_inside_its_frame(blocks: Plan) -> None:
    root = ElementTree.fromstring(draw_svg(blocks))
    boxes = [box.attrib for box in root.iter(f"{SVG}rect")]
    frames = [box for box in boxes if "stroke-dasharray" in box]
    around = [sum(_contains(frame, box) for frame in frames if frame is not box) for box in boxes if box not in frames]
    assert len(frames) == len(re.findall(r"subgraph", draw_mermaid(blocks)))
    assert max(around) == 2
    assert sum(depth == 0 for depth in around) == len(blocks.inputs) + 2


def test_edges_into_and_out_of_blocks_are_named_by_their_keys(blocks: Plan) -> None:
    edges = {(e.source, e.target, e.port): e.kind for e in plan_edges(blocks)}
    assert edges["rc", "again", "carry.hits"] == "key"
    assert edges["again.hits", "again.found", "over.h"] == "key"
    assert edges["question", "again.found.best", "query"] == "port"
    assert edges["again.found.best", "again.found", "output"] == "result"
    assert edges["again.fused", "again", "next.hits"] == "result"


@pytest.fixture(scope="module")
def blocks(compile_flow: Compile) -> Plan:
    nodes = """rc: retrieve.dense
again:
  loop:
    carry: {hits: Ranking = $rc}
    nodes:
      found:
        map:
          over: {h: $hits.hits}
          nodes: {best: {use: rerank.cross, hits: $hits, query: "${ question ~ h.text }"}}
          output: $best
      fused: {use: rerank.cross, hits: "${ found | first | default(hits) }"}
    next: {hits: $fused}
    max_steps: 2"""
    return compile_flow(nodes, outputs="$again.hits")


def _contains(frame: dict[str, str], box: dict[str, str]) -> bool:
    (fx, fy, fw, fh), (x, y, w, h) = (
        tuple(float(a[key]) for key in ("x", "y", "width", "height")) for a in (frame, box)
    )
    return fx <= x and fy <= y and x + w <= fx + fw and y + h <= fy + fh
