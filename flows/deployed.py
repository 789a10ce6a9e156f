"""What a deployment names: a pull step that takes over the flow it carries, and that flow as a name to import.

Prefect may do the two in different processes; the bundle goes from one to the other as an environment variable.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ragbraid.registry.errors import RagbraidError, SettingsError

if TYPE_CHECKING:
    from ragbraid.flows.prefect_engine import PlanFlow

ENTRYPOINT = "ragbraid.flows.deployed.flow"
PULL_STEP = "ragbraid.flows.deployed.receive"
BUNDLE_VARIABLE = "RAGBRAID_BUNDLE"
VERSION_LENGTH = 12
"""How many digits of a plan's hash name the version of a flow to people."""


def pull_steps(packed: str, version: str, inputs: Sequence[str]) -> list[dict[str, Any]]:
    """Return the pull steps of a deployment that carries a packed bundle."""
    return [{PULL_STEP: {"version": version, "inputs": list(inputs), "bundle": packed}}]


def packed_bundle(steps: Sequence[Mapping[str, Any]] | None) -> str | None:
    """Return the packed bundle of a deployment's pull steps, or None for a deployment that is not ours."""
    if steps and len(steps) == 1 and PULL_STEP in steps[0]:
        return str(steps[0][PULL_STEP].get("bundle", ""))
    return None


def receive(bundle: str, version: str, inputs: Sequence[str]) -> dict[str, Any]:
    """Take over the flow of a deployment; Prefect calls this before it imports `ENTRYPOINT`.

    Args:
        bundle: see `ragbraid.flows.bundle`.
        version: the plan's hash, for whoever reads the deployment.
        inputs: the names of the flow's inputs, known even where the flow itself cannot be read.
    """
    os.environ[BUNDLE_VARIABLE] = json.dumps({"bundle": bundle, "inputs": list(inputs)})
    return {"ragbraid_version": version}


@lru_cache(maxsize=64)
def flow_of(packed: str) -> PlanFlow:
    """Return the Prefect flow of a packed bundle, compiled once in a process.

    Raises:
        SettingsError: as `Bundle.unpack` and `open_bundle`.
        FlowError: as `open_bundle`.
    """
    from ragbraid.flows.bundle import Bundle, differences_here, open_bundle
    from ragbraid.flows.prefect_engine import PlanFlow

    bundle = Bundle.unpack(packed)
    flow = open_bundle(bundle).prefect
    assert isinstance(flow, PlanFlow)
    flow.notes = tuple(differences_here(bundle))
    # Paths are part of a plan's hash: in another folder it is another one, but the version is the one that was deployed.
    flow.version = bundle.version[:VERSION_LENGTH]
    return flow


def flow_or_failing(packed: str, inputs: Sequence[str]) -> PlanFlow:
    """Return the Prefect flow of a packed bundle, or where it cannot be made here, one that fails and says why."""
    try:
        return flow_of(packed)
    except RagbraidError as error:
        from ragbraid.flows.prefect_engine import build_failing_flow

        return build_failing_flow(error, inputs)


def __getattr__(name: str) -> Any:
    if name != "flow":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    received = os.environ.get(BUNDLE_VARIABLE)
    if received is None:
        raise SettingsError(
            f"{ENTRYPOINT} has a flow only in a run of a deployment", hint="deploy flows by `ragbraid deploy`"
        )
    fields = json.loads(received)
    return flow_or_failing(fields["bundle"], fields["inputs"])
