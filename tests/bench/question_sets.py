"""Question sets as folders: `corpus.jsonl.gz` (`id title text`) and questions (`question gold_passage_ids`), both gzipped."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Passage = dict[str, Any]

QUESTION_FILES = ("questions.dev.jsonl.gz", "questions.jsonl.gz")


def read_corpus(folder: Path) -> list[Passage]:
    """Read the passages of a set."""
    return read_lines(folder / "corpus.jsonl.gz")


def read_questions(folder: Path) -> list[Passage]:
    """Read the questions of a set that have gold passages, in the order of the file."""
    file = next((folder / name for name in QUESTION_FILES if (folder / name).exists()), folder / QUESTION_FILES[0])
    return [each for each in read_lines(file) if each["gold_passage_ids"]]


def read_lines(path: Path) -> list[Passage]:
    """Read a gzipped JSON Lines file."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def recall(found: Sequence[str], gold: set[str]) -> float:
    """Return the share of the gold passages that were found."""
    return len(gold.intersection(found)) / len(gold)
