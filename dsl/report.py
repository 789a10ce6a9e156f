"""Collecting findings while a flow file is read and checked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ragbraid.registry.errors import Finding, Label, Severity, SourceSpan


@dataclass
class Report:
    """The findings of one file so far."""

    findings: list[Finding] = field(default_factory=list)

    def error(
        self, code: str, message: str, span: SourceSpan, hint: str | None = None, labels: Iterable[Label] = ()
    ) -> None:
        """Add an error."""
        self._add(code, message, span, hint, "error", labels)

    def warning(self, code: str, message: str, span: SourceSpan, hint: str | None = None) -> None:
        """Add a warning."""
        self._add(code, message, span, hint, "warning", ())

    def extend(self, findings: Iterable[Finding]) -> None:
        """Add findings that another module made."""
        self.findings.extend(findings)

    @property
    def failed(self) -> bool:
        """Whether any finding so far is an error."""
        return any(finding.severity == "error" for finding in self.findings)

    def in_file_order(self) -> tuple[Finding, ...]:
        """Return the findings sorted by place, then code."""
        return tuple(sorted(self.findings, key=lambda f: (f.span.file, f.span.line, f.span.column, f.code)))

    def _add(
        self,
        code: str,
        message: str,
        span: SourceSpan,
        hint: str | None,
        severity: Severity,
        labels: Iterable[Label],
    ) -> None:
        self.findings.append(Finding(code, message, span, hint, severity, tuple(labels)))
