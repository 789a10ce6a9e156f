"""`ragbraid mcp`: flows as tools for assistants and agents."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from pathlib import Path

import click

from ragbraid.flows.cli_errors import stop
from ragbraid.flows.cli_params import flows_argument, profile_option, project_option
from ragbraid.registry.errors import SettingsError


@click.command()
@flows_argument
@profile_option
@project_option
def mcp(flows: tuple[Path, ...], profile: str | None, project: Path | None) -> None:
    """Offer flows as tools of the Model Context Protocol, over standard input and output.

    A client starts this command by itself: put it into the client's configuration. Every flow is a tool with the
    flow's name, its `about` and its inputs. Models and stores stay open between calls; a changed file counts after a
    restart.
    """
    from ragbraid.flows.loops import run_to_end
    from ragbraid.flows.mcp_tools import load_tools

    with redirect_stdout(sys.stderr):  # standard output is the protocol's, whatever a project's own nodes print
        loaded = load_tools(flows, profile=profile, project=project)
        try:
            from ragbraid.flows.mcp_server import serve_stdio
        except ImportError as error:
            hint = 'pip install "ragbraid[mcp]"'
            raise SettingsError("offering flows as tools needs the package fastmcp", hint=hint) from error
    click.echo(f"serving {', '.join(flow.name for flow in loaded)} over standard input and output", err=True)
    received = _end_on_signals()
    run_to_end(serve_stdio(loaded))
    if signal.SIGINT in received:
        stop("stopped")


def _end_on_signals() -> list[int]:
    """Have Ctrl-C and SIGTERM end the server as a client does that goes away; return the signals that come, as a list.

    A second signal ends the process at once.
    """
    received: list[int] = []
    end_input = _make_input_endable()

    def on_signal(number: int, _: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)
        end_input()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    return received


def _make_input_endable() -> Callable[[], None]:
    """Put a pipe before standard input and return what ends it.

    The server's thread waits for input in a call that nothing interrupts, and the server for its thread.
    """
    source = os.dup(0)
    reader, writer = os.pipe()
    os.dup2(reader, 0)
    os.close(reader)

    def end() -> None:
        # Unlike closing it, this leaves no number that the thread below could write to when it means something else.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, writer)
        os.close(nowhere)

    def pump() -> None:
        with suppress(OSError):
            while data := os.read(source, 65536):
                while data:
                    data = data[os.write(writer, data) :]
        end()

    threading.Thread(target=pump, name="ragbraid-input", daemon=True).start()
    return end
