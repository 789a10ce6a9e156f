"""The `reason.*` nodes: single steps of multi-step methods. Each asks a model once; loops are the flow's business."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveInt

from ragbraid.nodes.citations import without_markers
from ragbraid.nodes.reason_atoms import propose_subquestions, select_atom
from ragbraid.nodes.reason_forms import NextQuestion, NextThought, Revision, ThoughtsDraft
from ragbraid.nodes.reason_points import map_points, reduce_points
from ragbraid.nodes.reason_segments import best_segment, decide_retrieval, write_segment
from ragbraid.nodes.reasoning import (
    Asking,
    OnInvalid,
    PassageLimit,
    PromptLanguage,
    Temperature,
    Texts,
    ask_or_none,
    bounded,
    find_answer,
    first_sentence,
    gather,
    has_evidence,
    is_same_text,
    prompt_file,
    tidy,
    without_repeats,
)
from ragbraid.nodes.report_drift import follow_lead, gather_leads, primer
from ragbraid.registry.contracts import Ranking
from ragbraid.registry.errors import NodeInputError
from ragbraid.registry.node import node
from ragbraid.registry.reasoning import ExitCheck, FollowUp, Thought, Thoughts
from ragbraid.registry.resources import LLM

__all__ = [
    "best_segment",
    "check_exit",
    "decide_retrieval",
    "draft_thoughts",
    "follow_lead",
    "follow_up",
    "gather_leads",
    "map_points",
    "next_thought",
    "primer",
    "propose_subquestions",
    "reduce_points",
    "revise_thought",
    "select_atom",
    "write_segment",
]


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
    history = [f"{each} -> {without_markers(answer)}" for each, answer in zip(asked, answers, strict=True)]
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
    on_invalid: OnInvalid = "fail",
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
        on_invalid: after an answer of the wrong form (too many steps included) or one that was cut off, `fail` fails
            the step and `keep` gives no thoughts, marked degraded.

    Raises:
        NodeInputError: the question is empty or the template is wrong.
        ServiceError: the model failed.
    """
    values = gather(question, facts={"max_thoughts": max_thoughts})
    form = bounded(ThoughtsDraft, "steps", max_thoughts)
    how = Asking(prompt, max_tokens, temperature, language)
    draft = await ask_or_none(llm, "draft_thoughts", form, values, how, on_invalid, "nothing was drafted")
    return Thoughts() if draft is None else Thoughts(texts=without_repeats(draft.steps))


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
