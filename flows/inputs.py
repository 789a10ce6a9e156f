"""Checking what a caller gives to a flow, before anything is opened: all mistakes at once, one sentence each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ragbraid.dsl.inputs import RESERVED_BY_PREFECT
from ragbraid.dsl.plan import InputSpec, Plan
from ragbraid.registry.errors import RunError, SettingsError
from ragbraid.registry.suggest import did_you_mean

_SHOWN = 60
"""How many characters of a refused value a message shows."""


class InputChecker:
    """The declared inputs of one flow with their validators, made once and used for every run."""

    def __init__(self, flow_name: str, specs: Sequence[InputSpec]) -> None:
        self._flow_name = flow_name
        self._specs = {spec.name: spec for spec in specs}
        self._adapters = {spec.name: TypeAdapter[Any](spec.type) for spec in specs}

    def check(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the flow's inputs, converted to their types, defaults filled in.

        Raises:
            RunError: kind `input`; one line for every input that is unknown, missing, of a wrong type or out of bounds.
        """
        mistakes = [self._unknown(name) for name in given if name not in self._specs]
        values: dict[str, Any] = {}
        for name, spec in self._specs.items():
            if name not in given:
                if spec.required:
                    mistakes.append(f"the input `{name}` is missing{_meaning(spec)}")
                else:
                    values[name] = spec.default
                continue
            try:
                values[name] = self._adapters[name].validate_python(given[name])
            except ValidationError as error:
                mistakes.append(f"the input `{name}` is {_shown(given[name])}: {_reasons(error)}")
        if mistakes:
            raise RunError("\n".join(mistakes), kind="input")
        return values

    def _unknown(self, name: str) -> str:
        hint = did_you_mean(name, self._specs)
        listed = ", ".join(f"`{known}`" for known in self._specs) or "none"
        return f"`{self._flow_name}` has no input `{name}`; {hint or f'it has {listed}'}"


def _meaning(spec: InputSpec) -> str:
    return f" ({spec.about})" if spec.about else ""


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _reasons(error: ValidationError) -> str:
    reasons = []
    for detail in error.errors(include_url=False, include_input=False, include_context=False):
        where = ".".join(str(part) for part in detail["loc"])
        reasons.append(f"{where}: {detail['msg']}" if where else detail["msg"])
    return "; ".join(reasons)


def refuse_reserved_inputs(plan: Plan) -> None:
    """Raise SettingsError where an input has a name that cannot be a parameter of a Prefect flow."""
    for spec in plan.inputs:
        if spec.name in RESERVED_BY_PREFECT or spec.name.startswith("_"):
            raise SettingsError(
                f"`{plan.name}` cannot become a Prefect flow: Prefect keeps the parameter name `{spec.name}` for itself",
                hint="give the input another name",
            )
