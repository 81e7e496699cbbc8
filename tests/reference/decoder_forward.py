"""Exact forward pass of a GGUF file in NumPy: the definition that pykv is held to.

Gemma 2 and 3, gpt-oss, Llama, OLMo 2, Phi 3, Qwen 2 and Qwen 3. Norms, biases and fused
matrices, sinks and experts are taken where the file has them. What depends on the architecture:
the pairs of the rotary embedding; Gemma's activation, scale of the embedding, windows and
softcaps; the windows and the activation of gpt-oss.

Reads and dequantizes the file with the `gguf` package; nothing of pykv is used. `dtype` is
that of all arithmetic (float32 or float64).
"""

# NumPy's stubs type many operators as Any.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating[Any]]


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def log_softmax(x: Array) -> npt.NDArray[np.float64]:
    """Natural logarithms of the probabilities, float64 whatever x is."""
    wide = x.astype(np.float64)
    wide = wide - wide.max(axis=-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))


class DecoderReference:
    """All weights of one file, dequantized to `dtype`.

    `store` is what happens to K and V [tokens, kv_heads, head_dim] on their way through a
    cache; by default nothing. `context` is the longest sequence to come (by default the
    trained context), which decides between the rotary factors of Phi 3.
    """

    store: Callable[[Array, Array], tuple[Array, Array]] | None = None

    def __init__(
        self,
        path: str | Path,
        dtype: type[np.floating[Any]] = np.float32,
        context: int | None = None,
    ) -> None:
        reader = gguf.GGUFReader(path)
        self.dtype = dtype
        self.weights: dict[str, Array] = {}
        for tensor in reader.tensors:
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
            shape = [int(n) for n in reversed(tensor.shape)]
            self.weights[tensor.name] = values.reshape(shape).astype(dtype)
        self.architecture = str(reader.fields["general.architecture"].contents())
        prefix = f"{self.architecture}."
        self.numbers: dict[str, Any] = {
            name.removeprefix(prefix): field.contents()
            for name, field in reader.fields.items()
            if name.startswith(prefix)
        }
        number = self.numbers.get
        self.layers = int(number("block_count", 0))
        self.heads = int(number("attention.head_count", 0))
        kv_heads = number("attention.head_count_kv", self.heads)  # or a number for each layer
        self.kv_heads = int(max(kv_heads) if isinstance(kv_heads, list) else kv_heads)
        self.width = int(number("embedding_length", 0))
        self.feed_forward_width = int(number("feed_forward_length", 0))
        self.head_dim = int(number("attention.key_length", self.width // max(self.heads, 1)))
        self.epsilon = float(number("attention.layer_norm_rms_epsilon", 1e-5))
        gemma_27b = (self.architecture, self.layers) in (("gemma2", 46), ("gemma3", 62))
        head_size = self.width / max(self.heads, 1) if gemma_27b else self.head_dim
        self.scale = float(number("attention.scale", head_size**-0.5))
        self.logit_scale = float(number("logit_scale", 1.0))
        self.rope_dims = int(number("rope.dimension_count", self.head_dim))
        trained = int(number("context_length", 0))
        self.frequencies, self.magnitude = self.rotation(context or trained, trained)
        self.gemma = self.architecture.startswith("gemma")
        caps = (50.0, 30.0) if self.architecture == "gemma2" else (0.0, 0.0)
        self.attention_softcap = float(number("attn_logit_softcapping", caps[0]))
        self.logit_softcap = float(number("final_logit_softcapping", caps[1]))
        self.windows = self.layer_windows()

    def layer_windows(self) -> list[int]:
        """How many positions each layer sees; 0: all."""
        period = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2}.get(self.architecture, 0)
        if period == 0:
            return [0] * self.layers
        default = {"gemma2": 4096, "gpt-oss": 128}.get(self.architecture, 0)
        size = int(self.numbers.get("attention.sliding_window", default))
        pattern = self.numbers.get("attention.sliding_window_pattern", period)
        if not isinstance(pattern, list):
            pattern = [(layer + 1) % pattern != 0 for layer in range(self.layers)]
        return [size if windowed else 0 for windowed in pattern]

    def rotation(self, context: int, trained: int) -> tuple[npt.NDArray[np.float64], float]:
        """Radians per position of each pair, and the factor on what is rotated."""
        number = self.numbers.get
        base = float(number("rope.freq_base", 10000.0))
        pairs = np.arange(self.rope_dims // 2, dtype=np.float64)
        frequency = base ** (-2.0 * pairs / self.rope_dims)
        original = int(number("rope.scaling.original_context_length", trained))
        which = "long" if context > original else "short"
        for name in ("rope_freqs.weight", f"rope_factors_{which}.weight"):
            if name in self.weights:
                frequency = frequency / self.weights[name].astype(np.float64)
        kind = number("rope.scaling.type", "linear")
        factor = float(number("rope.scaling.factor", 0.0) or number("rope.scale_linear", 1.0))
        magnitude = float(number("rope.scaling.attn_factor", 1.0))
        if kind == "linear":
            frequency = frequency / factor
        elif kind == "yarn":
            turns = {"fast": 32.0, "slow": 1.0}
            low, high = (
                self.rope_dims
                * np.log(original / (number(f"rope.scaling.yarn_beta_{k}", turns[k]) * 2 * np.pi))
                / (2 * np.log(base))
                for k in ("fast", "slow")
            )
            low, high = max(np.floor(low), 0), min(np.ceil(high), self.rope_dims - 1)
            interpolated = np.clip((pairs - low) / max(high - low, 0.001), 0, 1)
            frequency = frequency * (1 - interpolated) + frequency / factor * interpolated
            default = 0.1 * np.log(factor) + 1.0 if factor > 1 else 1.0
            magnitude *= float(number("rope.scaling.yarn_attn_factor", default))
        return frequency, magnitude

    def norm(self, x: Array, name: str) -> Array:
        """RMS norm over groups as long as the gain; x itself if the file has no such norm."""
        gain = self.weights.get(name)
        if gain is None:
            return x
        groups = x.reshape(*x.shape[:-1], -1, len(gain))
        mean_square = np.mean(groups * groups, axis=-1, keepdims=True)
        normed = groups / np.sqrt(mean_square + self.dtype(self.epsilon)) * gain
        return normed.reshape(x.shape)

    def dense(self, x: Array, name: str, rows: slice = slice(None)) -> Array:
        """A linear layer, or a range of its outputs."""
        out = x @ self.weights[f"{name}.weight"][rows].T
        bias = self.weights.get(f"{name}.bias")
        return out if bias is None else out + bias[rows]

    def rope(self, x: Array, layer: int) -> Array:
        """Rotates pairs of x [tokens, heads, head_dim] by position."""
        frequencies, magnitude = self.frequencies, self.magnitude
        if self.architecture == "gemma3" and self.windows[layer]:
            base = float(self.numbers.get("rope.freq_base_swa", 10000.0))
            pairs = np.arange(self.rope_dims // 2, dtype=np.float64)
            frequencies, magnitude = base ** (-2.0 * pairs / self.rope_dims), 1.0
        angle = np.arange(len(x), dtype=np.float64)[:, None, None] * frequencies
        cos = (magnitude * np.cos(angle)).astype(self.dtype)
        sin = (magnitude * np.sin(angle)).astype(self.dtype)
        half = self.rope_dims // 2
        if self.architecture in ("llama", "granitehybrid"):
            first, second = slice(0, self.rope_dims, 2), slice(1, self.rope_dims, 2)
        else:
            first, second = slice(0, half), slice(half, self.rope_dims)
        out = x.copy()
        out[..., first] = x[..., first] * cos - x[..., second] * sin
        out[..., second] = x[..., first] * sin + x[..., second] * cos
        return out

    def queries_keys_values(self, x: Array, layer: int) -> tuple[Array, Array, Array]:
        block = f"blk.{layer}."
        q_rows, kv_rows = self.heads * self.head_dim, self.kv_heads * self.head_dim
        if f"{block}attn_qkv.weight" in self.weights:
            bounds = np.cumsum([0, q_rows, kv_rows, kv_rows])
            parts = [slice(begin, end) for begin, end in pairwise(bounds)]
            q, k, v = (self.dense(x, f"{block}attn_qkv", part) for part in parts)
        else:
            q, k, v = (self.dense(x, f"{block}attn_{name}") for name in "qkv")
        q = self.norm(q, f"{block}attn_q_norm.weight").reshape(len(x), self.heads, self.head_dim)
        k = self.norm(k, f"{block}attn_k_norm.weight").reshape(len(x), self.kv_heads, self.head_dim)
        v = v.reshape(len(x), self.kv_heads, self.head_dim)
        return self.rope(q, layer), self.rope(k, layer), v

    def attention(self, x: Array, layer: int) -> Array:
        tokens = len(x)
        q, k, v = self.queries_keys_values(x, layer)
        if self.store is not None:
            k, v = self.store(k, v)
        distance = np.arange(tokens)[:, None] - np.arange(tokens)
        visible = (distance >= 0) & (distance < (self.windows[layer] or tokens))
        out = np.empty_like(q)
        for head in range(self.heads):
            kv = head // (self.heads // self.kv_heads)
            scores = self.capped(q[:, head] @ k[:, kv].T * self.scale, self.attention_softcap)
            scores = np.where(visible, scores, self.dtype(-np.inf))
            sinks = self.weights.get(f"blk.{layer}.attn_sinks.weight")
            if sinks is not None:  # one more score, without a value
                scores = np.concatenate([scores, np.full((tokens, 1), sinks[head])], axis=1)
            out[:, head] = softmax(scores)[:, :tokens] @ v[:, kv]
        flat = out.reshape(tokens, self.heads * self.head_dim)
        return self.dense(flat, f"blk.{layer}.attn_output")

    def capped(self, x: Array, softcap: float) -> Array:
        out = softcap * np.tanh(x / softcap) if softcap else x
        return out.astype(self.dtype)

    def activate(self, x: Array) -> Array:
        if self.gemma:  # gelu, as tanh approximates it
            return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        return x / (self.dtype(1.0) + np.exp(-x))

    def feed_forward(self, x: Array, layer: int) -> Array:
        block, inner = f"blk.{layer}.", self.feed_forward_width
        if f"{block}ffn_gate_inp.weight" in self.weights:
            return self.experts(x, block)
        if f"{block}ffn_gate.weight" in self.weights:
            gate, up = self.dense(x, f"{block}ffn_gate"), self.dense(x, f"{block}ffn_up")
        else:
            gate = self.dense(x, f"{block}ffn_up", slice(0, inner))
            up = self.dense(x, f"{block}ffn_up", slice(inner, 2 * inner))
        return self.dense((self.activate(gate) * up).astype(self.dtype), f"{block}ffn_down")

    def experts(self, x: Array, block: str) -> Array:
        """The best few for each row, weighted by the softmax over them."""
        scores = self.dense(x, f"{block}ffn_gate_inp")
        used = int(self.numbers["expert_used_count"])
        best = np.argsort(-scores, axis=1, kind="stable")[:, :used]
        shares = softmax(np.take_along_axis(scores, best, axis=1))
        out = np.zeros_like(x)
        for row, place in np.ndindex(best.shape):
            expert = best[row, place]

            def layer(y: Array, name: str, expert: int = expert) -> Array:
                result: Array = self.weights[f"{block}{name}.weight"][expert] @ y
                bias = self.weights.get(f"{block}{name}.bias")
                return result if bias is None else result + bias[expert]

            gate, up = layer(x[row], "ffn_gate_exps"), layer(x[row], "ffn_up_exps")
            if self.architecture == "gpt-oss":
                gate, up = np.minimum(gate, 7), np.clip(up, -7, 7) + 1
                gated = gate / (1 + np.exp(-1.702 * gate)) * up
            else:
                gated = self.activate(gate) * up
            out[row] += shares[row, place] * layer(gated.astype(self.dtype), "ffn_down_exps")
        return out

    def hidden(self, tokens: Sequence[int]) -> Array:
        """Output of the last layer, [tokens, width], of a sequence that starts at position 0."""
        x = self.weights["token_embd.weight"][np.asarray(tokens, dtype=np.int64)]
        if self.gemma:
            x = x * self.dtype(np.sqrt(self.width))
        for layer in range(self.layers):
            block = f"blk.{layer}."
            mixed = self.attention(self.norm(x, f"{block}attn_norm.weight"), layer)
            after, before = "post_attention_norm", "ffn_norm"
            if self.architecture == "gpt-oss":  # has the second by the name of the first
                after, before = "no norm", after
            x = x + self.norm(mixed, f"{block}{after}.weight")
            fed = self.feed_forward(self.norm(x, f"{block}{before}.weight"), layer)
            x = x + self.norm(fed, f"{block}post_ffw_norm.weight")
        return x

    def head(self, x: Array) -> Array:
        """Logits of rows of `hidden`."""
        x = self.norm(x, "output_norm.weight")
        name = "output" if "output.weight" in self.weights else "token_embd"
        return self.capped(self.dense(x, name) * self.dtype(self.logit_scale), self.logit_softcap)

    def logits(self, tokens: Sequence[int], rows: slice = slice(None)) -> Array:
        """Logits [selected rows, vocab] of a sequence that starts at position 0."""
        return self.head(self.hidden(tokens)[rows])
