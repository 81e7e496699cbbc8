"""Recurrent layers: causal convolution, Mamba-2 scan, grouped norm, slots of states."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from pykv import _core
from tests.kernels.arrays import F32, assert_same_bits, normal
from tests.reference import kernels as reference

Stretch = tuple[int, int, int | None, int]  # first row, rows, slot to read, slot to write


def vector(backend: Any, values: F32) -> int:
    return int(backend.create_weight("f32", 1, len(values), values.view(np.uint8)))


def slots(backend: Any, elements: int, count: int) -> int:
    states = int(backend.create_states((elements * 4 + 4095) // 4096 * 4096, count))
    for slot in range(count):
        assert backend.commit_slot(states, slot)
    return states


@dataclass(frozen=True)
class Conv:
    """A convolution on a backend, its part of a slot 5 elements behind the beginning."""

    backend: Any
    taps: F32
    bias: F32 | None
    silu: bool
    states: int

    def __call__(self, stretches: list[Stretch], x: F32) -> F32:
        taps = self.backend.create_weight("f32", *self.taps.shape, self.taps.view(np.uint8).ravel())
        bias = None if self.bias is None else vector(self.backend, self.bias)
        out: F32 = self.backend.causal_conv(self.states, 5, stretches, taps, bias, self.silu, x)
        return out

    def state(self, slot: int) -> F32:
        channels, k = self.taps.shape
        values: F32 = self.backend.read_state(self.states, slot, 5, channels * (k - 1))
        return values.reshape(k - 1, channels)


def make_conv(
    backend: Any, rng: np.random.Generator, channels: int, k: int, extras: bool = True
) -> Conv:
    bias = normal(rng, channels) if extras else None
    states = slots(backend, 5 + channels * k, 6)
    return Conv(backend, normal(rng, channels, k), bias, extras, states)


@pytest.mark.parametrize(
    ("channels", "k"), [(2, 4), (5, 1), (16, 3), (40, 4), (257, 2), (300, 4), (48, 32)]
)
@pytest.mark.parametrize("extras", [True, False])
def test_causal_conv(
    backend: Any, rng: np.random.Generator, channels: int, k: int, extras: bool
) -> None:
    conv = make_conv(backend, rng, channels, k, extras)
    x = normal(rng, 70, channels)
    alone = conv([(0, 70, None, 0)], x)
    expected = reference.causal_conv(x, conv.taps, conv.bias, None, extras)
    np.testing.assert_allclose(alone, expected, rtol=0, atol=4e-6 * max(1, k / 4))
    padded = np.concatenate([np.zeros((k, channels), np.float32), x])
    assert_same_bits(conv.state(0), padded[len(padded) - k + 1 :] if k > 1 else x[:0])
    # In pieces, from slot to slot.
    first = conv([(0, 1, None, 1)], x[:1])
    second = conv([(0, 30, 1, 2)], x[1:31])
    third = conv([(0, 39, 2, 3)], x[31:])
    assert_same_bits(np.concatenate([first, second, third]), alone)
    assert_same_bits(conv.state(3), conv.state(0))
    # Beside another sequence, with one thread.
    backend.set_threads(1)
    both = conv([(0, 9, 3, 4), (9, 70, None, 5)], np.concatenate([x[:9], x]))
    assert_same_bits(both[9:], alone)
    expected = reference.causal_conv(x[:9], conv.taps, conv.bias, conv.state(3), extras)
    np.testing.assert_allclose(both[:9], expected, rtol=0, atol=4e-6 * max(1, k / 4))


SCANS = [(1, 1, 1, 1), (4, 64, 1, 16), (6, 24, 2, 9), (3, 17, 3, 128), (2, 80, 1, 7), (8, 8, 4, 33)]


@dataclass(frozen=True)
class ScanLayer:
    """A scan on a backend, its part of a slot 16 elements behind the beginning."""

    backend: Any
    params: reference.Scan
    states: int

    def __call__(self, stretches: list[Stretch], x_b_c: F32, dt: F32) -> F32:
        p = self.params
        sizes = (p.heads, p.head_dim, p.groups, p.state_size)
        weights = [vector(self.backend, np.asarray(w, np.float32)) for w in (p.a, p.d, p.dt_bias)]
        out: F32 = self.backend.scan(self.states, 16, stretches, sizes, weights, x_b_c, dt)
        return out

    def state(self, slot: int) -> F32:
        shape = (self.params.heads, self.params.state_size, self.params.head_dim)
        values: F32 = self.backend.read_state(self.states, slot, 16, int(np.prod(shape)))
        return values.reshape(shape)


def make_scan(
    backend: Any, rng: np.random.Generator, sizes: tuple[int, int, int, int]
) -> ScanLayer:
    heads, head_dim, _, size = sizes
    a = -rng.uniform(0.05, 4.0, heads).astype(np.float32)
    params = reference.Scan(*sizes, a=a, d=normal(rng, heads), dt_bias=normal(rng, heads))
    return ScanLayer(backend, params, slots(backend, 16 + heads * head_dim * size, 6))


@pytest.mark.parametrize("sizes", SCANS)
def test_scan(backend: Any, rng: np.random.Generator, sizes: tuple[int, int, int, int]) -> None:
    layer = make_scan(backend, rng, sizes)
    heads, head_dim, groups, size = sizes
    rows = 150  # crosses the blocks of tokens twice
    x_b_c, dt = normal(rng, rows, heads * head_dim + 2 * groups * size), normal(rng, rows, heads)
    alone = layer([(0, rows, None, 0)], x_b_c, dt)
    expected, state = reference.scan(layer.params, x_b_c, dt, None)
    np.testing.assert_allclose(alone, expected, rtol=0, atol=3e-6 * np.abs(expected).max())
    np.testing.assert_allclose(layer.state(0), state, rtol=0, atol=3e-6 * np.abs(state).max())
    # In pieces, from slot to slot.
    cuts, parts, read = (0, 1, 2, 66, rows), [], None
    for i, (begin, end) in enumerate(pairwise(cuts)):
        parts.append(layer([(0, end - begin, read, 1 + i)], x_b_c[begin:end], dt[begin:end]))
        read = 1 + i
    assert_same_bits(np.concatenate(parts), alone)
    assert_same_bits(layer.state(4), layer.state(0))
    # Two that go on from one state, with one thread: what is read stays.
    backend.set_threads(1)
    again = [np.concatenate([values[2:66], values[2:50]]) for values in (x_b_c, dt)]
    both = layer([(0, 64, 2, 3), (64, 48, 2, 5)], *again)
    assert_same_bits(both, np.concatenate([alone[2:66], alone[2:50]]))


def test_large_steps_of_the_scan(backend: Any, rng: np.random.Generator) -> None:
    layer = make_scan(backend, rng, (2, 16, 1, 8))
    x_b_c = normal(rng, 3, 48)
    for step in (-200.0, 25.0, 300.0):
        dt = np.full((3, 2), step, np.float32)
        expected, _ = reference.scan(layer.params, x_b_c, dt, None)
        actual = layer([(0, 3, None, 0)], x_b_c, dt)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=3e-6 * np.abs(expected).max())


@pytest.mark.parametrize(("width", "parts"), [(48, 2), (40, 5), (17, 1)])
def test_norm_of_parts(backend: Any, rng: np.random.Generator, width: int, parts: int) -> None:
    x, gain = normal(rng, 9, width) * 3, normal(rng, width)
    actual = backend.rms_norm(x, vector(backend, gain), 1e-5, parts)
    piece = width // parts
    for at in range(0, width, piece):
        columns = slice(at, at + piece)
        expected = reference.rms_norm(x[:, columns], gain[columns], 1e-5)
        np.testing.assert_allclose(actual[:, columns], expected, rtol=4e-6, atol=1e-7)
    with pytest.raises(_core.InvalidArgument, match="which the parts divide"):
        backend.rms_norm(x, vector(backend, gain), 1e-5, 7)


def test_multiply_is_exact(backend: Any, rng: np.random.Generator) -> None:
    a, by = normal(rng, 5, 37), normal(rng, 5, 37)
    assert_same_bits(backend.multiply(a, by), a * by)


def test_slots_are_zero_when_committed_anew(backend: Any, rng: np.random.Generator) -> None:
    states = backend.create_states(8192, 3)
    assert backend.commit_slot(states, 1)
    values = normal(rng, 2048)
    backend.write_state(states, 1, 0, values)
    assert_same_bits(backend.read_state(states, 1, 0, 2048), values)
    backend.release_slot(states, 1)
    assert backend.commit_slot(states, 1)
    assert not backend.read_state(states, 1, 0, 2048).any()
    backend.destroy_states(states)


def test_wrong_calls_are_refused(backend: Any, rng: np.random.Generator) -> None:
    conv, x = make_conv(backend, rng, 16, 4), normal(rng, 4, 16)
    wrong: list[tuple[list[Stretch], str]] = [
        ([(0, 3, None, 0)], "cover 3 of 4 rows"),
        ([(0, 5, None, 0)], "end with row 4"),
        ([(1, 3, None, 0)], "follow each other"),
        ([(0, 0, None, 0), (0, 4, None, 1)], "follow each other"),
        ([(0, 4, None, 6)], "slot 6 of 6 is not committed"),
        ([(0, 4, 7, 0)], "slot 7 of 6 is not committed"),
        ([(0, 2, None, 1), (2, 2, None, 1)], "slot 1 is written by two"),
        ([(0, 2, 1, 2), (2, 2, 2, 3)], "slot 2 is read and written"),
        ([(0, 4, 2, 2)], "slot 2 is read and written"),
    ]
    for stretches, message in wrong:
        with pytest.raises(_core.InvalidArgument, match=message):
            conv(stretches, x)
    with pytest.raises(_core.InvalidArgument, match="needed are"):
        conv([(0, 4, None, 0)], normal(rng, 4, 15))
    layer = make_scan(backend, rng, (4, 8, 2, 8))
    with pytest.raises(_core.InvalidArgument, match="x_b_c has width 63, needed is 64"):
        layer([(0, 4, None, 0)], normal(rng, 4, 63), normal(rng, 4, 4))
    with pytest.raises(_core.InvalidArgument, match="multiple of 4096"):
        backend.create_states(100, 2)
    with pytest.raises(_core.InvalidArgument, match="of a slot of"):
        backend.read_state(layer.states, 0, 1000, 1000)
