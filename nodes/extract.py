"""Answering without a language model: the sentences of the evidence that support a question best, cited.

Every unit of the evidence (a sentence, a list item, a table row) gets a relevance between 0 and 1:

    relevance = (meaning + words) / 2        (words alone without an embedder; meaning where the languages differ)
    meaning   = clip((cosine(question, unit) - base) / (1 - base) / 0.7, 0, 1)       (0.6 where the languages differ)
    words     = sum of idf(t) over the question's terms t that the unit holds / sum of idf(t) over all of them

`base` is the mean cosine of the question with sentences about other things in the language of the passage, so that 0
means "no closer than unrelated text" whatever the scale of the embedding model: E5's cosines all lie between 0.7 and 1.
idf(t) is log(1 + n / (1 + units that hold t)) over the n units at hand; a term that none of them holds weighs most.
A unit is looked at together with its headings, and with the question or the introduction that it stands under.

The best unit must reach the threshold, or the answer is a refusal. More units are taken by maximal marginal relevance
(Carbonell and Goldstein, SIGIR 1998) while they reach it too and stay near the best.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ragbraid.nodes.analysis import analyze
from ragbraid.nodes.citations import cite
from ragbraid.nodes.prompts import Language, choose_language
from ragbraid.nodes.sentences import COLONS, Unit, split_units
from ragbraid.registry.contracts import Answer, Citation, Hit, Ranking
from ragbraid.registry.resources import Embedder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]
    Vector = NDArray[np.float32]

MIN_SCORE = 0.48
"""Default threshold with an embedder. Set with the packaged model on Chinese encyclopedia and English chat questions,
checked on others (tests/bench/bench_extract.py prints the shares of questions answered)."""
MIN_SCORE_WORDS = 0.33
"""Default threshold where only words count; from the same sets."""
MEANING_SPAN = 0.7
MEANING_SPAN_ACROSS = 0.6
"""(cosine - base) / (1 - base) of a sentence that answers a question outright, in its language and in another one, by
measurement with E5."""
NEAR_BEST = 0.85
"""A further unit must have at least this share of the best unit's relevance."""
DIVERSITY = 0.3
MOST_UNITS = 80
"""How many units are embedded at most: those of the better hits and those with more of the question's words."""

_REFUSALS: dict[tuple[str, Language], str] = {
    ("no_passages", "en"): "No passage was found that could answer this question.",
    ("no_passages", "zh"): "没有找到可以回答这个问题的内容。",
    ("not_in_passages", "en"): "The passages that were found do not answer this question.",
    ("not_in_passages", "zh"): "找到的内容没有回答这个问题。",
}

_UNRELATED: dict[Language, tuple[str, ...]] = {
    "en": (
        "The train leaves from platform four.",
        "She painted the kitchen walls light green.",
        "The river freezes in most winters.",
        "Add two eggs and a little salt to the flour.",
        "The team scored in the last minute.",
        "His guitar needs new strings.",
        "Clouds gathered over the valley.",
        "The museum shows coins from the third century.",
    ),
    "zh": (
        "火车从四号站台出发。",
        "她把厨房的墙刷成了浅绿色。",
        "这条河在冬天大多会结冰。",
        "往面粉里加两个鸡蛋和一点盐。",
        "球队在最后一分钟进了球。",
        "他的吉他需要换新弦。",
        "山谷上空聚起了云。",
        "博物馆展出三世纪的钱币。",
    ),
}
"""Subjects that a question is seldom about: their mean cosine shows what "unrelated" means to a model."""

_known_unrelated: dict[tuple[str, Language], Matrix] = {}

# fmt: off
_ASKING = frozenset({
    "what", "which", "who", "whom", "whose", "when", "where", "why", "how", "do", "doe", "did", "can", "could",
    "should", "would", "may", "might", "must", "i", "you", "he", "she", "we", "my", "your", "our", "us", "him", "her",
    "them", "have", "ha", "had", "been", "were", "am", "shall", "from", "about", "ani", "some", "mani", "much", "long",
    "often", "far", "get", "there", "me",
    "什么", "哪些", "哪个", "哪里", "哪儿", "哪", "谁", "怎么", "怎样", "怎么样", "如何", "为什么", "为何", "多少",
    "多久", "几", "是否", "吗", "呢", "的", "了", "在", "是", "有", "和", "与", "及", "或", "被", "把", "我", "你", "他",
    "她", "它", "我们", "你们", "他们", "这", "那", "个", "要", "会", "能", "可以", "应该", "时候", "什么时候", "何时",
    "请问", "一个", "于", "为", "中", "对", "从", "到", "也", "就", "都",
})
# fmt: on
"""Terms (as `analyze` gives them) that ask or bind, and say nothing about what a sentence must hold."""


@dataclass(frozen=True)
class _Candidate:
    """A unit of a hit, with the terms that it is compared by."""

    hit: Hit
    unit: Unit
    terms: frozenset[str]
    language: Language

    @property
    def text(self) -> str:
        """The unit with everything that it stands under."""
        parts = [self.hit.title or "", *self.hit.section_path, self.unit.heading, self.unit.opening]
        above = " ".join(dict.fromkeys(part.strip() for part in parts if part.strip()))
        return f"{above}: {self.unit.shown}" if above else self.unit.shown


def extract_answer(
    question: str,
    hits: Ranking,
    embedder: Embedder | None,
    *,
    max_sentences: int = 3,
    min_score: float | None = None,
) -> Answer:
    """Answer a question with sentences quoted from the hits, each followed by its marker `[n]`.

    Args:
        question: the question, Chinese or English.
        hits: the evidence, best first.
        embedder: scores sentences by meaning; without it only shared words count.
        max_sentences: how many sentences the answer holds at most.
        min_score: the relevance below which a sentence is no evidence (0 to 1); None takes the measured default.

    Returns:
        An answer whose citations are verified quotes, or a refusal when no sentence is relevant enough.

    Raises:
        ServiceError: the embedder failed.
    """
    language = choose_language(question)
    candidates = _candidates(hits)
    if not candidates:
        return _refuse("no_passages", language)
    wanted = _terms_of(question)
    relevance = _word_shares(wanted, candidates)
    if embedder is not None:
        candidates, relevance = _most_promising(candidates, relevance)
        meanings = _meanings(question, candidates, embedder)
        relevance = [
            # Across languages there are hardly any words to share, and their absence says nothing.
            max(meaning, (meaning + words) / 2) if candidate.language != language else (meaning + words) / 2
            for candidate, meaning, words in zip(candidates, meanings, relevance, strict=True)
        ]
    if min_score is None:
        min_score = MIN_SCORE_WORDS if embedder is None else MIN_SCORE
    chosen = _choose(candidates, relevance, max_sentences=max_sentences, min_score=min_score)
    return _write([candidates[i] for i in chosen], language) if chosen else _refuse("not_in_passages", language)


def _refuse(reason: str, language: Language) -> Answer:
    return Answer(text=_REFUSALS[reason, language], refused=True, refusal_reason=reason)


def _candidates(hits: Ranking) -> list[_Candidate]:
    """Cut every hit into units; what overlapping chunks share is taken once, from the better hit."""
    found: dict[str, _Candidate] = {}
    for hit in hits:
        language = choose_language(hit.text)
        for unit in split_units(hit.text):
            if unit.shown not in found:
                bare = _Candidate(hit, unit, frozenset(), language)
                found[unit.shown] = replace(bare, terms=_all_terms(bare.text))
    return list(found.values())


def _all_terms(text: str) -> frozenset[str]:
    terms = analyze(text)
    return frozenset(terms.words) | frozenset(terms.wholes)


def _terms_of(question: str) -> frozenset[str]:
    """The terms that an answering sentence should hold; all of them where the question only asks ("why?")."""
    terms = _all_terms(question)
    return terms - _ASKING or terms


def _word_shares(wanted: frozenset[str], candidates: Sequence[_Candidate]) -> list[float]:
    count = len(candidates)
    weights = {
        term: math.log(1 + count / (1 + sum(term in candidate.terms for candidate in candidates)))
        for term in sorted(wanted)
    }
    total = sum(weights.values())
    if not total:
        return [0.0] * count
    return [
        math.fsum(weight for term, weight in weights.items() if term in candidate.terms) / total
        for candidate in candidates
    ]


def _most_promising(candidates: list[_Candidate], shares: list[float]) -> tuple[list[_Candidate], list[float]]:
    """Keep the units that are worth embedding, in their order."""
    if len(candidates) <= MOST_UNITS:
        return candidates, shares
    promise = [share + 0.5 / candidate.hit.rank for share, candidate in zip(shares, candidates, strict=True)]
    best = sorted(range(len(candidates)), key=lambda i: (-promise[i], i))[:MOST_UNITS]
    return [candidates[i] for i in sorted(best)], [shares[i] for i in sorted(best)]


def _meanings(question: str, candidates: Sequence[_Candidate], embedder: Embedder) -> list[float]:
    asked_in = choose_language(question)
    asked = embedder.embed_query(question)
    cosines = embedder.embed_documents([candidate.text for candidate in candidates]) @ asked
    bases = {language: _base(asked, language, embedder) for language in {c.language for c in candidates}}
    meanings = []
    for candidate, cosine in zip(candidates, cosines, strict=True):
        base = bases[candidate.language]
        span = MEANING_SPAN if candidate.language == asked_in else MEANING_SPAN_ACROSS
        meanings.append(min(max((float(cosine) - base) / (1 - base) / span, 0.0), 1.0))
    return meanings


def _base(asked: Vector, language: Language, embedder: Embedder) -> float:
    """Return the question's mean cosine with sentences about other things, which are embedded once per model."""
    key = (embedder.identity, language)
    vectors = _known_unrelated.get(key)
    if vectors is None:
        vectors = _known_unrelated[key] = embedder.embed_documents(_UNRELATED[language])
    return min(float((vectors @ asked).mean()), 0.99)


def _choose(
    candidates: Sequence[_Candidate], relevance: Sequence[float], *, max_sentences: int, min_score: float
) -> list[int]:
    """Return the positions of the units to quote; equal ones go to the better hit and the earlier unit."""
    best = max(relevance)
    if best < min_score:
        return []
    open_to_choice = [i for i, value in enumerate(relevance) if value >= max(min_score, NEAR_BEST * best)]
    chosen: list[int] = []
    while open_to_choice and len(chosen) < max_sentences:
        gains = {i: _gain(i, chosen, candidates, relevance) for i in open_to_choice}
        found = max(open_to_choice, key=lambda i: (gains[i], -i))
        open_to_choice.remove(found)
        chosen.append(found)
    return _in_reading_order(chosen, candidates)


def _in_reading_order(chosen: Sequence[int], candidates: Sequence[_Candidate]) -> list[int]:
    """Keep the passages in order of their best unit, and the units of one passage as they stand in it."""
    passages = list(dict.fromkeys(candidates[i].hit.id for i in chosen))
    return sorted(chosen, key=lambda i: (passages.index(candidates[i].hit.id), candidates[i].unit.start))


def _gain(position: int, chosen: Sequence[int], candidates: Sequence[_Candidate], relevance: Sequence[float]) -> float:
    likeness = max((_likeness(candidates[position], candidates[other]) for other in chosen), default=0.0)
    return (1 - DIVERSITY) * relevance[position] - DIVERSITY * likeness


def _likeness(first: _Candidate, second: _Candidate) -> float:
    """Share of the shorter unit's words that the other has as well."""
    one, other = _all_terms(first.unit.shown), _all_terms(second.unit.shown)
    shorter = min(len(one), len(other))
    return len(one & other) / shorter if shorter else 0.0


def _write(chosen: Sequence[_Candidate], language: Language) -> Answer:
    """Number the passages by first use and write each unit with its marker."""
    markers: dict[str, int] = {}
    citations: list[Citation] = []
    parts: list[str] = []
    opening = ""
    for candidate in chosen:
        hit, unit = candidate.hit, candidate.unit
        if hit.id not in markers:
            markers[hit.id] = len(markers) + 1
            citations.append(_cite(markers[hit.id], hit, unit))
        introduce = unit.opening.endswith(COLONS) and unit.opening != opening
        opening = unit.opening
        parts.append(f"{unit.introduced if introduce else unit.shown} [{markers[hit.id]}]")
    return Answer(text=" ".join(parts), citations=tuple(citations))


def _cite(marker: int, hit: Hit, unit: Unit) -> Citation:
    quote = hit.text[unit.start : unit.end]
    return cite(marker, hit, quote, verified=quote in hit.text)
