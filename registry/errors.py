"""Findings about flow files, and the exceptions that ragbraid raises.

    RagbraidError
    ├── FlowError                  a flow file is wrong: all findings at once, in file order
    ├── ContractError              a node, port or plugin is wrong (its author's side)
    ├── SettingsError              missing key, bad address, unknown model, wrong profile
    └── RunError                   something failed while running
        ├── NodeInputError         a value handed to a node breaks the node's contract
        ├── NodeOutputError        a value returned by a node breaks the node's contract
        ├── ServiceError           a store, model or endpoint failed
        │   └── DamagedStoreError  the files of a knowledge base cannot be read
        └── LimitError             seconds, calls, tokens or steps are used up

Every one of them survives pickling, because Prefect stores the exceptions of its runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["error", "warning"]

FailureKind = Literal[
    "auth",
    "cancelled",
    "contract",
    "failed",
    "input",
    "invalid_output",
    "limit",
    "rate_limit",
    "refused",
    "timeout",
    "truncated",
    "unavailable",
]
"""What went wrong in one word; `retry: {on: [...]}` names four of them."""

TRANSIENT_KINDS: frozenset[FailureKind] = frozenset({"rate_limit", "timeout", "unavailable"})


@dataclass(frozen=True, slots=True, order=True)
class SourceSpan:
    """A stretch of a flow file: 1-based lines and columns in code points, the end exclusive."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Label:
    """A second place that a finding points at, with a few words beside its underline."""

    span: SourceSpan
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake in one place: a stable code, a sentence, and where possible what to do."""

    code: str
    message: str
    span: SourceSpan
    hint: str | None = None
    severity: Severity = "error"
    labels: tuple[Label, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the flat form that `--json` prints."""
        place = asdict(self.span)
        return {
            "code": self.code,
            "severity": self.severity,
            "message": self.message,
            **place,
            "hint": self.hint,
        }


class RagbraidError(Exception):
    """Root of everything that ragbraid raises on purpose."""

    trace: Any = None
    """The trace of the run that the error ended (a `ragbraid.flows.trace.Trace`); set by the scheduler."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__.copy())

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows in a notebook: sentences instead of a traceback through our code."""
        from ragbraid.registry.notebook import error_lines

        return error_lines(self)


class FlowError(RagbraidError):
    """A flow file cannot be run.

    Args:
        findings: every mistake that was found, in file order.
        texts: the files that they stand in, as they were checked: for whoever prints the lines.
    """

    def __init__(self, findings: tuple[Finding, ...], texts: Mapping[str, str] | None = None) -> None:
        self.findings = findings
        self.texts = dict(texts or {})
        errors = [f for f in findings if f.severity == "error"]
        first = errors[0] if errors else findings[0]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        super().__init__(f"{first.span}: {first.code} {first.message}{more}")


class ContractError(RagbraidError):
    """A node, contract or plugin is declared wrongly; the message names its place in the code."""


class SettingsError(RagbraidError):
    """The project file, a profile, an environment variable or a resource's settings are wrong."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class RunError(RagbraidError):
    """A run, or one step of it, failed.

    Args:
        message: one sentence: what happened and where.
        kind: what went wrong in one word; decides whether `retry` applies.
        step: path of the step, such as `interleave[2].think`; filled in by the scheduler.
        hint: what to do about it.
    """

    default_kind: FailureKind = "failed"

    def __init__(
        self,
        message: str,
        *,
        kind: FailureKind | None = None,
        step: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind or self.default_kind
        self.step = step
        self.hint = hint

    @property
    def transient(self) -> bool:
        """Whether the same call may succeed later."""
        return self.kind in TRANSIENT_KINDS


class NodeInputError(RunError):
    """A value handed to a node breaks the node's contract."""

    default_kind = "contract"


class NodeOutputError(RunError):
    """A value returned by a node breaks the node's contract, or its `ensure` does not hold."""

    default_kind = "contract"


class ServiceError(RunError):
    """A store, a model or an endpoint did not do its work."""

    default_kind: FailureKind = "unavailable"


class DamagedStoreError(ServiceError):
    """The files of a knowledge base cannot be read.

    Args:
        message: one sentence: what happened, where, and what to do.
        folder: the folder that holds this knowledge base and nothing else, so that it may be deleted as a whole;
            empty where nothing may be deleted.
    """

    def __init__(self, message: str, *, folder: str = "") -> None:
        super().__init__(message, kind="failed")
        self.folder = folder


class LimitError(RunError):
    """A limit of the run (seconds, LLM calls, tokens, steps) was passed."""

    default_kind = "limit"


def _rebuild(cls: type[RagbraidError], args: tuple[Any, ...], state: dict[str, Any]) -> RagbraidError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error
