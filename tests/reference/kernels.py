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
