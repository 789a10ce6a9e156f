"""How logical forms look on a terminal: plans, what their variables are bound to, and what they came to."""

from __future__ import annotations

from typing import Any

from ragbraid.registry.logic import Binding, Bindings, LogicPlan, LogicStep, Slot, Solution


def logic_text(value: Any) -> str | None:
    """Return a plan, bindings or a solution in a few lines, without the passages behind them; None for anything else."""
    if isinstance(value, LogicPlan):
        return "\n".join([*map(_step_line, value.steps), *(f"note: {note}" for note in value.notes)])
    if isinstance(value, Bindings):
        names = dict.fromkeys(each.alias for result in value.results for each in result.bindings)
        found = (value.find(name) for name in names)
        return "\n".join(_binding_line(each) for each in found if each) or "nothing is bound"
    if isinstance(value, Solution):
        return "\n".join([value.text or "no value", *(f"  {line}" for line in value.lines), *_state(value)])
    return None


def _step_line(step: LogicStep) -> str:
    parts = (_slot_text(step.s), _slot_text(step.p, is_relation=True), _slot_text(step.o))
    what = " | ".join(part for part in parts if part) or ", ".join(step.inputs)
    made = " -> ".join(part for part in (what, step.out_alias) if part)
    waits = f"  (after {', '.join(map(str, step.depends_on))})" if step.depends_on else ""
    return f"  {step.n}. {step.op:<8} {step.question}  [{made}]{waits}"


def _slot_text(slot: Slot | None, *, is_relation: bool = False) -> str:
    if slot is None:
        return ""
    return slot.mention or (" / ".join(slot.types) if is_relation else "") or slot.alias


def _binding_line(binding: Binding) -> str:
    state = "" if binding.status == "ok" else f"  ({binding.status}: {binding.reason or 'no reason is known'})"
    return f"  {binding.alias} = {binding.text or 'nothing'}{state}"


def _state(solution: Solution) -> list[str]:
    return [] if solution.status == "ok" else [f"({solution.status}: {solution.reason or 'no reason is known'})"]
