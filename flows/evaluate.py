"""Running flows on a file of questions and measuring what they find and answer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any, TypeVar

from ragbraid.flows.api import Flow
from ragbraid.flows.metrics import Metric, aggregate, answer_metrics, gold_order, retrieval_metrics
from ragbraid.flows.questions import Question
from ragbraid.flows.runner import RunResult
from ragbraid.registry.contracts import Answer, Ranking, Usage
from ragbraid.registry.errors import RunError, SettingsError

T = TypeVar("T")

METRICS = (
    "recall@5", "recall@10", "all_gold@5", "all_gold@10", "mrr@10", "ndcg@10", "ap",
    "em", "f1", "contains", "refused", "refused_unanswerable",
)  # fmt: skip
"""Everything that is measured; `ap` is the average precision, whose mean is known as MAP."""

_FIRST_CALLS: Mapping[str, Callable[[Any], Any]] = {
    "kb": lambda kb: kb.info(),
    "embedder": lambda embedder: embedder.embed_query("first"),
    "token_embedder": lambda embedder: embedder.embed_tokens(["first"], role="query"),
    "sparse": lambda encoder: encoder.encode_query("first 第一"),
    "reranker": lambda reranker: reranker.score("first", ["first"]),
}
"""A cheap call per role: models load with their first call. A language model is not asked, since that costs money."""


@dataclass(frozen=True, slots=True)
class QuestionResult:
    """What one flow did with one question; `metrics` holds those that are defined for it."""

    id: str
    metrics: Mapping[str, float]
    seconds: float
    usage: Usage = field(default_factory=Usage)
    answer: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class FlowResult:
    """What one flow did with all questions, and how long that took in all."""

    flow: str
    results: tuple[QuestionResult, ...]
    seconds: float = 0.0

    @property
    def usage(self) -> Usage:
        """What all questions used together, failed ones included."""
        return sum((result.usage for result in self.results), Usage())

    def metric(self, name: str) -> Metric:
        """Return the mean of a metric, with the number of questions behind it."""
        ran = [result for result in self.results if result.error is None]
        values = (result.metrics.get(name) for result in ran)
        return aggregate(name, values, n_error=len(self.results) - len(ran))

    def summary(self) -> dict[str, Any]:
        """Return the metrics, latency percentiles, failures and model use as plain data."""
        times = sorted(result.seconds for result in self.results if result.error is None)
        metrics = [metric for name in METRICS if (metric := self.metric(name)).n]
        return {
            "flow": self.flow,
            "questions": len(self.results),
            "failed": sum(result.error is not None for result in self.results),
            "metrics": {metric.name: asdict(metric) for metric in metrics},
            "latency_seconds": {"p50": percentile(times, 0.5), "p95": percentile(times, 0.95)},
            "usage": self.usage.model_dump(),
            "seconds": self.seconds,
        }


async def evaluate_flow(
    flow: Flow,
    questions: Sequence[Question],
    *,
    inputs: Mapping[str, Any] | None = None,
    concurrency: int = 1,
    on_done: Callable[[], None] = lambda: None,
) -> FlowResult:
    """Run a flow on every question and measure it. A run that fails counts as failed and does not stop the others.

    What is ranked is the flow's output where that is a ranking, else the last ranking that a step of the run gave.
    What the flow needs is opened before the first question, so that no latency holds the loading of a model.

    Raises:
        SettingsError: the flow has no input `question`, or a resource that it needs is not there.
    """
    if "question" not in {spec.name for spec in flow.plan.inputs}:
        raise SettingsError(f"the flow `{flow.name}` has no input `question`, so it cannot be evaluated on questions")
    await _open_resources(flow)
    gate = asyncio.Semaphore(concurrency)

    async def one(question: Question) -> QuestionResult:
        async with gate:
            started = perf_counter()
            try:
                result = await flow.arun_traced({**(inputs or {}), "question": question.question})
            except RunError as error:
                usage = Usage() if error.trace is None else error.trace.usage
                return QuestionResult(question.id, {}, perf_counter() - started, usage, error=str(error))
            finally:
                on_done()
            seconds = perf_counter() - started
        return _measure(question, result, seconds)

    started = perf_counter()
    results = await asyncio.gather(*(one(question) for question in questions))
    return FlowResult(flow.name, tuple(results), perf_counter() - started)


async def _open_resources(flow: Flow) -> None:
    flow.check_resources()
    for name, role in flow.plan.roles.items():
        resource = await asyncio.to_thread(flow.resources.get, name, role)
        if resource is not None and role in _FIRST_CALLS:
            await asyncio.to_thread(_FIRST_CALLS[role], resource)


def _measure(question: Question, result: RunResult, seconds: float) -> QuestionResult:
    ranking, answer = find_ranking(result), _find(_values(result.outputs), Answer)
    metrics: dict[str, float] = {}
    if ranking is not None and question.gold_passage_ids:
        metrics |= retrieval_metrics(gold_order(ranking, question.gold_passage_ids), question.gold_passage_ids)
    if answer is not None:
        metrics["refused_unanswerable" if question.type == "unanswerable" else "refused"] = float(answer.refused)
        if question.answers:
            metrics |= answer_metrics(answer.text, question.answers)
    text = None if answer is None else answer.text
    return QuestionResult(question.id, metrics, seconds, result.trace.usage, answer=text)


def find_ranking(result: RunResult) -> Ranking | None:
    """Return the ranking that a run is judged by, or None when no step gave one."""
    given = _find(_values(result.outputs), Ranking)
    if given is not None:
        return given
    return _find((step.output for step in reversed(result.trace.steps)), Ranking)


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """Return the value that at least `share` of an ascending list do not exceed (nearest rank), None for an empty one."""
    if not ordered:
        return None
    rank = math.ceil(share * len(ordered))
    return ordered[max(rank, 1) - 1]


def _values(outputs: Any) -> list[Any]:
    return list(outputs.values()) if isinstance(outputs, dict) else [outputs]


def _find(values: Iterable[Any], cls: type[T]) -> T | None:
    return next((value for value in values if isinstance(value, cls)), None)
