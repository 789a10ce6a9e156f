"""A service around one flow: `POST /ask` gives its answer, `POST /ask/stream` also tells what happens on the way.

    RAGBRAID_FLOW=examples_flows/hybrid_answer.yaml uvicorn --app-dir docs/examples fastapi_app:app
    curl -N http://127.0.0.1:8000/ask/stream -H 'content-type: application/json' -d '{"question": "..."}'

FastAPI and uvicorn are there where ragbraid is: Prefect needs them too.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import Body, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent

import ragbraid

STATUS = {"input": 422, "timeout": 504, "limit": 504, "unavailable": 503, "rate_limit": 503}
"""What a `RunError` of a kind is to a client. Every other kind is 502: a service that the flow needs did not do its part."""

logger = logging.getLogger(__name__)


def make_app(flow_file: str | Path) -> FastAPI:
    """Make the service; it does not start where the flow has a mistake or lacks a setting."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.flow = ragbraid.load(flow_file)
        app.state.flow.check_resources()
        yield
        ragbraid.close_resources()

    app = FastAPI(title="Ask", lifespan=lifespan)
    app.post("/ask")(ask)
    app.post("/ask/stream", response_class=EventSourceResponse)(ask_stream)
    app.exception_handler(ragbraid.RagbraidError)(say_what_failed)
    app.exception_handler(RequestValidationError)(say_what_is_expected)
    return app


def the_flow(request: Request) -> ragbraid.Flow:
    """Return the flow that was loaded at the start; one serves any number of requests at once."""
    flow: ragbraid.Flow = request.app.state.flow
    return flow


Flow = Annotated[ragbraid.Flow, Depends(the_flow)]


def checked(flow: Flow, inputs: Annotated[dict[str, Any], Body()]) -> dict[str, Any]:
    """Refuse inputs that the flow cannot take before anything runs, and before a stream has begun."""
    flow.check_inputs(inputs)
    return inputs


Inputs = Annotated[dict[str, Any], Depends(checked)]


async def ask(request: Request, flow: Flow, inputs: Inputs) -> Any:
    """Run the flow and return what it gives. A client who goes away cancels the run."""
    return await unless_deserted(request, flow.arun(**inputs))


async def ask_stream(flow: Flow, inputs: Inputs) -> AsyncIterator[ServerSentEvent]:
    """Run the flow and tell what happens: `step`, `text`, and at the end `result` or `error`."""
    # The status line is out before the run ends, so a failure is an event. A client who goes away cancels the run.
    async with aclosing(flow.astream(inputs)) as events:
        try:
            async for event in events:
                yield as_server_sent_event(event)
        except ragbraid.RagbraidError as error:
            log(error)
            yield ServerSentEvent(event="error", data=sentence_of(error))


def as_server_sent_event(event: ragbraid.RunEvent) -> ServerSentEvent:
    """Return what a client is told; what steps give stays here, but for the result."""
    if event.kind == "result" and event.result is not None:
        return ServerSentEvent(event="result", data=event.result.outputs)
    if event.kind == "text":
        return ServerSentEvent(event="text", data={"step": event.path, "text": event.text, "restart": event.restart})
    told = {"step": event.path, "what": event.kind, "status": event.status, "done": event.done, "total": event.total}
    return ServerSentEvent(event="step", data=told)


def sentence_of(error: ragbraid.RagbraidError) -> dict[str, Any]:
    """Return what a client is told of a failure. The sentences hold no secrets, but addresses of services."""
    return {"error": str(error), "kind": getattr(error, "kind", "settings"), "step": getattr(error, "step", None)}


def log(error: ragbraid.RagbraidError) -> None:
    """Log a failure with its hint, which is for those who run the service."""
    logger.warning("%s %s", error, getattr(error, "hint", None) or "")


async def say_what_failed(_: Request, error: Exception) -> JSONResponse:
    """Answer a failure with its sentence."""
    assert isinstance(error, ragbraid.RagbraidError)
    log(error)
    status = STATUS.get(error.kind, 502) if isinstance(error, ragbraid.RunError) else 500
    return JSONResponse(sentence_of(error), status)


async def say_what_is_expected(_: Request, error: Exception) -> JSONResponse:
    """Answer a body that holds no inputs at all."""
    return JSONResponse({"error": "the body must be a JSON object with the flow's inputs", "kind": "input"}, 422)


async def unless_deserted(request: Request, work: Coroutine[Any, Any, Any]) -> Any:
    """Await work and return what it gives; cancel it when the client goes away meanwhile, who then gets no answer."""
    run, gone = asyncio.ensure_future(work), asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait([run, gone], return_when=asyncio.FIRST_COMPLETED)
        return run.result() if run.done() else Response(status_code=499)
    finally:
        for task in (run, gone):
            task.cancel()
        await asyncio.gather(run, gone, return_exceptions=True)


app = make_app(os.environ.get("RAGBRAID_FLOW", "examples_flows/hybrid_answer.yaml"))
