"""Flows that a flow file uses as nodes: found by path or registered name, each checked once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ragbraid.dsl.files import is_file
from ragbraid.dsl.plan import Plan, ResourceBinding
from ragbraid.dsl.report import Report
from ragbraid.dsl.source import read_file
from ragbraid.dsl.source_nodes import Node, ScalarNode
from ragbraid.registry.catalogue import Catalogue
from ragbraid.registry.suggest import did_you_mean

Declared = dict[str, tuple[ResourceBinding, str]]
"""Resources by name, each with its role."""
CompileFile = Callable[[Node, str, "Session", "tuple[Path, ...]", Report], "Plan | None"]


@dataclass
class Session:
    """One check of a flow file with everything that it uses."""

    catalogue: Catalogue
    project: Mapping[str, str] | Iterable[str]
    texts: dict[str, str] = field(default_factory=dict)
    """Text of every file that was read, by the name that findings give it."""
    flows: dict[Path, Plan | None] = field(default_factory=dict)
    """Every flow that was used so far; None for one with mistakes, which have been reported."""


class FlowFiles:
    """Finds flows for one flow file; see `ragbraid.dsl.known.FlowSource`."""

    def __init__(
        self, file: str, declared: Declared, session: Session, stack: tuple[Path, ...], compile_file: CompileFile
    ) -> None:
        self._file = file
        self._declared = declared
        self._session = session
        self._stack = (*stack, Path(file).resolve())
        self._compile_file = compile_file

    def find(self, use: ScalarNode, report: Report) -> Plan | None:
        """Return the checked flow that `use` names; RB107 where there is none, RB312 where it would use itself."""
        reference = str(use.value)
        registered = self._session.catalogue.find_flow(reference)
        file = str(registered or os.path.normpath(Path(use.span.file).parent / Path(reference).expanduser()))
        path = Path(file).resolve()
        if path in self._stack:
            names = " -> ".join(f"`{part.name}`" for part in (*self._stack[self._stack.index(path) :], path))
            hint = "to repeat steps, put them into a `loop`"
            report.error("RB312", f"this flow uses itself: {names}", use.span, hint)
            return None
        if path not in self._session.flows:
            self._session.flows[path] = self._load(file, path, use, report)
        return self._session.flows[path]

    def _load(self, file: str, path: Path, use: ScalarNode, report: Report) -> Plan | None:
        if not is_file(file):
            report.error("RB107", f"there is no flow file `{file}`", use.span, _nearest_file(path, use))
            return None
        text, root, findings = read_file(file)
        if text is not None:
            self._session.texts[file] = text
        if root is None or findings:
            report.extend(findings)
            return None
        inner = Report()
        plan = self._compile_file(root, file, self._session, self._stack, inner)
        # Warnings about a file are given when that file itself is checked.
        report.extend(finding for finding in inner.findings if finding.severity == "error")
        return plan

    def adopt(self, plan: Plan) -> dict[str, str]:
        """Take over the resources of a used flow. One that is declared in the same way here is the same resource."""
        names: dict[str, str] = {}
        for name, binding in plan.resources.items():
            role = plan.roles.get(name)
            if role is None:
                continue
            same = (n for n, (b, _) in self._declared.items() if _alike(b, binding))
            unique = f"{os.path.relpath(plan.file, Path(self._file).parent)}:{name}"
            names[name] = next(same, unique)
            self._declared.setdefault(names[name], (binding, role))
        return names


def _alike(one: ResourceBinding, other: ResourceBinding) -> bool:
    return one.provider == other.provider and one.settings == other.settings


def _nearest_file(path: Path, use: ScalarNode) -> str:
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}; the path is relative to {use.span.file}"
    known = [entry.name for entry in path.parent.iterdir() if entry.suffix in (".yaml", ".yml")]
    return did_you_mean(path.name, known) or f"the path is relative to the folder of {Path(use.span.file).name}"
