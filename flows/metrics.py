"""What is measured when flows are compared: retrieval by ir-measures, answers by exact match and F1.

A metric that is undefined for a question (no gold passages, no gold answers) leaves it out and is never zero for it.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ragbraid.registry.contracts import Hit, Ranking
from ragbraid.registry.errors import SettingsError

CUTOFFS = (5, 10)

_ARTICLES = frozenset({"a", "an", "the"})
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_MARKER = re.compile(r"\[\d+\]")
_PUNCTUATION = frozenset(string.punctuation)


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
    """Return recall@k, all-gold@k (1 when every gold passage is among the first k), MRR@10 and nDCG@10.

    Raises:
        SettingsError: ir-measures is not installed.
    """
    try:
        import ir_measures
        from ir_measures import RR, R, nDCG
    except ImportError as error:
        hint = 'pip install "ragbraid[eval]"'
        raise SettingsError("retrieval metrics need the package ir-measures", hint=hint) from error
    measures = {**{f"recall@{k}": R @ k for k in CUTOFFS}, "mrr@10": RR @ 10, "ndcg@10": nDCG @ 10}
    qrels = [ir_measures.Qrel("q", name, 1) for name in gold]
    run = [ir_measures.ScoredDoc("q", name, -float(rank)) for rank, name in enumerate(order)]
    found = ir_measures.calc_aggregate(list(measures.values()), qrels, run) if run else {}
    values = {name: float(found.get(measure, 0.0)) for name, measure in measures.items()}
    return values | {f"all_gold@{k}": float(set(gold) <= set(order[:k])) for k in CUTOFFS}


def answer_metrics(text: str, answers: Sequence[str]) -> dict[str, float]:
    """Return exact match, F1 and containment against the best of several gold answers.

    English is compared by words without articles and punctuation (as SQuAD does), Chinese by characters; citation
    markers do not count. Containment is 1 when a gold answer occurs in the text, which suits answers in sentences.
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
    text = unicodedata.normalize("NFKC", text).lower()
    text = _CJK.sub(lambda match: f" {match[0]} ", text)
    plain = "".join(" " if _is_punctuation(character) else character for character in text)
    return [word for word in plain.split() if word not in _ARTICLES]


def _is_punctuation(character: str) -> bool:
    return character in _PUNCTUATION or unicodedata.category(character).startswith("P")


def _f1(given: Sequence[str], wanted: Sequence[str]) -> float:
    common = sum((Counter(given) & Counter(wanted)).values())
    if not common:
        return float(not given and not wanted)
    precision, recall = common / len(given), common / len(wanted)
    return 2 * precision * recall / (precision + recall)


def mean_of(rows: Iterable[Mapping[str, float]], name: str) -> tuple[float | None, int]:
    """Return the mean of a metric over the rows that have it, and how many those are."""
    values = [row[name] for row in rows if name in row]
    return (sum(values) / len(values) if values else None), len(values)
