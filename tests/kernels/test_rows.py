"""Row operations: norms, rotary embedding, activation, addition, gather."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pykv import _core
from tests.kernels.arrays import assert_same_bits, normal, stored_matrix
from tests.reference import kernels as reference

ROWS = (1, 2, 3, 5, 7, 17)
WIDTHS = (1, 8, 24, 80, 576, 1000)


def make_gain(backend: Any, rng: np.random.Generator, width: int) -> tuple[int, np.ndarray]:
    data, values = stored_matrix(rng, "f32", 1, width)
    return backend.create_weight("f32", 1, width, data), values[0]


@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm(backend: Any, rng: np.random.Generator, width: int) -> None:
    handle, gain = make_gain(backend, rng, width)
    x = normal(rng, 17, width) * 3
    together = backend.rms_norm(x, handle, 1e-5)
    expected = reference.rms_norm(x, gain, 1e-5)
    np.testing.assert_allclose(together, expected, rtol=width * 2.0**-24 + 1e-6)
    for rows in ROWS:
        assert_same_bits(backend.rms_norm(x[:rows], handle, 1e-5), together[:rows])


def test_rms_norm_of_zeros_is_zero(backend: Any, rng: np.random.Generator) -> None:
    handle, _ = make_gain(backend, rng, 40)
    assert not backend.rms_norm(np.zeros((2, 40), np.float32), handle, 1e-5).any()


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize(
    ("heads", "head_dim", "dims"), [(1, 8, 8), (3, 64, 64), (2, 80, 48), (9, 24, 2)]
)
def test_rope(
    backend: Any, rng: np.random.Generator, heads: int, head_dim: int, dims: int, interleaved: bool
) -> None:
    positions = np.array([0, 1, 2, 255, 256, 4095, 131071, 2**31 - 2], np.int32)
    x = normal(rng, len(positions), heads * head_dim)
    params = _core.RopeParams(dims=dims, base=10000.0, interleaved=interleaved)
    actual = backend.rope(x, positions, heads=heads, rope=params)
    expected = reference.rope(x, positions.tolist(), heads, dims, 10000.0, interleaved)
    # cos and sin are rounded to float32, products and the sum as well.
    np.testing.assert_allclose(actual, expected, rtol=0, atol=4 * 2.0**-24 * np.abs(x).max() * 2)
    assert_same_bits(backend.rope(x[5:6], positions[5:6], heads=heads, rope=params), actual[5:6])
    untouched = np.arange(head_dim) >= dims
    by_head = (len(x), heads, head_dim)
    assert_same_bits(actual.reshape(by_head)[:, :, untouched], x.reshape(by_head)[:, :, untouched])


def test_rope_remembers_nothing_wrong(backend: Any, rng: np.random.Generator) -> None:
    x = normal(rng, 2, 16)

    def turned(positions: list[int], dims: int, base: float) -> Any:
        return backend.rope(
            x, np.array(positions), heads=1, rope=_core.RopeParams(dims=dims, base=base)
        )

    first = turned([3, 4], 16, 10000.0)
    turned([3, 5], 16, 10000.0)
    turned([3, 4], 8, 10000.0)
    turned([3, 4], 16, 500000.0)
    assert_same_bits(turned([3, 4], 16, 10000.0), first)


@pytest.mark.parametrize("width", WIDTHS)
def test_silu_mul(backend: Any, rng: np.random.Generator, width: int) -> None:
    gate, up = normal(rng, 17, width) * 8, normal(rng, 17, width)
    together = backend.silu_mul(gate, up)
    np.testing.assert_allclose(together, reference.silu_mul(gate, up), rtol=6e-7)
    for rows in ROWS:
        assert_same_bits(backend.silu_mul(gate[:rows], up[:rows]), together[:rows])


@pytest.mark.parametrize("width", WIDTHS)
def test_gelu_mul(backend: Any, rng: np.random.Generator, width: int) -> None:
    gate, up = normal(rng, 17, width) * 3, normal(rng, 17, width)
    together = backend.gelu_mul(gate, up)
    np.testing.assert_allclose(together, reference.gelu_mul(gate, up), rtol=1e-5, atol=1e-7)
    for rows in ROWS:
        assert_same_bits(backend.gelu_mul(gate[:rows], up[:rows]), together[:rows])


def test_gelu_at_the_ends(backend: Any) -> None:
    x = np.array([[np.inf, 1e30, 100, -10, -100, -1e30, np.nan, 0, -0.0]], np.float32)
    y = backend.gelu_mul(x, np.ones_like(x))[0]
    assert y[0] == np.inf and y[1] == np.float32(1e30) and y[2] == 100
    assert (np.abs(y[3:5]) < 1e-30).all() and abs(y[5]) < 1 and np.isnan(y[6])
    assert_same_bits(y[7:], x[0, 7:])


@pytest.mark.parametrize("width", WIDTHS)
def test_softcap(backend: Any, rng: np.random.Generator, width: int) -> None:
    x = normal(rng, 17, width) * 40
    together = backend.softcap(x, 30.0)
    np.testing.assert_allclose(together, 30 * np.tanh(x.astype(np.float64) / 30), rtol=1e-6)
    for rows in ROWS:
        assert_same_bits(backend.softcap(x[:rows], 30.0), together[:rows])


def test_exponential_is_accurate_over_its_range(backend: Any) -> None:
    x = np.linspace(-87, 87, 200_003, dtype=np.float32)[None, :]
    ones = np.ones_like(x)
    # x / (1 + e^-x) turns a relative error of e^-x into at most the same one.
    np.testing.assert_allclose(backend.silu_mul(x, ones), reference.silu_mul(x, ones), rtol=4e-7)


def test_silu_at_the_ends(backend: Any) -> None:
    x = np.array([[np.inf, 1000, 100, -88.5, -100, -1000, np.nan, 0, -0.0]], np.float32)
    y = backend.silu_mul(x, np.ones_like(x))[0]
    assert y[0] == np.inf and y[1] == 1000 and y[2] == 100
    assert (np.abs(y[3:6]) < 1e-35).all() and np.isnan(y[6])
    assert_same_bits(y[7:], x[0, 7:])


@pytest.mark.parametrize("width", WIDTHS)
def test_add_and_gather_are_exact(backend: Any, rng: np.random.Generator, width: int) -> None:
    a, x = normal(rng, 7, width), normal(rng, 7, width)
    assert_same_bits(backend.add(a, x), a + x)
    rows = np.array([6, 0, 0, 3], np.uint32)
    assert_same_bits(backend.gather(x, rows), x[rows])


def test_wrong_calls_are_refused(backend: Any, rng: np.random.Generator) -> None:
    x = normal(rng, 2, 12)
    gain, _ = make_gain(backend, rng, 12)
    matrix = backend.create_weight("f32", 2, 12, np.zeros(96, np.uint8))
    refused = pytest.raises(_core.InvalidArgument, match=r"\[Backend\.")
    positions = np.array([0, 1])
    with refused:
        backend.rms_norm(x, matrix, 1e-5)
    with refused:
        backend.rms_norm(normal(rng, 2, 11), gain, 1e-5)
    for epsilon in (-1.0, float("nan"), float("inf")):
        with refused:
            backend.rms_norm(x, gain, epsilon)
    for heads, dims, base in ((0, 2, 1e4), (5, 2, 1e4), (3, 3, 1e4), (3, 6, 1e4), (3, 4, 0.0)):
        with refused:
            backend.rope(x, positions, heads=heads, rope=_core.RopeParams(dims=dims, base=base))
    for where in ([0, -1], [0]):
        with refused:
            backend.rope(x, np.array(where), heads=3, rope=_core.RopeParams(dims=4))
    with refused:
        backend.add(x, normal(rng, 3, 12))
    with refused:
        backend.silu_mul(x, normal(rng, 2, 11))
    with refused:
        backend.gelu_mul(x, normal(rng, 3, 12))
    for cap in (0.0, -1.0, float("nan"), float("inf")):
        with refused:
            backend.softcap(x, cap)
    with refused:
        backend.gather(x, np.array([2], np.uint32))
