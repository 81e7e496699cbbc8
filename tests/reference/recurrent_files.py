"""Writes small random GGUF files of recurrent and hybrid models with the `gguf` package, with the
names and shapes that llama.cpp's converter gives them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from tests.reference.gguf_files import add_vocabulary, vocabulary


@dataclass(frozen=True)
class TinyRecurrent:
    """Shape of a tiny mamba2, lfm2 or granitehybrid model."""

    architecture: str = "granitehybrid"
    pattern: str = "rra"  # a layer each: recurrent or attention
    width: int = 64
    heads: int = 4  # of attention
    kv_heads: int = 2
    feed_forward: int = 80
    taps: int = 4
    ssm_heads: int = 6
    ssm_head_dim: int = 16
    groups: int = 2
    state_size: int = 24
    rope: bool = False  # granitehybrid: its attention rotates
    scales: bool = True  # granitehybrid: of embedding, residuals, logits and attention
    weight_type: str = "F32"
    tied: bool = True
    context: int = 1024
    seed: int = 1

    @property
    def inner(self) -> int:
        return self.ssm_heads * self.ssm_head_dim

    @property
    def channels(self) -> int:
        return self.inner + 2 * self.groups * self.state_size


def write_tiny_recurrent(path: str | Path, spec: TinyRecurrent) -> Path:
    """Writes the model `spec` describes; the same spec gives the same bytes."""
    writer = gguf.GGUFWriter(path, spec.architecture)
    _add_metadata(writer, spec)
    add_vocabulary(writer)
    _Tensors(writer, spec).add_all()
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(path)


def _add_metadata(writer: gguf.GGUFWriter, spec: TinyRecurrent) -> None:
    name = spec.architecture
    writer.add_name("tiny")
    writer.add_block_count(len(spec.pattern))
    writer.add_context_length(spec.context)
    writer.add_embedding_length(spec.width)
    writer.add_layer_norm_rms_eps(1e-5)
    if name == "mamba2":
        writer.add_head_count(0)
        writer.add_feed_forward_length(0)
    else:
        writer.add_feed_forward_length(spec.feed_forward)
        writer.add_head_count(spec.heads)
        kv_heads = [spec.kv_heads if kind == "a" else 0 for kind in spec.pattern]
        writer.add_head_count_kv(kv_heads)
        writer.add_rope_freq_base(10000.0)
    if name == "lfm2":
        writer.add_shortconv_l_cache(spec.taps)
        return
    writer.add_ssm_conv_kernel(spec.taps)
    writer.add_ssm_inner_size(spec.inner)
    writer.add_ssm_state_size(spec.state_size)
    writer.add_ssm_time_step_rank(spec.ssm_heads)
    writer.add_ssm_group_count(spec.groups)
    if name == "granitehybrid":
        writer.add_rope_scaling_finetuned(spec.rope)
        writer.add_rope_dimension_count(spec.width // spec.heads)
        if spec.scales:
            writer.add_embedding_scale(3.5)
            writer.add_residual_scale(0.4)
            writer.add_logit_scale(4.0)
            writer.add_attention_scale(0.21)


class _Tensors:
    def __init__(self, writer: gguf.GGUFWriter, spec: TinyRecurrent) -> None:
        self.writer = writer
        self.spec = spec
        self.rng = np.random.default_rng(spec.seed)

    def add_all(self) -> None:
        spec, vocab = self.spec, len(vocabulary())
        self.matrix("token_embd", vocab, spec.width, scale=4.0, kind="F32")
        for layer, kind in enumerate(spec.pattern):
            self.add_layer(f"blk.{layer}.", kind)
        lfm2 = spec.architecture == "lfm2"
        self.gain("token_embd_norm.weight" if lfm2 else "output_norm.weight", spec.width)
        if not spec.tied:
            self.matrix("output", vocab, spec.width, scale=4.0)

    def add_layer(self, block: str, kind: str) -> None:
        spec = self.spec
        self.gain(block + "attn_norm.weight", spec.width)
        if kind == "a":
            self.attention(block)
        elif spec.architecture == "lfm2":
            self.matrix(block + "shortconv.in_proj", 3 * spec.width, spec.width, scale=1.5)
            self.matrix(block + "shortconv.conv", spec.width, spec.taps, kind="F32")
            self.matrix(block + "shortconv.out_proj", spec.width, spec.width, scale=1.5)
        else:
            self.mamba2(block)
        if spec.architecture != "mamba2":
            self.gain(block + "ffn_norm.weight", spec.width)
            self.matrix(block + "ffn_gate", spec.feed_forward, spec.width)
            self.matrix(block + "ffn_up", spec.feed_forward, spec.width)
            self.matrix(block + "ffn_down", spec.width, spec.feed_forward)

    def attention(self, block: str) -> None:
        spec = self.spec
        kv = spec.width // spec.heads * spec.kv_heads
        self.matrix(block + "attn_q", spec.width, spec.width, scale=2.0)
        self.matrix(block + "attn_k", kv, spec.width, scale=2.0)
        self.matrix(block + "attn_v", kv, spec.width)
        self.matrix(block + "attn_output", spec.width, spec.width)
        if spec.architecture == "lfm2":
            self.gain(block + "attn_q_norm.weight", spec.width // spec.heads)
            self.gain(block + "attn_k_norm.weight", spec.width // spec.heads)

    def mamba2(self, block: str) -> None:
        spec, rng = self.spec, self.rng
        self.matrix(
            block + "ssm_in", spec.inner + spec.channels + spec.ssm_heads, spec.width, scale=1.5
        )
        self.matrix(block + "ssm_conv1d", spec.channels, spec.taps, kind="F32")
        self.vector(block + "ssm_conv1d.bias", rng.normal(0, 0.3, spec.channels))
        self.vector(block + "ssm_dt.bias", rng.normal(-1, 1, spec.ssm_heads))
        self.vector(block + "ssm_a", -rng.uniform(0.02, 2, (spec.ssm_heads, 1)))
        self.vector(block + "ssm_d", rng.normal(0, 1, (spec.ssm_heads, 1)))
        self.gain(block + "ssm_norm.weight", spec.groups, spec.inner // spec.groups)
        self.matrix(block + "ssm_out", spec.width, spec.inner)

    def matrix(
        self, name: str, rows: int, columns: int, scale: float = 1.0, kind: str = ""
    ) -> None:
        values = self.rng.normal(0.0, scale / np.sqrt(columns), (rows, columns))
        quantization = gguf.GGMLQuantizationType[kind or self.spec.weight_type]
        data = gguf.quantize(values.astype(np.float32), quantization)
        self.writer.add_tensor(f"{name}.weight", data, raw_dtype=quantization)

    def gain(self, name: str, *shape: int) -> None:
        self.vector(name, self.rng.uniform(0.5, 1.5, shape))

    def vector(self, name: str, values: np.ndarray) -> None:
        self.writer.add_tensor(name, values.astype(np.float32))
