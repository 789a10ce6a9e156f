import base64
import gzip
import json
import random
from itertools import pairwise
from typing import Any

import pytest

from ragbraid.flows import trace_pack
from ragbraid.flows.trace import StepTrace, Trace
from ragbraid.flows.trace_pack import MAX_PACKED, NOT_KEPT, pack_trace, unpack_trace
from ragbraid.flows.trace_record import record_of
from ragbraid.registry.contracts import Usage
from ragbraid.registry.errors import RunError, SettingsError


def step(path: str, output: Any = None, **inputs: Any) -> StepTrace:
    entry = StepTrace(path, "mine.node@1", 0.0)
    entry.inputs, entry.output, entry.ended = inputs, output, 1.0
    entry.usage = Usage(llm_calls=1)
    return entry


def trace_of(steps: list[StepTrace], **inputs: Any) -> Trace:
    trace = Trace()
    trace.flow, trace.plan, trace.inputs = "mine", "abc", inputs
    trace.steps = steps
    trace.finish("ok", {"": "done"})
    return trace


def noise(length: int, seed: int = 0) -> str:
    """Text that does not compress."""
    return base64.b64encode(random.Random(seed).randbytes(length)).decode()[:length]


def looped(rounds: int, length: int) -> list[StepTrace]:
    numbers = range(1, rounds + 1)
    inner = [step(f"loop[{number}].think", noise(length, number), text=f"round {number}") for number in numbers]
    return [step("before", "x"), step("loop"), *inner, step("after", "x")]


def test_a_small_trace_comes_back_whole() -> None:
    trace = trace_of([step("a", {"text": "水泵 \ud800"}, text="x\x00y"), step("b", [1, 2])], question="why?")
    trace.steps[1].error = RunError("it is away", step="b")
    found = unpack_trace(pack_trace(trace))
    assert found.steps[0].output == {"text": "水泵 ?"}
    assert found.steps[0].inputs == {"text": "x\x00y"}
    assert (found.steps[1], found.inputs, found.usage) == (
        record_of(trace_of(trace.steps[1:])).steps[0],
        {"question": "why?"},
        trace.usage,
    )
    assert (found.steps_left_out, found.values_left_out, found.gaps) == (0, 0, "")


def test_values_go_first_and_from_the_middle_of_the_run() -> None:
    trace = trace_of(looped(1_000, 1_500))
    packed = pack_trace(trace)
    assert len(packed) <= MAX_PACKED
    found = unpack_trace(packed)
    assert [each.path for each in found.steps] == [each.path for each in trace.steps]
    kept = [each.path for each in found.steps if each.output != NOT_KEPT]
    assert kept[:2] == ["before", "loop"]
    assert kept[-1] == "after"
    rounds = [int(path[5 : path.index("]")]) for path in kept if "[" in path]
    gap = next(place for place, (one, two) in enumerate(pairwise(rounds)) if two > one + 1)
    assert rounds == [*range(1, gap + 2), *range(rounds[gap + 1], 1_001)]
    assert 0 <= len(rounds) - 2 * (gap + 1) + 1 <= 2  # as many from the beginning as from the end
    assert found.usage.llm_calls == 1_003
    assert found.values_left_out == 1_003 - len(kept)
    assert found.gaps == (
        f"the trace was too large to be kept whole: without {found.values_left_out:,} steps' inputs and outputs"
    )


def test_what_failed_keeps_its_values_wherever_it_stands() -> None:
    steps = looped(1_000, 1_500)
    steps[500].error = RunError("it is away", step=steps[500].path)
    found = unpack_trace(pack_trace(trace_of(steps)))
    assert found.steps[500].output == steps[500].output
    assert found.steps[499].output == NOT_KEPT


def test_of_very_many_steps_entries_go_as_well_and_are_counted() -> None:
    found = unpack_trace(pack_trace(trace_of(looped(10_000, 1))))
    assert len(found.steps) == trace_pack.MAX_STEPS
    assert found.steps_left_out == 10_003 - trace_pack.MAX_STEPS
    assert found.usage.llm_calls == 10_003
    assert [each.path for each in found.steps[:3]] == ["before", "loop", "loop[1].think"]
    assert found.steps[-1].path == "after"
    assert "8,003 steps of its middle" in found.gaps


def test_values_of_the_run_itself_cannot_make_it_too_large() -> None:
    big = {str(one): {str(two): [noise(1_900, two)] * 20 for two in range(20)} for one in range(5)}
    found = unpack_trace(pack_trace(trace_of([step("a", big)], documents=big)))
    assert found.inputs == {"": NOT_KEPT}
    assert found.steps[0].output == NOT_KEPT
    assert found.outputs == {"": "done"}


@pytest.mark.parametrize(
    ("packed", "reason"),
    [
        ("no base64!", "base64"),
        (base64.b64encode(b"no gzip").decode(), "header"),
        (base64.b64encode(gzip.compress(b'{"flow": "x"}', mtime=0)).decode(), "plan: Field required"),
        (base64.b64encode(gzip.compress(json.dumps([1]).encode(), mtime=0)[:-9]).decode(), "cut off"),
    ],
)
def test_what_is_no_packed_trace_is_a_sentence(packed: str, reason: str) -> None:
    with pytest.raises(SettingsError, match="the trace that the run has left cannot be read") as caught:
        unpack_trace(packed)
    assert reason in str(caught.value)
