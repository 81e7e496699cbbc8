"""States of recurrent layers in the cache API, alone and beside full and window layers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import pykv
from pykv import Cache, CacheConfig, Layer
from tests.model.toy import FULL, MIXES, WIDTH, Toy, exact


@pytest.mark.parametrize("mix", MIXES)
def test_every_mix_computes_what_numpy_does(mix: str) -> None:
    toy, tokens = Toy(MIXES[mix]), list(range(60))
    sequence = toy.cache.create()
    steps = [toy.step([(sequence, tokens[at : at + 7])])[0] for at in range(0, 60, 7)]
    expected = exact(MIXES[mix], tokens)
    error = np.abs(np.concatenate(steps) - expected).max() / np.abs(expected).max()
    assert error <= 2e-6


@pytest.mark.parametrize("mix", MIXES)
def test_states_are_those_of_a_cold_run(mix: str) -> None:
    toy = Toy(MIXES[mix])
    tokens = list(range(40))
    cold = toy.cold(tokens)
    first, second = toy.cache.create(), toy.cache.create()
    toy.step([(first, tokens[:20]), (second, tokens[:3])])
    child = toy.cache.fork(first)
    a, b = toy.step([(second, tokens[3:30]), (first, tokens[20:])])
    np.testing.assert_array_equal(a, cold[3:30])
    np.testing.assert_array_equal(b, cold[20:])
    np.testing.assert_array_equal(toy.step([(child, tokens[20:])])[0], cold[20:])
    toy.cache.check_integrity()


def test_a_step_ends_where_points_are_due() -> None:
    toy = Toy(MIXES["hybrid"], resume_spacing=16)
    seq, *_ = toy.cache.open(list(range(30)))
    assert toy.cache.next_point(seq) == 16
    toy.step([(seq, list(range(16)))])
    assert toy.cache.next_point(seq) == 29  # the prompt but for its last token
    toy.step([(seq, list(range(16, 29)))])
    assert toy.cache.next_point(seq) == 32
    assert toy.cache.match(list(range(30))) == 29
    other, reused, _, lost = toy.cache.open([*range(25), 99])
    assert (reused, lost) == (16, 9)
    assert toy.cache.next_point(other) == 25  # where both part
    full = Toy([FULL])
    assert full.cache.next_point(full.cache.create()) == 2**31 - 1


def test_what_is_wrong_with_states_is_said() -> None:
    toy = Toy(MIXES["hybrid"])
    seq = toy.cache.create()
    with pytest.raises(pykv.InvalidArgument, match="layer 0 has no new state"):  # noqa: SIM117
        with toy.cache.step(toy.cache.plan([(seq, [1, 2])])) as step:
            rows = np.zeros((2, 1, WIDTH), np.float32)
            step.write(1, rows, rows)
    with toy.cache.step(toy.cache.plan([(seq, [1, 2])])) as step:
        assert step.read_states(0).shape == (1, WIDTH)
        with pytest.raises(pykv.InvalidArgument, match="layer 1 is not recurrent"):
            step.read_states(1)
        with pytest.raises(pykv.InvalidArgument, match=r"has shape \[2, 16\], must be \[1, 16\]"):
            step.write_states(0, np.zeros((2, WIDTH), np.float32))
        with pytest.raises(pykv.InvalidArgument, match="layer 0 has no K and V"):
            step.attend(0, np.zeros((2, 0, 0), np.float32))
        step.rollback()
    with pytest.raises(pykv.InvalidArgument, match=r"it is Layer\.recurrent"):
        Cache(CacheConfig(layers=[Layer(0, 8, 8, state=(1, 1))], cells=64))
    with pytest.raises(pykv.InvalidArgument, match="no recurrent state"):
        Cache(CacheConfig(layers=[Layer.recurrent(0, 0)], cells=64))


def test_what_has_no_way_back_says_what_is_possible() -> None:
    toy = Toy(MIXES["hybrid"])
    seq = toy.cache.create()
    toy.step([(seq, list(range(20)))])
    with pytest.raises(pykv.Unsupported, match=r"its 20 tokens cannot move; .*clear"):
        toy.cache.divide(seq, None, 2)  # before the rope that no layer has
    toy = Toy([replace(layer, rope=pykv.Rope(WIDTH)) for layer in MIXES["windows"]])
    seq = toy.cache.create()
    for begin, end in ((0, 40), (40, 41)):
        toy.step([(seq, list(range(begin, end)))])
    toy.step([(seq, [41])])
    toy.cache.remove(seq, (37, 40))  # its place would be taken by tokens that are lost
    with pytest.raises(
        pykv.Unsupported, match=r"at position 39, .* position 0, .*windows=\"full\""
    ):
        toy.cache.shift(seq, (40, 42), -3)
    with pytest.raises(pykv.Unsupported, match=r"cannot divide positions; .*windows=\"full\""):
        toy.cache.divide(seq, None, 2)
    assert toy.cache.bounds(seq) == (0, 42)
    toy.cache.check_integrity()


def test_statistics_tell_of_states() -> None:
    toy = Toy(MIXES["recurrent"], max_sequences=4, resume_bytes=8192)
    stats = toy.cache.stats()
    assert stats["states"]["slots"] == 2 * 4 + 2 and stats["states"]["bytes_per_slot"] == 4096
    assert stats["bytes_per_cell"] == 0 and stats["states"]["bytes_committed"] == 0
    seq = toy.cache.create()
    toy.step([(seq, [1, 2, 3])])
    fork = toy.cache.fork(seq)
    assert toy.cache.stats()["states"]["slots_used"] == 1
    toy.step([(fork, [4])])
    assert toy.cache.stats()["states"]["slots_used"] == 2
    toy.cache.erase(fork)
    stats = toy.cache.stats()
    assert stats["states"]["slots_used"] == 2 and stats["states"]["slots_resume"] == 1
    assert stats["resume_bytes"] == 4096
    assert stats["bytes_committed"] == stats["states"]["bytes_committed"] > 0
