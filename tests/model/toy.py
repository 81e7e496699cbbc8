"""A model of any layers that the cache knows, also of mixes that no architecture has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pykv import Cache, CacheConfig, Layer
from tests.model.machine import Logits, Work

F32 = npt.NDArray[np.float32]
WIDTH = 16
FULL = Layer(kv_heads=1, k_dim=WIDTH, v_dim=WIDTH)
WINDOW = Layer(kv_heads=1, k_dim=WIDTH, v_dim=WIDTH, window=("standard", 8))
CHUNKED = Layer(kv_heads=1, k_dim=WIDTH, v_dim=WIDTH, window=("chunked", 12))
STATE = Layer.recurrent(3, WIDTH - 3)
MIXES = {
    "full": [FULL, FULL],
    "windows": [WINDOW, FULL, WINDOW],
    "two kinds of windows": [WINDOW, CHUNKED, FULL],
    "window of one token": [replace(WINDOW, window=("standard", 1)), FULL],
    "recurrent": [STATE],
    "hybrid": [STATE, FULL],
    "hybrid and window": [WINDOW, STATE, FULL],
    "hybrid and two kinds of windows": [CHUNKED, STATE, WINDOW, FULL],
    "state beside K and V": [Layer(kv_heads=1, k_dim=WIDTH, v_dim=WIDTH, state=(3, WIDTH - 3))],
}


def exact(layers: Sequence[Layer], tokens: Sequence[int]) -> npt.NDArray[np.float64]:
    """What a toy gives, in NumPy: whole matrices of scores, no cells and no steps."""
    x = np.sin(np.outer(tokens, range(1, WIDTH + 1)))
    rows = np.arange(len(tokens))
    for layer in layers:
        if layer.state is not None:
            # Row i is all before it, each moved on and made smaller once per row.
            x = np.array(
                [sum(0.75 ** (i - j) * np.roll(x[j], i - j) for j in range(i + 1)) for i in rows]
            )
        if layer.kv_heads:
            kind, size = layer.window or ("standard", len(tokens))
            first = rows - size + 1 if kind == "standard" else rows // size * size
            seen = (rows[None] <= rows[:, None]) & (rows[None] >= first[:, None])
            weights = np.where(seen, np.exp(x @ x.T / np.sqrt(WIDTH)), 0)
            x = x + weights / weights.sum(axis=1, keepdims=True) @ x
    return x


class Toy:
    """Every number depends on all tokens before it, in their order."""

    vocab = 200

    def __init__(self, layers: Sequence[Layer], **config: Any) -> None:
        self.layers = layers
        options = {"cells": 1024, "type_k": "f32", "type_v": "f32"} | config
        self.cache = Cache(CacheConfig(layers=layers, **options), threads=1)

    def mix(self, x: F32, before: F32) -> tuple[F32, F32]:
        """Outputs and the state after x [n, WIDTH]."""
        state, out = before, np.empty_like(x)
        for i, row in enumerate(x):
            state = (np.float32(0.75) * np.roll(state, 1) + row).astype(np.float32)
            out[i] = state
        return out, state

    def append(self, work: Sequence[Work], keep: bool) -> list[Logits] | None:
        plan = self.cache.plan(work)
        if plan is None:
            return None
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
            out = [x[rows] for rows in step.slices]
            if not keep:
                step.rollback()
        return out

    def step(self, work: Sequence[Work]) -> list[Logits]:
        out = self.append(work, keep=True)
        assert out is not None, "the pool of the test is too small"
        return out

    def cold(self, tokens: Sequence[int]) -> Logits:
        """Of a toy of its own whose windows keep all cells."""
        fresh = Toy(self.layers, windows="full")
        return fresh.step([(fresh.cache.create(), tokens)])[0]
