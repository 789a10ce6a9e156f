"""Prompt files that a flow puts in the place of a node's own: read, and checked against the node's variables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from ragbraid.dsl.draft import Draft, Fill
from ragbraid.dsl.files import read_bytes
from ragbraid.dsl.plan import Literally
from ragbraid.dsl.report import Report
from ragbraid.dsl.scope import POISON
from ragbraid.dsl.values import WRONG, Bound
from ragbraid.registry.node import Port, PromptFile
from ragbraid.registry.suggest import did_you_mean


def bind_prompts(draft: Draft, report: Report) -> None:
    """Replace the path in every prompt port by the template's text; RB405 and RB406 where it cannot serve."""
    if draft.contract is None:
        return
    for port in draft.contract.ports:
        marker = _marker(port)
        fill = draft.fills.get(port.name)
        if marker is None or fill is None or not isinstance(fill.bound.value, Literally):
            continue
        path = fill.bound.value.value
        if isinstance(path, str):
            text = _read(path, fill, marker, report)
            bound = WRONG if text is None else Bound(Literally(text), str)
            draft.suspect = draft.suspect or bound.type is POISON
            draft.fills[port.name] = Fill(bound, fill.origin, fill.detail, fill.span)


def _marker(port: Port) -> PromptFile | None:
    if get_origin(port.type) is not Annotated:
        return None
    metadata: tuple[Any, ...] = get_args(port.type)[1:]
    return next((item for item in metadata if isinstance(item, PromptFile)), None)


def _read(path: str, fill: Fill, marker: PromptFile, report: Report) -> str | None:
    from jinja2 import TemplateSyntaxError, meta
    from jinja2.sandbox import SandboxedEnvironment

    file = Path(fill.span.file).parent / path
    try:
        text = read_bytes(file).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is not UTF-8 text"
        report.error("RB406", f"the prompt `{path}` cannot be read: {reason}", fill.span, f"looked for {file}")
        return None
    try:
        unknown = sorted(meta.find_undeclared_variables(SandboxedEnvironment().parse(text)) - set(marker.variables))
    except TemplateSyntaxError as error:
        report.error("RB401", f"the prompt `{path}` has a mistake in line {error.lineno}: {error.message}", fill.span)
        return None
    for name in unknown:
        provided = ", ".join(f"`{variable}`" for variable in marker.variables)
        hint = did_you_mean(name, marker.variables) or f"the node provides {provided}"
        report.error("RB405", f"the prompt `{path}` uses `{name}`, which the node does not provide", fill.span, hint)
    return None if unknown else text
