"""Artifacts on a real Prefect server: what runs leave there, and a server that does not take them."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest
from cli_parts import EXAMPLES
from method_parts import method
from prefect_parts import Project

from ragbraid.flows.api import Flow, load
from ragbraid.flows.resources import shared_pool
from ragbraid.registry.contracts import Ranking

# Prefect's engine asks for the default result storage with a client that it does not close.
pytestmark = [pytest.mark.prefect, pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]

HOSTILE = (
    "The <script>alert('ferry')</script> ferry to Norrhaven leaves at 7:15 | `daily`, "
    "[book here](http://evil.example) or ![x](http://evil.example/x.png)."
)
PASSAGES = {"ferry": HOSTILE, "bakery": "The bakery opens at six and sells rye bread."}


async def run_and_read(flow: Flow, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """Run a flow; return what it gave and the artifacts of that run by their keys."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

    state: Any = await flow.prefect(**inputs, return_state=True)
    output = await state.aresult(raise_on_failure=False)
    only = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[state.state_details.flow_run_id]))
    async with get_client() as client:
        # What Prefect keeps of results, and our trace, have no key: its pages do not show them.
        found = [each for each in await client.read_artifacts(artifact_filter=only) if each.key is not None]
    assert len({each.key for each in found}) == len(found)
    return output, {each.key: each for each in found}


def test_an_answer_and_its_evidence_are_artifacts_in_which_passages_stay_text(tmp_path: Path, prefect_api: Any) -> None:
    with method(tmp_path, "hybrid_qa", passages=PASSAGES) as made:
        text = (tmp_path / "hybrid_qa.yaml").read_text()
        path = tmp_path / "shown.yaml"
        named = text.replace("name: hybrid_qa", "name: shown").replace(
            "outputs: $answer", "outputs: {answer: $answer, evidence: $rerank}"
        )
        path.write_text(named)
        shown = load(path)
        output, found = asyncio.run(run_and_read(shown, question="When does the ferry to Norrhaven leave?"))
        _, plain = asyncio.run(run_and_read(made.flow, question="When does the ferry to Norrhaven leave?"))
    assert set(found) == {"shown-drawing", "shown-answer", "shown-evidence-ranking"}
    assert set(plain) == {"hybrid-qa-drawing", "hybrid-qa-answer"}

    answer = found["shown-answer"]
    assert answer.type == "markdown"
    assert answer.description == f"Answer of `shown`, version {shown.plan.hash[:12]}"
    assert "ferry" in output["answer"].citations[0].quote
    assert "**\\[1\\]** ferry (passage read)" in answer.data
    assert "&lt;script&gt;" in answer.data
    assert "<script>" not in answer.data
    assert "\\[book here\\](http\\://evil.example)" in answer.data
    assert "\\`daily\\`" in answer.data

    evidence = found["shown-evidence-ranking"]
    assert evidence.type == "table"
    rows = json.loads(evidence.data)
    assert [row["rank"] for row in rows] == ["1", "2"]
    first = next(row for row in rows if row["source"] == "ferry")
    assert first["text"].startswith(
        "The \\<script>alert('ferry')\\</script> ferry to Norrhaven leaves at 7:15 | \\`daily"
    )
    for route in ("dense", "sparse"):
        assert first[f"{route}: rank"] == str(output["evidence"][int(first["rank"]) - 1].scores[route].rank)

    drawing = found["shown-drawing"]
    assert drawing.data.startswith("```mermaid\nflowchart LR\n")
    assert "step_rerank" in drawing.data


def test_an_ingestion_is_an_artifact_beside_its_progress(tmp_path: Path, prefect_api: Any) -> None:
    shutil.copy(EXAMPLES / "ingest.yaml", tmp_path)
    (tmp_path / "ragbraid.toml").write_text("")
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "a.md").write_text("# Ferries\n\nThe ferry leaves at seven.\n")
    (docs / "<b>.md").write_bytes(b"text \x00\x81\x8d\xff\x00")
    try:
        report, found = asyncio.run(run_and_read(load(tmp_path / "ingest.yaml"), folder=str(docs)))
    finally:
        shared_pool().close()
    assert (report.added, report.failed) == (1, 1)
    page = found["ingest-ingestion"]
    assert page.type == "markdown"
    lines = page.data.splitlines()
    assert "| sources | 1 | 0 | 0 | 0 | 1 | 0 |" in lines
    failed = next(line for line in lines if line.startswith("| &lt;b&gt;.md | failed | 0 | 0 | 0 | "))
    added = next(line for line in lines if line.startswith("| a.md | added | "))
    assert lines.index(failed) < lines.index(added)
    assert "ingest-drawing" in found


def test_a_run_that_failed_shows_what_it_reached(tmp_path: Path, prefect_api: Any) -> None:
    flow = Project(tmp_path).flow("""
        inputs: {text: str, ranking: Ranking}
        nodes:
          found: {use: rank.top_k, k: 3, ensure: "${ out | length > 0 }"}
          never: {use: mine.tag, text: "${ text ~ (found | length) }"}
        outputs: {found: $found, never: $never}
    """)
    error, found = asyncio.run(run_and_read(flow, text="a", ranking=Ranking(hits=())))
    assert "does not keep `ensure:" in str(error)
    assert set(found) == {f"{flow.name.replace('_', '-')}-{kind}" for kind in ("drawing", "found-ranking")}


def test_a_server_that_takes_no_artifacts_does_not_take_the_result_with_it(
    tmp_path: Path, prefect_api: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from ragbraid.flows import prefect_artifacts
    from ragbraid.flows.trace import Trace

    plan = (
        Project(tmp_path)
        .flow("""
        inputs: {text: str}
        nodes: {a: {use: mine.tag, text: $text}}
        outputs: $a
    """)
        .plan
    )
    trace = Trace()
    trace.begin(plan, {})
    logger = logging.getLogger(prefect_artifacts.__name__)
    logger.addHandler(caplog.handler)
    try:
        with temporary_settings({PREFECT_API_URL: f"{prefect_api.url}/not-there"}):
            asyncio.run(prefect_artifacts.write_artifacts(plan, trace, uuid.uuid4()))
        monkeypatch.setattr(prefect_artifacts, "MOST_SECONDS", 0.0)
        asyncio.run(prefect_artifacts.write_artifacts(plan, trace, uuid.uuid4()))
    finally:
        logger.removeHandler(caplog.handler)
    refused, late = dict.fromkeys(record.getMessage() for record in caplog.records if record.name == logger.name)
    assert refused.startswith("the artifacts of the run could not be written: the Prefect API at ")
    assert late.endswith("took more than 0 s")

    async def reachable() -> Any:
        async with get_client() as client:
            return await client.api_healthcheck()

    assert asyncio.run(reachable()) is None
