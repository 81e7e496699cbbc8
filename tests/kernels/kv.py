"""One sequence's tokens in a pool, wherever their cells lie, for the attention tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pykv import _core
from tests.kernels.arrays import F32
from tests.reference import kernels as reference


@dataclass(frozen=True)
class Shape:
    k_dim: int
    v_dim: int
    kv_heads: int = 1
    share: int = 1  # query heads per KV head
    type_k: str = "f32"
    type_v: str = "f32"

    @property
    def heads(self) -> int:
        return self.kv_heads * self.share

    @property
    def scale(self) -> float:
        return float(np.float32(self.k_dim**-0.5))

    def widths(self) -> tuple[int, int]:
        return self.kv_heads * self.k_dim, self.kv_heads * self.v_dim

    def __str__(self) -> str:
        return f"{self.k_dim}x{self.v_dim}-{self.kv_heads}x{self.share}-{self.type_k}-{self.type_v}"


Segments = list[tuple[int, int, int]]


def contiguous(tokens: int, cell: int = 0) -> Segments:
    return [(0, cell, tokens)]


def scattered(rng: np.random.Generator, tokens: int, cells: int, longest: int = 40) -> Segments:
    """Segments of random lengths in random order of cells, gaps between them."""
    lengths: list[int] = []
    while sum(lengths) < tokens:
        lengths.append(min(int(rng.integers(1, longest + 1)), tokens - sum(lengths)))
    order = rng.permutation(len(lengths))
    gaps = rng.multinomial(cells - tokens, np.full(len(lengths) + 1, 1 / (len(lengths) + 1)))
    places, at = {}, 0
    for slot, index in enumerate(order):
        at += int(gaps[slot])
        places[int(index)] = at
        at += lengths[index]
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    return [(int(starts[i]), places[i], lengths[i]) for i in range(len(lengths))]


def cells_of(segments: Segments) -> Any:
    return np.concatenate([np.arange(c, c + n) for _, c, n in segments]).astype(np.uint32)


class Pool:
    """A pool of one layer, all blocks committed."""

    def __init__(self, backend: Any, shape: Shape, blocks: int = 32) -> None:
        self.backend, self.shape = backend, shape
        layer = _core.LayerSpec(kv_heads=shape.kv_heads, k_dim=shape.k_dim, v_dim=shape.v_dim)
        self.handle = backend.create_pool([layer], shape.type_k, shape.type_v, blocks)
        backend.commit_blocks(self.handle, np.arange(blocks))

    def write(self, segments: Segments, k: F32, v: F32) -> None:
        self.backend.write_kv(self.handle, 0, k, v, cells_of(segments))

    def stored(self, segments: Segments) -> tuple[F32, F32]:
        k, v = self.backend.read_kv(self.handle, 0, cells_of(segments), self.shape.widths())
        return k, v

    def attend(self, q: F32, segments: Segments, first: int) -> F32:
        """Rows of q stand at positions first, first + 1, …"""
        return self.attend_groups(q, [(segments, first, len(q))])

    def attend_groups(self, q: F32, groups: Sequence[tuple[Segments, int, int]]) -> F32:
        """Groups of (segments, first position, rows), one after the other in q."""
        all_segments: Segments = []
        packed = []
        row = 0
        for segments, first, rows in groups:
            packed.append((row, rows, first, len(all_segments), len(segments)))
            all_segments += segments
            row += rows
        out: F32 = self.backend.attend(
            self.handle, 0, q, segments=all_segments, groups=packed, heads=self.shape.heads,
            scale=self.shape.scale, out_width=self.shape.heads * self.shape.v_dim,
        )  # fmt: skip
        return out

    def expected(self, q: F32, segments: Segments, first: int) -> Any:
        k, v = self.stored(segments)
        return reference.attention(
            q, k, v, range(first, first + len(q)), heads=self.shape.heads,
            kv_heads=self.shape.kv_heads, scale=self.shape.scale,
        )  # fmt: skip
