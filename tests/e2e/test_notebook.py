from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "docs/examples/ask_your_documents.ipynb"


def said(cell: Any) -> str:
    """What a cell shows to somebody who reads it: printed text, HTML before plain text, the lines of an error."""
    parts = []
    for output in cell.outputs:
        data = output.get("data", {})
        parts.append(output.get("text") or data.get("text/html") or data.get("text/plain") or "")
        parts.append("\n".join(output.get("traceback", ())))
    return "\n".join(parts)


def test_the_notebook_is_kept_without_outputs() -> None:
    cells = [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    assert len(cells) > 5
    assert [cell for cell in cells if cell.outputs or cell.execution_count] == []


@pytest.mark.model
@pytest.mark.slow
def test_the_notebook_does_what_it_says(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [said(cell) for cell in notebook.cells if cell.cell_type == "code"]
    _, ingested, drawing, answer, chinese, trace, streamed, ranking, mistake, _ = shown
    assert "documents in" in ingested
    assert "<svg" in drawing
    assert "30 days" in answer
    assert "<ol>" in answer
    assert "01-working-time.md" in answer
    assert "<ol>" in chinese
    assert "<iframe srcdoc=" in trace
    assert "rerank   ok" in streamed
    assert "<table>" in ranking
    assert mistake.strip().startswith("RunError: ")
    assert "top_k" in mistake
    assert "Traceback" not in mistake
