"""Text to index terms, by the script of each run of text; the same on the document's and on the query's side.

- Han is segmented with jieba's dictionary in search mode (long words also give the shorter words in them).
- Kana, Thai, Lao, Burmese and Khmer, which put no spaces between words, give overlapping pairs of characters.
- Everything else is split into words, lower-cased, without Lucene's 33 English stop words; words in Latin letters
  are stemmed as Lucene's English analyzer does (Porter 1980).
- Acronyms lose their dots (`U.S.A.` is `usa`). Identifiers (`ERR_OOM_KILL_001`, `CVE-2024-12345`, `v1.2.3`) give their
  parts and the whole; the whole is an extra term that does not count in the length of the text.

`VERSION` counts up whenever the terms of some text change: knowledge bases record it and refuse another.
"""

from __future__ import annotations

import re
import threading
import unicodedata
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import version
from typing import Any

VERSION = 1

_HAN = "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
_UNSPACED = "\u3041-\u30ff\u31f0-\u31ff\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff"
_RUNS = re.compile(f"([{_HAN}]+|[{_UNSPACED}]+)")
_IS_HAN = re.compile(f"[{_HAN}]")
# Python's \w knows no combining marks, which are parts of words in Indic scripts, Arabic and Hebrew.
_LETTER = (
    "(?:[^\\W_]|[\u0300-\u036f\u0483-\u0487\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0963\u0966-\u0dff])"
)
_WORD = re.compile(f"{_LETTER}+(?:[-_.:/@'\u2019]{_LETTER}+)*")
_JOINTS = re.compile("[-_.:/@]")
_IDENTIFIER = re.compile("[0-9_@]|\\w\\.\\w")
_LATIN = re.compile("[a-z\u00df-\u024f]+")
_CONTRACTIONS = frozenset({"t", "re", "ve", "ll", "d", "m"})
_ACRONYM = re.compile("[a-z](?:\\.[a-z])+")
_MAX_IDENTIFIER = 128
_MAX_WORD = 255
"""As in Lucene's standard tokenizer, longer words are cut."""

# fmt: off
STOP_WORDS = frozenset({
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of",
    "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with",
})
# fmt: on
"""Lucene's English stop words."""

_stemmer_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Terms:
    """The index terms of a text: `words` make up its length, `wholes` are identifiers beside their parts."""

    words: list[str]
    wholes: list[str]


def analyze(text: str) -> Terms:
    """Return the index terms of a text in order of appearance, repetitions included."""
    words: list[str] = []
    wholes: list[str] = []
    for run in _RUNS.split(unicodedata.normalize("NFKC", text).lower()):
        if not run:
            continue
        if _IS_HAN.match(run):
            words.extend(_segmenter().cut_for_search(run))
        elif _RUNS.match(run):
            words.extend(_pairs(run))
        else:
            for match in _WORD.finditer(run):
                _add_word(match[0], words, wholes)
    return Terms(words, wholes)


@cache
def analyzer_identity() -> str:
    """Name the analyzer with everything that its terms depend on."""
    return f"multilingual-v{VERSION} jieba-{version('jieba')} porter"


def _add_word(word: str, words: list[str], wholes: list[str]) -> None:
    if word.isalnum():  # no joint, apostrophe or mark, so nothing below would find anything
        if word not in STOP_WORDS:
            words.append(_stem(word[:_MAX_WORD]))
        return
    if _ACRONYM.fullmatch(word):
        words.append(word.replace(".", ""))
        return
    if _IDENTIFIER.search(word) is not None and _JOINTS.search(word) is not None and len(word) <= _MAX_IDENTIFIER:
        wholes.append(word)
    for part in _JOINTS.split(word):
        for piece in _without_apostrophes(part):
            if piece not in STOP_WORDS:
                words.append(_stem(piece[:_MAX_WORD]))


def _without_apostrophes(word: str) -> Iterator[str]:
    """Strip the English possessive, keep English contractions whole, and part elisions (`l'homme`)."""
    head, *rest = word.replace("\u2019", "'").split("'")
    if rest == ["s"]:
        yield head
    elif len(rest) == 1 and rest[0] in _CONTRACTIONS:
        yield f"{head}'{rest[0]}"
    else:
        yield head
        yield from rest


def _pairs(run: str) -> Iterator[str]:
    if len(run) == 1:
        yield run
    for start in range(len(run) - 1):
        yield run[start : start + 2]


@lru_cache(maxsize=200_000)
def _stem(word: str) -> str:
    if len(word) < 3 or _LATIN.fullmatch(word) is None:
        return word
    with _stemmer_lock:  # a stemmer keeps the word it works on in itself
        stemmed: str = _stemmer().stemWord(word)
    return stemmed


@cache
def _stemmer() -> Any:
    import snowballstemmer

    return snowballstemmer.stemmer("porter")


def tag_chinese(run: str) -> list[tuple[str, str]]:
    """Return the words of a run of Han characters, each with its part of speech as jieba names it (`n`, `ns`, `v`)."""
    return [(pair.word, pair.flag) for pair in _tagger().cut(run)]


_segmenter_lock = threading.Lock()
_loaded: list[Any] = []


def _segmenter() -> Any:
    """Return a jieba tokenizer of our own, which no `add_word` elsewhere in the process changes.

    Its dictionary is read from the package: jieba's cache is a file in the shared temporary folder, which anyone
    could have put there.
    """
    if not _loaded:
        with _segmenter_lock:
            if not _loaded:
                _loaded.append(_load_segmenter())
    return _loaded[0]


@cache
def _tagger() -> Any:
    segmenter = _segmenter()
    import jieba.posseg  # after jieba itself, whose warnings are silenced where it is loaded

    return jieba.posseg.POSTokenizer(segmenter)


def _load_segmenter() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # jieba 0.42.1 imports pkg_resources and has invalid escapes
        import jieba

    tokenizer = jieba.Tokenizer()
    tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(tokenizer.get_dict_file())
    tokenizer.initialized = True
    return tokenizer
