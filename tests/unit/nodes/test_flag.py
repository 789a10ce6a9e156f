"""FlagEmbedding behind our protocols, with models of a hundred kilobytes that the test makes itself.

Importing FlagEmbedding takes ten seconds and more, so these tests run only where its extra is installed.
"""

import warnings
from importlib.util import find_spec

import numpy as np
import pytest

from ragbraid.nodes import resource_flag
from ragbraid.nodes.resource_flag import flag_embedder, flag_reranker
from ragbraid.registry.context import StepContext, step_context
from ragbraid.registry.errors import SettingsError
from ragbraid.registry.providers import RESOURCE_ATTRIBUTE
from ragbraid.registry.resources import Embedder, Reranker

needs_flag = pytest.mark.skipif(find_spec("FlagEmbedding") is None, reason="the extra `flag` is not installed")
quiet = pytest.mark.filterwarnings("ignore")

WORDS = "retrieval flow graph merge rerank generate 检索 流程 图谱 合并 重排 生成"
TEXTS = ["retrieval flow", "图谱 合并 graph merge generate", "重排"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Write a cross-encoder, a plain encoder and one like BGE-M3, all with random weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _write_models(tmp_path_factory.mktemp("flag"))


def _write_models(root):
    import torch
    from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
    from tokenizers import models as kinds
    from transformers import (
        PreTrainedTokenizerFast,
        XLMRobertaConfig,
        XLMRobertaForSequenceClassification,
        XLMRobertaModel,
    )

    vocabulary = {word: i for i, word in enumerate(["<s>", "<pad>", "</s>", "<unk>", "<mask>", *WORDS.split()])}
    core = Tokenizer(kinds.WordLevel(vocabulary, unk_token="<unk>"))
    core.normalizer = normalizers.BertNormalizer(handle_chinese_chars=False)
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, cls_token="<s>", sep_token="</s>", mask_token="<mask>", model_max_length=128, **names
    )
    sizes = {"vocab_size": len(vocabulary), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 64, "max_position_embeddings": 140, "pad_token_id": 1, "type_vocab_size": 1}
    torch.manual_seed(0)
    made = {
        "bge-reranker-base": XLMRobertaForSequenceClassification(XLMRobertaConfig(**sizes, num_labels=1)),
        "our-encoder": XLMRobertaModel(XLMRobertaConfig(**sizes)),
        "bge-m3": XLMRobertaModel(XLMRobertaConfig(**sizes)),
    }
    for name, model in made.items():
        model.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    torch.save(torch.nn.Linear(32, 32).state_dict(), root / "bge-m3" / "colbert_linear.pt")
    torch.save(torch.nn.Linear(32, 1).state_dict(), root / "bge-m3" / "sparse_linear.pt")
    return root


def test_without_the_extra_the_line_to_type_is_told(monkeypatch):
    monkeypatch.setattr(resource_flag, "find_spec", lambda name: None)
    for provider in (flag_embedder, flag_reranker):
        with pytest.raises(
            SettingsError, match=r'FlagEmbedding is not installed. Install it: pip install "ragbraid\[flag\]"'
        ):
            provider("BAAI/bge-m3")


def test_the_providers_are_declared_for_their_roles():
    assert getattr(flag_embedder, RESOURCE_ATTRIBUTE).role == "embedder"
    assert getattr(flag_reranker, RESOURCE_ATTRIBUTE).role == "reranker"


def test_identity_names_the_model_and_the_prefix_its_authors_ask_for(monkeypatch):
    monkeypatch.setattr(resource_flag, "find_spec", lambda name: object())
    assert flag_embedder("BAAI/bge-m3").identity == "flag:BAAI/bge-m3"
    assert flag_embedder("BAAI/bge-base-en-v1.5").identity.startswith("flag:BAAI/bge-base-en-v1.5 query='Represent")
    assert flag_reranker("BAAI/bge-reranker-v2-m3").identity == "flag:BAAI/bge-reranker-v2-m3"


@needs_flag
@quiet
@pytest.mark.slow
@pytest.mark.parametrize(("name", "model_class"), [("bge-m3", None), ("our-encoder", "encoder-only-base")])
def test_embedders_give_unit_vectors_in_order(models, name, model_class):
    embedder = flag_embedder(str(models / name), model_class=model_class, device="cpu", batch_size=2)
    assert isinstance(embedder, Embedder)
    assert embedder.dimension == 32
    vectors = embedder.embed_documents(TEXTS)
    assert vectors.shape == (3, 32)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert np.allclose(vectors[2], embedder.embed_documents(TEXTS[2:])[0], atol=1e-5)
    assert np.allclose(vectors[0], embedder.embed_query(TEXTS[0]), atol=1e-5)
    assert embedder.embed_documents([]).shape == (0, 32)
    assert embedder.identity.startswith(f"flag:{name}@")


@needs_flag
@quiet
@pytest.mark.slow
def test_prefixes_change_the_vectors_and_texts_that_are_cut_are_counted(models):
    folder = str(models / "our-encoder")
    plain = flag_embedder(folder, model_class="encoder-only-base", device="cpu", max_length=16)
    prefixed = flag_embedder(
        folder, model_class="encoder-only-base", device="cpu", query_prefix="graph ", passage_prefix="flow "
    )
    assert not np.allclose(plain.embed_query("检索"), prefixed.embed_query("检索"), atol=1e-4)
    assert np.allclose(plain.embed_query("graph 检索"), prefixed.embed_query("检索"), atol=1e-4)
    assert np.allclose(plain.embed_query("flow 检索"), prefixed.embed_documents(["检索"])[0], atol=1e-4)
    with step_context(StepContext()) as context:
        plain.embed_documents(["graph " * 40, "graph"])
    assert context.notes[0].startswith("1 of 2 texts are longer than the 16 tokens")


@needs_flag
@quiet
@pytest.mark.slow
def test_a_reranker_scores_each_text_as_flagembedding_does(models):
    from FlagEmbedding import FlagReranker

    folder = str(models / "bge-reranker-base")
    reranker = flag_reranker(folder, device="cpu")
    assert isinstance(reranker, Reranker)
    scores = reranker.score("检索 流程", TEXTS)
    direct = FlagReranker(folder, use_fp16=False, devices=["cpu"])
    assert scores == pytest.approx(
        direct.compute_score([["检索 流程", text] for text in TEXTS], normalize=True), abs=1e-5
    )
    assert all(0 < score < 1 for score in scores)
    assert reranker.score("检索", TEXTS[:1]) == pytest.approx(
        [direct.compute_score([["检索", TEXTS[0]]], normalize=True)[0]], abs=1e-5
    )
    assert reranker.score("检索", []) == []


@needs_flag
@quiet
@pytest.mark.slow
def test_a_folder_of_an_unknown_name_asks_for_the_model_class(models):
    with pytest.raises(SettingsError, match="does not know how to run .* Say it in `model_class`"):
        flag_embedder(str(models / "our-encoder"), device="cpu").embed_query("graph")


@needs_flag
@quiet
@pytest.mark.slow
def test_a_model_that_is_nowhere_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(SettingsError, match="neither in the local cache nor a folder"):
        flag_reranker(str(tmp_path / "bge-reranker-base"), device="cpu").score("a", ["b"])
