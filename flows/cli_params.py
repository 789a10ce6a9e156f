"""Arguments and options that several commands have, with what a shell's TAB offers for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])


def complete_node(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the nodes of the project whose names begin so."""
    from ragbraid.flows.project import load_project, project_catalogue
    from ragbraid.registry.errors import RagbraidError

    try:
        catalogue = project_catalogue(load_project(project=ctx.params.get("project")))
    except RagbraidError:
        return []  # a TAB is no place for an error; the command itself will say it
    return [
        CompletionItem(node.name, help=node.about) for node in catalogue.nodes() if node.name.startswith(incomplete)
    ]


# A shell completes a path by itself, folders included.
flow_argument = click.argument("flow", type=click.Path(path_type=Path))
flows_argument = click.argument("flows", nargs=-1, required=True, type=click.Path(path_type=Path))
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
profile_option = click.option("--profile", help="The profile of ragbraid.toml to use.")
project_option = click.option(
    "--project", type=click.Path(path_type=Path), help="The project file, instead of the nearest ragbraid.toml."
)
task_runner_option = click.option(
    "--task-runner",
    metavar="NAME",
    help="Who runs the items of maps, instead of what the flow says: threads (this process), dask, ray, or with an "
    "address dask=tcp://scheduler:8786.",
)
visible_option = click.option(
    "--visible",
    type=click.Choice(["steps", "blocks", "flow"]),
    help="What is a task run in Prefect, instead of what the flow says: every step, the steps and blocks of the flow's "
    "own level, or the flow alone. Each task run costs the server.",
)
input_option = click.option(
    "-i", "--input", "inputs", multiple=True, metavar="NAME=VALUE", help="An input of the flow; may be repeated."
)
inputs_file_option = click.option(
    "--inputs-file", type=click.Path(path_type=Path), help="Inputs as a JSON or YAML file of names and values."
)


def with_options(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return a decorator that adds options in the order given."""

    def attach(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return attach
