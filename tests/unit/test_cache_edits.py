"""Edits of a sequence: what moves, what stays, what is exact, and that others notice nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import pykv
from tests.unit.known_text import CELLS, append, contents, make, sequence


def test_a_middle_is_removed_and_the_rest_stays() -> None:
    cache = make()
    text = list(range(100, 300))
    seq = sequence(cache, text)
    other = cache.fork(seq)
    before = cache.stats()
    cache.remove(seq, (50, 120))
    assert contents(cache, seq) == {p: 100 + p for p in (*range(50), *range(120, 200))}
    assert cache.bounds(seq) == (0, 200) and cache.exact_upto(seq) == 50
    assert contents(cache, other) == {p: 100 + p for p in range(200)}
    assert cache.exact_upto(other) == 200
    assert cache.match(text) == 200  # what is in the tree stays there
    assert cache.stats() == before | {"generation": before["generation"] + 1, "tree_nodes": 2}
    cache.erase(other)
    cache.reset_prefixes()
    assert cache.stats()["cells_free"] == CELLS - 130 and cache.match(text) == 50
    cache.check_integrity()


def test_new_tokens_come_behind_the_last_one_and_are_not_exact() -> None:
    cache = make()
    seq = sequence(cache, list(range(20)))
    cache.remove(seq, (5, 10))
    append(cache, seq, [70, 71])
    assert cache.bounds(seq) == (0, 22) and cache.exact_upto(seq) == 5
    assert contents(cache, seq)[20] == 70
    assert cache.match([*range(20), 70, 71]) == 20
    cache.remove(seq, (10, 22))  # nothing is left behind the gap
    assert cache.bounds(seq) == (0, 5)
    append(cache, seq, [80])
    assert cache.exact_upto(seq) == 6 and cache.match([0, 1, 2, 3, 4, 80]) == 6
    cache.check_integrity()


def test_a_head_is_removed() -> None:
    cache = make()
    seq = sequence(cache, list(range(20)))
    cache.remove(seq, (0, 15))
    assert cache.bounds(seq) == (15, 20) and cache.exact_upto(seq) == 0
    append(cache, seq, [99])
    assert contents(cache, seq) == {15: 15, 16: 16, 17: 17, 18: 18, 19: 19, 20: 99}
    cache.remove(seq, None)
    assert cache.bounds(seq) == (0, 0)
    append(cache, seq, [1, 2])
    assert cache.exact_upto(seq) == 2 and cache.match([1, 2]) == 2
    cache.check_integrity()


def test_a_span_without_tokens_changes_nothing() -> None:
    cache = make()
    seq, other = sequence(cache, list(range(20))), cache.create()
    cache.remove(seq, (5, 10))
    before = cache.stats()
    for span in ((5, 10), (6, 8), (3, 3), (20, 20), (0, 0)):
        cache.remove(seq, span)
        cache.copy(seq, span, other)
        cache.shift(seq, span, 100)
        cache.divide(seq, span, 3)
    cache.remove(other, None)
    cache.copy(other, None, seq)
    assert cache.stats() == before


def test_an_announced_prompt_that_is_edited_is_announced_no_more() -> None:
    cache = make()
    text = list(range(100))
    cache.erase(sequence(cache, text[:50]))
    seq = cache.open(text).sequence
    assert cache.open(text).pending == 50
    cache.remove(seq, (10, 20))
    cache.keep(seq)
    assert cache.open(text).pending == 0
    cache.check_integrity()


def test_a_copied_prefix_is_as_exact_as_it_was() -> None:
    cache = make()
    text = list(range(200))
    source = sequence(cache, text)
    append(cache, source, [500, 501], with_ids=False)
    for span, exact in (((0, 150), 150), (None, 200), ((0, 201), 200)):
        to = cache.create()
        before = cache.stats()
        cache.copy(source, span, to)
        assert cache.stats()["cells_free"] == before["cells_free"]  # nothing but sharing
        assert cache.exact_upto(to) == exact
        end = cache.bounds(source).end if span is None else span[1]
        assert cache.bounds(to) == (0, end) and cache.shared_cells(to) == end
        cache.check_integrity()
    to = cache.create()
    cache.copy(source, (0, 150), to)
    append(cache, to, [900])
    assert cache.match([*text[:150], 900]) == 151
    assert contents(cache, source)[150] == 150


@pytest.mark.parametrize("span", [(1, 20), (5, 10), (19, 20)])
def test_any_other_copy_is_not_exact(span: tuple[int, int]) -> None:
    cache = make()
    source, to = sequence(cache, list(range(20))), cache.create()
    cache.copy(source, span, to)
    assert cache.bounds(to) == span and cache.exact_upto(to) == 0
    assert contents(cache, to) == {p: p for p in range(*span)}
    append(cache, to, [7])
    assert cache.exact_upto(to) == 0
    cache.check_integrity()


def test_a_copy_into_another_namespace_is_not_exact() -> None:
    cache = make()
    source, to = sequence(cache, list(range(20)), namespace=1), cache.create(namespace=2)
    cache.copy(source, None, to)
    assert cache.exact_upto(to) == 0 and cache.match(list(range(20)), namespace=2) == 0
    cache.check_integrity()


def test_a_copy_behind_or_between_tokens() -> None:
    cache = make()
    source = sequence(cache, list(range(100, 160)))
    to = sequence(cache, list(range(30)))
    cache.copy(source, (30, 60), to)
    assert contents(cache, to) == {p: p if p < 30 else 100 + p for p in range(60)}
    assert cache.exact_upto(to) == 30
    cache.remove(to, (10, 20))
    cache.remove(to, (40, 50))
    assert cache.exact_upto(to) == 10
    cache.copy(source, (10, 20), to)
    assert contents(cache, to)[10] == 110 and cache.exact_upto(to) == 10
    cache.check_integrity()


def test_positions_are_not_taken_twice() -> None:
    cache = make()
    source, to = sequence(cache, list(range(100, 160))), sequence(cache, list(range(30)))
    before = cache.stats(), contents(cache, to)
    for span in (None, (0, 60), (29, 40), (5, 6)):
        with pytest.raises(pykv.InvalidArgument, match=r"\[Cache.copy\] .* remove\(\) them first"):
            cache.copy(source, span, to)
        with pytest.raises(pykv.InvalidArgument, match="has tokens"):
            cache.copy(to, (0, 1), to)
    assert (cache.stats(), contents(cache, to)) == before
    cache.check_integrity()


def test_keep_ends_all_others() -> None:
    cache = make()
    seqs = [sequence(cache, [i] * 10) for i in range(5)]
    with pytest.raises(pykv.InvalidArgument, match="sequence 99"):
        cache.keep(seqs[0], 99)
    assert cache.sequences() == seqs
    cache.keep(seqs[3], seqs[1], seqs[3])
    assert cache.sequences() == [seqs[1], seqs[3]]
    assert cache.match([0] * 10) == 10  # idle, as after erase
    cache.keep()
    assert cache.sequences() == [] and cache.stats()["cells_active"] == 0
    cache.check_integrity()


EDITS: list[Callable[[pykv.Cache, int, int], object]] = [
    lambda c, busy, other: c.remove(busy, (0, 1)),
    lambda c, busy, other: c.copy(busy, (0, 1), other),
    lambda c, busy, other: c.copy(other, (0, 1), busy),
    lambda c, busy, other: c.shift(busy, (0, 1), 0),
    lambda c, busy, other: c.divide(busy, (0, 1), 1),
    lambda c, busy, other: c.keep(other),
    lambda c, busy, other: c.clear(busy),
]


@pytest.mark.parametrize("edit", EDITS)
def test_a_sequence_of_the_open_step_is_not_edited(
    edit: Callable[[pykv.Cache, int, int], object],
) -> None:
    cache = make()
    busy, other = sequence(cache, [1, 2, 3]), sequence(cache, [4, 5, 6])
    with cache.step(cache.plan([(busy, [7])])) as step:
        before = cache.stats()
        with pytest.raises(pykv.Busy, match=f"sequence {busy} is part of the open step"):
            edit(cache, busy, other)
        assert cache.stats() == before
        cache.remove(other, (0, 1))
        cache.keep(busy)
        step.rollback()
    assert cache.sequences() == [busy] and contents(cache, busy) == {0: 1, 1: 2, 2: 3}
    cache.check_integrity()


def test_an_edit_makes_plans_stale() -> None:
    cache = make()
    seq = sequence(cache, list(range(10)))
    plan = cache.plan([(seq, [1])])
    cache.remove(seq, (2, 4))
    with pytest.raises(pykv.StalePlan), cache.step(plan):
        pass


def test_matching_is_per_token() -> None:
    """C21: every length of a common prefix matches exactly that length."""
    cache = make()
    text = list(range(1000, 1200))
    sequence(cache, text)
    for length in range(201):
        assert cache.match(text[:length] + [5] * 70) == length
        assert cache.match(text[:length]) == length
        opened = cache.open(text[:length] + [5])
        assert opened.reused == length
        cache.erase(opened.sequence)
    cache.check_integrity()
