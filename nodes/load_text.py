"""From bytes to text: encodings, line breaks, and the title and front matter of plain text and Markdown."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass, field

from pydantic import JsonValue

from ragbraid.nodes.markdown import find_headings, split_front_matter

_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16: its mark starts with the same two bytes
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_SAMPLE_BYTES = 256 * 1024
_CANDIDATES = (
    "gb18030", "big5", "shift_jis", "euc_jp", "euc_kr", "cp1252", "cp1250", "cp1251", "koi8_r", "cp1253", "cp1254",
    "cp1255", "cp1256", "latin_1",
)  # fmt: skip
_RST_TITLE = re.compile(r"^(?P<text>\S[^\n]*)\n(?P<line>[=\-~^\"'*+#`:.])(?P=line)*[ \t]*$", re.MULTILINE)


class UnreadableText(ValueError):
    """The bytes of a source are no text that can be read; the message is a reason as a sentence."""


@dataclass(frozen=True, slots=True)
class ReadText:
    """The text of a source with what stands beside it."""

    text: str
    title: str | None = None
    metadata: dict[str, JsonValue] = field(default_factory=dict)


def decode(raw: bytes, encoding: str | None = None) -> tuple[str, str]:
    """Turn bytes into text; returns the text and the name of the encoding that was used.

    Without `encoding`, a byte order mark decides; then UTF-8 is tried strictly, then the encoding is recognised from
    the text (and, in HTML, from what the page declares). Line breaks become `\\n`.

    Raises:
        UnreadableText: the bytes are binary, or do not fit the encoding, or no encoding fits them.
    """
    mark, marked = next(((mark, name) for mark, name in _BYTE_ORDER_MARKS if raw.startswith(mark)), (b"", None))
    if marked is None and encoding is None and b"\0" in raw:
        raise UnreadableText("It is a binary file (it holds NUL bytes).")
    name = encoding or marked or ("utf-8" if _is_utf8(raw) else _recognise(raw))
    try:
        text = raw.decode(name) if encoding else raw[len(mark) :].decode(name)
    except UnicodeError as error:
        at = f" at byte {error.start}" if isinstance(error, UnicodeDecodeError) else ""
        raise UnreadableText(f"It is not valid {name} text{at}; give the right `encoding`.") from error
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n"), name


def read_markdown(text: str) -> ReadText:
    """Take the front matter off and find the title: that of the front matter, or the first heading."""
    metadata, body = split_front_matter(text)
    title = metadata.get("title")
    if isinstance(title, str) and title.strip():
        return ReadText(body, title.strip(), metadata)
    return ReadText(body, next((heading.title for heading in find_headings(body) if heading.title), None), metadata)


def read_restructured(text: str) -> ReadText:
    """Find the title of a reStructuredText: its first underlined line."""
    match = next((m for m in _RST_TITLE.finditer(text) if len(m[0].split("\n")[1].strip()) >= len(m["text"])), None)
    return ReadText(text, match["text"].strip() if match else None)


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _recognise(raw: bytes) -> str:
    from charset_normalizer import from_bytes

    sample = raw
    if len(raw) > _SAMPLE_BYTES:
        # A line feed is never the second byte of a character here, so that the sample does not end inside one.
        cut = raw.rfind(b"\n", 0, _SAMPLE_BYTES)
        sample = raw[: cut if cut > 0 else _SAMPLE_BYTES]
    found = from_bytes(sample, cp_isolation=list(_CANDIDATES))
    best = found.best()
    if best is None:
        raise UnreadableText("Its encoding was not recognised; give `encoding`, or save it as UTF-8.")
    # Western text is often as plausible in the Central European code page, which is listed first.
    western = any(match.encoding == "cp1252" and match.chaos <= best.chaos for match in found)
    return "cp1252" if western and best.encoding == "cp1250" else best.encoding
