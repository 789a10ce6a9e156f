"""The `plan.*` nodes: questions as logical forms, solved step by step (KAG).

A flow writes a plan (`plan.logical_form`, or `plan.parse` for KAG's own notation), and then runs it in waves: a loop
over `plan.ready`, `plan.collect`, with a map over the steps of a wave, each made concrete by `plan.rewrite` and solved
by what its kind needs. `plan.output` puts the results together, `plan.replan` continues after an answer that will not
do.
"""

from __future__ import annotations

from ragbraid.nodes.plan_answer import answer_step, bind
from ragbraid.nodes.plan_deduce import deduce
from ragbraid.nodes.plan_math import math
from ragbraid.nodes.plan_rewrite import rewrite
from ragbraid.nodes.plan_text import parse
from ragbraid.nodes.plan_waves import collect, output, ready, slots
from ragbraid.nodes.plan_write import logical_form, replan, schema

__all__ = [
    "answer_step",
    "bind",
    "collect",
    "deduce",
    "logical_form",
    "math",
    "output",
    "parse",
    "ready",
    "replan",
    "rewrite",
    "schema",
    "slots",
]
