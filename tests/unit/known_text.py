"""A cache whose contents are known: V of a token is its id, K is drawn for it and turned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import pykv
from tests.reference import kernels as reference

DIM = 32
ROPE = pykv.Rope(DIM)
LAYERS = 2
CELLS = 1024


def make(
    cells: int = CELLS, ropes: Sequence[pykv.Rope | None] = (ROPE, ROPE), type_k: str = "f32"
) -> pykv.Cache:
    layers = [pykv.Layer(1, DIM, DIM, rope=rope) for rope in ropes]
    return pykv.Cache(pykv.CacheConfig(layers, cells, type_k=type_k, type_v="f32"), threads=1)


def turned_k(tokens: Sequence[int], positions: Sequence[int], layer: int) -> Any:
    """K [n, DIM] of tokens at positions, float64."""
    drawn = [np.random.default_rng((token, layer)).normal(size=DIM) for token in tokens]
    return reference.rope(np.reshape(drawn, (-1, DIM)), list(positions), 1, DIM, 10000.0, True)


def append(cache: pykv.Cache, seq: int, tokens: list[int], with_ids: bool = True) -> None:
    plan = cache.plan([(seq, tokens if with_ids else len(tokens))])
    assert plan is not None
    with cache.step(plan) as step:
        write(step, tokens)


def write(step: pykv.Step, tokens: list[int]) -> None:
    v = np.broadcast_to(np.array(tokens, np.float32)[:, None, None], (len(tokens), 1, DIM))
    for layer in range(LAYERS):
        k = turned_k(tokens, step.positions.tolist(), layer)
        step.write(layer, k.reshape(len(tokens), 1, DIM), v)


def sequence(cache: pykv.Cache, tokens: list[int], namespace: int = 0) -> int:
    seq = cache.create(namespace)
    append(cache, seq, tokens)
    return seq


def placed(cache: pykv.Cache, seq: int, tolerance: float = 2e-5) -> list[tuple[int, int]]:
    """(position, token) in order, as V says; K must be that of the token at the position."""
    positions = [p for run in cache.runs(seq) for p in range(run.first, run.first + run.length)]
    for layer in range(LAYERS):
        k, v = cache.read_rows(seq, layer)
        tokens = v[:, 0, 0].astype(int).tolist()
        assert k.shape == v.shape == (len(positions), 1, DIM)
        assert np.array_equal(v[:, 0], np.repeat(v[:, 0, :1], DIM, axis=1))
        assert np.abs(k[:, 0] - turned_k(tokens, positions, layer)).max(initial=0) <= tolerance
    return list(zip(positions, tokens, strict=True))


def contents(cache: pykv.Cache, seq: int) -> dict[int, int]:
    """Token at each position."""
    pairs = placed(cache, seq)
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def attend(cache: pykv.Cache, seq: int, token: int = 9) -> Any:
    """What one more token sees in each layer, float32 [layers, 2 heads, DIM]; rolled back."""
    q = np.random.default_rng(1).normal(size=(1, 2, DIM)).astype(np.float32)
    with cache.step(cache.plan([(seq, [token])])) as step:
        write(step, [token])
        out = np.stack([step.attend(layer, q)[0] for layer in range(LAYERS)])
        step.rollback()
    return out


def expected_attention(cache: pykv.Cache, seq: int, token: int = 9) -> Any:
    """The same in float64, from what the sequence should hold."""
    q = np.random.default_rng(1).normal(size=(1, 2 * DIM)).astype(np.float32)
    pairs = [*placed(cache, seq), (cache.bounds(seq).end, token)]
    positions, tokens = [p for p, _ in pairs], [t for _, t in pairs]
    v = np.repeat(np.array(tokens, np.float64)[:, None], DIM, axis=1)
    params = reference.Attention(2, 1, DIM**-0.5)
    return np.stack(
        [
            reference.attention(
                q,
                [len(tokens) - 1],
                reference.Tokens(turned_k(tokens, positions, layer), v, positions),
                params,
            ).reshape(2, DIM)
            for layer in range(LAYERS)
        ]
    )
