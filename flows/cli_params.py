"""Arguments and options that several commands have, with what a shell's TAB offers for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])

_SUFFIXES = (".yaml", ".yml")


class FlowFile(click.Path):
    """A flow file; a shell is offered the YAML files and the folders."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the folders and YAML files that begin so."""
        folder, _, start = incomplete.rpartition("/")
        base = Path(f"{folder}/" if "/" in incomplete else ".").expanduser()
        prefix = incomplete.removesuffix(start)
        try:
            found = sorted(base.iterdir())
        except OSError:
            return []
        shown = [path for path in found if path.name.startswith(start) and not path.name.startswith(".")]
        return [
            CompletionItem(f"{prefix}{path.name}", type="dir" if path.is_dir() else "plain")
            for path in shown
            if path.is_dir() or path.suffix in _SUFFIXES
        ]


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


flow_argument = click.argument("flow", type=FlowFile())
flows_argument = click.argument("flows", nargs=-1, required=True, type=FlowFile())
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
profile_option = click.option("--profile", help="The profile of ragbraid.toml to use.")
project_option = click.option(
    "--project", type=click.Path(path_type=Path), help="The project file, instead of the nearest ragbraid.toml."
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
