"""What every backend operation computes, in NumPy: the definitions that the kernel tests
hold each instruction-set tier to. Arithmetic is float64 unless a rounding is part of the
definition; nothing of pykv is used.
"""

# NumPy's stubs type many operators as Any.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.reference.random_blocks import BLOCKS

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]


def linear(weight: F32, x: F32) -> F64:
    """weight [outputs, inputs], x [n, inputs] -> [n, outputs]."""
    return x.astype(np.float64) @ weight.astype(np.float64).T


def linear_error_scale(weight: F32, x: F32) -> F64:
    """Σ |x w|, the natural unit of rounding errors of `linear`."""
    return np.abs(x.astype(np.float64)) @ np.abs(weight.astype(np.float64)).T


def quantize_activations(x: F32) -> tuple[F32, npt.NDArray[np.int8]]:
    """x [n, inputs] -> scale [n, inputs / 32] and integers [n, inputs / 32, 32], as
    activations.h defines them; finite x."""
    blocks = np.ascontiguousarray(x, np.float32).reshape(len(x), -1, 32)
    largest = np.abs(blocks).max(axis=2)
    with np.errstate(all="ignore"):
        inverse = np.float32(127) / largest
        factor = np.where(np.isfinite(inverse), inverse, np.float32(0)).astype(np.float32)
        scale = largest / np.float32(127)
    return scale, np.rint(blocks * factor[:, :, None]).astype(np.int8)


def _f16(two_bytes: Bytes) -> F64:
    return two_bytes.copy().view(np.float16).astype(np.float64)[:, 0]


def _small_blocks(kind: str, raw: Bytes) -> tuple[F64, F64, F64]:
    """Blocks of 32: d and m [n, 2], alike for both halves, integers [n, 32]."""
    d, m = _f16(raw[:, :2]), np.zeros(len(raw))
    if kind == "q8_0":
        integers = raw[:, 2:].view(np.int8).astype(np.float64)
    else:
        integers = np.concatenate([raw[:, -16:] & 15, raw[:, -16:] >> 4], axis=1).astype(np.float64)
        if kind.startswith("q5"):
            integers += 16.0 * np.unpackbits(raw[:, -20:-16], axis=1, bitorder="little")
        if kind.endswith("_1"):
            m = _f16(raw[:, 2:4])
        else:
            integers -= {"q4_0": 8, "q5_0": 16}[kind]
    return np.stack([d, d], axis=1), np.stack([m, m], axis=1), integers


def _k_scales(packed: Bytes) -> tuple[F64, F64]:
    """The eight scales and minimums in the twelve bytes of q4_k and q5_k."""
    low, middle, high = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([low & 63, high & 15 | low >> 6 << 4], axis=1)
    minimums = np.concatenate([middle & 63, high >> 4 | middle >> 6 << 4], axis=1)
    return scales.astype(np.float64), minimums.astype(np.float64)


def _k_blocks(kind: str, raw: Bytes) -> tuple[F64, F64, F64]:
    """Blocks of 256 as eight of 32."""
    count = len(raw)
    if kind == "q6_k":
        low, high = raw[:, :128].reshape(count, 2, 2, 32), raw[:, 128:192].reshape(count, 2, 1, 32)
        nibbles = np.concatenate([low & 15, low >> 4], axis=2)  # [n, 128 elements, four of 32]
        upper = high >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
        integers = (nibbles | upper << 4).astype(np.float64) - 32
        scales = raw[:, 192:208].view(np.int8).astype(np.float64)
        d = _f16(raw[:, 208:])[:, None] * scales
        return d.reshape(-1, 2), np.zeros((count * 8, 2)), integers.reshape(-1, 32)
    scales, minimums = _k_scales(raw[:, 4:16])
    packed = raw[:, -128:].reshape(count, 4, 1, 32)
    integers = np.concatenate([packed & 15, packed >> 4], axis=2).reshape(count, 8, 32)
    if kind == "q5_k":
        fifth = raw[:, 16:48].reshape(count, 1, 32) >> np.arange(8, dtype=np.uint8)[:, None] & 1
        integers = integers | fifth << 4
    d = (_f16(raw[:, :2])[:, None] * scales).reshape(-1)
    m = (-_f16(raw[:, 2:4])[:, None] * minimums).reshape(-1)
    return (
        np.stack([d, d], axis=1),
        np.stack([m, m], axis=1),
        integers.astype(np.float64).reshape(-1, 32),
    )


def weight_integers(kind: str, data: Bytes) -> tuple[F64, F64, F64]:
    """Blocks of 32 of a stored weight as d and m [n, 2], of both halves, and integers [n, 32]:
    d * integer + m."""
    raw = np.ascontiguousarray(data, np.uint8).reshape(-1, BLOCKS[kind][0])
    return _k_blocks(kind, raw) if kind.endswith("_k") else _small_blocks(kind, raw)


def linear_int8(kind: str, data: Bytes, shape: tuple[int, int], x: F32) -> tuple[F64, F64]:
    """The layer of stored weights [outputs, inputs] on rounded activations, and the sum of
    the magnitudes that its float32 chain adds: the unit of its rounding errors."""
    outputs, halves = shape[0], shape[1] // 16
    scale, q = quantize_activations(x)
    d, m, integers = weight_integers(kind, data)
    wide = np.repeat(scale.astype(np.float64), 2, axis=1)
    rounded = q.astype(np.float64).reshape(len(x), halves, 16)
    dots = np.einsum("obk,nbk->nob", integers.reshape(outputs, halves, 16), rounded)
    products = dots * d.reshape(outputs, halves) * wide[:, None, :]
    minimums = m.reshape(outputs, halves) * (wide * rounded.sum(axis=2))[:, None, :]
    terms = np.abs(products) + np.abs(minimums)
    return (products + minimums).sum(axis=2), terms.sum(axis=2)


def rms_norm(x: F32, gain: F32, epsilon: float) -> F64:
    wide = x.astype(np.float64)
    mean = (wide**2).mean(axis=1, keepdims=True)
    return wide / np.sqrt(mean + epsilon) * gain.astype(np.float64)


def rope(
    x: F32 | F64, positions: Sequence[int], heads: int, dims: int, base: float, interleaved: bool
) -> F64:
    """Rotates the first `dims` elements of each head by position * base^(-2i / dims)."""
    out = x.astype(np.float64).reshape(len(x), heads, -1).copy()
    pairs = np.arange(dims // 2)
    angle = np.asarray(positions, np.float64)[:, None] * float(base) ** (-2.0 * pairs / dims)
    first = 2 * pairs if interleaved else pairs
    second = first + 1 if interleaved else pairs + dims // 2
    a, b = out[:, :, first].copy(), out[:, :, second].copy()
    cos, sin = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]
    out[:, :, first] = a * cos - b * sin
    out[:, :, second] = a * sin + b * cos
    return out.reshape(len(x), -1)


def silu_mul(gate: F32, up: F32) -> F64:
    wide = gate.astype(np.float64)
    return wide / (1 + np.exp(-wide)) * up.astype(np.float64)


def gelu_mul(gate: F32, up: F32) -> F64:
    """With gelu as tanh approximates it."""
    wide = gate.astype(np.float64)
    inner = np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
    return wide / 2 * (1 + np.tanh(inner)) * up.astype(np.float64)


@dataclass(frozen=True)
class Tokens:
    """What attention may look at: stored K and V [tokens, kv_heads * dim], in the order of
    slots, and for each token its position and how far it was moved since K was stored."""

    k: F32
    v: F32
    positions: Sequence[int]
    rotations: Sequence[int] | None = None


@dataclass(frozen=True)
class Attention:
    """Parameters of attention; `window` is (kind, size), `rope` (dims, base, interleaved).
    `round_query`, of [n, k_dim]: what is made of queries as stored K meets them."""

    heads: int
    kv_heads: int
    scale: float
    softcap: float = 0.0
    sinks: Sequence[float] | None = None
    slopes: Sequence[float] | None = None
    window: tuple[str, int] = ("none", 0)
    rope: tuple[int, float, bool] | None = None
    round_query: Callable[[F32], F32] | None = None


def visible(key_pos: Any, query_pos: int, window: tuple[str, int]) -> Any:
    """Whether a window lets a query see keys that come before it or are its own."""
    kind, size = window
    if kind == "standard":
        return query_pos - key_pos < size
    if kind == "chunked":
        return key_pos >= query_pos // size * size
    return key_pos == key_pos


def queries_against(q: F32, rotation: int, params: Attention) -> F64:
    """[n, heads, k_dim]: queries against K that has been turned by `rotation`."""
    turned = q.astype(np.float64)
    there, back = [rotation] * len(q), [-rotation] * len(q)
    if params.round_query is not None:
        if rotation != 0 and params.rope is not None:
            turned = rope(turned, back, params.heads, *params.rope)
        heads = turned.astype(np.float32).reshape(len(q) * params.heads, -1)
        turned = params.round_query(heads).astype(np.float64).reshape(len(q), -1)
        if rotation != 0 and params.rope is not None:
            turned = rope(turned, there, params.heads, *params.rope)
    return turned.reshape(len(q), params.heads, -1)


def attention(q: F32, own: Sequence[int], tokens: Tokens, params: Attention) -> F64:
    """q [n, heads * k_dim]; query i is that of token own[i] and sees tokens 0 … own[i] as far as
    the window reaches. Keys are turned to their positions."""
    n, heads, kv_heads = len(q), params.heads, params.kv_heads
    k = tokens.k.astype(np.float64)
    rotations = np.zeros(len(k), int) if tokens.rotations is None else np.asarray(tokens.rotations)
    if tokens.rotations is not None and params.rope is not None:
        k = rope(k, tokens.rotations, kv_heads, *params.rope)
    keys = k.reshape(len(k), kv_heads, -1)
    values = tokens.v.astype(np.float64).reshape(len(k), kv_heads, -1)
    positions = np.asarray(tokens.positions, np.int64)
    queries = {r: queries_against(q, r, params) for r in set(rotations.tolist())}
    out = np.empty((n, heads, values.shape[2]))
    for i, token in enumerate(own):
        query_pos = int(positions[token])
        seen = np.arange(len(k)) <= token
        seen &= visible(positions, query_pos, params.window)
        for head in range(heads):
            kv_head = head // (heads // kv_heads)
            scores = np.empty(len(k))
            for rotation, turned in queries.items():
                there = rotations == rotation
                scores[there] = params.scale * keys[there, kv_head] @ turned[i, head]
            scores = scores[seen]
            if params.softcap:
                scores = params.softcap * np.tanh(scores / params.softcap)
            if params.slopes is not None:
                scores = scores + params.slopes[head] * (positions[seen] - query_pos)
            sink = [] if params.sinks is None else [params.sinks[head]]
            top = max([scores.max(), *sink])
            weights = np.exp(scores - top)
            total = weights.sum() + sum(np.exp(np.asarray(sink) - top))
            out[i, head] = weights / total @ values[seen, kv_head]
    return out.reshape(n, -1)


def causal_conv(
    x: F32 | F64, taps: F32 | F64, bias: F32 | F64 | None, before: F32 | F64 | None, silu: bool
) -> F64:
    """x [n, channels], taps [channels, k], the newest input's last, before [k - 1, channels]:
    out[t] = sum over j of taps[:, j] * x[t - k + 1 + j], plus bias, perhaps through SiLU."""
    k = taps.shape[1]
    wide = x.astype(np.float64)
    kept = np.zeros((k - 1, x.shape[1])) if before is None else before.astype(np.float64)
    padded = np.concatenate([kept, wide])
    out = np.zeros_like(wide)
    for j in range(k):
        out += padded[j : j + len(x)] * taps[:, j].astype(np.float64)
    if bias is not None:
        out = out + bias.astype(np.float64)
    return out / (1 + np.exp(-out)) if silu else out


@dataclass(frozen=True)
class Scan:
    """A Mamba-2 layer: sizes, and a, d, dt_bias per head."""

    heads: int
    head_dim: int
    groups: int
    state_size: int
    a: F32 | F64
    d: F32 | F64
    dt_bias: F32 | F64


def scan(
    params: Scan, x_b_c: F32 | F64, dt: F32 | F64, before: F32 | F64 | None
) -> tuple[F64, F64]:
    """x_b_c [n, heads * head_dim + 2 * groups * state_size], dt [n, heads], state
    [heads, state_size, head_dim] -> out [n, heads * head_dim] and the state after it:
    h = exp(a dt) h + dt b xᵀ, out = c h + d x, with dt through softplus (Dao and Gu 2024)."""
    heads, dim, groups, size = params.heads, params.head_dim, params.groups, params.state_size
    inner = heads * dim
    wide = x_b_c.astype(np.float64)
    x = wide[:, :inner].reshape(-1, heads, dim)
    b = wide[:, inner : inner + groups * size].reshape(-1, groups, size)
    c = wide[:, inner + groups * size :].reshape(-1, groups, size)
    b, c = b.repeat(heads // groups, axis=1), c.repeat(heads // groups, axis=1)
    step = np.logaddexp(0, dt.astype(np.float64) + params.dt_bias)
    state = np.zeros((heads, size, dim)) if before is None else before.astype(np.float64)
    out = np.empty_like(x)
    for t in range(len(x)):
        decay = np.exp(step[t] * params.a)[:, None, None]
        state = decay * state + step[t][:, None, None] * b[t][:, :, None] * x[t][:, None, :]
        out[t] = np.einsum("hn,hnp->hp", c[t], state) + params.d[:, None] * x[t]
    return out.reshape(len(x), inner), state
