"""A reader is told nothing of documents that the reader may not see, and nobody of keys.

Every node that takes `where` and every flow that does is tried.
"""

from __future__ import annotations

import contextlib
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cli_parts import EXAMPLES
from graph_method_parts import lines_shown
from hidden_parts import GROUPS, GUESSES, KEY, KEY_VARIABLE, QUESTION, READERS, asked, found_in, indexed, told, words_of
from method_parts import cited, is_asked, says

from ragbraid.flows.api import Flow, load
from ragbraid.flows.runner import RunResult
from ragbraid.flows.scripted_llm import ScriptedLLM
from ragbraid.flows.scripted_rules import ChatRequest, Reply, Responder
from ragbraid.flows.trace import Trace
from ragbraid.registry.catalogue import installed_catalogue
from ragbraid.registry.errors import RagbraidError

FEEDS = {
    "topics": f"{{use: graph.link, mentions: [Acme, Borealis, {', '.join(GUESSES)}], min_score: null, top_k: 100}}",
    "facts": "{use: graph.facts, top_k: 1000}",
    "things": "{use: graph.entities, top_k: 1000}",
    "reports": "{use: report.search, top_k: 1000}",
    "dense": "{use: retrieve.dense, top_k: 1000}",
    "around": "{use: graph.explore, seeds: $topics, depth: 6, limit: 10000}",
    "seeds": "{use: graph.seed, facts: $facts, passages: $dense, max_phrases: 1000}",
}
"""What nodes start from, as much of it as there is."""
HOPS = "[" + ", ".join(f"{guess} made" for guess in GUESSES) + ", owns]"
NODES: Mapping[str, Sequence[str]] = {
    "graph.endpoints": ["facts: $facts"],
    "graph.entities": ["by: profile, top_k: 1000", "by: name, top_k: 1000", "keywords: [guessa, guessd], min_score: 1"],
    "graph.exact": [f"subject: $topics, predicates: {HOPS}", f"object: $topics, predicates: {HOPS}"],
    "graph.explore": ["seeds: $topics, depth: 6", "seeds: $topics, known: $around"],
    "graph.facts": ["top_k: 1000", "scale_over: 10", "min_score: 1"],
    "graph.follow": ["seeds: $topics, relations: [owns, ~owns, guessd made], either_way: true, may_return: true"],
    "graph.fuzzy": ["subject: $topics, min_score: null, top_k: 1000", "subject: $topics, min_score: 1"],
    "graph.link": [
        f"mentions: [Acme, {', '.join(GUESSES)}, gessd]",
        "mentions: [canary rock], min_score: 0, top_k: 100",
        "mentions: [canary rock], min_score: 1",
        "mentions: [guessd], types: [Firm]",
        f"mentions: [any firm], question: $question, types: [{', '.join(f'canary{each} firm' for each in GROUPS)}], min_score: 0",
    ],
    "graph.local_facts": ["entities: $things, per_entity: 1000"],
    "graph.plan_paths": ["max_relations: 500", "seeds: $topics, max_relations: 500"],
    "graph.ppr": ["seeds: $seeds", "seeds: $seeds, passages: false", "seeds: $seeds, damping: 0.99, synonyms: true"],
    "graph.relations_of": ["entities: $things"],
    "graph.seed": ["facts: $facts, passages: $dense, max_phrases: 1000"],
    "graph.spot": ["max_mentions: 50"],
    "graph.spot_relations": ["max_relations: 100"],
    "graph.text_units": ["entities: $things, top_k: 1000"],
    "graph.to_chunks": [
        *(f"objects: $things, pick: {pick}, top_k: 1000" for pick in ("vector", "weight", "order", "max", "sum")),
        "objects: $facts, top_k: 1000",
        "objects: $reports, top_k: 1000, pick: order",
        "subgraph: $around, top_k: 1000",
    ],
    "graph.walk_paths": ["seeds: $topics, paths: [[guessa made], [guessd made, ~guessd made], [owns, ~owns]]"],
    "plan.schema": ["top_k: 200"],
    "report.of_entities": ["entities: $things, top_k: 100, level: 10"],
    "report.rate": ["max_level: 10"],
    "report.search": ["top_k: 1000", "min_score: 1"],
    "report.select": ["level: 0", "level: 10"],
    "retrieve.atoms": ["min_score: null, top_k: 100, top_k_each: 100"],
    "retrieve.dense": ["top_k: 1000"],
    "retrieve.hybrid": ["top_k: 100"],
    "retrieve.sparse": ["top_k: 1000"],
}
"""Settings to try, for each node that takes `where`."""
CASES = [(name, settings) for name, tried in NODES.items() for settings in tried]
BY_GUESS = {"graph.spot", "graph.spot_relations"}
"""What these give stands in the question; whether they give it tells whether the reader may know that it exists."""


@dataclass(frozen=True)
class Here:
    """A project, its model, and the ids of the chunks by document."""

    folder: Path
    server: ScriptedLLM
    chunk_ids: Mapping[str, str]

    def hidden_from(self, reader: str, name: str = "") -> list[str]:
        """What a reader must not be told: words and chunk ids of the documents that the reader may not see."""
        hidden = [each for each in GROUPS if each not in READERS[reader][1]]
        return words_of(hidden, stem_of(name)) + [self.chunk_ids[each] for each in hidden]


@contextlib.contextmanager
def keyed() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KEY_VARIABLE, KEY)
        yield


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    folder = tmp_path_factory.mktemp("readers")
    others = says("plan_paths", {"paths": [["guessd made"], ["owns", "~owns"]]}), says("rate_report", {"rating": 5})
    with keyed(), indexed(folder, *MODEL, *others) as server:
        found = run(folder, flow_of("retrieve.dense", "top_k: 100", restrict_feeds=True), None).outputs["found"]
        yield Here(folder, server, {hit.source[len("canary")]: hit.id for hit in found})


def stem_of(name: str) -> str:
    return "guess" if name in BY_GUESS else "canary"


def flow_of(name: str, settings: str, *, restrict_feeds: bool) -> str:
    """A flow of one node and what it starts from."""
    needed = [feed for feed in FEEDS if f"${feed}" in settings]
    needed += [feed for feed in FEEDS if any(f"${feed}" in FEEDS[each] for each in needed)]
    given = {feed: FEEDS[feed] for feed in FEEDS if feed in needed}
    if not restrict_feeds:
        given = {feed: text.removesuffix("}") + ", where: null}" for feed, text in given.items()}
    nodes = "\n".join(f"{key}: {text}" for key, text in {**given, "node": f"{{use: {name}, {settings}}}"}.items())
    return (
        "ragbraid: 1\nname: one_node\ninputs: {question: str, where: 'Where | none'}\n"
        f"nodes:\n{textwrap.indent(nodes, '  ')}\noutputs: {{found: $node}}\n"
    )


def run(folder: Path, text: str, where: Any) -> RunResult:
    (folder / "one_node.yaml").write_text(text)
    return load(folder / "one_node.yaml").run_traced({"question": QUESTION, "where": where})


def of_node(result: RunResult) -> str:
    step = result.trace.step("node")
    return repr((step.output, step.notes))


def test_every_node_that_takes_where_is_tried_here() -> None:
    taking = {each.name for each in installed_catalogue().nodes() if each.port("where") is not None}
    assert set(NODES) == taking


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_a_node_tells_a_reader_nothing_of_hidden_documents(here: Here, name: str, settings: str) -> None:
    for reader, (where, _) in READERS.items():
        here.server.requests.clear()
        result = run(here.folder, flow_of(name, settings, restrict_feeds=True), where)
        told_here = told(result) if name not in BY_GUESS else of_node(result)
        assert found_in(told_here, here.hidden_from(reader, name)) == set(), reader
        assert found_in(asked(here.server), here.hidden_from(reader)) == set(), reader


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_a_node_tells_nothing_of_hidden_documents_even_where_it_starts_from_them(
    here: Here, name: str, settings: str
) -> None:
    for reader, (where, _) in READERS.items():
        result = run(here.folder, flow_of(name, settings, restrict_feeds=False), where)
        assert found_in(of_node(result), here.hidden_from(reader, name)) == set(), reader


@pytest.mark.parametrize("name", NODES)
def test_without_conditions_a_node_tells_of_all_documents(here: Here, name: str) -> None:
    here.server.requests.clear()
    said = "".join(of_node(run(here.folder, flow_of(name, tried, restrict_feeds=True), None)) for tried in NODES[name])
    said += asked(here.server) if name == "graph.plan_paths" else ""
    assert found_in(said, words := words_of(GROUPS, stem_of(name))) == set(words)


# -- flows -------------------------------------------------------------------------------------------------------------


def chooses(prompt: str, how_many: int) -> Responder:
    """Choose the first of the numbered lines that a prompt shows."""

    def respond(chat: ChatRequest) -> Reply | None:
        if not is_asked(prompt, chat):
            return None
        numbers = [number for number, _ in lines_shown(chat)][:how_many]
        return Reply(text=json.dumps({"keep": numbers}))

    return respond


def partial(*follow_ups: str) -> dict[str, Any]:
    return {"answer": "It depends.", "score": 60, "statements": [1, 2, 3], "follow_ups": list(follow_ups)}


STEP = {
    "question": QUESTION,
    "op": "retrieve",
    "s": {"alias": "s1", "mention": "Acme"},
    "p": {"alias": "p1", "types": ["guessa made", "guessd made"]},
    "o": {"alias": "o1"},
}
STEPS = [STEP, {"question": "The answer", "op": "output", "inputs": ["o1"]}]
NUMBERED = [{"n": n, **step} for n, step in enumerate(STEPS, start=1)]
MODEL = (
    says("query_entities", {"mentions": ["Acme", "guessa", "guessd"]}),
    says("keywords", {"high": ["made by guessd", "wants"], "low": ["Acme", "guessd"]}),
    chooses("filter_facts", 5),
    chooses("pick_relations", 15),
    chooses("prune_relations", 3),
    chooses("prune_entities", 3),
    says("next_thought", {"thought": "Further.", "answer": None}),
    says("logical_form", {"steps": STEPS}),
    says("answer_step", {"answered": True, "answer": "Much.", "values": [], "passages_used": [1]}),
    says("judge_answer", {"acceptable": False, "missing": ["what guessd made"], "thinking": ""}),
    says("map_points", {"points": [{"text": "It depends.", "score": 50, "statements": [1, 2, 3]}]}),
    says("hyde_report", {"passage": "A report about what guessd made."}),
    says("primer", partial("What has guessd made?")),
    says("follow_lead", partial("What has guessf made?")),
    says("reduce_points", {"cannot_answer": False, "answer": "It depends [1] [2]."}),
    says("closed_book", {"cannot_answer": False, "answer": "It depends."}),
    says("answer", cited("It depends.", 1, 2, 3)),
)
"""A model that takes and cites whatever it is shown."""
FLOWS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "dbgpt_graph": [{"report_min_score": -1}],
    "graphrag_basic": [{}],
    "graphrag_context": [{}],
    "graphrag_drift": [{}],
    "graphrag_global": [{}, {"selection": "rated"}],
    "graphrag_local": [{}],
    "hipporag2": [{}],
    "kag": [{}, {"facts_suffice": False}],
    "kag_gate": [{}, {"min_fact_score": -1}],
    "kag_solve": [{"plan": {"steps": NUMBERED}}],
    "kag_step": [{"step": NUMBERED[0]}, {"step": NUMBERED[0], "facts_suffice": False}],
    "lightrag": [{"mode": mode, "min_score": -1} for mode in ("naive", "local", "global", "hybrid", "mix")],
    "rag_kag_fusion": [{}],
    "rog": [{}],
    "three_route": [{}],
    "tog": [{}],
}
"""Inputs to try, for each of the flows that take `where`."""
RUNS = [(name, inputs) for name, tried in FLOWS.items() for inputs in tried]


def asked_of(folder: Path, name: str, inputs: Mapping[str, Any]) -> tuple[Flow, Mapping[str, Any]]:
    """A flow and what it is given."""
    flow = load(folder / f"{name}.yaml")
    question = {"question": QUESTION} if any(port.name == "question" for port in flow.plan.inputs) else {}
    return flow, {**question, **inputs}


def ask_flow(folder: Path, name: str, inputs: Mapping[str, Any], where: Any) -> RunResult:
    flow, given = asked_of(folder, name, inputs)
    return flow.run_traced({**given, "where": where})


def test_every_flow_that_takes_where_is_tried_here(here: Here) -> None:
    flows = {path.stem: load(path) for path in EXAMPLES.glob("*.yaml")}
    assert set(FLOWS) == {
        name for name, flow in flows.items() if any(port.name == "where" for port in flow.plan.inputs)
    }


@pytest.mark.parametrize(("name", "inputs"), RUNS)
def test_a_flow_tells_a_reader_and_a_model_nothing_of_hidden_documents(
    here: Here, name: str, inputs: Mapping[str, Any]
) -> None:
    for reader, (where, _) in READERS.items():
        here.server.requests.clear()
        result = ask_flow(here.folder, name, inputs, where)
        assert found_in(told(result), here.hidden_from(reader)) == set(), reader
        assert found_in(asked(here.server), here.hidden_from(reader)) == set(), reader
    all_told = told(ask_flow(here.folder, name, inputs, None))
    assert len(found_in(all_told, words_of(GROUPS, "canary"))) > 3


# -- keys --------------------------------------------------------------------------------------------------------------


def repeats_its_key(chat: ChatRequest) -> Reply:
    return Reply(fault="bad_request", message=f"I refuse what bears {chat.headers['authorization']}.")


def test_a_key_reaches_the_services_and_neither_the_knowledge_base_nor_the_project_files(here: Here) -> None:
    here.server.requests.clear()
    ask_flow(here.folder, "lightrag", {}, None)
    assert {request.headers["authorization"] for request in here.server.requests} == {f"Bearer {KEY}"}
    files = [path for path in here.folder.rglob("*") if path.is_file()]
    assert any(path.is_relative_to(here.folder / ".ragbraid") for path in files)
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


@pytest.mark.parametrize(("name", "inputs"), RUNS)
def test_a_key_is_in_no_trace_of_a_flow_even_where_a_service_repeats_it(
    here: Here, name: str, inputs: Mapping[str, Any]
) -> None:
    trace = Trace()
    here.server.script.insert(0, repeats_its_key)
    flow, question = asked_of(here.folder, name, inputs)
    try:
        with contextlib.suppress(RagbraidError):
            flow.run_traced(question, trace=trace)
    finally:
        here.server.script.remove(repeats_its_key)
    written = f"{json.dumps(trace.to_dict())} {trace.error!r} {getattr(trace.error, 'hint', '')}"
    assert KEY not in written
    assert ("I refuse what bears" in written) == any(step.error for step in trace.steps)
