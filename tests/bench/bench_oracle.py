"""What loops of searches find that one search does not, when every step is the right one: the machinery, not a model.

    python tests/bench/bench_oracle.py                                    # small sets, minutes
    python tests/bench/bench_oracle.py --data /path/to/sets --sets musique_200

Each set (see question_sets.py) is indexed once with the packaged embedder. `ircot.yaml` and `pike_rag.yaml` run as they
are over HTTP against an oracle (tests/parts/oracle.py) in place of a model: it names the gold next step, from MuSiQue's
decompositions, 2WikiMultiHopQA's evidence triples or HotpotQA's supporting titles, but uses an earlier answer only once
the passage that holds it is among the passages that the prompt shows. HotpotQA has nothing but titles: each is asked
for once the question or a gold passage that is shown names it, or, with `--give-titles`, at any time, which gives more
away than a decomposition does. The flows are compared with one hybrid search for the question, cut at the same number
of passages.

PIKE-RAG's atoms are the oracle's as well: every passage is tagged with the steps that it answers, in their very words,
so that its figures say that the loop loses nothing on the way, not that questions meet atoms. `--neutral-atoms` tags
passages with a question made from their title alone.

Evidence is cut as it stands. IRCoT keeps the order of arrival, so that its first four passages are always those of the
question, and recall@5 counts one passage of its thoughts at most; PIKE-RAG keeps at most five. `all` is everything that
the flow kept, against as many passages of the one search, question by question.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cached_embedder import DEFAULT_CACHE
from question_sets import Passage, read_corpus, read_questions, recall

from ragbraid.flows.api import Flow, load
from ragbraid.flows.resources import shared_pool
from ragbraid.flows.scripted_llm import ScriptedLLM

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests" / "parts"))

from gold_steps import gold_hops
from oracle import Oracle

NOTICE = (
    "An oracle stands in for the model: it names the gold next step and reads only what it is shown.\n"
    "These figures measure the flows, nodes and searches. They say nothing about any model."
)
SETS = ("musique_200", "2wiki_1000", "hotpot_200")
SMALL_SETS = REPOSITORY.parent / "shared" / "data" / "mini"
FLOWS = ("ircot", "pike_rag")
CUTS = (5, 10, 15)

PROJECT = """
nodes = ["{embedder}"]

[resources.embedder]
use = "bench.cached"
folder = "{cache}"

[resources.llm]
use = "openai.chat"
base_url = "{url}"
model = "oracle"
"""
INDEX = """
ragbraid: 1
name: index
inputs: {passages: path}
nodes:
  load:  {use: load.jsonl, path: $passages}
  chunk: chunk.whole
  tag:   {use: enrich.tag_atoms, max_questions: 100}
  index: index.upsert
flow: load -> chunk -> tag -> index
outputs: $index
"""
ONE_SEARCH = """
ragbraid: 1
name: one_search
inputs: {question: str}
nodes:
  found: {use: retrieve.hybrid, top_k: 15}
outputs: {evidence: $found}
"""


@dataclass(frozen=True)
class Run:
    """What a flow did with one question: the passages that it kept, and what that took."""

    found: tuple[str, ...]
    searches: int
    llm_calls: int
    stopped_by: str
    queries: tuple[str, ...]


def measure_set(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Index a set, run every flow on its questions, and return the figures of each with what it did per question."""
    passages = {each["id"]: each for each in read_corpus(folder)}
    questions = read_questions(folder)[: args.questions]
    hops = {each["question"]: gold_hops(each, passages, titles_given=args.give_titles) for each in questions}
    oracle = Oracle(passages, hops, tags_gold=not args.neutral_atoms)
    with ScriptedLLM([oracle]) as server, project(server.base_url, args.cache) as place:
        load(place / "index.yaml").run(passages=str(folder / "corpus.jsonl.gz"))
        flows = {"one_search": load(place / "one_search.yaml")}
        for name in FLOWS:
            flows[name] = load(REPOSITORY / "examples_flows" / f"{name}.yaml", project=place)
        runs: dict[str, list[Run]] = {name: [] for name in flows}
        for number, each in enumerate(questions, start=1):
            for name, flow in flows.items():
                runs[name].append(answer(flow, each["question"]))
            server.requests.clear()
            tell(f"{folder.name}: {number} of {len(questions)} questions")
    tell("")
    gold = [set(each["gold_passage_ids"]) for each in questions]
    figures = {name: summarise(done, runs["one_search"], gold) for name, done in runs.items()}
    return {"questions": len(questions), "flows": figures, "runs": details(questions, runs)}


@contextmanager
def project(url: str, cache: Path) -> Iterator[Path]:
    """Make a project in a temporary folder, with the flows that only this benchmark needs."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        embedder = Path(__file__).with_name("cached_embedder.py")
        text = PROJECT.format(embedder=embedder, cache=cache.resolve(), url=url)
        (place / "ragbraid.toml").write_text(text, "utf-8")
        (place / "index.yaml").write_text(INDEX, "utf-8")
        (place / "one_search.yaml").write_text(ONE_SEARCH, "utf-8")
        try:
            yield place
        finally:
            shared_pool().close()


def answer(flow: Flow, question: str) -> Run:
    """Run a flow on a question."""
    result = flow.run_traced(question=question)
    steps = [step for step in result.trace.steps if step.node.startswith("retrieve.") and step.attempts]
    return Run(
        found=tuple(str(hit.source) for hit in result.outputs["evidence"]),
        searches=len(steps),
        llm_calls=result.trace.usage.llm_calls,
        stopped_by=result.outputs.get("stopped_by", ""),
        queries=tuple(text for step in steps for text in searched(step.inputs)),
    )


def searched(inputs: Mapping[str, Any]) -> Sequence[str]:
    """Return the texts that a retrieval node searched for."""
    several = inputs.get("queries")
    return [inputs["query"].text] if several is None else list(several)


def summarise(runs: Sequence[Run], one_search: Sequence[Run], gold: Sequence[set[str]]) -> dict[str, Any]:
    """Return the means of a flow; `..._as_many` belong to one search cut at as many passages as the flow kept."""
    found = [run.found for run in runs]
    as_many = [base.found[: len(run.found)] for run, base in zip(runs, one_search, strict=True)]
    figures: dict[str, Any] = {}
    for cut in CUTS:
        figures |= rates(f"@{cut}", [each[:cut] for each in found], gold)
    figures |= rates("@all", found, gold) | rates("@all_as_many", as_many, gold)
    figures["passages"] = statistics.fmean(map(len, found))
    figures["searches"] = statistics.fmean(run.searches for run in runs)
    figures["llm_calls"] = statistics.fmean(run.llm_calls for run in runs)
    figures["stopped_by"] = dict(Counter(run.stopped_by for run in runs).most_common())
    return figures


def rates(suffix: str, found: Sequence[Sequence[str]], gold: Sequence[set[str]]) -> dict[str, float]:
    """Return mean recall, and the share of questions of which every gold passage was found."""
    recalls = [recall(each, wanted) for each, wanted in zip(found, gold, strict=True)]
    full = [each == 1.0 for each in recalls]
    return {f"recall{suffix}": statistics.fmean(recalls), f"full{suffix}": statistics.fmean(full)}


def details(questions: Sequence[Passage], runs: Mapping[str, Sequence[Run]]) -> list[dict[str, Any]]:
    """Return for every question what each flow searched for and found, to look at single ones."""
    return [
        {
            "id": each["id"],
            "question": each["question"],
            "gold": each["gold_passage_ids"],
            **{name: vars(done[number]) for name, done in runs.items()},
        }
        for number, each in enumerate(questions)
    ]


def show(name: str, result: Mapping[str, Any]) -> None:
    """Print the table of a set, and the gain of each flow in points."""
    flows = result["flows"]
    columns = [f"{kind}@{cut}" for kind in ("recall", "full") for cut in CUTS]
    print(f"\n{name}, {result['questions']} questions")
    print(f"{'':12}" + "".join(f"{column:>11}" for column in columns) + f"{'passages':>11}{'searches':>10}{'calls':>7}")
    for flow, figures in flows.items():
        cells = "".join(f"{figures[column]:11.3f}" for column in columns)
        print(f"{flow:12}{cells}{figures['passages']:11.1f}{figures['searches']:10.1f}{figures['llm_calls']:7.1f}")
    for flow in FLOWS:
        mine, base = flows[flow], flows["one_search"]
        gains = "".join(f"{100 * (mine[column] - base[column]):+11.1f}" for column in columns)
        print(f"+ {flow:10}{gains}   points")
    for flow in FLOWS:
        mine = flows[flow]
        gains = [100 * (mine[f"{kind}@all"] - mine[f"{kind}@all_as_many"]) for kind in ("recall", "full")]
        print(
            f"{flow}, all it kept: recall {mine['recall@all']:.3f} ({gains[0]:+.1f} points against as many of one search), "
            f"full {mine['full@all']:.3f} ({gains[1]:+.1f}); ended by "
            + ", ".join(f"{reason} {count}" for reason, count in mine["stopped_by"].items()),
            flush=True,
        )


def tell(text: str) -> None:
    """Show how far it is, on one line, where somebody watches."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def main() -> None:
    """Run what the command line asks for; the exit status is 1 when a flow finds less than one search."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SMALL_SETS, help="folder of the sets")
    parser.add_argument("--sets", default=",".join(SETS), help="names of sets, separated by commas")
    parser.add_argument("--questions", type=int, help="only the first so many of each set")
    parser.add_argument("--neutral-atoms", action="store_true", help="tag passages with their titles alone")
    parser.add_argument("--give-titles", action="store_true", help="HotpotQA: ask for titles that nothing names yet")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="where embeddings are kept")
    parser.add_argument("--json", type=Path, help="write the figures and every search to this file")
    args = parser.parse_args()
    print(NOTICE)
    report: dict[str, Any] = {"notice": NOTICE, "sets": {}}
    good = True
    for name in args.sets.split(","):
        result = measure_set(args.data / name, args)
        show(name, result)
        report["sets"][name] = result
        good = good and all(result["flows"][f]["recall@all"] > result["flows"][f]["recall@all_as_many"] for f in FLOWS)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1, ensure_ascii=False), "utf-8")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
