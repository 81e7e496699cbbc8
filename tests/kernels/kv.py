"""One sequence's tokens in a pool, wherever their cells lie, for the attention tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pykv import _core
from tests.kernels.arrays import F32
from tests.reference import kernels as reference
from tests.reference import kv_storage
from tests.reference.block_formats import encode


@dataclass(frozen=True)
class Shape:
    k_dim: int
    v_dim: int
    kv_heads: int = 1
    share: int = 1  # query heads per KV head
    type_k: str = "f32"
    type_v: str = "f32"
    v_view: bool = False
    hadamard: bool = True
    scale_by: float | None = None

    @property
    def heads(self) -> int:
        return self.kv_heads * self.share

    @property
    def scale(self) -> float:
        return float(np.float32(self.k_dim**-0.5 if self.scale_by is None else self.scale_by))

    def widths(self) -> tuple[int, int]:
        return self.kv_heads * self.k_dim, self.kv_heads * self.v_dim

    def __str__(self) -> str:
        v = "view" if self.v_view else self.type_v
        plain = "" if self.hadamard else "-plain"
        return f"{self.k_dim}x{self.v_dim}-{self.kv_heads}x{self.share}-{self.type_k}-{v}{plain}"


@dataclass(frozen=True)
class Features:
    """What attention may do besides the plain thing; `rope` is (dims, base, interleaved)."""

    softcap: float = 0.0
    sinks: tuple[float, ...] = ()
    slopes: tuple[float, ...] = ()
    window: tuple[str, int] = ("none", 0)
    rope: tuple[int, float, bool] | None = None


class Tier:
    """A backend of one instruction set, and how precisely attention is asked for."""

    def __init__(self, isa: str, precision: str) -> None:
        self.backend = _core.Backend(threads=2, isa=isa)
        self.precision = precision
        assert self.backend.isa == isa, "another tier would be tested"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)


ISAS = _core.Backend.available_isas()
# Only these tiers have kernels of their own for "fast" and "fastest"; elsewhere attention is the
# same as with "exact".
TIERS = (
    [(isa, "exact") for isa in ISAS]
    + [(isa, "fast") for isa in ISAS if isa.startswith("avx")]
    + [(isa, "fastest") for isa in ISAS if isa == "avx512_bf16"]
)


# (first position, cell, length), where they matter with a rotation and a first slot.
Segments = list[tuple[int, ...]]
# (segments, first position, rows), where it is another than the position with a first slot.
Group = tuple[Any, ...]


def whole_segment(segment: tuple[int, ...]) -> tuple[int, int, int, int, int]:
    first, cell, length, *rest = segment
    rotation = rest[0] if rest else 0
    return first, cell, length, rotation, rest[1] if len(rest) > 1 else first


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
    return np.concatenate([np.arange(s[1], s[1] + s[2]) for s in segments]).astype(np.uint32)


def positions_of(segments: Segments) -> Any:
    return np.concatenate([np.arange(s[0], s[0] + s[2]) for s in segments])


def slots_of(segments: Segments) -> Any:
    whole = [whole_segment(s) for s in segments]
    return np.concatenate([np.arange(s[4], s[4] + s[2]) for s in whole])


def rotations_of(segments: Segments) -> Any:
    return np.concatenate([np.full(s[2], whole_segment(s)[3]) for s in segments])


class Pool:
    """A pool of one layer, all blocks committed."""

    def __init__(
        self, backend: Any, shape: Shape, blocks: int = 32, features: Features | None = None
    ) -> None:
        self.backend, self.shape = backend, shape
        self.precision = getattr(backend, "precision", "exact")
        self.features = features or Features()
        layer = _core.LayerSpec(
            kv_heads=shape.kv_heads, k_dim=shape.k_dim, v_dim=shape.v_dim, v_view_of_k=shape.v_view
        )
        self.handle = backend.create_pool(
            [layer], shape.type_k, shape.type_v, blocks, hadamard=shape.hadamard
        )
        backend.commit_blocks(self.handle, np.arange(blocks))

    def write(self, segments: Segments, k: F32, v: F32 | None) -> None:
        self.backend.write_kv(
            self.handle, 0, k, None if self.shape.v_view else v, cells_of(segments)
        )

    def stored(self, segments: Segments) -> tuple[F32, F32]:
        k, v = self.backend.read_kv(self.handle, 0, cells_of(segments), self.shape.widths())
        return k, v

    def export(self, segments: Segments) -> tuple[Any, Any]:
        """Bytes of the rows as they are stored, [tokens, bytes] of K and of V."""
        shape = self.shape
        row_bytes = [
            len(encode(kind, np.zeros(width, np.float32)))
            for kind, width in zip((shape.type_k, shape.type_v), shape.widths(), strict=True)
        ]
        if shape.v_view:
            row_bytes[1] = 0
        k, v = self.backend.export_rows(self.handle, 0, cells_of(segments), row_bytes)
        return k, v

    def load(self, segments: Segments, k: Any, v: Any) -> None:
        self.backend.import_rows(self.handle, 0, cells_of(segments), k, v)

    def attend(self, q: F32, segments: Segments, first: int, slot: int | None = None) -> F32:
        """Rows of q stand at positions first, first + 1, … and slots slot, slot + 1, …"""
        return self.attend_groups(q, [(segments, first, len(q), first if slot is None else slot)])

    def attend_groups(self, q: F32, groups: Sequence[Group]) -> F32:
        """Groups one after the other in q."""
        all_segments: list[tuple[int, int, int, int, int]] = []
        packed = []
        row = 0
        for segments, first, rows, *slot in groups:
            place = (len(all_segments), len(segments))
            packed.append((row, rows, first, *place, slot[0] if slot else first))
            all_segments += [whole_segment(s) for s in segments]
            row += rows
        options = self.features
        out: F32 = self.backend.attend(
            self.handle, 0, q, segments=all_segments, groups=packed, heads=self.shape.heads,
            scale=self.shape.scale, out_width=self.shape.heads * self.shape.v_dim,
            softcap=options.softcap, sinks=list(options.sinks), alibi_slopes=list(options.slopes),
            window=options.window, rope=rope_params(options.rope), precision=self.precision,
        )  # fmt: skip
        return out

    def tolerance(self, exact: float) -> float:
        """In units of max |V|, about 4: of one rounding of every factor, by 2^-9 of itself in
        "fastest", by 2^-15 of its row in "fast"."""
        return {"exact": exact, "fast": 1e-3, "fastest": 0.05}[self.precision]

    def round_query(self) -> Callable[[F32], F32] | None:
        """Fast scores round queries to q8_0 where K is q8_0 or, on AVX-512, q4_0."""
        shape = self.shape
        if getattr(self.backend, "isa", "") == "avx2":
            rounds = shape.type_k == "q8_0" and shape.type_v in ("f16", "q8_0")
        else:
            rounds = shape.type_k in ("q8_0", "q4_0")
        if self.precision != "fast" or not rounds or shape.v_view:
            return None
        size = kv_storage.transform_size("k", "q8_0", shape.k_dim) if shape.hadamard else 0
        return lambda heads: kv_storage.rounded_query(heads, size)

    def expected(self, q: F32, segments: Segments, first: int, slot: int | None = None) -> Any:
        k, v = self.stored(segments)
        options = self.features
        tokens = reference.Tokens(k, v, positions_of(segments), rotations_of(segments))
        start = int(np.searchsorted(slots_of(segments), first if slot is None else slot))
        params = reference.Attention(
            self.shape.heads, self.shape.kv_heads, self.shape.scale, options.softcap,
            options.sinks or None, options.slopes or None, options.window, options.rope,
            self.round_query(),
        )  # fmt: skip
        return reference.attention(q, range(start, start + len(q)), tokens, params)


def rope_params(rope: tuple[int, float, bool] | None) -> Any:
    if rope is None:
        return None
    dims, base, interleaved = rope
    return _core.RopeParams(dims=dims, base=base, interleaved=interleaved)
