"""Rows as they are stored, out of a pool and into it: bytes in GGUF's row layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pykv import _core
from tests.kernels.arrays import F32, assert_same_bits, normal
from tests.kernels.kv import Pool, Shape, scattered
from tests.reference import kv_storage
from tests.reference.block_formats import KV_TYPES

TOKENS = 100
SHAPES = [
    *(Shape(64, 64, 2, 1, kind, kind) for kind in KV_TYPES),
    Shape(96, 128, 2, 1, "q8_0", "q5_1"),
    Shape(24, 8, 3, 1, "f16", "bf16"),
    Shape(128, 32, 1, 1, "q4_1", "f32", hadamard=False),
]


@pytest.fixture(params=SHAPES, ids=str)
def pool(backend: Any, request: pytest.FixtureRequest) -> Pool:
    return Pool(backend, request.param, blocks=8)


def encoded(shape: Shape, k: F32, v: F32) -> list[Any]:
    """The rows' bytes [tokens, bytes] by the definition."""
    rows = []
    for side, kind, dim, values in (
        ("k", shape.type_k, shape.k_dim, k),
        ("v", shape.type_v, shape.v_dim, v),
    ):
        size = kv_storage.transform_size(side, kind, dim) if shape.hadamard else 0  # type: ignore[arg-type]
        heads = values.reshape(len(values), -1, dim)
        rows.append(kv_storage.encoded(kind, heads, size).reshape(len(values), -1))
    return rows


def values_of(pool: Pool, rng: np.random.Generator) -> tuple[F32, F32]:
    k, v = (normal(rng, TOKENS, width) for width in pool.shape.widths())
    return k, v


def test_exported_rows_are_what_the_encoder_gives(pool: Pool, rng: np.random.Generator) -> None:
    k, v = values_of(pool, rng)
    where = scattered(rng, TOKENS, 512)
    pool.write(where, k, v)
    for actual, expected in zip(pool.export(where), encoded(pool.shape, k, v), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_imported_rows_are_as_if_they_had_been_written(
    pool: Pool, rng: np.random.Generator
) -> None:
    k, v = values_of(pool, rng)
    where, elsewhere = (scattered(rng, TOKENS, 512) for _ in range(2))
    pool.write(where, k, v)
    stored = pool.stored(where)
    rows = pool.export(where)
    pool.write(where, v[:, :1] + np.zeros_like(k), k[:, :1] + np.zeros_like(v))
    pool.load(elsewhere, *rows)
    for actual, expected in zip(pool.stored(elsewhere), stored, strict=True):
        assert_same_bits(actual, expected)
    for actual, expected in zip(pool.export(elsewhere), rows, strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_any_bytes_go_in_and_come_out(pool: Pool, rng: np.random.Generator) -> None:
    """Also those that decode to NaN."""
    where = scattered(rng, TOKENS, 512)
    k, v = (rng.integers(0, 256, rows.shape, dtype=np.uint8) for rows in pool.export(where))
    pool.load(where, k, v)
    for actual, given in zip(pool.export(where), (k, v), strict=True):
        np.testing.assert_array_equal(actual, given)


def test_sizes_and_cells_are_checked(backend: Any) -> None:
    pool = Pool(backend, Shape(64, 32, 2, 1, "q8_0", "q4_0"), blocks=2)
    k, v = np.zeros((3, 136), np.uint8), np.zeros((3, 36), np.uint8)
    cells = np.arange(3)
    before = pool.export([(0, 0, 128)])
    for wrong in ((k[:2], v), (k, v[:, :35]), (k[:, :0], v)):
        with pytest.raises(_core.InvalidArgument, match="408 and 108"):
            backend.import_rows(pool.handle, 0, cells, *(np.ascontiguousarray(a) for a in wrong))
    with pytest.raises(_core.InvalidArgument, match="cell 128"):
        backend.import_rows(pool.handle, 0, [0, 1, 128], k, v)
    with pytest.raises(_core.InvalidArgument, match="cell 1 is named twice"):
        backend.import_rows(pool.handle, 0, [0, 1, 1], k, v)
    with pytest.raises(_core.InvalidArgument, match="cell 128"):
        backend.export_rows(pool.handle, 0, [128], (136, 36))
    with pytest.raises(_core.InvalidArgument, match="layer 1 of 1"):
        backend.export_rows(pool.handle, 1, [0], (136, 36))
    with pytest.raises(_core.InvalidArgument, match="136 and 36"):
        backend.export_rows(pool.handle, 0, [0], (136, 35))
    for after, untouched in zip(pool.export([(0, 0, 128)]), before, strict=True):
        np.testing.assert_array_equal(after, untouched)


def test_a_view_of_k_has_no_rows_of_v(backend: Any, rng: np.random.Generator) -> None:
    pool = Pool(backend, Shape(128, 64, 1, 1, "q8_0", "q8_0", v_view=True), blocks=2)
    k = normal(rng, 5, 128)
    pool.write([(0, 3, 5)], k, None)
    rows, none = pool.export([(0, 3, 5)])
    assert none.shape == (5, 0)
    np.testing.assert_array_equal(rows, kv_storage.encoded("q8_0", k, 64).reshape(5, -1))
    pool.load([(0, 70, 5)], rows, none)
    assert_same_bits(pool.stored([(0, 70, 5)])[1], pool.stored([(0, 3, 5)])[0][:, :64])
