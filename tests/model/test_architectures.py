"""Every architecture and rotary scaling: logits against the NumPy forward pass, bit-equal
however the work is cut, and clear refusals of files that do not fit together."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pykv import _core
from tests.model.cuts import assert_cuts_change_nothing
from tests.model.machine import Machine, random_tokens
from tests.reference.decoder_forward import DecoderReference
from tests.reference.gguf_files import TinyModel

TinyPath = Callable[[TinyModel], Path]

YARN = (
    ("rope.scaling.type", "yarn"),
    ("rope.scaling.factor", 4.0),
    ("rope.scaling.original_context_length", 256),
)
LONGROPE = (("rope.scaling.original_context_length", 256), ("rope.scaling.attn_factor", 1.19))
WINDOW = (("attention.sliding_window", 50),)
GPT_OSS = TinyModel("gpt-oss", experts=6, experts_used=2, metadata=WINDOW)
SPECS = {
    "llama, all biases": TinyModel(biases=("qkv", "output", "ffn"), tied=False),
    "llama, linear scaling": TinyModel(
        metadata=(("rope.scaling.type", "linear"), ("rope.scaling.factor", 4.0))
    ),
    "llama, linear scaling by its older name": TinyModel(metadata=(("rope.scale_linear", 2.5),)),
    "llama, YaRN": TinyModel(metadata=YARN, rope_base=500000.0),
    "llama, YaRN with all its numbers": TinyModel(
        metadata=(
            *YARN,
            ("rope.scaling.yarn_beta_fast", 16.0),
            ("rope.scaling.yarn_beta_slow", 2.0),
            ("rope.scaling.yarn_attn_factor", 1.3),
        )
    ),
    "llama 3 frequency factors": TinyModel(rope_factors="freqs"),
    "llama, part of the head rotated": TinyModel(rope_dims=24),
    "llama, scales of attention and logits": TinyModel(
        metadata=(("attention.scale", 0.31), ("logit_scale", 0.25))
    ),
    "qwen2": TinyModel("qwen2", head_dim=16),
    "qwen2, YaRN": TinyModel("qwen2", metadata=YARN, rope_base=1e6, tied=False),
    "qwen3": TinyModel("qwen3", head_dim=40, heads=6, kv_heads=3),
    "qwen3, quantized": TinyModel("qwen3", weight_type="Q4_1", embedding_type="Q8_0"),
    "phi3, short factors": TinyModel(
        "phi3", rope_factors="long_short", metadata=LONGROPE, context=256
    ),
    "phi3, long factors": TinyModel("phi3", rope_factors="long_short", metadata=LONGROPE),
    "phi3, part of the head rotated": TinyModel(
        "phi3", rope_factors="long_short", metadata=LONGROPE, rope_dims=24, tied=False
    ),
    "phi3, window of the whole context": TinyModel(
        "phi3", metadata=(("attention.sliding_window", 1024),)
    ),
    "gemma2": TinyModel("gemma2", layers=3, metadata=WINDOW),
    "gemma2, window of the format": TinyModel("gemma2", tied=False),
    "gemma2, hard softcaps": TinyModel(
        "gemma2",
        metadata=(
            *WINDOW,
            ("attn_logit_softcapping", 0.75),
            ("final_logit_softcapping", 2.5),
        ),
    ),
    "gemma3": TinyModel("gemma3", layers=7, rope_base=1e6, metadata=WINDOW),
    "gemma3, period in the file": TinyModel(
        "gemma3", metadata=(*WINDOW, ("attention.sliding_window_pattern", 2)), kv_heads=1
    ),
    "gemma3, layers in the file": TinyModel(
        "gemma3",
        layers=3,
        metadata=(*WINDOW, ("attention.sliding_window_pattern", (False, True, False))),
    ),
    "gemma3, linear scaling": TinyModel(
        "gemma3",
        layers=6,
        rope_base=1e6,
        metadata=(
            *WINDOW,
            ("rope.scaling.type", "linear"),
            ("rope.scaling.factor", 8.0),
            ("rope.freq_base_swa", 5000.0),
        ),
    ),
    "gemma3, no window": TinyModel("gemma3", tied=False),
    "gemma3, quantized": TinyModel(
        "gemma3", metadata=WINDOW, weight_type="Q5_0", embedding_type="Q8_0"
    ),
    "gpt-oss": GPT_OSS,
    "gpt-oss, window of the format": replace(GPT_OSS, metadata=(), layers=3, tied=False),
    "gpt-oss, YaRN": replace(GPT_OSS, metadata=(*WINDOW, *YARN), rope_base=150000.0),
    "gpt-oss, F16": replace(GPT_OSS, weight_type="F16"),
    "gpt-oss, Q8_0": replace(GPT_OSS, weight_type="Q8_0", embedding_type="F16"),
    "gpt-oss, one expert": replace(GPT_OSS, experts_used=1),
    "gpt-oss, all experts": replace(GPT_OSS, experts=3, experts_used=3),
    "olmo2": TinyModel("olmo2", tied=False),
    "olmo2, YaRN": TinyModel("olmo2", metadata=YARN, tied=False, kv_heads=4),
}
WEIGHTS = {  # rows of whole blocks of 256
    f"weights {kind}": TinyModel(
        width=256, head_dim=64, feed_forward=256, layers=1, weight_type=kind, embedding_type=kind
    )
    for kind in ("BF16", "Q4_0", "Q5_0", "Q5_1", "IQ4_NL", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
}
SPECS |= WEIGHTS
ARCHITECTURES = ("gemma2", "gemma3", "llama", "olmo2", "phi3", "qwen2", "qwen3")
WITHOUT_WINDOWS = tuple(name for name in ARCHITECTURES if not name.startswith("gemma"))


def relative_error(logits: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    return float(np.abs(logits - expected).max() / np.abs(expected).max())


@pytest.fixture(scope="module", params=SPECS)
def machine(request: pytest.FixtureRequest, tiny_path: TinyPath) -> Machine:
    return Machine(tiny_path(SPECS[request.param]))


def test_logits_equal_the_reference(machine: Machine) -> None:
    tokens = random_tokens(300, machine.vocab, seed=2)  # crosses a partition of 256 positions
    expected = DecoderReference(machine.gguf.path, np.float64).logits(tokens)
    assert relative_error(machine.cold(tokens), expected) <= 1e-4


def test_bits_do_not_depend_on_how_the_work_is_cut(machine: Machine) -> None:
    assert_cuts_change_nothing(machine)
    machine.cache.erase_all()
    machine.cache.reset_prefixes()


@pytest.mark.parametrize("isa", _core.Backend.available_isas())
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_instruction_set(tiny_path: TinyPath, architecture: str, isa: str) -> None:
    path = tiny_path(TinyModel(architecture, tied=False))
    machine = Machine(path, isa=isa)
    tokens = random_tokens(40, machine.vocab, seed=5)
    expected = DecoderReference(path, np.float64).logits(tokens)
    assert relative_error(machine.cold(tokens), expected) <= 1e-4


def test_the_context_asked_for_decides_between_two_sets_of_factors(tiny_path: TinyPath) -> None:
    path = tiny_path(SPECS["phi3, long factors"])
    tokens = random_tokens(50, 200, seed=6)
    for context, used in ((0, 1024), (257, 257), (256, 256), (1 << 20, 1024)):
        machine = Machine(path, context=context)
        assert machine.model.config["context"] == used
        expected = DecoderReference(path, np.float64, context=used).logits(tokens)
        assert relative_error(machine.cold(tokens), expected) <= 1e-4, context


def load(path: Path, **options: Any) -> None:
    _core.Model(_core.GgufFile(path), _core.Backend(threads=1), **options)


def test_precisions(tiny_path: TinyPath) -> None:
    path = tiny_path(TinyModel(weight_type="Q4_1"))
    tokens = random_tokens(50, 200, seed=7)
    expected = DecoderReference(path, np.float64).logits(tokens)
    errors = {}
    for precision in ("exact", "fast", "fastest"):
        machine = Machine(path, precision=precision)
        assert machine.model.config["precision"] == precision
        errors[precision] = relative_error(machine.cold(tokens), expected)
    assert errors["exact"] <= 1e-4 < errors["fast"] <= 5e-2
    assert errors["fastest"] <= 1e-1
    with pytest.raises(
        _core.InvalidArgument, match='"half" is not a precision; use exact, fast or fastest'
    ):
        load(path, precision="half")


def with_metadata(architecture: str, *items: tuple[str, str | float | int]) -> TinyModel:
    return TinyModel(architecture, metadata=items, layers=1, tied=False)


REFUSED: dict[str, tuple[tuple[str, str | float | int], str]] = {
    "unknown scaling": (("rope.scaling.type", "ntk"), "'ntk', supported are none, linear"),
    "negative factor": (("rope.scaling.factor", -2.0), "rope.scaling.factor' is -2"),
    "infinite factor": (("rope.scaling.factor", float("inf")), "must be finite and above 0"),
    "nan factor": (("rope.scaling.factor", float("nan")), "must be finite and above 0"),
    "factor of another kind": (("rope.scaling.factor", 4), "uint32, expected a float"),
    "zero magnitude": (("rope.scaling.attn_factor", 0.0), "must be finite and above 0"),
    "original context of 0": (("rope.scaling.original_context_length", 0), "allowed is 1 to"),
    "negative attention scale": (("attention.scale", -1.0), "must be finite and above 0"),
    "nan logit scale": (("logit_scale", float("nan")), "must be finite and above 0"),
    "multiplier of YaRN": (("rope.scaling.yarn_log_multiplier", 0.1), "yarn_log_multiplier' asks"),
    "experts": (("expert_count", 8), "expert_count' asks for a feature"),
    "sections": (("rope.dimension_sections", 4), "rope.dimension_sections' asks"),
    "rotation in windows": (("rope.dimension_count_swa", 3), "rope.dimension_count_swa' asks"),
}


WINDOWS_REFUSED: dict[str, tuple[tuple[str, Any], str]] = {
    "layers of another number": (
        ("attention.sliding_window_pattern", (True,)),
        "pattern' lists 1 layers of 2",
    ),
    "period of 0": (("attention.sliding_window_pattern", 0), "pattern' is 0"),
    "softcap below 0": (("attn_logit_softcapping", -1.0), "must be finite and above 0"),
    "softcap of nothing": (("final_logit_softcapping", math.nan), "must be finite and above 0"),
}


@pytest.mark.parametrize("architecture", ["gemma2", "gemma3"])
@pytest.mark.parametrize("name", WINDOWS_REFUSED)
def test_absurd_windows_and_softcaps(tiny_path: TinyPath, name: str, architecture: str) -> None:
    item, message = WINDOWS_REFUSED[name]
    with pytest.raises(_core.CorruptModel, match=message):
        load(tiny_path(TinyModel(architecture, metadata=(*WINDOW, item))))


EXPERTS_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({"experts": 1, "experts_used": 0}, "expert_used_count' is 0, allowed is 1 to 1"),
    "more than there are": ({"experts": 2, "experts_used": 3}, "is 3, allowed is 1 to 2"),
}


@pytest.mark.parametrize("name", EXPERTS_REFUSED)
def test_absurd_experts(tiny_path: TinyPath, name: str) -> None:
    changes, message = EXPERTS_REFUSED[name]
    with pytest.raises(_core.CorruptModel, match=message):
        load(tiny_path(replace(GPT_OSS, **changes)))


@pytest.mark.parametrize(
    "name", ["attn_sinks.weight", "ffn_gate_inp.weight", "ffn_up_exps.bias", "ffn_down_exps.weight"]
)
def test_each_tensor_of_gpt_oss_is_needed(tiny_path: TinyPath, tmp_path: Path, name: str) -> None:
    data, broken = tiny_path(GPT_OSS).read_bytes(), tmp_path / "broken.gguf"
    whole = f"blk.1.{name}".encode()
    broken.write_bytes(data.replace(whole, whole[:-1] + b"x"))
    with pytest.raises(_core.CorruptModel, match=f"'blk.1.{name}' is missing"):
        load(broken)


@pytest.mark.parametrize("isa", _core.Backend.available_isas())
def test_experts_on_every_instruction_set(tiny_path: TinyPath, isa: str) -> None:
    machine = Machine(tiny_path(GPT_OSS), isa=isa)
    tokens = random_tokens(40, machine.vocab, seed=5)
    expected = DecoderReference(machine.gguf.path, np.float64).logits(tokens)
    assert relative_error(machine.cold(tokens), expected) <= 1e-4


@pytest.mark.parametrize(("architecture", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_the_largest_gemma_scales_scores_by_its_width(
    tiny_path: TinyPath, architecture: str, layers: int
) -> None:
    scales = [
        Machine(tiny_path(TinyModel(architecture, layers=n, feed_forward=32))).model.config[
            "attention_scale"
        ]
        for n in (layers - 1, layers)
    ]
    assert scales == [np.float32(32**-0.5), np.float32((64 / 4) ** -0.5)]


def test_window_layers_and_their_rotation(tiny_path: TinyPath) -> None:
    machine = Machine(tiny_path(SPECS["gemma3"]))
    kinds = [
        (spec.window_kind, spec.window_size, spec.rope_id) for spec in machine.model.layer_table
    ]
    assert kinds == [("standard", 50, 1)] * 5 + [("none", 0, 0), ("standard", 50, 1)]
    assert [rope.base for rope in machine.model.ropes] == [1e6, 1e4]


@pytest.mark.parametrize("architecture", WITHOUT_WINDOWS)
def test_a_window_that_the_architecture_lacks_is_refused(
    tiny_path: TinyPath, architecture: str
) -> None:
    with pytest.raises(_core.UnsupportedModel, match="is 50, less than the context of 1024"):
        load(tiny_path(with_metadata(architecture, *WINDOW)))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_computed_is_refused_by_name(
    tiny_path: TinyPath, name: str, architecture: str
) -> None:
    item, message = REFUSED[name]
    with pytest.raises((_core.CorruptModel, _core.UnsupportedModel), match=message):
        load(tiny_path(with_metadata(architecture, item)))


YARN_REFUSED: dict[str, tuple[tuple[str, float], str]] = {
    "factor below the least float": (("rope.scaling.factor", 1e-45), "must be finite and above 0"),
    "no fast turns": (("rope.scaling.yarn_beta_fast", 0.0), "must be finite and above 0"),
    "more than everything kept": (("rope.scaling.yarn_ext_factor", 2.0), "the limit is 1"),
    "zero magnitude": (("rope.scaling.yarn_attn_factor", 0.0), "must be finite and above 0"),
}


@pytest.mark.parametrize("name", YARN_REFUSED)
def test_absurd_numbers_of_yarn(tiny_path: TinyPath, name: str) -> None:
    item, message = YARN_REFUSED[name]
    items = {**dict(YARN), item[0]: item[1]}
    with pytest.raises(_core.CorruptModel, match=message):
        load(tiny_path(with_metadata("llama", *items.items())))
    spec = replace(with_metadata("llama", *YARN), rope_base=1.0)
    with pytest.raises(_core.CorruptModel, match="freq_base above 1"):
        load(tiny_path(spec))


def with_number(path: Path, key: str, value: int | float) -> bytes:
    """The file with another value of a scalar of four bytes."""
    data = path.read_bytes()
    at = data.index(key.encode()) + len(key) + 4  # after the kind
    number = struct.pack("<f" if isinstance(value, float) else "<I", value)
    return data[:at] + number + data[at + 4 :]


WRONG_NUMBERS: list[tuple[str, int | float, str]] = [
    ("attention.head_count", 0, "head_count' is 0"),
    ("attention.head_count", 1 << 31, "head_count' is 2147483648, allowed is 1 to 4096"),
    ("attention.head_count_kv", 0, "head_count_kv' is 0"),
    ("attention.head_count_kv", 3, "4 heads are no multiple of 3 KV heads"),
    ("attention.key_length", 12, "keys of 12 elements beside values of 32"),
    ("attention.key_length", 0, "key_length' is 0"),
    ("rope.dimension_count", 34, "rotation of 34 elements in heads of 32"),
    ("rope.dimension_count", 31, "rotation of 31 elements"),
    ("rope.dimension_count", 0, "dimension_count' is 0"),
    ("rope.freq_base", 0.0, "rope.freq_base' is 0"),
    ("rope.freq_base", math.nan, "must be finite"),
    ("context_length", 0, "context_length' is 0"),
    ("embedding_length", 96, "has shape"),
    ("feed_forward_length", 95, "has shape"),
    ("block_count", 3, "'blk.2.[a-z_.]+' is missing"),
    ("block_count", 1, "'blk.1.[a-z_.]+' belongs to a feature"),
    ("block_count", 1000, "1000 layers need more than the"),
    ("attention.layer_norm_rms_epsilon", -1.0, "must be finite and above 0"),
]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("key", "value", "message"), WRONG_NUMBERS)
def test_numbers_that_do_not_fit(
    tiny_path: TinyPath, tmp_path: Path, architecture: str, key: str, value: float, message: str
) -> None:
    path = tiny_path(TinyModel(architecture, tied=False))
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(with_number(path, f"{architecture}.{key}", value))
    with pytest.raises((_core.CorruptModel, _core.UnsupportedModel), match=message):
        load(broken)


@pytest.mark.parametrize(("head_dim", "message"), [(12, "12"), (584, "584")])
def test_head_sizes_without_a_kernel(tiny_path: TinyPath, head_dim: int, message: str) -> None:
    with pytest.raises(_core.UnsupportedModel, match=f"k_dim is {message}"):
        load(tiny_path(TinyModel(head_dim=head_dim, layers=1)))


def tensor_names(path: Path) -> list[str]:
    return [t.name for t in _core.GgufFile(path).tensors()]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_tensor_is_needed(tiny_path: TinyPath, tmp_path: Path, architecture: str) -> None:
    source = tiny_path(TinyModel(architecture, layers=1, tied=architecture == "llama"))
    data, broken = source.read_bytes(), tmp_path / "broken.gguf"
    for name in tensor_names(source):
        if name == "output.weight":
            continue  # may be tied
        other = name[:-1] + "x"
        broken.write_bytes(data.replace(name.encode(), other.encode()))
        sought = name.replace("qkv", "q")  # without a fused matrix, separate ones are needed
        with pytest.raises(_core.CorruptModel, match=f"'{sought}' is missing"):
            load(broken)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_bias_that_the_architecture_lacks_is_refused(
    tiny_path: TinyPath, architecture: str
) -> None:
    path = tiny_path(TinyModel(architecture, extra_tensor="blk.0.attn_norm.bias"))
    with pytest.raises(_core.UnsupportedModel, match=r"'blk.0.attn_norm.bias' belongs"):
        load(path)


def test_an_optional_bias_is_in_all_layers_or_in_none(tiny_path: TinyPath, tmp_path: Path) -> None:
    data = tiny_path(TinyModel(biases=("ffn",))).read_bytes()
    broken = tmp_path / "broken.gguf"
    for gone, message in (
        (b"blk.1.ffn_up.bias", "'blk.1.ffn_up.bias' is missing"),
        (
            b"blk.0.ffn_up.bias",
            "'blk.0.ffn_up.bixs' belongs to a feature|'blk.1.ffn_up.bias' belongs",
        ),
    ):
        broken.write_bytes(data.replace(gone, gone[:-3] + b"ixs"))
        with pytest.raises(_core.Error, match=message):
            load(broken)


def test_factors_must_fit(tiny_path: TinyPath, tmp_path: Path) -> None:
    path = tiny_path(TinyModel("phi3", rope_factors="long_short", metadata=LONGROPE, layers=1))
    data, broken = path.read_bytes(), tmp_path / "broken.gguf"
    broken.write_bytes(data.replace(b"rope_factors_short", b"rope_factors_shirt"))
    with pytest.raises(_core.CorruptModel, match="must come together"):
        load(broken)
    path = tiny_path(TinyModel(rope_factors="freqs", layers=1))
    values = DecoderReference(path).weights["rope_freqs.weight"].astype(np.float32)
    for bad in (0.0, -1.0, np.nan, np.inf):
        wrong = values.copy()
        wrong[3] = bad
        broken.write_bytes(path.read_bytes().replace(values.tobytes(), wrong.tobytes()))
        with pytest.raises(_core.CorruptModel, match="must be finite and above 0"):
            load(broken)
    path = tiny_path(TinyModel(rope_factors="freqs", rope_dims=24, layers=1))
    broken.write_bytes(with_number(path, "llama.rope.dimension_count", 32))
    with pytest.raises(_core.CorruptModel, match="needed are 16 numbers"):
        load(broken)
