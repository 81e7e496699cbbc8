"""What every backend operation computes, in NumPy: the definitions that the kernel tests
hold each instruction-set tier to. Arithmetic is float64 unless a rounding is part of the
definition; nothing of pykv is used.
"""

# NumPy's stubs type many operators as Any.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]

MAX_F16 = np.float32(65504)


def encode(kind: str, values: F32) -> Bytes:
    """float32 values -> bytes in GGUF's row layout, by the rule of quant.h."""
    flat = np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
    with np.errstate(all="ignore"):
        if kind == "f32":
            return flat.view(np.uint8).copy()
        if kind == "f16":
            return flat.astype(np.float16).view(np.uint8)
        if kind == "bf16":
            return encode_bf16(flat).view(np.uint8)
        if kind == "q8_0":
            return encode_q8_0(flat)
    raise ValueError(kind)


def encode_bf16(flat: F32) -> npt.NDArray[np.uint16]:
    bits = flat.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(flat), quiet, rounded).astype(np.uint16)


def encode_q8_0(flat: F32) -> Bytes:
    blocks = np.where(np.isnan(flat), np.float32(0), flat).reshape(-1, 32)
    d = np.minimum(np.abs(blocks).max(axis=1) / np.float32(127), MAX_F16)
    reciprocal = np.float32(1) / d
    reciprocal = np.where(np.isfinite(reciprocal), reciprocal, np.float32(0)).astype(np.float32)
    scaled = np.clip(blocks * reciprocal[:, None], np.float32(-127), np.float32(127))
    out = np.empty((len(blocks), 34), np.uint8)
    out[:, :2] = d.astype(np.float16).reshape(-1, 1).view(np.uint8)
    out[:, 2:] = np.rint(scaled).astype(np.int8).view(np.uint8)
    return out.reshape(-1)


def decode(kind: str, data: Bytes) -> F32:
    """Bytes in GGUF's row layout -> the float32 values they stand for."""
    raw = np.ascontiguousarray(data, dtype=np.uint8).reshape(-1)
    if kind == "f32":
        return raw.view(np.float32).copy()
    if kind == "f16":
        return raw.view(np.float16).astype(np.float32)
    if kind == "bf16":
        return (raw.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    if kind == "q8_0":
        blocks = raw.reshape(-1, 34)
        d = blocks[:, :2].copy().view(np.float16).astype(np.float32)
        return (d * blocks[:, 2:].view(np.int8).astype(np.float32)).reshape(-1)
    if kind == "q4_1":
        blocks = raw.reshape(-1, 20)
        d, m = blocks[:, :4].copy().view(np.float16).astype(np.float32).T
        nibbles = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
        return (d[:, None] * nibbles.astype(np.float32) + m[:, None]).reshape(-1)
    raise ValueError(kind)


def linear(weight: F32, x: F32) -> F64:
    """weight [outputs, inputs], x [n, inputs] -> [n, outputs]."""
    return x.astype(np.float64) @ weight.astype(np.float64).T


def linear_error_scale(weight: F32, x: F32) -> F64:
    """Σ |x w|, the natural unit of rounding errors of `linear`."""
    return np.abs(x.astype(np.float64)) @ np.abs(weight.astype(np.float64)).T


def rms_norm(x: F32, gain: F32, epsilon: float) -> F64:
    wide = x.astype(np.float64)
    mean = (wide**2).mean(axis=1, keepdims=True)
    return wide / np.sqrt(mean + epsilon) * gain.astype(np.float64)


def rope(
    x: F32, positions: Sequence[int], heads: int, dims: int, base: float, interleaved: bool
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


def attention(
    q: F32, k: F32, v: F32, positions: Sequence[int], *, heads: int, kv_heads: int, scale: float
) -> F64:
    """q [n, heads * k_dim]; k, v [tokens, kv_heads * dim], the stored values of positions
    0, 1, …; query i stands at positions[i] and sees positions 0 … its own."""
    wide: list[Any] = [a.astype(np.float64) for a in (q, k, v)]
    queries = wide[0].reshape(len(q), heads, -1)
    keys = wide[1].reshape(len(k), kv_heads, -1)
    values = wide[2].reshape(len(v), kv_heads, -1)
    out = np.empty((len(q), heads, values.shape[2]))
    hidden = np.arange(len(k))[None, :] > np.asarray(positions)[:, None]
    for head in range(heads):
        kv_head = head // (heads // kv_heads)
        scores = scale * queries[:, head] @ keys[:, kv_head].T
        scores[hidden] = -np.inf
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, head] = weights / weights.sum(axis=1, keepdims=True) @ values[:, kv_head]
    return out.reshape(len(q), -1)
