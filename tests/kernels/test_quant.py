"""encode_row and decode_row against the reference and against every f16 there is."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies

from pykv import _core
from tests.kernels.arrays import assert_same_bits, normal
from tests.reference.block_formats import BLOCK_BYTES, KV_TYPES, decode, encode
from tests.reference.random_blocks import BLOCKS, WEIGHT_TYPES, peer_decode, random_blocks

QUANTIZED = tuple(BLOCK_BYTES)
EVERY_F16 = np.arange(2**16, dtype=np.uint16)


def awkward_values(rng: np.random.Generator) -> np.ndarray:
    """Values around every f16 boundary: each f16, halfway to the next, and a hair beside."""
    finite = EVERY_F16[:0x7C00].view(np.float16).astype(np.float32)
    halves = ((finite[1:].astype(np.float64) + finite[:-1]) / 2).astype(np.float32)
    beside = [np.nextafter(halves, np.float32(to)) for to in (-np.inf, np.inf)]
    large = np.array(
        [65504, 65519.996, 65520, 1e30, np.inf, 3e-8, 2.9802322e-8, 1e-45, 0], np.float32
    )
    positive = np.concatenate([finite, halves, *beside, large, normal(rng, 4096)])
    return np.concatenate([positive, -positive])


def test_every_f16_decodes_exactly() -> None:
    values = _core.decode_row("f16", EVERY_F16.view(np.uint8))
    with np.errstate(invalid="ignore"):
        expected = EVERY_F16.view(np.float16).astype(np.float32)
    is_nan = np.isnan(expected)
    assert_same_bits(values[~is_nan], expected[~is_nan])
    assert np.isnan(values[is_nan]).all()


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_half_types_round_half_to_even(kind: str, rng: np.random.Generator) -> None:
    values = awkward_values(rng)
    np.testing.assert_array_equal(_core.encode_row(kind, values), encode(kind, values))


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_nan_stays_nan(kind: str) -> None:
    patterns = np.array([0x7F800001, 0x7FFFFFFF, 0xFF800001, 0x7FC00000], np.uint32)
    decoded = _core.decode_row(kind, _core.encode_row(kind, patterns.view(np.float32)))
    assert np.isnan(decoded).all()


@pytest.mark.parametrize("kind", QUANTIZED)
@settings(max_examples=80, deadline=None)
@given(
    values=numpy_strategies.arrays(
        np.float32, 64, elements=st.floats(width=32, allow_nan=True, allow_infinity=True)
    )
)
def test_encoders_follow_their_rules_on_any_values(kind: str, values: np.ndarray) -> None:
    encoded = _core.encode_row(kind, values)
    np.testing.assert_array_equal(encoded, encode(kind, values))
    assert np.isfinite(_core.decode_row(kind, encoded)).all()


@pytest.mark.parametrize("kind", QUANTIZED)
@pytest.mark.parametrize("magnitude", [1e-42, 1e-30, 1e-15, 3e-8, 1e-3, 1.0, 1e4, 1e20, 1e37])
def test_encoders_follow_their_rules_at_every_magnitude(
    kind: str, magnitude: float, rng: np.random.Generator
) -> None:
    values = normal(rng, 6400) * np.float32(magnitude)
    values[:96] = np.resize(np.array([1, -1, 0.5, -0.5], np.float32), 96)  # ties
    np.testing.assert_array_equal(_core.encode_row(kind, values), encode(kind, values))


# Largest error of a block, in units of its largest magnitude (types with a minimum: of
# half its range). A symmetric type has no code for the peak's negative: a whole step. The
# fitted scale of iq4_nl trades the largest error for the mean.
STEPS = {"q8_0": 0.5 / 127, "q4_0": 1 / 8, "q4_1": 1 / 15, "q5_0": 1 / 16, "q5_1": 1 / 31}
STEPS["iq4_nl"] = 0.14


@pytest.mark.parametrize("kind", QUANTIZED)
def test_decoded_values_are_within_a_step(kind: str, rng: np.random.Generator) -> None:
    values = normal(rng, 32 * 1000)
    error = np.abs(_core.decode_row(kind, _core.encode_row(kind, values)) - values)
    blocks = values.reshape(-1, 32)
    unit = np.abs(blocks).max(axis=1)
    if kind.endswith("_1"):
        unit = (blocks.max(axis=1) - blocks.min(axis=1)) / 2
    rounded_scale = 2**-10 * np.abs(blocks).max(axis=1)  # d and m as f16
    worst = error.reshape(-1, 32).max(axis=1)
    assert (worst <= STEPS[kind] * unit + rounded_scale).all()
    assert worst.mean() > STEPS[kind] * unit.mean() / 4, "the bound says nothing"


@pytest.mark.parametrize("kind", QUANTIZED)
def test_special_values(kind: str) -> None:
    values = np.zeros(128, np.float32)
    values[:3] = np.nan, np.inf, -np.inf
    values[32:35] = np.nan, 1.0, -1.0
    values[64] = -np.inf
    decoded = _core.decode_row(kind, _core.encode_row(kind, values))
    assert np.isfinite(decoded).all()
    assert decoded[1] > 60000 and decoded[2] < -60000 and decoded[64] < -60000
    assert abs(decoded[32]) < 0.07, "NaN counts as 0"
    assert abs(decoded[33] - 1) < 0.13 and abs(decoded[34] + 1) < 0.13
    assert not decoded[96:].any(), "zeros stay zeros"


def test_q8_0_ties_go_to_even() -> None:
    values = np.arange(32, dtype=np.float32) + np.float32(0.5)
    values[31] = 127.0  # d = 1, so that each quotient is a tie
    encoded = _core.encode_row("q8_0", values)
    np.testing.assert_array_equal(encoded[2:33].view(np.int8), np.rint(values[:31]).astype(np.int8))


EXTREME_SCALES = np.array(
    [0.0, -0.0, 2**-24, -(2**-24), 6e-5, 1e-3, -0.1, 1.0, 65504.0, -65504.0], np.float16
)


@pytest.mark.parametrize("kind", WEIGHT_TYPES)
def test_decoding_equals_the_reference_and_the_gguf_package(
    kind: str, rng: np.random.Generator
) -> None:
    if kind in BLOCKS:
        data = random_blocks(rng, kind, 2000, EXTREME_SCALES)
    else:
        data = encode(kind, normal(rng, 32 * 500))
    actual = _core.decode_row(kind, data)
    assert_same_bits(actual, peer_decode(kind, data))
    if kind in KV_TYPES:
        assert_same_bits(actual, decode(kind, data))


@pytest.mark.parametrize("kind", BLOCKS)
def test_scales_that_are_no_numbers(kind: str, rng: np.random.Generator) -> None:
    """Infinity and NaN give what they give in float32 arithmetic."""
    scales = np.array([np.inf, -np.inf, np.nan, 1.0], np.float16)
    data = random_blocks(rng, kind, 500, scales)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(_core.decode_row(kind, data), peer_decode(kind, data))


@pytest.mark.parametrize("kind", ["q2_k", "q3_k", "q4_k", "q5_k", "q6_k"])
def test_k_types_are_only_read(kind: str) -> None:
    with pytest.raises(_core.Unsupported, match=f"{kind} is a type of weights"):
        _core.encode_row(kind, np.zeros(256, np.float32))
    with pytest.raises(_core.InvalidArgument, match="not a multiple"):
        _core.encode_row(kind, np.zeros(32, np.float32))


@pytest.mark.parametrize("kind", ["f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1"])
def test_encoding_equals_the_gguf_package(kind: str, rng: np.random.Generator) -> None:
    values = normal(rng, 32 * 4000)
    peer = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind.upper()])
    np.testing.assert_array_equal(_core.encode_row(kind, values), peer.view(np.uint8).reshape(-1))


def test_q8_0_differs_from_the_gguf_package_in_ties_only(rng: np.random.Generator) -> None:
    values = normal(rng, 32 * 4000)
    peer = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0).reshape(-1, 34)
    ours = _core.encode_row("q8_0", values).reshape(-1, 34)
    np.testing.assert_array_equal(ours[:, :2], peer[:, :2])
    assert (ours[:, 2:] != peer[:, 2:]).mean() < 1e-5


def test_sizes_and_types_are_checked() -> None:
    with pytest.raises(_core.InvalidArgument, match="multiple"):
        _core.encode_row("q8_0", np.zeros(33, np.float32))
    with pytest.raises(_core.InvalidArgument, match="35 bytes"):
        _core.decode_row("q8_0", np.zeros(35, np.uint8))
    with pytest.raises(_core.InvalidArgument, match="q9_9"):
        _core.decode_row("q9_9", np.zeros(32, np.uint8))
