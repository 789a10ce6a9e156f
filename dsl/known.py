"""What a flow file may name beside the names in scope: nodes, flows, types and resources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ragbraid.dsl.plan import Plan
from ragbraid.dsl.report import Report
from ragbraid.dsl.source_nodes import ScalarNode
from ragbraid.registry.catalogue import Catalogue


class FlowSource(Protocol):
    """Finds the flows that a flow file uses as nodes."""

    def find(self, use: ScalarNode, report: Report) -> Plan | None:
        """Return the checked flow that `use` names; what is wrong with it or with naming it has been reported."""

    def adopt(self, plan: Plan) -> dict[str, str]:
        """Take over the resources that a used flow declares; returns their names in the flow that uses it."""


@dataclass(frozen=True, slots=True)
class Known:
    """Nodes and types of the catalogue, flows, and resources with their role where it is known."""

    catalogue: Catalogue
    resources: Mapping[str, str | None]
    flows: FlowSource
