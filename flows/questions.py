"""Files of questions to evaluate flows on."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ragbraid.registry.errors import SettingsError


class Question(BaseModel):
    """One question with what is known about its answer.

    `gold_passage_ids` name relevant passages by id, source or document id, `answers` hold acceptable answers;
    either may be empty, and then the metrics that need it leave the question out. A question of the type
    `unanswerable` is one that a flow does well to refuse. Other fields are ignored.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", coerce_numbers_to_str=True)

    id: str
    question: str = Field(min_length=1)
    answers: tuple[str, ...] = ()
    gold_passage_ids: tuple[str, ...] = ()
    type: str | None = None


def read_questions(path: Path, limit: int | None = None) -> list[Question]:
    """Read questions from a JSONL file (or .jsonl.gz), one object a line.

    Raises:
        SettingsError: the file cannot be read, a line is no question (named by its number), or an id occurs twice.
    """
    questions: list[Question] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        question = _read_question(line, f"{path}:{number}")
        if question.id in seen:
            raise SettingsError(f"{path}:{number}: the id `{question.id}` stands in line {seen[question.id]} already")
        seen[question.id] = number
        questions.append(question)
        if limit is not None and len(questions) == limit:
            break
    if not questions:
        raise SettingsError(f"{path} holds no questions")
    return questions


def _lines(path: Path) -> list[str]:
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        # Not splitlines(): JSON may hold U+2028 and its like as they are.
        return data.decode("utf-8-sig").split("\n")
    except OSError as error:
        reason = error.strerror or str(error)
    except UnicodeDecodeError as error:
        reason = f"it is not UTF-8: byte 0x{data[error.start]:02x} at {error.start:,}"
    except (EOFError, zlib.error):
        reason = "its gzip data is damaged"
    raise SettingsError(f"the questions in {path} cannot be read: {reason}")


def _read_question(line: str, place: str) -> Question:
    try:
        data: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise SettingsError(f"{place}: this is no JSON: {error.msg} at column {error.colno}") from error
    except RecursionError:
        raise SettingsError(f"{place}: this is nested too deeply") from None
    try:
        return Question.model_validate(data)
    except ValidationError as error:
        field = ".".join(str(part) for part in error.errors()[0]["loc"]) or "the line"
        hint = 'a line looks like {"id": "1", "question": "...", "answers": ["..."], "gold_passage_ids": ["..."]}'
        raise SettingsError(f"{place}: `{field}` is wrong: {error.errors()[0]['msg']}", hint=hint) from error
