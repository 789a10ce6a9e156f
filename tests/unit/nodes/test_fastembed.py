"""Embedders and cross-encoders that fastembed loads from a folder; names that are unknown or cannot be fetched."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from lexical_cross_encoder import write_lexical_cross_encoder

from ragbraid.nodes import fastembed_models, packaged_e5
from ragbraid.nodes.prefixes import known_prefixes
from ragbraid.nodes.resource_fastembed import fastembed_cross_encoder, fastembed_embedder
from ragbraid.registry.errors import SettingsError
from ragbraid.registry.providers import RESOURCE_ATTRIBUTE
from ragbraid.registry.resources import Embedder, Reranker

pytest.importorskip("fastembed")


@pytest.fixture(scope="module")
def cross_encoder_folder(tmp_path_factory):
    return write_lexical_cross_encoder(tmp_path_factory.mktemp("lexical"))


@pytest.fixture(scope="module")
def e5_folder():
    return packaged_e5.converted_folder()


def test_a_cross_encoder_from_a_folder_scores_each_text(cross_encoder_folder):
    reranker = fastembed_cross_encoder("our/lexical", path=str(cross_encoder_folder), threads=1)
    assert isinstance(reranker, Reranker)
    assert reranker.score("graph rerank", ["retrieval fusion", "graph rerank 重排", "graph"]) == [0, 2, 1]
    assert reranker.score("graph", []) == []
    assert reranker.identity.startswith("fastembed:our/lexical@")


def test_the_same_name_with_another_folder_is_another_model(cross_encoder_folder, tmp_path):
    other = write_lexical_cross_encoder(tmp_path / "other")
    model = other / "model.onnx"
    first = fastembed_cross_encoder("our/lexical", path=str(other))
    assert first.identity == fastembed_cross_encoder("our/lexical", path=str(cross_encoder_folder)).identity
    model.write_bytes(model.read_bytes() + b" ")
    assert fastembed_cross_encoder("our/lexical", path=str(other)).identity != first.identity


def test_eight_threads_get_the_same_scores(cross_encoder_folder):
    reranker = fastembed_cross_encoder("our/lexical", path=str(cross_encoder_folder), threads=1)
    barrier = threading.Barrier(8)

    def score(number: int) -> list[float]:
        barrier.wait()
        return reranker.score("graph rerank fusion", ["graph", "rerank graph", "fusion graph rerank"][: 1 + number % 3])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(score, range(8))) == [[1, 2, 3][: 1 + number % 3] for number in range(8)]


def test_a_misspelled_model_is_told_with_the_nearest_name():
    with pytest.raises(SettingsError, match="fastembed knows no embedding model `BAAI/bge-smal-en-v1.5`") as caught:
        fastembed_embedder("BAAI/bge-smal-en-v1.5")
    assert caught.value.hint == "did you mean `BAAI/bge-small-en-v1.5`?"
    with pytest.raises(SettingsError, match="knows no cross-encoder `BAAI/bge-reranker-bas`") as caught:
        fastembed_cross_encoder("BAAI/bge-reranker-bas")
    assert caught.value.hint == "did you mean `BAAI/bge-reranker-base`?"


@pytest.mark.parametrize("provider", [fastembed_embedder, fastembed_cross_encoder])
def test_a_model_that_is_neither_cached_nor_reachable_is_told_at_once(monkeypatch, tmp_path, provider):
    monkeypatch.setenv("FASTEMBED_CACHE_PATH", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    model = "BAAI/bge-small-en-v1.5" if provider is fastembed_embedder else "BAAI/bge-reranker-base"
    resource = provider(model)
    assert resource.identity.startswith(f"fastembed:{model}")
    with pytest.raises(SettingsError, match=r"is not in the local cache, and the model hub cannot be reached.*`path`"):
        resource.embed_query("x") if provider is fastembed_embedder else resource.score("x", ["y"])


def test_the_hub_is_not_asked_where_the_environment_forbids_it(monkeypatch, tmp_path):
    monkeypatch.setenv("FASTEMBED_CACHE_PATH", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_ENDPOINT", "no address at all")
    with pytest.raises(SettingsError, match="cannot be reached from here"):
        fastembed_embedder("BAAI/bge-small-en-v1.5").embed_query("x")


def test_a_folder_that_is_missing_or_incomplete_is_told_with_what_it_lacks(tmp_path):
    with pytest.raises(SettingsError, match=r"There is no model folder .*nowhere. Correct `path`"):
        fastembed_embedder("our/model", path=str(tmp_path / "nowhere"))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(SettingsError, match=r"lacks model.onnx, tokenizer_config.json"):
        fastembed_cross_encoder("our/model", path=str(tmp_path))


def test_files_that_are_no_model_are_told_when_it_is_first_used(tmp_path):
    for name in ("model.onnx", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text("this is no model")
    with pytest.raises(SettingsError, match=r"The model in .* cannot be loaded: "):
        fastembed_cross_encoder("our/broken", path=str(tmp_path)).score("x", ["y"])


def test_a_missing_package_is_told_with_the_line_to_type(monkeypatch):
    monkeypatch.setattr(fastembed_models, "find_spec", lambda name: None)
    for provider in (fastembed_embedder, fastembed_cross_encoder):
        with pytest.raises(
            SettingsError, match=r'fastembed is not installed. Install it: pip install "ragbraid\[local\]"'
        ):
            provider("BAAI/bge-small-en-v1.5")


def test_prefixes_follow_the_models_authors_unless_the_settings_say_otherwise():
    assert known_prefixes("intfloat/multilingual-e5-large") == ("query: ", "passage: ")
    assert known_prefixes("BAAI/bge-small-zh-v1.5")[0].startswith("为这个句子")
    assert known_prefixes("jinaai/jina-embeddings-v3") == ("", "")
    assert fastembed_embedder("intfloat/multilingual-e5-large").identity == (
        "fastembed:intfloat/multilingual-e5-large query='query: ' passage='passage: '"
    )
    plain = fastembed_embedder("intfloat/multilingual-e5-large", query_prefix="", passage_prefix="")
    assert plain.identity == "fastembed:intfloat/multilingual-e5-large"


def test_the_providers_are_declared_for_their_roles():
    assert getattr(fastembed_embedder, RESOURCE_ATTRIBUTE).role == "embedder"
    assert getattr(fastembed_cross_encoder, RESOURCE_ATTRIBUTE).role == "reranker"


@pytest.mark.model
def test_an_embedder_from_a_folder_equals_the_packaged_one(e5_folder):
    from ragbraid.nodes.resource_packaged import packaged_embedder

    ours = fastembed_embedder(
        "our/e5", path=str(e5_folder), threads=1, query_prefix="query: ", passage_prefix="passage: "
    )
    assert isinstance(ours, Embedder)
    assert ours.dimension == 384
    texts = ["Borrowed laptops go back after ninety days.", "借出的电脑九十天后归还。"]
    packaged = packaged_embedder()
    assert np.allclose(ours.embed_documents(texts), packaged.embed_documents(texts), atol=1e-4)
    assert np.allclose(ours.embed_query("laptop"), packaged.embed_query("laptop"), atol=1e-4)
    assert ours.embed_documents([]).shape == (0, 384)


@pytest.mark.model
def test_pooling_is_part_of_how_a_folder_is_loaded(e5_folder):
    mean = fastembed_embedder("our/e5", path=str(e5_folder), threads=1)
    first = fastembed_embedder("our/e5", path=str(e5_folder), threads=1, pooling="cls")
    assert not np.allclose(mean.embed_query("laptop"), first.embed_query("laptop"), atol=1e-2)
    assert mean.identity != first.identity
