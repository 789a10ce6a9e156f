from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from golden_parts import flow_text
from hypothesis import given, settings
from hypothesis import strategies as st

from ragbraid.dsl.compile import Checked, check_file, check_text, load_plan
from ragbraid.dsl.draw import draw_text
from ragbraid.dsl.draw_svg import draw_svg
from ragbraid.dsl.explain import explain_plan
from ragbraid.dsl.plan import Body, Computed, Converted, Literally, Mapped, Plan, Sequenced, SlotRef, Step, Value
from ragbraid.registry.catalogue import Catalogue
from ragbraid.registry.contracts import Query, Ranking
from ragbraid.registry.errors import FlowError

Compile = Callable[..., Plan]

THREE_ROUTES = """
answer: generate.answer
best: {use: rerank.cross, top_k: 3}
fused: {use: fuse.rrf, k: 10}
rc: retrieve.dense
sp: {use: retrieve.sparse, top_k: 7}
"""


def step_of(plan: Plan, name: str) -> Step:
    return next(step for step in plan.body.steps if step.name == name)


def value_of(plan: Plan, step: str, port: str) -> Value:
    return next(binding.value for binding in step_of(plan, step).bindings if binding.port == port)


def test_slots_are_inputs_then_nodes_in_the_order_of_the_file(compile_flow: Compile) -> None:
    plan = compile_flow(THREE_ROUTES, flow="rc, sp -> fused -> best -> answer", inputs="question: str\nunused: int = 1")
    assert plan.body.inputs == ("question", "unused")
    slots = {step.name: step.slot for step in plan.body.steps}
    assert slots == {"answer": 2, "best": 3, "fused": 4, "rc": 5, "sp": 6}
    assert plan.body.size == 7


def test_steps_run_after_what_they_need_and_ties_keep_the_order_of_the_file(compile_flow: Compile) -> None:
    plan = compile_flow(THREE_ROUTES, flow="rc, sp -> fused -> best -> answer")
    assert [step.name for step in plan.body.steps] == ["rc", "sp", "fused", "best", "answer"]


def test_needs_are_the_slots_of_ports_and_conditions(compile_flow: Compile) -> None:
    plan = compile_flow(
        """
rc: retrieve.dense
sp: {use: retrieve.sparse, when: "${ rc | length < 3 }", on_error: skip}
fused: {use: fuse.rrf, ensure: "${ out | length >= words }"}
answer: generate.answer
""",
        flow="rc, sp -> fused -> answer",
        inputs="question: str\nwords: int = 2",
    )
    assert step_of(plan, "rc").needs == {0}
    assert step_of(plan, "sp").needs == {0, 2}
    assert step_of(plan, "fused").needs == {1, 2, 3}
    assert step_of(plan, "answer").needs == {0, 4}


def test_a_fan_in_keeps_the_order_written_whatever_the_order_of_the_nodes(compile_flow: Compile) -> None:
    plan = compile_flow(THREE_ROUTES, flow="[sp -> fused, rc -> fused -> best -> answer]")
    lists = value_of(plan, "fused", "lists")
    assert lists == Mapped((("sp", SlotRef(0, 5, (), "sp")), ("rc", SlotRef(0, 4, (), "rc"))))


def test_a_field_sent_into_a_fan_in_beside_its_node_keeps_a_key_of_its_own(compile_flow: Compile) -> None:
    plan = compile_flow("a: retrieve.dense\nb: retrieve.sparse\nm: fuse.rrf", flow="a, b -> m", outputs="$m")
    lists = value_of(plan, "m", "lists")
    assert isinstance(lists, Mapped)
    assert [key for key, _ in lists.items] == ["a", "b"]


def test_a_literal_is_converted_by_its_port(compile_flow: Compile) -> None:
    plan = compile_flow(
        """
rc: {use: retrieve.dense, query: hello}
sp: {use: retrieve.sparse, query: {text: hello, role: sub}}
m: {use: fuse.rrf, weights: {rc: 1, sp: 2}}
""",
        flow="rc, sp -> m",
        outputs="$m",
        inputs="",
    )
    assert value_of(plan, "rc", "query") == Literally(Query(text="hello"))
    assert value_of(plan, "sp", "query") == Literally(Query(text="hello", role="sub"))
    weights = value_of(plan, "m", "weights")
    assert isinstance(weights, Literally)
    assert weights.value == {"rc": 1.0, "sp": 2.0}
    assert all(isinstance(weight, float) for weight in weights.value.values())


def test_two_dollars_in_a_literal_are_one(compile_flow: Compile) -> None:
    plan = compile_flow("r: {use: text.rewrite, sentence: for $$5}", outputs="$r", inputs="")
    assert value_of(plan, "r", "sentence") == Literally("for $5")


def test_a_connection_carries_at_most_one_conversion(compile_flow: Compile) -> None:
    plan = compile_flow("rc: retrieve.dense\nanswer: {use: generate.answer, hits: $rc}")
    query = value_of(plan, "rc", "query")
    assert isinstance(query, Converted)
    assert query.conversion.name == "text_to_query"
    assert query.value == SlotRef(0, 0, (), "question")
    assert isinstance(value_of(plan, "answer", "hits"), SlotRef)


def test_a_list_with_references_is_a_sequence_and_a_mapping_is_mapped(compile_flow: Compile) -> None:
    plan = compile_flow(
        "a: retrieve.dense\nm: {use: fuse.rrf, lists: $a, weights: {a: $w}}",
        outputs='{all: [$a, $m], named: {x: $a}, first: "$m[0].text"}',
        inputs="question: str\nw: float = 0.5",
    )
    outputs = dict(plan.outputs)
    assert outputs["all"] == Sequenced((SlotRef(0, 2, (), "a"), SlotRef(0, 3, (), "m")))
    assert outputs["named"] == Mapped((("x", SlotRef(0, 2, (), "a")),))
    assert outputs["first"] == SlotRef(0, 3, (0, "text"), "m[0].text")
    assert value_of(plan, "m", "weights") == Mapped((("a", SlotRef(0, 1, (), "w")),))


def test_an_expression_names_what_it_reads_and_computes_it(compile_flow: Compile) -> None:
    plan = compile_flow('rc: {use: retrieve.dense, query: "${ question | upper }"}', outputs="$rc")
    query = value_of(plan, "rc", "query")
    assert isinstance(query, Converted)
    assert isinstance(query.value, Computed)
    assert query.value.names == (("question", SlotRef(0, 0, (), "question")),)
    assert query.value.evaluate(question="why") == "WHY"
    assert pickle.loads(pickle.dumps(query.value.evaluate))(question="why") == "WHY"


def test_outputs_have_their_types_and_a_single_one_has_no_name(compile_flow: Compile) -> None:
    single = compile_flow("rc: retrieve.dense", outputs="$rc")
    assert single.single_output
    assert single.output_types == {"": Ranking}
    several = compile_flow("rc: retrieve.dense", outputs='{hits: $rc, many: "${ rc | length > 3 }"}')
    assert not several.single_output
    assert several.output_types == {"hits": Ranking, "many": bool}


def test_a_file_path_is_relative_to_the_flow_file(compile_flow: Compile) -> None:
    nodes = (
        "a: {use: load.files, path: ./docs}\nb: {use: load.files, path: ../other}\nc: {use: load.files, path: /data}"
    )
    outputs = "{a: $a, b: $b, c: $c}"
    plan = compile_flow(nodes, outputs=outputs, inputs="", file="/work/flows/demo.yaml")
    paths = [Path(value_of(plan, name, "path").value).resolve() for name in "abc"]  # type: ignore[union-attr]
    assert paths == [Path("/work/flows/docs"), Path("/work/other"), Path("/data")]


def test_a_path_among_the_inputs_has_a_default_relative_to_the_flow_file(compile_flow: Compile) -> None:
    plan = compile_flow(
        "a: {use: load.files, path: $folder}", outputs="$a", inputs="folder: path = ./docs", file="/work/demo.yaml"
    )
    assert plan.inputs[0].default == "/work/docs"


def test_a_resource_path_is_relative_to_the_flow_file(compile_flow: Compile) -> None:
    rest = "resources:\n  kb: {use: qdrant.embedded, path: ./kb}"
    plan = compile_flow("rc: retrieve.dense", outputs="$rc", rest=rest, file="/work/demo.yaml")
    assert plan.resources["kb"].settings == {"path": "/work/kb"}
    assert plan.roles == {"kb": "kb", "embedder": "embedder"}


def test_a_secret_stays_a_reference(compile_flow: Compile) -> None:
    rest = 'resources:\n  llm: {use: openai.chat, model: small, api_key: "${env.KEY}"}'
    plan = compile_flow("rc: retrieve.dense\nanswer: generate.answer", flow="rc -> answer", rest=rest)
    assert plan.resources["llm"].settings["api_key"] == "${env.KEY}"


def test_a_prompt_file_is_read_into_the_plan(compile_flow: Compile, tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text("Answer {{ question }}.\n", encoding="utf-8")
    nodes = "rc: retrieve.dense\nanswer: {use: generate.answer, prompt: ./mine.jinja}"
    plan = compile_flow(nodes, flow="rc -> answer", file=str(tmp_path / "demo.yaml"))
    assert value_of(plan, "answer", "prompt") == Literally("Answer {{ question }}.\n")


def test_limits_and_deploy_are_data(compile_flow: Compile) -> None:
    rest = (
        "limits: {seconds: 2m, llm_calls: 4, tokens: 1000}\n"
        'deploy: {schedule: {cron: "0 3 * * *", timezone: Europe/Paris}, work_pool: big, concurrency: 2, visible: flow, tags: [a]}'
    )
    plan = compile_flow("rc: retrieve.dense", outputs="$rc", inputs="question: str = why", rest=rest)
    assert (plan.limits.seconds, plan.limits.llm_calls, plan.limits.tokens) == (120.0, 4, 1000)
    assert plan.deploy.schedule is not None
    assert (plan.deploy.schedule.cron, plan.deploy.schedule.timezone) == ("0 3 * * *", "Europe/Paris")
    assert (plan.deploy.work_pool, plan.deploy.concurrency, plan.deploy.visible) == ("big", 2, "flow")
    assert plan.deploy.tags == ("a",)


def test_the_schedule_of_a_flow_without_a_time_zone_is_in_utc(compile_flow: Compile) -> None:
    rest = 'deploy: {schedule: {cron: "0 3 * * *"}}'
    plan = compile_flow("rc: retrieve.dense", outputs="$rc", inputs="question: str = why", rest=rest)
    assert plan.deploy.schedule is not None
    assert plan.deploy.schedule.timezone == "UTC"


def test_loading_a_broken_file_raises_with_every_finding(tmp_path: Path, catalogue: Catalogue) -> None:
    path = tmp_path / "demo.yaml"
    path.write_text(
        flow_text("a: retrieve.dens\nb: {use: retrieve.sparse, top_k: 0}", outputs="[$a]"), encoding="utf-8"
    )
    with pytest.raises(FlowError) as caught:
        load_plan(path, catalogue)
    assert [finding.code for finding in caught.value.findings] == ["RB101", "RB201", "RB012"]
    text = path.read_text(encoding="utf-8")
    path.unlink()  # whoever prints the lines needs the file no more
    assert caught.value.texts == {str(path): text}


def test_a_file_that_is_not_there_is_a_finding(tmp_path: Path, catalogue: Catalogue) -> None:
    checked = check_file(tmp_path / "none.yaml", catalogue)
    assert [finding.code for finding in checked.findings] == ["RB005"]


# -- flows of any shape ------------------------------------------------------------------------------------------------


@st.composite
def flows(draw: st.DrawFn) -> str:
    """Return a valid flow: retrievers, then fusers and rerankers that read some of the ranking nodes before them."""
    names = [f"n{number}" for number in range(draw(st.integers(1, 12)))]
    nodes: dict[str, str] = {}
    arrows: list[str] = []
    used: set[str] = set()
    for position, name in enumerate(names):
        kind = draw(st.sampled_from(["retrieve.dense", "retrieve.sparse", "fuse.rrf", "rerank.cross"]))
        before = names[:position]
        if kind.startswith("retrieve") or not before:
            nodes[name] = f"{{use: retrieve.dense, top_k: {draw(st.integers(1, 1000))}}}"
        elif kind == "fuse.rrf":
            sources = draw(st.lists(st.sampled_from(before), min_size=1, max_size=4, unique=True))
            used.update(sources)
            nodes[name] = "fuse.rrf"
            arrows.append(f"{', '.join(sources)} -> {name}")
        else:
            source = draw(st.sampled_from(before))
            used.add(source)
            if draw(st.booleans()):
                nodes[name] = f"{{use: rerank.cross, hits: ${source}}}"
            else:
                nodes[name] = "rerank.cross"
                arrows.append(f"{source} -> {name}")
    order = draw(st.permutations(names))
    flow = f"[{', '.join(repr(arrow) for arrow in draw(st.permutations(arrows)))}]" if arrows else ""
    outputs = "{" + ", ".join(f"{name}: ${name}" for name in names if name not in used) + "}"
    return flow_text("\n".join(f"{name}: {nodes[name]}" for name in order), flow=flow, outputs=outputs)


def values_in(value: Value) -> Iterator[SlotRef]:
    if isinstance(value, SlotRef):
        yield value
    elif isinstance(value, Converted):
        yield from values_in(value.value)
    elif isinstance(value, Mapped):
        for _, item in value.items:
            yield from values_in(item)


def check_order(body: Body) -> None:
    done = set(range(len(body.inputs)))
    for step in body.steps:
        read = {ref.slot for binding in step.bindings for ref in values_in(binding.value)}
        assert read == step.needs
        assert step.needs <= done
        done.add(step.slot)
    assert done == set(range(body.size))


@given(flows())
@settings(max_examples=60, deadline=None)
def test_a_valid_flow_has_no_findings_and_an_order_in_which_it_can_run(catalogue: Catalogue, text: str) -> None:
    checked = check_text(text, "demo.yaml", catalogue)
    assert checked.findings == ()
    assert checked.plan is not None
    check_order(checked.plan.body)


def as_seen(checked: Checked) -> Any:
    return checked.findings, None if checked.plan is None else checked.plan.hash


@given(flows(), st.data())
@settings(max_examples=150, deadline=None)
def test_one_damaged_character_gives_findings_or_a_plan_and_always_the_same(
    catalogue: Catalogue, text: str, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(text)))
    put = data.draw(
        st.sampled_from([*"{}[]:,;-$&*#!|>'\"%@`\n\t 0aZ.=()", "\u3000", "\uff1a", "\u00e9", "\U0001f600", ""])
    )
    drop = data.draw(st.integers(0, 1))
    damaged = text[:at] + put + text[at + drop :]
    checked = check_text(damaged, "demo.yaml", catalogue)
    assert checked.plan is not None or checked.findings
    lines = damaged.split("\n")
    for finding in checked.findings:
        assert 1 <= finding.span.line <= len(lines) + 1
        assert finding.message
    assert as_seen(checked) == as_seen(check_text(damaged, "demo.yaml", catalogue))


BLOCKS = (Path(__file__).parents[2] / "golden" / "ok" / "blocks.yaml").read_text(encoding="utf-8")


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_lines_of_blocks_give_findings_or_a_plan_that_can_be_shown(
    catalogue: Catalogue, data: st.DataObject
) -> None:
    lines = BLOCKS.split("\n")
    for _ in range(data.draw(st.integers(1, 3))):
        at, other = (data.draw(st.integers(0, len(lines) - 1)) for _ in range(2))
        match data.draw(st.sampled_from(["drop", "repeat", "exchange", "indent"])):
            case "drop":
                del lines[at]
            case "repeat":
                lines.insert(at, lines[other])
            case "exchange":
                lines[at], lines[other] = lines[other], lines[at]
            case _:
                lines[at] = "  " + lines[at]
    checked = check_text("\n".join(lines), str(Path(__file__).parents[2] / "golden" / "ok" / "x.yaml"), catalogue)
    errors = [finding for finding in checked.findings if finding.severity == "error"]
    assert (checked.plan is None) == bool(errors)
    if checked.plan is not None:
        assert explain_plan(checked.plan)
        assert draw_text(checked.plan)
        assert draw_svg(checked.plan)
