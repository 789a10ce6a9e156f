"""Answers that an OpenAI-compatible endpoint streams: put together to one completion, their text told as it grows."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ragbraid.nodes.openai_errors import BrokenOffError
from ragbraid.nodes.openai_text import find_open_object, without_open_thoughts
from ragbraid.registry.context import TextListener, WritesText, report_note

if TYPE_CHECKING:
    from openai import AsyncStream
    from openai.types.chat import ChatCompletion, ChatCompletionChunk
    from pydantic import BaseModel

T = TypeVar("T")

IN_ONE_PIECE = "the endpoint does not stream: the text came in one piece"

Reader = Callable[[str], str | None]
"""Gives what to show of a text that is still being written; None while that cannot be said."""


def reader_of(output: type[BaseModel] | None) -> Reader | None:
    """Return what reads the text to show out of a model's answer; None where the user is shown nothing of it.

    Args:
        output: the form of the answer; None when it is plain text.
    """
    if output is None:
        return without_open_thoughts
    if not issubclass(output, WritesText):
        return None
    form, fields = output, frozenset(output.model_fields)

    def read(written: str) -> str | None:
        found = find_open_object(without_open_thoughts(written), fields)
        return None if found is None else form.text_so_far(found)

    return read


class GrowingText:
    """Tells a listener what is new of a text, or that it has become another one."""

    def __init__(self, listener: TextListener, read: Reader) -> None:
        self._listener = listener
        self._read = read
        self._told = ""

    def grow(self, written: str) -> None:
        """Take all that the model has written so far."""
        text = self._read(written)
        if text is None or text == self._told:
            return
        if text.startswith(self._told):
            self._listener(text[len(self._told) :])
        else:
            self._listener(text, True)
        self._told = text


async def read_stream(stream: AsyncStream[ChatCompletionChunk], grow: Callable[[str], None]) -> Any:
    """Read a stream to its end and return the `ChatCompletion` that it amounts to; not one if no completion came.

    Args:
        stream: closed in the end, whatever happens.
        grow: told all that has been written so far, whenever something was added.

    Raises:
        BrokenOffError: the stream ended in the middle of an answer.
        openai.APIError: the endpoint said, in the stream, that it failed.
    """
    async with stream:
        if "text/event-stream" not in stream.response.headers.get("content-type", ""):
            return await _whole_answer(stream)
        parts = _Parts()
        chunks = aiter(stream)
        while (chunk := await _received(anext(chunks, None))) is not None:
            if parts.add(chunk):
                grow(parts.written)
    return parts.completion()


async def _received(part: Awaitable[T]) -> T:
    """Await a part of a stream; what the client's transport raises passes through the client unchanged here."""
    import openai

    try:
        return await part
    except (openai.OpenAIError, ValueError, TimeoutError):
        raise
    except Exception as error:  # noqa: BLE001 - which transport it is, and so what it raises, is the client's affair
        raise BrokenOffError(str(error) or type(error).__name__) from None


async def _whole_answer(stream: AsyncStream[ChatCompletionChunk]) -> Any:
    """Read the answer of an endpoint that takes no notice of `stream`: a completion, or whatever else it sent."""
    from openai.types.chat import ChatCompletion

    raw = await _received(stream.response.aread())
    try:
        body = json.loads(raw)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        return raw
    report_note(IN_ONE_PIECE)
    return ChatCompletion.construct(**body)


class _Parts:
    """What the chunks of a stream have brought so far. Takes what servers leave out or add."""

    def __init__(self) -> None:
        self.written = ""
        """The content, or the arguments of the first tool call."""
        self._refusal = ""
        self._tool: str | None = None
        self._finish: str | None = None
        self._has_choice = False
        self._usage: Any = None
        self._model = ""

    def add(self, chunk: ChatCompletionChunk) -> bool:
        """Take a chunk in; returns whether something was written."""
        self._model = getattr(chunk, "model", None) or self._model
        self._usage = getattr(chunk, "usage", None) or self._usage
        choices = getattr(chunk, "choices", None)
        if not choices:
            return False
        choice = choices[0]
        self._has_choice = True
        self._finish = choice.finish_reason or self._finish
        delta = choice.delta
        if delta is None:
            return False
        self._refusal += getattr(delta, "refusal", None) or ""
        return self._write(delta)

    def _write(self, delta: Any) -> bool:
        piece = delta.content or ""
        for call in (getattr(delta, "tool_calls", None) or ())[:1]:
            if call.function is not None and not call.index:
                self._tool = call.function.name or self._tool or ""
                piece = call.function.arguments or ""
        self.written += piece
        return bool(piece)

    def completion(self) -> ChatCompletion:
        """Return the whole answer.

        Raises:
            BrokenOffError: the last chunk never came.
        """
        from openai.types.chat import ChatCompletion

        if self._has_choice and self._finish is None:
            raise BrokenOffError("the stream ended before the answer did")
        if self._usage is None:
            report_note("the endpoint did not say how many tokens the streamed answer took; they are not counted")
        message: dict[str, Any] = {"role": "assistant", "content": self.written, "refusal": self._refusal or None}
        if self._tool is not None:
            function = {"name": self._tool, "arguments": self.written}
            message |= {"content": None, "tool_calls": [{"id": "", "type": "function", "function": function}]}
        choice = {"index": 0, "finish_reason": self._finish, "message": message}
        return ChatCompletion.construct(
            id="",
            object="chat.completion",
            created=0,
            model=self._model,
            choices=[choice] if self._has_choice else [],
            usage=self._usage,
        )
