"""Tokens at other positions: shifted by runs only, divided with K of their own."""

from __future__ import annotations

import numpy as np
import pytest

import pykv
from tests.unit.known_text import (
    CELLS,
    ROPE,
    append,
    attend,
    contents,
    expected_attention,
    make,
    placed,
    sequence,
)


def test_removing_and_shifting_a_span_leaves_the_other_sharers_alone() -> None:
    """C6: no cell is allocated, no byte of K written, and the others keep everything."""
    cache = make()
    text = list(range(300))
    seq = sequence(cache, text)
    others = [cache.fork(seq), cache.open([*text, 5]).sequence]
    before = [(cache.runs(o), contents(cache, o), attend(cache, o).tobytes()) for o in others]
    stats = cache.stats()
    cache.remove(seq, (100, 150))
    cache.shift(seq, (150, 300), -50)
    after = cache.stats()
    for name in ("cells_free", "cells_active", "bytes_committed"):
        assert after[name] == stats[name], name
    assert cache.bounds(seq) == (0, 250) and cache.exact_upto(seq) == 100
    assert [run.rotation for run in cache.runs(seq)] == [0, -50]
    assert [cell for run in cache.runs(seq) for cell in range(run.cell, run.cell + run.length)] == [
        cell for cell in range(300) if not 100 <= cell < 150
    ]
    for other, (runs, values, out) in zip(others, before, strict=True):
        assert cache.runs(other) == runs and contents(cache, other) == values
        assert attend(cache, other).tobytes() == out
        assert cache.exact_upto(other) == 300
    cache.check_integrity()


def test_a_shift_moves_runs_only_as_far_as_there_is_room() -> None:
    cache = make()
    seq = sequence(cache, list(range(100)))
    cache.remove(seq, (20, 40))
    cache.remove(seq, (60, 80))
    before = cache.stats(), cache.runs(seq)
    for delta in (-21, 21, -(2**31) + 1, 2**31 - 1):
        with pytest.raises(
            pykv.InvalidArgument,
            match=rf"\[Cache.shift\] delta is {delta}; .*\[40, 60\) can move by -20 to 20 ",
        ):
            cache.shift(seq, (40, 60), delta)
    for span in ((0, 20), (0, 50), None):
        with pytest.raises(pykv.InvalidArgument, match="delta is -1"):
            cache.shift(seq, span, -1)
    with pytest.raises(pykv.InvalidArgument, match="can move by 0 to 2147483547"):
        cache.shift(seq, None, 2147483548)
    assert (cache.stats(), cache.runs(seq)) == before
    for delta in (-20, 40, -10, 0):
        cache.shift(seq, (20, 80), delta)
    assert [(run.first, run.length, run.rotation) for run in cache.runs(seq)] == [
        (0, 20, 0), (50, 20, 10), (80, 20, 0),
    ]  # fmt: skip
    cache.shift(seq, (80, 100), 2**31 - 1 - 100)
    assert cache.bounds(seq).end == 2**31 - 1
    with pytest.raises(pykv.InvalidArgument, match="pass the last position"):
        cache.plan([(seq, 1)])
    cache.check_integrity()


def test_a_shift_ends_the_exact_lineage_where_it_begins() -> None:
    cache = make()
    seq = sequence(cache, list(range(30)))
    cache.shift(seq, (10, 30), 0)
    assert cache.exact_upto(seq) == 30
    cache.shift(seq, (10, 30), 7)
    assert cache.exact_upto(seq) == 10 and cache.bounds(seq) == (0, 37)
    cache.shift(seq, (17, 37), -7)  # where they were, but nobody vouches for it
    assert cache.exact_upto(seq) == 10
    append(cache, seq, [1])
    assert cache.exact_upto(seq) == 10 and cache.match(list(range(30))) == 30
    cache.check_integrity()


def test_a_shift_needs_to_know_how_k_was_turned() -> None:
    for ropes in ((None, ROPE), (ROPE, None)):
        cache = make(ropes=ropes)
        seq = sequence(cache, list(range(10)))
        with pytest.raises(
            pykv.Unsupported, match=rf"the rope of layer {ropes.index(None)} is unk"
        ):
            cache.shift(seq, None, 5)
        assert cache.bounds(seq) == (0, 10) and cache.exact_upto(seq) == 10


def test_k_that_does_not_depend_on_positions_is_not_turned() -> None:
    cache = make(ropes=(pykv.Rope.none(), pykv.Rope.none()))
    seq = sequence(cache, list(range(10)))
    cache.shift(seq, None, 5)
    assert cache.runs(seq) == [pykv.Run(5, 0, 10, 0)]
    cache = make(ropes=(pykv.Rope.none(), ROPE))
    seq = sequence(cache, list(range(10)))
    cache.shift(seq, None, 5)
    assert cache.runs(seq) == [pykv.Run(5, 0, 10, 5)]


@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0", "q4_0"])
def test_attention_sees_shifted_tokens_where_they_stand(kind: str) -> None:
    tolerance = {"f32": 2e-5, "f16": 2e-3, "q8_0": 3e-2, "q4_0": 0.6}[kind]
    cache = make(type_k=kind)
    seq = sequence(cache, list(range(300)))
    cache.remove(seq, (3, 40))
    cache.shift(seq, (40, 300), -37)
    cache.remove(seq, (200, 210))
    cache.shift(seq, (100, 200), 7)
    assert {run.rotation for run in cache.runs(seq)} == {0, -30, -37}
    placed(cache, seq, tolerance)
    if kind == "f32":
        np.testing.assert_allclose(attend(cache, seq), expected_attention(cache, seq), rtol=1e-4)
    append(cache, seq, [500, 501])
    assert cache.bounds(seq) == (0, 265)
    placed(cache, seq, tolerance)
    cache.check_integrity()


def spread(cache: pykv.Cache, count: int) -> int:
    """A sequence of `count` stretches of ten tokens with gaps between them."""
    seq = sequence(cache, list(range(20 * count)))
    for i in range(count):
        cache.remove(seq, (20 * i, 20 * i + 10))
    return seq


def turn(cache: pykv.Cache, seq: int, count: int) -> None:
    """Moves the first `count` stretches by distances that differ."""
    for i in range(count):
        cache.shift(seq, (20 * i + 10, 20 * i + 20), -(i + 1))


def test_up_to_four_rotations_stay_as_they_are() -> None:
    cache = make()
    seq = spread(cache, 6)
    turn(cache, seq, 3)
    assert [run.rotation for run in cache.runs(seq)] == [-1, -2, -3, 0, 0, 0]
    assert cache.stats()["k_bytes_rewritten"] == cache.stats()["cells_copied"] == 0


def test_beyond_four_rotations_own_cells_are_rewritten_in_place() -> None:
    cache = make()
    seq = spread(cache, 6)
    cache.reset_prefixes()  # nobody else has these cells
    before = contents(cache, seq), cache.stats()["cells_free"]
    turn(cache, seq, 4)
    assert {run.rotation for run in cache.runs(seq)} == {0}
    stats = cache.stats()
    assert stats["cells_free"] == before[1] and stats["cells_copied"] == 0
    assert stats["k_bytes_rewritten"] == 40 * 2 * 32 * 4
    moved = {p - min(p // 20 + 1, 5) % 5: t for p, t in before[0].items()}
    assert contents(cache, seq) == moved
    np.testing.assert_allclose(attend(cache, seq), expected_attention(cache, seq), rtol=1e-4)
    cache.check_integrity()


@pytest.mark.parametrize("sharer", ["fork", "tree"])
def test_beyond_four_rotations_shared_cells_are_copied(sharer: str) -> None:
    cache = make()
    seq = spread(cache, 6)
    other = cache.fork(seq)
    if sharer == "tree":
        cache.erase(other)
    else:
        cache.reset_prefixes()
        before = contents(cache, other), cache.runs(other), attend(cache, other).tobytes()
    free = cache.stats()["cells_free"]
    turn(cache, seq, 4)
    assert {run.rotation for run in cache.runs(seq)} == {0}
    assert cache.stats()["cells_copied"] == 40 and cache.stats()["cells_free"] == free - 40
    np.testing.assert_allclose(attend(cache, seq), expected_attention(cache, seq), rtol=1e-4)
    if sharer == "tree":
        assert cache.match(list(range(120))) == 120
        again = cache.open(list(range(120))).sequence
        assert contents(cache, again) == {p: p for p in range(119)}
    else:
        assert (contents(cache, other), cache.runs(other)) == before[:2]
        assert attend(cache, other).tobytes() == before[2]
    cache.check_integrity()


def test_without_cells_for_copies_rotations_stay() -> None:
    cache = make(cells=128)
    seq = spread(cache, 6)
    cache.fork(seq)  # 60 cells shared, and the tree has the others
    turn(cache, seq, 4)
    assert [run.rotation for run in cache.runs(seq)] == [-1, -2, -3, -4, 0, 0]
    assert cache.stats()["k_bytes_rewritten"] == cache.stats()["cells_copied"] == 0
    np.testing.assert_allclose(attend(cache, seq), expected_attention(cache, seq), rtol=1e-4)
    assert cache.stats()["cells_free"] == 8
    cache.check_integrity()


@pytest.mark.parametrize("divisor", [2, 3, 7, 1000])
def test_divided_tokens_share_positions(divisor: int) -> None:
    cache = make()
    seq = sequence(cache, list(range(200)))
    cache.divide(seq, (0, 150), divisor)
    cache.shift(seq, (150, 200), -149 + 149 // divisor)
    last = 149 // divisor
    expected = [(p // divisor, p) for p in range(150)] + [
        (last + 1 + i, 150 + i) for i in range(50)
    ]
    assert placed(cache, seq) == expected
    np.testing.assert_allclose(attend(cache, seq), expected_attention(cache, seq), rtol=1e-4)
    append(cache, seq, [700, 701, 702])
    assert placed(cache, seq)[-3:] == [(last + 51 + i, 700 + i) for i in range(3)]
    assert cache.exact_upto(seq) == 0 and cache.match(list(range(200))) == 200
    cache.remove(seq, (0, 1))
    assert placed(cache, seq)[0] == (1, divisor) or divisor == 1000
    cache.check_integrity()


def test_dividing_shared_tokens_copies_them() -> None:
    cache = make()
    seq = sequence(cache, list(range(100)))
    other = cache.fork(seq)
    before = cache.runs(other), attend(cache, other).tobytes()
    cache.divide(seq, None, 4)
    stats = cache.stats()
    assert stats["cells_copied"] == 99  # the first token stays where it is
    assert stats["k_bytes_rewritten"] == 99 * 2 * 32 * 4
    assert stats["cells_free"] == CELLS - 199
    assert placed(cache, seq) == [(p // 4, p) for p in range(100)]
    assert contents(cache, other) == {p: p for p in range(100)}
    assert (cache.runs(other), attend(cache, other).tobytes()) == before
    cache.erase(other)
    cache.reset_prefixes()
    cache.divide(seq, None, 5)  # now they are its own
    assert cache.stats()["cells_copied"] == 99 and cache.stats()["cells_free"] == CELLS - 100
    assert placed(cache, seq) == [(p // 20, p) for p in range(100)]
    cache.check_integrity()


def test_dividing_without_cells_for_copies_changes_nothing() -> None:
    cache = make(cells=128)
    seq = sequence(cache, list(range(100)))
    before = cache.stats(), cache.runs(seq)
    with pytest.raises(pykv.OutOfCells, match=r"\[Cache.divide\] .* only 28 are free"):
        cache.divide(seq, None, 2)
    assert (cache.stats(), cache.runs(seq)) == before and cache.exact_upto(seq) == 100
    cache.divide(seq, (72, 100), 1)
    cache.divide(seq, (0, 20), 2)
    assert placed(cache, seq)[:21] == [(p // 2, p) for p in range(20)] + [(20, 20)]
    cache.check_integrity()


def test_a_division_keeps_the_order_of_tokens() -> None:
    cache = make()
    seq = sequence(cache, list(range(50)))
    before = cache.stats()
    with pytest.raises(pykv.InvalidArgument, match="position 20 would move to 10, before one out"):
        cache.divide(seq, (20, 50), 2)
    for divisor in (0, -1, -(2**31)):
        with pytest.raises(pykv.InvalidArgument, match="divisor is"):
            cache.divide(seq, (20, 50), divisor)
    assert cache.stats() == before
    cache.remove(seq, (11, 20))
    cache.divide(seq, (20, 50), 2)
    assert placed(cache, seq)[10:13] == [(10, 10), (10, 20), (10, 21)]
    assert cache.exact_upto(seq) == 10
    cache.check_integrity()


def test_a_division_needs_to_know_how_k_was_turned() -> None:
    cache = make(ropes=(ROPE, None))
    seq = sequence(cache, list(range(10)))
    with pytest.raises(pykv.Unsupported, match=r"\[Cache.divide\] the rope of layer 1 is unknown"):
        cache.divide(seq, None, 2)
    cache = make(ropes=(pykv.Rope.none(), pykv.Rope.none()))
    seq = sequence(cache, list(range(10)))
    cache.divide(seq, None, 2)
    assert cache.bounds(seq) == (0, 5) and cache.stats()["k_bytes_rewritten"] == 0
    assert sum(run.length for run in cache.runs(seq)) == 10


def test_shifted_and_divided_spans_add_up() -> None:
    cache = make()
    seq = sequence(cache, list(range(64)))
    cache.shift(seq, None, 100)
    cache.divide(seq, (100, 132), 4)
    cache.shift(seq, (25, 33), 75)
    cache.divide(seq, (100, 164), 2)
    positions = [(100 + (p // 4)) // 2 for p in range(32)] + [(132 + p) // 2 for p in range(32)]
    assert [p for p, _ in placed(cache, seq)] == positions
    assert [t for _, t in placed(cache, seq)] == list(range(64))
    np.testing.assert_allclose(attend(cache, seq), expected_attention(cache, seq), rtol=1e-4)
    cache.check_integrity()
