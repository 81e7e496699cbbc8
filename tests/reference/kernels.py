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


def weight_integers(kind: str, data: Bytes) -> tuple[F64, F64, F64]:
    """Blocks of a stored weight as d [n], m [n] and integers [n, 32]: d * integer + m."""
    raw = np.ascontiguousarray(data, np.uint8).reshape(-1, {"q8_0": 34, "q4_1": 20}[kind])
    d = raw[:, :2].copy().view(np.float16).astype(np.float64)[:, 0]
    if kind == "q8_0":
        return d, np.zeros_like(d), raw[:, 2:].view(np.int8).astype(np.float64)
    m = raw[:, 2:4].copy().view(np.float16).astype(np.float64)[:, 0]
    nibbles = np.concatenate([raw[:, 4:] & 15, raw[:, 4:] >> 4], axis=1)
    return d, m, nibbles.astype(np.float64)


def linear_int8(kind: str, data: Bytes, shape: tuple[int, int], x: F32) -> tuple[F64, F64]:
    """The layer of stored weights [outputs, inputs] on rounded activations, and the sum of
    the magnitudes that its float32 chain adds: the unit of its rounding errors."""
    outputs, blocks = shape[0], shape[1] // 32
    scale, q = quantize_activations(x)
    d, m, integers = weight_integers(kind, data)
    wide = scale.astype(np.float64)
    dots = np.einsum("obk,nbk->nob", integers.reshape(outputs, blocks, 32), q.astype(np.float64))
    products = dots * d.reshape(outputs, blocks) * wide[:, None, :]
    minimums = m.reshape(outputs, blocks) * (wide * q.astype(np.float64).sum(axis=2))[:, None, :]
    terms = np.abs(products) + np.abs(minimums)
    return (products + minimums).sum(axis=2), terms.sum(axis=2)


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
