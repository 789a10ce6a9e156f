"""The network of multilingual-e5-small as an ONNX graph: a BERT encoder whose weights stay in 4-bit blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ragbraid.nodes.packaged_e5 import Weights

if TYPE_CHECKING:
    from collections.abc import Sequence

_MASKED = -1e9
"""Added to the attention score of padding, so that its weight is exactly zero."""


def build_model(weights: Weights) -> Any:
    """Return an `onnx.ModelProto`: token ids and mask in, one vector of `hidden` numbers per token out."""
    from onnx import TensorProto, helper

    graph = _Graph(weights)
    mask = graph.attention_mask()
    state = graph.embeddings()
    for layer in range(weights.shape.layers):
        state = graph.encoder_layer(layer, state, mask)
    graph.add("Identity", [state], name="last_hidden_state")
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"])
        for name in ("input_ids", "attention_mask")
    ]
    size: list[str | int | None] = ["batch", "tokens", weights.shape.hidden]
    output = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, size)
    whole = helper.make_graph(graph.nodes, "multilingual-e5-small", inputs, [output], graph.constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(whole, opset_imports=opsets, ir_version=10)


class _Graph:
    """Collects nodes and constants; every method returns the name of the value that it adds."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.shape = weights.shape
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._known: set[str] = set()

    def add(self, operator: str, inputs: Sequence[str], *, name: str, domain: str = "", **attributes: Any) -> str:
        """Add one operator."""
        from onnx import helper

        self.nodes.append(helper.make_node(operator, list(inputs), [name], name=name, domain=domain, **attributes))
        return name

    def constant(self, name: str, value: Any) -> str:
        """Add a constant array once."""
        import numpy as np
        from onnx import numpy_helper

        if name not in self._known:
            self._known.add(name)
            self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def scalar(self, value: float) -> str:
        """Add a float constant."""
        import numpy as np

        return self.constant(f"scalar {value}", np.float32(value))

    def integers(self, *values: int) -> str:
        """Add a list of integers (shapes, axes)."""
        import numpy as np

        return self.constant(f"integers {values}", np.array(values, dtype=np.int64))

    def attention_mask(self) -> str:
        """Turn the mask of ones and zeros into what is added to attention scores: 0 and a very negative number."""
        from onnx import TensorProto

        kept = self.add("Cast", ["attention_mask"], name="mask.float", to=TensorProto.FLOAT)
        dropped = self.add("Sub", [self.scalar(1.0), kept], name="mask.dropped")
        penalty = self.add("Mul", [dropped, self.scalar(_MASKED)], name="mask.penalty")
        return self.add("Unsqueeze", [penalty, self.integers(1, 2)], name="mask")

    def embeddings(self) -> str:
        """Sum word, position and type embeddings, normalised."""
        hidden = self.shape.hidden
        positions = self.weights.floats("emb.pos").reshape(-1, hidden)[: self.shape.positions]
        size = self.add("Shape", ["input_ids"], name="ids.shape")
        # Not Gather(Range(tokens)): ONNX Runtime rewrites that into a Slice that it then refuses.
        length = self.add("Slice", [size, self.integers(1), self.integers(2)], name="ids.length")
        table = self.constant("emb.pos", positions)
        placed = self.add("Slice", [table, self.integers(0), length, self.integers(0)], name="emb.placed")
        summed = self.add("Add", [self._words(), placed], name="emb.sum")
        first_type = self.constant("emb.type", self.weights.floats("emb.type").reshape(-1, hidden)[0])
        typed = self.add("Add", [summed, first_type], name="emb.typed")
        return self.normalised(typed, "emb.ln")

    def _words(self) -> str:
        import numpy as np
        from onnx import TensorProto, helper

        scales, values = self.weights.blocks("emb.word", self.shape.hidden)
        # The file stores 0..15 with the zero at 8; INT4 is two's complement, so the zero moves to 0.
        signed = ((values.astype(np.int16) - 8) & 15).astype(np.uint8).reshape(-1, self.shape.hidden)
        packed = signed[:, 0::2] | (signed[:, 1::2] << 4)
        tensor = helper.make_tensor("emb.word", TensorProto.INT4, list(signed.shape), packed.tobytes(), raw=True)
        self.constants.append(tensor)
        return self.add(
            "GatherBlockQuantized",
            ["emb.word", "input_ids", self.constant("emb.word.scales", scales)],
            name="emb.words",
            domain="com.microsoft",
            block_size=self.shape.block,
            gather_axis=0,
            quantize_axis=1,
        )

    def encoder_layer(self, layer: int, state: str, mask: str) -> str:
        """Add attention and feed-forward of one layer, each with its residual connection."""
        at = f"l{layer}"
        hidden, inner = self.shape.hidden, self.shape.feed_forward
        attended = self.linear(self._attention(at, state, mask), f"{at}.ao", hidden, hidden)
        state = self.normalised(self.add("Add", [state, attended], name=f"{at}.residual1"), f"{at}.aln")
        wide = self._gelu(self.linear(state, f"{at}.fi", inner, hidden), at)
        narrow = self.linear(wide, f"{at}.fo", hidden, inner)
        return self.normalised(self.add("Add", [state, narrow], name=f"{at}.residual2"), f"{at}.oln")

    def _attention(self, at: str, state: str, mask: str) -> str:
        hidden, heads = self.shape.hidden, self.shape.heads
        width = hidden // heads
        split = {}
        for role, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
            flat = self.linear(state, f"{at}.{role}", hidden, hidden)
            by_head = self.add("Reshape", [flat, self.integers(0, 0, heads, width)], name=f"{at}.{role}.heads")
            split[role] = self.add("Transpose", [by_head], name=f"{at}.{role}.turned", perm=order)
        raw = self.add("MatMul", [split["q"], split["k"]], name=f"{at}.scores.raw")
        scaled = self.add("Mul", [raw, self.scalar(width**-0.5)], name=f"{at}.scores.scaled")
        masked = self.add("Add", [scaled, mask], name=f"{at}.scores")
        shares = self.add("Softmax", [masked], name=f"{at}.shares", axis=-1)
        mixed = self.add("MatMul", [shares, split["v"]], name=f"{at}.mixed")
        turned = self.add("Transpose", [mixed], name=f"{at}.mixed.turned", perm=[0, 2, 1, 3])
        return self.add("Reshape", [turned, self.integers(0, 0, hidden)], name=f"{at}.attention")

    def linear(self, state: str, name: str, rows: int, columns: int) -> str:
        """Add a dense layer with 4-bit weights (rows x columns) and a bias."""
        scales, values = self.weights.blocks(f"{name}.w", columns)
        packed = values[..., 0::2] | (values[..., 1::2] << 4)
        product = self.add(
            "MatMulNBits",
            [
                state,
                self.constant(f"{name}.weights", packed),
                self.constant(f"{name}.scales", scales.reshape(-1)),
            ],
            name=f"{name}.product",
            domain="com.microsoft",
            K=columns,
            N=rows,
            bits=4,
            block_size=self.shape.block,
            accuracy_level=4,
        )
        bias = self.constant(f"{name}.bias", self.weights.floats(f"{name}.b"))
        return self.add("Add", [product, bias], name=f"{name}.out")

    def normalised(self, state: str, name: str) -> str:
        """Add a layer normalisation."""
        scale = self.constant(f"{name}.scale", self.weights.floats(f"{name}.w"))
        bias = self.constant(f"{name}.bias", self.weights.floats(f"{name}.b"))
        return self.add(
            "LayerNormalization", [state, scale, bias], name=f"{name}.out", axis=-1, epsilon=self.shape.epsilon
        )

    def _gelu(self, state: str, at: str) -> str:
        return self.add("Gelu", [state], name=f"{at}.gelu")
