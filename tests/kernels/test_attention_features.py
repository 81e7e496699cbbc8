"""Windows, sinks, softcap, slopes, rotations, gaps and shared positions: against the
definition, and bit-equality over everything that must not matter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.kernels.arrays import F32, assert_same_bits, normal
from tests.kernels.kv import (
    TIERS,
    Features,
    Pool,
    Segments,
    Shape,
    Tier,
    cells_of,
    positions_of,
    slots_of,
    whole_segment,
)
from tests.reference import kernels as reference

HEADS = 6
SLOPES = tuple(2.0 ** -(i + 1) for i in range(HEADS))
SINKS = (0.5, -2.0, 3.0, 0.0, 1.0, -30.0)
FEATURES = {
    "plain": Features(),
    "softcap": Features(softcap=1.5),
    "slopes": Features(slopes=SLOPES),
    "sinks": Features(sinks=SINKS),
    "dominating-sinks": Features(sinks=(80.0,) * HEADS),
    "itself-only": Features(window=("standard", 1)),
    "standard-7": Features(window=("standard", 7)),
    "standard-256": Features(window=("standard", 256)),
    "standard-257": Features(window=("standard", 257)),
    "standard-10000": Features(window=("standard", 10_000)),
    "chunked-1": Features(window=("chunked", 1)),
    "chunked-60": Features(window=("chunked", 60)),
    "chunked-256": Features(window=("chunked", 256)),
    "chunked-300": Features(window=("chunked", 300)),
    "everything": Features(2.0, SINKS, SLOPES, ("standard", 90)),
}


def plain() -> Segments:
    return [(0, 3, 600)]


def with_gaps() -> Segments:
    """Positions are missing inside partitions, whole ones too; one is a single token."""
    return [(0, 5, 100), (130, 200, 70), (256, 300, 1), (511, 400, 2), (1800, 500, 190)]


def moved() -> Segments:
    return [(0, 0, 100), (100, 120, 200, -7), (300, 400, 150, 1000), (450, 600, 80, -7)]


def divided() -> Segments:
    """Positions by halves, two tokens each, every one moved by another distance."""
    return [(i // 2, 700 - 2 * i, 1, i // 2 - i, i) for i in range(300)]


SEQUENCES = {"plain": plain, "gaps": with_gaps, "moved": moved, "divided": divided}

# In units of max |V|, about 4: a score's error moves a weight by as much. Scores stay below
# 10, the softcap's tanh has a relative error of 2^-21.
TOLERANCE = 1.5e-5


@pytest.fixture(params=TIERS, ids="-".join)
def backend(request: pytest.FixtureRequest) -> Tier:
    return Tier(*request.param)


def filled(
    backend: Any, rng: np.random.Generator, sequence: Segments, features: Features, shape: Shape
) -> tuple[Pool, F32]:
    pool = Pool(backend, shape, 32, replace(features, rope=(min(16, shape.k_dim), 100.0, True)))
    tokens = len(cells_of(sequence))
    pool.write(sequence, *(normal(rng, tokens, width) for width in shape.widths()))
    return pool, normal(rng, tokens, shape.heads * shape.k_dim)


def attend_tokens(pool: Pool, q: F32, sequence: Segments, tokens: range) -> F32:
    """Attention of some tokens of the sequence, in groups where positions do not follow."""
    positions, slots = positions_of(sequence), slots_of(sequence)
    groups: list[tuple[Any, ...]] = []
    first = tokens.start
    for token in tokens:
        last = token + 1 == tokens.stop
        if (
            last
            or slots[token + 1] != slots[token] + 1
            or positions[token + 1] != positions[token] + 1
        ):
            groups.append((sequence, positions[first], token + 1 - first, slots[first]))
            first = token + 1
    return pool.attend_groups(q[tokens.start : tokens.stop], groups)


def expected_of(pool: Pool, q: F32, sequence: Segments, tokens: range) -> Any:
    positions, slots = positions_of(sequence), slots_of(sequence)
    at = tokens.start
    return pool.expected(q[at : tokens.stop], sequence, positions[at], slots[at])


@pytest.mark.parametrize("name", SEQUENCES)
@pytest.mark.parametrize("features", FEATURES.values(), ids=FEATURES)
def test_features_follow_the_definition(
    backend: Any, rng: np.random.Generator, features: Features, name: str
) -> None:
    sequence = SEQUENCES[name]()
    pool, q = filled(backend, rng, sequence, features, Shape(24, 40, 2, 3))
    tokens = len(q)
    for rows in (range(17), range(tokens // 2, tokens // 2 + 3), range(tokens - 70, tokens)):
        error = np.abs(
            attend_tokens(pool, q, sequence, rows) - expected_of(pool, q, sequence, rows)
        )
        assert error.max() < pool.tolerance(TOLERANCE)


@pytest.mark.parametrize("name", SEQUENCES)
@pytest.mark.parametrize("features", FEATURES.values(), ids=FEATURES)
def test_features_keep_bits(
    backend: Any, rng: np.random.Generator, features: Features, name: str
) -> None:
    """Alone, in a batch, in chunks, on any number of threads, from other cells."""
    sequence = SEQUENCES[name]()
    pool, q = filled(backend, rng, sequence, features, Shape(24, 40, 2, 3))
    tokens = len(q)
    whole = attend_tokens(pool, q, sequence, range(tokens))
    for chunk in (1, 50, 270):
        for first in (0, tokens // 2, tokens - chunk):
            rows = range(first, min(first + chunk, tokens))
            part = attend_tokens(pool, q, sequence, rows)
            assert_same_bits(part, whole[rows.start : rows.stop])
    for threads in (1, 3):
        pool.backend.set_threads(threads)
        last = range(tokens - 5, tokens)  # few rows: split by partitions
        assert_same_bits(attend_tokens(pool, q, sequence, last), whole[-5:])
        assert_same_bits(attend_tokens(pool, q, sequence, range(tokens)), whole)
    elsewhere = scattered_anew(rng, sequence, first_cell=1024)
    pool.backend.copy_cells(pool.handle, cells_of(sequence), cells_of(elsewhere))
    assert_same_bits(attend_tokens(pool, q, elsewhere, range(tokens)), whole)


def scattered_anew(rng: np.random.Generator, sequence: Segments, first_cell: int) -> Segments:
    """The same tokens in shorter segments, in other cells, in any order."""
    cut: Segments = []
    for first, _, length, rotation, slot in map(whole_segment, sequence):
        at = 0
        while at < length:
            n = min(int(rng.integers(1, 40)), length - at)
            cut.append((first + at, 0, n, rotation, slot + at))
            at += n
    cells, result = first_cell, list(cut)
    for i in rng.permutation(len(cut)):
        first, _, n, rotation, slot = cut[i]
        result[i] = (first, cells, n, rotation, slot)
        cells += n + int(rng.integers(0, 2))
    return result


def test_the_window_s_definition() -> None:
    """First visible position and visibility agree, and are what the standard and the chunked
    window mean."""
    for size in (1, 2, 7, 256):
        for query in (0, 1, 6, 7, 255, 256, 1000):
            keys = np.arange(query + 1)
            standard = reference.visible(keys, query, ("standard", size))
            assert standard.sum() == min(size, query + 1) and standard[-1]
            chunked = reference.visible(keys, query, ("chunked", size))
            assert chunked.sum() == query % size + 1 and chunked[-1]


def test_what_lies_outside_the_window_is_not_read(backend: Any, rng: np.random.Generator) -> None:
    """Cells outside every row's window hold NaN; those of whole partitions are not even
    committed any more, so that reading them would be refused or fault."""
    sequence: Segments = [(0, 0, 1000)]
    pool, q = filled(backend, rng, sequence, Features(window=("standard", 70)), Shape(32, 32))
    rows = range(900, 960)
    expected = attend_tokens(pool, q, sequence, rows)
    for outside in (np.arange(0, 831), np.arange(960, 1024)):
        poison = [np.full((len(outside), 32), np.nan, np.float32) for _ in range(2)]
        pool.backend.write_kv(pool.handle, 0, *poison, outside)
    assert_same_bits(attend_tokens(pool, q, sequence, rows), expected)
    # A row alone: its window begins later than that of the rows it was with.
    for row in (900, 930, 959):
        poison = [np.full((row - 69, 32), np.nan, np.float32) for _ in range(2)]
        pool.backend.write_kv(pool.handle, 0, *poison, np.arange(row - 69))
        part = attend_tokens(pool, q, sequence, range(row, row + 1))
        assert_same_bits(part, expected[row - 900 : row - 899])


def test_a_gap_of_a_billion_slots_costs_nothing(backend: Any, rng: np.random.Generator) -> None:
    far = 2**31 - 40
    sequence: Segments = [(0, 0, 100), (10**9, 128, 30), (far, 192, 30)]
    pool, q = filled(backend, rng, sequence, Features(), Shape(16, 16))
    error = np.abs(
        attend_tokens(pool, q, sequence, range(120, 160))
        - expected_of(pool, q, sequence, range(120, 160))
    )
    assert error.max() < pool.tolerance(TOLERANCE)


def test_negative_zero_and_huge_scales(backend: Any, rng: np.random.Generator) -> None:
    sequence: Segments = [(0, 0, 37)]
    for scale in (-0.3, 0.0, 30.0):
        pool, q = filled(backend, rng, sequence, Features(), Shape(16, 16, scale_by=scale))
        error = np.abs(
            attend_tokens(pool, q, sequence, range(37)) - expected_of(pool, q, sequence, range(37))
        )
        assert error.max() < pool.tolerance(TOLERANCE) * max(1, scale)


SHAPES = [Shape(dim, dim, 2, 2) for dim in (32, 40, 72, 80, 96, 112, 128, 192, 256)] + [
    Shape(576, 512, 1, 70),
    Shape(512, 256, 1, 2, "f16", "q8_0"),
    Shape(320, 8, 3, 1),
    Shape(8, 512, 1, 3),
    Shape(288, 256, 1, 2, "q8_0", v_view=True),
    Shape(576, 512, 1, 128, "f16", v_view=True),
    Shape(576, 512, 1, 16, "q8_0", v_view=True),
    Shape(40, 24, 2, 2, "f32", v_view=True),
    Shape(8, 8, 1024, 1),
    Shape(32, 32, 1, 128),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_head_sizes(backend: Any, rng: np.random.Generator, shape: Shape) -> None:
    sequence = scattered_anew(rng, [(0, 0, 300)], 0)
    pool, q = filled(backend, rng, sequence, Features(window=("standard", 120)), shape)
    rows = range(250, 260) if shape.heads < 500 else range(299, 300)
    whole = attend_tokens(pool, q, sequence, rows)
    error = np.abs(whole - expected_of(pool, q, sequence, rows))
    assert error.max() < pool.tolerance(TOLERANCE)
    for row in rows:
        alone = attend_tokens(pool, q, sequence, range(row, row + 1))
        assert_same_bits(alone, whole[row - rows.start : row - rows.start + 1])
