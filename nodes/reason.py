"""The `reason.*` nodes: single steps of multi-step methods. Each asks a model once; loops are the flow's business."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, PositiveInt

from ragbraid.nodes.reason_forms import (
    NextQuestion,
    NextThought,
    Proposal,
    Revision,
    Selection,
    ThoughtsDraft,
)
from ragbraid.nodes.reasoning import (
    Asking,
    OnInvalid,
    PassageLimit,
    PromptLanguage,
    Temperature,
    Texts,
    ask,
    ask_or_none,
    bounded,
    find_answer,
    first_sentence,
    gather,
    has_evidence,
    is_same_text,
    pick,
    prompt_file,
    tidy,
    without_repeats,
)
from ragbraid.registry.context import report_note
from ragbraid.registry.contracts import Hit, Ranking
from ragbraid.registry.errors import NodeInputError
from ragbraid.registry.node import node
from ragbraid.registry.reasoning import ATOM, Choice, ExitCheck, FollowUp, SubQuestions, Thought, Thoughts
from ragbraid.registry.resources import LLM

_CITATION = re.compile(r"\s*\[\d+\]")


@node(
    "reason.next_thought",
    example="""
    found: {use: retrieve.hybrid, query: $question, top_k: 6}
    think: {use: reason.next_thought, evidence: $found, max_passages: 15}
    """,
)
async def next_thought(
    evidence: Ranking,
    question: str,
    thoughts: Texts = (),
    *,
    llm: LLM,
    prompt: Annotated[str | None, prompt_file("passages", "thoughts")] = None,
    max_passages: PassageLimit = 15,
    max_tokens: PositiveInt = 300,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
    on_invalid: OnInvalid = "fail",
) -> Thought:
    """Writes the next sentence of a chain of thought from the evidence so far, and the answer once it follows.

    The reasoning step of IRCoT (Trivedi et al. 2023), asked for as an object instead of demonstrated with examples:
    of a longer text only the first sentence counts, because what comes after it has not been looked up yet. Evidence
    and thoughts are shown in the order given. The thought is final when the model gives `answer`, or states it as "the
    answer is ..." or 答案是. Without evidence the model is not asked and the thought is empty.

    Args:
        evidence: everything found so far, in the order in which it is to be read.
        question: the question.
        thoughts: the sentences so far, in order.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_passages: how many of the hits the model sees.
        max_tokens: bounds what the model writes; reaching it is an error, not a thought.
        temperature: 0 makes the thought as repeatable as the model allows.
        language: language of the prompt; `auto` takes the question's.
        on_invalid: after an answer of the wrong form or one that was cut off, `fail` fails the step and `keep` keeps
            the thoughts as they are: the new one is empty, marked degraded.

    Raises:
        NodeInputError: the question is empty or the template is wrong.
        ServiceError: the model failed, or there is no evidence because retrieval failed.
    """
    if not has_evidence(evidence):
        return Thought(text="")
    values = gather(question, passages=evidence.hits[:max_passages], lists={"thoughts": thoughts})
    how = Asking(prompt, max_tokens, temperature, language)
    draft = await ask_or_none(llm, "next_thought", NextThought, values, how, on_invalid, "no thought was added")
    if draft is None:
        return Thought(text="")
    checked = check_exit(draft.thought, thoughts)
    answer = tidy(draft.answer) or checked.answer
    return Thought(
        text=first_sentence(draft.thought),
        answer=answer,
        is_final=answer is not None,
        is_repeat=checked.reason == "repeated",
    )


@node(
    "reason.exit_check",
    example="""
    exit: {use: reason.exit_check, text: $text, thoughts: $thoughts}
    """,
)
def check_exit(text: str, thoughts: Texts = ()) -> ExitCheck:
    """Says whether a chain of thought ends with this text: it answers, is empty, or repeats an earlier thought.

    For thoughts that come as free text; `reason.next_thought` says the same of its own. An answer is what stands
    behind "the answer is" (IRCoT's pattern) or 答案是 at the start of the first sentence.

    Args:
        text: the newest thought; its first sentence counts.
        thoughts: the thoughts before it.
    """
    sentence = first_sentence(text)
    answer = find_answer(sentence)
    if answer is not None:
        return ExitCheck(is_done=True, reason="answered", answer=answer)
    if not sentence:
        return ExitCheck(is_done=True, reason="empty")
    if any(is_same_text(sentence, thought) for thought in thoughts):
        return ExitCheck(is_done=True, reason="repeated")
    return ExitCheck(is_done=False, reason="continue")


@node(
    "reason.propose_subquestions",
    example="""
    propose: {use: reason.propose_subquestions, evidence: $chosen, max_questions: 5}
    """,
)
async def propose_subquestions(
    question: str,
    evidence: Ranking = Ranking(),  # noqa: B008  # frozen
    asked: Texts = (),
    *,
    llm: LLM,
    prompt: Annotated[str | None, prompt_file("passages", "asked", "max_questions")] = None,
    max_questions: Annotated[int, Field(ge=1, le=50)] = 5,
    max_passages: PassageLimit = 15,
    max_tokens: PositiveInt = 600,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
) -> SubQuestions:
    """Proposes sub-questions that the evidence chosen so far leaves open; none means that it is enough.

    The decomposition step of PIKE-RAG (Wang et al. 2025). More than `max_questions` go back to the model as a mistake,
    so that it chooses and not we. Questions that were asked before or repeat one another are left out; when nothing
    is left the list is empty, which is a normal end. The first round has no evidence.

    Args:
        question: the question.
        evidence: what was chosen so far.
        asked: sub-questions of earlier rounds.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_questions: how many the model may propose.
        max_passages: how many of the hits the model sees.
        max_tokens: bounds what the model writes; reaching it is an error.
        temperature: 0 makes the proposal as repeatable as the model allows.
        language: language of the prompt; `auto` takes the question's.

    Raises:
        NodeInputError: the question is empty or the template is wrong.
        ServiceError: the model failed, or there is no evidence because retrieval failed.
    """
    has_evidence(evidence)
    values = gather(
        question,
        passages=evidence.hits[:max_passages],
        lists={"asked": asked},
        facts={"max_questions": max_questions},
    )
    form = bounded(Proposal, "sub_questions", max_questions)
    draft = await ask(llm, "propose_subquestions", form, values, Asking(prompt, max_tokens, temperature, language))
    questions = without_repeats(draft.sub_questions, asked)
    repeated = sum(1 for text in draft.sub_questions if tidy(text)) - len(questions)
    if repeated:
        report_note(f"{repeated} proposed sub-questions had been asked before and were left out")
    return SubQuestions(questions=questions, thinking=draft.thinking.strip(), repeated=repeated)


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
) -> Choice:
    """Chooses the candidate that adds most to the evidence chosen so far, or none.

    The selection step of PIKE-RAG (Wang et al. 2025). A candidate is shown by the atomic question through which it was
    found (`metadata.atom`), else by its text, so that the same node selects among atoms and among chunks. A number
    that no candidate bears selects none and is counted. Without candidates the model is not asked.

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

    Raises:
        NodeInputError: the question is empty or the template is wrong.
        ServiceError: the model failed, or there are no candidates because retrieval failed.
    """
    has_evidence(evidence)
    if not has_evidence(candidates):
        return Choice()
    shown = candidates.hits[:max_candidates]
    values = gather(question, passages=evidence.hits[:max_passages], lists={"candidates": [_label(h) for h in shown]})
    draft = await ask(llm, "select_atom", Selection, values, Asking(prompt, max_tokens, temperature, language))
    positions, unknown = pick([] if draft.number is None else [draft.number], len(shown))
    thinking = draft.thinking.strip()
    if not positions:
        return Choice(thinking=thinking, unknown=unknown)
    return Choice(index=positions[0], hit=shown[positions[0]], thinking=thinking, unknown=unknown)


def _label(hit: Hit) -> str:
    atom = hit.metadata.get(ATOM)
    return atom if isinstance(atom, str) and atom else hit.text


@node(
    "reason.follow_up",
    example="""
    next: {use: reason.follow_up, asked: $asked, answers: $answers}
    """,
)
async def follow_up(
    question: str,
    asked: Texts = (),
    answers: Texts = (),
    *,
    llm: LLM,
    prompt: Annotated[str | None, prompt_file("history")] = None,
    max_tokens: PositiveInt = 300,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
    on_invalid: OnInvalid = "fail",
) -> FollowUp:
    """Asks the next simpler question on the way to the answer, or gives the answer when nothing is open.

    The step of Self-Ask (Press et al. 2023), asked for as an object instead of demonstrated with examples. The flow
    answers each follow-up and carries questions and answers as two lists. `is_repeat` lets a loop stop when the model
    goes in circles.

    Args:
        question: the question.
        asked: the follow-up questions so far, in order.
        answers: the answer to each of them.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_tokens: bounds what the model writes; reaching it is an error.
        temperature: 0 makes the question as repeatable as the model allows.
        language: language of the prompt; `auto` takes the question's.
        on_invalid: after an answer of the wrong form or one that was cut off, `fail` fails the step and `keep` keeps
            what there is: neither a question nor an answer, marked degraded.

    Raises:
        NodeInputError: the question is empty, the template is wrong, or a follow-up lacks its answer.
        ServiceError: the model failed.
    """
    if len(asked) != len(answers):
        raise NodeInputError(f"There are {len(asked)} follow-up questions but {len(answers)} answers.", kind="input")
    history = [f"{each} -> {_CITATION.sub('', answer)}" for each, answer in zip(asked, answers, strict=True)]
    values = gather(question, lists={"history": history})
    how = Asking(prompt, max_tokens, temperature, language)
    draft = await ask_or_none(llm, "follow_up", NextQuestion, values, how, on_invalid, "nothing was asked")
    if draft is None:
        return FollowUp()
    found = tidy(draft.text)
    if draft.kind == "answer":
        return FollowUp(answer=found, is_final=True)
    return FollowUp(question=found, is_repeat=any(is_same_text(found, each) for each in asked))


@node(
    "reason.draft_thoughts",
    example="""
    draft: {use: reason.draft_thoughts, max_thoughts: 5}
    """,
)
async def draft_thoughts(
    question: str,
    *,
    llm: LLM,
    prompt: Annotated[str | None, prompt_file("max_thoughts")] = None,
    max_thoughts: Annotated[int, Field(ge=1, le=20)] = 8,
    max_tokens: PositiveInt = 1000,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
) -> Thoughts:
    """Drafts a chain of thought from what the model knows, to be revised step by step with evidence.

    The first step of RAT (Wang et al. 2024). Nothing in it is looked up yet: show no draft to a user.

    Args:
        question: the question or task.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_thoughts: how many steps the model may write; more go back to it as a mistake.
        max_tokens: bounds what the model writes; reaching it is an error.
        temperature: 0 makes the draft as repeatable as the model allows.
        language: language of the prompt; `auto` takes the question's.

    Raises:
        NodeInputError: the question is empty or the template is wrong.
        ServiceError: the model failed.
    """
    values = gather(question, facts={"max_thoughts": max_thoughts})
    form = bounded(ThoughtsDraft, "steps", max_thoughts)
    draft = await ask(llm, "draft_thoughts", form, values, Asking(prompt, max_tokens, temperature, language))
    return Thoughts(texts=without_repeats(draft.steps))


@node(
    "reason.revise_thought",
    example="""
    found: {use: retrieve.hybrid, query: $draft, top_k: 4}
    revised: {use: reason.revise_thought, draft: $draft, evidence: $found}
    """,
)
async def revise_thought(
    draft: str,
    evidence: Ranking,
    question: str,
    thoughts: Texts = (),
    *,
    llm: LLM,
    prompt: Annotated[str | None, prompt_file("passages", "thoughts", "draft")] = None,
    max_passages: PassageLimit = 10,
    max_tokens: PositiveInt = 500,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
    on_invalid: OnInvalid = "fail",
) -> Thought:
    """Corrects one drafted step of a chain of thought with the evidence that was found for it.

    The revision step of RAT (Wang et al. 2024): earlier steps are shown as they were revised, later ones are not.
    Without evidence the draft stays as it is and the model is not asked.

    Args:
        draft: the step to revise.
        evidence: what was found for it, best first.
        question: the question or task.
        thoughts: the steps before it, revised, in order.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_passages: how many of the hits the model sees.
        max_tokens: bounds what the model writes; reaching it is an error.
        temperature: 0 makes the revision as repeatable as the model allows.
        language: language of the prompt; `auto` takes the question's.
        on_invalid: after an answer of the wrong form or one that was cut off, `fail` fails the step and `keep` keeps
            the draft, marked degraded.

    Raises:
        NodeInputError: the question is empty or the template is wrong.
        ServiceError: the model failed, or there is no evidence because retrieval failed.
    """
    if not has_evidence(evidence):
        return Thought(text=draft)
    values = gather(question, passages=evidence.hits[:max_passages], lists={"thoughts": thoughts, "draft": [draft]})
    how = Asking(prompt, max_tokens, temperature, language)
    revision = await ask_or_none(llm, "revise_thought", Revision, values, how, on_invalid, "the draft was kept")
    return Thought(text=draft if revision is None else tidy(revision.thought))
