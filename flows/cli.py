"""The command line: one group, whose commands load when they are called, so that `--help` stays quick."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from typing import Any

import click
from click.shell_completion import CompletionItem

_COMMANDS = {
    "check": ("ragbraid.flows.cli_author:check", "Check flow files; nothing is run."),
    "explain": ("ragbraid.flows.cli_plan:explain", "Say what a flow takes and where every port gets its value from."),
    "graph": ("ragbraid.flows.cli_plan:graph", "Draw a flow as text, Mermaid or SVG."),
    "nodes": ("ragbraid.flows.cli_catalogue:nodes", "List the nodes, or show one with its contract and an example."),
    "schema": ("ragbraid.flows.cli_catalogue:schema", "Print the JSON Schema of flow files, for editors."),
    "run": ("ragbraid.flows.cli_run:run", "Run a flow and print its result."),
    "ingest": ("ragbraid.flows.cli_run:ingest", "Run an ingestion flow with a progress bar and a report."),
    "trace": ("ragbraid.flows.cli_trace:trace", "Show what a run did, step by step, as a table or as a page."),
    "eval": ("ragbraid.flows.cli_eval:evaluate", "Compare flows on a file of questions."),
    "kb": ("ragbraid.flows.cli_kb:kb", "List, show, verify and drop knowledge bases and look at their graphs."),
    "serve": ("ragbraid.flows.cli_serve:serve", "Offer flows in the Prefect UI and run them in this process."),
    "deploy": ("ragbraid.flows.cli_deploy:deploy", "Deploy flows to a Prefect work pool, or say what would change."),
    "worker": ("ragbraid.flows.cli_worker:worker", "Run what is deployed to a work pool, in this process."),
    "undeploy": ("ragbraid.flows.cli_deploy:undeploy", "Remove a flow's deployment."),
    "runs": ("ragbraid.flows.cli_runs:runs", "List the runs of flows on the Prefect server."),
    "logs": ("ragbraid.flows.cli_runs:logs", "Print what a run on the Prefect server has logged, or follow it."),
    "mcp": ("ragbraid.flows.cli_mcp:mcp", "Offer flows as tools of the Model Context Protocol."),
    "doctor": ("ragbraid.flows.cli_doctor:doctor", "Say what is installed, configured and reachable, and what is not."),
    "dev": ("ragbraid.flows.cli_dev:dev", "Tools for authors: a scripted model to test flows against."),
}

_EPILOG = """
Completion of commands, options, files and node names: put one of these into your shell's start-up file.

\b
  bash   eval "$(_RAGBRAID_COMPLETE=bash_source ragbraid)"
  zsh    eval "$(_RAGBRAID_COMPLETE=zsh_source ragbraid)"
  fish   _RAGBRAID_COMPLETE=fish_source ragbraid | source
"""


class LazyGroup(click.Group):
    """A group that knows its commands' names and summaries without importing them.

    Whatever its commands raise on purpose becomes a sentence and an exit code here.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that the arguments name."""
        from ragbraid.flows.cli_errors import errors_as_sentences

        with errors_as_sentences():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order in which people meet them."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        if cmd_name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the table above."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in _COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a command's name from the table above, so that a TAB imports nothing."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [
            CompletionItem(name, help=about) for name, (_, about) in _COMMANDS.items() if name.startswith(incomplete)
        ]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or name the nearest one."""
        from ragbraid.registry.suggest import did_you_mean

        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            hint = did_you_mean(args[0], _COMMANDS) or "`ragbraid --help` lists the commands"
            raise click.UsageError(f"there is no command `{args[0]}`; {hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("ragbraid"), prog_name="ragbraid")
def app() -> None:
    """Typed YAML flows for retrieval and question answering, checked before they run.

    Exit codes: 0 all well, 1 findings or a failed run, 2 wrong use, 130 stopped by Ctrl-C.
    """


def main(arguments: Sequence[str] | None = None) -> Any:
    """Run the command line; a user's mistake ends in a sentence, never in a traceback."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character gets its escape, not a crash; so does a name that is no UTF-8.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        return app.main(args=None if arguments is None else list(arguments), prog_name="ragbraid")
    except SystemExit as ending:
        _leave_calls_behind(ending)
        raise


def _leave_calls_behind(ending: SystemExit) -> None:
    """End the process at once where a worker thread is still inside a call that was given up.

    The interpreter's own end would destroy a native library under that thread, and the process would end by SIGABRT
    instead of with the exit code. Nothing is lost: a knowledge base stays whole through worse.
    """
    threads = sys.modules.get("ragbraid.flows.threads")
    if threads is None or not threads.THREADS.busy:
        return
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(ending.code if isinstance(ending.code, int) else 1)


if __name__ == "__main__":
    main()
