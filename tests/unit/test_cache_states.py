"""States of recurrent layers in the cache API, alone and beside full and window layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import pykv
from pykv import Cache, CacheConfig, Layer

F32 = npt.NDArray[np.float32]
WIDTH = 16
FULL = Layer(kv_heads=1, k_dim=WIDTH, v_dim=WIDTH)
WINDOW = Layer(kv_heads=1, k_dim=WIDTH, v_dim=WIDTH, window=("standard", 8))
CHUNKED = Layer(kv_heads=1, k_dim=WIDTH, v_dim=WIDTH, window=("chunked", 12))
STATE = Layer.recurrent(3, WIDTH - 3)
MIXES = {
    "windows": [WINDOW, FULL, WINDOW],
    "two kinds of windows": [WINDOW, CHUNKED, FULL],
    "recurrent": [STATE],
    "hybrid": [STATE, FULL],
    "hybrid and window": [WINDOW, STATE, FULL],
    "hybrid and two kinds of windows": [CHUNKED, STATE, WINDOW, FULL],
    "state beside K and V": [Layer(kv_heads=1, k_dim=WIDTH, v_dim=WIDTH, state=(3, WIDTH - 3))],
}


class Toy:
    """A model whose every number depends on all tokens before it, in their order."""

    def __init__(self, layers: Sequence[Layer], **config: Any) -> None:
        self.layers = layers
        self.cache = Cache(
            CacheConfig(layers=layers, cells=1024, type_k="f32", type_v="f32", **config), threads=1
        )

    def mix(self, x: F32, before: F32) -> tuple[F32, F32]:
        """Outputs and the state after x [n, WIDTH]."""
        state, out = before, np.empty_like(x)
        for i, row in enumerate(x):
            state = (np.float32(0.75) * np.roll(state, 1) + row).astype(np.float32)
            out[i] = state
        return out, state

    def step(self, work: Sequence[tuple[int, list[int]]]) -> list[F32]:
        plan = self.cache.plan(work)
        assert plan is not None
        with self.cache.step(plan) as step:
            tokens = np.array([token for _, new in work for token in new])
            x = np.stack([np.sin(tokens * (i + 1)) for i in range(WIDTH)], 1).astype(np.float32)
            for index, layer in enumerate(self.layers):
                if layer.state is not None:
                    states = step.read_states(index)
                    for i, rows in enumerate(step.slices):
                        x[rows], states[i] = self.mix(x[rows], states[i])
                    step.write_states(index, states)
                if layer.kv_heads:
                    rows = x[:, None, :]
                    step.write(index, rows, rows)
                    x = x + step.attend(index, rows)[:, 0]
            return [x[rows] for rows in step.slices]

    def cold(self, tokens: list[int]) -> F32:
        fresh = Toy(self.layers)
        return fresh.step([(fresh.cache.create(), tokens)])[0]


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


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("seed", range(5))
def test_random_operations(mix: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    toy = Toy(MIXES[mix], resume_spacing=16)
    prompt = [int(token) for token in rng.integers(0, 50, 60)]
    has: dict[int, list[int]] = {}

    def random_sequence() -> int:
        return int(rng.choice(list(has)))

    def append() -> None:
        chosen = {random_sequence() for _ in range(int(rng.integers(1, 4)))}
        work = []
        for seq in chosen:
            same = prompt[len(has[seq]) :]  # or tokens that nobody else has
            count = int(rng.integers(1, 20))
            new = same[:count] or [int(token) for token in rng.integers(0, 50, count)]
            work.append((seq, new if rng.random() < 0.7 else [new[0] + 50, *new[1:]]))
        for (seq, new), out in zip(work, toy.step(work), strict=True):
            np.testing.assert_array_equal(out, toy.cold(has[seq] + new)[len(has[seq]) :])
            has[seq] = has[seq] + new

    def rewind() -> None:
        seq = random_sequence()
        depth = toy.cache.rewind(seq, int(rng.integers(0, len(has[seq]) + 1)))
        has[seq] = has[seq][:depth]

    def remove_tail() -> None:
        seq = random_sequence()
        begin = int(rng.integers(0, len(has[seq]) + 1))
        try:
            toy.cache.remove(seq, (begin, len(has[seq])))
        except pykv.Unsupported as error:
            assert "rewind() goes back to position" in str(error)
        else:
            has[seq] = has[seq][:begin]

    def open_prompt() -> None:
        if len(has) > 8:
            return
        opened = toy.cache.open(prompt[: int(rng.integers(1, 60))])
        has[opened.sequence] = prompt[: opened.reused]

    def fork() -> None:
        if len(has) < 8:
            seq = random_sequence()
            has[toy.cache.fork(seq)] = has[seq]

    def erase() -> None:
        seq = random_sequence()
        toy.cache.erase(seq)
        del has[seq]

    def evict() -> None:
        toy.cache.evict(int(rng.integers(1, 100)))

    open_prompt()
    for _ in range(80):
        choices = [append, append, rewind, remove_tail, open_prompt, fork, erase, evict]
        if not has:
            choices = [open_prompt]
        choices[int(rng.integers(len(choices)))]()
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
