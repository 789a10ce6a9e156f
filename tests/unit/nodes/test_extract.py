"""Answers made of quoted sentences: what is cut, what is chosen, what is cited, and when the answer is a refusal."""

import pytest

from ragbraid.nodes.extract import extract_answer
from ragbraid.nodes.resource_packaged import packaged_embedder
from ragbraid.nodes.sentences import sentence_spans, split_units
from ragbraid.registry.contracts import Hit, Ranking

ENGLISH = {
    "Equipment > Laptops": "Every employee receives a laptop on the first day. A borrowed laptop must be returned "
    "within 90 days. Stickers are welcome.",
    "Travel > Expenses": "Hotel costs are refunded up to 140 EUR per night. Receipts are due by the 5th of the "
    "following month. Trips over 2,000 EUR need the approval of the department head.",
    "Allowances": "| Country | Per day | Hotel limit |\n|---|---|---|\n| France | 45 EUR | 150 EUR |\n"
    "| Japan | 60 EUR | 190 EUR |\n| Norway | 70 EUR | 210 EUR |",
    "Safety > Fire": "When the alarm sounds:\n- leave by the nearest stairs;\n- do not use the lifts;\n"
    "- meet at the car park, point B.",
    "Errors": "ERR_OOM_KILL_001 means that the worker ran out of memory. Raise `memory_limit` to 4 GB. "
    "ERR_NET_TIMEOUT_007 means that the gateway did not answer within 30 s.",
}
CHINESE = {
    "请假制度 > 年假": "入职满一年的员工每年享有15天年假。未休完的年假最多可结转5天到次年3月31日。年假须提前三个工作日申请。",
    "请假制度 > 病假": "病假超过两天须提交医院证明。病假期间工资按80%发放。",
    "差旅标准": "| 城市 | 每日补贴 | 酒店上限 |\n|---|---|---|\n| 北京 | 120元 | 600元 |\n| 成都 | 90元 | 400元 |",
    "办公设备": "借用的笔记本电脑须在九十天内归还前台。遗失设备请立即联系信息安全部，电话8800。",
    "报销流程": "报销需要以下材料：\n1. 发票原件；\n2. 出差审批单；\n3. 行程单。\n财务部每月10日和25日打款。",
}


def handbook(passages: dict[str, str]) -> Ranking:
    hits = [
        Hit(
            id=f"chunk-{place}",
            document_id="handbook",
            source="handbook.md",
            text=text,
            section_path=tuple(path.split(" > ")),
            score=1 / place,
            rank=place,
            score_kind="rrf",
        )
        for place, (path, text) in enumerate(passages.items(), start=1)
    ]
    return Ranking.from_hits(hits, route="fused", score_kind="rrf")


def of_texts(*texts: str) -> Ranking:
    return handbook({f"Section {place}": text for place, text in enumerate(texts)})


@pytest.fixture(scope="module")
def embedder():
    return packaged_embedder()


# -- cutting -----------------------------------------------------------------------------------------------------------


def sentences(text: str) -> list[str]:
    return [text[start:end] for start, end in sentence_spans(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Ask Dr. Lee at 9 a.m. or later. It costs 3.50 EUR.",
            ["Ask Dr. Lee at 9 a.m. or later.", "It costs 3.50 EUR."],
        ),
        ("See No. 5, e.g. the U.S. form. Done!", ["See No. 5, e.g. the U.S. form.", "Done!"]),
        ("Version 1.2.3 works. v2.0 does not", ["Version 1.2.3 works.", "v2.0 does not"]),
        (
            "年假有15天。病假另算！真的吗？“是的。”他说。",
            ["年假有15天。", "病假另算！", "真的吗？", "“是的。”", "他说。"],
        ),
        ("价格为3.5元. 下一句。", ["价格为3.5元.", "下一句。"]),
        (
            "Pens, paper, etc. are free. Ask, etc. Then sign.",
            ["Pens, paper, etc. are free.", "Ask, etc.", "Then sign."],
        ),
        ("Wait... then go. 等等……好。", ["Wait... then go.", "等等……", "好。"]),
        ("(It ends here.) Next one.", ["(It ends here.)", "Next one."]),
        ("   ", []),
        ("", []),
    ],
)
def test_sentences_end_where_they_do(text, expected):
    assert sentences(text) == expected


def test_every_unit_is_a_stretch_of_the_passage():
    for text in [*ENGLISH.values(), *CHINESE.values()]:
        for unit in split_units(text):
            quote = text[unit.start : unit.end]
            assert quote == quote.strip() != ""


def test_a_table_row_is_shown_with_its_column_names():
    text = "| Item | Days |\n|:---|---:|\n| **Laptop** | 90 |\n| Badge |  |\n\nName | Value\n--- | ---\na | b\n"
    units = split_units(text)
    assert [unit.shown for unit in units] == ["Item: Laptop; Days: 90", "Item: Badge", "Name: a; Value: b"]
    assert text[units[0].start : units[0].end] == "| **Laptop** | 90 |"


def test_list_items_are_units_under_the_line_that_introduces_them():
    units = split_units("Steps to take:\n- Fill in form A-7.\n- Send it to\n  the desk.\n1) Wait.\n\nThat is all.")
    assert [(unit.shown, unit.opening) for unit in units] == [
        ("Fill in form A-7.", "Steps to take:"),
        ("Send it to the desk.", "Steps to take:"),
        ("Wait.", "Steps to take:"),
        ("That is all.", ""),
    ]


def test_a_version_at_the_start_of_a_line_is_no_number_of_a_list():
    assert [
        unit.shown for unit in split_units("4.2.1版修复了漏洞\n\n3.9 must be installed first.\n\n1.检查天线杆")
    ] == [
        "4.2.1版修复了漏洞",
        "3.9 must be installed first.",
        "检查天线杆",
    ]


def test_headings_and_questions_are_no_units_but_tell_what_follows():
    units = split_units(
        "# Badges\nHow do I get a new one?\nGo to the desk. Bring a photo.\n---\n## 补办\n多少钱？\n二十元。"
    )
    assert [(unit.shown, unit.heading, unit.opening) for unit in units] == [
        ("Go to the desk.", "Badges", "How do I get a new one?"),
        ("Bring a photo.", "Badges", ""),
        ("二十元。", "补办", "多少钱？"),
    ]


def test_hard_wrapped_lines_are_one_sentence_and_short_lines_are_not():
    wrapped = "The company refunds what a trip costs when its receipts\narrive in time. Late ones are lost."
    assert [unit.shown for unit in split_units(wrapped)] == [
        "The company refunds what a trip costs when its receipts arrive in time.",
        "Late ones are lost.",
    ]
    assert [unit.shown for unit in split_units("Opening hours 8-18\nPhone 8800")] == [
        "Opening hours 8-18",
        "Phone 8800",
    ]


# -- answering ---------------------------------------------------------------------------------------------------------


@pytest.mark.model
@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("How long may I keep a borrowed laptop?", "A borrowed laptop must be returned within 90 days. [1]"),
        ("What is the hotel limit in Japan?", "Country: Japan; Per day: 60 EUR; Hotel limit: 190 EUR [1]"),
        ("When are receipts due?", "Receipts are due by the 5th of the following month. [1]"),
        ("Who approves expensive trips?", "Trips over 2,000 EUR need the approval of the department head. [1]"),
        ("What does ERR_OOM_KILL_001 mean?", "ERR_OOM_KILL_001 means that the worker ran out of memory. [1]"),
    ],
)
def test_english_questions_get_the_sentence_that_answers_them(embedder, question, expected):
    assert extract_answer(question, handbook(ENGLISH), embedder).text == expected


@pytest.mark.model
def test_a_list_is_answered_item_by_item_with_its_introduction_once(embedder):
    answer = extract_answer("What should I do when the fire alarm sounds?", handbook(ENGLISH), embedder)
    assert answer.text == (
        "When the alarm sounds: leave by the nearest stairs; [1] do not use the lifts; [1] "
        "meet at the car park, point B. [1]"
    )
    assert len(answer.citations) == 1


@pytest.mark.model
@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("没休完的年假可以留到明年吗？", "未休完的年假最多可结转5天到次年3月31日。 [1]"),
        ("成都的酒店上限是多少？", "城市: 成都; 每日补贴: 90元; 酒店上限: 400元 [1]"),
        ("病假期间工资怎么算？", "病假期间工资按80%发放。 [1]"),
        ("报销要交哪些材料？", "报销需要以下材料： 发票原件； [1] 出差审批单； [1] 行程单。 [1]"),
    ],
)
def test_chinese_questions_get_the_sentence_that_answers_them(embedder, question, expected):
    assert extract_answer(question, handbook(CHINESE), embedder).text == expected


@pytest.mark.model
@pytest.mark.parametrize(
    ("question", "passages", "part"),
    [
        ("日本的酒店上限是多少？", ENGLISH, "Hotel limit: 190 EUR"),
        ("借的笔记本电脑多久要归还？", ENGLISH, "within 90 days"),
        ("Who do I call when I lose my laptop?", CHINESE, "电话8800"),
    ],
)
def test_a_question_in_the_other_language_finds_its_answer_by_meaning(embedder, question, passages, part):
    answer = extract_answer(question, handbook(passages), embedder)
    assert part in answer.text


@pytest.mark.model
@pytest.mark.parametrize(
    ("question", "passages"),
    [
        ("Can I bring my dog to the office?", ENGLISH),
        ("What is the CEO's birthday?", ENGLISH),
        ("How many days of vacation do I get?", ENGLISH),
        ("公司食堂几点开门？", CHINESE),
        ("产假有多少天？", CHINESE),
        ("股票期权怎么兑现？", CHINESE),
        ("食堂几点开门？", ENGLISH),
        ("When does the canteen open?", CHINESE),
    ],
)
def test_a_question_that_the_evidence_does_not_answer_is_refused_in_its_language(embedder, question, passages):
    answer = extract_answer(question, handbook(passages), embedder)
    assert answer.refused
    assert answer.refusal_reason == "not_in_passages"
    assert answer.citations == ()
    english = "The passages that were found do not answer this question."
    assert answer.text == (english if question.isascii() else "找到的内容没有回答这个问题。")


def test_no_evidence_is_a_refusal_and_never_an_invention():
    for empty in (Ranking(), of_texts("# Only a heading"), of_texts("Is this a question?")):
        answer = extract_answer("What is the limit?", empty, None)
        assert (answer.refused, answer.refusal_reason) == (True, "no_passages")
        assert answer.text == "No passage was found that could answer this question."
    assert extract_answer("上限是多少？", Ranking(), None).text == "没有找到可以回答这个问题的内容。"


# -- citing ------------------------------------------------------------------------------------------------------------


def test_citations_are_verified_quotes_with_their_place():
    hits = handbook(ENGLISH)
    (citation,) = extract_answer("When are receipts due?", hits, None).citations
    assert citation.marker == 1
    assert citation.chunk_id == "chunk-2"
    assert citation.document_id == "handbook"
    assert citation.source == "handbook.md"
    assert citation.section_path == ("Travel", "Expenses")
    assert citation.quote == "Receipts are due by the 5th of the following month."
    assert citation.verified


def test_passages_are_numbered_by_first_use_and_each_is_cited_once():
    hits = of_texts("The sky is grey.", "The desk lends laptops. The desk lends cameras.", "The desk lends phones.")
    answer = extract_answer("What does the desk lend?", hits, None)
    assert answer.text == "The desk lends laptops. [1] The desk lends cameras. [1] The desk lends phones. [2]"
    assert [(citation.marker, citation.chunk_id) for citation in answer.citations] == [(1, "chunk-2"), (2, "chunk-3")]
    assert answer.citations[0].quote == "The desk lends laptops."


def test_a_second_sentence_that_says_the_same_gives_way_to_one_that_says_more():
    hits = of_texts(
        "Visitors need badges from the desk.", "Visitors need badges from the desk here. Visitors need hosts."
    )
    answer = extract_answer("What do visitors need?", hits, None, max_sentences=2)
    assert answer.text == "Visitors need badges from the desk. [1] Visitors need hosts. [2]"


def test_a_sentence_that_overlapping_chunks_share_is_quoted_once_from_the_better_hit():
    hits = of_texts("Badges cost twenty euros.", "Badges cost twenty euros. They last a year.")
    answer = extract_answer("What do badges cost?", hits, None)
    assert answer.text == "Badges cost twenty euros. [1]"
    assert answer.citations[0].chunk_id == "chunk-1"


def test_the_answer_holds_at_most_as_many_sentences_as_asked_for():
    hits = of_texts(*(f"The desk lends item {number}." for number in range(6)))
    for most in (1, 2, 4):
        assert extract_answer("What does the desk lend?", hits, None, max_sentences=most).text.count("lends") == most


def test_the_threshold_can_be_given():
    hits = of_texts("Badges cost twenty euros.", "The desk is open.")
    question = "What do badges for visitors of the northern building cost?"
    assert extract_answer(question, hits, None).refused
    assert not extract_answer(question, hits, None, min_score=0.1).refused
    assert extract_answer("What do badges cost?", hits, None, min_score=1.0).text == "Badges cost twenty euros. [1]"


def test_a_heading_tells_what_a_sentence_is_about():
    hits = handbook({"Annual leave": "There are fifteen days.", "Sick leave": "There are ninety days."})
    assert extract_answer("How many days of sick leave are there?", hits, None, max_sentences=1).text.startswith(
        "There are ninety days."
    )


@pytest.mark.model
def test_the_same_evidence_gives_the_same_answer(embedder):
    first = extract_answer("年假有多少天？", handbook(CHINESE), embedder)
    assert first == extract_answer("年假有多少天？", handbook(CHINESE), embedder)
    assert "15天" in first.text


@pytest.mark.model
def test_a_long_list_of_passages_is_answered_from_the_promising_ones(embedder):
    filler = {f"Notes {number}": f"Note {number} is about chairs. The chair has {number} legs." for number in range(60)}
    hits = handbook({**filler, "Travel": "Receipts are due by the 5th of the following month."})
    assert extract_answer("When are receipts due?", hits, embedder).text.startswith("Receipts are due by the 5th")
