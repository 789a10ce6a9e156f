"""Explicit cache keys for steps. Prefect's default key hashes a function's source and so confuses two nodes made by one
factory; this one names the step, the node, what goes in and what stands behind it, and so cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

from ragbraid.dsl.plan import Step


def step_key(
    step: Step, path: str, inputs: Mapping[str, Any], *, fingerprints: Sequence[str] = (), run_id: str = ""
) -> str | None:
    """Return the key of one execution of a step, or None where an input has no canonical form and none can be made.

    Args:
        step: the step; its path, node name, version and module are part of the key.
        path: its name in this run, loop positions included.
        inputs: the values of its ports, settings included.
        fingerprints: of the resources that it uses, for keys that outlive a run.
        run_id: of the flow run, for keys that hold within one run only.
    """
    node = step.node
    head = [path, node.reference, node.function.__module__, node.function.__qualname__, run_id, *fingerprints]
    try:
        # Key by key, so that a port's name always parts its value from the next one's.
        body = b"".join(to_json([name, inputs[name]], serialize_as_any=True) for name in sorted(inputs))
    except (PydanticSerializationError, ValueError, TypeError, RecursionError):
        return None
    return f"ragbraid-{sha256(to_json(head) + body).hexdigest()}"
