from __future__ import annotations

import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ragbraid.nodes.analysis import STOP_WORDS, analyze
from ragbraid.nodes.bm25 import Bm25Encoder, term_id
from ragbraid.nodes.resource_bm25 import multilingual
from ragbraid.registry.errors import SettingsError
from ragbraid.registry.resources import SparseEncoder, SparseVector


def words(text: str) -> list[str]:
    return analyze(text).words


def overlap(encoder: Bm25Encoder, query: str, document: str) -> set[int]:
    wanted = set(encoder.encode_query(query).indices)
    return wanted & set(encoder.encode_documents([document], average_length=5.0)[0].indices)


@pytest.mark.parametrize(
    ("text", "average", "expected"),
    [
        ("word", 256.0, 1.687743),
        ("word word " + "rest " * 254, 256.0, 1.375),
        ("word " * 3 + "rest " * 509, 256.0, 1.294118),
    ],
)
def test_document_weights_are_those_of_example_a50(text: str, average: float, expected: float) -> None:
    vector = Bm25Encoder(k1=1.2, b=0.75).encode_documents([text], average_length=average)[0]
    assert dict(zip(vector.indices, vector.values, strict=True))[term_id("word")] == pytest.approx(expected, abs=1e-6)


def test_an_identifier_is_found_whole_and_in_parts_as_in_example_a52() -> None:
    assert analyze("ERR_OOM_KILL_001").wholes == ["err_oom_kill_001"]
    assert words("ERR_OOM_KILL_001") == ["err", "oom", "kill", "001"]
    assert analyze("CVE-2024-12345").wholes == ["cve-2024-12345"]
    assert words("CVE-2024-12345") == ["cve", "2024", "12345"]


def test_chinese_is_segmented_so_that_example_a52_matches() -> None:
    encoder = Bm25Encoder()
    assert overlap(encoder, "内存溢出", "内存溢出处理指南")
    assert not overlap(encoder, "网络", "内存溢出处理指南")


def test_traditional_chinese_matches_itself() -> None:
    assert len(overlap(Bm25Encoder(), "臺灣的歷史", "這本書講述臺灣的歷史與文化")) >= 2


@pytest.mark.parametrize(
    ("query", "document"),
    [
        ("ERR_OOM_KILL_001", "service stopped with err_oom_kill_001 at night"),
        ("oom", "service stopped with ERR_OOM_KILL_001 at night"),
        ("CVE-2024-12345", "(CVE-2024-12345)"),
        ("12345", "see CVE-2024-12345."),
        ("running", "he runs"),
        ("USA", "the U.S.A. and others"),
        ("dog", "the dog's house"),
        ("café", "CAFE\u0301"),
        ("ＡＢＣ１２３", "abc123"),
        ("GPT-4模型", "使用gpt-4"),
        ("東京タワー", "東京タワーの高さ"),
        ("ภาษาไทย", "เรียนภาษาไทยทุกวัน"),
        ("हिन्दी", "यह हिन्दी है"),
        ("검색", "한국어 검색 엔진"),
        ("homme", "l’homme qui rit"),
    ],
)
def test_terms_meet_across_spellings(query: str, document: str) -> None:
    assert overlap(Bm25Encoder(), query, document)


def test_the_whole_of_an_identifier_weighs_more_than_its_parts_elsewhere() -> None:
    encoder = Bm25Encoder()
    exact = overlap(encoder, "ERR_OOM_KILL_001", "ERR_OOM_KILL_001")
    parts = overlap(encoder, "ERR_OOM_KILL_001", "kill 001 oom err")
    assert len(exact) == len(parts) + 1


def test_identifiers_do_not_lengthen_a_text() -> None:
    encoder = Bm25Encoder()
    assert encoder.count_tokens("CVE-2024-12345") == encoder.count_tokens("CVE 2024 12345") == 3


def test_lucenes_33_stop_words_carry_no_weight() -> None:
    assert len(STOP_WORDS) == 33
    assert words("The cat is not IN the hat") == ["cat", "hat"]
    assert Bm25Encoder().encode_query("to be or not to be") == SparseVector((), ())


@pytest.mark.parametrize("text", ["", "   ", "?!… 。，", "\x00", "\ud800", "🙂🙂"])
def test_a_text_without_terms_gives_an_empty_vector(text: str) -> None:
    encoder = Bm25Encoder()
    assert encoder.encode_query(text).indices == ()
    assert encoder.encode_documents([text], average_length=10.0) == [SparseVector((), ())]
    assert encoder.count_tokens(text) == 0


def test_a_query_counts_a_term_as_often_as_it_stands_there() -> None:
    vector = Bm25Encoder().encode_query("texture analysis of texture")
    assert dict(zip(vector.indices, vector.values, strict=True)) == {term_id("textur"): 2.0, term_id("analysi"): 1.0}


def test_indices_are_unique_and_ascending() -> None:
    vector = Bm25Encoder().encode_documents(["one two three two 内存 溢出 x_1"], average_length=3.0)[0]
    assert list(vector.indices) == sorted(set(vector.indices))
    assert all(0 <= index < 2**32 for index in vector.indices)
    assert all(weight > 0 and math.isfinite(weight) for weight in vector.values)


def test_term_ids_are_the_same_in_every_process() -> None:
    code = "from ragbraid.nodes.bm25 import term_id; print(term_id('retrieval'), term_id('检索'))"
    runs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert runs == {f"{term_id('retrieval')} {term_id('检索')}\n"}


def test_term_ids_of_a_large_vocabulary_hardly_collide() -> None:
    terms = [f"term{number}" for number in range(100_000)]
    assert len({term_id(term) for term in terms}) >= 100_000 - 5


def test_a_hundred_thousand_characters_are_encoded() -> None:
    encoder = Bm25Encoder()
    assert encoder.encode_query("内存溢出 memory " * 8_000).indices
    assert encoder.encode_query("x" * 100_000).indices
    assert encoder.encode_query("a_1" * 30_000).indices


def test_threads_share_one_encoder() -> None:
    texts = [f"running dogs number{number} 内存溢出处理指南 ERR_{number}" for number in range(200)]
    alone = [Bm25Encoder().encode_query(text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(Bm25Encoder().encode_query, texts)) == alone


def test_the_identity_names_everything_that_the_terms_depend_on() -> None:
    encoder = Bm25Encoder()
    assert encoder.identity == "bm25 multilingual-v1 jieba-0.42.1 porter k1=0.9 b=0.4"
    assert Bm25Encoder(k1=1.2).identity != encoder.identity


def test_the_provider_gives_a_sparse_encoder_and_checks_its_constants() -> None:
    assert isinstance(multilingual(), SparseEncoder)
    with pytest.raises(SettingsError, match="`k1` is -1"):
        multilingual(k1=-1)
    with pytest.raises(SettingsError, match="`b` is 1.5"):
        multilingual(b=1.5)


def test_words_that_others_add_to_jieba_change_no_terms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import jieba

    before = words("溢出处理指南")
    monkeypatch.setattr(jieba.dt, "tmp_dir", str(tmp_path))
    jieba.setLogLevel(60)
    jieba.add_word("溢出处理指南")
    assert jieba.lcut("溢出处理指南") == ["溢出处理指南"]
    assert words("溢出处理指南") == before
    jieba.del_word("溢出处理指南")
