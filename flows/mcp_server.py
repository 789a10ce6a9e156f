"""The MCP server behind `ragbraid mcp`. Imports fastmcp: import it inside functions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import anyio
from fastmcp import FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.tools.base import Tool, ToolResult
from pydantic import PrivateAttr

from ragbraid.flows.api import Flow
from ragbraid.flows.cli_show import outputs_text
from ragbraid.flows.loops import end_tasks
from ragbraid.flows.mcp_tools import failure_text, structured_outputs, tool_schema
from ragbraid.registry.errors import RagbraidError


class FlowTool(Tool):
    """A tool whose calls run a flow in this process."""

    _flow: Flow = PrivateAttr()

    @classmethod
    def of(cls, flow: Flow) -> FlowTool:
        """Return the tool that a flow is: its name, what it is about, its inputs."""
        tool = cls(
            name=flow.name, title=flow.name, description=flow.plan.about or None, parameters=tool_schema(flow.plan)
        )
        tool._flow = flow
        return tool

    async def run(self, arguments: dict[str, Any]) -> ToolResult:
        """Run the flow and return its result as text and as JSON.

        Raises:
            ToolError: the run failed or was refused; says why in a sentence.
        """
        try:
            outputs = await _run_to_its_end(self._flow, arguments)
        except RagbraidError as error:
            # Whoever called is told; the log would only say it again.
            raise ToolError(failure_text(error), log_level=logging.DEBUG) from None
        return ToolResult(outputs_text(outputs), structured_outputs(outputs))


def build_server(flows: Sequence[Flow]) -> FastMCP[Any]:
    """Return a server with a tool for every flow. A fault of ragbraid itself is logged, and not told to the caller."""
    tools = [FlowTool.of(flow) for flow in flows]
    return FastMCP("ragbraid", version=version("ragbraid"), tools=tools, mask_error_details=True)


async def serve_stdio(flows: Sequence[Flow]) -> None:
    """Serve flows over standard input and output until the client closes them."""
    await build_server(flows).run_stdio_async(show_banner=False, log_level="WARNING")


async def _run_to_its_end(flow: Flow, arguments: dict[str, Any]) -> Any:
    """Run a flow; when the call is cancelled, cancel the run and wait until it has ended."""
    run = asyncio.ensure_future(flow.arun_traced(arguments))
    try:
        return (await asyncio.shield(run)).outputs
    except asyncio.CancelledError:
        # A cancelled scope of anyio interrupts every further wait, and would interrupt the clean-up of the run as well.
        with anyio.CancelScope(shield=True):
            await end_tasks([run])
        raise
