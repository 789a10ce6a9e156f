"""The gold steps of multi-hop questions, as three public question sets write them down.

A question is a mapping with `question`, `gold_passage_ids`, `gold_triples`, `type` and `meta`; a passage has a `title`
and a `text`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Record = Mapping[str, Any]

_WORD = re.compile(r"[^\W_]+")
_EARLIER_ANSWER = re.compile(r"#(\d+)")
_DISAMBIGUATION = re.compile(r"\s*\([^)]*\)$")


@dataclass(frozen=True)
class Hop:
    """One step on the way to an answer.

    Attributes:
        passage_id: the passage that answers it.
        text: what is asked or searched for, with the answers of earlier hops filled in.
        needs: the hops, counted from 0, whose answers stand in `text`. A hop that needs itself is one that neither the
            question nor another gold passage names: it is never asked for.
    """

    passage_id: str
    text: str
    needs: frozenset[int] = frozenset()


def gold_hops(question: Record, passages: Mapping[str, Record], *, titles_given: bool = False) -> tuple[Hop, ...]:
    """Return the gold steps of a question, in order: of its decomposition, else its triples, else its gold titles.

    Args:
        question: the question.
        passages: the corpus by id.
        titles_given: where there is nothing but titles, whether they may be asked for before anything names them.
    """
    if question["meta"].get("decomposition"):
        return _of_decomposition(question["meta"]["decomposition"])
    if question.get("gold_triples"):
        return _of_triples(question, passages)
    return _of_titles(question, passages, titles_given)


def _of_decomposition(steps: Sequence[Record]) -> tuple[Hop, ...]:
    """MuSiQue: sub-questions in which `#2` stands for the answer of the second; some are `subject >> relation`."""
    return tuple(
        Hop(
            passage_id=step["passage_id"],
            text=step["resolved"].replace(" >> ", " "),
            needs=frozenset(int(number) - 1 for number in _EARLIER_ANSWER.findall(step["question"])),
        )
        for step in steps
    )


def _of_triples(question: Record, passages: Mapping[str, Record]) -> tuple[Hop, ...]:
    """2WikiMultiHopQA: subject and relation, the subject under the name that the question or an earlier triple has.

    The titles of passages are no names here: they may say more than anybody knows who has not seen the passage.
    """
    triples: Sequence[Sequence[str]] = question["gold_triples"]
    titles = {id_: _plain(passages[id_]["title"]) for id_ in question["gold_passage_ids"]}
    of_subject = [next((id_ for id_, title in titles.items() if title == _plain(s)), None) for s, _, _ in triples]
    left = [id_ for id_ in titles if id_ not in of_subject]
    hops = []
    for number, (subject, relation, _) in enumerate(triples):
        needed = _naming_triple(number, question)
        name = triples[needed][2] if needed is not None else _as_in(question["question"], subject)
        passage_id = of_subject[number] or (left.pop(0) if left else question["gold_passage_ids"][0])
        hops.append(Hop(passage_id, f"{name} {relation}", frozenset() if needed is None else frozenset({needed})))
    return tuple(hops)


def _naming_triple(number: int, question: Record) -> int | None:
    """Return the earlier triple whose object is this one's subject; None where the question names the subject."""
    triples = question["gold_triples"]
    subject = _plain(triples[number][0])
    named = [earlier for earlier in range(number) if _plain(triples[earlier][2]) == subject]
    if named:
        return named[0]
    if number == 0 or subject in _plain(question["question"]):
        return None
    # Two spellings of one name: the types of the set say which triple it continues.
    comparison = {"comparison": None, "bridge_comparison": number - 2 if number >= 2 else None}
    return comparison.get(question["type"], number - 1)


def _of_titles(question: Record, passages: Mapping[str, Record], given: bool) -> tuple[Hop, ...]:
    """HotpotQA has nothing but supporting titles: a title is asked for once the question or a gold passage names it."""
    ids: Sequence[str] = question["gold_passage_ids"]
    titles = [_plain(passages[id_]["title"]) for id_ in ids]
    hops = []
    for number, id_ in enumerate(ids):
        is_known = given or titles[number] in _plain(question["question"])
        naming = [n for n in range(len(ids)) if n != number and titles[number] in _plain(passages[ids[n]]["text"])]
        needs = frozenset() if is_known else frozenset(naming[:1] or [number])
        hops.append(Hop(id_, _DISAMBIGUATION.sub("", passages[id_]["title"]), needs))
    return tuple(hops)


def _as_in(question: str, name: str) -> str:
    return name if name.casefold() in question.casefold() else _DISAMBIGUATION.sub("", name)


def _plain(text: str) -> str:
    """Return the words of a name or text in lower case, with a space around each, without a bracket at its end."""
    return f" {' '.join(_WORD.findall(_DISAMBIGUATION.sub('', text).casefold()))} "
