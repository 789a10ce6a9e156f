"""What KAG's logical forms travel as: plans of steps that share variables, and what the variables are bound to."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt

from ragbraid.registry.contract import Contract
from ragbraid.registry.contracts import Ranking

LogicOp = Literal["retrieve", "math", "deduce", "output"]
DeduceKind = Literal["judgement", "entailment", "extract", "choice", "multi_choice"]
BindingStatus = Literal["ok", "empty", "degraded", "failed"]
Alias = Annotated[str, Field(pattern=r"^[^\W\d]\w{0,39}$")]
"""The name of a variable: letters, digits and underscores, no digit first."""
Texts = tuple[str, ...]


class Slot(Contract):
    """A subject, predicate or object of a retrieve step.

    `types` are classes of entities, or names of predicates. `mention` is the name that the question gives. `values` are
    what the variable `alias` is bound to; `plan.rewrite` fills them in.
    """

    alias: Alias
    types: Texts = ()
    mention: str | None = None
    constraints: dict[str, str] = {}
    values: Texts = ()

    @property
    def names(self) -> Texts:
        """The names that are known for it: the values of its variable, else its mention."""
        return self.values or ((self.mention,) if self.mention else ())


class LogicStep(Contract):
    """One step of a logical form.

    A retrieve step looks for `s`, `p`, `o` and binds the variables that are new in it. Math and deduce steps make
    `out_alias` of `inputs`, which are variables or literal texts; `target` says what is wanted. An output step names
    the variables of the answer. `depends_on` are the numbers of the steps whose variables it uses. `reason` says why
    the step can only be solved in a lesser way than planned.
    """

    n: PositiveInt
    question: str
    op: LogicOp
    s: Slot | None = None
    p: Slot | None = None
    o: Slot | None = None
    inputs: Texts = ()
    target: str | None = None
    deduce_kind: DeduceKind | None = None
    out_alias: Alias | None = None
    depends_on: tuple[PositiveInt, ...] = ()
    reason: str | None = None

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Subject, predicate and object, those that it has."""
        return tuple(slot for slot in (self.s, self.p, self.o) if slot is not None)


class LogicPlan(Contract):
    """A question as a logical form. `raw` is what the model or the author wrote, `notes` say what was made of it."""

    steps: tuple[LogicStep, ...] = ()
    raw: str = ""
    notes: Texts = ()


class GraphSchema(Contract):
    """The types of entities and the predicates that a knowledge graph knows, the most frequent first."""

    types: Texts = ()
    predicates: Texts = ()


class StepSlots(Contract):
    """What a retrieve step knows about its subject, predicate and object; empty where it knows nothing.

    `mentions` are the names of subject and object together, each once.
    """

    subject: Texts = ()
    subject_types: Texts = ()
    predicates: Texts = ()
    object: Texts = ()
    object_types: Texts = ()
    mentions: Texts = ()


class StepAnswer(Contract):
    """The answer to one step, from passages and facts.

    `values` are its names, dates or numbers alone, and `of` what each of them belongs to ("" where nothing is said).
    `cited` are the ids of the hits that it rests on.
    """

    answered: bool
    text: str = ""
    values: Texts = ()
    of: Texts = ()
    cited: Texts = ()


class Binding(Contract):
    """What a variable stands for.

    `of` has for every value what it belongs to: for the birth date of one founder that founder, "" where nothing is
    known. `reason` says why there is no value, or why it is not what was planned.
    """

    alias: Alias
    text: str = ""
    values: Texts = ()
    of: Texts = ()
    entity_ids: Texts = ()
    status: BindingStatus = "ok"
    reason: str | None = None


class StepResult(Contract):
    """What a step gave: an answer as text, the variables that it binds, and the facts and passages behind both."""

    n: PositiveInt
    question: str
    op: LogicOp
    text: str = ""
    bindings: tuple[Binding, ...] = ()
    facts: Texts = ()
    evidence: Ranking = Ranking()
    status: BindingStatus = "ok"
    reason: str | None = None


class Bindings(Contract):
    """What the steps of a plan have given so far, in the order of their numbers."""

    results: tuple[StepResult, ...] = ()

    @property
    def solved(self) -> tuple[int, ...]:
        """The numbers of the steps that have run, whether or not they found anything."""
        return tuple(result.n for result in self.results)

    def find(self, alias: str) -> Binding | None:
        """Return what a variable is bound to, or None where no step has bound it yet."""
        return next((each for result in self.results for each in result.bindings if each.alias == alias), None)

    def result(self, n: int) -> StepResult | None:
        """Return what a step gave, or None where it has not run yet."""
        return next((result for result in self.results if result.n == n), None)


class Solution(Contract):
    """What a plan came to.

    `values` are what the variables of its output stand for, `text` the same as one line. `lines` tell every step with
    its answer and its facts, `evidence` holds the passages of all steps.
    """

    text: str = ""
    values: Texts = ()
    lines: Texts = ()
    evidence: Ranking = Ranking()
    status: BindingStatus = "ok"
    reason: str | None = None


LOGIC_CONTRACTS: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        Binding, Bindings, GraphSchema, LogicPlan, LogicStep, Slot, Solution, StepAnswer, StepResult, StepSlots,
    )
}  # fmt: skip
"""The type names of logical forms that flow files may use."""
