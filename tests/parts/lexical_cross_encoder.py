"""A cross-encoder of three kilobytes for tests: it counts the words of the question that the passage holds."""

import json
from pathlib import Path

import numpy as np

WORDS = "graph rerank fusion retrieval limit days laptop travel 检索 图谱 重排 天"


def write_lexical_cross_encoder(folder: Path) -> Path:
    """Write tokenizer and ONNX graph into a folder that fastembed's TextCrossEncoder loads."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS.split()])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 64, "pad_token": "[PAD]"}))

    # A word counts where it is no special token, stands in the question (type 0) and again in the passage (type 1).
    steps = [
        ("Cast", ["token_type_ids"], "in_passage", {"to": TensorProto.FLOAT}),
        ("Sub", ["one", "in_passage"], "in_question", {}),
        ("Greater", ["input_ids", "last_special"], "is_word", {}),
        ("Cast", ["is_word"], "word", {"to": TensorProto.FLOAT}),
        ("Unsqueeze", ["input_ids", "last_axis"], "as_rows", {}),
        ("Unsqueeze", ["input_ids", "first_axis"], "as_columns", {}),
        ("Equal", ["as_rows", "as_columns"], "is_same", {}),
        ("Cast", ["is_same"], "same", {"to": TensorProto.FLOAT}),
        ("Unsqueeze", ["in_passage", "first_axis"], "passage_columns", {}),
        ("Mul", ["same", "passage_columns"], "matches", {}),
        ("ReduceMax", ["matches", "last_axis"], "found", {"keepdims": 0}),
        ("Mul", ["found", "in_question"], "found_in_question", {}),
        ("Mul", ["found_in_question", "word"], "counted", {}),
        ("ReduceSum", ["counted", "first_axis"], "logits", {"keepdims": 1}),
    ]
    constants = {
        "one": np.float32(1),
        "last_special": np.int64(3),
        "first_axis": np.array([1]),
        "last_axis": np.array([2]),
    }
    graph = helper.make_graph(
        [helper.make_node(operator, inputs, [output], **options) for operator, inputs, output, options in steps],
        "lexical",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"])
            for name in ("input_ids", "attention_mask", "token_type_ids")
        ],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, str(folder / "model.onnx"))
    return folder
