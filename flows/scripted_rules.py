"""What a scripted model answers: rules that authors write as YAML or JSON, and recordings that are replayed.

A script is a list of responders; the first of them that has a reply to a request gives it. `Rule` is the responder that files hold; Python
code may add any function of the same type.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, JsonValue, PrivateAttr, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from ragbraid.registry.errors import SettingsError

Fault = Literal[
    "rate_limit", "server_error", "unauthorized", "bad_request", "not_found", "content_filter", "timeout", "reset",
    "web_page", "empty_choices", "cut_off", "wrong_schema", "not_json", "broken_stream", "stream_error",
]  # fmt: skip
"""What can go wrong on demand: an HTTP error, a dead line, or a reply that is not what was asked for.

The last two need a stream, which they end halfway: by a dead line, or by an error where the next piece was due."""

Wrapping = Literal["fence", "prose", "think"]
"""How chat models decorate JSON: a code fence, sentences around it, thoughts in front of it."""

HTTP_FAULTS: dict[str, tuple[int, str]] = {
    "rate_limit": (429, "Too many requests."),
    "server_error": (500, "The server had an error."),
    "unauthorized": (401, "Incorrect API key provided."),
    "not_found": (404, "The model does not exist."),
    "bad_request": (400, "The request is not valid."),
}
"""The status and message behind the faults that are HTTP errors."""


@dataclass(frozen=True)
class ChatRequest:
    """One request to `/v1/chat/completions`: its body, its headers (names in lower case) and its number from 1."""

    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    number: int = 1

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages as they were sent."""
        return list(self.body.get("messages") or [])

    @property
    def user(self) -> str:
        """The last user message."""
        return next((_content(m) for m in reversed(self.messages) if m.get("role") == "user"), "")

    @property
    def system(self) -> str:
        """The system messages, joined by line breaks."""
        return "\n".join(_content(m) for m in self.messages if m.get("role") == "system")


@dataclass(frozen=True)
class Reply:
    """What the server sends back. `delay_seconds` comes first, then the fault if there is one, else the text.

    In a stream, `piece_seconds` pass before every piece, and `before_piece` is called with its number from 1: it may
    wait for something, and so show what a client does while an answer is half written.
    """

    text: str = ""
    fault: Fault | None = None
    message: str | None = None
    retry_after: str | None = None
    delay_seconds: float = 0.0
    piece_seconds: float = 0.0
    before_piece: Callable[[int], object] | None = None


Responder = Callable[[ChatRequest], Reply | None]
"""Returns the reply to a request, or None when the request is not its business."""


class Rule(BaseModel):
    """One rule of a script: which requests it answers, and how.

    A rule answers a request when `user` is found in the last user message, `system` in the system message, and the
    request is one of the `call` numbers among those that both patterns match. A rule without conditions answers
    everything.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    user: str | None = Field(default=None, description="regular expression, searched in the last user message")
    system: str | None = Field(default=None, description="regular expression, searched in the system message")
    call: int | list[int] | None = Field(
        default=None, description="answers only the n-th request (from 1) that the patterns match, or only these"
    )
    reply: str | None = Field(default=None, description="the text that is sent back")
    json_reply: JsonValue = Field(default=None, alias="json", description="sent back as JSON, or as a tool call")
    wrap: Wrapping | None = Field(default=None, description="puts the reply into a fence, into prose or after thoughts")
    fault: Fault | None = Field(default=None, description="what goes wrong instead of, or with, the reply")
    message: str | None = Field(default=None, description="the sentence of an HTTP error")
    retry_after: float | str | None = Field(default=None, description="the Retry-After header: seconds or a date")
    delay_seconds: float = Field(default=0.0, ge=0, description="how long the server waits before it answers")
    piece_seconds: float = Field(default=0.0, ge=0, description="how long it waits before every piece of a stream")

    _lock: threading.Lock = PrivateAttr(default_factory=threading.Lock)
    _matched: list[int] = PrivateAttr(default_factory=lambda: [0])

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for pattern in (self.user, self.system):
            try:
                re.compile(pattern or "")
            except re.error as error:
                message = f"{pattern!r} is not a regular expression: {error}"
                raise PydanticCustomError("pattern", "{message}", {"message": message}) from None
        if self.reply is not None and self.json_reply is not None:
            raise PydanticCustomError("rule", "a rule has `reply` or `json`, not both")
        if self.reply is None and self.json_reply is None and self.fault is None:
            raise PydanticCustomError("rule", "a rule needs `reply`, `json` or `fault`")
        return self

    def __call__(self, request: ChatRequest) -> Reply | None:
        """Return the reply, or None when the rule does not apply."""
        if not (re.search(self.user or "", request.user) and re.search(self.system or "", request.system)):
            return None
        with self._lock:
            self._matched[0] += 1
            number = self._matched[0]
        if self.call is not None and number not in ([self.call] if isinstance(self.call, int) else self.call):
            return None
        text = self.reply if self.reply is not None else json.dumps(self.json_reply, ensure_ascii=False)
        return Reply(
            text=wrapped(text, self.wrap),
            fault=self.fault,
            message=self.message,
            retry_after=None if self.retry_after is None else str(self.retry_after),
            delay_seconds=self.delay_seconds,
            piece_seconds=self.piece_seconds,
        )


def wrapped(text: str, wrapping: Wrapping | None) -> str:
    """Decorate a reply in the way that chat models do."""
    if wrapping == "fence":
        return f"```json\n{text}\n```"
    if wrapping == "prose":
        return f"Sure, here is the result:\n\n{text}\n\nTell me if {{anything}} is missing, see [1]."
    if wrapping == "think":
        return f'<think>\nThe format could be {{"draft": true}}. Let me see.\n</think>\n\n{text}'
    return text


def load_rules(path: Path) -> list[Rule]:
    """Read a rules file: a list of rules, or a mapping with the list under `rules`; YAML or JSON.

    Raises:
        SettingsError: the file cannot be read or a rule is wrong; the message names the rule by its number.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"The rules file {path} cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"The rules file {path} is not valid YAML: {' '.join(str(error).split())}") from None
    items = content.get("rules") if isinstance(content, dict) else content
    if not isinstance(items, list):
        raise SettingsError(f"The rules file {path} must hold a list of rules, directly or under `rules`.")
    return [_rule(path, number, item) for number, item in enumerate(items, start=1)]


def _rule(path: Path, number: int, item: Any) -> Rule:
    try:
        return Rule.model_validate(item)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        reason = first["msg"].removeprefix("Value error, ")
        known = [field.alias or name for name, field in Rule.model_fields.items()]
        hint = f"a rule may have {', '.join(known)}" if first["type"] == "extra_forbidden" else None
        raise SettingsError(
            f"Rule {number} of {path} is wrong: {f'`{place}`: ' if place else ''}{reason}.", hint=hint
        ) from None


class Recording:
    """Replays recorded conversations: a request with the same messages gets the replies recorded for it, in order.

    When a conversation was recorded fewer times than it is asked, its last reply is repeated.
    """

    def __init__(self, lines: Sequence[dict[str, Any]]) -> None:
        self._replies: dict[str, list[str]] = {}
        self._asked: dict[str, int] = {}
        self._lock = threading.Lock()
        for line in lines:
            self._replies.setdefault(_key(line["messages"]), []).append(line["reply"])

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a recording: JSON lines of `{"messages": [...], "reply": "..."}`, as a scripted server writes them.

        Raises:
            SettingsError: the file cannot be read or a line is no such object; the message names the line.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise SettingsError(f"The recording {path} cannot be read: {error.strerror}.") from None
        lines = []
        for number, line in enumerate(text.splitlines(), start=1):
            if not line.strip():
                continue
            try:
                lines.append({"messages": (content := json.loads(line))["messages"], "reply": str(content["reply"])})
            except (ValueError, KeyError, TypeError):
                raise SettingsError(
                    f'Line {number} of the recording {path} is not an object with "messages" and "reply".'
                ) from None
        return cls(lines)

    def __call__(self, request: ChatRequest) -> Reply | None:
        """Return the recorded reply, or None when these messages were not recorded."""
        key = _key(request.messages)
        replies = self._replies.get(key)
        if replies is None:
            return None
        with self._lock:
            asked = self._asked.get(key, 0)
            self._asked[key] = asked + 1
        return Reply(text=replies[min(asked, len(replies) - 1)])


def _key(messages: Any) -> str:
    return json.dumps(messages, sort_keys=True, ensure_ascii=False)


def _content(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
