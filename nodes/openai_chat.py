"""A chat model behind an OpenAI-compatible endpoint: one retry layer, counted usage, failures as sentences.

How a structured answer comes about: instructor states the schema and repairs invalid output (at most twice). Each of
its requests goes through `_Call.create`, which retries what is transient, counts tokens, turns failures into
`ServiceError`s and takes the JSON out of fences, prose and thoughts before instructor validates it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from pydantic import BaseModel, ValidationError

from ragbraid.nodes.openai_clients import ClientSettings, LoopClients
from ragbraid.nodes.openai_errors import (
    BrokenOffError,
    Endpoint,
    Feature,
    declined,
    explain_invalid,
    read_failure,
    secrets_of,
    unfinished,
    unusable,
)
from ragbraid.nodes.openai_stream import IN_ONE_PIECE, GrowingText, read_stream, reader_of
from ragbraid.nodes.openai_text import find_object, without_thoughts
from ragbraid.registry.context import begin_text, report_note, report_usage
from ragbraid.registry.contracts import Usage
from ragbraid.registry.errors import RagbraidError, ServiceError
from ragbraid.registry.resources import Completion, Message

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

M = TypeVar("M", bound=BaseModel)

OutputMode = Literal["auto", "json_schema", "tools", "markdown_json", "json"]
MAX_REPAIRS = 2
LONGEST_WAIT_SECONDS = 60.0
"""An endpoint that asks for a longer wait than this gets none: the call fails and says so."""

_SCHEMA_NOTE = """
Reply with one JSON object and nothing else. It must match this JSON schema:
{schema}"""


@dataclass(frozen=True)
class RetryPolicy:
    """How often one request is tried, and how long to wait in between: the delay doubles, plus up to a half at random."""

    max_attempts: int = 3
    first_delay_seconds: float = 0.5

    def delay(self, attempt: int, asked_seconds: float | None) -> float:
        """Return the seconds to wait after the given attempt (from 1); what the endpoint asks for comes first."""
        if asked_seconds is not None:
            return asked_seconds
        return float(self.first_delay_seconds * 2 ** (attempt - 1) * (1 + random.random() / 2))


class OpenAIChat:
    """An `LLM` over any OpenAI-compatible endpoint. Usable from several event loops and threads.

    Args:
        base_url: the endpoint, usually ending in `/v1`.
        model: the model's name there.
        api_key: None where the endpoint wants none.
        headers: sent with every request; their values are treated as secrets.
        mode: how structured output is asked for; see `openai.chat`.
        timeout_seconds: bounds each single request.
        retry: the one retry layer.
        max_concurrency: how many requests run at once in one event loop.
    """

    def __init__(
        self,
        *,
        base_url: str,
        model: str,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        mode: OutputMode = "auto",
        timeout_seconds: float = 60.0,
        retry: RetryPolicy | None = None,
        max_concurrency: int = 8,
    ) -> None:
        self.endpoint = Endpoint(base_url, model, secrets_of(api_key, headers or {}))
        self.mode: OutputMode = mode
        self.timeout_seconds = timeout_seconds
        self.retry = retry or RetryPolicy()
        self.clients = LoopClients(
            ClientSettings(base_url, api_key, tuple((headers or {}).items()), timeout_seconds, max_concurrency)
        )
        self.rejected: set[Feature] = set()
        """What the endpoint has said that it does not know; it is left out from then on."""

    def __repr__(self) -> str:
        return f"OpenAIChat({self.identity!r})"

    @property
    def identity(self) -> str:
        """Endpoint and model."""
        return f"{self.endpoint.url}#{self.endpoint.model}"

    async def complete(self, messages: Sequence[Message], *, max_tokens: int, temperature: float) -> Completion[str]:
        """Return the model's text, without its `<think>` part.

        Raises:
            ServiceError: with one of the kinds of `LLM`.
        """
        call = _Call(self, None)
        response = await call.create(
            messages=[message.model_dump() for message in messages], max_tokens=max_tokens, temperature=temperature
        )
        text = without_thoughts(response.choices[0].message.content or "").strip()
        if not text:
            raise unusable(self.endpoint, "it is empty")
        return Completion(text, call.usage, response.model or self.endpoint.model)

    async def extract(
        self, messages: Sequence[Message], output: type[M], *, max_tokens: int, temperature: float
    ) -> Completion[M]:
        """Return the model's answer as an instance of `output`, repaired at most twice.

        Raises:
            ServiceError: with one of the kinds of `LLM`.
        """
        import instructor

        sent = [message.model_dump() for message in messages]
        mode = _INSTRUCTOR_MODES[self.mode]
        if self.mode == "auto":
            sent = _with_schema(sent, output)
        call = _Call(self, output)
        ask: Any = instructor.patch(create=call.create, mode=instructor.Mode(mode))
        _silence_instructor()
        failure: RagbraidError
        quiet = _quiet.set(True)
        try:
            await ask(
                response_model=output,
                max_retries=MAX_REPAIRS,
                strict=False,
                messages=sent,
                max_tokens=max_tokens,
                temperature=temperature,
            )
        except RagbraidError as error:
            failure = error
        except instructor.core.exceptions.InstructorError as error:
            failure = self._after_repairs(error)
        else:
            # instructor validates into a subclass made at run time, which neither pickles nor compares like `output`.
            return Completion(output.model_validate_json(call.answer), call.usage, call.answered_by)
        finally:
            _quiet.reset(quiet)
        raise failure.with_traceback(None)

    def _after_repairs(self, error: Exception) -> RagbraidError:
        """Name the reason behind instructor's exception: a failure of ours that passed through it, or bad output."""
        cause = error.__cause__
        if isinstance(cause, RagbraidError):
            cause.__context__ = None
            return cause
        if isinstance(cause, ValidationError):
            reason = explain_invalid(cause.errors(include_url=False, include_input=False, include_context=False))
        else:
            reason = str(cause or error)
        return unusable(self.endpoint, f"after {MAX_REPAIRS} repairs it still does not fit the form: {reason}")


_quiet: ContextVar[bool] = ContextVar("ragbraid_quiet_instructor", default=False)


@cache
def _silence_instructor() -> None:
    """Keep instructor from logging failures of our calls: they are raised, and its lines repeat the model's text.

    Its own users in the same process still get theirs.
    """
    logging.getLogger("instructor.v2.retry").addFilter(lambda record: not _quiet.get())


async def _pause(seconds: float) -> None:
    await asyncio.sleep(seconds)


_INSTRUCTOR_MODES = {
    "auto": "json_schema_mode",
    "json_schema": "json_schema_mode",
    "tools": "tool_call",
    "markdown_json": "markdown_json_mode",
    "json": "json_mode",
}


def _with_schema(messages: list[dict[str, Any]], output: type[BaseModel]) -> list[dict[str, Any]]:
    """Put the schema into the prompt as well, for endpoints that accept `response_format` and then ignore it."""
    schema = json.dumps(output.model_json_schema(), ensure_ascii=False, separators=(",", ":"))
    note = _SCHEMA_NOTE.format(schema=schema)
    if messages and messages[0]["role"] == "system":
        return [{**messages[0], "content": messages[0]["content"] + "\n" + note}, *messages[1:]]
    return [{"role": "system", "content": note.strip()}, *messages]


class _Call:
    """One call of `complete` or `extract`: every request that it takes, and what they used together."""

    def __init__(self, chat: OpenAIChat, output: type[BaseModel] | None) -> None:
        self.chat = chat
        self.fields = frozenset(output.model_fields) if output is not None else frozenset[str]()
        self.usage = Usage()
        self.answered_by = chat.endpoint.model
        self.answer = ""
        self._reader = reader_of(output)
        self._text: GrowingText | None = None
        """What tells the text of the current request, where somebody follows it."""

    async def create(self, *_: Any, **request: Any) -> ChatCompletion:
        """Send one request, tried again while its failure is transient, and return an answer that can be read.

        Raises:
            ServiceError: the endpoint failed, or the model stopped early or refused.
            LimitError: the run has used up its limits.
        """
        policy = self.chat.retry
        attempt = 0
        while True:
            attempt += 1
            listener = begin_text() if self._reader is not None else None
            self._text = GrowingText(listener, self._reader) if listener and self._reader else None
            sent = self._with_stream(request)
            answer = await self._attempt(sent)
            if not isinstance(answer, _Failed):
                return self._read(answer, request["max_tokens"])
            if answer.rejected is not None:
                self.chat.rejected.add(answer.rejected)
                attempt -= 1
                continue
            wait = policy.delay(attempt, answer.asked_seconds)
            if not answer.retry or attempt >= policy.max_attempts or wait > LONGEST_WAIT_SECONDS:
                raise answer.error
            await _pause(wait)

    def _with_stream(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the request as it is sent: streamed where somebody follows it, without what the endpoint rejected."""
        rejected = self.chat.rejected
        if "response_format" in rejected and self.chat.mode == "auto":
            request.pop("response_format", None)
        if self._text is None:
            return request
        if "stream" in rejected:
            report_note(IN_ONE_PIECE)
            return request
        options = {} if "stream_options" in rejected else {"stream_options": {"include_usage": True}}
        return {**request, "stream": True, **options}

    async def _attempt(self, request: Mapping[str, Any]) -> ChatCompletion | _Failed:
        import openai

        chat = self.chat
        try:
            async with chat.clients.acquire() as client, asyncio.timeout(chat.timeout_seconds):
                answer: Any = await client.chat.completions.create(model=chat.endpoint.model, **request)
                if self._text is not None and "stream" in request:
                    answer = await read_stream(answer, self._text.grow)
                return cast("ChatCompletion", answer)
        except (openai.OpenAIError, BrokenOffError, TimeoutError, ValueError) as error:
            # Returned, not raised: an exception raised here would carry the client's as its context, key and all.
            failure = read_failure(error, chat.endpoint, chat.timeout_seconds)
            rejected = next((feature for feature in failure.rejects if feature in request), None)
            if rejected == "response_format" and chat.mode != "auto":
                rejected = None
            return _Failed(failure.error, failure.retry, failure.retry_after_seconds, rejected)

    def _read(self, response: ChatCompletion, max_tokens: int) -> ChatCompletion:
        """Count what the answer used, and refuse answers that are none."""
        endpoint = self.chat.endpoint
        if not hasattr(response, "choices"):
            raise unusable(endpoint, "it is no chat completion; check `base_url`", kind="unavailable")
        self._count(response)
        choices = response.choices
        if not choices or choices[0].message is None:
            raise unusable(endpoint, "it holds no choice")
        choice = choices[0]
        if choice.finish_reason == "length":
            raise unfinished(endpoint, max_tokens)
        if choice.finish_reason == "content_filter":
            raise declined(endpoint, "its content filter took effect")
        if choice.message.refusal:
            raise declined(endpoint, choice.message.refusal)
        if self.fields:
            self.answer = self._take_json(choice.message)
        if self._text is not None:
            self._text.grow(self.answer or without_thoughts(choice.message.content or ""))
        return response

    def _take_json(self, message: Any) -> str:
        if message.tool_calls:
            return str(message.tool_calls[0].function.arguments)
        if message.content:
            message.content = find_object(without_thoughts(message.content), self.fields)
        return message.content or ""

    def _count(self, response: ChatCompletion) -> None:
        usage = getattr(response, "usage", None)
        spent = Usage(
            llm_calls=1,
            prompt_tokens=getattr(usage, "prompt_tokens", None) or 0,
            completion_tokens=getattr(usage, "completion_tokens", None) or 0,
        )
        self.usage = self.usage + spent
        self.answered_by = getattr(response, "model", None) or self.answered_by
        report_usage(spent)


@dataclass(frozen=True)
class _Failed:
    error: ServiceError
    retry: bool
    asked_seconds: float | None
    rejected: Feature | None
    """What the endpoint does not know; without it the same request may do."""
