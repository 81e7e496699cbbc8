"""Exact linear layers and embeddings of every weight type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pykv import _core
from tests.kernels.arrays import F32, assert_same_bits, normal, stored_matrix
from tests.reference import kernels as reference

ROWS = (1, 2, 3, 5, 7, 17, 130)
SHAPES = [  # type, outputs, inputs
    ("f32", 1, 7), ("f32", 17, 1), ("f32", 50, 129), ("f16", 16, 24), ("f16", 65, 80),
    ("f16", 1, 96), ("q8_0", 1, 32), ("q8_0", 33, 64), ("q8_0", 200, 96), ("q4_1", 15, 32),
    ("q4_1", 64, 128), ("q4_1", 192, 576),
]  # fmt: skip


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


@pytest.mark.parametrize(("kind", "outputs", "inputs"), SHAPES)
def test_linear_is_exact_up_to_rounding(
    backend: Any, rng: np.random.Generator, kind: str, outputs: int, inputs: int
) -> None:
    layer = Layer(backend, rng, kind, outputs, inputs)
    for rows in ROWS:
        x = normal(rng, rows, inputs)
        error = np.abs(layer(x) - reference.linear(layer.values, x))
        # One rounding per multiply-add (two in the scalar tier) of a sum of at most Σ|x w|.
        bound = (inputs + 1) * 2.0**-24 * reference.linear_error_scale(layer.values, x)
        assert (error <= bound * (1 + 1e-6) + 1e-30).all()


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
    ("kind", "rows", "width"), [("f32", 3, 7), ("f16", 33, 24), ("q8_0", 40, 96), ("q4_1", 49, 64)]
)
def test_a_table_embeds_and_multiplies(
    backend: Any, rng: np.random.Generator, kind: str, rows: int, width: int
) -> None:
    layer = Layer(backend, rng, kind, rows, width)
    before = backend.weight_bytes
    tokens = rng.integers(0, rows, 100).astype(np.int32)
    assert_same_bits(backend.embed(layer.handle, width, tokens), layer.values[tokens])
    x = normal(rng, 2, width)
    np.testing.assert_allclose(layer(x), reference.linear(layer.values, x), rtol=0, atol=1e-4)
    assert backend.weight_bytes == before, "tied embeddings are stored once"


def test_stored_weights_are_not_inflated(backend: Any, rng: np.random.Generator) -> None:
    data, _ = stored_matrix(rng, "q4_1", 160, 576)
    backend.create_weight("q4_1", 160, 576, data)
    assert len(data) <= backend.weight_bytes <= len(data) * 1.02


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


def test_types_without_kernels_are_named(backend: Any) -> None:
    with pytest.raises(_core.Unsupported, match="q5_0"):
        backend.create_weight("q5_0", 1, 32, np.zeros(22, np.uint8))


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
