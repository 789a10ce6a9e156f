"""What reasoning nodes give: thoughts, sub-questions, choices, judgements. Frozen models like every contract.

Each of them keeps what the model said apart from what the node made of it, so that a trace shows both.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt

from ragbraid.registry.contract import Contract
from ragbraid.registry.contracts import Hit, Ranking

ExitReason = Literal["answered", "empty", "repeated", "continue"]
Relevance = Literal["relevant", "irrelevant", "ambiguous"]
Correctness = Literal["correct", "incorrect", "ambiguous"]
Strategy = Literal["none", "single", "multi"]
Support = Literal["full", "partial", "none"]

ATOM = "atom"
"""Key in the metadata of a hit that was found through one of its atomic questions; the value is that question."""
ATOM_QUERY = "atom_query"
"""Key beside `ATOM`: the question or sub-question that was searched for."""


class Thought(Contract):
    """One step of a chain of thought.

    `text` is a single sentence; it is empty when the model had nothing to add. `is_final` says that `answer` is given,
    `is_repeat` that the sentence stood among the earlier thoughts already.
    """

    text: str
    answer: str | None = None
    is_final: bool = False
    is_repeat: bool = False


class Thoughts(Contract):
    """A chain of thought as it was drafted, in order."""

    texts: tuple[str, ...] = ()


class ExitCheck(Contract):
    """Whether a chain of thought is at its end and why; `continue` where it is not."""

    is_done: bool
    reason: ExitReason
    answer: str | None = None


class SubQuestions(Contract):
    """Questions that are still to be answered, without repetitions; none when the evidence is enough.

    `repeated` counts the proposals that were left out because they had been asked before.
    """

    questions: tuple[str, ...] = ()
    thinking: str = ""
    repeated: NonNegativeInt = 0


class FollowUp(Contract):
    """The next simpler question, or the final answer, never both; neither when the model gave nothing of use.

    `is_repeat` says that the question had been asked before.
    """

    question: str | None = None
    answer: str | None = None
    is_final: bool = False
    is_repeat: bool = False


class Choice(Contract):
    """One of several candidates, or none.

    `index` counts from 0 and `hit` is the candidate there. `unknown` counts the numbers that no candidate bears.
    """

    index: NonNegativeInt | None = None
    hit: Hit | None = None
    thinking: str = ""
    unknown: NonNegativeInt = 0


class Need(Contract):
    """Whether the next sentence of an answer needs a search, and what to search for; `query` is there in any case."""

    retrieve: bool
    query: str


class Segment(Contract):
    """A sentence of an answer that was written from one passage, and what its writer thinks of both.

    `hit` is the passage, None for a sentence written from what the model knows. `support` says how far the passage
    bears out the sentence, `usefulness` from 1 to 5 how much it helps to answer. `is_final` says that the answer is
    complete with it.
    """

    text: str = ""
    hit: Hit | None = None
    quote: str = ""
    is_relevant: bool = False
    support: Support = "none"
    usefulness: Annotated[int, Field(ge=1, le=5)] = 1
    is_final: bool = False


class Route(Contract):
    """How much retrieval a question needs: `none`, one round (`single`) or several (`multi`).

    `proposed` is what the model said; `strategy` is the next costlier one where its confidence was too low.
    """

    strategy: Strategy
    proposed: Strategy
    confidence: Annotated[float, Field(ge=0, le=1)]
    reason: str = ""


class Grade(Contract):
    """How relevant one hit is to the question."""

    hit_id: str
    label: Relevance


class Graded(Contract):
    """Hits that passed a grader, its verdict on all of them together, and its grade for each.

    `verdict` is `correct` when one hit is relevant, `incorrect` when all are irrelevant or there is none, and
    `ambiguous` otherwise. `ungraded` counts hits that the grader left out; they are `ambiguous`.
    """

    ranking: Ranking = Ranking()
    verdict: Correctness = "incorrect"
    grades: tuple[Grade, ...] = ()
    ungraded: NonNegativeInt = 0
    unknown: NonNegativeInt = 0


class Judgement(Contract):
    """Whether an answer will do, and what it lacks."""

    acceptable: bool
    missing: tuple[str, ...] = ()
    thinking: str = ""


REASONING_CONTRACTS: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        Choice, ExitCheck, FollowUp, Grade, Graded, Judgement, Need, Route, Segment, SubQuestions, Thought, Thoughts,
    )
}  # fmt: skip
"""The type names that flow files may use for what reasoning nodes give."""
