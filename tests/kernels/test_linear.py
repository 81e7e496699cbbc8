"""Exact linear layers and embeddings of every weight type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pykv import _core
from tests.kernels.arrays import F32, assert_same_bits, normal, stored_matrix
from tests.reference import kernels as reference
from tests.reference.random_blocks import (
    BLOCK_ELEMENTS,
    BLOCKS,
    WEIGHT_TYPES,
    peer_decode,
    random_blocks,
)

ROWS = (1, 2, 3, 5, 7, 17, 130)
SHAPES = [  # type, outputs, inputs
    ("f32", 1, 7), ("f32", 17, 1), ("f32", 50, 129), ("f16", 16, 24), ("f16", 65, 81),
    ("f16", 1, 96), ("bf16", 17, 1), ("bf16", 33, 129), ("bf16", 64, 64), ("q8_0", 1, 32),
    ("q8_0", 33, 64), ("q8_0", 200, 96), ("q4_0", 15, 32), ("q4_0", 70, 416), ("q4_1", 15, 32),
    ("q4_1", 64, 128), ("q4_1", 192, 576), ("q5_0", 31, 96), ("q5_1", 70, 160), ("iq4_nl", 47, 224),
    ("q2_k", 17, 256), ("q2_k", 70, 768), ("q3_k", 15, 256), ("q3_k", 81, 512), ("q4_k", 33, 256),
    ("q4_k", 129, 512), ("q5_k", 1, 256), ("q5_k", 50, 768), ("q6_k", 65, 256), ("q6_k", 130, 512),
]  # fmt: skip
# Bits of a weight, with what belongs to it of the scales of its block.
RESIDENT_BITS = {
    "f32": 32.0, "f16": 16.0, "bf16": 16.0, "q8_0": 8.5, "q4_0": 4.5, "q4_1": 5.0, "q5_0": 5.5,
    "q5_1": 6.0, "iq4_nl": 4.5, "q2_k": 2.625, "q3_k": 3.5625, "q4_k": 4.625, "q5_k": 5.625,
    "q6_k": 6.5625,
}  # fmt: skip


class Layer:
    def __init__(
        self, backend: Any, rng: np.random.Generator, kind: str, outputs: int, inputs: int
    ):
        data, self.values = stored_matrix(rng, kind, outputs, inputs)
        self.backend = backend
        self.handle = backend.create_weight(kind, outputs, inputs, data, precision="exact")

    def __call__(self, x: F32) -> F32:
        out: F32 = self.backend.linear(self.handle, self.values.shape[0], x)
        return out


def assert_exact_up_to_rounding(layer: Layer, x: F32) -> None:
    error = np.abs(layer(x) - reference.linear(layer.values, x))
    # One rounding per multiply-add (two in the scalar tier) of a sum of at most Σ|x w|.
    bound = (x.shape[1] + 1) * 2.0**-24 * reference.linear_error_scale(layer.values, x)
    assert (error <= bound * (1 + 1e-6) + 1e-30).all()


@pytest.mark.parametrize(("kind", "outputs", "inputs"), SHAPES)
def test_linear_is_exact_up_to_rounding(
    backend: Any, rng: np.random.Generator, kind: str, outputs: int, inputs: int
) -> None:
    layer = Layer(backend, rng, kind, outputs, inputs)
    for rows in ROWS:
        assert_exact_up_to_rounding(layer, normal(rng, rows, inputs))


@pytest.mark.parametrize(("kind", "outputs", "inputs"), SHAPES)
def test_a_row_does_not_depend_on_its_batch(
    backend: Any, rng: np.random.Generator, kind: str, outputs: int, inputs: int
) -> None:
    layer = Layer(backend, rng, kind, outputs, inputs)
    x = normal(rng, 130, inputs)
    x[3] = 0
    x[4, 0] = np.nan  # stays in its row
    together = layer(x)
    for rows in range(1, 18):
        assert_same_bits(layer(x[:rows]), together[:rows])
    for begin in (1, 63, 64, 129):
        assert_same_bits(layer(x[begin:]), together[begin:])
    order = rng.permutation(len(x))
    assert_same_bits(layer(x[order]), together[order])


def test_threads_do_not_change_bits(backend: Any, rng: np.random.Generator) -> None:
    layer = Layer(backend, rng, "q4_1", 1000, 320)
    for rows in (1, 9, 200):
        x = normal(rng, rows, 320)
        results = []
        for threads in (1, 2, 3, 7):
            backend.set_threads(threads)
            assert backend.threads == threads
            results.append(layer(x))
        for other in results[1:]:
            assert_same_bits(other, results[0])


@pytest.mark.parametrize(
    ("kind", "rows", "width"),
    [("f32", 3, 7), ("bf16", 35, 33), *((kind, 49, 512) for kind in WEIGHT_TYPES)],
)
def test_a_table_embeds_and_multiplies(
    backend: Any, rng: np.random.Generator, kind: str, rows: int, width: int
) -> None:
    layer = Layer(backend, rng, kind, rows, width)
    before = backend.weight_bytes
    tokens = rng.integers(0, rows, 100).astype(np.int32)
    assert_same_bits(backend.embed(layer.handle, width, tokens), layer.values[tokens])
    assert_exact_up_to_rounding(layer, normal(rng, 2, width))
    assert backend.weight_bytes == before, "tied embeddings are stored once"


@pytest.mark.parametrize("kind", WEIGHT_TYPES)
def test_stored_weights_take_their_bits(backend: Any, rng: np.random.Generator, kind: str) -> None:
    before = backend.weight_bytes
    data, _ = stored_matrix(rng, kind, 160, 2048)
    backend.create_weight(kind, 160, 2048, data)
    resident = backend.weight_bytes - before
    assert resident == RESIDENT_BITS[kind] / 8 * 160 * 2048
    assert resident <= len(data) * 1.04


@pytest.mark.parametrize("kind", BLOCKS)
def test_extreme_scales_survive_packing(backend: Any, rng: np.random.Generator, kind: str) -> None:
    cols = BLOCK_ELEMENTS[kind] * 2
    scales = np.array([0.0, -0.0, 2**-24, -6e-5, 65504.0, -65504.0, np.inf, np.nan], np.float16)
    data = random_blocks(rng, kind, 40 * 2, scales)
    table = backend.create_weight(kind, 40, cols, data, precision="exact")
    with np.errstate(all="ignore"):
        expected = peer_decode(kind, data).reshape(40, cols)
        np.testing.assert_array_equal(backend.embed(table, cols, np.arange(40)), expected)
        units = np.eye(cols, dtype=np.float32)[[0, 1, cols // 2, cols - 1]]
        finite = np.isfinite(expected).all(axis=1)
        found = backend.linear(table, 40, units)[:, finite]
    np.testing.assert_array_equal(found, units @ expected[finite].T)


@pytest.mark.parametrize(
    ("kind", "rows", "cols", "size", "message"),
    [
        ("f32", 0, 4, 0, "at least 1 row"),
        ("f32", 4, 0, 0, "at least 1 row"),
        ("f32", 2, 2, 15, "takes 16 bytes, given are 15"),
        ("q8_0", 1, 31, 34, "multiple"),
        ("f32", 2**32 - 1, 2**24, 16, "takes"),
        ("f16", 1, 2**24 + 1, 16, "columns"),
    ],
)
def test_nonsense_weights_are_refused(
    backend: Any, kind: str, rows: int, cols: int, size: int, message: str
) -> None:
    with pytest.raises(_core.InvalidArgument, match=message):
        backend.create_weight(kind, rows, cols, np.zeros(size, np.uint8))


def test_wrong_calls_are_refused(backend: Any, rng: np.random.Generator) -> None:
    layer = Layer(backend, rng, "f32", 5, 4)
    with pytest.raises(_core.InvalidArgument, match="in has width 3, needed is 4"):
        layer(normal(rng, 2, 3))
    with pytest.raises(_core.InvalidArgument, match="out has width 6, needed is 5"):
        backend.linear(layer.handle, 6, normal(rng, 2, 4))
    with pytest.raises(_core.InvalidArgument, match="no weight has the handle 999"):
        backend.linear(999, 5, normal(rng, 2, 4))
    for token in (-1, 5):
        with pytest.raises(_core.InvalidArgument, match=f"token {token}"):
            backend.embed(layer.handle, 4, np.array([0, token], np.int32))
