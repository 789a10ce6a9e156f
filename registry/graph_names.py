"""Names of the knowledge graph: which spellings are one name, and the ids that follow from them."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from functools import lru_cache

ENTITY_PREFIX = "entity:"
FACT_PREFIX = "fact:"

_QUOTES = " \t\r\n\"'`«»“”‘’‚„「」『』《》〈〉<>"
_EDGES = _QUOTES + ".,;:!?()[]{}。，、；：！？（）【】"
_SPACE = re.compile(r"\s+")
_CJK = r"[\u2e80-\u2fdf\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"
_SPACE_IN_CJK = re.compile(rf"(?<={_CJK}) (?={_CJK})")
_LONGEST = 120


def tidy_name(name: str) -> str:
    """Return a name as it is shown: white space collapsed, none between Chinese characters, no quotes around it."""
    return _without_edges(_SPACE_IN_CJK.sub("", _SPACE.sub(" ", name)), _QUOTES)


def normalize_text(text: str) -> str:
    """Return a text as `normalize_name` returns a name, to look for names in it."""
    return tidy_name(unicodedata.normalize("NFKC", text).casefold())


@lru_cache(maxsize=1 << 16)
def normalize_name(name: str) -> str:
    """Return what two spellings of one name share: NFKC, case folded, without marks around it.

    Letters of every script stay: the ASCII-only normalisation of HippoRAG 2 empties names in other scripts, and where
    case counts, as in LightRAG, one thing becomes two entities. Empty for what is punctuation alone; the film "$" is a
    name.
    """
    normal = normalize_text(name)
    return _without_edges(normal, _EDGES) if any(unicodedata.category(char)[0] in "LNS" for char in normal) else ""


def entity_id(name: str) -> str:
    """Return the id of the entity of this name; what is long is cut and told apart by its hash."""
    return ENTITY_PREFIX + _key(normalize_name(name))


def fact_id(subject: str, predicate: str, object_: str) -> str:
    """Return the id of the fact that these names state; without a predicate the order of the two does not matter."""
    ends = [normalize_name(subject), normalize_name(object_)]
    how = normalize_name(predicate)
    if not how:
        ends.sort()
    return FACT_PREFIX + hashlib.sha256("\x1f".join((ends[0], how, ends[1])).encode()).hexdigest()[:24]


def _key(normal: str) -> str:
    if len(normal) <= _LONGEST:
        return normal
    return f"{normal[:_LONGEST]}#{hashlib.sha256(normal.encode()).hexdigest()[:12]}"


def _without_edges(name: str, edges: str) -> str:
    """Strip marks around a name, but not the second of a pair whose first stands inside: "Paris (Texas)" stays."""
    start, end = 0, len(name)
    while start < end and name[start] in edges:
        start += 1
    while end > start and name[end - 1] in edges and not _closes(name[start:end]):
        end -= 1
    return name[start:end].strip()


def _closes(name: str) -> bool:
    pairs = {")": "(", "]": "[", "}": "{", "）": "（", "】": "【", "》": "《", "」": "「", "』": "『", "”": "“"}
    opening = pairs.get(name[-1])
    return opening is not None and opening in name[:-1]
