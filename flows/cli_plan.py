"""`ragbraid explain` and `graph`: what an author asks about a flow that has been checked."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ragbraid.dsl.draw import draw_mermaid, draw_text
from ragbraid.dsl.draw_svg import draw_svg
from ragbraid.dsl.edges import plan_edges
from ragbraid.dsl.explain import explain_plan, explain_ports
from ragbraid.dsl.outline import outline, walk
from ragbraid.dsl.plan import AnyStep, InputSpec, Step
from ragbraid.dsl.types import describe
from ragbraid.flows.cli_author import plan_or_exit
from ragbraid.flows.cli_inputs import input_bounds, inputs_table
from ragbraid.flows.cli_output import print_json, to_json
from ragbraid.flows.cli_params import flow_argument, json_option, project_option

DRAWINGS = {"text": draw_text, "mermaid": draw_mermaid, "svg": draw_svg}


@click.command()
@flow_argument
@project_option
@json_option
def explain(flow: Path, project: Path | None, as_json: bool) -> None:
    """List a flow's inputs, and say for every port of every step where its value comes from.

    A value is written in the file, comes by an arrow, is a name in scope, or is the node's default.
    """
    plan = plan_or_exit(flow, project)
    if as_json:
        print_json(
            {
                "name": plan.name,
                "about": plan.about,
                "inputs": [_input_to_dict(spec) for spec in plan.inputs],
                "outputs": {name: describe(type_) for name, type_ in plan.output_types.items()},
                "resources": dict(plan.roles),
                "ports": [asdict(row) for row in explain_ports(plan)],
            }
        )
        return
    gives = ", ".join(f"{name} {describe(type_)}".lstrip() for name, type_ in plan.output_types.items())
    title = f"{plan.name}: {plan.about}" if plan.about else plan.name
    click.echo(f"{title}\n\n{inputs_table(plan.inputs)}\ngives {gives}\n\n{explain_plan(plan)}")


def _input_to_dict(spec: InputSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "type": describe(spec.type),
        "required": spec.required,
        "default": None if spec.required else spec.default,
        "bounds": input_bounds(spec),
        "about": spec.about,
    }


def _what(step: AnyStep) -> str:
    return step.node.reference if isinstance(step, Step) else step.label


@click.command()
@flow_argument
@click.option(
    "--format", "drawing", type=click.Choice(list(DRAWINGS)), default="text", show_default=True, help="How to draw it."
)
@click.option("--types", is_flag=True, help="Show the type of every connection and the conversions applied.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write to a file instead of standard output.")
@project_option
@json_option
def graph(flow: Path, drawing: str, types: bool, output: Path | None, project: Path | None, as_json: bool) -> None:
    """Draw a flow; with --json print its steps and connections instead."""
    plan = plan_or_exit(flow, project)
    if as_json:
        steps = [{"name": item.id, "node": _what(item.step)} for _, item in walk(outline(plan))]
        text = to_json({"name": plan.name, "steps": steps, "edges": [asdict(edge) for edge in plan_edges(plan)]})
    else:
        text = DRAWINGS[drawing](plan, types=types)
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
        click.echo(f"wrote {output}", err=True)
