"""Exact forward pass of recurrent and hybrid models in NumPy: Mamba 2, LFM 2, Granite hybrid.

The scan of Mamba 2 is written as the quadratic form of its paper (Dao and Gu, "Transformers are
SSMs", 2024, section 3): one masked matrix per head, no state that goes from token to token.
"""

# NumPy's stubs type many operators as Any.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.reference.decoder_forward import Array, DecoderReference


class RecurrentReference(DecoderReference):
    """As DecoderReference; layers that the file has no attention tensors for are recurrent."""

    def __init__(self, path: str | Path, dtype: type[np.floating[Any]] = np.float64) -> None:
        super().__init__(path, dtype)
        number = self.numbers.get
        granite = self.architecture == "granitehybrid"
        self.residual_scale = float(number("residual_scale", 1.0)) if granite else 1.0
        self.embedding_scale = float(number("embedding_scale", 1.0)) if granite else 1.0
        if granite:
            self.logit_scale = 1 / self.logit_scale
        self.rotates = not granite or bool(number("rope.scaling.finetuned", False))

    def rope(self, x: Array, layer: int) -> Array:
        return super().rope(x, layer) if self.rotates else x

    def convolution(self, x: Array, name: str) -> Array:
        """Each channel of x [tokens, channels] with its taps, the newest input's last."""
        taps = self.weights[f"{name}.weight"]
        kept = taps.shape[1] - 1
        padded = np.concatenate([np.zeros((kept, x.shape[1]), x.dtype), x])
        windows = np.lib.stride_tricks.sliding_window_view(padded, kept + 1, axis=0)
        out = np.einsum("tck,ck->tc", windows, taps)
        return out + self.weights.get(f"{name}.bias", np.zeros(1, x.dtype))

    def short_conv(self, x: Array, layer: int) -> Array:
        block = f"blk.{layer}.shortconv."
        b, c, values = np.split(self.dense(x, f"{block}in_proj"), 3, axis=1)
        return self.dense(c * self.convolution(b * values, f"{block}conv"), f"{block}out_proj")

    def mamba2(self, x: Array, layer: int) -> Array:
        block, number = f"blk.{layer}.", self.numbers.get
        inner, heads = int(number("ssm.inner_size", 0)), int(number("ssm.time_step_rank", 0))
        groups, size = int(number("ssm.group_count", 1)), int(number("ssm.state_size", 0))
        projected = self.dense(x, f"{block}ssm_in")
        gate, x_b_c, dt = np.split(projected, [inner, 2 * inner + 2 * groups * size], axis=1)
        x_b_c = self.activate(self.convolution(x_b_c, f"{block}ssm_conv1d"))
        values, b, c = np.split(x_b_c, [inner, inner + groups * size], axis=1)
        values = values.reshape(len(x), heads, -1)
        b, c = (part.reshape(len(x), groups, size) for part in (b, c))
        dt = np.logaddexp(0, dt + self.weights[f"{block}ssm_dt.bias"])
        decay = np.cumsum(dt * self.weights[f"{block}ssm_a"].ravel(), axis=0)
        out = np.empty_like(values)
        for head in range(heads):
            group = head // (heads // groups)
            since = decay[:, None, head] - decay[None, :, head]
            visible = np.tril(np.ones((len(x), len(x)), bool))
            mask = np.where(visible, np.exp(np.where(visible, since, 0)), 0)
            scores = mask * (c[:, group] @ b[:, group].T) * dt[None, :, head]
            skip = self.weights[f"{block}ssm_d"].ravel()[head]
            out[:, head] = scores @ values[:, head] + skip * values[:, head]
        gated = (out.reshape(len(x), inner) * self.activate(gate)).reshape(len(x), groups, -1)
        mean_square = np.mean(gated**2, axis=-1, keepdims=True)
        normed = (
            gated / np.sqrt(mean_square + self.epsilon) * self.weights[f"{block}ssm_norm.weight"]
        )
        return self.dense(normed.reshape(len(x), inner), f"{block}ssm_out")

    def mixed(self, x: Array, layer: int) -> Array:
        if f"blk.{layer}.ssm_in.weight" in self.weights:
            return self.mamba2(x, layer)
        if f"blk.{layer}.shortconv.conv.weight" in self.weights:
            return self.short_conv(x, layer)
        return self.attention(x, layer)

    def hidden(self, tokens: Sequence[int]) -> Array:
        x = self.weights["token_embd.weight"][np.asarray(tokens, np.int64)] * self.embedding_scale
        for layer in range(self.layers):
            block = f"blk.{layer}."
            mixed = self.mixed(self.norm(x, f"{block}attn_norm.weight"), layer)
            x = x + self.residual_scale * mixed
            if f"{block}ffn_down.weight" in self.weights:
                fed = self.feed_forward(self.norm(x, f"{block}ffn_norm.weight"), layer)
                x = x + self.residual_scale * fed
        return x

    def head(self, x: Array) -> Array:
        # LFM 2 has its last norm under another name.
        return super().head(self.norm(x, "token_embd_norm.weight"))
