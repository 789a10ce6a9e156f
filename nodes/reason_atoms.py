"""`reason.propose_subquestions` and `reason.select_atom`: the two questions that PIKE-RAG asks a model in every round."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from ragbraid.nodes.reason_forms import Proposal, Selection
from ragbraid.nodes.reasoning import (
    Asking,
    OnInvalid,
    PassageLimit,
    PromptLanguage,
    Temperature,
    Texts,
    ask_or_none,
    bounded,
    gather,
    has_evidence,
    pick,
    prompt_file,
    tidy,
    without_repeats,
)
from ragbraid.registry.context import report_note
from ragbraid.registry.contracts import Hit, Ranking
from ragbraid.registry.node import node
from ragbraid.registry.reasoning import ATOM, ATOM_QUERY, Choice, SubQuestions
from ragbraid.registry.resources import LLM


@node(
    "reason.propose_subquestions",
    example="""
    propose: {use: reason.propose_subquestions, evidence: $chosen, max_questions: 5}
    """,
)
async def propose_subquestions(
    question: str,
    evidence: Ranking = Ranking(),  # noqa: B008  # frozen
    asked: Texts | None = None,
    *,
    llm: LLM,
    prompt: Annotated[str | None, prompt_file("passages", "asked", "max_questions")] = None,
    max_questions: Annotated[int, Field(ge=1, le=50)] = 5,
    max_passages: PassageLimit = 15,
    max_tokens: PositiveInt = 600,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
    on_invalid: OnInvalid = "fail",
) -> SubQuestions:
    """Proposes sub-questions that the evidence chosen so far leaves open; none means that it is enough.

    The decomposition step of PIKE-RAG (Wang et al. 2025). More than `max_questions` go back to the model as a mistake,
    so that it chooses and not we. Questions that were asked before or repeat one another are left out; when nothing
    is left the list is empty, which is a normal end. The first round has no evidence.

    Args:
        question: the question.
        evidence: what was chosen so far.
        asked: sub-questions of earlier rounds; left out, those through which the evidence was found
            (`metadata.atom_query`).
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_questions: how many the model may propose.
        max_passages: how many of the hits the model sees.
        max_tokens: bounds what the model writes; reaching it is an error.
        temperature: 0 makes the proposal as repeatable as the model allows.
        language: language of the prompt; `auto` takes the question's.
        on_invalid: after an answer of the wrong form (too many questions included) or one that was cut off, `fail`
            fails the step and `keep` proposes nothing, marked degraded.

    Raises:
        NodeInputError: the question is empty or the template is wrong.
        ServiceError: the model failed, or there is no evidence because retrieval failed.
    """
    has_evidence(evidence)
    asked = _found_through(evidence) if asked is None else asked
    values = gather(
        question,
        passages=evidence.hits[:max_passages],
        lists={"asked": asked},
        facts={"max_questions": max_questions},
    )
    form = bounded(Proposal, "sub_questions", max_questions)
    how = Asking(prompt, max_tokens, temperature, language)
    draft = await ask_or_none(llm, "propose_subquestions", form, values, how, on_invalid, "nothing was proposed")
    if draft is None:
        return SubQuestions()
    questions = without_repeats(draft.sub_questions, asked)
    repeated = sum(1 for text in draft.sub_questions if tidy(text)) - len(questions)
    if repeated:
        report_note(f"{repeated} proposed sub-questions had been asked before and were left out")
    return SubQuestions(questions=questions, thinking=draft.thinking.strip(), repeated=repeated)


def _found_through(evidence: Ranking) -> Texts:
    queries = (hit.metadata.get(ATOM_QUERY) for hit in evidence)
    return without_repeats(query for query in queries if isinstance(query, str))


@node(
    "reason.select_atom",
    example="""
    atoms: {use: retrieve.hybrid, query: $question, top_k: 8}
    pick: {use: reason.select_atom, candidates: $atoms, evidence: $chosen}
    """,
)
async def select_atom(
    candidates: Ranking,
    question: str,
    evidence: Ranking = Ranking(),  # noqa: B008  # frozen
    *,
    llm: LLM,
    prompt: Annotated[str | None, prompt_file("passages", "candidates")] = None,
    max_candidates: Annotated[int, Field(ge=1, le=200)] = 20,
    max_passages: PassageLimit = 15,
    max_tokens: PositiveInt = 300,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
    show: Literal["atom", "text"] = "atom",
    on_invalid: OnInvalid = "fail",
) -> Choice:
    """Chooses the candidate that adds most to the evidence chosen so far, or none.

    The selection step of PIKE-RAG (Wang et al. 2025), for atoms and for chunks. A number that no candidate bears
    selects none and is counted. Without candidates the model is not asked.

    Args:
        candidates: what to choose from, best first.
        question: the question.
        evidence: what was chosen so far.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_candidates: how many of the candidates the model sees.
        max_passages: how many hits of the evidence the model sees.
        max_tokens: bounds what the model writes; reaching it is an error.
        temperature: 0 makes the choice as repeatable as the model allows.
        language: language of the prompt; `auto` takes the question's.
        show: `atom` shows a candidate by the atomic question through which it was found (`metadata.atom`), else by its
            text; `text` shows all by their texts.
        on_invalid: after an answer of the wrong form or one that was cut off, `fail` fails the step and `keep` chooses
            none, marked degraded.

    Raises:
        NodeInputError: the question is empty or the template is wrong.
        ServiceError: the model failed, or there are no candidates because retrieval failed.
    """
    has_evidence(evidence)
    if not has_evidence(candidates):
        return Choice()
    shown = candidates.hits[:max_candidates]
    labels = [_label(hit) if show == "atom" else hit.text for hit in shown]
    values = gather(question, passages=evidence.hits[:max_passages], lists={"candidates": labels})
    how = Asking(prompt, max_tokens, temperature, language)
    draft = await ask_or_none(llm, "select_atom", Selection, values, how, on_invalid, "nothing was chosen")
    if draft is None:
        return Choice()
    positions, unknown = pick([] if draft.number is None else [draft.number], len(shown))
    thinking = draft.thinking.strip()
    if not positions:
        return Choice(thinking=thinking, unknown=unknown)
    return Choice(index=positions[0], hit=shown[positions[0]], thinking=thinking, unknown=unknown)


def _label(hit: Hit) -> str:
    atom = hit.metadata.get(ATOM)
    return atom if isinstance(atom, str) and atom else hit.text
