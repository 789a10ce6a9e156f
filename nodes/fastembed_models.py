"""Loading models with fastembed: from a folder without any network, or by name from its cache and the hub."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from ragbraid.registry.errors import SettingsError
from ragbraid.registry.suggest import did_you_mean

Pooling = Literal["mean", "cls", "last_token"]
MODEL_FILE = "model.onnx"
INSTALL_LINE = 'pip install "ragbraid[local]"'

_registering = threading.Lock()


def require_fastembed() -> None:
    """Raise SettingsError with the line to type where fastembed is not installed."""
    if find_spec("fastembed") is None:
        raise SettingsError(f"fastembed is not installed. Install it: {INSTALL_LINE}", hint=INSTALL_LINE)


def check_folder(path: str, model_file: str) -> Path:
    """Return the folder of a model, if it holds what fastembed reads.

    Raises:
        SettingsError: it is no folder or a file is missing; the message names it.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise SettingsError(f"There is no model folder {folder}. Correct `path`.")
    missing = [
        name for name in (model_file, "tokenizer.json", "tokenizer_config.json") if not (folder / name).is_file()
    ]
    if missing:
        raise SettingsError(f"The model folder {folder} lacks {', '.join(missing)}.")
    return folder


def folder_digest(folder: Path, model_file: str) -> str:
    """Return 12 hex digits that identify a model's weights: of the ONNX file and of the data file beside it."""
    digest = hashlib.sha256()
    for name in (model_file, f"{model_file}_data"):
        file = folder / name
        if file.is_file():
            state = file.stat()
            digest.update(_file_digest(file, state.st_size, state.st_mtime_ns))
    return digest.hexdigest()[:12]


@cache
def _file_digest(file: Path, size: int, changed: int) -> bytes:
    """Hash a file once per process and state; `size` and `changed` are the key's share in that."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").digest()


def open_local_folder(
    folder: Path, *, name: str, threads: int | None, pooling: Pooling = "mean", model_file: str = MODEL_FILE
) -> Any:
    """Load a `fastembed.TextEmbedding` from a folder; the hub is never asked.

    Raises:
        SettingsError: the files cannot be loaded.
    """
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    if known_file(TextEmbedding, name) is None:
        # fastembed keeps its models by name in the process, so the name must say all that the entry holds.
        name = f"ragbraid/{name}/{pooling}/{model_file}"
        with _registering:
            if known_file(TextEmbedding, name) is None:
                TextEmbedding.add_custom_model(
                    model=name,
                    pooling=PoolingType[pooling.upper()],
                    normalization=True,
                    sources=ModelSource(hf="none/none"),
                    dim=1,
                    model_file=model_file,
                )
    with _load_failures(folder):
        return TextEmbedding(name, specific_model_path=str(folder), threads=threads)


def open_local_cross_encoder(folder: Path, *, name: str, threads: int | None, model_file: str) -> Any:
    """Load a `fastembed` TextCrossEncoder from a folder; the hub is never asked.

    Raises:
        SettingsError: the files cannot be loaded.
    """
    from fastembed.common.model_description import ModelSource
    from fastembed.rerank.cross_encoder import TextCrossEncoder

    if known_file(TextCrossEncoder, name) is None:
        name = f"ragbraid/{name}/{model_file}"
        with _registering:
            if known_file(TextCrossEncoder, name) is None:
                TextCrossEncoder.add_custom_model(
                    model=name, sources=ModelSource(hf="none/none"), model_file=model_file
                )
    with _load_failures(folder):
        return TextCrossEncoder(name, specific_model_path=str(folder), threads=threads)


def open_from_hub(kind: Any, model: str, *, threads: int | None) -> Any:
    """Load a model by name: from fastembed's cache, else from the hub if that answers.

    Raises:
        SettingsError: it is not in the cache, and the hub may not be asked, does not answer, or refuses.
    """
    try:
        with _quiet():
            return kind(model, threads=threads, local_files_only=True)
    except ValueError:
        pass
    if not _hub_answers():
        # Without this question fastembed would try three times, with half a minute of waiting in between.
        raise SettingsError(
            f"The model {model} is not in the local cache, and the model hub cannot be reached from here. "
            "Run once with a connection, or name a folder with its files in `path`, or use the embedder `packaged.e5`."
        )
    try:
        return kind(model, threads=threads)
    except (ValueError, OSError) as error:
        raise SettingsError(f"The model {model} could not be fetched from the hub: {error}") from error


def _hub_answers() -> bool:
    import httpx

    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        return False
    try:
        httpx.head(os.environ.get("HF_ENDPOINT", "https://huggingface.co"), timeout=10, follow_redirects=False)
    except httpx.HTTPError:
        return False
    return True


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep fastembed from logging a model that is not in the cache as an error: that is an answer here."""
    from loguru import logger

    logger.disable("fastembed")
    try:
        yield
    finally:
        logger.enable("fastembed")


@contextmanager
def _load_failures(folder: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # onnxruntime and tokenizers have no common base for files that are no models
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SettingsError(f"The model in {folder} cannot be loaded: {first_line}") from error


def known_file(kind: Any, model: str) -> str | None:
    """Return the ONNX file of a model that fastembed knows by name, or None; `kind` is a class of fastembed's."""
    for entry in kind.list_supported_models():
        if entry["model"].lower() == model.lower():
            return str(entry["model_file"])
    return None


def check_known(kind: Any, model: str, what: str) -> None:
    """Raise SettingsError, with the nearest name as a hint, where fastembed does not know a model."""
    known = [str(entry["model"]) for entry in kind.list_supported_models()]
    if model.lower() not in {name.lower() for name in known}:
        raise SettingsError(
            f"fastembed knows no {what} `{model}`. Give the folder of a model of your own in `path`.",
            hint=did_you_mean(model, known),
        )
