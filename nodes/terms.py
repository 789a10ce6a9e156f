"""Terms of a text that may be names of things, found without a model, by the script of each run of text.

- Where letters have case: words with a capital and identifiers (`ERR_OOM_KILL_001`), joined as long as they follow each
  other ("University of Oxford"). A single word that only stands where sentences begin is none.
- Han: the nouns and names that jieba's tagger finds, from two characters on. Katakana: runs from three characters on.

Scripts without case, other than these, give no terms.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from ragbraid.nodes.analysis import tag_chinese
from ragbraid.registry.contracts import Chunk
from ragbraid.registry.graph_names import normalize_name

MAX_WORDS = 6
"""Longer runs of words with capitals are headlines or shouting, not names."""
MAX_TITLE_WORDS = 8
MAX_TITLE_CHARACTERS = 80

_HAN_OR_KATAKANA = re.compile("([\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+|[\u30a1-\u30fa\u30fc]{3,})")
_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
_TOKEN = re.compile(r"(?<!\w)[A-Z]\.(?=\s?[A-Za-z])|[^\W_]+(?:[-_.:/@'’&+]+[^\W_]+)*|\S|\n")
_POSSESSIVE = re.compile(r"['’]s$")
_OPENERS = frozenset("\"'“‘«([{*#>-–—•")
_ENDS = frozenset(".!?:;…\n")
# fmt: off
_CONNECTORS = frozenset({"of", "the", "for", "de", "la", "du", "des", "di", "da", "del", "der", "von", "van", "den", "&"})
_FUNCTION_WORDS = frozenset({
    "a", "about", "above", "according", "after", "again", "all", "also", "although", "among", "an", "and", "another",
    "any", "are", "around", "as", "at", "be", "because", "been", "before", "both", "but", "by", "can", "could",
    "despite", "did", "do", "does", "during", "each", "either", "every", "few", "finally", "first", "following", "for",
    "from", "had", "has", "have", "he", "hence", "her", "here", "his", "how", "however", "i", "if", "in", "instead",
    "into", "is", "it", "its", "later", "like", "many", "may", "more", "most", "much", "must", "my", "near", "neither",
    "no", "not", "now", "of", "on", "once", "one", "only", "or", "other", "our", "over", "please", "several", "she",
    "should", "since", "so", "some", "such", "than", "that", "the", "their", "then", "there", "therefore", "these",
    "they", "this", "those", "though", "through", "thus", "to", "two", "under", "unlike", "until", "upon", "was", "we",
    "were", "what", "when", "where", "whereas", "whether", "which", "while", "who", "whose", "why", "will", "with",
    "within", "without", "would", "yet", "you", "your",
})
# fmt: on


@dataclass(slots=True)
class Term:
    """A term in its first spelling, and how often it occurs."""

    name: str
    count: int


def find_terms(chunk: Chunk) -> dict[str, Term]:
    """Return the terms of a chunk with its title and headings, by normalised name, in order of appearance.

    The title, where it is short, is a term of every chunk of its document.
    """
    terms: dict[str, Term] = {}
    title = " ".join((chunk.title or "").split())
    if title and len(title.split()) <= MAX_TITLE_WORDS and len(title) <= MAX_TITLE_CHARACTERS:
        _count(title, terms)
    text = unicodedata.normalize("NFKC", "\n".join((*chunk.section_path, chunk.text)))
    doubtful: list[str] = []
    for run in _HAN_OR_KATAKANA.split(text):
        if _HAN.match(run):
            names = [word for word, kind in tag_chinese(run) if len(word) > 1 and kind[0] in "nj"]
        elif _HAN_OR_KATAKANA.fullmatch(run):
            names = [run]
        else:
            names = []
            for name, certain in _names_in(run):
                (names if certain else doubtful).append(name)
        for name in names:
            _count(name, terms)
    for name in doubtful:  # a word that begins a sentence is a name where it is one elsewhere too
        if normalize_name(name) in terms:
            _count(name, terms)
    return terms


def _count(name: str, terms: dict[str, Term]) -> None:
    key = normalize_name(name)
    if key:
        terms.setdefault(key, Term(name, 0)).count += 1


def _names_in(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the runs of name-like words, and whether each is certain to be a name."""
    run: list[str] = []
    waiting: list[str] = []
    starts_sentence = at_start = True
    for match in _TOKEN.finditer(text):
        token = _POSSESSIVE.sub("", match[0])
        if run and run[-1].endswith(".") and token[0].isupper() and _is_function_word(token):
            yield from _finish([*run[:-1], run[-1][:-1]], starts_sentence)  # it was no initial but ended a sentence
            run, waiting, at_start = [], [], True
        if _is_name_word(token) or (run and token.isdigit()):
            if not run:
                starts_sentence = at_start
            run += [*waiting, token]
            waiting = []
        elif run and token in _CONNECTORS:
            waiting.append(token)
        else:
            yield from _finish(run, starts_sentence)
            run, waiting = [], []
        at_start = token in _ENDS or (at_start and token in _OPENERS)
        if token != match[0]:  # what follows a possessive is another thing
            yield from _finish(run, starts_sentence)
            run, waiting = [], []
    yield from _finish(run, starts_sentence)


def _finish(run: list[str], starts_sentence: bool) -> Iterator[tuple[str, bool]]:
    words = list(run)
    dropped = False
    while words and _is_function_word(words[0]):
        words.pop(0)
        dropped = True
    if not words or len(words) > MAX_WORDS or words == ["&"]:
        return
    plain = len(words) == 1 and words[0].istitle()
    yield " ".join(words), dropped or not (starts_sentence and plain)


def _is_function_word(word: str) -> bool:
    acronym = len(word) > 1 and word.isupper()  # WHO, IT and US are names
    return word.lower() in _FUNCTION_WORDS and not acronym


def _is_name_word(token: str) -> bool:
    has_letter = any(map(str.isalpha, token))
    return has_letter and (token[0].isupper() or "_" in token or any(map(str.isdigit, token)))
