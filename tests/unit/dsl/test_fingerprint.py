from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from golden_parts import flow_text

from ragbraid.dsl.compile import check_text
from ragbraid.dsl.plan import Plan
from ragbraid.registry.catalogue import Catalogue

Compile = Callable[..., Plan]

NODES = """
rc: {use: retrieve.dense, top_k: 20}
sp: retrieve.sparse
m: {use: fuse.rrf@1, k: 60}
answer: generate.answer
"""
INPUTS = "question: str\nextra: int = 1"
OUTPUTS = "{answer: $answer, extra: $extra}"
PARTS = {"flow": "rc, sp -> m -> answer", "inputs": INPUTS, "outputs": OUTPUTS,
         "rest": "resources:\n  kb: {use: qdrant.embedded, path: ./kb}"}  # fmt: skip


def test_the_same_file_has_the_same_hash(compile_flow: Compile) -> None:
    assert compile_flow(NODES, **PARTS).hash == compile_flow(NODES, **PARTS).hash


def test_comments_layout_and_descriptions_do_not_count(compile_flow: Compile, catalogue: Catalogue) -> None:
    plan = compile_flow(NODES, **PARTS)
    text = flow_text(NODES, **PARTS)
    text = text.replace("name: demo", "# a remark\n\nname:   demo\nabout: what it is for")
    text = text.replace(
        "{use: retrieve.dense, top_k: 20}", "\n    top_k: 20   # enough\n    use: retrieve.dense\n    about: x"
    )
    text = text.replace("question: str", "question: {type: str, about: what to ask}")
    text = text.replace("rc, sp -> m -> answer", "rc,sp->m; m->answer;")
    other = check_text(text, "/flows/demo.yaml", catalogue).plan
    assert other is not None
    assert other.hash == plan.hash


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("top_k: 20", "top_k: 21"),
        ("k: 60", "k: 61"),
        ("fuse.rrf@1", "fuse.rrf@2"),
        ("use: retrieve.dense, top_k: 20", "use: retrieve.dense"),
        ("rc, sp -> m", "sp, rc -> m"),
        ("sp: retrieve.sparse", 'sp: {use: retrieve.sparse, query: "${ question | upper }"}'),
        ("sp: retrieve.sparse", "sp: {use: retrieve.sparse, on_error: skip}"),
        ("sp: retrieve.sparse", "sp: {use: retrieve.sparse, on_error: {use: retrieve.dense}}"),
        ("k: 60", 'k: 60, ensure: "${ out | length > 0 }"'),
        ("extra: int = 1", "extra: int = 2"),
        ("extra: int = 1", "extra: float = 1"),
        ("extra: int = 1", "extra: {type: int, default: 1, ge: 0}"),
        ("extra: int = 1", "extra: int"),
        ("extra: $extra", "more: $extra"),
        ("extra: $extra", "extra: $question"),
        ("path: ./kb", "path: ./kb2"),
        ("name: demo", "name: other"),
    ],
)  # fmt: skip
def test_whatever_decides_a_result_counts(catalogue: Catalogue, before: str, after: str) -> None:
    text = flow_text(NODES, **PARTS)
    assert text.count(before) >= 1
    plans = [check_text(t, "/flows/demo.yaml", catalogue).plan for t in (text, text.replace(before, after, 1))]
    assert plans[0] is not None
    assert plans[1] is not None
    assert plans[0].hash != plans[1].hash


def test_the_hash_is_the_same_in_every_process() -> None:
    parts = Path(__file__).parents[2] / "parts"
    script = (
        f"import sys; sys.path.insert(0, {str(parts)!r})\n"
        "from golden_parts import flow_text, golden_catalogue\n"
        "from ragbraid.dsl.compile import check_text\n"
        f"print(check_text(flow_text({NODES!r}, **{PARTS!r}), '/flows/demo.yaml', golden_catalogue()).plan.hash)\n"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(hashes) == 1
