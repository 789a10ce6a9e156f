from ragbraid.registry.contracts import Answer, Citation, Hit, Ranking
from ragbraid.registry.errors import Finding, FlowError, RunError, ServiceError, SourceSpan

EVIL = '<script>alert("x")</script>'


def test_an_answer_shows_its_citations_under_their_numbers() -> None:
    citations = (
        Citation(marker=1, chunk_id="c", source="pump.md", section_path=("Oil",), quote="every 12 days", verified=True),
        Citation(marker=3, chunk_id="d", quote="never"),
    )
    shown = Answer(text="Every 12 days [1].\n\nNever [3].", citations=citations)._repr_html_()
    assert shown == (
        "<p>Every 12 days [1].</p>\n<p>Never [3].</p>\n<ol>\n"
        '<li value="1">pump.md › Oil: “every 12 days”</li>\n'
        '<li value="3">d: “never” <em>(not found in these words)</em></li>\n</ol>'
    )


def test_a_refusal_says_that_it_is_one() -> None:
    shown = Answer(text="Nothing.", refused=True, refusal_reason="no_passages")._repr_html_()
    assert shown == "<p>Nothing.</p>\n<p><em>refused: no_passages</em></p>"


def test_markup_in_documents_and_answers_is_text() -> None:
    citation = Citation(marker=1, chunk_id=EVIL, source=EVIL, section_path=(EVIL,), quote=EVIL)
    hit = Hit(id=EVIL, text=EVIL, score=1, rank=1, score_kind="rank", source=EVIL)
    ranking = Ranking(hits=(hit,), route=EVIL, error=EVIL)
    for shown in (Answer(text=EVIL, citations=(citation,))._repr_html_(), ranking._repr_html_()):
        assert "<script" not in shown
        assert "&lt;script&gt;" in shown


def test_a_ranking_is_a_table_of_its_first_hits() -> None:
    hits = [Hit(id=f"c{n}", text="long " * 100, score=1 / n, rank=n, score_kind="rank") for n in range(1, 31)]
    shown = Ranking(hits=tuple(hits), route="dense")._repr_html_()
    assert shown.count("<tr>") == 21
    assert "<caption>dense: 30 hits, the first 20</caption>" in shown
    assert "<td>2</td><td>0.5</td><td>c2</td>" in shown
    assert "long long…" in shown


def test_an_error_is_its_sentence_and_what_to_do() -> None:
    error = ServiceError("The model is away.", hint="start it")
    assert error._render_traceback_() == ["ServiceError: The model is away.\n  hint: start it"]


def test_every_mistake_of_a_file_is_shown() -> None:
    span = SourceSpan("qa.yaml", 3, 1, 3, 5)
    error = FlowError((Finding("RB1", "first", span), Finding("RB2", "second", span, hint="so")))
    assert error._render_traceback_() == [
        "FlowError: qa.yaml:3:1: RB1 first",
        "FlowError: qa.yaml:3:1: RB2 second\n  hint: so",
    ]


def test_a_mistake_in_a_node_keeps_its_traceback() -> None:
    try:
        try:
            raise ValueError("of mine")
        except ValueError as mistake:
            raise RunError("`x` failed with ValueError: of mine") from mistake
    except RunError as error:
        above, sentence = error._render_traceback_()
    assert "test_notebook.py" in above
    assert "ValueError: of mine" in above
    assert sentence == "RunError: `x` failed with ValueError: of mine"
