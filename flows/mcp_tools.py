"""A flow as a tool of the Model Context Protocol: its schema, its result, its failures. Imports no MCP library."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ragbraid.dsl.plan import Plan
from ragbraid.flows.api import Flow, load
from ragbraid.flows.cli_errors import error_sentence
from ragbraid.flows.cli_output import to_json
from ragbraid.flows.flow_files import load_all, refuse_twins
from ragbraid.flows.form_schema import form_schema
from ragbraid.registry.errors import RagbraidError


def load_tools(paths: Sequence[Path], *, profile: str | None = None, project: Path | None = None) -> list[Flow]:
    """Check flow files and return the flows that become tools, all or nothing.

    Raises:
        FlowError: files have mistakes; holds those of all files.
        SettingsError: two flows have one name, or something that a flow needs is not bound or not set.
    """
    flows = load_all(paths, partial(load, profile=profile, project=project))
    refuse_twins([flow.plan for flow in flows])
    for flow in flows:
        flow.check_resources()
    return flows


def tool_schema(plan: Plan) -> dict[str, Any]:
    """Return the JSON Schema of a tool's arguments: that of the run form without what only lays the form out."""
    form = form_schema(plan.inputs)
    layout = ("title", "position", "description")  # a form's description repeats the bounds
    properties: dict[str, Any] = {}
    for spec in plan.inputs:
        described = {key: value for key, value in form["properties"][spec.name].items() if key not in layout}
        properties[spec.name] = described | ({"description": spec.about} if spec.about else {})
    return {**{key: value for key, value in form.items() if key != "title"}, "properties": properties}


def structured_outputs(outputs: Any) -> dict[str, Any]:
    """Return what `ragbraid run --json` prints; what is no object there stands under `result`, as the protocol asks."""
    found = json.loads(to_json(outputs))
    return found if isinstance(found, dict) else {"result": found}


def failure_text(error: RagbraidError) -> str:
    """Return what a caller is told of a run that failed: what happened, in which step, and what to do."""
    hint = getattr(error, "hint", None)
    return f"{error_sentence(error)}\nhint: {hint}" if hint else error_sentence(error)
