"""What a running node may tell its run (progress, usage, notes, text) and ask of it (its folder). Nothing here is needed to call a node directly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from ragbraid.registry.contracts import Usage

StepStatus = Literal["ok", "empty", "degraded", "failed", "skipped"]
ProgressListener = Callable[[str, int, int | None], None]
"""Called with a label, how much is done and the total (None when unknown)."""
UsageListener = Callable[[Usage], None]
"""Called with what a single call used; raises LimitError when the run's limit is passed."""


class TextListener(Protocol):
    """Follows the text that a step writes while it writes it."""

    def __call__(self, piece: str, restart: bool = False, /) -> None:
        """Take the next piece; with `restart`, what came before is void and the piece begins the text anew."""
        ...


@runtime_checkable
class WritesText(Protocol):
    """A form (a pydantic model) for an LLM's answer that holds a text which the user may see while it is written.

    Only forms of answers say this: drafts of plans, thoughts and judgements are not meant for the user.
    """

    @classmethod
    def text_so_far(cls, written: Mapping[str, Any]) -> str:
        """Return what to show of a partly written answer, "" while there is nothing; no field has been checked yet."""
        ...


@dataclass
class StepContext:
    """Collects what one step reports while it runs."""

    path: str = ""
    usage: Usage = field(default_factory=Usage)
    notes: list[str] = field(default_factory=list)
    status: StepStatus | None = None
    on_progress: ProgressListener | None = None
    on_usage: UsageListener | None = None
    on_check: Callable[[], None] | None = None
    """Raises where nobody waits for the step any more."""
    on_text: TextListener | None = None
    """Set only where somebody follows the text: an adapter asks its model for a stream for no other reason."""
    texts: int = 0
    """How many texts the step has begun."""


_current: ContextVar[StepContext | None] = ContextVar("ragbraid_step", default=None)
_folder: ContextVar[Path | None] = ContextVar("ragbraid_folder", default=None)


@contextmanager
def project_folder(folder: Path) -> Iterator[None]:
    """Say for every run inside the block in which folder its project lies."""
    token = _folder.set(folder)
    try:
        yield
    finally:
        _folder.reset(token)


def current_folder() -> Path | None:
    """Return the folder of the running flow's project, else of its file; None where a node is called outside of a run."""
    return _folder.get()


@contextmanager
def step_context(context: StepContext) -> Iterator[StepContext]:
    """Make `context` the receiver of everything that nodes report inside the block."""
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)


def enter_step(context: StepContext) -> Token[StepContext | None]:
    """Make `context` the receiver from here on; for a scheduler that runs step after step in one task."""
    return _current.set(context)


def leave_step(token: Token[StepContext | None]) -> None:
    """Bring back the receiver that stood before `enter_step` gave the token."""
    _current.reset(token)


def report_progress(label: str, done: int, total: int | None = None) -> None:
    """Say how far a long node is; shown as a bar on a terminal and as a progress artifact under Prefect."""
    context = _current.get()
    if context is not None and context.on_progress is not None:
        context.on_progress(label, done, total)


def stop_if_cancelled() -> None:
    """End the node here where its run was cancelled or its time is up; for long work between two reports of progress.

    A thread cannot be stopped from outside: a blocking node that holds it for seconds calls this now and then.

    Raises:
        RunError: of kind `cancelled`.
    """
    context = _current.get()
    if context is not None and context.on_check is not None:
        context.on_check()


def report_usage(usage: Usage) -> None:
    """Count model calls and tokens of the current step.

    Raises:
        LimitError: the run has used up its `limits`.
    """
    context = _current.get()
    if context is None:
        return
    context.usage = context.usage + usage
    if context.on_usage is not None:
        context.on_usage(usage)


def report_text(piece: str, *, restart: bool = False) -> None:
    """Say what the user will probably see of the step's output, piece by piece, while it is being written.

    Args:
        piece: what comes next.
        restart: what was reported before is void, and the piece begins the text anew.
    """
    context = _current.get()
    if context is not None and context.on_text is not None:
        context.on_text(piece, restart)


def begin_text() -> TextListener | None:
    """Begin a new text of the current step, for adapters that can stream one; None where nobody follows it.

    A step has one text, that of its newest request: what an earlier one reported is void, and what it reports from now
    on goes nowhere. So a request that is tried again, and a node that asks twice at once, give a text that makes sense.
    """
    context = _current.get()
    if context is None or context.on_text is None:
        return None
    context.texts += 1
    listener, number = context.on_text, context.texts
    listener("", True)

    def report(piece: str, restart: bool = False, /) -> None:
        if number == context.texts:
            listener(piece, restart)

    return report


def report_note(note: str) -> None:
    """Leave a sentence in the trace of the current step."""
    context = _current.get()
    if context is not None:
        context.notes.append(note)


def report_degraded(reason: str) -> None:
    """Say that the step's result is usable but not what was asked for, and why."""
    context = _current.get()
    if context is not None:
        context.status = "degraded"
        context.notes.append(reason)
