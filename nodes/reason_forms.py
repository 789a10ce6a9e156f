"""The forms that models fill in for the `reason.*` nodes. What a node acts on is required, so that nothing passes for it."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from ragbraid.nodes.reasoning import Draft, Line, Note, tidy


class NextThought(Draft):
    """The next step of the reasoning."""

    thought: Note = Field(description="one sentence; empty when nothing can be added")
    answer: Line | None = Field(default=None, description="the answer to the question once it follows, else null")


class Proposal(Draft):
    """What still has to be found out."""

    thinking: Note = Field(default="", description="what is known and what is missing, in a sentence or two")
    sub_questions: list[Line] = Field(description="questions that still have to be answered; none when nothing is")


class Selection(Draft):
    """The candidate that helps most."""

    thinking: Note = Field(default="", description="why, in a sentence")
    number: int | None = Field(description="the candidate's number, or null when none helps")


class NextQuestion(Draft):
    """The next simpler question, or the final answer."""

    # One text and what it is, not two fields of which one must be null: a schema can enforce this form by itself.
    kind: Literal["follow_up", "answer"] = Field(description="`follow_up` while a question is open, else `answer`")
    text: Line = Field(description="the question, or the final answer")

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not tidy(self.text):
            raise ValueError("`text` is empty")
        return self


class ThoughtsDraft(Draft):
    """The steps of the reasoning."""

    steps: list[Line] = Field(description="one step each, in order", min_length=1)

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not any(map(tidy, self.steps)):
            raise ValueError("every step is empty")
        return self


class Revision(Draft):
    """The step as the passages support it."""

    thought: Note = Field(description="the corrected step")

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not tidy(self.thought):
            raise ValueError("`thought` is empty")
        return self
