"""What the compiler's tests share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from golden_parts import flow_text, golden_catalogue

from ragbraid.dsl.compile import check_text
from ragbraid.dsl.plan import Plan
from ragbraid.registry.catalogue import Catalogue


@pytest.fixture(scope="session")
def catalogue() -> Catalogue:
    """The nodes of the golden tests."""
    return golden_catalogue()


@pytest.fixture(scope="session")
def compile_flow(catalogue: Catalogue) -> Callable[..., Plan]:
    """Compile a flow made of parts (see `flow_text`); warnings are allowed, errors fail the test."""

    def compile_parts(nodes: str, *, file: str = "/flows/demo.yaml", **parts: str) -> Plan:
        checked = check_text(flow_text(nodes, **parts), file, catalogue)
        assert checked.plan is not None, checked.findings
        return checked.plan

    return compile_parts


@pytest.fixture(scope="session")
def codes_of(catalogue: Catalogue) -> Callable[..., list[str]]:
    """Return the codes of all findings of a flow made of parts."""

    def check_parts(nodes: str, **parts: str) -> list[str]:
        return [f.code for f in check_text(flow_text(nodes, **parts), "demo.yaml", catalogue).findings]

    return check_parts
