"""Exact forward pass of a llama GGUF file in NumPy: the definition that pykv is held to.

Reads the file with the `gguf` package and dequantizes with the formulas below; nothing of
pykv is used. `dtype` is that of all arithmetic (float32 or float64).
"""

# NumPy's stubs type many operators as Any.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating[Any]]


def dequantize(
    raw: npt.NDArray[np.generic],
    kind: gguf.GGMLQuantizationType,
    columns: int,
    dtype: type[np.floating[Any]],
) -> Array:
    """Bytes of whole rows -> `dtype` [rows, columns], the values they stand for.

    Products are exact in float32 already (11 by 8 bits); only Q4_1's sum is rounded, once.
    """
    data = np.ascontiguousarray(raw).reshape(-1).view(np.uint8)
    types = gguf.GGMLQuantizationType
    if kind == types.F32:
        return data.view(np.float32).astype(dtype).reshape(-1, columns)
    if kind == types.F16:
        return data.view(np.float16).astype(dtype).reshape(-1, columns)
    if kind == types.Q8_0:  # f16 scale, 32 int8
        blocks = data.reshape(-1, 34)
        scale = blocks[:, :2].copy().view(np.float16).astype(dtype)
        return (scale * blocks[:, 2:].view(np.int8)).reshape(-1, columns)
    if kind == types.Q4_1:  # f16 scale, f16 minimum, 32 nibbles: low ones first
        blocks = data.reshape(-1, 20)
        scale = blocks[:, :2].copy().view(np.float16).astype(dtype)
        minimum = blocks[:, 2:4].copy().view(np.float16).astype(dtype)
        nibbles = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
        return (scale * nibbles + minimum).reshape(-1, columns)
    raise ValueError(f"no formula for {kind.name}")


def through_q8_0(x: Array) -> Array:
    """x [..., n * 32] as a q8_0 cache gives it back: int8 times an f16 scale per 32 elements."""
    blocks = x.reshape(-1, 32)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / x.dtype.type(127)
    quantized = np.rint(blocks / np.where(scale > 0, scale, 1))
    return (quantized * scale.astype(np.float16).astype(x.dtype)).reshape(x.shape)


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def log_softmax(x: Array) -> npt.NDArray[np.float64]:
    """Natural logarithms of the probabilities, float64 whatever x is."""
    wide = x.astype(np.float64)
    wide = wide - wide.max(axis=-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))


class LlamaReference:
    """All weights of one file, dequantized to `dtype`.

    `store` is what happens to K and V [tokens, kv_heads, head_dim] on their way through a
    cache; by default nothing.
    """

    store: Callable[[Array], Array] | None = None

    def __init__(self, path: str | Path, dtype: type[np.floating[Any]] = np.float32) -> None:
        reader = gguf.GGUFReader(path)
        self.dtype = dtype
        self.weights: dict[str, Array] = {}
        for tensor in reader.tensors:
            columns = int(tensor.shape[0])
            values = dequantize(tensor.data, tensor.tensor_type, columns, dtype)
            self.weights[tensor.name] = values[0] if len(tensor.shape) == 1 else values

        def number(key: str) -> Any:
            field = reader.get_field(f"llama.{key}")
            return None if field is None else field.contents()

        self.layers = int(number("block_count"))
        self.heads = int(number("attention.head_count"))
        self.kv_heads = int(number("attention.head_count_kv") or self.heads)
        self.width = int(number("embedding_length"))
        self.head_dim = int(number("attention.key_length") or self.width // self.heads)
        self.epsilon = float(number("attention.layer_norm_rms_epsilon"))
        self.rope_base = float(number("rope.freq_base") or 10000.0)
        self.rope_dims = int(number("rope.dimension_count") or self.head_dim)

    def norm(self, x: Array, name: str) -> Array:
        mean_square = np.mean(x * x, axis=-1, keepdims=True)
        return x / np.sqrt(mean_square + self.dtype(self.epsilon)) * self.weights[name]

    def rope(self, x: Array) -> Array:
        """Rotates the pairs (2i, 2i + 1) of x [tokens, heads, head_dim] by position."""
        half = np.arange(self.rope_dims // 2, dtype=np.float64)
        frequency = self.rope_base ** (-2.0 * half / self.rope_dims)
        angle = np.arange(len(x), dtype=np.float64)[:, None, None] * frequency
        cos, sin = np.cos(angle).astype(self.dtype), np.sin(angle).astype(self.dtype)
        out = x.copy()
        even, odd = x[..., 0 : self.rope_dims : 2], x[..., 1 : self.rope_dims : 2]
        out[..., 0 : self.rope_dims : 2] = even * cos - odd * sin
        out[..., 1 : self.rope_dims : 2] = even * sin + odd * cos
        return out

    def attention(self, x: Array, layer: int) -> Array:
        tokens = len(x)
        w = {name: self.weights[f"blk.{layer}.attn_{name}.weight"] for name in "qkv"}
        q = self.rope((x @ w["q"].T).reshape(tokens, self.heads, self.head_dim))
        k = self.rope((x @ w["k"].T).reshape(tokens, self.kv_heads, self.head_dim))
        v = (x @ w["v"].T).reshape(tokens, self.kv_heads, self.head_dim)
        if self.store is not None:
            k, v = self.store(k), self.store(v)
        visible = np.tril(np.ones((tokens, tokens), dtype=bool))
        scale = self.dtype(1.0 / np.sqrt(self.head_dim))
        out = np.empty_like(q)
        for head in range(self.heads):
            kv = head // (self.heads // self.kv_heads)
            scores = np.where(visible, q[:, head] @ k[:, kv].T * scale, self.dtype(-np.inf))
            out[:, head] = softmax(scores) @ v[:, kv]
        flat = out.reshape(tokens, self.heads * self.head_dim)
        return flat @ self.weights[f"blk.{layer}.attn_output.weight"].T

    def feed_forward(self, x: Array, layer: int) -> Array:
        gate = x @ self.weights[f"blk.{layer}.ffn_gate.weight"].T
        up = x @ self.weights[f"blk.{layer}.ffn_up.weight"].T
        activated = gate / (self.dtype(1.0) + np.exp(-gate)) * up
        return activated @ self.weights[f"blk.{layer}.ffn_down.weight"].T

    def logits(self, tokens: Sequence[int], rows: slice = slice(None)) -> Array:
        """Logits [selected rows, vocab] of a sequence that starts at position 0."""
        table = self.weights["token_embd.weight"]
        x = table[np.asarray(tokens, dtype=np.int64)]
        for layer in range(self.layers):
            x = x + self.attention(self.norm(x, f"blk.{layer}.attn_norm.weight"), layer)
            x = x + self.feed_forward(self.norm(x, f"blk.{layer}.ffn_norm.weight"), layer)
        x = self.norm(x[rows], "output_norm.weight")
        return x @ self.weights.get("output.weight", table).T
