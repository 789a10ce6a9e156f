"""What a run reached, also where it failed."""

from __future__ import annotations

from pathlib import Path

from ragbraid.flows.api import load
from ragbraid.flows.reached import reached_outputs
from ragbraid.flows.trace import Trace
from ragbraid.registry.contracts import Ranking
from ragbraid.registry.errors import RagbraidError

FLOW = """
ragbraid: 1
name: f
inputs: {{ranking: Ranking}}
nodes:
  first: {{use: rank.top_k, k: 2}}
  second: {{use: rank.top_k, k: 1, ranking: $first{ensure}}}
  third: {{use: rank.top_k, k: 1, ranking: $second}}
outputs: {{first: $first, second: $second, size: "${{ second | length }}", third: $third}}
"""


def run(folder: Path, ensure: str) -> dict[str, object]:
    path = folder / "f.yaml"
    path.write_text(FLOW.format(ensure=ensure))
    flow, trace = load(path), Trace()
    try:
        flow.run_traced({"ranking": Ranking(hits=())}, trace=trace)
    except RagbraidError:
        assert ensure
    return reached_outputs(flow.plan, trace)


def test_of_a_run_that_failed_by_ensure_the_output_that_was_refused_is_reached(tmp_path: Path) -> None:
    reached = run(tmp_path, ', ensure: "${ out | length > 0 }"')
    assert set(reached) == {"first", "second"}
    assert isinstance(reached["second"], Ranking)


def test_a_run_that_is_done_has_reached_everything(tmp_path: Path) -> None:
    assert set(run(tmp_path, "")) == {"first", "second", "size", "third"}


def test_a_run_that_never_began_has_reached_nothing(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(FLOW.format(ensure=""))
    assert reached_outputs(load(tmp_path / "f.yaml").plan, Trace()) == {}
