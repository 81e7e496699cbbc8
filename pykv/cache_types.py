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
    no_resume_point: int = 0
    """Further ones that are stored, but from which layers with a window or a state cannot go on."""


class Run(NamedTuple):
    """A stretch of a sequence in consecutive cells."""

    first: int
    cell: int
    length: int
    rotation: int


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding of stored K.

    ``dims`` elements of each head turn, from element ``offset`` on: pair i by ``frequencies[i]``
    radians per position, or by ``base ** (-2 * i / dims)`` where no frequencies are given.
    Pairs are neighbours, ``(2i, 2i + 1)``, if ``interleaved``, else ``(i, i + dims / 2)``.
    """

    dims: int
    base: float = 10000.0
    interleaved: bool = True
    frequencies: Sequence[float] = ()
    offset: int = 0

    @staticmethod
    def none() -> Rope:
        """K does not depend on positions."""
        return Rope(0)


@dataclass(frozen=True)
class Layer:
    """One layer.

    ``kv_heads`` KV heads of ``k_dim`` (8 to 576) and ``v_dim`` (8 to 512) elements, multiples of 8.

    ``window`` limits how far back a token sees, in positions: ``("standard", size)`` the last
    ``size`` with its own, ``("chunked", size)`` those from the last multiple of ``size`` on.
    ``rope`` says how stored K was turned by its position: ``None`` means unknown, and what
    moves stored tokens to other positions is then refused. ``sinks``: attention takes one
    more logit per query head. ``v_view_of_k``: V is the first ``v_dim`` elements of K and
    nothing is stored for it. ``kv_from_layer``: the layer stores nothing and attends to the
    K and V of an earlier one, whose sizes it must repeat.

    ``state``: the layer is recurrent and keeps so many float32 elements of each sequence, those
    of a convolution and those of a scan. A layer that has no K and V beside it is
    ``Layer.recurrent(convolution, scan)``, with sizes of 0.
    """

    kv_heads: int
    k_dim: int
    v_dim: int
    window: tuple[str, int] | None = None
    rope: Rope | None = None
    sinks: bool = False
    v_view_of_k: bool = False
    kv_from_layer: int | None = None
    state: tuple[int, int] | None = None

    @staticmethod
    def recurrent(convolution: int, scan: int) -> Layer:
        """A layer without K and V, with elements of state."""
        return Layer(0, 0, 0, state=(convolution, scan))


@dataclass(frozen=True)
class CacheConfig:
    """What a cache is made of.

    ``cells`` is the capacity in tokens, rounded up to whole blocks of 64. ``pool_bytes`` is a
    hard limit on the memory in use (0: none); where it affords fewer cells, those are the
    capacity. ``type_k`` and ``type_v`` are ``"f32"``, ``"f16"``, ``"bf16"``, ``"q8_0"``,
    ``"q4_0"``, ``"q4_1"``, ``"q5_0"``, ``"q5_1"`` or ``"iq4_nl"``; quantized ones need sizes that
    are multiples of 32. ``hadamard``: store quantized K and V transformed where 64 divides the
    size, which costs less precision; seen only by :meth:`Cache.export_rows`. ``watermarks`` are
    the shares of free cells at which :meth:`Cache.reclaim` starts and stops; it moves at most
    ``compact_bytes`` of K and V per tick to fill holes (0: none). ``edge_hash`` is for tests:
    ``"constant"`` makes every lookup collide, which may cost time and nothing else.

    ``windows`` says what layers with a window keep, beside layers without one. ``"own_pool"``:
    of each sequence what its next token sees, in a pool with cells for ``max_sequences`` sequences
    that append ``step_tokens`` each (or with ``window_cells``, if that is not 0), and resume
    points: places where sequences continue. These take ``resume_bytes`` (``None``: a tenth of the
    other layers' bytes, at least two points; 0: none), lie where prompts and sequences end and
    every ``resume_spacing`` tokens, and the least recently used ones go. ``"full"``: all tokens.
    """

    layers: Sequence[Layer]
    cells: int
    type_k: str = "f16"
    type_v: str = "f16"
    hadamard: bool = True
    pool_bytes: int = 0
    watermarks: tuple[float, float] = (0.05, 0.10)
    compact_bytes: int = 4 << 20
    edge_hash: str = field(default="default", repr=False)
    windows: str = "own_pool"
    max_sequences: int = 16
    step_tokens: int = 512
    window_cells: int = 0
    resume_bytes: int | None = None
    resume_spacing: int = 512
