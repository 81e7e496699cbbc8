"""Writes small random GGUF files of every architecture with the `gguf` package, for tests.

They carry a byte-level BPE vocabulary and a chat template, so that tokenizer, engine and
server run on them like on a real model. `header_fields` lists where every count, length,
type and offset of a file lies, to build hostile ones from it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from tests.reference.random_blocks import BLOCK_ELEMENTS, peer_decode, random_blocks

READ_ONLY = ("iq4_nl", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k")  # what the package cannot write
NORM_BEFORE = ("gemma2", "gemma3", "gpt-oss", "llama", "phi3", "qwen2", "qwen3")
NORM_AFTER = ("gemma2", "gemma3", "olmo2")
QK_NORM = ("gemma3", "olmo2", "qwen3")
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# Pairs in the order of their rank; "Ġ" stands for a space in byte-level BPE.
MERGES = (
    "Ġ t", "h e", "Ġ a", "i n", "r e", "Ġt he", "o n", "e r", "Ġ s", "a t", "e n", "o r", "Ġ w",
    "Ġ c", "i s", "Ġ b", "i t", "Ġ f", "e s", "a n", "Ġ o", "in g", "Ġ p", "o u", "a l", "Ġa n",
    "a r", "Ġ m", "Ġo f", "Ġ in", "Ġt o", "e d", "l e", "Ġan d", "i c",
)  # fmt: skip


@dataclass(frozen=True)
class TinyModel:
    """Shape and storage of a tiny model; the defaults suit every KV type."""

    architecture: str = "llama"
    layers: int = 2
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    feed_forward: int = 96
    context: int = 1024
    rope_base: float = 10000.0
    rope_dims: int = 0  # 0: the whole head
    rope_factors: str = ""  # tensors of divisors: "freqs" (llama3) or "long_short" (longrope)
    metadata: tuple[tuple[str, str | float | int | tuple[bool, ...]], ...] = ()  # without prefix
    weight_type: str = "F32"  # of the matrices: a name of gguf.GGMLQuantizationType
    embedding_type: str = "F32"
    tied: bool = True
    biases: tuple[str, ...] = ()  # "qkv", "output", "ffn"; qwen2 always has the first
    experts: int = 0
    experts_used: int = 0
    extra_tensor: str = ""  # name of a vector that no model has
    seed: int = 1


def byte_alphabet() -> list[str]:
    """The printable character that byte-level BPE uses for each byte."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(spare)) for b in range(256)]


def vocabulary() -> list[str]:
    """Special tokens, the 256 bytes, then one token per merge."""
    return [*SPECIAL_TOKENS, *byte_alphabet(), *(merge.replace(" ", "") for merge in MERGES)]


def write_tiny_model(path: str | Path, spec: TinyModel | None = None) -> Path:
    """Writes the model `spec` describes to `path`; the same spec gives the same bytes."""
    spec = spec or TinyModel()
    _write(gguf.GGUFWriter(path, spec.architecture), spec)
    return Path(path)


def write_split_model(folder: Path, spec: TinyModel, tensors: int) -> list[Path]:
    """The same in parts of so many tensors each, model-00001-of-….gguf and so on."""
    path = folder / "model.gguf"
    _write(gguf.GGUFWriter(path, spec.architecture, split_max_tensors=tensors), spec)
    return sorted(folder.glob("model-*-of-*.gguf"))


def _write(writer: gguf.GGUFWriter, spec: TinyModel) -> None:
    _add_metadata(writer, spec)
    add_vocabulary(writer)
    _Tensors(writer, spec).add_all()
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_metadata(writer: gguf.GGUFWriter, spec: TinyModel) -> None:
    writer.add_name("tiny")
    writer.add_block_count(spec.layers)
    writer.add_context_length(spec.context)
    writer.add_embedding_length(spec.width)
    writer.add_feed_forward_length(spec.feed_forward)
    if spec.experts:
        writer.add_expert_count(spec.experts)
        writer.add_expert_used_count(spec.experts_used)
        writer.add_expert_feed_forward_length(spec.feed_forward)
    writer.add_head_count(spec.heads)
    writer.add_head_count_kv(spec.kv_heads)
    if spec.heads * spec.head_dim != spec.width:
        writer.add_key_length(spec.head_dim)
        writer.add_value_length(spec.head_dim)
    writer.add_rope_dimension_count(spec.rope_dims or spec.head_dim)
    writer.add_rope_freq_base(spec.rope_base)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in spec.metadata:
        name = f"{spec.architecture}.{key}"
        if isinstance(value, str):
            writer.add_string(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, tuple):
            writer.add_array(name, list(value))
        else:
            writer.add_uint32(name, value)


def add_vocabulary(writer: gguf.GGUFWriter) -> None:
    tokens = vocabulary()
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    special, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([special if t in SPECIAL_TOKENS else normal for t in tokens])
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


class _Tensors:
    """Adds random tensors, in the order and with the names of the architecture."""

    def __init__(self, writer: gguf.GGUFWriter, spec: TinyModel) -> None:
        self.writer = writer
        self.spec = spec
        self.rng = np.random.default_rng(spec.seed)

    def add_all(self) -> None:
        spec, vocab = self.spec, len(vocabulary())
        self.matrix("token_embd", vocab, spec.width, spec.embedding_type, scale=4.0)
        for layer in range(spec.layers):
            self.add_layer(f"blk.{layer}.")
        self.gain("output_norm", spec.width)
        if not spec.tied:
            self.matrix("output", vocab, spec.width, spec.weight_type, scale=4.0)
        pairs = (spec.rope_dims or spec.head_dim) // 2
        names = {"freqs": ["rope_freqs"], "long_short": ["rope_factors_long", "rope_factors_short"]}
        for name in names.get(spec.rope_factors, []):
            values = self.rng.uniform(1.0, 9.0, pairs).astype(np.float32)
            self.writer.add_tensor(f"{name}.weight", values)
        if spec.extra_tensor:
            self.gain(spec.extra_tensor, spec.width, suffix="")

    def add_layer(self, block: str) -> None:
        spec = self.spec
        before, after = spec.architecture in NORM_BEFORE, spec.architecture in NORM_AFTER
        if before:
            self.gain(block + "attn_norm", spec.width)
        self.add_attention(block)
        if after:
            self.gain(block + "post_attention_norm", spec.width)
        if before:
            name = "post_attention_norm" if spec.architecture == "gpt-oss" else "ffn_norm"
            self.gain(block + name, spec.width)
        self.add_feed_forward(block)
        if after:
            self.gain(block + "post_ffw_norm", spec.width)

    def add_attention(self, block: str) -> None:
        spec, width = self.spec, self.spec.width
        attention, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        biased = "qkv" in spec.biases or spec.architecture in ("gpt-oss", "qwen2")
        if spec.architecture == "phi3":
            self.dense(block + "attn_qkv", attention + 2 * kv, width, biased, scale=1.5)
        else:
            self.dense(block + "attn_q", attention, width, biased, scale=2.0)
            self.dense(block + "attn_k", kv, width, biased, scale=2.0)
            self.dense(block + "attn_v", kv, width, biased)
        if spec.architecture in QK_NORM:
            whole = spec.architecture == "olmo2"
            self.gain(block + "attn_q_norm", attention if whole else spec.head_dim)
            self.gain(block + "attn_k_norm", kv if whole else spec.head_dim)
        biased = "output" in spec.biases or spec.architecture == "gpt-oss"
        self.dense(block + "attn_output", width, attention, biased)
        if spec.architecture == "gpt-oss":
            sinks = self.rng.normal(0.0, 1.5, spec.heads).astype(np.float32)
            self.writer.add_tensor(block + "attn_sinks.weight", sinks)

    def add_feed_forward(self, block: str) -> None:
        spec, width, inner = self.spec, self.spec.width, self.spec.feed_forward
        biased = "ffn" in spec.biases
        if spec.experts:
            self.add_experts(block)
        elif spec.architecture == "phi3":
            self.dense(block + "ffn_up", 2 * inner, width, biased)
        else:
            self.dense(block + "ffn_gate", inner, width, biased)
            self.dense(block + "ffn_up", inner, width, biased)
        if not spec.experts:
            self.dense(block + "ffn_down", width, inner, biased)

    def add_experts(self, block: str) -> None:
        """Router and experts with biases, some large enough for the clamps of gpt-oss."""
        spec, kind = self.spec, gguf.GGMLQuantizationType[self.spec.weight_type]
        self.dense(block + "ffn_gate_inp", spec.experts, spec.width, True, scale=3.0)
        shapes = {
            "gate": (spec.feed_forward, spec.width),
            "up": (spec.feed_forward, spec.width),
            "down": (spec.width, spec.feed_forward),
        }
        for name, (rows, columns) in shapes.items():
            spread = (1.0 if name == "down" else 4.0) / np.sqrt(columns)
            values = self.rng.normal(0.0, spread, (spec.experts, rows, columns))
            data = gguf.quantize(values.astype(np.float32), kind)
            self.writer.add_tensor(f"{block}ffn_{name}_exps.weight", data, raw_dtype=kind)
            biases = self.rng.normal(0.0, 0.3, (spec.experts, rows)).astype(np.float32)
            self.writer.add_tensor(f"{block}ffn_{name}_exps.bias", biases)

    def dense(self, name: str, rows: int, columns: int, biased: bool, scale: float = 1.0) -> None:
        self.matrix(name, rows, columns, self.spec.weight_type, scale)
        if biased:
            self.writer.add_tensor(f"{name}.bias", self.rng.normal(0, 0.5, rows).astype(np.float32))

    def matrix(self, name: str, rows: int, columns: int, kind: str, scale: float = 1.0) -> None:
        spread = scale / np.sqrt(columns)
        quantization = gguf.GGMLQuantizationType[kind]
        if kind.lower() in READ_ONLY:
            data = self.blocks(kind.lower(), rows, columns, spread)
        else:
            values = self.rng.normal(0.0, spread, (rows, columns)).astype(np.float32)
            data = gguf.quantize(values, quantization)
        self.writer.add_tensor(f"{name}.weight", data, raw_dtype=quantization)

    def blocks(self, kind: str, rows: int, columns: int, spread: float) -> npt.NDArray[np.uint8]:
        """Random blocks whose values have about this standard deviation."""
        count = rows * columns // BLOCK_ELEMENTS[kind]
        state = self.rng.bit_generator.state
        data = random_blocks(self.rng, kind, count)
        scales = 0.1 * spread / peer_decode(kind, data).std() * np.array([-1, 1, 2])
        self.rng.bit_generator.state = state  # the same codes
        data = random_blocks(self.rng, kind, count, scales.astype(np.float16))
        return data.reshape(rows, -1)

    def gain(self, name: str, width: int, suffix: str = ".weight") -> None:
        gains = self.rng.uniform(0.5, 1.5, width).astype(np.float32)
        self.writer.add_tensor(name + suffix, gains)


@dataclass(frozen=True)
class Field:
    """A little-endian unsigned number in a GGUF header."""

    offset: int
    width: int  # bytes
    what: str  # count, length, type, dimensions, extent, offset or version


_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9


class _Walker:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 4

    def field(self, width: int, what: str) -> tuple[Field, int]:
        field = Field(self.at, width, what)
        value = int.from_bytes(self.data[self.at : self.at + width], "little")
        self.at += width
        return field, value

    def string(self) -> Iterator[Field]:
        field, length = self.field(8, "length")
        yield field
        self.at += length

    def value(self, kind: int) -> Iterator[Field]:
        if kind == _STRING:
            yield from self.string()
        elif kind == _ARRAY:
            element_field, element = self.field(4, "type")
            count_field, count = self.field(8, "count")
            yield from (element_field, count_field)
            for index in range(count):
                fields = list(self.value(element))
                if index < 3 or index == count - 1:  # the others are alike
                    yield from fields
        else:
            self.at += _SCALAR_BYTES[kind]


def header_fields(data: bytes) -> list[Field]:
    """Every number of the header of a valid file that says how to read the rest."""
    walker = _Walker(data)
    fields = [walker.field(4, "version")[0]]
    tensor_field, tensors = walker.field(8, "count")
    key_field, keys = walker.field(8, "count")
    fields += [tensor_field, key_field]
    for _ in range(keys):
        fields += walker.string()
        type_field, kind = walker.field(4, "type")
        fields.append(type_field)
        fields += walker.value(kind)
    for _ in range(tensors):
        fields += walker.string()
        dimension_field, dimensions = walker.field(4, "dimensions")
        fields.append(dimension_field)
        fields += [walker.field(8, "extent")[0] for _ in range(dimensions)]
        fields += [walker.field(4, "type")[0], walker.field(8, "offset")[0]]
    return fields


def patched(data: bytes, field: Field, value: int) -> bytes:
    """`data` with `field` set to `value` modulo its width."""
    number = struct.pack("<Q", value % (1 << 8 * field.width))[: field.width]
    return data[: field.offset] + number + data[field.offset + field.width :]
