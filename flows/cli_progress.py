"""Progress bars on a terminal, fed by the events of a run."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from ragbraid.flows.runner import RunEvent


class ProgressBars:
    """Shows one bar per step that reports progress; silent where standard error is no terminal."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._progress: Any = None
        self._tasks: dict[tuple[str, str], Any] = {}

    def __enter__(self) -> Self:
        if self._enabled:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Take the bars away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def listen(self, event: RunEvent) -> None:
        """Take in one event of the run."""
        if self._progress is None or event.kind != "progress":
            return
        key = (event.path, event.label)
        if key not in self._tasks:
            self._tasks[key] = self._progress.add_task(f"{event.path}: {event.label}", total=event.total)
        self._progress.update(self._tasks[key], completed=event.done, total=event.total)
