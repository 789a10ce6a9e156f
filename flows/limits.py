"""The limits of a run: how many LLM calls and tokens its steps may use together, and for how long it may go on."""

from __future__ import annotations

import threading

from ragbraid.dsl.plan import Limits
from ragbraid.registry.contracts import Usage
from ragbraid.registry.errors import LimitError


class RunLimits:
    """Counts what the steps of one run use. Safe to use from worker threads.

    `passed` holds the error once a limit has been passed, so that the run ends even where a node swallowed it.
    """

    def __init__(self, limits: Limits) -> None:
        self.seconds = limits.seconds
        self.counted = limits.llm_calls is not None or limits.tokens is not None
        """Whether anything but time is limited."""
        self.passed: LimitError | None = None
        self._limits = limits
        self._calls = 0
        self._tokens = 0
        self._lock = threading.Lock()

    def charge(self, path: str, usage: Usage) -> None:
        """Add what a step used.

        Raises:
            LimitError: with this the run has used more than it may.
        """
        with self._lock:
            self._calls += usage.llm_calls
            self._tokens += usage.prompt_tokens + usage.completion_tokens
            if self.passed is None:
                self.passed = self._check(path)
            if self.passed is not None:
                raise self.passed

    def remaining(self) -> Limits:
        """Return what is left of the calls and tokens; time is not part of it."""
        with self._lock:
            left = [
                None if allowed is None else max(allowed - used, 0)
                for used, allowed in ((self._calls, self._limits.llm_calls), (self._tokens, self._limits.tokens))
            ]
        return Limits(llm_calls=left[0], tokens=left[1])

    def timed_out(self, running: str | None) -> LimitError:
        """Return the error of a run that took too long, naming the step that was under way."""
        where = f" while `{running}` was running" if running else ""
        self.passed = LimitError(
            f"the run was ended{where}: its limit of {self.seconds:g} seconds is used up",
            step=running,
            hint="raise `limits: {seconds: ...}` in the flow, or give the step a `timeout`",
        )
        return self.passed

    def _check(self, path: str) -> LimitError | None:
        for name, used, allowed in (
            ("llm_calls", self._calls, self._limits.llm_calls),
            ("tokens", self._tokens, self._limits.tokens),
        ):
            if allowed is not None and used > allowed:
                words = name.replace("llm_calls", "LLM calls")
                return LimitError(
                    f"the run was ended at `{path}`: it used {used:,} {words}, its limit is {allowed:,}",
                    step=path,
                    hint=f"raise `limits: {{{name}: ...}}` in the flow if this much is wanted",
                )
        return None
