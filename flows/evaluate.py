"""Running flows on a file of questions and measuring what they find and answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeVar

from ragbraid.flows.api import Flow
from ragbraid.flows.metrics import answer_metrics, gold_order, mean_of, retrieval_metrics
from ragbraid.flows.questions import Question
from ragbraid.flows.runner import RunResult
from ragbraid.registry.contracts import Answer, Ranking
from ragbraid.registry.errors import RunError, SettingsError

T = TypeVar("T")

METRICS = ("recall@5", "recall@10", "all_gold@5", "all_gold@10", "mrr@10", "ndcg@10", "em", "f1", "contains", "refused")


@dataclass(frozen=True, slots=True)
class QuestionResult:
    """What one flow did with one question."""

    id: str
    metrics: Mapping[str, float]
    seconds: float
    answer: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class FlowResult:
    """What one flow did with all questions."""

    flow: str
    results: tuple[QuestionResult, ...]
    tokens: int = 0
    llm_calls: int = 0
    seconds: float = 0.0

    def summary(self) -> dict[str, Any]:
        """Return the averages with the number of questions behind each, latency percentiles and failures."""
        rows = [result.metrics for result in self.results]
        means = {name: mean_of(rows, name) for name in METRICS}
        times = sorted(result.seconds for result in self.results if result.error is None)
        return {
            "flow": self.flow,
            "questions": len(self.results),
            "failed": sum(result.error is not None for result in self.results),
            "metrics": {name: {"value": value, "n": n} for name, (value, n) in means.items() if n},
            "latency_seconds": {"p50": _percentile(times, 0.5), "p95": _percentile(times, 0.95)},
            "llm_calls": self.llm_calls,
            "tokens": self.tokens,
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

    Raises:
        SettingsError: the flow has no input `question`, or a resource that it needs is not there.
    """
    if "question" not in {spec.name for spec in flow.plan.inputs}:
        raise SettingsError(f"the flow `{flow.name}` has no input `question`, so it cannot be evaluated on questions")
    gate = asyncio.Semaphore(concurrency)
    usage = [0, 0]

    async def one(question: Question) -> QuestionResult:
        async with gate:
            started = perf_counter()
            try:
                result = await flow.arun_traced({**(inputs or {}), "question": question.question})
            except RunError as error:
                return QuestionResult(question.id, {}, perf_counter() - started, error=str(error))
            finally:
                on_done()
            seconds = perf_counter() - started
        used = result.trace.usage
        usage[0] += used.llm_calls
        usage[1] += used.prompt_tokens + used.completion_tokens
        return _measure(question, result, seconds)

    started = perf_counter()
    results = await asyncio.gather(*(one(question) for question in questions))
    return FlowResult(flow.name, tuple(results), usage[1], usage[0], perf_counter() - started)


def _measure(question: Question, result: RunResult, seconds: float) -> QuestionResult:
    ranking, answer = find_ranking(result), _find(_values(result.outputs), Answer)
    metrics: dict[str, float] = {}
    if ranking is not None and question.gold_passage_ids:
        metrics |= retrieval_metrics(gold_order(ranking, question.gold_passage_ids), question.gold_passage_ids)
    if answer is not None:
        metrics["refused"] = float(answer.refused)
        if question.answers:
            metrics |= answer_metrics(answer.text, question.answers)
    return QuestionResult(question.id, metrics, seconds, answer=None if answer is None else answer.text)


def find_ranking(result: RunResult) -> Ranking | None:
    """Return the ranking that a run is judged by, or None when no step gave one."""
    given = _find(_values(result.outputs), Ranking)
    if given is not None:
        return given
    return _find((step.output for step in reversed(result.trace.steps)), Ranking)


def _values(outputs: Any) -> list[Any]:
    return list(outputs.values()) if isinstance(outputs, dict) else [outputs]


def _find(values: Iterable[Any], cls: type[T]) -> T | None:
    return next((value for value in values if isinstance(value, cls)), None)


def _percentile(ordered: Sequence[float], share: float) -> float | None:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
