"""Attention against its definition, and bit-equality over everything that must not matter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.arrays import F32, assert_same_bits, normal
from tests.kernels.kv import TIERS, Pool, Shape, Tier, contiguous, scattered
from tests.reference import kv_storage
from tests.reference.block_formats import KV_TYPES

POSITIONS = (1, 15, 16, 17, 63, 64, 65, 255, 256, 257, 700)
ROWS = (1, 2, 3, 5, 7, 17)
SHAPES = [
    Shape(8, 8, type_k="f32", type_v="f32"),
    Shape(24, 8, 2, 3, "f16", "f32"),
    Shape(64, 64, 3, 3, "f16", "f16"),
    Shape(64, 64, 3, 3, "q8_0", "q8_0"),
    Shape(80, 24, 1, 4, "f32", "f16"),
    Shape(96, 64, 2, 1, "q8_0", "f16"),
    Shape(128, 96, 1, 4, "f16", "q8_0"),
    Shape(256, 128, 1, 3, "q8_0", "f32"),
    Shape(64, 256, 1, 4, "f32", "q8_0"),
    Shape(24, 40, 2, 2, "bf16", "bf16"),
    Shape(64, 96, 1, 3, "q4_0", "q4_0"),
    Shape(96, 32, 2, 2, "q4_1", "q5_1"),
    Shape(128, 64, 1, 2, "q5_0", "iq4_nl"),
    Shape(32, 96, 1, 3, "q5_1", "q4_1"),
    Shape(64, 64, 1, 2, "iq4_nl", "q5_0"),
    Shape(64, 64, 3, 3, "q8_0", "q4_0", hadamard=False),
    Shape(192, 128, 1, 2, "q5_1", "q8_0"),
]
# Scores are O(1): a float32 dot product of up to 256 terms, exp and a weighted mean stay
# well below this, in units of max |V| (about 4).
TOLERANCE = 4e-6


@pytest.fixture(params=TIERS, ids="-".join)
def backend(request: pytest.FixtureRequest) -> Tier:
    return Tier(*request.param)


@pytest.fixture(params=SHAPES, ids=str)
def pool(backend: Any, request: pytest.FixtureRequest) -> Pool:
    return Pool(backend, request.param)


def tokens_for(pool: Pool, rng: np.random.Generator, n: int) -> tuple[F32, F32, F32]:
    k_width, v_width = pool.shape.widths()
    q = normal(rng, n, pool.shape.heads * pool.shape.k_dim)
    return q, normal(rng, n, k_width), normal(rng, n, v_width)


def test_written_values_are_stored_by_the_encoders_rule(
    pool: Pool, rng: np.random.Generator
) -> None:
    _, k, v = tokens_for(pool, rng, 200)
    where = scattered(rng, 200, 2048)
    pool.write(where, k, v)
    stored = pool.stored(where)
    shape = pool.shape
    for side, kind, dim, given, actual in (
        ("k", shape.type_k, shape.k_dim, k, stored[0]),
        ("v", shape.type_v, shape.v_dim, v, stored[1]),
    ):
        size = kv_storage.transform_size(side, kind, dim) if shape.hadamard else 0
        heads = given.reshape(len(given), -1, dim)
        expected = kv_storage.stored(kind, heads, size).reshape(given.shape)
        assert_same_bits(actual, expected)


def test_attention_follows_its_definition(pool: Pool, rng: np.random.Generator) -> None:
    q, k, v = tokens_for(pool, rng, 700)
    where = scattered(rng, 700, 2048)
    pool.write(where, k, v)
    for n in POSITIONS:
        for rows in ROWS:
            if rows > n:
                continue
            part = q[n - rows : n]
            error = np.abs(
                pool.attend(part, where, n - rows) - pool.expected(part, where, n - rows)
            )
            assert error.max() < pool.tolerance(TOLERANCE)


def test_chunks_do_not_change_bits(pool: Pool, rng: np.random.Generator) -> None:
    q, k, v = tokens_for(pool, rng, 700)
    where = contiguous(700, 5)
    pool.write(where, k, v)
    whole = pool.attend(q, where, 0)
    for n in POSITIONS:
        assert_same_bits(pool.attend(q[n - 1 : n], where, n - 1), whole[n - 1 : n])
    for chunk in (17, 256, 300):
        parts = [pool.attend(q[at : at + chunk], where, at) for at in range(0, 700, chunk)]
        assert_same_bits(np.concatenate(parts), whole)


def test_places_of_cells_do_not_change_bits(pool: Pool, rng: np.random.Generator) -> None:
    q, k, v = tokens_for(pool, rng, 530)
    where = contiguous(530)
    pool.write(where, k, v)
    expected = pool.attend(q, where, 0)
    for longest in (1, 3, 40, 300):
        elsewhere = scattered(rng, 530, 2048, longest)
        pool.write(elsewhere, k, v)
        assert_same_bits(pool.attend(q, elsewhere, 0), expected)


def test_threads_do_not_change_bits(pool: Pool, rng: np.random.Generator) -> None:
    q, k, v = tokens_for(pool, rng, 1300)
    where = contiguous(1300)
    pool.write(where, k, v)
    for rows in (1, 5, 400):  # few rows are split by partitions, many are not
        results = []
        for threads in (1, 2, 3, 5):
            pool.backend.set_threads(threads)
            results.append(pool.attend(q[-rows:], where, 1300 - rows))
        for other in results[1:]:
            assert_same_bits(other, results[0])


def test_batches_and_sharing_do_not_change_bits(pool: Pool, rng: np.random.Generator) -> None:
    """Two sequences on one prefix, a third alone, in one call and each by itself."""
    q, k, v = tokens_for(pool, rng, 900)
    pool.write([(0, 0, 900)], k, v)
    prefix, first, second = (0, 0, 300), (300, 320, 100), (300, 500, 7)
    groups = [([prefix, first], 390, 10), ([prefix, second], 306, 1), ([(0, 600, 257)], 0, 257)]
    rows = [n for _, _, n in groups]
    queries = q[: sum(rows)]
    together = pool.attend_groups(queries, groups)
    at = 0
    for segments, position, n in groups:
        alone = pool.attend(queries[at : at + n], segments, position)
        assert_same_bits(together[at : at + n], alone)
        at += n


def test_nested_prefixes_do_not_change_bits(pool: Pool, rng: np.random.Generator) -> None:
    """Many sequences on a tree of prefixes, whose partitions are read once for all of them."""
    q, k, v = tokens_for(pool, rng, 1500)
    pool.write([(0, 0, 1500)], k, v)
    root, left, right = (0, 0, 600), [(600, 640, 300)], [(600, 1000, 100), (700, 1190, 200)]
    twin, stranger = [(600, 1100, 300)], (0, 700, 600)  # of the same shape, in other cells
    stems = [[root, *left], [root, *right], [root, *twin], [stranger, *left]]
    groups = []
    for index, rows in enumerate((1, 2, 1, 7, 1, 1, 3, 40, 1)):
        stem = stems[index % 4]
        own = (900, 1400 + 10 * index, rows % 10 + 1)
        last = sum(length for _, _, length in [*stem, own])
        groups.append(([*stem, own], last - rows, rows))
    queries = q[: sum(rows for _, _, rows in groups)]
    together = pool.attend_groups(queries, groups)
    pool.backend.set_threads(3)
    assert_same_bits(pool.attend_groups(queries, groups), together)
    at = 0
    for segments, position, rows in groups:
        alone = pool.attend(queries[at : at + rows], segments, position)
        assert_same_bits(together[at : at + rows], alone)
        at += rows


def test_what_a_row_does_not_see_does_not_matter(pool: Pool, rng: np.random.Generator) -> None:
    q, k, v = tokens_for(pool, rng, 300)
    where = contiguous(300, 10)
    pool.write(where, k, v)
    rows = slice(90, 107)
    expected = pool.attend(q[rows], where, 90)
    k[107:], v[107:] = np.nan, np.nan
    k[120:], v[120:] = np.inf, -np.inf
    pool.write(where, k, v)
    everywhere_else = np.concatenate([np.arange(10), np.arange(310, 400)]).astype(np.uint32)
    poison = (np.full((len(everywhere_else), w), np.nan, np.float32) for w in pool.shape.widths())
    pool.backend.write_kv(pool.handle, 0, *poison, everywhere_else)
    assert_same_bits(pool.attend(q[rows], where, 90), expected)
    # Nor for the rows that share a chunk with those that do see it.
    assert_same_bits(pool.attend(q[90:300], where, 90)[:17], expected)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_rows_that_see_it(
    pool: Pool, rng: np.random.Generator, value: float
) -> None:
    tokens = tokens_for(pool, rng, 300)
    where = contiguous(300, 10)
    pool.write(where, *tokens[1:])
    expected = pool.attend(tokens[0], where, 0)
    for which, seeing in ((0, slice(290, 292)), (1, slice(290, 300)), (2, slice(290, 300))):
        marked = [tensor.copy() for tensor in tokens]
        marked[which][290:292] = value
        pool.write(where, *marked[1:])
        seen = np.zeros(300, np.bool_)
        seen[seeing] = True
        for rows in (slice(0, 300), slice(288, 291), slice(290, 291)):  # many, few, one
            actual = pool.attend(marked[0][rows], where, rows.start)
            assert_same_bits(actual[~seen[rows]], expected[rows][~seen[rows]])
            if which == 0 and np.isnan(value):
                assert np.isnan(actual[seen[rows]]).any(axis=1).all()


@pytest.mark.parametrize("type_k", KV_TYPES)
def test_every_pair_of_types_attends(backend: Any, rng: np.random.Generator, type_k: str) -> None:
    for type_v in KV_TYPES:
        pool = Pool(backend, Shape(32, 32, 2, 2, type_k, type_v), blocks=2)
        q, k, v = tokens_for(pool, rng, 70)
        where = contiguous(70, 9)
        pool.write(where, k, v)
        error = np.abs(pool.attend(q, where, 0) - pool.expected(q, where, 0))
        assert error.max() < pool.tolerance(TOLERANCE), (type_k, type_v)


def test_large_scores_do_not_overflow(backend: Any, rng: np.random.Generator) -> None:
    pool = Pool(backend, Shape(64, 64))
    q, k, v = (a * np.float32(40) for a in tokens_for(pool, rng, 300))
    where = contiguous(300)
    pool.write(where, k, v)
    actual = pool.attend(q, where, 0)
    assert np.isfinite(actual).all()
    if pool.precision == "fastest":
        return  # rounded to 8 bits, such scores choose other tokens
    # Scores are about 10^4 and carry an error of about 10^-3 each.
    np.testing.assert_allclose(actual, pool.expected(q, where, 0), rtol=0, atol=0.05 * 40)
