"""A model that knows the gold steps of its questions, for `ScriptedLLM`: it shows what flows do, not what models can.

It answers from what stands in the request alone, as a reader would: a step whose question holds an earlier answer is
asked only if the gold passage of that answer is among the passages shown. It never says the final answer, nor a title
that is not named yet; where nothing can be asked any more, it repeats itself or says nothing, which ends a loop.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gold_steps import Hop, Record
from method_parts import is_asked

from ragbraid.flows.scripted_rules import ChatRequest, Reply
from ragbraid.nodes.reasoning import first_sentence, is_same_text, tidy

ALL_FOUND = "(every step is found)"
MAX_PROPOSED = 5

_PASSAGE = re.compile(r"<<<passage (\d+) key (\w+)>>>\n(?:Title: [^\n]*\n)?(.*?)\n<<<end \1 key \2>>>", re.DOTALL)
_LIST = r"<<<{name} key (\w+)>>>\n(.*?)\n?<<<end {name} key \1>>>"

Answer = dict[str, Any]


class Oracle:
    """Answers the prompts of IRCoT and PIKE-RAG with gold steps; `atoms` are the questions that it tags passages with.

    Args:
        passages: the corpus, by id.
        hops: the gold steps of each question, by its text.
        tags_gold: whether passages are tagged with the steps that they answer, in the words in which they will be
            asked, besides one neutral question made from the title that every passage gets.
    """

    def __init__(
        self, passages: Mapping[str, Record], hops: Mapping[str, Sequence[Hop]], *, tags_gold: bool = True
    ) -> None:
        self._hops = {_words(question): tuple(found) for question, found in hops.items()}
        self._ids: dict[str, set[str]] = {}
        self.atoms: dict[str, list[str]] = {id_: [] for id_ in passages}
        for hop in (hop for found in hops.values() for hop in found if tags_gold):
            self.atoms[hop.passage_id].append(hop.text)
        for id_, passage in passages.items():
            self.atoms[id_].append(f"What is known about {passage.get('title') or first_sentence(passage['text'])}?")
            for shown in (passage["text"], *self.atoms[id_]):
                self._ids.setdefault(_words(tidy(shown)), set()).add(id_)
        self._answers: Mapping[str, Callable[[ChatRequest], Answer]] = {
            "next_thought": self._think,
            "propose_subquestions": self._propose,
            "select_atom": self._select,
            "tag_atoms": self._tag,
            "answer": lambda _: {
                "cannot_answer": True,
                "answer": "An oracle finds and does not answer.",
                "citations": [],
            },
        }

    def __call__(self, chat: ChatRequest) -> Reply | None:
        """Return the gold reply to a request; None to one that is no prompt of these methods."""
        for prompt, answer in self._answers.items():
            if is_asked(prompt, chat):
                return Reply(text=json.dumps(answer(chat), ensure_ascii=False))
        return None

    def _think(self, chat: ChatRequest) -> Answer:
        hops, shown = self._asked_about(chat), self._shown(chat)
        if all(hop.passage_id in shown for hop in hops):
            return {"thought": "", "answer": ALL_FOUND}
        open_ = _open(hops, shown)
        notes = _items(chat, "thoughts")
        fresh = [hop for hop in open_ if not any(is_same_text(first_sentence(hop.text), note) for note in notes)]
        return {"thought": next((hop.text for hop in fresh or open_), ""), "answer": None}

    def _propose(self, chat: ChatRequest) -> Answer:
        open_ = _open(self._asked_about(chat), self._shown(chat))
        return {"thinking": "", "sub_questions": [hop.text for hop in open_][:MAX_PROPOSED]}

    def _select(self, chat: ChatRequest) -> Answer:
        shown = self._shown(chat)
        hops = self._asked_about(chat)
        wanted = {hop.passage_id for n, hop in enumerate(hops) if _is_named(n, hops, shown)} - shown
        candidates = [self._ids[_words(tidy(label))] for label in _items(chat, "candidates")]
        return {"thinking": "", "number": next((n for n, ids in enumerate(candidates, 1) if ids & wanted), None)}

    def _tag(self, chat: ChatRequest) -> Answer:
        return {"questions": [atom for id_ in self._shown(chat) for atom in self.atoms[id_]]}

    def _asked_about(self, chat: ChatRequest) -> tuple[Hop, ...]:
        return self._hops[_words(chat.user.rpartition("Question: ")[2])]

    def _shown(self, chat: ChatRequest) -> set[str]:
        # A text that is none of the corpus is a mistake of the caller: the KeyError reaches the server's log.
        return {id_ for _, _, text in _PASSAGE.findall(chat.user) for id_ in self._ids[_words(tidy(text))]}


def _open(hops: Sequence[Hop], shown: set[str]) -> list[Hop]:
    """Return the steps that can be asked for and are not found yet."""
    return [hop for hop in hops if hop.passage_id not in shown and all(hops[n].passage_id in shown for n in hop.needs)]


def _is_named(number: int, hops: Sequence[Hop], shown: set[str]) -> bool:
    """Whether a step would be recognised; one that nothing names is, once its passage turns up."""
    return all(hops[needed].passage_id in shown for needed in hops[number].needs - {number})


def _items(chat: ChatRequest, name: str) -> list[str]:
    found = re.search(_LIST.format(name=name), chat.user, re.DOTALL)
    return [line.partition(". ")[2] for line in found[2].splitlines()] if found else []


def _words(text: str) -> str:
    return " ".join(text.split())
