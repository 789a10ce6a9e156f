"""The `openai.*` resource providers: any endpoint that speaks the OpenAI protocol."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, PositiveFloat, PositiveInt

from ragbraid.nodes.openai_chat import OpenAIChat, OutputMode, RetryPolicy
from ragbraid.nodes.openai_clients import OPENAI_URL
from ragbraid.nodes.openai_embedder import openai_embedder
from ragbraid.registry.errors import SettingsError
from ragbraid.registry.providers import resource
from ragbraid.registry.resources import LLM

__all__ = ["check_base_url", "openai_chat", "openai_embedder"]


@resource("openai.chat", secrets=("api_key", "headers"))
def openai_chat(
    *,
    model: str,
    base_url: str | None = None,
    api_key: str | None = None,
    timeout_seconds: PositiveFloat = 60.0,
    max_attempts: Annotated[int, Field(ge=1, le=10)] = 3,
    mode: OutputMode = "auto",
    max_concurrency: PositiveInt = 8,
    headers: dict[str, str] | None = None,
) -> LLM:
    """A chat model at any OpenAI-compatible endpoint.

    Connection errors, timeouts, 429 (its Retry-After is honoured up to 60 seconds) and 5xx are tried again with a
    growing delay, up to `max_attempts` tries; this is the only retry layer. Output that does not fit its schema is
    repaired at most twice; repairs are counted in the usage but not as attempts. An answer that somebody reads while it
    is written (`Flow.stream`) is asked for as a stream; from an endpoint that has none it comes in one piece.

    Args:
        model: the model's name at the endpoint.
        base_url: the endpoint, such as http://127.0.0.1:8080/v1; OpenAI itself when left out.
        api_key: the key, written as a reference such as `${env.OPENAI_API_KEY}`; may be left out for local servers.
        timeout_seconds: bounds each single request.
        max_attempts: how often one request is tried, the first time included.
        mode: how structured output is asked for. `auto` states the schema in the prompt and as `response_format`
            (dropped when the endpoint does not know it) and accepts fences, prose and thoughts around the JSON;
            `json_schema`, `tools`, `json` and `markdown_json` are instructor's modes of these names.
        max_concurrency: how many requests may run at once in one event loop.
        headers: more headers for every request; their values are secrets.

    Raises:
        SettingsError: the address is no http address or holds a password, or OpenAI itself is used without a key.
    """
    url = check_base_url(base_url, api_key, provider="openai.chat")
    return OpenAIChat(
        base_url=url,
        model=model,
        api_key=api_key,
        headers=headers,
        mode=mode,
        timeout_seconds=timeout_seconds,
        retry=RetryPolicy(max_attempts=max_attempts),
        max_concurrency=max_concurrency,
    )


def check_base_url(base_url: str | None, api_key: str | None, *, provider: str) -> str:
    """Return the address without a slash at its end, OpenAI's own where none is given.

    Raises:
        SettingsError: see `openai.chat`. The message does not repeat an address that holds a password.
    """
    if base_url is None:
        if not api_key:
            raise SettingsError(
                f"`{provider}` has neither `base_url` nor `api_key`, and OpenAI itself wants a key.",
                hint="write `api_key: ${env.OPENAI_API_KEY}`, or the `base_url` of your own server",
            )
        return OPENAI_URL
    parts = urlsplit(base_url)
    if "@" in parts.netloc or parts.query:
        raise SettingsError(
            f"The `base_url` of `{provider}` holds a password or a query, which would show up in messages.",
            hint="give the key as `api_key`, anything else as `headers`",
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingsError(
            f"The `base_url` of `{provider}` is no web address: {base_url!r}.",
            hint="write it like http://127.0.0.1:8080/v1",
        )
    return base_url.rstrip("/")
