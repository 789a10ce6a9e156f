"""What is measured when flows are compared: retrieval by ir-measures, answers by exact match and F1.

A metric that is undefined for a question (no gold passages, no gold answers) leaves it out and is never zero for it.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ragbraid.registry.contracts import Hit, Ranking
from ragbraid.registry.errors import SettingsError

CUTOFFS = (5, 10)

_ARTICLES = frozenset({"a", "an", "the"})
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_MARKER = re.compile(r"\[\d+\]")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric over many questions: its mean over those where it is defined, and how many of which kind there were."""

    name: str
    value: float | None
    """None where it is defined for no question."""
    n: int
    n_undefined: int = 0
    n_error: int = 0


def aggregate(name: str, values: Iterable[float | None], *, n_error: int = 0) -> Metric:
    """Average a metric over questions; None is a question for which it is undefined, and counts as neither 0 nor 1.

    Args:
        name: the metric.
        values: one per question that ran.
        n_error: how many questions did not run to their end.
    """
    values = list(values)
    defined = [value for value in values if value is not None]
    mean = sum(defined) / len(defined) if defined else None
    return Metric(name, mean, len(defined), len(values) - len(defined), n_error)


def gold_order(ranking: Ranking, gold: Iterable[str]) -> list[str]:
    """Return the ranking as the gold file's names: each hit under the first of its keys that is gold, else its id.

    Several chunks of one gold document count once, at the best rank.
    """
    wanted = set(gold)
    names = (next((key for key in hit_keys(hit) if key in wanted), hit.id) for hit in ranking)
    return list(dict.fromkeys(names))


def hit_keys(hit: Hit) -> tuple[str, ...]:
    """Return what a gold file may call a hit: its id, its source, its document's id."""
    return tuple(key for key in (hit.id, hit.source, hit.document_id) if key)


def retrieval_metrics(order: Sequence[str], gold: Sequence[str]) -> dict[str, float]:
    """Return recall@k, all-gold@k, MRR@10, nDCG@10 and average precision over the whole ranking.

    all-gold@k is 1 when every gold passage is among the first k: the full support that an answer over several
    passages needs.

    Args:
        order: what was found, best first, each name once.
        gold: the relevant passages, at least one; without any these metrics are undefined.

    Raises:
        SettingsError: ir-measures is not installed.
    """
    try:
        import ir_measures
        from ir_measures import AP, RR, R, nDCG
    except ImportError as error:
        hint = 'pip install "ragbraid[eval]"'
        raise SettingsError("retrieval metrics need the package ir-measures", hint=hint) from error
    measures = {**{f"recall@{k}": R @ k for k in CUTOFFS}, "mrr@10": RR @ 10, "ndcg@10": nDCG @ 10, "ap": AP}
    qrels = [ir_measures.Qrel("q", name, 1) for name in gold]
    run = [ir_measures.ScoredDoc("q", name, -float(rank)) for rank, name in enumerate(order)]
    found = ir_measures.calc_aggregate(list(measures.values()), qrels, run) if run else {}
    values = {name: float(found.get(measure, 0.0)) for name, measure in measures.items()}
    return values | {f"all_gold@{k}": float(set(gold) <= set(order[:k])) for k in CUTOFFS}


def answer_metrics(text: str, answers: Sequence[str]) -> dict[str, float]:
    """Return exact match, F1 and containment against the best of several gold answers.

    English is compared by words, lower case, without articles and ASCII punctuation, as SQuAD's script does; Chinese by
    characters. Citation markers do not count. Containment is 1 when a gold answer occurs in the text, word for word,
    which suits answers in sentences.
    """
    given = answer_tokens(_MARKER.sub(" ", text))
    wanted = [answer_tokens(answer) for answer in answers]
    joined = f" {' '.join(given)} "
    return {
        "em": max(float(given == tokens) for tokens in wanted),
        "f1": max(_f1(given, tokens) for tokens in wanted),
        "contains": max(float(bool(tokens) and f" {' '.join(tokens)} " in joined) for tokens in wanted),
    }


def answer_tokens(text: str) -> list[str]:
    """Return the words of a text, lower case, without articles and punctuation; Chinese characters one by one."""
    # Full-width punctuation parts words and is taken out first: NFKC would make ASCII of it, which parts nothing.
    text = "".join(" " if _is_wide_punctuation(character) else character for character in text)
    text = unicodedata.normalize("NFKC", text).lower()
    text = _CJK.sub(lambda match: f" {match[0]} ", text)
    return [word for word in text.translate(_WITHOUT_PUNCTUATION).split() if word not in _ARTICLES]


def _is_wide_punctuation(character: str) -> bool:
    return not character.isascii() and unicodedata.category(character).startswith("P")


def _f1(given: Sequence[str], wanted: Sequence[str]) -> float:
    common = sum((Counter(given) & Counter(wanted)).values())
    if not common:
        return float(not given and not wanted)
    precision, recall = common / len(given), common / len(wanted)
    return 2 * precision * recall / (precision + recall)
