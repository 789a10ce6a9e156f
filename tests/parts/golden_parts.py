"""The catalogue of the golden tests, and flow files made of parts."""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from ragbraid.registry.catalogue import Catalogue

GOLDEN = Path(__file__).parent.parent / "golden"


@cache
def golden_catalogue() -> Catalogue:
    """Return nodes and resources that do nothing and change with no real node."""
    spec = spec_from_file_location("golden_nodes", GOLDEN / "golden_nodes.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["golden_nodes"] = module
    spec.loader.exec_module(module)
    made = Catalogue()
    made.add_module(module)
    return made


def flow_text(
    nodes: str, *, flow: str = "", outputs: str = "$answer", inputs: str = "question: str", rest: str = ""
) -> str:
    """Return a flow file; `nodes`, `inputs` and `rest` are YAML lines without their indentation."""
    parts = ["ragbraid: 1", "name: demo"]
    parts += ["inputs:", *(f"  {line}" for line in inputs.splitlines())] if inputs else []
    parts += ["nodes:", *(f"  {line}" for line in nodes.strip().splitlines())]
    parts += [f"flow: {flow}"] if flow else []
    return "\n".join([*parts, f"outputs: {outputs}", *rest.splitlines(), ""])
