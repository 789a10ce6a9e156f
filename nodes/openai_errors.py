"""Turns what goes wrong at an OpenAI-compatible endpoint into sentences with a kind, free of secrets."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Literal

from ragbraid.registry.errors import FailureKind, ServiceError

_LONGEST_DETAIL = 300
_SHORTEST_SECRET = 4
REDACTED = "***"


Feature = Literal["stream_options", "stream", "response_format"]
"""Parts of the protocol that an endpoint may do without: named as in a request."""

_ABOUT: dict[Feature, tuple[str, ...]] = {
    "stream_options": ("stream_options", "include_usage"),
    "stream": ("stream",),
    "response_format": ("response_format", "json_schema", "structured output", "grammar"),
}
"""Words by which an endpoint says what it does not know; what comes first is given up first."""


class BrokenOffError(Exception):
    """A streamed answer ended before it was complete."""


@dataclass(frozen=True)
class Endpoint:
    """Who is talked to, for messages: the address, the model, and the secrets that no message may repeat."""

    url: str
    model: str
    secrets: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Endpoint({self.url!r}, {self.model!r})"

    def __str__(self) -> str:
        return f"model `{self.model}` at {self.url}"

    def clean(self, text: str) -> str:
        """Return the text on one line, shortened, with every secret replaced by `***`."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(secret, REDACTED)
        text = " ".join(text.split())
        return text if len(text) <= _LONGEST_DETAIL else text[: _LONGEST_DETAIL - 1] + "…"


@dataclass(frozen=True)
class Failure:
    """One failed attempt: the error to raise if it was the last one, and whether and when to try again."""

    error: ServiceError
    retry: bool = False
    retry_after_seconds: float | None = None
    rejects: tuple[Feature, ...] = ()
    """What the endpoint may have said that it cannot do; the first of these that the request had is what it meant."""


def secrets_of(api_key: str | None, headers: Mapping[str, str]) -> tuple[str, ...]:
    """Collect what must not be repeated: the key and every header value, also without its scheme (`Bearer x`)."""
    values: list[str] = [api_key or "", *headers.values()]
    values += [word for value in headers.values() for word in value.split()[1:]]
    return tuple(dict.fromkeys(value for value in values if len(value) >= _SHORTEST_SECRET))


def read_failure(error: Exception, endpoint: Endpoint, timeout_seconds: float) -> Failure:
    """Read an exception of the OpenAI client (or a timeout of our own) into a failure.

    The returned error is a new one without a chain: the client's exceptions hold the request, and with it the key.
    """
    import openai

    if isinstance(error, TimeoutError | openai.APITimeoutError):
        return Failure(_timeout(endpoint, timeout_seconds), retry=True)
    if isinstance(error, openai.APIStatusError):
        return _status_failure(error, endpoint)
    if isinstance(error, openai.APIConnectionError):
        return Failure(_unreachable(error, endpoint), retry=True)
    if isinstance(error, BrokenOffError):
        return Failure(_broken_off(str(error), endpoint), retry=True)
    if type(error) is openai.APIError:  # the only ones of the plain class come in the middle of a stream
        return Failure(_broken_off(error.message, endpoint), retry=True)
    detail = endpoint.clean(f"{type(error).__name__}: {error}")
    return Failure(
        ServiceError(
            f"The answer of {endpoint} is not what an OpenAI-compatible endpoint sends ({detail}).",
            kind="unavailable",
            hint="check `base_url`; it usually ends in /v1",
        )
    )


def _timeout(endpoint: Endpoint, timeout_seconds: float) -> ServiceError:
    return ServiceError(
        f"No answer from {endpoint} within {timeout_seconds:g} seconds.",
        kind="timeout",
        hint="raise `timeout_seconds` of the llm, or ask for fewer `max_tokens`",
    )


def _unreachable(error: Exception, endpoint: Endpoint) -> ServiceError:
    cause: BaseException = error.__cause__ or error
    detail = endpoint.clean(str(cause)) or type(cause).__name__
    return ServiceError(
        f"No connection to {endpoint}: {detail.rstrip('.')}.",
        kind="unavailable",
        hint="check that the server runs and that `base_url` is right",
    )


def _broken_off(reason: str, endpoint: Endpoint) -> ServiceError:
    detail = endpoint.clean(reason).rstrip(".")
    return ServiceError(f"The answer of {endpoint} broke off: {detail}.", kind="unavailable")


def _status_failure(error: Any, endpoint: Endpoint) -> Failure:
    status: int = error.status_code
    if status in (401, 403):
        return Failure(_denied(error, endpoint))
    detail = _detail(error, endpoint)
    if status == 429:
        wait = retry_after_seconds(error.response.headers)
        asked = f", which asks to wait {wait:g} seconds" if wait else ""
        return Failure(
            ServiceError(f"Too many requests for {endpoint}{asked}{detail}.", kind="rate_limit"),
            retry=True,
            retry_after_seconds=wait,
        )
    if status >= 500 or status in (408, 409, 425):
        return Failure(
            ServiceError(f"An error ({status}) at {endpoint}{detail}.", kind="unavailable"),
            retry=True,
            retry_after_seconds=retry_after_seconds(error.response.headers),
            rejects=_rejected(error) if status == 501 else (),
        )
    hint = "check `base_url` and `model`" if status == 404 else None
    return Failure(
        ServiceError(f"The request was refused ({status}) by {endpoint}{detail}.", kind="refused", hint=hint),
        rejects=_rejected(error) if status in (400, 404, 422) else (),
    )


def _denied(error: Any, endpoint: Endpoint) -> ServiceError:
    # Endpoints quote parts of the key in their 401 text ("Incorrect API key provided: sk-12***89"): leave that out.
    if error.status_code == 401:
        return ServiceError(f"The key was not accepted (401) by {endpoint}.", kind="auth", hint="check `api_key`")
    return ServiceError(f"Access was denied (403) by {endpoint}{_detail(error, endpoint)}.", kind="auth")


def _detail(error: Any, endpoint: Endpoint) -> str:
    body = error.body
    message = body.get("message") if isinstance(body, dict) else body
    text = endpoint.clean(message if isinstance(message, str) else "")
    return f": {text.rstrip('.')}" if text else ""


def _rejected(error: Any) -> tuple[Feature, ...]:
    body = error.body
    # FastAPI's own validation puts what it does not know into a list called `detail`.
    said = str(body.get("message") or body.get("detail") or "") if isinstance(body, dict) else str(body or "")
    return tuple(feature for feature, words in _ABOUT.items() if any(word in said.lower() for word in words))


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """Read a Retry-After header (seconds or an HTTP date), None where there is none or it makes no sense."""
    value = headers.get("retry-after")
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def unfinished(endpoint: Endpoint, max_tokens: int) -> ServiceError:
    """The model stopped at its token limit."""
    return ServiceError(
        f"The answer of {endpoint} was cut off at its limit of {max_tokens} tokens.",
        kind="truncated",
        hint="raise `max_tokens`",
    )


def declined(endpoint: Endpoint, reason: str) -> ServiceError:
    """The endpoint withheld the answer: a content filter or a refusal of the model."""
    return ServiceError(f"The answer was withheld by {endpoint}: {endpoint.clean(reason).rstrip('.')}.", kind="refused")


def unusable(endpoint: Endpoint, reason: str, *, kind: FailureKind = "invalid_output") -> ServiceError:
    """The model answered, but not in a way that can be used."""
    return ServiceError(f"The answer of {endpoint} cannot be used: {endpoint.clean(reason).rstrip('.')}.", kind=kind)


def explain_invalid(errors: Iterable[Mapping[str, Any]]) -> str:
    """Say in words what pydantic found wrong, at most three places, without repeating the model's text."""
    found = list(errors)
    parts = []
    for error in found[:3]:
        place = ".".join(str(part) for part in error["loc"])
        parts.append(f"`{place}`: {error['msg']}" if place else str(error["msg"]))
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return "; ".join(parts) + more
