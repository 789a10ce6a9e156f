"""The bodies that the scripted server sends: completions, chunks of streams, vectors, errors."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterable
from typing import Any

from ragbraid.flows.scripted_rules import ChatRequest, Reply
from ragbraid.flows.scripted_text import count_tokens, embed_text, split_pieces

MODEL_NAME = "scripted"


def error_body(message: str) -> dict[str, Any]:
    """Return an error in the form of the protocol."""
    return {"error": {"message": message, "type": "scripted", "param": None, "code": None}}


def completion_body(request: ChatRequest, reply: Reply) -> dict[str, Any]:
    """Return a chat completion; where the request has tools, JSON is the arguments of the first one."""
    text = {"wrong_schema": '{"unexpected": true}', "not_json": "I would rather talk about it."}.get(
        reply.fault or "", reply.text
    )
    if reply.fault == "cut_off":
        text = text[: max(1, len(text) // 2)]
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if request.body.get("tools") and text.startswith("{"):
        call = {"name": request.body["tools"][0]["function"]["name"], "arguments": text}
        tool_call = {"id": "call_1", "type": "function", "function": call}
        message = {"role": "assistant", "content": None, "tool_calls": [tool_call]}
    reason = {"cut_off": "length", "content_filter": "content_filter"}.get(reply.fault or "", "stop")
    prompt = sum(count_tokens(json.dumps(m.get("content"), ensure_ascii=False)) for m in request.messages)
    written = count_tokens(text)
    choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
    return {
        "id": "scripted-1",
        "object": "chat.completion",
        "created": 0,
        "model": request.body.get("model", MODEL_NAME),
        "choices": [] if reply.fault == "empty_choices" else [choice],
        "usage": {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written},
    }


def stream_events(completion: dict[str, Any], with_usage: bool) -> Iterable[dict[str, Any]]:
    """Yield the chunks that amount to a chat completion, its text in pieces of 16 characters."""
    head = {**{key: completion[key] for key in ("id", "created", "model")}, "object": "chat.completion.chunk"}
    for choice in completion["choices"]:
        message = choice["message"]
        pieces: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        pieces += [{"content": piece} for piece in split_pieces(message["content"] or "")]
        for call in message.get("tool_calls", ()):
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            pieces.append({"tool_calls": [{"index": 0, **call, "function": {"name": name, "arguments": ""}}]})
            deltas = [{"index": 0, "function": {"arguments": piece}} for piece in split_pieces(arguments)]
            pieces += [{"tool_calls": [delta]} for delta in deltas]
        for delta in pieces:
            yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}
    if with_usage:
        yield {**head, "choices": [], "usage": completion["usage"]}


def embeddings_body(body: dict[str, Any], dimension: int) -> dict[str, Any]:
    """Return the vectors that a request asks for."""
    given = body.get("input", [])
    texts = [given] if isinstance(given, str) else [str(text) for text in given]
    vectors = [embed_text(text, int(body.get("dimensions") or dimension)) for text in texts]
    as_base64 = body.get("encoding_format") == "base64"
    tokens = sum(count_tokens(text) for text in texts)
    return {
        "object": "list",
        "model": body.get("model", MODEL_NAME),
        "data": [
            {"object": "embedding", "index": index, "embedding": _as_base64(vector) if as_base64 else vector}
            for index, vector in enumerate(vectors)
        ],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def _as_base64(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
