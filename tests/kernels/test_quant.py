"""encode_row and decode_row against the reference and against every f16 there is."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies

from pykv import _core
from tests.kernels.arrays import assert_same_bits, normal, stored_matrix
from tests.reference import kernels as reference

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
    np.testing.assert_array_equal(_core.encode_row(kind, values), reference.encode(kind, values))


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_nan_stays_nan(kind: str) -> None:
    patterns = np.array([0x7F800001, 0x7FFFFFFF, 0xFF800001, 0x7FC00000], np.uint32)
    decoded = _core.decode_row(kind, _core.encode_row(kind, patterns.view(np.float32)))
    assert np.isnan(decoded).all()


@settings(max_examples=200, deadline=None)
@given(
    numpy_strategies.arrays(
        np.float32, 64, elements=st.floats(width=32, allow_nan=True, allow_infinity=True)
    )
)
def test_q8_0_follows_the_rule(values: np.ndarray) -> None:
    encoded = _core.encode_row("q8_0", values)
    np.testing.assert_array_equal(encoded, reference.encode("q8_0", values))
    decoded = _core.decode_row("q8_0", encoded)
    assert np.isfinite(decoded).all()


def test_q8_0_special_values() -> None:
    values = np.zeros(64, np.float32)
    values[:3] = np.nan, np.inf, -np.inf
    values[32:35] = np.nan, 1.0, -1.0
    decoded = _core.decode_row("q8_0", _core.encode_row("q8_0", values))
    assert decoded[0] == 0 and decoded[1] == 127 * 65504 and decoded[2] == -127 * 65504
    assert decoded[32] == 0 and abs(decoded[33] - 1) < 1e-3 and decoded[34] == -decoded[33]


def test_q8_0_is_close_and_ties_go_to_even() -> None:
    values = np.arange(32, dtype=np.float32) + np.float32(0.5)
    values[31] = 127.0  # d = 1, so that each quotient is a tie
    encoded = _core.encode_row("q8_0", values)
    np.testing.assert_array_equal(encoded[2:33].view(np.int8), np.rint(values[:31]).astype(np.int8))


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0", "q4_1"])
def test_decoding_equals_the_reference_and_the_gguf_package(
    kind: str, rng: np.random.Generator
) -> None:
    data, expected = stored_matrix(rng, kind, 6, 96)
    actual = _core.decode_row(kind, data)
    assert_same_bits(actual, expected.reshape(-1))
    peer = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind.upper()])
    np.testing.assert_allclose(actual, peer.astype(np.float32).reshape(-1), rtol=3e-7)


def test_sizes_and_types_are_checked() -> None:
    with pytest.raises(_core.InvalidArgument, match="multiple"):
        _core.encode_row("q8_0", np.zeros(33, np.float32))
    with pytest.raises(_core.InvalidArgument, match="35 bytes"):
        _core.decode_row("q8_0", np.zeros(35, np.uint8))
    with pytest.raises(_core.Unsupported, match="q4_0"):
        _core.encode_row("q4_0", np.zeros(32, np.float32))
    with pytest.raises(_core.InvalidArgument, match="q9_9"):
        _core.decode_row("q9_9", np.zeros(32, np.uint8))
