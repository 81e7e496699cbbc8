"""Values that :class:`pykv.Cache` takes and gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Span(NamedTuple):
    """Half-open range of positions [begin, end)."""

    begin: int
    end: int


class Opened(NamedTuple):
    """What :meth:`Cache.open` found."""

    sequence: int
    reused: int
    """Tokens the sequence already holds, fewer than were given."""
    pending: int
    """Further ones that another sequence has announced and not computed yet."""


class Run(NamedTuple):
    """A stretch of a sequence in consecutive cells."""

    first: int
    cell: int
    length: int
    rotation: int


@dataclass(frozen=True)
class Layer:
    """One layer: KV heads, and elements per head of K and V (multiples of 8, 8 to 256)."""

    kv_heads: int
    k_dim: int
    v_dim: int


@dataclass(frozen=True)
class CacheConfig:
    """What a cache is made of.

    ``cells`` is the capacity in tokens, rounded up to whole blocks of 64. ``pool_bytes`` is a
    hard limit on the memory in use (0: none); where it affords fewer cells, those are the
    capacity. ``type_k`` and ``type_v`` are ``"f32"``, ``"f16"`` or ``"q8_0"``. ``watermarks`` are
    the shares of free cells at which :meth:`Cache.reclaim` starts and stops. ``edge_hash``
    is for tests: ``"constant"`` makes every lookup collide, which may cost time and nothing else.
    """

    layers: Sequence[Layer]
    cells: int
    type_k: str = "f16"
    type_v: str = "f16"
    pool_bytes: int = 0
    watermarks: tuple[float, float] = (0.05, 0.10)
    edge_hash: str = field(default="default", repr=False)
