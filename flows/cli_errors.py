"""Whatever ends a command becomes a sentence on standard error and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import click

from ragbraid.registry.errors import FlowError, RagbraidError, RunError

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""


@contextmanager
def errors_as_sentences() -> Iterator[None]:
    """End the command with a sentence where the block raises something that a user can do something about.

    A fault of ragbraid itself keeps its traceback, which is what a report of it needs.
    """
    try:
        yield
    except RagbraidError as error:
        fail(error)
    except KeyboardInterrupt:
        stop("stopped")
    except BrokenPipeError:
        _reader_has_gone()
    except RecursionError:
        _fail("what was given is nested too deeply to be read")
    except OSError as error:
        place = f" `{error.filename}`" if error.filename else ""
        _fail(f"the system refuses to read or write{place}: {error.strerror or error}")
    except (ValueError, ImportError) as error:
        from ragbraid.flows.prefect_settings import settings_failure

        sentence = settings_failure(error)
        if sentence is None:
            raise
        fail(sentence)


def fail(error: RagbraidError) -> NoReturn:
    """Print an error as sentences and leave with exit code 1."""
    if isinstance(error, FlowError):
        from ragbraid.flows.cli_output import print_findings

        print_findings(error.findings, error.texts)
        sys.exit(1)
    _fail(error_sentence(error), getattr(error, "hint", None))


def error_sentence(error: RagbraidError) -> str:
    """Return what an error says, with the step that it happened in."""
    return f"step `{error.step}`: {error}" if isinstance(error, RunError) and error.step else str(error)


def stop(sentence: str) -> NoReturn:
    """Print a sentence after Ctrl-C and leave with the exit code for that."""
    click.echo(sentence, err=True)
    sys.exit(INTERRUPTED)


def _fail(message: str, hint: str | None = None) -> NoReturn:
    click.echo(f"error: {message}", err=True)
    if hint:
        click.echo(f"  hint: {hint}", err=True)
    sys.exit(1)


def _reader_has_gone() -> NoReturn:
    # `ragbraid nodes | head` is no failure. The interpreter flushes once more at its end: that must go somewhere.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(0)
