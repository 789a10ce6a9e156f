"""How often extractive answering answers, and how often it refuses what the evidence does not answer.

    OMP_NUM_THREADS=1 python tests/bench/bench_extract.py DATA [questions]

DATA is the evaluation data's folder (`mini/` and `sets/` in it). Evidence is the BM25 top 4 of a set's passages: its
own (`answerable`), its own without the gold ones (`gold removed`: near misses), or those of a set about other things
(`other topic`). Printed are the share answered, and of the answers the share that holds a gold answer's text.
"""

from __future__ import annotations

import gzip
import json
import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from ragbraid.nodes.analysis import analyze
from ragbraid.nodes.extract import extract_answer
from ragbraid.nodes.resource_packaged import packaged_embedder
from ragbraid.registry.contracts import Hit, Ranking

TOP = 4
CASES = (
    ("cmrc2018_zh", "cmrc2018_zh", "answerable", "set"),
    ("cmrc2018_zh", "law_zh", "other topic", "set"),
    ("cmrc2018_zh", "cmrc2018_zh", "gold removed", "set"),
    ("lihua_world", "lihua_world", "answerable", "set"),
    ("lihua_world", "lihua_world", "unanswerable", "set"),
    ("lihua_world", "hotpot_200", "other topic", "set"),
    ("hotpot_200", "hotpot_200", "answerable", "checked"),
    ("hotpot_200", "lihua_world", "other topic", "checked"),
    ("hotpot_200", "hotpot_200", "gold removed", "checked"),
    ("netop_zh", "netop_zh", "answerable", "checked"),
    ("netop_zh", "law_zh", "other topic", "checked"),
    ("law_zh", "law_zh", "answerable", "checked"),
    ("law_zh", "cmrc2018_zh", "other topic", "checked"),
    ("2wiki_1000", "2wiki_1000", "answerable", "new"),
    ("2wiki_1000", "scifact_beir", "other topic", "new"),
    ("2wiki_1000", "2wiki_1000", "gold removed", "new"),
    ("musique_200", "musique_200", "answerable", "new"),
    ("musique_200", "scifact_beir", "other topic", "new"),
    ("scifact_beir", "scifact_beir", "answerable", "new"),
    ("scifact_beir", "musique_200", "other topic", "new"),
    ("affair_zh", "affair_zh", "answerable", "new"),
    ("affair_zh", "law_zh", "other topic", "new"),
    ("rgb", "rgb", "answerable", "new"),
    ("rgb", "netop_zh", "other topic", "new"),
)
"""Questions, passages, case, and whether the thresholds were set on the case, looked at with it, or new to it."""


class Bm25:
    """A plain BM25 over titles and texts."""

    def __init__(self, passages: list[dict[str, Any]]) -> None:
        self.passages = passages
        self.counts = [Counter(analyze(f"{p['title']} {p['text']}").words) for p in passages]
        self.lengths = [sum(count.values()) for count in self.counts]
        self.average = sum(self.lengths) / len(self.lengths)
        self.frequency = Counter(term for count in self.counts for term in count)

    def search(self, question: str, without: set[str]) -> Ranking:
        """Return the best passages, those of `without` (by id) left out."""
        weights = {
            term: math.log(1 + (len(self.passages) - self.frequency[term] + 0.5) / (self.frequency[term] + 0.5))
            for term in set(analyze(question).words)
        }
        scores = []
        for count, length in zip(self.counts, self.lengths, strict=True):
            norm = 0.9 * (0.6 + 0.4 * length / self.average)
            scores.append(sum(w * count[t] / (count[t] + norm) for t, w in weights.items() if count[t]))
        order = sorted(range(len(scores)), key=lambda i: -scores[i])
        kept = [i for i in order if self.passages[i]["id"] not in without][:TOP]
        hits = [
            Hit(
                id=self.passages[i]["id"],
                text=self.passages[i]["text"],
                title=self.passages[i]["title"],
                score=scores[i],
                rank=1,
                score_kind="bm25",
            )
            for i in kept
        ]
        return Ranking.from_hits(hits, route="bm25", score_kind="bm25")


def read(path: Path) -> list[dict[str, Any]]:
    """Read one gzipped JSON-lines file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def read_questions(data: Path, name: str, case: str) -> list[dict[str, Any]]:
    """Return the questions of a case; the unanswerable ones of lihua_world are only in the full set."""
    if case == "unanswerable":
        return [q for q in read(data / "sets" / name / "questions.dev.jsonl.gz") if not q["gold_passage_ids"]]
    return [q for q in read(data / "mini" / name / "questions.jsonl.gz") if q["gold_passage_ids"]]


def siblings(question: dict[str, Any], passages: list[dict[str, Any]]) -> set[str]:
    """Return the gold passages and those that share a title with one."""
    gold = set(question["gold_passage_ids"])
    titles = {p["title"] for p in passages if p["id"] in gold}
    return gold | {p["id"] for p in passages if p["title"] in titles}


def is_right(question: dict[str, Any], text: str) -> bool:
    """Whether an answer's text holds one of the gold answers, white space aside."""
    return any(answer and "".join(answer.split()) in "".join(text.split()) for answer in question["answers"])


def main() -> None:
    """Run every case with and without an embedder and print a line for each."""
    data = Path(sys.argv[1])
    most = int(sys.argv[2]) if len(sys.argv) > 2 else 24
    indexes: dict[str, Bm25] = {}
    print(f"{'questions':12s} {'passages':12s} {'case':13s} {'':8s}  n   meaning     right     words     right")
    for questions_of, passages_of, case, role in CASES:
        if passages_of not in indexes:
            indexes[passages_of] = Bm25(read(data / "mini" / passages_of / "corpus.jsonl.gz"))
        index = indexes[passages_of]
        questions = read_questions(data, questions_of, case)[:most]
        cells = []
        for embedder in (packaged_embedder(), None):
            answered = right = 0
            for question in questions:
                without = siblings(question, index.passages) if case == "gold removed" else set()
                hits = index.search(question["question"], without)
                answer = extract_answer(question["question"], hits, embedder)
                answered += not answer.refused
                right += not answer.refused and is_right(question, answer.text)
            cells.append(f"{answered / len(questions):9.2f} {right / max(answered, 1):9.2f}")
        print(
            f"{questions_of:12s} {passages_of:12s} {case:13s} {role:8s} {len(questions):2d} {'  '.join(cells)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
