import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from enrich_parts import documents, entity, texts, view
from graph_parts import open_kb
from index_parts import HashEmbedder, WordSparse

from ragbraid.nodes import load_lines
from ragbraid.nodes.chunk import chunk_recursively
from ragbraid.nodes.index import upsert
from ragbraid.nodes.load import load_jsonl, load_triples
from ragbraid.nodes.store_client import MEMORY, open_local
from ragbraid.registry.context import StepContext, step_context
from ragbraid.registry.contracts import ChunkSet, IndexReport
from ragbraid.registry.errors import RunError
from ragbraid.registry.graph_parts import ChunkGraph, Mention, Triple


def write(path: Path, *lines: Any) -> str:
    texts = (line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in lines)
    path.write_text("\n".join(texts), encoding="utf-8")
    return str(path)


def load(chunks: ChunkSet, path: str, **settings: Any) -> tuple[ChunkSet, StepContext]:
    with step_context(StepContext()) as step:
        return load_triples(chunks, path=path, **settings), step


def spo(s: str, p: str, o: str, passage: str | None = "a", **more: Any) -> dict[str, Any]:
    return {"s": s, "p": p, "o": o, "passage_id": passage, **more}


def test_triples_join_the_passages_of_load_jsonl_by_the_id_of_their_line(tmp_path: Path) -> None:
    passages = write(tmp_path / "p.jsonl", {"id": "x-1", "text": "Ada lived."}, {"id": "x-2", "text": "Rome fell."})
    chunks = chunk_recursively(load_jsonl(path=passages))
    linked, step = load(chunks, write(tmp_path / "kg.jsonl", spo("Ada", "lived in", "Rome", "x-1")))
    assert [chunk.graph for chunk in linked.chunks] == [
        ChunkGraph(triples=(Triple(subject="Ada", predicate="lived in", object="Rome"),)), None,
    ]  # fmt: skip
    assert (linked.sources, linked.scope, linked.complete) == (chunks.sources, chunks.scope, chunks.complete)
    assert (step.notes, step.status) == (["1 facts were added to 1 chunks"], None)


@pytest.mark.parametrize("field", ["chunk_id", "passage_id", "document_id", "source"])
def test_every_name_of_a_passage_is_understood(tmp_path: Path, field: str) -> None:
    for name in ("a:one", "a", "a.md", "17"):
        chunks = documents(a="one")
        chunk = chunks.chunks[0].model_copy(update={"metadata": {"row": 17}})
        given = chunks.model_copy(update={"chunks": (chunk,)})
        line = {"subject": "Ada", "predicate": "saw", "object": "Bob", field: name}
        linked, _ = load(given, write(tmp_path / "kg.jsonl", line), metadata_field="row")
        assert texts(view(linked).facts.values()) == ["Ada saw Bob"]


def test_of_several_chunks_a_triple_goes_to_the_one_that_names_it(tmp_path: Path) -> None:
    chunks = documents(a=("Nothing here.", "Ada and  ROME.", "Ada only."))
    lines = [spo("Ada", "saw", "Rome"), spo("Carl", "saw", "Dora"), spo("Eve", "saw", "ada")]
    linked, _ = load(chunks, write(tmp_path / "kg.jsonl", *lines))
    assert [texts(view(ChunkSet(chunks=(chunk,))).facts.values()) for chunk in linked.chunks] == [
        ["Carl saw Dora"], ["Ada saw Rome", "Eve saw ada"], [],
    ]  # fmt: skip


def test_types_weights_and_descriptions_come_along(tmp_path: Path) -> None:
    full = spo("Ada", "saw", "Rome", subject_type="person", weight=2.5, description=" In  1840. ", keywords="a, b")
    linked, _ = load(documents(a="one"), write(tmp_path / "kg.jsonl", full))
    assert linked.chunks[0].graph == ChunkGraph(
        mentions=(Mention(name="Ada", type="Person"),),
        triples=(
            Triple(
                subject="Ada", predicate="saw", object="Rome", weight=2.5, description="In 1840.", keywords=("a", "b")
            ),
        ),
    )  # fmt: skip


def test_records_of_openie_give_entities_and_triples(tmp_path: Path) -> None:
    record = {
        "passage_id": "a",
        "entities": ["Ada", {"name": "Rome", "type": "City"}, "?", None],
        "triples": [["Ada", "saw", "Rome"], ["Ada", "saw"], {"s": "Ada", "p": "met", "o": "Bob"}, 7],
    }
    linked, step = load(documents(a="one"), write(tmp_path / "kg.jsonl", record))
    graph = view(linked)
    assert [(each.name, each.type) for each in graph.entities.values()] == [
        ("Ada", "Other"), ("Bob", "Other"), ("Rome", "City"),
    ]  # fmt: skip
    assert texts(graph.facts.values()) == ["Ada met Bob", "Ada saw Rome"]
    assert step.notes[0].startswith(f"4 triples or entities of `{tmp_path / 'kg.jsonl'}` were left out: kg.jsonl:1: ")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("kg.csv", 'source,Subject,predicate,object\na,"Ada, Countess",saw,Rome\n'),
        ("kg.tsv", "head\trelation\ttail\tpassage_id\nAda, Countess\tsaw\tRome\ta\n"),
        ("kg.tsv", "Ada, Countess\tsaw\tRome\ta\n\n"),
        ("kg.csv", '\ufeff"Ada, Countess",saw,Rome,a\r\n'),
    ],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_tables_are_read_with_and_without_a_header_plain_and_compressed(
    tmp_path: Path, name: str, content: str, compressed: bool
) -> None:
    path = tmp_path / (f"{name}.gz" if compressed else name)
    path.write_bytes(gzip.compress(content.encode()) if compressed else content.encode())
    linked, _ = load(documents(a="one"), str(path))
    assert texts(view(linked).facts.values()) == ["Ada, Countess saw Rome"]


def test_columns_can_be_named_in_the_flow(tmp_path: Path) -> None:
    path = write(tmp_path / "kg.txt", "Rome\tAda\tsaw\tx\ta")
    columns = ["object", "subject", "predicate", "note", "passage_id"]
    linked, _ = load(documents(a="one"), path, format="tsv", columns=columns)
    assert texts(view(linked).facts.values()) == ["Ada saw Rome"]
    with pytest.raises(RunError, match="names no columns `subject` and `object`, and has 5"):
        load(documents(a="one"), path, format="tsv")


def test_triples_without_a_passage_become_chunks_of_their_subjects(tmp_path: Path) -> None:
    lines = [
        spo("Ada", "lived_in", "Rome", None, object_type="City"),
        spo("Bob", "", "Rome", "", description="He was there."),
        spo("ada", "saw", "Bob", None),
        spo("Ada", "lived_in", "Rome", None),
    ]
    path = write(tmp_path / "kg.jsonl", *lines)
    made, step = load(ChunkSet(), path)
    assert [(c.title, c.source, c.index, c.text) for c in made.chunks] == [
        ("Ada", "kg.jsonl/Ada", 0, "Ada lived in Rome.\nada saw Bob."),
        ("Bob", "kg.jsonl/Bob", 0, "Bob – Rome: He was there."),
    ]
    graph = view(made)
    assert texts(graph.facts.values()) == ["Ada lived_in Rome", "Bob – Rome: He was there.", "ada saw Bob"]
    assert (entity(graph, "Rome").type, len(entity(graph, "Rome").chunk_ids)) == ("City", 2)
    assert [record.source for record in made.sources] == ["kg.jsonl/Ada", "kg.jsonl/Bob"]
    assert (made.scope, made.complete) == (path, True)
    assert step.notes[-1] == "4 facts without a passage became 2 chunks of their own"
    assert load(ChunkSet(), path)[0] == made


def test_a_subject_with_many_facts_is_divided_and_triples_without_a_passage_can_be_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "kg.jsonl", *(spo("Ada", "saw", f"Thing {n}", None) for n in range(1000)))
    made, _ = load(ChunkSet(), path, facts_per_chunk=400)
    assert [len(chunk.graph.triples) for chunk in made.chunks if chunk.graph] == [400, 400, 200]
    assert [(chunk.index, chunk.source) for chunk in made.chunks] == [(n, "kg.jsonl/Ada") for n in range(3)]
    left, step = load(documents(a="one"), path, without_passage="leave_out")
    assert (left.chunks, left.sources) == (documents(a="one").chunks, documents(a="one").sources)
    assert step.notes[-1] == "1000 facts without a passage were left out"


def test_triples_of_missing_passages_are_counted_with_samples(tmp_path: Path) -> None:
    lines = [spo("Ada", "saw", "Rome"), *(spo("Ada", "saw", f"T{n}", f"gone-{n % 5}") for n in range(10))]
    path = write(tmp_path / "kg.jsonl", *lines)
    linked, step = load(documents(a="one"), path)
    assert texts(view(linked).facts.values()) == ["Ada saw Rome"]
    assert step.status == "degraded"
    assert step.notes[0] == (
        f"10 triples of `{path}` are about 5 passages that are not among the chunks, and were left out: "
        "`gone-0`, `gone-1`, `gone-2`"
    )
    with pytest.raises(RunError, match=r"it names `a`, `gone-0`, `gone-1`, the chunks come from `b\.md`"):
        load(documents(b="one"), path)


def test_lines_that_cannot_be_read_are_counted_and_the_set_claims_no_completeness(tmp_path: Path) -> None:
    lines = ["{", "[1]", spo("Ada", "saw", "Rome"), spo("Ada", "saw", "!"), spo("A", "is", "B", weight=-1)]
    linked, step = load(documents(a="one"), write(tmp_path / "kg.jsonl", *lines))
    assert texts(view(linked).facts.values()) == ["Ada saw Rome"]
    assert not linked.complete
    assert step.status == "degraded"
    assert step.notes[0].startswith("2 lines of `")
    assert step.notes[1].endswith(
        "were left out: kg.jsonl:4: The subject or the object is missing or no name. "
        "kg.jsonl:5: The weight is no number above 0."
    )


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("kg.csv.gz", ["subject,predicate,object,source", "Ada,saw,{long},a", "Bob,saw,Rome,a", "!,saw,Rome,a"]),
        ("kg.jsonl.gz", ["", spo("Ada", "saw", "{long}"), spo("Bob", "saw", "Rome"), spo("!", "saw", "Rome")]),
    ],
)
def test_a_line_without_an_end_is_left_out_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, lines: list[Any]
) -> None:
    """A small compressed file can hold a line that fills the memory."""
    monkeypatch.setattr(load_lines, "_MAX_LINE_BYTES", 100)
    text = Path(write(tmp_path / "plain", *lines)).read_text().replace("{long}", "x" * 500)
    (tmp_path / name).write_bytes(gzip.compress(text.encode(), mtime=0))
    linked, step = load(documents(a="one"), str(tmp_path / name))
    assert texts(view(linked).facts.values()) == ["Bob saw Rome"]
    assert not linked.complete
    assert step.notes[0].endswith(f"{name}:2: The line is longer than 100 bytes.")
    assert f"{name}:4: " in step.notes[1]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "holds no triple"),
        (b'{"s": "Ada"}\n', "holds no triple. kg.jsonl:1: The subject or the object is missing"),
        (b"subject,object\n", "holds no triple. kg.jsonl:1: The line is not valid JSON"),
        (gzip.compress(b'{"s": "A", "o": "B"}\n' * 9, mtime=0)[:-9], "is damaged or not UTF-8"),
    ],
)
def test_a_file_without_triples_is_an_error(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "kg.jsonl"
    path.write_bytes(content)
    with pytest.raises(RunError) as caught:
        load(documents(a="one"), str(path))
    assert reason in str(caught.value)
    assert caught.value.kind == "input"


def test_a_missing_file_and_one_in_another_encoding_are_errors(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="does not exist"):
        load(documents(a="one"), str(tmp_path / "none.csv"))
    (tmp_path / "kg.csv").write_bytes("s,p,o\nAda,sah,Köln\n".encode("latin-1"))
    with pytest.raises(RunError, match="is damaged or not UTF-8"):
        load(documents(a="one"), str(tmp_path / "kg.csv"))


def test_other_triples_for_the_same_passages_change_the_graph_and_embed_no_passage_anew(tmp_path: Path) -> None:
    kb = open_kb(open_local(MEMORY, "kb"))
    chunks = documents(a="Ada one", b="two")

    def run(*lines: Any) -> IndexReport:
        linked = load_triples(chunks, path=write(tmp_path / "kg.jsonl", *lines))
        return upsert(linked, kb=kb, embedder=HashEmbedder(), sparse=WordSparse(), cleanup="scoped_full")

    try:
        run(spo("Ada", "saw", "Rome"), spo("Bob", "saw", "Rome", None))
        assert texts(kb.graph().facts.values()) == ["Ada saw Rome", "Bob saw Rome"]
        assert run(spo("Ada", "saw", "Rome"), spo("Bob", "saw", "Rome", None)).unchanged == 3
        run(spo("Ada", "left", "Rome"))
        assert texts(kb.graph().facts.values()) == ["Ada left Rome"]
        assert {record.source for record in kb.documents()} == {"a.md", "b.md"}
        assert kb.verify() == []
    finally:
        kb.close()
