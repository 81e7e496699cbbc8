"""A two-layer transformer in NumPy on the cache, as docs/cache.md tells it, beside the same one
with K and V in plain arrays: two sessions with one prefix, a fork, a removal, a shift."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest

import pykv

HEADS, KV_HEADS, DIM, WIDTH, VOCABULARY, LAYERS = 6, 2, 64, 96, 61, 2
ROPE = pykv.Rope(dims=DIM, base=10000.0, interleaved=True)
Array = npt.NDArray[np.float32]
Attend = Callable[[int, Array, Array, Array], Array]
"""(layer, q, k, v of the new tokens) -> attention, after K and V were stored."""

_rng = np.random.default_rng(0)


def _matrix(inputs: int, outputs: int) -> Array:
    return (_rng.normal(size=(inputs, outputs)) / np.sqrt(inputs)).astype(np.float32)


EMBEDDING = _matrix(VOCABULARY, WIDTH)
WEIGHTS = [
    {
        "qkv": _matrix(WIDTH, (HEADS + 2 * KV_HEADS) * DIM),
        "out": _matrix(HEADS * DIM, WIDTH),
        "up": _matrix(WIDTH, 2 * WIDTH),
        "down": _matrix(2 * WIDTH, WIDTH),
    }
    for _ in range(LAYERS)
]


def norm(x: Array) -> Array:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(1e-6))


def rotate(x: Array, positions: npt.NDArray[np.int32]) -> Array:
    angles = positions[:, None, None] * ROPE.base ** (-np.arange(0, DIM, 2) / DIM)
    a, b = x[..., 0::2], x[..., 1::2]
    turned = a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles)
    return np.stack(turned, axis=-1).reshape(x.shape).astype(np.float32)


def decode(tokens: Sequence[int], positions: npt.NDArray[np.int32], attend: Attend) -> Array:
    """Logits of every new token."""
    x = EMBEDDING[list(tokens)]
    for layer, weight in enumerate(WEIGHTS):
        qkv = (norm(x) @ weight["qkv"]).reshape(len(x), -1, DIM)
        q, k, v = np.split(qkv, [HEADS, HEADS + KV_HEADS], axis=1)
        mixed = attend(layer, rotate(q, positions), rotate(k, positions), v)
        x = x + mixed.reshape(len(x), -1) @ weight["out"]
        x = x + np.maximum(norm(x) @ weight["up"], 0) @ weight["down"]
    return norm(x) @ EMBEDDING.T


class PlainSession:
    """K, V and positions of one session in arrays of its own."""

    def __init__(self) -> None:
        self.positions = np.zeros(0, np.int32)
        self.k = self.v = [np.zeros((0, KV_HEADS, DIM), np.float32)] * LAYERS

    def fork(self) -> PlainSession:
        other = PlainSession()
        other.positions, other.k, other.v = self.positions, list(self.k), list(self.v)
        return other

    def forward(self, tokens: Sequence[int]) -> Array:
        begin = self.positions[-1] + 1 if len(self.positions) else 0
        new = np.arange(begin, begin + len(tokens), dtype=np.int32)
        self.positions = np.concatenate([self.positions, new])

        def attend(layer: int, q: Array, k: Array, v: Array) -> Array:
            self.k = [*self.k[:layer], np.concatenate([self.k[layer], k]), *self.k[layer + 1 :]]
            self.v = [*self.v[:layer], np.concatenate([self.v[layer], v]), *self.v[layer + 1 :]]
            group = HEADS // KV_HEADS
            keys, values = (np.repeat(x[layer], group, axis=1) for x in (self.k, self.v))
            scores = np.einsum("qhd,khd->hqk", q, keys) / np.sqrt(DIM)
            scores = np.where(self.positions > new[:, None], -np.inf, scores)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            return np.einsum("hqk,khd->qhd", weights, values).astype(np.float32)

        return decode(tokens, new, attend)

    def remove(self, begin: int, end: int) -> None:
        stay = (self.positions < begin) | (self.positions >= end)
        self.positions = self.positions[stay]
        self.k, self.v = [x[stay] for x in self.k], [x[stay] for x in self.v]

    def shift(self, begin: int, delta: int) -> None:
        """Turns K from its old positions to the new ones."""
        moved = np.where(self.positions >= begin, delta, 0).astype(np.int32)
        self.positions = self.positions + moved
        self.k = [rotate(x, moved) for x in self.k]


@pytest.mark.parametrize(("kind", "bound"), [("f32", 2e-5), ("f16", 5e-3), ("q8_0", 5e-2)])
def test_a_numpy_model_on_the_cache_answers_as_with_plain_arrays(kind: str, bound: float) -> None:
    layers = [pykv.Layer(KV_HEADS, DIM, DIM, rope=ROPE)] * LAYERS
    cache = pykv.Cache(pykv.CacheConfig(layers, 1024, kind, kind), threads=2)

    def forward(*requests: tuple[int, list[int]]) -> list[Array]:
        with cache.step(cache.plan(requests)) as step:

            def attend(layer: int, q: Array, k: Array, v: Array) -> Array:
                step.write(layer, k, v)
                return step.attend(layer, q)

            tokens = [token for _, own in requests for token in own]
            logits = decode(tokens, step.positions, attend)
            return [logits[rows] for rows in step.slices]

    def near(got: Array, expected: Array) -> None:
        assert np.abs(got - expected).max() <= bound * np.abs(expected).max()

    system = _rng.integers(0, VOCABULARY, 300).tolist()
    ana, plain_ana = cache.open([*system, 1, 2]).sequence, PlainSession()
    near(forward((ana, [*system, 1, 2]))[0], plain_ana.forward([*system, 1, 2]))

    bob, reused, *_ = cache.open([*system, 5, 6, 7])
    plain_bob = PlainSession()
    assert reused == 300
    near(forward((bob, [5, 6, 7]))[0], plain_bob.forward([*system, 5, 6, 7])[300:])

    branch, plain_branch = cache.fork(ana), plain_ana.fork()
    logits = forward((ana, [11]), (bob, [12]), (branch, [13, 14]))
    near(logits[0], plain_ana.forward([11]))
    near(logits[1], plain_bob.forward([12]))
    near(logits[2], plain_branch.forward([13, 14]))

    cache.remove(branch, (100, 150))
    plain_branch.remove(100, 150)
    near(forward((branch, [20, 21]))[0], plain_branch.forward([20, 21]))

    cache.shift(branch, (150, cache.bounds(branch).end), -50)
    plain_branch.shift(150, -50)
    near(forward((branch, [22] * 5))[0], plain_branch.forward([22] * 5))

    near(forward((ana, [30]))[0], plain_ana.forward([30]))
    near(forward((bob, [31]))[0], plain_bob.forward([31]))
